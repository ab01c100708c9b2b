// Kernels of the formats whose encoders take a row of 128 elements a warp: one pass each.
//
// A source is where an encoder's p comes from and where the residual goes:
//   Load(at, count): p of count (at most 4) elements from `at` on, zeros behind them
//   Leave(at, count, p, decoded): the residual is p - decoded, or zeros where the format loses nothing
//   LoadOne, LeaveOne: the same for one element
#pragma once

#include <cstdint>

#include "compression/cuda/grid.h"
#include "compression/cuda/kernels.h"

namespace sluice::compression::cuda {

using device::Quad;

// A partition's gradient and residual. Of a format that keeps a gradient's bits, -0 stays -0.
template <bool kKeepsBits>
struct DenseSource {
  SLUICE_DEVICE explicit DenseSource(const EncodeTask& of)
      : task(of), aligned(FloatsAligned(of)), copy(kKeepsBits && of.residual == nullptr) {}
  SLUICE_DEVICE Quad Load(uint64_t at, uint32_t count) const {
    return copy ? device::LoadQuad(task.gradient + at, count, aligned) : Compensate(task, at, count, aligned);
  }
  SLUICE_DEVICE void Leave(uint64_t at, uint32_t count, const Quad& p, const Quad& decoded) const {
    if (task.residual_out == nullptr) return;
    Quad rest;
    for (uint32_t j = 0; j < 4; ++j) rest.v[j] = kKeepsBits ? 0.0f : device::Sub(p.v[j], decoded.v[j]);
    device::StoreQuad(task.residual_out + at, rest, count, aligned);
  }
  SLUICE_DEVICE float LoadOne(uint64_t at) const { return CompensateOne(task, at); }
  SLUICE_DEVICE void LeaveOne(uint64_t at, float p, float decoded) const {
    if (task.residual_out != nullptr) task.residual_out[at] = device::Sub(p, decoded);
  }
  const EncodeTask& task;
  bool aligned, copy;
};

template <typename Encoder, typename Source>
SLUICE_DEVICE void EncodeRows(const Encoder& encoder, uint64_t n, const Source& source) {
  ForRows(n, [&](uint64_t row, uint64_t at, uint32_t count) {
    const Quad p = source.Load(at, count);
    const Quad decoded = encoder.Encode(row, at, count, p);
    source.Leave(at, count, p, decoded);
  });
}

template <typename Format>
SLUICE_KERNEL(kThreads) EncodeKernel(const EncodeTask* tasks) {
  const EncodeTask task = tasks[device::BlockY()];
  EncodeRows(typename Format::Encoder(task), task.n, DenseSource<Format::kKeepsBits>(task));
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

template <typename Format>
Error LaunchEncode(const Batch<EncodeTask>& batch, Stream stream) {
  return LaunchRows("encode", batch, stream, EncodeKernel<Format>, batch.tasks);
}

template <typename Format>
Error LaunchDecode(const Batch<DecodeTask>& batch, bool add, Stream stream) {
  return add ? LaunchRows("decode-add", batch, stream, DecodeKernel<Format, true>, batch.tasks)
             : LaunchRows("decode", batch, stream, DecodeKernel<Format, false>, batch.tasks);
}

// The families of formats, a .cu file each; kernels.h chooses among them.
Error EncodeLevels(Format format, const Batch<EncodeTask>& batch, Stream stream);               // quantized.cu
Error DecodeLevels(Format format, const Batch<DecodeTask>& batch, bool add, Stream stream);
Error EncodeOneBit(const Batch<EncodeTask>& batch, Stream stream);                              // onebit.cu
Error DecodeOneBit(const Batch<DecodeTask>& batch, bool add, Stream stream);
Error DecodeQsgd(const Batch<DecodeTask>& batch, bool add, Stream stream);                      // qsgd.cu

}  // namespace sluice::compression::cuda
