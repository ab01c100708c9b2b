// Which kernels of compression/cuda serve a codec, and the one call that runs them.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "compression/cuda/kernels.h"

namespace sluice::compression::cuda {

struct Choice {
  enum class Kind : uint8_t { kDense, kQsgd, kTopK, kSparse };
  Kind kind = Kind::kDense;
  Format format = Format::kNone;          // of the elements, or of the values that are sent
  uint32_t levels = 0;                    // kQsgd
  Selection selection = Selection::kTopK;
  double ratio = 0;                       // of kTopK, kAdaptive and kRandom
  float threshold = 0;                    // of kThreshold

  // Encoded by SparseTask, decoded by SparseDecodeTask; else by EncodeTask and DecodeTask.
  bool sparse() const { return kind == Kind::kTopK || kind == Kind::kSparse; }
  // The kernels keep a float from round to round. (The CPU's topk does, too; the bytes are the same without.)
  bool has_state() const { return kind == Kind::kSparse && selection == Selection::kAdaptive; }
};

// For a codec by its name (Codec::name). UNIMPLEMENTED if there are no kernels for it, and for lowrank, whose state is
// larger than a float.
absl::StatusOr<Choice> ChooseKernels(std::string_view codec);

// SparseTask::k and ::most for a partition of n elements.
uint64_t EntriesWanted(const Choice& choice, uint64_t n);
uint64_t MostEntries(const Choice& choice, uint64_t n);

// `tasks` are SparseTasks or SparseDecodeTasks where the choice is sparse.
inline Error RunEncode(const Choice& choice, const void* tasks, uint32_t count, uint64_t largest, Stream stream) {
  const Batch<EncodeTask> dense = {static_cast<const EncodeTask*>(tasks), count, largest};
  const Batch<SparseTask> sparse = {static_cast<const SparseTask*>(tasks), count, largest};
  switch (choice.kind) {
    case Choice::Kind::kDense: return Encode(choice.format, dense, stream);
    case Choice::Kind::kQsgd: return EncodeQsgd(choice.levels, dense, stream);
    case Choice::Kind::kTopK: return EncodeTopK(sparse, stream);
    case Choice::Kind::kSparse: return EncodeSparse(choice.selection, choice.format, sparse, stream);
  }
  return 1;   // cudaErrorInvalidValue
}

inline Error RunDecodeAdd(const Choice& choice, const void* tasks, uint32_t count, uint64_t largest, Stream stream) {
  const Batch<DecodeTask> dense = {static_cast<const DecodeTask*>(tasks), count, largest};
  const Batch<SparseDecodeTask> sparse = {static_cast<const SparseDecodeTask*>(tasks), count, largest};
  switch (choice.kind) {
    case Choice::Kind::kDense: return DecodeAdd(choice.format, dense, stream);
    case Choice::Kind::kQsgd: return DecodeAdd(Format::kQsgd, dense, stream);
    case Choice::Kind::kTopK: return DecodeTopKAdd(sparse, stream);
    case Choice::Kind::kSparse: return DecodeSparseAdd(sparse, stream);
  }
  return 1;
}

}  // namespace sluice::compression::cuda
