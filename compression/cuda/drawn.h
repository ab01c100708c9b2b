// Drawn indices (docs/codecs.md, "randk"): one of each of k strata.
#pragma once

#include <cstdint>

#include "compression/cuda/draws.h"
#include "compression/cuda/grid.h"

namespace sluice::compression::cuda {

// Writes the indices of all `count` entries, four a thread; count <= n < 2^32.
SLUICE_DEVICE void DrawIndices(uint64_t key, uint64_t count, uint64_t n, uint32_t* indices) {
  const uint64_t stride = uint64_t{device::GridX()} * kThreads * 4;
  for (uint64_t first = (uint64_t{device::BlockX()} * kThreads + device::ThreadIndex()) * 4; first < count;
       first += stride) {
    const Draws draws = DrawBlock(key, first / 4);
    uint64_t begin = first * n / count;
    for (uint32_t j = 0; j < 4 && first + j < count; ++j) {
      const uint64_t end = (first + j + 1) * n / count;
      indices[first + j] = static_cast<uint32_t>(begin + (draws.v[j] * (end - begin) >> 32));
      begin = end;
    }
  }
}

}  // namespace sluice::compression::cuda
