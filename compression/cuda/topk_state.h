// What the kernels of topk.cu leave for each other in a task's workspace.
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"
#include "compression/cuda/grid.h"
#include "compression/cuda/tasks.h"

namespace sluice::compression::cuda {

inline constexpr uint32_t kBins = 2048;
inline constexpr uint32_t kTile = 4 * kThreads;   // elements of one block's turn
inline constexpr uint32_t kGroup = 64;            // entries whose gaps share a width (compression/index_pack.h)
inline constexpr uint32_t kTopKHeader = 8;

struct TopKState {
  uint32_t histogram[kBins];
  uint32_t largest;     // magnitude
  uint32_t prefix;      // the upper bits of the k-th magnitude that are known; in the end, the magnitude
  uint32_t need;        // how many of those with this prefix are taken, the lowest indices first
  uint32_t count;       // of entries
  uint32_t bitmap;      // 1: the indices are a bitmap
};

// The arrays behind the state.
struct TopKWorkspace {
  SLUICE_DEVICE explicit TopKWorkspace(const TopKTask& task)
      : state(static_cast<TopKState*>(task.workspace)), tiles(static_cast<uint32_t>((task.n + kTile - 1) / kTile)),
        above(reinterpret_cast<uint32_t*>(state + 1)), ties(above + tiles), indices(ties + tiles),
        widths(indices + task.k), offsets(widths + (task.k + kGroup - 1) / kGroup) {}

  TopKState* state;
  uint32_t tiles;
  uint32_t *above, *ties;      // of each tile; then, of those before it
  uint32_t* indices;           // of the entries, rising
  uint32_t *widths, *offsets;  // of each group of gaps: bits, and its first byte behind the halves
};

SLUICE_DEVICE uint32_t Smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

// E of the format: the largest magnitude lands in [2^15, 2^16).
SLUICE_DEVICE int ExponentFor(uint32_t largest) {
  if (largest == 0) return 0;
  const int exponent = static_cast<int>(largest >> 23) - 127 - 15;
  return exponent < -126 ? -126 : exponent;
}

SLUICE_DEVICE float PowerOfTwo(int exponent) { return device::FloatOf(static_cast<uint32_t>(exponent + 127) << 23); }

}  // namespace sluice::compression::cuda
