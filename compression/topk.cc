// topk:<ratio>: the k = max(1, ceil(ratio n)) largest magnitudes as fp16 with one power of two for all
// (docs/codecs.md).
//
//   0  u32  count of entries, at most k: zeros are never sent
//   4  i16  exponent E: value = half * 2^E
//   6  u8   form of the indices: 0 gaps, 1 bitmap (the smaller; gaps if equal)
//   7  u8   0
//   8       count halves, in rising order of their indices
//           indices (compression/index_pack.h), to the end
// E = max(floor(log2 amax) - 15, -126): the largest magnitude lands in [2^15, 2^16), where halves above 65504 saturate,
// so small gradients do not underflow and large ones lose nothing but the last bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>

#include "base/status_macros.h"
#include "compression/encode_blocks.h"
#include "compression/half.h"
#include "compression/index_pack.h"
#include "compression/registry.h"
#include "compression/selection.h"

namespace sluice::compression {
namespace {

constexpr size_t kHeaderBytes = 8;
constexpr int kMinExponent = -126, kMaxExponent = 112;
enum Form : uint8_t { kGaps = 0, kBitmap = 1 };

float PowerOfTwo(int exponent) { return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23); }

struct Header {
  uint32_t count;
  int exponent;
  uint8_t form, zero;
};

// Halves of values * up; values become what these leave.
void EncodeValues(float up, float unit, std::span<float> values, std::byte* halves) {
  constexpr size_t kGroup = 256;
  float sent[kGroup];
  for (size_t begin = 0; begin < values.size(); begin += kGroup) {
    const size_t n = std::min(kGroup, values.size() - begin);
    float* v = values.data() + begin;
    for (size_t i = 0; i < n; ++i) sent[i] = v[i] * up;
    Fp16FromFloats(sent, n, halves + 2 * begin);
    FloatsFromFp16(halves + 2 * begin, n, sent);
    for (size_t i = 0; i < n; ++i) v[i] -= sent[i] * unit;
  }
}

class TopK final : public Codec {
 public:
  explicit TopK(std::unique_ptr<Selector> selector) : selector_(std::move(selector)), name_(selector_->name()) {}

  CodecId id() const override { return CodecId::kTopK; }
  std::string name() const override { return name_; }
  bool lossless() const override { return false; }
  bool biased() const override { return true; }

  size_t StateBytes(uint64_t n) const override { return selector_->StateBytes(n); }

  uint64_t MaxEncodedBytes(uint64_t n) const override {
    const uint64_t k = selector_->MostEntries(n);
    return kHeaderBytes + 2 * k + std::min(BitmapBytes(n), MaxPackedGapBytes(k, n));
  }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override;

  absl::Status Validate(ConstBytes in, size_t n) const override {
    size_t bad = SIZE_MAX;
    SLUICE_RETURN_IF_ERROR(
        Visit(in, n, [&](size_t first, std::span<const uint32_t> indices, const std::byte* halves, float) {
          const size_t at = FirstNonfiniteHalf(halves, indices.size(), 0x7C00);
          if (at != indices.size() && bad == SIZE_MAX) bad = first + at;
        }));
    if (bad != SIZE_MAX)
      return absl::InvalidArgumentError(absl::StrCat("topk: the value of entry ", bad, " is not finite"));
    return absl::OkStatus();
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    return DecodeInto(in, out, [](float* to, float value) { *to = value; });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return DecodeInto(in, accumulator, [](float* to, float value) { *to += value; });
  }

 private:
  template <typename F>
  absl::Status Visit(ConstBytes in, size_t n, F f) const;

  template <typename Store>
  absl::Status DecodeInto(ConstBytes in, std::span<float> out, Store store) const {
    return Visit(in, out.size(), [&](size_t, std::span<const uint32_t> indices, const std::byte* halves, float unit) {
      float values[kGapGroup];
      FloatsFromFp16(halves, indices.size(), values);
      for (size_t j = 0; j < indices.size(); ++j) store(&out[indices[j]], values[j] * unit);
    });
  }

  const std::unique_ptr<Selector> selector_;
  const std::string name_;
};

absl::StatusOr<size_t> TopK::Encode(const EncodeInput& input, MutableBytes out) const {
  SLUICE_RETURN_IF_ERROR(CheckEncodeArguments(*this, input, out));
  const size_t n = input.gradient.size();
  if (n > UINT32_MAX) return absl::InvalidArgumentError(absl::StrCat(name_, ": ", n, " elements; at most 2^32 - 1"));

  Picked picked = selector_->Select(input);
  const std::vector<uint32_t>& indices = picked.indices;
  std::vector<float>& values = picked.values;
  uint32_t largest = 0;
  for (const float v : values) largest = std::max(largest, std::bit_cast<uint32_t>(v) & 0x7FFFFFFF);
  const int exponent = largest == 0 ? 0 : std::max(static_cast<int>(largest >> 23) - 127 - 15, kMinExponent);
  const float up = PowerOfTwo(-exponent), unit = PowerOfTwo(exponent);
  const size_t gap_bytes = PackedGapBytes(indices);
  const Form form = gap_bytes <= BitmapBytes(n) ? kGaps : kBitmap;
  StoreLe<uint32_t>(out.data(), static_cast<uint32_t>(indices.size()));
  StoreLe<int16_t>(out.data() + 4, static_cast<int16_t>(exponent));
  StoreLe<uint8_t>(out.data() + 6, form);
  StoreLe<uint8_t>(out.data() + 7, 0);
  std::byte* halves = out.data() + kHeaderBytes;
  EncodeValues(up, unit, values, halves);
  std::byte* packed = halves + 2 * values.size();
  if (form == kGaps)
    PackGaps(indices, packed);
  else
    PackBitmap(indices, n, packed);

  StoreRest(input, indices, values);
  return kHeaderBytes + 2 * values.size() + (form == kGaps ? gap_bytes : BitmapBytes(n));
}

// Checks everything but the values, and calls f(first entry, indices, halves, 2^E) for groups of up to 64 entries.
template <typename F>
absl::Status TopK::Visit(ConstBytes in, size_t n, F f) const {
  if (in.size() < kHeaderBytes)
    return absl::InvalidArgumentError(absl::StrCat("topk: ", in.size(), " bytes; the header alone has ", kHeaderBytes));
  const Header header = {LoadLe<uint32_t>(in.data()), LoadLe<int16_t>(in.data() + 4), LoadLe<uint8_t>(in.data() + 6),
                         LoadLe<uint8_t>(in.data() + 7)};
  if (header.count > n || (in.size() - kHeaderBytes) / 2 < header.count)
    return absl::InvalidArgumentError(
        absl::StrCat("topk: ", header.count, " entries for ", n, " elements in ", in.size(), " bytes"));
  if (header.exponent < kMinExponent || header.exponent > kMaxExponent)
    return absl::InvalidArgumentError(absl::StrCat("topk: an exponent of ", header.exponent));
  if (header.form > kBitmap || header.zero != 0)
    return absl::InvalidArgumentError(absl::StrCat("topk: index form ", static_cast<int>(header.form),
                                                   ", reserved byte ", static_cast<int>(header.zero)));
  const std::byte* halves = in.data() + kHeaderBytes;
  const ConstBytes packed = in.subspan(kHeaderBytes + 2 * size_t{header.count});
  const float unit = PowerOfTwo(header.exponent);
  const auto visit = [&](size_t first, std::span<const uint32_t> indices) {
    f(first, indices, halves + 2 * first, unit);
  };
  const absl::Status status = header.form == kGaps ? VisitGaps(packed, header.count, n, visit)
                                                   : VisitBitmap(packed, header.count, n, visit);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("topk: ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeTopK(std::string_view ratio) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Selector> selector, MakeTopKSelector(ratio));
  return std::make_unique<TopK>(std::move(selector));
}

}  // namespace sluice::compression
