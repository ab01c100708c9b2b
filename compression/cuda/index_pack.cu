// The header and the indices of a sparse encoding: gaps or bitmap, the smaller, or the key of drawn indices.
//
//   1. GapWidths: the width of each group of 64 entries, in bits.
//   2. Lay: where each group goes; gaps or bitmap; the header and the size. One block a partition.
//   3. Pack: the indices.
#include "compression/cuda/sparse_state.h"
#include "compression/cuda/sparse_values.h"

namespace sluice::compression::cuda {
namespace {

// The gap before entry j.
SLUICE_DEVICE uint32_t Gap(const uint32_t* indices, uint32_t j) {
  return j == 0 ? indices[0] : indices[j] - indices[j - 1] - 1;
}

SLUICE_KERNEL(kThreads) GapWidthsKernel(const SparseTask* tasks) {
  const SparseWorkspace work(tasks[device::BlockY()]);
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

SLUICE_KERNEL(kThreads) LayKernel(const SparseTask* tasks, bool topk, bool drawn, uint8_t values) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  const uint32_t count = work.state->count;
  const uint32_t gap_bytes = drawn ? 0 : ScanInPlace(work.offsets, count / kGroup + (count % kGroup != 0));
  if (device::ThreadIndex() != 0) return;
  const uint64_t bitmap_bytes = BitmapBytes(task.n), value_bytes = ValueBytes(values, count);
  const uint32_t form = drawn ? kDrawn : gap_bytes > bitmap_bytes ? kBitmap : kGaps;
  work.state->form = form;
  device::StoreBytes<uint32_t>(task.out, count, false);
  if (topk) {
    device::StoreBytes<int16_t>(task.out + 4, static_cast<int16_t>(ExponentFor(work.state->largest)), false);
    task.out[6] = static_cast<uint8_t>(form);
    task.out[7] = 0;
  } else {
    task.out[4] = static_cast<uint8_t>(form);
    task.out[5] = values;
    device::StoreBytes<uint16_t>(task.out + 6, 0, false);
  }
  if (drawn) device::StoreBytes<uint64_t>(task.out + kSparseHeader + value_bytes, task.selection_key, false);
  *task.encoded_bytes = kSparseHeader + value_bytes + (drawn ? kSparseKey : form == kBitmap ? bitmap_bytes : gap_bytes);
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

SLUICE_KERNEL(kThreads) PackKernel(const SparseTask* tasks, uint8_t values) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  const uint32_t count = work.state->count;
  uint8_t* out = task.out + kSparseHeader + ValueBytes(values, count);
  if (work.state->form == kGaps) {
    ForGroups(count, [&](uint32_t group, uint32_t first, uint32_t members) {
      const uint32_t width = work.widths[group];
      uint8_t* to = out + work.offsets[group];
      if (device::Lane() == 0) *to = static_cast<uint8_t>(width);
      for (uint32_t b = device::Lane(); b + 1 < GroupBytes(members, width); b += device::kWarpLanes)
        to[1 + b] = PackedByte(work.indices, first, members, width, b);
    });
    return;
  }
  const uint64_t bytes = BitmapBytes(task.n), stride = uint64_t{device::GridX()} * kThreads;
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

Error PackIndices(bool topk, bool drawn, Format values, const Batch<SparseTask>& batch, Stream stream) {
  const uint32_t entries = EntryBlocks(batch);
  const uint8_t id = WireId(values);
  Error error = 0;
  if (!drawn)
    error = device::Launch(stream, {"gap widths", entries, batch.count, kThreads}, GapWidthsKernel, batch.tasks);
  if (error == 0)
    error = device::Launch(stream, {"lay", 1, batch.count, kThreads}, LayKernel, batch.tasks, topk, drawn, id);
  if (error == 0 && !drawn)
    error = device::Launch(stream, {"pack", entries, batch.count, kThreads}, PackKernel, batch.tasks, id);
  return error;
}

}  // namespace sluice::compression::cuda
