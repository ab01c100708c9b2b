// qsgd:<levels> (Alistarh et al. 2017, with the block's maximum for its norm) and terngrad (Wen et al. 2017), which is
// one level: whole numbers from -s to s, rounded stochastically (compression/block_quantize.h), in
// b = bit_width(2 s) bits. Unbiased, and to be used without a residual: the error may be larger than the value, and no bound
// of a residual is known then.
//
//   0          u8 s (1 to 127), three zero bytes
//   4          fp32 scale of each block of 128 elements
//              for each block: b planes of the codes in two's complement, lowest first (compression/bit_planes.h)
#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "absl/strings/numbers.h"
#include "compression/bit_planes.h"
#include "compression/block_quantize.h"
#include "compression/encode_blocks.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = kQuantizeBlock;
constexpr size_t kHeaderBytes = 4;
constexpr int kMostLevels = 127;

unsigned BitsOf(unsigned levels) { return static_cast<unsigned>(std::bit_width(2 * levels)); }

uint64_t EncodedBytes(uint64_t n, unsigned bits) {
  return kHeaderBytes + 4 * (n / kBlock + (n % kBlock != 0)) + n / 8 * bits + (n % 8 != 0 ? bits : 0);
}

// Reads the codes of one block of n elements.
void UnpackBlock(const std::byte* in, size_t n, unsigned bits, int8_t* codes) {
  std::byte raw[kBlock] = {};
  for (unsigned b = 0; b < bits; ++b) UnpackPlane(in + b * PlaneBytes(n), n, b, raw);
  const int sign = 1 << (bits - 1);
  for (size_t i = 0; i < kBlock; ++i) codes[i] = static_cast<int8_t>((static_cast<int>(raw[i]) ^ sign) - sign);
}

class Qsgd final : public Codec {
 public:
  Qsgd(int levels, std::string name)
      : levels_(LevelsOf(levels)), count_(static_cast<unsigned>(levels)), name_(std::move(name)) {}

  CodecId id() const override { return CodecId::kQsgd; }
  std::string name() const override { return name_; }
  bool lossless() const override { return false; }
  bool biased() const override { return false; }
  bool random() const override { return true; }
  bool uses_residual() const override { return false; }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return EncodedBytes(n, BitsOf(count_)); }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    const size_t total = input.gradient.size();
    const unsigned bits = BitsOf(count_);
    StoreLe(out.data(), uint32_t{count_});
    std::byte* scales = out.data() + kHeaderBytes;
    std::byte* planes = scales + 4 * QuantizeBlocks(total);
    const auto key = DrawKey(input.random, DrawPurpose::kRounding);
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      uint32_t draws[kCompensateBlock];
      FillDraws(key, input.random.first_element + begin, {draws, n});
      for (size_t i = 0; i < n; i += kBlock) {
        const size_t length = std::min(kBlock, n - i);
        int8_t codes[kBlock];
        StoreLe(scales + 4 * ((begin + i) / kBlock), QuantizeStochastic(p + i, length, levels_, draws + i, codes));
        for (unsigned b = 0; b < bits; ++b, planes += PlaneBytes(length))
          PackPlane(reinterpret_cast<const std::byte*>(codes), length, b, planes);
      }
    });
    return MaxEncodedBytes(total);
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    unsigned levels = 0;
    absl::Status status = ForBlocks(in, n, &levels, [](size_t, float, const int8_t*, size_t) {});
    if (!status.ok()) return status;
    status = CheckScales(*this, in.subspan(kHeaderBytes), QuantizeBlocks(n), LevelsOf(static_cast<int>(levels)).max_scale);
    if (!status.ok()) return status;
    const unsigned bits = BitsOf(levels);
    if (const size_t last = n % kBlock; last != 0)
      for (unsigned b = 0; b < bits; ++b)
        if (!PlanePaddingIsZero(in.data() + in.size() - (bits - b) * PlaneBytes(last), last))
          return absl::InvalidArgumentError(absl::StrCat("qsgd: padding of plane ", b, " of the last block is not zero"));
    size_t bad = SIZE_MAX;
    status = ForBlocks(in, n, &levels, [&](size_t begin, float, const int8_t* codes, size_t length) {
      int largest = 0;
      for (size_t i = 0; i < length; ++i) largest = std::max(largest, std::abs(int{codes[i]}));
      if (largest > static_cast<int>(levels) && bad == SIZE_MAX) bad = begin;
    });
    if (status.ok() && bad != SIZE_MAX)
      return absl::InvalidArgumentError(
          absl::StrCat("qsgd: a code of the block at element ", bad, " of ", n, " lies outside ", levels, " levels"));
    return status;
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    unsigned levels = 0;
    return ForBlocks(in, out.size(), &levels, [&](size_t begin, float scale, const int8_t* codes, size_t n) {
      float* __restrict to = out.data() + begin;
      for (size_t i = 0; i < n; ++i) to[i] = static_cast<float>(codes[i]) * scale;
    });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    unsigned levels = 0;
    return ForBlocks(in, accumulator.size(), &levels, [&](size_t begin, float scale, const int8_t* codes, size_t n) {
      float* __restrict to = accumulator.data() + begin;
      for (size_t i = 0; i < n; ++i) to[i] += static_cast<float>(codes[i]) * scale;
    });
  }

 private:
  // Checks header and size, and calls f(first element, scale, codes, elements) for each block.
  template <typename F>
  absl::Status ForBlocks(ConstBytes in, size_t n, unsigned* levels, F f) const {
    const uint32_t header = in.size() < kHeaderBytes ? 0 : LoadLe<uint32_t>(in.data());
    if (header == 0 || header > kMostLevels)
      return absl::InvalidArgumentError(absl::StrCat("qsgd: ", in.size(), " bytes with ", header, " levels; 1 to ",
                                                     kMostLevels, " are possible"));
    *levels = header;
    const unsigned bits = BitsOf(header);
    if (in.size() != EncodedBytes(n, bits)) return WrongSize(*this, in.size(), n, EncodedBytes(n, bits));
    const size_t blocks = QuantizeBlocks(n);
    const std::byte* planes = in.data() + kHeaderBytes + 4 * blocks;
    int8_t codes[kBlock];
    for (size_t b = 0; b < blocks; ++b) {
      const size_t begin = b * kBlock, length = std::min(kBlock, n - begin);
      UnpackBlock(planes, length, bits, codes);
      planes += bits * PlaneBytes(length);
      f(begin, LoadLe<float>(in.data() + kHeaderBytes + 4 * b), codes, length);
    }
    return absl::OkStatus();
  }

  const Levels levels_;
  const unsigned count_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeQsgd(std::string_view parameter) {
  const std::string text(parameter.substr(0, 80));
  int levels = 0;
  if (text.size() != parameter.size() || !absl::SimpleAtoi(text, &levels) || levels < 1 || levels > kMostLevels)
    return absl::InvalidArgumentError(absl::StrCat("codec \"qsgd:", text, "\": the levels must be a whole number from 1 to ",
                                                   kMostLevels, ", as in qsgd:7"));
  return std::make_unique<Qsgd>(levels, absl::StrCat("qsgd:", levels));
}

absl::StatusOr<std::unique_ptr<Codec>> MakeTernGrad(std::string_view) { return std::make_unique<Qsgd>(1, "terngrad"); }

}  // namespace sluice::compression
