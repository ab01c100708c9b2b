// fp16 and bf16: 2 n bytes, each value rounded to nearest even; what is beyond the largest finite value saturates, and
// the rest stays in the residual.
#include <algorithm>

#include "compression/encode_blocks.h"
#include "compression/half.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

struct Fp16 {
  static constexpr CodecId kId = CodecId::kFp16;
  static constexpr const char* kName = "fp16";
  static constexpr uint16_t kExponentMask = 0x7C00;
  static void Encode(const float* p, size_t n, std::byte* out) { Fp16FromFloats(p, n, out); }
  static void Decode(const std::byte* in, size_t n, float* out) { FloatsFromFp16(in, n, out); }
};

struct Bf16 {
  static constexpr CodecId kId = CodecId::kBf16;
  static constexpr const char* kName = "bf16";
  static constexpr uint16_t kExponentMask = 0x7F80;
  static void Encode(const float* p, size_t n, std::byte* out) { Bf16FromFloats(p, n, out); }
  static void Decode(const std::byte* in, size_t n, float* out) { FloatsFromBf16(in, n, out); }
};

template <typename Format>
class HalfCodec final : public Codec {
 public:
  CodecId id() const override { return Format::kId; }
  std::string name() const override { return Format::kName; }
  bool lossless() const override { return false; }
  bool biased() const override { return false; }
  uint64_t MaxEncodedBytes(uint64_t n) const override { return 2 * n; }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override {
    if (absl::Status status = CheckEncodeArguments(*this, input, out); !status.ok()) return status;
    EncodeInBlocks(input, [&](size_t begin, size_t n, float* p) {
      Format::Encode(p, n, out.data() + 2 * begin);
      if (input.residual_out.empty()) return;
      float decoded[kCompensateBlock];
      Format::Decode(out.data() + 2 * begin, n, decoded);
      for (size_t i = 0; i < n; ++i) p[i] -= decoded[i];
    });
    return 2 * input.gradient.size();
  }

  absl::Status Validate(ConstBytes in, size_t n) const override {
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    if (const size_t bad = FirstNonfiniteHalf(in.data(), n, Format::kExponentMask); bad != n)
      return absl::InvalidArgumentError(absl::StrCat(name(), ": element ", bad, " of ", n, " is not finite"));
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    if (in.size() != MaxEncodedBytes(out.size()))
      return WrongSize(*this, in.size(), out.size(), MaxEncodedBytes(out.size()));
    Format::Decode(in.data(), out.size(), out.data());
    return absl::OkStatus();
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    const size_t n = accumulator.size();
    if (in.size() != MaxEncodedBytes(n)) return WrongSize(*this, in.size(), n, MaxEncodedBytes(n));
    float decoded[kCompensateBlock];
    for (size_t begin = 0; begin < n; begin += kCompensateBlock) {
      const size_t length = std::min(kCompensateBlock, n - begin);
      Format::Decode(in.data() + 2 * begin, length, decoded);
      float* __restrict sum = accumulator.data() + begin;
      for (size_t i = 0; i < length; ++i) sum[i] += decoded[i];
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeFp16(std::string_view) { return std::make_unique<HalfCodec<Fp16>>(); }
absl::StatusOr<std::unique_ptr<Codec>> MakeBf16(std::string_view) { return std::make_unique<HalfCodec<Bf16>>(); }

}  // namespace sluice::compression
