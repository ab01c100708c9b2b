// Codecs on a GPU: they write the same bytes as the CPU's (docs/codecs.md), and leave the same residuals, bit for bit.
// Nothing here allocates or waits: calls enqueue work on the stream; tasks and all that they point to must stay until
// that work is done. One call serves several partitions.
//
// Arrays of tasks and all that they name lie in device memory. Floats are aligned to 4 bytes; encodings may lie
// anywhere. Both are fastest at multiples of 16. Arguments are not checked on the device: sizes are the caller's care.
//
// An Error is a cudaError_t, 0 if all is well; on the CPU emulator, 1 if the machine has a report.
#pragma once

#include <cstdint>

#include "compression/cuda/tasks.h"

namespace sluice::compression::cuda {

using Stream = void*;   // cudaStream_t, or the emulator's simt::Machine*
using Error = int;

enum class Format : uint8_t {
  kNone, kFp16, kBf16, kInt8, kInt4, kOneBit, kMxfp8,
  kInt8Stochastic, kInt4Stochastic,   // they draw; decoded as kInt8 and kInt4
  kQsgd                               // to decode; EncodeQsgd encodes
};

// p = gradient + scale * residual, its encoding, and the new residual, in one pass.
Error Encode(Format format, Batch<EncodeTask> batch, Stream stream);

// The same for qsgd with 1 to 127 levels; terngrad has 1.
Error EncodeQsgd(uint32_t levels, Batch<EncodeTask> batch, Stream stream);

enum class Selection : uint8_t { kTopK, kThreshold, kAdaptive, kRandom };

// The same for topk, and for the sparse format: randk, threshold, threshold:auto (values in kFp16 if not in a chain) and
// chains. Several launches each (compression/cuda/select.cu).
Error EncodeTopK(Batch<SparseTask> batch, Stream stream);
Error EncodeSparse(Selection selection, Format values, Batch<SparseTask> batch, Stream stream);
uint64_t SparseWorkspaceBytes(uint64_t n, uint64_t most);

// The same for lowrank:<rank>, and with +fp16 if `halves`. The encoding has the codec's MaxEncodedBytes. 7 launches.
Error EncodeLowRank(uint32_t rank, bool halves, Batch<LowRankTask> batch, Stream stream);
uint64_t LowRankWorkspaceBytes(uint64_t n, uint64_t columns, uint32_t rank);

// out = the decoded values, or out += them. Encodings from strangers are validated before (compression/codec.h); any
// bytes are safe.
Error Decode(Format format, Batch<DecodeTask> batch, Stream stream);
Error DecodeAdd(Format format, Batch<DecodeTask> batch, Stream stream);

// The same for topk and for the sparse format, whatever the values are in. 5 or 6 launches.
Error DecodeTopK(Batch<SparseDecodeTask> batch, Stream stream);
Error DecodeTopKAdd(Batch<SparseDecodeTask> batch, Stream stream);
Error DecodeSparse(Batch<SparseDecodeTask> batch, Stream stream);
Error DecodeSparseAdd(Batch<SparseDecodeTask> batch, Stream stream);
uint64_t SparseDecodeWorkspaceBytes(uint64_t n, uint64_t most);

Error DecodeLowRank(Batch<DecodeTask> batch, Stream stream);
Error DecodeLowRankAdd(Batch<DecodeTask> batch, Stream stream);

// *task.first = index of the first NaN or infinity, or n.
Error FirstNonfinite(Batch<FindTask> batch, Stream stream);

}  // namespace sluice::compression::cuda
