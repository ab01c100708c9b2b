// int8: symmetric, one fp32 scale for each block of 128 elements. n + 4 ceil(n / 128) bytes: all scales, then all codes
// (docs/codecs.md).
//
// For a block with amax = max |p|:
//   amax >= 2^-118: scale = min(amax / 127, kMaxScale), code = p * (127 / amax) rounded half to even,
//                   value = code * scale
//   below, zeros included: scale = 0, codes = 0; the block stays in the residual
// Both quotients are one IEEE division a block. kMaxScale is the largest whose 127-fold is finite in fp32: the plain
// quotient of the largest float is not.
#include <algorithm>
#include <bit>
#include <cstring>

#include "compression/encode_blocks.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = 128;
constexpr float kMaxScale = 0x1.020406p121f;
constexpr float kMinAmax = 0x1p-118f;
constexpr float kRounder = 12582912.0f;   // 1.5 * 2^23: added, it leaves a whole number, half to even, in the low bits

static_assert(kCompensateBlock % kBlock == 0);

size_t Blocks(size_t n) { return n / kBlock + (n % kBlock != 0); }

// Encodes one block; p becomes the residual. Returns the scale.
float EncodeBlock(float* __restrict p, size_t n, int8_t* __restrict codes) {
  uint32_t largest = 0;   // finite magnitudes compare as their bits do
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(p[i]) & 0x7FFFFFFF);
  const float amax = std::bit_cast<float>(largest);
  const bool tiny = amax < kMinAmax;
  const float scale = tiny ? 0.0f : std::min(amax / 127.0f, kMaxScale);
  const float inverse = tiny ? 0.0f : 127.0f / amax;
  for (size_t i = 0; i < n; ++i) {
    const float shifted = p[i] * inverse + kRounder;
    codes[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(shifted));
    p[i] = p[i] - (shifted - kRounder) * scale;
  }
  return scale;
}

class Int8 final : public Codec {
 public:
  CodecId id() const override { return CodecId::kInt8; }
  std::string name() const override { return "int8"; }
  bool lossless() const override { return false; }
  bool biased() const override { return false; }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return n + 4 * ((n + kBlock - 1) / kBlock); }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    std::byte* scales = out.data();
    int8_t* codes = reinterpret_cast<int8_t*>(out.data() + 4 * Blocks(input.gradient.size()));
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      for (size_t i = 0; i < n; i += kBlock)
        StoreLe(scales + 4 * ((begin + i) / kBlock), EncodeBlock(p + i, std::min(kBlock, n - i), codes + begin + i));
    });
    return MaxEncodedBytes(input.gradient.size());
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const size_t blocks = Blocks(n);
    for (size_t b = 0; b < blocks; ++b)   // as bits: negative ones, infinities and NaNs lie above
      if (LoadLe<uint32_t>(in.data() + 4 * b) > std::bit_cast<uint32_t>(kMaxScale))
        return absl::InvalidArgumentError(
            absl::StrCat("int8: scale ", b, " of ", blocks, " is negative, too large or not finite"));
    const std::byte* codes = in.data() + 4 * blocks;
    uint8_t found = 0;
    for (size_t i = 0; i < n; ++i) found |= codes[i] == std::byte{0x80};
    if (found != 0)
      return absl::InvalidArgumentError(absl::StrCat("int8: code ",
                                                     std::find(codes, codes + n, std::byte{0x80}) - codes, " of ", n,
                                                     " is -128, which no encoder writes"));
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    return ForBlocks(in, out, [](float scale, const int8_t* __restrict codes, size_t n, float* __restrict to) {
      for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(codes[i]) * scale;
    });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return ForBlocks(in, accumulator, [](float scale, const int8_t* __restrict codes, size_t n, float* __restrict to) {
      for (size_t i = 0; i < n; ++i) to[i] += static_cast<float>(codes[i]) * scale;
    });
  }

 private:
  template <typename F>
  absl::Status ForBlocks(ConstBytes in, std::span<float> out, F f) const {
    const size_t n = out.size(), blocks = Blocks(n);
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const int8_t* codes = reinterpret_cast<const int8_t*>(in.data() + 4 * blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const size_t begin = b * kBlock;
      f(LoadLe<float>(in.data() + 4 * b), codes + begin, std::min(kBlock, n - begin), out.data() + begin);
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::unique_ptr<Codec> MakeInt8() { return std::make_unique<Int8>(); }

}  // namespace sluice::compression
