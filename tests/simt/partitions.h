// Batches of partitions for the kernel tests: each array lies in a buffer of its own with margins that nothing may
// touch, at an offset of its own from aligned addresses.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compression/cuda/kernels.h"
#include "compression/test_vectors.h"
#include "tests/simt/backend.h"

namespace sluice::simt {

template <typename T>
class Guarded {
 public:
  static constexpr size_t kMargin = 64;

  // `offset` elements behind an address that is a multiple of 64.
  Guarded(size_t n, size_t offset)
      : size_(n), bytes_((n + offset) * sizeof(T) + 3 * kMargin),
        memory_(static_cast<unsigned char*>(AllocateShared(bytes_)), &FreeShared) {
    std::fill_n(memory_.get(), bytes_, kFill);
    const auto address = reinterpret_cast<uintptr_t>(memory_.get());
    data_ = memory_.get() + (64 - address % 64) % 64 + kMargin + offset * sizeof(T);
  }
  Guarded(const std::vector<T>& values, size_t offset) : Guarded(values.size(), offset) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  Guarded(Guarded&&) = default;

  T* data() { return reinterpret_cast<T*>(data_); }
  size_t size() const { return size_; }
  std::vector<T> values() { return {data(), data() + size_}; }
  void ExpectMarginsUntouched(const std::string& what) const {
    const unsigned char* end = data_ + size_ * sizeof(T);
    const auto filled = [](unsigned char byte) { return byte == kFill; };
    EXPECT_TRUE(std::all_of<const unsigned char*>(memory_.get(), data_, filled)) << "before " << what;
    EXPECT_TRUE(std::all_of<const unsigned char*>(end, memory_.get() + bytes_, filled)) << "behind " << what;
  }

 private:
  static constexpr unsigned char kFill = 0xEE;
  size_t size_, bytes_;
  std::unique_ptr<unsigned char, void (*)(void*)> memory_;
  unsigned char* data_;
};

// One partition: what goes in, and what the CPU's codec makes of it.
struct Partition {
  std::string what;
  std::vector<float> gradient, residual;   // residual empty = none
  float scale = 1;
  size_t offset = 0;                       // of floats and of bytes
  bool wants_residual = true;
  compression::RandomKey random = compression::kTestKey;
};

// Sizes round the borders of lanes, rows and blocks; every shape, several offsets, with and without residuals.
inline std::vector<Partition> NastyPartitions(int shape, uint64_t seed) {
  std::vector<Partition> partitions;
  size_t i = 0;
  for (const size_t n : {0, 1, 3, 31, 127, 128, 129, 1000, 1023, 1025, 4099}) {
    Partition p;
    p.what = "shape " + std::to_string(shape) + ", n " + std::to_string(n) + ", seed " + std::to_string(seed);
    p.gradient = compression::MakeVector(shape, n, seed);
    const int residual_shape = (shape + static_cast<int>(i)) % compression::kShapes;
    if ((i + seed) % 4 != 0) p.residual = compression::MakeVector(residual_shape, n, seed + 100);
    p.scale = i % 3 == 0 ? 1.0f : 0.3f;
    p.offset = (i + seed) % 5 == 0 ? i % 4 : 0;
    p.wants_residual = (i + seed) % 7 != 0;
    p.random.first_element = (uint64_t{1} << 34) - 4 * 128 + i;   // draws of every alignment, and of more than 2^32 blocks
    partitions.push_back(std::move(p));
    ++i;
  }
  return partitions;
}

// Descriptors where kernels reach them.
template <typename Task>
class Tasks {
 public:
  explicit Tasks(const std::vector<Task>& tasks) : tasks_(tasks, 0) {
    for (const Task& task : tasks) largest_ = std::max<uint64_t>(largest_, task.n);
  }
  compression::cuda::Batch<Task> batch() { return {tasks_.data(), static_cast<uint32_t>(tasks_.size()), largest_}; }

 private:
  Guarded<Task> tasks_;
  uint64_t largest_ = 0;
};

// As EncodeTask::draw_key has it.
inline uint64_t DrawKey(const compression::RandomKey& random) {
  const auto key = compression::DrawKey(random, compression::DrawPurpose::kRounding);
  return key[0] | uint64_t{key[1]} << 32;
}

// What the CPU's codec makes of a partition.
inline compression::Encoded EncodeOnCpu(const compression::Codec& codec, const Partition& p, ConstBytes state = {},
                                        MutableBytes state_out = {}) {
  compression::Encoded encoded;
  encoded.bytes.resize(codec.MaxEncodedBytes(p.gradient.size()));
  encoded.residual.assign(p.gradient.size(), -1.0f);
  const auto size = codec.Encode({.gradient = p.gradient, .residual = p.residual, .residual_scale = p.scale,
                                  .residual_out = encoded.residual, .random = p.random, .state = state, .state_out = state_out},
                                 encoded.bytes);
  EXPECT_TRUE(size.ok()) << size.status();
  encoded.bytes.resize(size.value_or(0));
  return encoded;
}

inline void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(compression::Bits(got[i]), compression::Bits(expected[i]))
        << what << ", at " << i << ": " << got[i] << ", not " << expected[i];
}

}  // namespace sluice::simt
