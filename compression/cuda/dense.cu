// none, fp16, bf16 and int8: encode with error feedback, decode, decode and add; and the check for NaN and infinity.
// One pass each: what the byte counts of docs/gpu.md name is all that moves.
#include "compression/cuda/formats.h"
#include "compression/cuda/kernels.h"

namespace sluice::compression::cuda {
namespace {

template <typename Format>
SLUICE_KERNEL(kThreads) EncodeKernel(const EncodeTask* tasks) {
  const EncodeTask task = tasks[device::BlockY()];
  const typename Format::Encoder encoder(task);
  const bool aligned = FloatsAligned(task);
  const bool copy = Format::kKeepsGradientBits && task.residual == nullptr;
  ForRows(task.n, [&](uint64_t row, uint64_t at, uint32_t count) {
    const Quad p =
        copy ? device::LoadQuad(task.gradient + at, count, aligned) : Compensate(task, at, count, aligned);
    Quad rest = encoder.Encode(row, at, count, p);
    if (task.residual_out == nullptr) return;
    for (uint32_t j = 0; j < 4; ++j) rest.v[j] = Format::kKeepsGradientBits ? 0.0f : device::Sub(p.v[j], rest.v[j]);
    device::StoreQuad(task.residual_out + at, rest, count, aligned);
  });
}

template <typename Format, bool kAdd>
SLUICE_KERNEL(kThreads) DecodeKernel(const DecodeTask* tasks) {
  const DecodeTask task = tasks[device::BlockY()];
  const typename Format::Decoder decoder(task);
  const bool aligned = device::IsAligned<Quad>(task.out);
  ForRows(task.n, [&](uint64_t row, uint64_t at, uint32_t count) {
    Quad values = decoder.Decode(row, at, count);
    if (kAdd) {
      const Quad sum = device::LoadQuad(task.out + at, count, aligned);
      for (uint32_t j = 0; j < 4; ++j) values.v[j] = device::Add(sum.v[j], values.v[j]);
    }
    device::StoreQuad(task.out + at, values, count, aligned);
  });
}

SLUICE_KERNEL(kThreads) AllFiniteKernel(const FindTask* tasks, uint32_t count) {
  const uint32_t i = device::BlockX() * kThreads + device::ThreadIndex();
  if (i < count) *tasks[i].first = tasks[i].n;
}

SLUICE_KERNEL(kThreads) FirstNonfiniteKernel(const FindTask* tasks) {
  const FindTask task = tasks[device::BlockY()];
  const bool aligned = device::IsAligned<Quad>(task.values);
  ForRows(task.n, [&](uint64_t, uint64_t at, uint32_t count) {
    const Quad values = device::LoadQuad(task.values + at, count, aligned);
    for (uint32_t j = 0; j < 4; ++j) {
      if (device::Magnitude(values.v[j]) < 0x7F800000) continue;
      device::AtomicMin(task.first, at + j);
      return;
    }
  });
}

// Calls f.template operator()<Format>() for the format's type.
template <typename F>
Error With(Format format, F f) {
  switch (format) {
    case Format::kNone: return f.template operator()<NoneFormat>();
    case Format::kFp16: return f.template operator()<HalfFormat<Fp16Rules>>();
    case Format::kBf16: return f.template operator()<HalfFormat<Bf16Rules>>();
    case Format::kInt8: return f.template operator()<Int8Format>();
  }
  return kInvalidValue;
}

template <typename F>
Error LaunchEncode(const Batch<EncodeTask>& batch, Stream stream) {
  return LaunchRows("encode", batch, stream, EncodeKernel<F>, batch.tasks);
}

template <typename F, bool kAdd>
Error LaunchDecode(const Batch<DecodeTask>& batch, Stream stream) {
  return LaunchRows(kAdd ? "decode-add" : "decode", batch, stream, DecodeKernel<F, kAdd>, batch.tasks);
}

}  // namespace

Error Encode(Format format, Batch<EncodeTask> batch, Stream stream) {
  return With(format, [&]<typename F>() { return LaunchEncode<F>(batch, stream); });
}

Error Decode(Format format, Batch<DecodeTask> batch, Stream stream) {
  return With(format, [&]<typename F>() { return LaunchDecode<F, false>(batch, stream); });
}

Error DecodeAdd(Format format, Batch<DecodeTask> batch, Stream stream) {
  return With(format, [&]<typename F>() { return LaunchDecode<F, true>(batch, stream); });
}

Error FirstNonfinite(Batch<FindTask> batch, Stream stream) {
  if (batch.count == 0) return 0;
  if (batch.count > kMaxTasks) return kInvalidValue;
  const uint32_t blocks = (batch.count + kThreads - 1) / kThreads;
  if (const Error error = device::Launch(stream, {"all finite", blocks, 1, kThreads}, AllFiniteKernel, batch.tasks,
                                         batch.count);
      error != 0)
    return error;
  return LaunchRows("first nonfinite", batch, stream, FirstNonfiniteKernel, batch.tasks);
}

}  // namespace sluice::compression::cuda
