// onebit: the sign, and the mean magnitude of each block of 256 elements (scaled sign, Karimireddy et al. 2019).
// ceil(n / 8) + 4 ceil(n / 256) bytes: all scales, then all signs as one plane (compression/bit_planes.h). Biased.
//
//   bit   = 1 where p < 0; so both zeros count as positive, here and in the residual alike
//   scale = mean |p| of the block: 32 partial sums of |p| * 2^-8 (element i goes to sum i % 32, in rising order), folded
//           by halves (j += j + 16, 8, 4, 2, 1), times 256 / elements where the block is shorter, held to the finite range
//   value = scale or -scale; of a block of zeros both are 0
// The order of the sums is a part of the format: the only sum in any encoder.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "compression/bit_planes.h"
#include "compression/encode_blocks.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

constexpr size_t kBlock = 256, kSums = 32;
static_assert(kCompensateBlock % kBlock == 0);

size_t Blocks(size_t n) { return n / kBlock + (n % kBlock != 0); }

float MeanMagnitude(const float* __restrict p, size_t n) {
  float sums[kSums] = {};
  size_t i = 0;
  for (; i + kSums <= n; i += kSums)
    for (size_t j = 0; j < kSums; ++j) sums[j] += std::fabs(p[i + j]) * 0x1p-8f;
  for (; i < n; ++i) sums[i % kSums] += std::fabs(p[i]) * 0x1p-8f;
  for (size_t half = kSums / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  const float longer = n == kBlock ? 1.0f : static_cast<float>(kBlock) / static_cast<float>(n);
  return std::min(sums[0] * longer, std::numeric_limits<float>::max());
}

// Encodes one block; p becomes the residual. Returns the scale.
float EncodeBlock(float* __restrict p, size_t n, std::byte* __restrict out) {
  const float scale = MeanMagnitude(p, n);
  uint8_t negative[kBlock];
  for (size_t i = 0; i < n; ++i) negative[i] = p[i] < 0;
  for (size_t i = 0; i < n; ++i) p[i] -= p[i] < 0 ? -scale : scale;
  PackPlane(reinterpret_cast<const std::byte*>(negative), n, 0, out);
  return scale;
}

class OneBit final : public Codec {
 public:
  CodecId id() const override { return CodecId::kOneBit; }
  std::string name() const override { return "onebit"; }
  bool lossless() const override { return false; }
  bool biased() const override { return true; }
  uint64_t MaxEncodedBytes(uint64_t n) const override {
    return n / 8 + (n % 8 != 0) + 4 * (n / kBlock + (n % kBlock != 0));
  }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    std::byte* scales = out.data();
    std::byte* signs = out.data() + 4 * Blocks(input.gradient.size());
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      for (size_t i = 0; i < n; i += kBlock)
        StoreLe(scales + 4 * ((begin + i) / kBlock),
                EncodeBlock(p + i, std::min(kBlock, n - i), signs + (begin + i) / 8));
    });
    return MaxEncodedBytes(input.gradient.size());
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const size_t blocks = Blocks(n);
    if (absl::Status status = CheckScales(*this, in, blocks, std::numeric_limits<float>::max()); !status.ok())
      return status;
    if (!PlanePaddingIsZero(in.data() + 4 * blocks, n))
      return absl::InvalidArgumentError(absl::StrCat("onebit: padding behind ", n, " signs is not zero"));
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    return ForBlocks(in, out, [](const float* __restrict values, size_t n, float* __restrict to) {
      for (size_t i = 0; i < n; ++i) to[i] = values[i];
    });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return ForBlocks(in, accumulator, [](const float* __restrict values, size_t n, float* __restrict to) {
      for (size_t i = 0; i < n; ++i) to[i] += values[i];
    });
  }

 private:
  template <typename F>
  absl::Status ForBlocks(ConstBytes in, std::span<float> out, F f) const {
    const size_t n = out.size(), blocks = Blocks(n);
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    const std::byte* signs = in.data() + 4 * blocks;
    for (size_t b = 0; b < blocks; ++b) {
      const size_t begin = b * kBlock, length = std::min(kBlock, n - begin);
      const uint32_t scale = LoadLe<uint32_t>(in.data() + 4 * b);
      std::byte negative[kBlock] = {};
      float values[kBlock];
      UnpackPlane(signs + begin / 8, length, 0, negative);
      for (size_t i = 0; i < length; ++i)
        values[i] = std::bit_cast<float>(scale ^ static_cast<uint32_t>(negative[i]) << 31);
      f(values, length, out.data() + begin);
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeOneBit(std::string_view) { return std::make_unique<OneBit>(); }

}  // namespace sluice::compression
