// mxfp8: fp8 E4M3 with one power of two for each block of 32 elements (OCP Microscaling Formats 1.0). n + ceil(n / 32)
// bytes: all scales (E8M0: 2^(byte - 127)), then all codes.
//
//   byte = the least power of two with amax <= 448 * 2^(byte - 127), from 0 to 246; so nothing saturates below
//          1.75 * 2^127
//   code = E4M3 of p * 2^(127 - byte) (compression/fp8.h); value = code * 2^(byte - 127)
#include <algorithm>
#include <bit>

#include "compression/encode_blocks.h"
#include "compression/fp8.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = 32;
constexpr uint32_t kMaxScale = 246;   // 448 * 2^119 is finite
static_assert(kCompensateBlock % kBlock == 0);

size_t Blocks(size_t n) { return n / kBlock + (n % kBlock != 0); }

// 2^(byte - 127), for bytes up to 254.
float PowerOf(uint32_t byte) { return std::bit_cast<float>(byte == 0 ? 1u << 22 : byte << 23); }

// Encodes one block; p becomes the residual. Returns the scale's byte. Codes have 32 bits each, as vectors of p have.
uint8_t EncodeBlock(float* __restrict p, size_t n, uint32_t* __restrict codes) {
  uint32_t largest = 0;   // finite magnitudes compare as their bits do
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(p[i]) & 0x7FFFFFFF);
  // A mantissa above 1.75 carries into the exponent; 448 is 1.75 * 2^8.
  const uint32_t exponent = (largest + 0x1FFFFF) >> 23;
  const uint32_t byte = std::min(std::max(exponent, 8u) - 8, kMaxScale);
  const float scale = PowerOf(byte), inverse = PowerOf(254 - byte);
  for (size_t i = 0; i < n; ++i) {
    const E4M3 rounded = RoundToE4M3(p[i] * inverse);
    codes[i] = rounded.code;
    p[i] -= rounded.value * scale;
  }
  return static_cast<uint8_t>(byte);
}

void Narrow(const uint32_t* __restrict wide, size_t n, uint8_t* __restrict codes) {
  for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(wide[i]);
}

class Mxfp8 final : public Codec {
 public:
  CodecId id() const override { return CodecId::kMxfp8; }
  std::string name() const override { return "mxfp8"; }
  bool lossless() const override { return false; }
  bool biased() const override { return false; }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return n + n / kBlock + (n % kBlock != 0); }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    uint8_t* scales = reinterpret_cast<uint8_t*>(out.data());
    uint8_t* codes = scales + Blocks(input.gradient.size());
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      uint32_t wide[kCompensateBlock];
      size_t i = 0;
      for (; i + kBlock <= n; i += kBlock) scales[(begin + i) / kBlock] = EncodeBlock(p + i, kBlock, wide + i);
      if (i < n) scales[(begin + i) / kBlock] = EncodeBlock(p + i, n - i, wide + i);
      Narrow(wide, n, codes + begin);
    });
    return MaxEncodedBytes(input.gradient.size());
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const size_t blocks = Blocks(n);
    for (size_t b = 0; b < blocks; ++b)
      if (static_cast<uint32_t>(in[b]) > kMaxScale)
        return absl::InvalidArgumentError(
            absl::StrCat("mxfp8: scale ", b, " of ", blocks, " is ", static_cast<int>(in[b]), ", at most 246 is possible"));
    const std::byte* codes = in.data() + blocks;
    uint8_t found = 0;
    for (size_t i = 0; i < n; ++i) found |= (codes[i] & std::byte{0x7F}) == std::byte{0x7F};
    for (size_t i = 0; found != 0 && i < n; ++i)
      if ((codes[i] & std::byte{0x7F}) == std::byte{0x7F})
        return absl::InvalidArgumentError(absl::StrCat("mxfp8: element ", i, " of ", n, " is not finite"));
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    return ForBlocks(in, out, [](float scale, const uint8_t* __restrict codes, size_t n, float* __restrict to) {
      for (size_t i = 0; i < n; ++i) to[i] = FloatFromE4M3(codes[i]) * scale;
    });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return ForBlocks(in, accumulator, [](float scale, const uint8_t* __restrict codes, size_t n, float* __restrict to) {
      for (size_t i = 0; i < n; ++i) to[i] += FloatFromE4M3(codes[i]) * scale;
    });
  }

 private:
  template <typename F>
  absl::Status ForBlocks(ConstBytes in, std::span<float> out, F f) const {
    const size_t n = out.size(), blocks = Blocks(n);
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(in.data() + blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const size_t begin = b * kBlock;
      // 255 is NaN, which only Validate refuses; held so that the shift stays in its word.
      const float scale = PowerOf(std::min(static_cast<uint32_t>(in[b]), 254u));
      if (n - begin >= kBlock)
        f(scale, codes + begin, kBlock, out.data() + begin);
      else
        f(scale, codes + begin, n - begin, out.data() + begin);
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeMxfp8(std::string_view) { return std::make_unique<Mxfp8>(); }

}  // namespace sluice::compression
