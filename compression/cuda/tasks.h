// One partition's work in a launch: small descriptors that the caller keeps in device memory.
#pragma once

#include <cstdint>

namespace sluice::compression::cuda {

struct EncodeTask {
  const float* gradient;
  const float* residual;    // null = zeros
  float* residual_out;      // null = not wanted; may not overlap the inputs
  uint8_t* out;             // room for the codec's MaxEncodedBytes(n)
  uint64_t n;
  float scale;              // of the residual: old rate / new rate
  // Of formats that draw (compression/draws.h): words 0 (low) and 1 of DrawKey(…, kRounding), and the place of the
  // partition's first element in its tensor.
  uint64_t draw_key;
  uint64_t first_element;
};

// Of codecs that send some of the elements. residual_out is needed: p lies there between the passes. At most
// kMaxSparseElements elements.
struct SparseTask : EncodeTask {
  uint64_t k;               // max(1, ceil(ratio n)) as compression/selection.h counts it, 0 of nothing
  uint64_t most;            // entries that the codec may send: k; n with a threshold, min(n, 2 k) with an adaptive one
  void* workspace;          // SparseWorkspaceBytes(n, most), aligned to 4 bytes; content is nothing to anybody
  uint64_t* encoded_bytes;  // the result: how many bytes of `out` are the encoding
  float threshold;          // of Selection::kThreshold, finite and above 0
  const float* state;       // of kAdaptive: the last round's; null = none
  float* state_out;         // and the next; null = not wanted. May not be `state`
  uint64_t selection_key;   // of kRandom: SelectionKey of compression/selection.h
};

inline constexpr uint64_t kMaxSparseElements = 0x7FFFFFFF;

// Of lowrank. residual_out is needed: p lies there between the passes.
struct LowRankTask : EncodeTask {
  uint64_t columns;         // of the tensor, as MakeCodec takes them; 0 = no matrix
  void* workspace;          // LowRankWorkspaceBytes(n, columns, rank), aligned to 4 bytes; content is nothing to anybody
  const float* state;       // the last round's Q; null = none
  float* state_out;         // and the next; null = not wanted. May not be `state`
  uint64_t factor_key;      // words 0 (low) and 1 of DrawKey(…, kFactor)
};

struct DecodeTask {
  const uint8_t* in;        // MaxEncodedBytes(n)
  float* out;
  uint64_t n;
  uint64_t bytes;           // that `in` has, where n alone does not tell: qsgd, sparse ones and lowrank
};

struct SparseDecodeTask : DecodeTask {
  uint64_t most;            // entries that the workspace has room for; what says that it has more decodes to nothing
  void* workspace;          // SparseDecodeWorkspaceBytes(n, most), aligned to 4 bytes; content is nothing to anybody
};

struct FindTask {
  const float* values;
  uint64_t n;
  uint64_t* first;          // the result
};

template <typename Task>
struct Batch {
  const Task* tasks;        // in device memory
  uint32_t count;           // at most 65535
  uint64_t largest;         // n of the largest task, as the host knows it
};

}  // namespace sluice::compression::cuda
