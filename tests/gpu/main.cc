// gpu_check: the kernel tests of tests/simt on a real GPU, then (with --table) how fast the kernels are.
//   gpu_check [--table] [gtest's options]
// Exit code 3: there is no GPU here, or the build has no CUDA.
#include <cstdio>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/gpu/table.h"
#include "third_party/cuda/probe.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  bool table = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--table") != 0) {
      std::fprintf(stderr, "gpu_check: unknown option %s; it takes --table and gtest's options\n", argv[i]);
      return 2;
    }
    table = true;
  }
  const sluice::cuda::Probe probe = sluice::cuda::ProbeDevices();
  if (probe.devices == 0) {
    std::fprintf(stderr, "gpu_check: no GPU to test on: %s\n", probe.why_none.c_str());
    return 3;
  }
  const int failed = RUN_ALL_TESTS();
  return failed != 0 || !table ? failed : sluice::gpu::PrintTable();
}
