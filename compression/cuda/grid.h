// How a batch of partitions is laid over a grid: one row of blocks a partition, and each warp takes rows of 128
// elements, four for each lane, in strides of the grid.
#pragma once

#include <algorithm>
#include <cstdint>

#include "compression/cuda/device.h"
#include "compression/cuda/tasks.h"

namespace sluice::compression::cuda {

inline constexpr uint32_t kThreads = 256;
inline constexpr uint32_t kWarps = kThreads / device::kWarpLanes;
inline constexpr uint64_t kRow = 128;
inline constexpr uint64_t kMaxGridX = 1 << 16;   // beyond, warps take several rows
inline constexpr uint32_t kMaxTasks = 65535;     // CUDA's limit of grid_y
inline constexpr int kInvalidValue = 1;          // cudaErrorInvalidValue

template <typename Task, typename... P>
int LaunchRows(const char* name, const Batch<Task>& batch, void* stream, void (*kernel)(P...),
               std::type_identity_t<P>... arguments) {
  if (batch.count == 0 || batch.largest == 0) return 0;
  if (batch.count > kMaxTasks) return kInvalidValue;
  const uint64_t rows = batch.largest / kRow + (batch.largest % kRow != 0);
  const auto grid_x = static_cast<uint32_t>(std::min((rows + kWarps - 1) / kWarps, kMaxGridX));
  return device::Launch(stream, {name, grid_x, batch.count, kThreads}, kernel, arguments...);
}

// Calls f(row, first element of this lane, how many it has (0 to 4)) for each row of this warp. All lanes are there.
template <typename F>
SLUICE_DEVICE void ForRows(uint64_t n, F f) {
  const uint64_t rows = (n + kRow - 1) / kRow, stride = uint64_t{device::GridX()} * kWarps;
  for (uint64_t row = uint64_t{device::BlockX()} * kWarps + device::WarpIndex(); row < rows; row += stride) {
    const uint64_t at = row * kRow + device::Lane() * 4;
    f(row, at, at >= n ? 0u : n - at < 4 ? static_cast<uint32_t>(n - at) : 4u);
  }
}

// p = g + scale * e for one lane's elements, held to the finite range; zeros behind them. As in encode_blocks.h.
SLUICE_DEVICE device::Quad Compensate(const EncodeTask& task, uint64_t at, uint32_t count, bool aligned) {
  device::Quad p = device::LoadQuad(task.gradient + at, count, aligned);
  if (task.residual == nullptr) {
    for (uint32_t j = 0; j < 4; ++j) p.v[j] = device::Add(p.v[j], 0.0f);
    return p;
  }
  const device::Quad e = device::LoadQuad(task.residual + at, count, aligned);
  for (uint32_t j = 0; j < 4; ++j)
    p.v[j] = device::Saturate(device::Add(p.v[j], device::Mul(task.scale, e.v[j])), 3.402823466e+38f);
  return p;
}

SLUICE_DEVICE float CompensateOne(const EncodeTask& task, uint64_t at) {
  const float g = task.gradient[at];
  if (task.residual == nullptr) return device::Add(g, 0.0f);
  return device::Saturate(device::Add(g, device::Mul(task.scale, task.residual[at])), 3.402823466e+38f);
}

SLUICE_DEVICE bool FloatsAligned(const EncodeTask& task) {
  return device::IsAligned<device::Quad>(task.gradient) && device::IsAligned<device::Quad>(task.residual) &&
         device::IsAligned<device::Quad>(task.residual_out);
}

}  // namespace sluice::compression::cuda
