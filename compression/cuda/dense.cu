// The choice of a format's kernels; those of none, fp16, bf16 and mxfp8; and the check for NaN and infinity. One pass
// each: what the byte counts of docs/gpu.md name is all that moves.
#include "compression/cuda/formats.h"
#include "compression/cuda/mxfp8.h"
#include "compression/cuda/rows.h"

namespace sluice::compression::cuda {
namespace {

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

Error LaunchDecodes(Format format, const Batch<DecodeTask>& batch, bool add, Stream stream) {
  switch (format) {
    case Format::kNone: return LaunchDecode<NoneFormat>(batch, add, stream);
    case Format::kFp16: return LaunchDecode<HalfFormat<Fp16Rules>>(batch, add, stream);
    case Format::kBf16: return LaunchDecode<HalfFormat<Bf16Rules>>(batch, add, stream);
    case Format::kMxfp8: return LaunchDecode<Mxfp8Format>(batch, add, stream);
    case Format::kOneBit: return DecodeOneBit(batch, add, stream);
    case Format::kQsgd: return DecodeQsgd(batch, add, stream);
    default: return DecodeLevels(format, batch, add, stream);
  }
}

}  // namespace

Error Encode(Format format, Batch<EncodeTask> batch, Stream stream) {
  switch (format) {
    case Format::kNone: return LaunchEncode<NoneFormat>(batch, stream);
    case Format::kFp16: return LaunchEncode<HalfFormat<Fp16Rules>>(batch, stream);
    case Format::kBf16: return LaunchEncode<HalfFormat<Bf16Rules>>(batch, stream);
    case Format::kMxfp8: return LaunchEncode<Mxfp8Format>(batch, stream);
    case Format::kOneBit: return EncodeOneBit(batch, stream);
    default: return EncodeLevels(format, batch, stream);
  }
}

Error Decode(Format format, Batch<DecodeTask> batch, Stream stream) {
  return LaunchDecodes(format, batch, false, stream);
}

Error DecodeAdd(Format format, Batch<DecodeTask> batch, Stream stream) {
  return LaunchDecodes(format, batch, true, stream);
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
