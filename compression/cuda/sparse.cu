// Encoders that send some of the elements: topk, and the sparse format (randk, threshold, chains). The entries are
// selected (select.cu), their values encoded as an array of their own (here), and their indices packed (index_pack.cu).
#include "compression/cuda/rows.h"
#include "compression/cuda/sparse_state.h"
#include "compression/cuda/sparse_values.h"

namespace sluice::compression::cuda {
namespace {

// The entries as a task of their own: draws count entries from the partition's first element on.
SLUICE_DEVICE EncodeTask ValuesOf(const SparseTask& task, const SparseWorkspace& work) {
  EncodeTask values = task;
  values.n = work.state->count;
  values.out += kSparseHeader;
  return values;
}

template <typename Format>
SLUICE_KERNEL(kThreads) EncodeValuesKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  const EncodeTask values = ValuesOf(task, work);
  EncodeRows(typename Format::Encoder(values), values.n, SparseSource<Format::kKeepsBits>(task, work));
}

SLUICE_KERNEL(kThreads) EncodeOneBitValuesKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  const EncodeTask values = ValuesOf(task, work);
  EncodeOneBitBlocks(values.out, values.n, SparseSource<false>(task, work));
}

SLUICE_KERNEL(kThreads) EncodeTopKValuesKernel(const SparseTask* tasks) {
  const SparseTask task = tasks[device::BlockY()];
  const SparseWorkspace work(task);
  const EncodeTask values = ValuesOf(task, work);
  EncodeRows(TopKEncoder(values, ExponentFor(work.state->largest)), values.n, SparseSource<false>(task, work));
}

using Kernel = void (*)(const SparseTask*);

// Null for what carries no values.
Kernel ValuesKernel(Format values) {
  switch (values) {
    case Format::kNone: return EncodeValuesKernel<NoneFormat>;
    case Format::kFp16: return EncodeValuesKernel<HalfFormat<Fp16Rules>>;
    case Format::kBf16: return EncodeValuesKernel<HalfFormat<Bf16Rules>>;
    case Format::kMxfp8: return EncodeValuesKernel<Mxfp8Format>;
    case Format::kInt8: return EncodeValuesKernel<Int8Format>;
    case Format::kInt8Stochastic: return EncodeValuesKernel<Int8StochasticFormat>;
    case Format::kInt4: return EncodeValuesKernel<Int4Format>;
    case Format::kInt4Stochastic: return EncodeValuesKernel<Int4StochasticFormat>;
    case Format::kOneBit: return EncodeOneBitValuesKernel;
    default: return nullptr;
  }
}

Error Encode(bool topk, Selection selection, Format values, Kernel kernel, const Batch<SparseTask>& batch,
             Stream stream) {
  if (batch.count == 0) return 0;
  if (kernel == nullptr || TooLarge(batch)) return kInvalidValue;
  Error error = SelectEntries(selection, batch, stream);
  if (error == 0)
    error = device::Launch(stream, {"values", EntryBlocks(batch), batch.count, kThreads}, kernel, batch.tasks);
  return error == 0 ? PackIndices(topk, selection == Selection::kRandom, values, batch, stream) : error;
}

}  // namespace

uint64_t SparseWorkspaceBytes(uint64_t n, uint64_t most) {
  return sizeof(SparseState) + 4 * (2 * ((n + kTile - 1) / kTile) + most + 2 * ((most + kGroup - 1) / kGroup));
}

Error EncodeTopK(Batch<SparseTask> batch, Stream stream) {
  return Encode(true, Selection::kTopK, Format::kFp16, EncodeTopKValuesKernel, batch, stream);
}

Error EncodeSparse(Selection selection, Format values, Batch<SparseTask> batch, Stream stream) {
  return Encode(false, selection, values, ValuesKernel(values), batch, stream);
}

}  // namespace sluice::compression::cuda
