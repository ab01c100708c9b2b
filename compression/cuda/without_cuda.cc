// Stand-ins for a build without nvcc: every call fails as on a machine without a GPU.
#include "compression/cuda/kernels.h"

namespace sluice::compression::cuda {
namespace {

constexpr Error kNoDevice = 100;   // cudaErrorNoDevice

}  // namespace

Error Encode(Format, Batch<EncodeTask>, Stream) { return kNoDevice; }
Error EncodeQsgd(uint32_t, Batch<EncodeTask>, Stream) { return kNoDevice; }
Error EncodeTopK(Batch<SparseTask>, Stream) { return kNoDevice; }
Error EncodeSparse(Selection, Format, Batch<SparseTask>, Stream) { return kNoDevice; }
uint64_t SparseWorkspaceBytes(uint64_t, uint64_t) { return 0; }
Error EncodeLowRank(uint32_t, bool, Batch<LowRankTask>, Stream) { return kNoDevice; }
uint64_t LowRankWorkspaceBytes(uint64_t, uint64_t, uint32_t) { return 0; }
Error Decode(Format, Batch<DecodeTask>, Stream) { return kNoDevice; }
Error DecodeAdd(Format, Batch<DecodeTask>, Stream) { return kNoDevice; }
Error DecodeTopK(Batch<SparseDecodeTask>, Stream) { return kNoDevice; }
Error DecodeTopKAdd(Batch<SparseDecodeTask>, Stream) { return kNoDevice; }
Error DecodeSparse(Batch<SparseDecodeTask>, Stream) { return kNoDevice; }
Error DecodeSparseAdd(Batch<SparseDecodeTask>, Stream) { return kNoDevice; }
uint64_t SparseDecodeWorkspaceBytes(uint64_t, uint64_t) { return 0; }
Error DecodeLowRank(Batch<DecodeTask>, Stream) { return kNoDevice; }
Error DecodeLowRankAdd(Batch<DecodeTask>, Stream) { return kNoDevice; }
Error FirstNonfinite(Batch<FindTask>, Stream) { return kNoDevice; }

}  // namespace sluice::compression::cuda
