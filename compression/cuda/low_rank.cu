// lowrank: encodes a partition as a matrix of few components, in the order of sums of docs/codecs.md: the same bytes as
// the CPU's.
//
//   1. Begin: Q of the last round, each component brought into [1, 2), or drawn. A block a component.
//   2. MakeP: p into the new residual, and P = M Q. A warp a row: half of it sums for one component, half for another.
//   3. Orthonormalize: P. One block a partition: each component against those before it, so these wait for each other.
//   4. MakeQ: Q = M^T P, which is the new state. A thread for four components of a column.
//   5. Round: P and Q to what is sent. A block each.
//   6. Leave: the residual, p - P Q^T.
// A partition that goes as it is takes step Plain alone. Moves 12 bytes an element in step 2, 4 for each four components in
// step 4 and 8 in step 6.
#include "compression/cuda/low_rank.h"

#include "compression/cuda/draws.h"

namespace sluice::compression::cuda {
namespace {

constexpr uint32_t kSums = 16, kEach = 4;   // sums of a row or a component; components of a lane at a time

// A batch's codec.
struct Parameters {
  uint32_t rank;
  bool halves;
};

struct Matrix {
  SLUICE_DEVICE Matrix(const LowRankTask& task, Parameters of)
      : layout(LowRankLayoutFor(task.n, task.columns, of.rank, of.halves)), p(static_cast<float*>(task.workspace)),
        q(p + layout.rank * layout.rows) {}
  LowRankLayout layout;
  float *p, *q;   // by components
};

SLUICE_DEVICE float Held(float value) { return device::Saturate(value, 0x1p80f); }

// The largest of all threads' values. Barriers inside.
SLUICE_DEVICE uint32_t BlockMax(uint32_t value) {
  SLUICE_SHARED(uint32_t, kWarps, largest);
  value = device::WarpMax(value);
  device::Barrier();   // whoever reads the last call's is done
  if (device::Lane() == 0) largest.Store(device::WarpIndex(), value);
  device::Barrier();
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    const uint32_t other = largest.Load(warp);
    value = other > value ? other : value;
  }
  return value;
}

SLUICE_DEVICE uint32_t LargestMagnitude(const float* values, uint64_t n) {
  uint32_t largest = 0;
  for (uint64_t i = device::ThreadIndex(); i < n; i += kThreads) {
    const uint32_t magnitude = device::Magnitude(values[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  return BlockMax(largest);
}

// The power of two that brings a component of this largest magnitude into [1, 2); 0 if there is none.
SLUICE_DEVICE float PowerFor(uint32_t largest) {
  constexpr uint32_t kLeast = (127u - 100) << 23, kMost = (127u + 120) << 23;
  if (largest < kLeast || largest > kMost) return 0;
  return LowRankPower(127 - static_cast<int>(largest >> 23));
}

// Draw `e` of a stream, in [-1, 1).
SLUICE_DEVICE float DrawnFactor(uint64_t key, uint64_t e) {
  const Draws block = DrawBlock(key, e / 4);
  const uint32_t part = static_cast<uint32_t>(e % 4);
  const uint32_t draw = part == 0 ? block.v[0] : part == 1 ? block.v[1] : part == 2 ? block.v[2] : block.v[3];
  return device::Sub(device::Mul(static_cast<float>(static_cast<int32_t>(draw >> 8)), 0x1p-23f), 1.0f);
}

SLUICE_KERNEL(kThreads) BeginKernel(const LowRankTask* tasks, Parameters of) {
  const LowRankTask task = tasks[device::BlockY()];
  const Matrix matrix(task, of);
  const uint32_t k = device::BlockX();
  if (k >= matrix.layout.rank) return;
  const uint64_t columns = matrix.layout.columns;
  float* q = matrix.q + k * columns;
  float up = 0;
  if (task.state != nullptr) up = PowerFor(LargestMagnitude(task.state + k * columns, columns));
  for (uint64_t j = device::ThreadIndex(); j < columns; j += kThreads)
    q[j] = up != 0 ? device::Mul(task.state[k * columns + j], up) : DrawnFactor(task.factor_key, k * columns + j);
}

// Folds the 16 sums of each half of a warp into its first lane.
SLUICE_DEVICE float Fold(float sum) {
  for (uint32_t half = kSums / 2; half > 0; half /= 2) sum = device::Add(sum, device::ShuffleDown(sum, half));
  return sum;
}

SLUICE_KERNEL(kThreads) MakePKernel(const LowRankTask* tasks, Parameters of) {
  const LowRankTask task = tasks[device::BlockY()];
  const Matrix matrix(task, of);
  const uint32_t rank = matrix.layout.rank, half = device::Lane() / kSums, first = device::Lane() % kSums;
  const uint64_t columns = matrix.layout.columns;
  ForMatrixRows(matrix.layout.rows, [&](uint64_t row) {
    for (uint32_t group = 0; group < rank; group += 2 * kEach) {
      const uint32_t mine = group + half * kEach;
      float sums[kEach] = {0, 0, 0, 0};
      for (uint64_t j = first; j < columns; j += kSums) {
        const uint64_t at = row * columns + j;
        float m;
        if (group == 0) {   // both halves make p, one stores it
          m = CompensateOne(task, at);
          if (half == 0) task.residual_out[at] = m;
        } else {
          m = task.residual_out[at];
        }
        m = Held(m);
        for (uint32_t c = 0; c < kEach; ++c)
          if (mine + c < rank) sums[c] = device::Add(sums[c], device::Mul(m, matrix.q[(mine + c) * columns + j]));
      }
      for (uint32_t c = 0; c < kEach; ++c) {
        const float sum = Fold(sums[c]);
        if (first == 0 && mine + c < rank) matrix.p[(mine + c) * matrix.layout.rows + row] = sum;
      }
      device::WarpSync();   // p is there for the other half
    }
  });
}

// Sum of a[i] * b[i], by half a warp, for all threads. Barriers inside.
SLUICE_DEVICE float BlockDot(const float* a, const float* b, uint64_t n) {
  SLUICE_SHARED(float, 1, dot);
  device::Barrier();   // a and b are written, and the last call's dot is read
  if (device::WarpIndex() == 0) {
    float sum = 0;
    for (uint64_t i = device::Lane() % kSums; i < n; i += kSums) sum = device::Add(sum, device::Mul(a[i], b[i]));
    sum = Fold(sum);
    if (device::Lane() == 0) dot.Store(0, sum);
  }
  device::Barrier();
  return dot.Load(0);
}

SLUICE_KERNEL(kThreads) OrthonormalizeKernel(const LowRankTask* tasks, Parameters of) {
  const Matrix matrix(tasks[device::BlockY()], of);
  const uint64_t rows = matrix.layout.rows;
  for (uint32_t k = 0; k < matrix.layout.rank; ++k) {
    float* const mine = matrix.p + k * rows;
    const auto scale = [&](float by) {   // each thread has its own elements, in every loop
      for (uint64_t i = device::ThreadIndex(); i < rows; i += kThreads) mine[i] = by == 0 ? 0.0f : device::Mul(mine[i], by);
    };
    const float up = PowerFor(LargestMagnitude(mine, rows));
    scale(up);
    if (up == 0) continue;
    const float before = device::Sqrt(BlockDot(mine, mine, rows));
    float norm = before;
    for (int pass = 0; pass < 2 && k > 0; ++pass) {
      for (uint32_t other = 0; other < k; ++other) {
        const float* theirs = matrix.p + other * rows;
        const float along = BlockDot(theirs, mine, rows);
        for (uint64_t i = device::ThreadIndex(); i < rows; i += kThreads)
          mine[i] = device::Sub(mine[i], device::Mul(along, theirs[i]));
      }
      norm = device::Sqrt(BlockDot(mine, mine, rows));
      if (!(norm > device::Mul(0x1p-16f, before))) break;
    }
    scale(norm > device::Mul(0x1p-16f, before) ? device::Div(1.0f, norm) : 0.0f);
  }
}

SLUICE_KERNEL(kThreads) MakeQKernel(const LowRankTask* tasks, Parameters of) {
  const LowRankTask task = tasks[device::BlockY()];
  const Matrix matrix(task, of);
  const uint64_t rows = matrix.layout.rows, columns = matrix.layout.columns;
  const uint64_t groups = (matrix.layout.rank + kEach - 1) / kEach, stride = uint64_t{device::GridX()} * kThreads;
  for (uint64_t t = uint64_t{device::BlockX()} * kThreads + device::ThreadIndex(); t < columns * groups; t += stride) {
    const uint64_t j = t % columns;
    const uint32_t mine = static_cast<uint32_t>(t / columns) * kEach;
    float sums[kEach] = {0, 0, 0, 0};
    for (uint64_t i = 0; i < rows; ++i) {
      const float m = Held(task.residual_out[i * columns + j]);
      for (uint32_t c = 0; c < kEach; ++c)
        if (mine + c < matrix.layout.rank) sums[c] = device::Add(sums[c], device::Mul(m, matrix.p[(mine + c) * rows + i]));
    }
    for (uint32_t c = 0; c < kEach; ++c) {
      if (mine + c >= matrix.layout.rank) continue;
      matrix.q[(mine + c) * columns + j] = sums[c];
      if (task.state_out != nullptr) task.state_out[(mine + c) * columns + j] = sums[c];
    }
  }
}

// Block 0 has P and the header, block 1 has Q.
SLUICE_KERNEL(kThreads) RoundKernel(const LowRankTask* tasks, Parameters of) {
  const LowRankTask task = tasks[device::BlockY()];
  const Matrix matrix(task, of);
  const LowRankLayout& layout = matrix.layout;
  if (layout.form == kPlainForm) return;
  const bool is_q = device::BlockX() != 0;
  float* const values = is_q ? matrix.q : matrix.p;
  const uint64_t n = layout.rank * (is_q ? layout.columns : layout.rows);
  uint8_t* const out = task.out + kLowRankHeader + (is_q ? layout.ValueBytes() * layout.rank * layout.rows : 0);
  int exponent = 0;
  if (layout.form == kHalfForm) {
    const int wanted = static_cast<int>(LargestMagnitude(values, n) >> 23) - 127 - 14;
    exponent = wanted > kLeastLowRankExponent ? wanted : kLeastLowRankExponent;
  }
  const float down = LowRankPower(-exponent), unit = LowRankPower(exponent);
  const bool aligned = device::IsAligned<uint32_t>(task.out);
  for (uint64_t i = device::ThreadIndex(); i < n; i += kThreads) {
    if (layout.form == kFloatForm) {
      device::StoreBytes<float>(out + 4 * i, values[i], aligned);
      continue;
    }
    const uint16_t half = device::HalfOf(device::Saturate(device::Mul(values[i], down), 65504.0f));
    device::StoreBytes<uint16_t>(out + 2 * i, half, aligned);
    values[i] = device::Mul(device::FloatOfHalf(half), unit);
  }
  if (device::ThreadIndex() != 0) return;
  device::StoreBytes<int16_t>(task.out + (is_q ? 10 : 8), static_cast<int16_t>(exponent), false);
  if (is_q) return;
  device::StoreBytes<uint32_t>(task.out, static_cast<uint32_t>(layout.columns), false);
  task.out[4] = static_cast<uint8_t>(layout.rank);
  task.out[5] = static_cast<uint8_t>(layout.form);
  device::StoreBytes<uint16_t>(task.out + 6, 0, false);
}

SLUICE_KERNEL(kThreads) LeaveKernel(const LowRankTask* tasks, Parameters of) {
  const LowRankTask task = tasks[device::BlockY()];
  const Matrix matrix(task, of);
  const uint64_t rows = matrix.layout.rows, columns = matrix.layout.columns;
  ForMatrixRows(rows, [&](uint64_t row) {
    for (uint64_t j = device::Lane(); j < columns; j += device::kWarpLanes) {
      const float value = SumOfComponents(matrix.layout.rank, [&](uint32_t k) { return matrix.p[k * rows + row]; },
                                          [&](uint32_t k) { return matrix.q[k * columns + j]; });
      float* const p = task.residual_out + row * columns + j;
      *p = device::Sub(*p, value);
    }
  });
}

SLUICE_KERNEL(kThreads) PlainKernel(const LowRankTask* tasks, Parameters of) {
  const LowRankTask task = tasks[device::BlockY()];
  if (Matrix(task, of).layout.form != kPlainForm) return;
  const uint64_t stride = uint64_t{device::GridX()} * kThreads;
  const uint64_t first = uint64_t{device::BlockX()} * kThreads + device::ThreadIndex();
  if (first < kLowRankHeader) task.out[first] = 0;
  const bool aligned = device::IsAligned<uint32_t>(task.out);
  for (uint64_t i = first; i < task.n; i += stride) {
    device::StoreBytes<float>(task.out + kLowRankHeader + 4 * i, CompensateOne(task, i), aligned);
    task.residual_out[i] = 0;
  }
}

}  // namespace

uint64_t LowRankWorkspaceBytes(uint64_t n, uint64_t columns, uint32_t rank) {
  const uint64_t rows = columns == 0 ? 0 : n / columns;
  return 4 * std::min<uint64_t>({rank, rows, columns}) * (rows + columns);
}

Error EncodeLowRank(uint32_t rank, bool halves, Batch<LowRankTask> batch, Stream stream) {
  if (batch.count == 0) return 0;
  if (rank == 0 || rank > kMaxRank || batch.count > kMaxTasks) return kInvalidValue;
  const auto blocks = [&](uint64_t elements) {
    const uint64_t needed = batch.largest / elements + (batch.largest % elements != 0);
    return static_cast<uint32_t>(std::clamp<uint64_t>(needed, 1, kMaxGridX));
  };
  const uint32_t rows = blocks(kRow * kWarps), columns = blocks(64 * kThreads);
  const Parameters parameters = {rank, halves};
  const struct {
    const char* name;
    uint32_t grid_x;
    void (*kernel)(const LowRankTask*, Parameters);
  } steps[] = {{"lowrank begin", rank, BeginKernel},
               {"lowrank make P", rows, MakePKernel},
               {"lowrank orthonormalize", 1, OrthonormalizeKernel},
               {"lowrank make Q", columns, MakeQKernel},
               {"lowrank round", 2, RoundKernel},
               {"lowrank leave", rows, LeaveKernel},
               {"lowrank plain", rows, PlainKernel}};
  for (const auto& step : steps)
    if (const Error error = device::Launch(stream, {step.name, step.grid_x, batch.count, kThreads}, step.kernel,
                                           batch.tasks, parameters);
        error != 0)
      return error;
  return 0;
}

}  // namespace sluice::compression::cuda
