// What the kernels of a sparse encoding leave for each other in a task's workspace.
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"
#include "compression/cuda/grid.h"
#include "compression/cuda/kernels.h"

namespace sluice::compression::cuda {

inline constexpr uint32_t kBins = 2048;
inline constexpr uint32_t kTile = 4 * kThreads;   // elements of one block's turn
inline constexpr uint32_t kGroup = 64;            // entries whose gaps share a width (compression/index_pack.h)
inline constexpr uint32_t kSparseHeader = 8, kSparseKey = 8;
inline constexpr uint64_t kEntryBlocks = 64;      // most blocks a partition whose work is its entries

// Forms of indices, as they are on the wire.
inline constexpr uint32_t kGaps = 0, kBitmap = 1, kDrawn = 2;

struct SparseState {
  uint32_t histogram[kBins];
  uint32_t largest;     // magnitude
  uint32_t least;       // 0x7FFFFFFF - the smallest magnitude that is not zero; 0: there is none
  uint32_t prefix;      // the upper bits of the k-th magnitude that are known; in the end, the magnitude
  uint32_t need;        // how many of those with this prefix are taken, the lowest indices first
  uint32_t count;       // of entries
  uint32_t form;        // of the indices
  uint32_t decided;     // threshold:auto: the last threshold serves, so no selection is needed
};

// The arrays behind the state.
struct SparseWorkspace {
  SLUICE_DEVICE explicit SparseWorkspace(const SparseTask& task)
      : state(static_cast<SparseState*>(task.workspace)), tiles(static_cast<uint32_t>((task.n + kTile - 1) / kTile)),
        above(reinterpret_cast<uint32_t*>(state + 1)), ties(above + tiles), indices(ties + tiles),
        widths(indices + task.most), offsets(widths + (task.most + kGroup - 1) / kGroup) {}

  SparseState* state;
  uint32_t tiles;
  uint32_t *above, *ties;      // of each tile; then, of those before it
  uint32_t* indices;           // of the entries, rising
  uint32_t *widths, *offsets;  // of each group of gaps: bits, and its first byte behind the values
};

SLUICE_DEVICE uint32_t Smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

SLUICE_DEVICE uint64_t BitmapBytes(uint64_t n) { return n / 8 + (n % 8 != 0); }

// Of a group's gaps, with the byte of their width.
SLUICE_DEVICE uint32_t GroupBytes(uint32_t members, uint32_t width) { return 1 + (members * width + 7) / 8; }

// Calls f(group, its first entry, how many it has) for each group of this warp, all lanes together.
template <typename F>
SLUICE_DEVICE void ForGroups(uint32_t count, F f) {
  const uint32_t groups = count / kGroup + (count % kGroup != 0), stride = device::GridX() * kWarps;
  for (uint32_t group = device::BlockX() * kWarps + device::WarpIndex(); group < groups; group += stride)
    f(group, group * kGroup, Smaller(kGroup, count - group * kGroup));
}

// The sums of what lies before each of `size` values, in place; returns their sum. One block.
SLUICE_DEVICE uint32_t ScanInPlace(uint32_t* values, uint32_t size) {
  uint32_t sum = 0;
  for (uint32_t base = 0; base < size; base += kThreads) {
    const uint32_t i = base + device::ThreadIndex();
    uint32_t total = 0;
    const uint32_t before = device::BlockExclusiveSum<kThreads>(i < size ? values[i] : 0, &total);
    if (i < size) values[i] = sum + before;
    sum += total;
  }
  return sum;
}

// How many blocks serve `elements` each, at most `most`, of a batch's largest partition. At least one: nothing has a
// header, too.
inline uint32_t BlocksFor(uint64_t largest, uint64_t elements, uint64_t most) {
  const uint64_t needed = largest / elements + (largest % elements != 0);
  return static_cast<uint32_t>(std::clamp<uint64_t>(needed, 1, most));
}

template <typename Task>
inline uint32_t EntryBlocks(const Batch<Task>& batch) {
  return BlocksFor(batch.largest, uint64_t{kGroup} * kWarps, kEntryBlocks);
}

template <typename Task>
inline bool TooLarge(const Batch<Task>& batch) {
  return batch.count > kMaxTasks || batch.largest > kMaxSparseElements;
}

// The steps of a sparse encoding, a .cu file each.
Error SelectEntries(Selection selection, const Batch<SparseTask>& batch, Stream stream);        // select.cu
// Header, size and indices. The values lie there already, in the format `values`; `topk`: with topk's header.
Error PackIndices(bool topk, bool drawn, Format values, const Batch<SparseTask>& batch, Stream stream);   // index_pack.cu

}  // namespace sluice::compression::cuda
