#include "tests/gpu/cub_topk.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cstring>

#include "tests/gpu/bench.h"

namespace sluice::gpu {
namespace {

constexpr int kMagnitudeBits = 31;

__global__ void Magnitudes(const float* values, uint64_t n, uint32_t* magnitudes, uint32_t* indices) {
  const uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x;
  if (i >= n) return;
  magnitudes[i] = __float_as_uint(values[i]) & 0x7FFFFFFF;
  indices[i] = static_cast<uint32_t>(i);
}

struct Reaches {
  __device__ bool operator()(uint32_t index) const {
    return (__float_as_uint(values[index]) & 0x7FFFFFFF) >= threshold;
  }
  const float* values;
  uint32_t threshold;
};

uint32_t BitsOf(float value) {
  uint32_t bits;
  static_assert(sizeof(bits) == sizeof(value));
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

bool CubTopK::Allocate(uint64_t n) {
  n_ = n;
  magnitudes_ = gpu::Allocate<uint32_t>(n);
  sorted_ = gpu::Allocate<uint32_t>(n);
  indices_ = gpu::Allocate<uint32_t>(n);
  sorted_indices_ = gpu::Allocate<uint32_t>(n);
  count_ = gpu::Allocate<uint64_t>(1);
  size_t sort = 0, select = 0;
  if (!Ok(cub::DeviceRadixSort::SortPairsDescending(nullptr, sort, magnitudes_, sorted_, indices_, sorted_indices_, n,
                                                    0, kMagnitudeBits),
          "CUB's sort") ||
      !Ok(cub::DeviceSelect::If(nullptr, select, thrust::counting_iterator<uint32_t>(0), sorted_indices_, count_, n,
                                Reaches{nullptr, 0}),
          "CUB's selection"))
    return false;
  temporary_bytes_ = std::max(sort, select);
  temporary_ = gpu::Allocate<uint8_t>(temporary_bytes_);
  return magnitudes_ && sorted_ && indices_ && sorted_indices_ && count_ && temporary_;
}

int CubTopK::Sort(const float* values, cudaStream_t stream) {
  Magnitudes<<<static_cast<uint32_t>((n_ + 255) / 256), 256, 0, stream>>>(values, n_, magnitudes_, indices_);
  size_t bytes = temporary_bytes_;
  return cub::DeviceRadixSort::SortPairsDescending(temporary_, bytes, magnitudes_, sorted_, indices_, sorted_indices_, n_,
                                                   0, kMagnitudeBits, stream);
}

int CubTopK::Select(const float* values, float threshold, cudaStream_t stream) {
  size_t bytes = temporary_bytes_;
  return cub::DeviceSelect::If(temporary_, bytes, thrust::counting_iterator<uint32_t>(0), sorted_indices_, count_, n_,
                               Reaches{values, BitsOf(threshold)}, stream);
}

}  // namespace sluice::gpu
