// int8, int8:stochastic, int8:static: whole numbers from -127 to 127 (compression/block_quantize.h). n + 4 ceil(n / 128) bytes: all
// scales, then all codes (docs/codecs.md).
#include <algorithm>
#include <bit>
#include <utility>

#include "compression/block_quantize.h"
#include "compression/encode_blocks.h"
#include "compression/quantizer.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = kQuantizeBlock;
constexpr Levels kLevels = LevelsOf(127);

static_assert(kCompensateBlock % kBlock == 0);
static_assert(kLevels.max_scale == 0x1.020406p121f);

class Int8 final : public Codec {
 public:
  explicit Int8(Quantizer quantizer) : quantizer_(std::move(quantizer)) {}
  CodecId id() const override { return CodecId::kInt8; }
  std::string name() const override { return quantizer_.name(); }
  bool lossless() const override { return false; }
  bool biased() const override { return quantizer_.is_static(); }   // what is beyond the range
  bool random() const override { return quantizer_.stochastic(); }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return n + 4 * ((n + kBlock - 1) / kBlock); }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    std::byte* scales = out.data();
    int8_t* codes = reinterpret_cast<int8_t*>(out.data() + 4 * QuantizeBlocks(input.gradient.size()));
    const auto key = DrawKey(input.random, DrawPurpose::kRounding);
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      uint32_t draws[kCompensateBlock];
      if (quantizer_.stochastic()) FillDraws(key, input.random.first_element + begin, {draws, n});
      for (size_t i = 0; i < n; i += kBlock) {
        const size_t length = std::min(kBlock, n - i);
        const float scale = quantizer_.Quantize(p + i, length, draws + i, codes + begin + i);
        StoreLe(scales + 4 * ((begin + i) / kBlock), scale);
      }
    });
    return MaxEncodedBytes(input.gradient.size());
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const size_t blocks = QuantizeBlocks(n);
    if (absl::Status status = CheckScales(*this, in, blocks, kLevels.max_scale); !status.ok()) return status;
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
    const size_t n = out.size(), blocks = QuantizeBlocks(n);
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const int8_t* codes = reinterpret_cast<const int8_t*>(in.data() + 4 * blocks);
    for (size_t b = 0; b < blocks; ++b) {
      const size_t begin = b * kBlock;
      f(LoadLe<float>(in.data() + 4 * b), codes + begin, std::min(kBlock, n - begin), out.data() + begin);
    }
    return absl::OkStatus();
  }

  const Quantizer quantizer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeInt8(std::string_view parameter) {
  auto quantizer = Quantizer::Parse("int8", parameter, kLevels);
  if (!quantizer.ok()) return quantizer.status();
  return std::make_unique<Int8>(*std::move(quantizer));
}

}  // namespace sluice::compression
