#include <cuda_runtime.h>

#include "third_party/cuda/probe.h"

namespace sluice::cuda {

Probe ProbeDevices() {
  Probe probe;
  probe.built = true;
  const cudaError_t error = cudaGetDeviceCount(&probe.devices);
  if (error != cudaSuccess) {
    probe.devices = 0;
    probe.why_none = cudaGetErrorString(error);   // without a driver: 35, "insufficient for CUDA runtime version"
  } else if (probe.devices == 0) {
    probe.why_none = "the driver lists no device";
  }
  return probe;
}

}  // namespace sluice::cuda
