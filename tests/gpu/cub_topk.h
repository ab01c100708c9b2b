// A baseline for top-k: what a program without kernels of its own would call, CUB. For the GPU only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sluice::gpu {

// Works on one partition at a time, as CUB has no batch of selections; the launches of several follow each other.
class CubTopK {
 public:
  bool Allocate(uint64_t n);

  // All magnitudes with their indices, sorted, largest first. A stable sort: ties go to the lower index.
  int Sort(const float* values, cudaStream_t stream);

  // The indices of those that reach a threshold that is known already: what threshold:auto has to find in a good round.
  int Select(const float* values, float threshold, cudaStream_t stream);

 private:
  uint64_t n_ = 0;
  size_t temporary_bytes_ = 0;
  void* temporary_ = nullptr;
  uint32_t *magnitudes_ = nullptr, *sorted_ = nullptr, *indices_ = nullptr, *sorted_indices_ = nullptr;
  uint64_t* count_ = nullptr;
};

}  // namespace sluice::gpu
