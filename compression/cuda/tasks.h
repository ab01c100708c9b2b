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
};

struct DecodeTask {
  const uint8_t* in;        // MaxEncodedBytes(n)
  float* out;
  uint64_t n;
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
