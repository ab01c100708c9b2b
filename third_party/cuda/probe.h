// What this build and this machine offer of CUDA.
#pragma once

#include <string>

namespace sluice::cuda {

struct Probe {
  bool built = false;    // nvcc was there when this was built
  int devices = 0;       // GPUs that can be used now
  std::string why_none;  // for people, if devices is 0
};

Probe ProbeDevices();

}  // namespace sluice::cuda
