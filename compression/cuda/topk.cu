// topk: the k largest magnitudes as fp16 with one power of two, to the bytes of docs/codecs.md. By counting, like the
// CPU's: no sort, and no block waits for another. Each step is a launch for all partitions.
//
//   1. Begin: clears the workspace.
//   2. Count<0>: p into the new residual; a histogram of the upper 11 bits of magnitudes; the largest of all.
//   3. Find: the bin of the k-th magnitude, and its place within. Count<1>, Find, Count<2>, Find: the next 10 bits and
//      the last 10, over members of the bin. Now the k-th magnitude is known, and how many that equal it are taken.
//   4. CountTiles: how many of each tile of 1024 elements lie above it or equal it. ScanTiles: how many before a tile.
//   5. Pick: each entry's index and half at its place in rising order of index; its residual.
//   6. GapWidths: for each group of 64 entries. Lay: where each group goes; gaps or bitmap; the header and the size.
//   7. Pack: the indices.
// Moves 12 bytes an element in step 2 and 4 in each of four passes after it.
#include "compression/cuda/kernels.h"
#include "compression/cuda/topk_state.h"

namespace sluice::compression::cuda {
namespace {

using device::Quad;

// Each block's counts go to memory once, so it counts many rows.
constexpr uint64_t kCountedByABlock = 8192;
constexpr uint64_t kPackingBlocks = 64;

SLUICE_KERNEL(kThreads) BeginKernel(const TopKTask* tasks) {
  const TopKTask task = tasks[device::BlockY()];
  TopKState* state = TopKWorkspace(task).state;
  for (uint32_t bin = device::ThreadIndex(); bin < kBins; bin += kThreads) state->histogram[bin] = 0;
  if (device::ThreadIndex() != 0) return;
  state->largest = state->prefix = state->count = state->bitmap = 0;
  state->need = static_cast<uint32_t>(task.k);
}

template <int kPass>
SLUICE_KERNEL(kThreads) CountKernel(const TopKTask* tasks) {
  constexpr uint32_t kShift = kPass == 0 ? 20 : kPass == 1 ? 10 : 0;
  const TopKTask task = tasks[device::BlockY()];
  TopKState* state = TopKWorkspace(task).state;
  const bool aligned = FloatsAligned(task);
  const uint32_t prefix = state->prefix;
  SLUICE_SHARED(uint32_t, kBins, counts);
  for (uint32_t bin = device::ThreadIndex(); bin < kBins; bin += kThreads) counts.Store(bin, 0);
  device::Barrier();
  uint32_t largest = 0;
  ForRows(task.n, [&](uint64_t, uint64_t at, uint32_t count) {
    Quad p;
    if (kPass == 0) {
      p = Compensate(task, at, count, aligned);
      device::StoreQuad(task.residual_out + at, p, count, aligned);
    } else {
      p = device::LoadQuad(task.residual_out + at, count, aligned);
    }
    for (uint32_t j = 0; j < 4; ++j) {
      if (j >= count) continue;
      const uint32_t magnitude = device::Magnitude(p.v[j]);
      largest = magnitude > largest ? magnitude : largest;
      if (kPass == 0 || magnitude >> (kShift + 10) == prefix)
        counts.AtomicAdd(kPass == 0 ? magnitude >> kShift : magnitude >> kShift & 1023, 1);
    }
  });
  device::Barrier();
  for (uint32_t bin = device::ThreadIndex(); bin < kBins; bin += kThreads)
    if (const uint32_t members = counts.Load(bin); members != 0) device::AtomicAdd(&state->histogram[bin], members);
  if (kPass != 0) return;
  largest = device::WarpMax(largest);
  if (device::Lane() == 0 && largest != 0) device::AtomicMax(&state->largest, largest);
}

// One block a partition. Leaves the histogram cleared.
template <int kPass>
SLUICE_KERNEL(kThreads) FindKernel(const TopKTask* tasks) {
  constexpr uint32_t kEach = kBins / kThreads;
  const TopKTask task = tasks[device::BlockY()];
  if (task.k == 0) return;
  TopKState* state = TopKWorkspace(task).state;
  const uint32_t need = state->need, prefix = state->prefix;
  const uint32_t first = kBins - 1 - device::ThreadIndex() * kEach;   // from the largest magnitudes down
  uint32_t members[kEach], sum = 0, total = 0;
  for (uint32_t j = 0; j < kEach; ++j) {
    sum += members[j] = state->histogram[first - j];
    state->histogram[first - j] = 0;
  }
  const uint32_t before = device::BlockExclusiveSum<kThreads>(sum, &total);   // all have read need and prefix
  if (before >= need || before + sum < need) return;
  uint32_t left = need - before, bin = first;
  for (uint32_t j = 0; j < kEach && members[j] < left; ++j) {
    left -= members[j];
    --bin;
  }
  state->need = left;
  state->prefix = kPass == 0 ? bin : prefix << 10 | bin;
}

// Which of a lane's elements lie above the k-th magnitude, and which equal it; a bit each. Zeros never do.
struct Choice {
  SLUICE_DEVICE Choice(const Quad& p, uint32_t count, uint32_t threshold) {
    for (uint32_t j = 0; j < 4; ++j) {
      if (j >= count) continue;
      const uint32_t magnitude = device::Magnitude(p.v[j]);
      above |= uint32_t{magnitude > threshold} << j;
      ties |= uint32_t{magnitude == threshold && threshold != 0} << j;
    }
  }
  // Both counts in one sum: a tile has 1024 elements.
  SLUICE_DEVICE uint32_t Counts() const { return device::CountBits(above) | device::CountBits(ties) << 16; }
  uint32_t above = 0, ties = 0;
};

// Calls f(tile, first element of this lane, how many it has) for each tile of this block, all threads together.
template <typename F>
SLUICE_DEVICE void ForTiles(const TopKTask& task, uint32_t tiles, F f) {
  for (uint64_t tile = device::BlockX(); tile < tiles; tile += device::GridX()) {
    const uint64_t at = tile * kTile + device::ThreadIndex() * 4;
    f(tile, at, at >= task.n ? 0u : task.n - at < 4 ? static_cast<uint32_t>(task.n - at) : 4u);
  }
}

SLUICE_KERNEL(kThreads) CountTilesKernel(const TopKTask* tasks) {
  const TopKTask task = tasks[device::BlockY()];
  const TopKWorkspace work(task);
  const bool aligned = FloatsAligned(task);
  const uint32_t threshold = work.state->prefix;
  ForTiles(task, work.tiles, [&](uint64_t tile, uint64_t at, uint32_t count) {
    const Choice choice(device::LoadQuad(task.residual_out + at, count, aligned), count, threshold);
    uint32_t total = 0;
    device::BlockExclusiveSum<kThreads>(choice.Counts(), &total);
    if (device::ThreadIndex() != 0) return;
    work.above[tile] = total & 0xFFFF;
    work.ties[tile] = total >> 16;
  });
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

SLUICE_KERNEL(kThreads) ScanTilesKernel(const TopKTask* tasks) {
  const TopKWorkspace work(tasks[device::BlockY()]);
  const uint32_t above = ScanInPlace(work.above, work.tiles), ties = ScanInPlace(work.ties, work.tiles);
  if (device::ThreadIndex() == 0) work.state->count = above + Smaller(ties, work.state->need);
}

SLUICE_KERNEL(kThreads) PickKernel(const TopKTask* tasks) {
  const TopKTask task = tasks[device::BlockY()];
  const TopKWorkspace work(task);
  const bool aligned = FloatsAligned(task), even = device::IsAligned<uint16_t>(task.out);
  const uint32_t threshold = work.state->prefix, need = work.state->need;
  const int exponent = ExponentFor(work.state->largest);
  const float up = PowerOfTwo(-exponent), unit = PowerOfTwo(exponent);
  ForTiles(task, work.tiles, [&](uint64_t tile, uint64_t at, uint32_t count) {
    const Quad p = device::LoadQuad(task.residual_out + at, count, aligned);
    const Choice choice(p, count, threshold);
    uint32_t total = 0;
    const uint32_t before = device::BlockExclusiveSum<kThreads>(choice.Counts(), &total);
    uint32_t above = work.above[tile] + (before & 0xFFFF), ties = work.ties[tile] + (before >> 16);
    for (uint32_t j = 0; j < 4; ++j) {
      const bool is_above = (choice.above >> j & 1) != 0, is_tie = (choice.ties >> j & 1) != 0;
      if (is_above || (is_tie && ties < need)) {
        const uint32_t place = above + Smaller(ties, need);
        const uint16_t half = device::HalfOf(device::Saturate(device::Mul(p.v[j], up), 65504.0f));
        work.indices[place] = static_cast<uint32_t>(at + j);
        device::StoreBytes<uint16_t>(task.out + kTopKHeader + 2 * uint64_t{place}, half, even);
        task.residual_out[at + j] = device::Sub(p.v[j], device::Mul(device::FloatOfHalf(half), unit));
      }
      above += is_above;
      ties += is_tie;
    }
  });
}

// The gap before entry j.
SLUICE_DEVICE uint32_t Gap(const uint32_t* indices, uint32_t j) {
  return j == 0 ? indices[0] : indices[j] - indices[j - 1] - 1;
}

SLUICE_DEVICE uint32_t GroupBytes(uint32_t members, uint32_t width) { return 1 + (members * width + 7) / 8; }

// Calls f(group, its first entry, how many it has) for each group of this warp, all lanes together.
template <typename F>
SLUICE_DEVICE void ForGroups(uint32_t count, F f) {
  const uint32_t groups = count / kGroup + (count % kGroup != 0), stride = device::GridX() * kWarps;
  for (uint32_t group = device::BlockX() * kWarps + device::WarpIndex(); group < groups; group += stride)
    f(group, group * kGroup, Smaller(kGroup, count - group * kGroup));
}

SLUICE_KERNEL(kThreads) GapWidthsKernel(const TopKTask* tasks) {
  const TopKWorkspace work(tasks[device::BlockY()]);
  ForGroups(work.state->count, [&](uint32_t group, uint32_t first, uint32_t members) {
    uint32_t widest = 0;
    for (uint32_t j = device::Lane(); j < members; j += device::kWarpLanes) {
      const uint32_t gap = Gap(work.indices, first + j);
      widest = gap > widest ? gap : widest;
    }
    const uint32_t width = device::BitWidth(device::WarpMax(widest));
    if (device::Lane() != 0) return;
    work.widths[group] = width;
    work.offsets[group] = GroupBytes(members, width);
  });
}

SLUICE_KERNEL(kThreads) LayKernel(const TopKTask* tasks) {
  const TopKTask task = tasks[device::BlockY()];
  const TopKWorkspace work(task);
  const uint32_t count = work.state->count;
  const uint32_t gap_bytes = ScanInPlace(work.offsets, count / kGroup + (count % kGroup != 0));
  const uint64_t bitmap_bytes = task.n / 8 + (task.n % 8 != 0);
  if (device::ThreadIndex() != 0) return;
  const bool bitmap = gap_bytes > bitmap_bytes;
  work.state->bitmap = bitmap;
  device::StoreBytes<uint32_t>(task.out, count, false);
  device::StoreBytes<int16_t>(task.out + 4, static_cast<int16_t>(ExponentFor(work.state->largest)), false);
  task.out[6] = bitmap;
  task.out[7] = 0;
  *task.encoded_bytes = kTopKHeader + 2 * uint64_t{count} + (bitmap ? bitmap_bytes : gap_bytes);
}

// Byte b of a group's gaps of `width` bits each, lowest bit first.
SLUICE_DEVICE uint8_t PackedByte(const uint32_t* indices, uint32_t first, uint32_t members, uint32_t width,
                                 uint32_t b) {
  uint32_t byte = 0;
  for (uint32_t j = 8 * b / width; j < members && j * width < 8 * b + 8; ++j) {
    const uint32_t gap = Gap(indices, first + j);
    byte |= j * width >= 8 * b ? gap << (j * width - 8 * b) : gap >> (8 * b - j * width);
  }
  return static_cast<uint8_t>(byte);
}

SLUICE_KERNEL(kThreads) PackKernel(const TopKTask* tasks) {
  const TopKTask task = tasks[device::BlockY()];
  const TopKWorkspace work(task);
  const uint32_t count = work.state->count;
  uint8_t* out = task.out + kTopKHeader + 2 * uint64_t{count};
  if (work.state->bitmap == 0) {
    ForGroups(count, [&](uint32_t group, uint32_t first, uint32_t members) {
      const uint32_t width = work.widths[group];
      uint8_t* to = out + work.offsets[group];
      if (device::Lane() == 0) *to = static_cast<uint8_t>(width);
      for (uint32_t b = device::Lane(); b + 1 < GroupBytes(members, width); b += device::kWarpLanes)
        to[1 + b] = PackedByte(work.indices, first, members, width, b);
    });
    return;
  }
  const uint64_t bytes = task.n / 8 + (task.n % 8 != 0), stride = uint64_t{device::GridX()} * kThreads;
  for (uint64_t b = uint64_t{device::BlockX()} * kThreads + device::ThreadIndex(); b < bytes; b += stride) {
    uint32_t low = 0, high = count;   // the first entry at or behind element 8 b
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (work.indices[middle] < 8 * b)
        low = middle + 1;
      else
        high = middle;
    }
    uint32_t byte = 0;
    for (; low < count && work.indices[low] < 8 * b + 8; ++low) byte |= 1u << (work.indices[low] % 8);
    out[b] = static_cast<uint8_t>(byte);
  }
}

}  // namespace

uint64_t TopKWorkspaceBytes(uint64_t n, uint64_t k) {
  return sizeof(TopKState) + 4 * (2 * ((n + kTile - 1) / kTile) + k + 2 * ((k + kGroup - 1) / kGroup));
}

Error EncodeTopK(Batch<TopKTask> batch, Stream stream) {
  if (batch.count == 0) return 0;
  if (batch.count > kMaxTasks || batch.largest > kMaxTopKElements) return kInvalidValue;
  const auto blocks = [&](uint64_t elements, uint64_t most) {
    const uint64_t needed = batch.largest / elements + (batch.largest % elements != 0);
    return static_cast<uint32_t>(std::clamp<uint64_t>(needed, 1, most));
  };
  const uint32_t counting = blocks(kCountedByABlock, kMaxGridX), tiles = blocks(kTile, kMaxGridX);
  const uint32_t packing = blocks(uint64_t{kGroup} * kWarps, kPackingBlocks);
  const struct {
    const char* name;
    uint32_t grid_x;
    void (*kernel)(const TopKTask*);
  } steps[] = {
      {"topk begin", 1, BeginKernel},
      {"topk count 0", counting, CountKernel<0>},
      {"topk find 0", 1, FindKernel<0>},
      {"topk count 1", counting, CountKernel<1>},
      {"topk find 1", 1, FindKernel<1>},
      {"topk count 2", counting, CountKernel<2>},
      {"topk find 2", 1, FindKernel<2>},
      {"topk count tiles", tiles, CountTilesKernel},
      {"topk scan tiles", 1, ScanTilesKernel},
      {"topk pick", tiles, PickKernel},
      {"topk gap widths", packing, GapWidthsKernel},
      {"topk lay", 1, LayKernel},
      {"topk pack", packing, PackKernel},
  };
  for (const auto& step : steps)
    if (const Error error = device::Launch(stream, {step.name, step.grid_x, batch.count, kThreads}, step.kernel,
                                           batch.tasks);
        error != 0)
      return error;
  return 0;
}

}  // namespace sluice::compression::cuda
