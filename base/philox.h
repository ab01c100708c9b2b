// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11,
// section 4). A value depends on key and counter only, so any thread or device draws the same bits in any order.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A sequential generator over one Philox stream, for tests, simulation and data shuffling.
class PhiloxRandom {
 public:
  using result_type = uint32_t;
  explicit PhiloxRandom(uint64_t seed, uint64_t stream = 0)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}, stream_(stream) {}

  uint32_t operator()() {
    if (used_ == 4) {
      block_ = Philox4x32({static_cast<uint32_t>(position_), static_cast<uint32_t>(position_ >> 32),
                           static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
                          key_);
      ++position_;
      used_ = 0;
    }
    return block_[used_++];
  }
  static constexpr uint32_t min() { return 0; }
  static constexpr uint32_t max() { return UINT32_MAX; }

  // Uniform in [0, bound), bound > 0 (multiply-shift; the bias is below 2^-32).
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>((uint64_t{(*this)()} * bound) >> 32); }
  // Uniform in [0, 1) with 24 bits.
  float Uniform() { return static_cast<float>((*this)() >> 8) * 0x1p-24f; }
  bool Chance(double probability) { return (*this)() < probability * 4294967296.0; }

 private:
  std::array<uint32_t, 2> key_;
  uint64_t stream_;
  uint64_t position_ = 0;
  PhiloxBlock block_{};
  int used_ = 4;
};

}  // namespace sluice
