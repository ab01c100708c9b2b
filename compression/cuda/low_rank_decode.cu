// lowrank: decodes P Q^T, or a partition that goes as it is; one launch. Any bytes are safe: a header or a size that makes
// no sense decodes to zeros. Factors are taken as they come, and read once for each row or column that they serve.
#include "compression/cuda/low_rank.h"

namespace sluice::compression::cuda {
namespace {

constexpr int kMostExponentP = -14, kMostExponentQ = 84;

struct Payload {
  LowRankLayout layout;
  bool good = false;
  float p_unit = 1, q_unit = 1;
};

SLUICE_DEVICE Payload ReadHeader(const DecodeTask& task) {
  Payload payload;
  if (task.bytes < kLowRankHeader) return payload;
  const uint64_t columns = device::LoadBytes<uint32_t>(task.in, false);
  const uint32_t rank = task.in[4], form = task.in[5], zero = device::LoadBytes<uint16_t>(task.in + 6, false);
  const int p_exponent = device::LoadBytes<int16_t>(task.in + 8, false);
  const int q_exponent = device::LoadBytes<int16_t>(task.in + 10, false);
  if (form > kHalfForm || zero != 0) return payload;
  const bool sane = form == kHalfForm ? p_exponent >= kLeastLowRankExponent && p_exponent <= kMostExponentP &&
                                            q_exponent >= kLeastLowRankExponent && q_exponent <= kMostExponentQ
                                      : p_exponent == 0 && q_exponent == 0;
  if (!sane) return payload;
  const uint64_t room = task.bytes - kLowRankHeader, n = task.n;
  if (form == kPlainForm) {
    payload.good = columns == 0 && rank == 0 && room == 4 * n;
    return payload;
  }
  LowRankLayout& layout = payload.layout;
  if (columns < 2) return payload;
  layout.form = form;
  layout.rank = rank;
  layout.rows = n / columns;
  layout.columns = columns;
  const uint64_t least = layout.rows < columns ? layout.rows : columns, bytes = layout.ValueBytes() * layout.Values();
  payload.good = layout.rows >= 2 && layout.rows * columns == n && rank > 0 && rank <= kMaxRank && rank <= least &&
                 bytes == room && bytes / 4 < n;
  payload.p_unit = LowRankPower(p_exponent);
  payload.q_unit = LowRankPower(q_exponent);
  return payload;
}

// Values of one factor.
struct Factor {
  SLUICE_DEVICE float Load(uint64_t i) const {
    if (!halves) return device::LoadBytes<float>(in + 4 * i, aligned);
    return device::Mul(device::FloatOfHalf(device::LoadBytes<uint16_t>(in + 2 * i, aligned)), unit);
  }
  const uint8_t* in;
  bool halves, aligned;
  float unit;
};

template <bool kAdd>
SLUICE_DEVICE void Put(float* to, float value) {
  *to = kAdd ? device::Add(*to, value) : value;
}

template <bool kAdd>
SLUICE_KERNEL(kThreads) DecodeLowRankKernel(const DecodeTask* tasks) {
  const DecodeTask task = tasks[device::BlockY()];
  const Payload payload = ReadHeader(task);
  const LowRankLayout& layout = payload.layout;
  const uint8_t* const values = task.in + kLowRankHeader;
  const bool halves = layout.form == kHalfForm;
  const bool aligned = halves ? device::IsAligned<uint16_t>(values) : device::IsAligned<uint32_t>(values);
  if (!payload.good || layout.form == kPlainForm) {
    ForRows(task.n, [&](uint64_t, uint64_t at, uint32_t count) {
      for (uint32_t j = 0; j < count; ++j) {
        if (payload.good)
          Put<kAdd>(task.out + at + j, device::LoadBytes<float>(values + 4 * (at + j), aligned));
        else if (!kAdd)
          task.out[at + j] = 0;
      }
    });
    return;
  }
  const uint64_t rows = layout.rows, columns = layout.columns;
  const Factor p = {values, halves, aligned, payload.p_unit};
  const Factor q = {values + layout.ValueBytes() * layout.rank * rows, halves, aligned, payload.q_unit};
  ForMatrixRows(rows, [&](uint64_t row) {
    for (uint64_t j = device::Lane(); j < columns; j += device::kWarpLanes)
      Put<kAdd>(task.out + row * columns + j,
                SumOfComponents(layout.rank, [&](uint32_t k) { return p.Load(k * rows + row); },
                                [&](uint32_t k) { return q.Load(k * columns + j); }));
  });
}

}  // namespace

Error DecodeLowRank(Batch<DecodeTask> batch, Stream stream) {
  return LaunchRows("decode lowrank", batch, stream, DecodeLowRankKernel<false>, batch.tasks);
}

Error DecodeLowRankAdd(Batch<DecodeTask> batch, Stream stream) {
  return LaunchRows("decode-add lowrank", batch, stream, DecodeLowRankKernel<true>, batch.tasks);
}

}  // namespace sluice::compression::cuda
