// int4, int4:stochastic, int4:static: whole numbers from -7 to 7 (compression/block_quantize.h), two a byte. ceil(n / 2) +
// 4 ceil(n / 128) bytes: all scales, then all codes in two's complement, the even element in the lower half of its byte;
// an odd last byte's upper half is zero (docs/codecs.md).
#include <algorithm>

#include "compression/block_quantize.h"
#include "compression/encode_blocks.h"
#include "compression/quantizer.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = kQuantizeBlock;
constexpr Levels kLevels = LevelsOf(7);
constexpr uint8_t kOutside = 8;   // -8, which no encoder writes

size_t CodeBytes(size_t n) { return n / 2 + n % 2; }

void PackCodes(const int8_t* __restrict codes, size_t n, std::byte* __restrict out) {
  for (size_t i = 0; i < n / 2; ++i)
    out[i] = static_cast<std::byte>((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
  if (n % 2 != 0) out[n / 2] = static_cast<std::byte>(codes[n - 1] & 15);
}

// Writes 2 * CodeBytes(n) codes.
void UnpackCodes(const std::byte* __restrict in, size_t n, int8_t* __restrict codes) {
  for (size_t i = 0; i < CodeBytes(n); ++i) {
    const uint8_t pair = static_cast<uint8_t>(in[i]);
    codes[2 * i] = static_cast<int8_t>(static_cast<int8_t>((pair & 15) ^ 8) - 8);
    codes[2 * i + 1] = static_cast<int8_t>(static_cast<int8_t>((pair >> 4) ^ 8) - 8);
  }
}

class Int4 final : public Codec {
 public:
  explicit Int4(Quantizer quantizer) : quantizer_(std::move(quantizer)) {}
  CodecId id() const override { return CodecId::kInt4; }
  std::string name() const override { return quantizer_.name(); }
  bool lossless() const override { return false; }
  bool biased() const override { return quantizer_.is_static(); }   // what is beyond the range
  bool random() const override { return quantizer_.stochastic(); }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return n / 2 + n % 2 + 4 * ((n + kBlock - 1) / kBlock); }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    std::byte* scales = out.data();
    std::byte* packed = out.data() + 4 * QuantizeBlocks(input.gradient.size());
    const auto key = DrawKey(input.random, DrawPurpose::kRounding);
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      uint32_t draws[kCompensateBlock];
      int8_t codes[kCompensateBlock];
      if (quantizer_.stochastic()) FillDraws(key, input.random.first_element + begin, {draws, n});
      for (size_t i = 0; i < n; i += kBlock) {
        const size_t length = std::min(kBlock, n - i);
        const float scale = quantizer_.Quantize(p + i, length, draws + i, codes + i);
        StoreLe(scales + 4 * ((begin + i) / kBlock), scale);
      }
      PackCodes(codes, n, packed + begin / 2);
    });
    return MaxEncodedBytes(input.gradient.size());
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const size_t blocks = QuantizeBlocks(n);
    if (absl::Status status = CheckScales(*this, in, blocks, kLevels.max_scale); !status.ok()) return status;
    const std::byte* packed = in.data() + 4 * blocks;
    const auto outside = [](uint8_t pair) { return (pair & 15) == kOutside || pair >> 4 == kOutside; };
    uint8_t found = 0;
    for (size_t i = 0; i < CodeBytes(n); ++i) found |= outside(static_cast<uint8_t>(packed[i]));
    for (size_t i = 0; found != 0 && i < CodeBytes(n); ++i)
      if (outside(static_cast<uint8_t>(packed[i])))
        return absl::InvalidArgumentError(
            absl::StrCat("int4: byte ", i, " of the codes of ", n, " elements has -8, which no encoder writes"));
    if (n % 2 != 0 && static_cast<unsigned>(packed[n / 2]) >> 4 != 0)
      return absl::InvalidArgumentError(absl::StrCat("int4: half a byte behind ", n, " codes is not zero"));
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
    const size_t n = out.size(), blocks = QuantizeBlocks(n);
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const std::byte* packed = in.data() + 4 * blocks;
    int8_t codes[kBlock];
    for (size_t b = 0; b < blocks; ++b) {
      const size_t begin = b * kBlock, length = std::min(kBlock, n - begin);
      UnpackCodes(packed + begin / 2, length, codes);
      f(LoadLe<float>(in.data() + 4 * b), codes, length, out.data() + begin);
    }
    return absl::OkStatus();
  }

  const Quantizer quantizer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeInt4(std::string_view parameter) {
  auto quantizer = Quantizer::Parse("int4", parameter, kLevels);
  if (!quantizer.ok()) return quantizer.status();
  return std::make_unique<Int4>(*std::move(quantizer));
}

}  // namespace sluice::compression
