// Which elements a sparse codec sends: their indices, rising, in the task's workspace, and p in the new residual. By
// counting, like the CPU's: no sort, and no block waits for another. Each step is a launch for all partitions.
//
// topk: the k largest magnitudes, ties to the lower index, no zeros
//   1. Begin: clears the workspace.
//   2. Count<0>: p into the new residual; a histogram of the upper 11 bits of magnitudes; the largest of all.
//   3. Find: the bin of the k-th magnitude, and its place within. Count<1>, Find, Count<2>, Find: the next 10 bits and
//      the last 10, over members of the bin. Now the k-th magnitude is known, and how many that equal it are taken.
//   4. CountTiles: how many of each tile of 1024 elements lie above it or equal it. ScanTiles: how many before a tile.
//   5. Pick: each entry's index at its place.
//   Moves 12 bytes an element in step 2 and 4 in each of four passes after it.
// threshold: the threshold is known, so steps 2 and 3 fall away and CountTiles makes p: 12 and 4 bytes an element.
// threshold:auto: CountTiles with the last round's threshold and p, ScanTiles, which decides whether that serves; if not,
//   topk's steps from 2 on, which else return at once. Then 12 and 4 bytes an element; up to 32 if it does not.
// randk: p, and drawn indices: 12 bytes an element.
#include <initializer_list>

#include "compression/cuda/drawn.h"
#include "compression/cuda/sparse_state.h"

namespace sluice::compression::cuda {
namespace {

using device::Quad;

// Each block's counts go to memory once, so it counts many rows.
constexpr uint64_t kCountedByABlock = 8192;

// Magnitudes that reach `threshold`, a value above 0, lie above this.
SLUICE_DEVICE uint32_t JustBelow(float threshold) { return device::BitsOf(threshold) - 1; }

SLUICE_KERNEL(kThreads) BeginKernel(const SparseTask* tasks, Selection selection) {
  const SparseTask task = tasks[device::BlockY()];
  SparseState* state = SparseWorkspace(task).state;
  for (uint32_t bin = device::ThreadIndex(); bin < kBins; bin += kThreads) state->histogram[bin] = 0;
  if (device::ThreadIndex() != 0) return;
  state->largest = state->least = state->prefix = state->need = state->count = state->form = state->decided = 0;
  if (selection == Selection::kTopK) state->need = static_cast<uint32_t>(task.k);
  if (selection == Selection::kThreshold) state->prefix = JustBelow(task.threshold);
  if (selection == Selection::kRandom) state->count = static_cast<uint32_t>(task.k);
  if (selection != Selection::kAdaptive) return;
  const float last = task.state == nullptr ? 0.0f : *task.state;
  state->decided = last > 0 && device::Magnitude(last) < 0x7F800000;
  state->prefix = state->decided != 0 ? JustBelow(last) : 0x7FFFFFFF;
}

// kFallback: p lies there already, and nothing is done where the last threshold served.
template <int kPass, bool kFallback>
SLUICE_KERNEL(kThreads) CountKernel(const SparseTask* tasks) {
  constexpr uint32_t kShift = kPass == 0 ? 20 : kPass == 1 ? 10 : 0;
  const SparseTask task = tasks[device::BlockY()];
  SparseState* state = SparseWorkspace(task).state;
  if (kFallback && state->decided != 0) return;
  const bool aligned = FloatsAligned(task);
  const uint32_t prefix = state->prefix;
  SLUICE_SHARED(uint32_t, kBins, counts);
  for (uint32_t bin = device::ThreadIndex(); bin < kBins; bin += kThreads) counts.Store(bin, 0);
  device::Barrier();
  uint32_t largest = 0, least = 0;
  ForRows(task.n, [&](uint64_t, uint64_t at, uint32_t count) {
    Quad p;
    if (kPass == 0 && !kFallback) {
      p = Compensate(task, at, count, aligned);
      device::StoreQuad(task.residual_out + at, p, count, aligned);
    } else {
      p = device::LoadQuad(task.residual_out + at, count, aligned);
    }
    for (uint32_t j = 0; j < 4; ++j) {
      if (j >= count) continue;
      const uint32_t magnitude = device::Magnitude(p.v[j]);
      largest = magnitude > largest ? magnitude : largest;
      if (magnitude != 0) least = 0x7FFFFFFF - magnitude > least ? 0x7FFFFFFF - magnitude : least;
      if (kPass == 0 || magnitude >> (kShift + 10) == prefix)
        counts.AtomicAdd(kPass == 0 ? magnitude >> kShift : magnitude >> kShift & 1023, 1);
    }
  });
  device::Barrier();
  for (uint32_t bin = device::ThreadIndex(); bin < kBins; bin += kThreads)
    if (const uint32_t members = counts.Load(bin); members != 0) device::AtomicAdd(&state->histogram[bin], members);
  if (kPass != 0) return;
  largest = device::WarpMax(largest);
  least = device::WarpMax(least);
  if (device::Lane() == 0 && largest != 0) device::AtomicMax(&state->largest, largest);
  if (device::Lane() == 0 && least != 0) device::AtomicMax(&state->least, least);
}

// One block a partition. Leaves the histogram cleared.
template <int kPass>
SLUICE_KERNEL(kThreads) FindKernel(const SparseTask* tasks) {
  constexpr uint32_t kEach = kBins / kThreads;
  const SparseTask task = tasks[device::BlockY()];
  if (task.k == 0) return;
  SparseState* state = SparseWorkspace(task).state;
  if (state->decided != 0) return;
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
SLUICE_DEVICE void ForTiles(const SparseTask& task, uint32_t tiles, F f) {
  for (uint64_t tile = device::BlockX(); tile < tiles; tile += device::GridX()) {
    const uint64_t at = tile * kTile + device::ThreadIndex() * 4;
    f(tile, at, at >= task.n ? 0u : task.n - at < 4 ? static_cast<uint32_t>(task.n - at) : 4u);
  }
}

// kFirst: makes p, too. Else nothing is done where the last threshold served.
template <bool kFirst>
SLUICE_KERNEL(kThreads) CountTilesKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  if (!kFirst && work.state->decided != 0) return;
  const bool aligned = FloatsAligned(task);
  const uint32_t threshold = work.state->prefix;
  ForTiles(task, work.tiles, [&](uint64_t tile, uint64_t at, uint32_t count) {
    Quad p;
    if (kFirst) {
      p = Compensate(task, at, count, aligned);
      device::StoreQuad(task.residual_out + at, p, count, aligned);
    } else {
      p = device::LoadQuad(task.residual_out + at, count, aligned);
    }
    const Choice choice(p, count, threshold);
    uint32_t total = 0;
    device::BlockExclusiveSum<kThreads>(choice.Counts(), &total);
    if (device::ThreadIndex() != 0) return;
    work.above[tile] = total & 0xFFFF;
    work.ties[tile] = total >> 16;
  });
}

enum class Scan { kOnly, kGuess, kFallback };

// threshold:auto after the count with the last threshold: whether that serves, and the next one if so.
SLUICE_DEVICE void Decide(const SparseTask& task, SparseState* state) {
  const uint64_t count = state->count;
  if (state->decided != 0 && count != 0 && count <= task.most && 2 * count >= task.k) {
    const float off = device::Div(static_cast<float>(state->count), static_cast<float>(static_cast<uint32_t>(task.k)));
    const float root = device::Sqrt(device::Sqrt(device::Sqrt(off)));
    if (task.state_out != nullptr) *task.state_out = device::Mul(*task.state, root);
    return;
  }
  state->decided = state->prefix = 0;
  state->need = static_cast<uint32_t>(task.k);
}

// One block a partition.
template <Scan kScan>
SLUICE_KERNEL(kThreads) ScanTilesKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  SparseState* state = work.state;
  if (kScan == Scan::kFallback && state->decided != 0) return;
  const uint32_t above = ScanInPlace(work.above, work.tiles), ties = ScanInPlace(work.ties, work.tiles);
  if (device::ThreadIndex() != 0) return;
  state->count = above + Smaller(ties, state->need);
  if (kScan == Scan::kGuess) Decide(task, state);
  if (kScan != Scan::kFallback || task.state_out == nullptr) return;
  // The smallest magnitude that was sent: the k-th, or if that is a zero, the least of all others.
  const uint32_t least = state->least == 0 ? 0 : 0x7FFFFFFF - state->least;
  *task.state_out = device::FloatOf(state->prefix != 0 ? state->prefix : least);
}

SLUICE_KERNEL(kThreads) PickKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  const bool aligned = FloatsAligned(task);
  const uint32_t threshold = work.state->prefix, need = work.state->need;
  ForTiles(task, work.tiles, [&](uint64_t tile, uint64_t at, uint32_t count) {
    const Quad p = device::LoadQuad(task.residual_out + at, count, aligned);
    const Choice choice(p, count, threshold);
    uint32_t total = 0;
    const uint32_t before = device::BlockExclusiveSum<kThreads>(choice.Counts(), &total);
    uint32_t above = work.above[tile] + (before & 0xFFFF), ties = work.ties[tile] + (before >> 16);
    for (uint32_t j = 0; j < 4; ++j) {
      const bool is_above = (choice.above >> j & 1) != 0, is_tie = (choice.ties >> j & 1) != 0;
      if (is_above || (is_tie && ties < need))
        work.indices[above + Smaller(ties, need)] = static_cast<uint32_t>(at + j);
      above += is_above;
      ties += is_tie;
    }
  });
}

SLUICE_KERNEL(kThreads) CompensateKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const bool aligned = FloatsAligned(task);
  ForRows(task.n, [&](uint64_t, uint64_t at, uint32_t count) {
    device::StoreQuad(task.residual_out + at, Compensate(task, at, count, aligned), count, aligned);
  });
}

SLUICE_KERNEL(kThreads) DrawKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  DrawIndices(task.selection_key, task.k, task.n, SparseWorkspace(task).indices);
}

struct Step {
  const char* name;
  uint32_t grid_x;
  void (*kernel)(const SparseTask*);
};

}  // namespace

Error SelectEntries(Selection selection, const Batch<SparseTask>& batch, Stream stream) {
  const uint32_t counting = BlocksFor(batch.largest, kCountedByABlock, kMaxGridX);
  const uint32_t tiles = BlocksFor(batch.largest, kTile, kMaxGridX);
  const auto launch = [&](std::initializer_list<Step> steps) {
    for (const Step& step : steps)
      if (const Error error = device::Launch(stream, {step.name, step.grid_x, batch.count, kThreads}, step.kernel,
                                             batch.tasks);
          error != 0)
        return error;
    return 0;
  };
  if (const Error error = device::Launch(stream, {"begin", 1, batch.count, kThreads}, BeginKernel, batch.tasks,
                                         selection);
      error != 0)
    return error;
  switch (selection) {
    case Selection::kTopK:
      return launch({{"count 0", counting, CountKernel<0, false>},
                     {"find 0", 1, FindKernel<0>},
                     {"count 1", counting, CountKernel<1, false>},
                     {"find 1", 1, FindKernel<1>},
                     {"count 2", counting, CountKernel<2, false>},
                     {"find 2", 1, FindKernel<2>},
                     {"count tiles", tiles, CountTilesKernel<false>},
                     {"scan tiles", 1, ScanTilesKernel<Scan::kOnly>},
                     {"pick", tiles, PickKernel}});
    case Selection::kThreshold:
      return launch({{"count tiles", tiles, CountTilesKernel<true>},
                     {"scan tiles", 1, ScanTilesKernel<Scan::kOnly>},
                     {"pick", tiles, PickKernel}});
    case Selection::kAdaptive:
      return launch({{"count tiles", tiles, CountTilesKernel<true>},
                     {"decide", 1, ScanTilesKernel<Scan::kGuess>},
                     {"count 0", counting, CountKernel<0, true>},
                     {"find 0", 1, FindKernel<0>},
                     {"count 1", counting, CountKernel<1, true>},
                     {"find 1", 1, FindKernel<1>},
                     {"count 2", counting, CountKernel<2, true>},
                     {"find 2", 1, FindKernel<2>},
                     {"count tiles again", tiles, CountTilesKernel<false>},
                     {"scan tiles", 1, ScanTilesKernel<Scan::kFallback>},
                     {"pick", tiles, PickKernel}});
    case Selection::kRandom:
      return launch({{"compensate", tiles, CompensateKernel}, {"draw", EntryBlocks(batch), DrawKernel}});
  }
  return kInvalidValue;
}

}  // namespace sluice::compression::cuda
