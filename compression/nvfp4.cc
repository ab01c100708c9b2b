// nvfp4: fp4 E2M1 with an fp8 E4M3 scale for each block of 16 elements and one fp32 scale for all (NVIDIA's NVFP4, as its
// Transformer Engine documents it). 4 + ceil(n / 16) + ceil(n / 2) bytes: the scale for all, the blocks' scales, the codes.
//
//   s = min(amax / 2688, 1.5 * 2^116) over all elements (2688 = 6 * 448: the largest code times the largest block scale); 0
//       if amax < 2^-100: then all codes are 0
//   b = E4M3(bmax / 6 / s) of a block; d = b * s
//   code = E2M1 nearest to p / d, ties to even, at most 6; value = code * d. Where d is 0 the block stays in the residual.
//   p / d is p * (1 / d): one division a block. All else rounds once an operation.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "compression/encode_blocks.h"
#include "compression/fp8.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = 16;
constexpr float kLargest = 6.0f, kMinAmax = 0x1p-100f, kMaxScale = 0x1.8p116f;
static_assert(kCompensateBlock % kBlock == 0);

constexpr std::array<float, 8> kMagnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

size_t Blocks(size_t n) { return n / kBlock + (n % kBlock != 0); }

// Bits of the largest magnitude: those of finite numbers compare as they do.
uint32_t LargestBits(const float* __restrict p, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(p[i]) & 0x7FFFFFFF);
  return largest;
}

// The code of |value| / d; the number of midpoints below it, a midpoint itself going to the even code.
uint32_t RoundToE2M1(float a) {
  return uint32_t{a > 0.25f} + uint32_t{a >= 0.75f} + uint32_t{a > 1.25f} + uint32_t{a >= 1.75f} + uint32_t{a > 2.5f} +
         uint32_t{a >= 3.5f} + uint32_t{a > 5.0f};
}

float ValueOf(uint32_t nibble) { return (nibble & 8) != 0 ? -kMagnitudes[nibble & 7] : kMagnitudes[nibble & 7]; }

// Encodes one block; p becomes the residual. Returns the block's scale as E4M3.
uint8_t EncodeBlock(float* __restrict p, size_t n, float scale, uint8_t* __restrict nibbles) {
  const float bmax = std::bit_cast<float>(LargestBits(p, n));
  const E4M3 block = RoundToE4M3(scale == 0 ? 0.0f : bmax / kLargest / scale);
  const float d = block.value * scale;
  if (d == 0) {
    std::fill_n(nibbles, n, uint8_t{0});
    return 0;
  }
  const float inverse = 1.0f / d;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t code = RoundToE2M1(std::fabs(p[i]) * inverse);
    const uint32_t nibble = code == 0 ? 0 : code | (p[i] < 0 ? 8 : 0);
    nibbles[i] = static_cast<uint8_t>(nibble);
    p[i] -= ValueOf(nibble) * d;
  }
  return static_cast<uint8_t>(block.code);
}

class Nvfp4 final : public Codec {
 public:
  CodecId id() const override { return CodecId::kNvfp4; }
  std::string name() const override { return "nvfp4"; }
  bool lossless() const override { return false; }
  bool biased() const override { return false; }
  uint64_t MaxEncodedBytes(uint64_t n) const override {
    return 4 + n / kBlock + (n % kBlock != 0) + n / 2 + n % 2;
  }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    const size_t n = input.gradient.size();
    std::vector<float> own(input.residual_out.empty() ? n : 0);
    float* const all = input.residual_out.empty() ? own.data() : input.residual_out.data();
    uint32_t largest = 0;   // known only when all of p is: hence two passes
    CompensateAll(input, all, [&](size_t, size_t length, const float* p) { largest = std::max(largest, LargestBits(p, length)); });
    const float amax = std::bit_cast<float>(largest);
    const float scale = amax < kMinAmax ? 0.0f : std::min(amax / (kLargest * kMaxE4M3), kMaxScale);
    StoreLe(out.data(), scale);
    uint8_t* scales = reinterpret_cast<uint8_t*>(out.data() + 4);
    uint8_t* codes = scales + Blocks(n);
    for (size_t begin = 0; begin < n; begin += kBlock) {
      const size_t length = std::min(kBlock, n - begin);
      uint8_t nibbles[kBlock + 1] = {};
      scales[begin / kBlock] = EncodeBlock(all + begin, length, scale, nibbles);
      for (size_t i = 0; i < length; i += 2) codes[(begin + i) / 2] = static_cast<uint8_t>(nibbles[i] | nibbles[i + 1] << 4);
    }
    return MaxEncodedBytes(n);
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    if (absl::Status status = CheckScales(*this, in, 1, kMaxScale); !status.ok()) return status;
    const std::byte* scales = in.data() + 4;
    for (size_t b = 0; b < Blocks(n); ++b)
      if (static_cast<uint8_t>(scales[b]) > 0x7E)
        return absl::InvalidArgumentError(absl::StrCat("nvfp4: scale ", b, " of ", Blocks(n), " is negative or not finite"));
    const std::byte* codes = scales + Blocks(n);
    for (size_t i = 0; i < n / 2 + n % 2; ++i) {
      const uint8_t pair = static_cast<uint8_t>(codes[i]);
      if ((pair & 15) == 8 || pair >> 4 == 8)
        return absl::InvalidArgumentError(absl::StrCat("nvfp4: element ", 2 * i + ((pair & 15) != 8), " of ", n,
                                                       " is -0, which no encoder writes"));
    }
    if (n % 2 != 0 && static_cast<uint8_t>(codes[n / 2]) >> 4 != 0)
      return absl::InvalidArgumentError("nvfp4: the half byte behind the last element is not zero");
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    return ForElements(in, out.size(), [&](size_t i, float value) { out[i] = value; });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return ForElements(in, accumulator.size(), [&](size_t i, float value) { accumulator[i] += value; });
  }

 private:
  // Any bytes of the right size: those that Validate refuses give other values, infinities and NaNs.
  template <typename F>
  absl::Status ForElements(ConstBytes in, size_t n, F f) const {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const float scale = LoadLe<float>(in.data());
    const std::byte* scales = in.data() + 4;
    const std::byte* codes = scales + Blocks(n);
    for (size_t begin = 0; begin < n; begin += kBlock) {
      const float d = FloatFromE4M3(static_cast<uint8_t>(scales[begin / kBlock])) * scale;
      const size_t end = std::min(n, begin + kBlock);
      for (size_t i = begin; i < end; i += 2) {
        const uint32_t pair = static_cast<uint8_t>(codes[i / 2]);
        f(i, ValueOf(pair & 15) * d);
        if (i + 1 < end) f(i + 1, ValueOf(pair >> 4) * d);
      }
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeNvfp4(std::string_view) { return std::make_unique<Nvfp4>(); }

}  // namespace sluice::compression
