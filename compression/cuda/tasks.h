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

// k = max(1, ceil(ratio n)) as compression/selection.h counts it, 0 of nothing. residual_out is needed: p lies there
// between the passes. At most kMaxTopKElements elements.
struct TopKTask : EncodeTask {
  uint64_t k;
  void* workspace;          // TopKWorkspaceBytes(n, k), aligned to 4 bytes; content is nothing to anybody
  uint64_t* encoded_bytes;  // the result: how many bytes of `out` are the encoding
};

inline constexpr uint64_t kMaxTopKElements = 0x7FFFFFFF;

struct DecodeTask {
  const uint8_t* in;        // MaxEncodedBytes(n)
  float* out;
  uint64_t n;
  uint64_t bytes;           // that `in` has, where n alone does not tell: qsgd
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
