// Kernel tests on a GPU (tests/simt/backend.h), in managed memory: speed does not matter there.
#include "tests/simt/backend.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace sluice::simt {

void* AllocateShared(size_t bytes) {
  void* memory = nullptr;
  if (const cudaError_t error = cudaMallocManaged(&memory, bytes == 0 ? 1 : bytes); error != cudaSuccess) {
    std::fprintf(stderr, "gpu_check: no managed memory of %zu bytes: %s\n", bytes, cudaGetErrorString(error));
    std::exit(1);
  }
  return memory;
}

void FreeShared(void* memory) { cudaFree(memory); }

std::string RunOnDevice(uint64_t, const std::function<int(void* stream)>& enqueue) {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreate(&stream);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  error = static_cast<cudaError_t>(enqueue(stream));
  const cudaError_t waited = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  if (error == cudaSuccess) error = waited;
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace sluice::simt
