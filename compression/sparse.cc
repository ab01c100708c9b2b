// Some of the elements, their values in another codec: randk, threshold, and chains such as topk:0.01+int8.
// One residual, against what is decoded in the end (docs/codecs.md).
//
//   0  u32  count of entries
//   4  u8   form of the indices: 0 gaps, 1 bitmap (the smaller; gaps if equal), 2 drawn
//   5  u8   id of the values' codec: none, fp16, bf16, int8, int4, onebit or mxfp8, whose size follows from the count
//   6  u16  0
//   8       the values' encoding, in rising order of their indices
//           indices to the end: compression/index_pack.h, or the u64 key of compression/selection.h
#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "compression/encode_blocks.h"
#include "compression/index_pack.h"
#include "compression/registry.h"
#include "compression/selection.h"

namespace sluice::compression {
namespace {

constexpr size_t kHeaderBytes = 8, kKeyBytes = 8;
enum Form : uint8_t { kGaps = 0, kBitmap = 1, kDrawn = 2 };

bool CarriesValues(CodecId id) {
  return id != CodecId::kTopK && id != CodecId::kQsgd && id != CodecId::kSparse && id != CodecId::kLowRank &&
         id != CodecId::kNvfp4;
}

class Sparse final : public Codec {
 public:
  // Without a selector and a codec for the values: a decoder, whose MaxEncodedBytes bounds those of all. (One element in
  // int8 takes 5 bytes: no codec of values has more than 4 n + 4.)
  Sparse(std::unique_ptr<Selector> selector, std::unique_ptr<Codec> values, std::string name)
      : selector_(std::move(selector)), values_(std::move(values)), name_(std::move(name)) {}

  CodecId id() const override { return CodecId::kSparse; }
  std::string name() const override { return name_; }
  bool lossless() const override { return false; }
  bool biased() const override { return true; }
  bool random() const override { return selector_ != nullptr && (selector_->drawn() || values_->random()); }

  size_t StateBytes(uint64_t n) const override { return selector_ == nullptr ? 0 : selector_->StateBytes(n); }

  uint64_t MaxEncodedBytes(uint64_t n) const override {
    if (selector_ == nullptr) return kHeaderBytes + 4 * n + 4 + std::max<uint64_t>(kKeyBytes, BitmapBytes(n));
    const uint64_t k = selector_->MostEntries(n);
    const uint64_t indices = selector_->drawn() ? kKeyBytes : std::min(BitmapBytes(n), MaxPackedGapBytes(k, n));
    return kHeaderBytes + values_->MaxEncodedBytes(k) + indices;
  }

  absl::StatusOr<size_t> Encode(const EncodeInput& input, MutableBytes out) const override;

  absl::Status Validate(ConstBytes in, size_t n) const override {
    SLUICE_ASSIGN_OR_RETURN(const Parts parts, Split(in, n));
    absl::Status status = parts.codec->Validate(parts.values, parts.count);
    if (status.ok() && parts.codec->lossless()) {   // which carries any bits
      for (size_t j = 0; j < parts.count && status.ok(); ++j)
        if ((LoadLe<uint32_t>(parts.values.data() + 4 * j) & 0x7F800000) == 0x7F800000)
          status = absl::InvalidArgumentError("not finite");
    }
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("sparse: values: ", status.message()));
    return VisitIndices(parts, n, [](size_t, std::span<const uint32_t>) {});
  }

  absl::Status Decode(ConstBytes in, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    return DecodeInto(in, out, [](float* to, float value) { *to = value; });
  }

  absl::Status DecodeAdd(ConstBytes in, std::span<float> accumulator) const override {
    return DecodeInto(in, accumulator, [](float* to, float value) { *to += value; });
  }

 private:
  struct Parts {
    uint32_t count = 0;
    Form form = kGaps;
    const Codec* codec = nullptr;
    ConstBytes values, indices;
  };

  // Checks the header and all sizes.
  static absl::StatusOr<Parts> Split(ConstBytes in, size_t n);
  // Checks the indices, and calls f(first entry, indices) for groups of up to 64 entries.
  template <typename F>
  static absl::Status VisitIndices(const Parts& parts, size_t n, F f);

  template <typename Store>
  static absl::Status DecodeInto(ConstBytes in, std::span<float> out, Store store) {
    SLUICE_ASSIGN_OR_RETURN(const Parts parts, Split(in, out.size()));
    std::vector<float> values(parts.count);   // at most as many as out has, and bytes of their own are there for each
    if (absl::Status status = parts.codec->Decode(parts.values, values); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat("sparse: values: ", status.message()));
    return VisitIndices(parts, out.size(), [&](size_t first, std::span<const uint32_t> indices) {
      for (size_t j = 0; j < indices.size(); ++j) store(&out[indices[j]], values[first + j]);
    });
  }

  const std::unique_ptr<Selector> selector_;
  const std::unique_ptr<Codec> values_;
  const std::string name_;
};

absl::StatusOr<size_t> Sparse::Encode(const EncodeInput& input, MutableBytes out) const {
  SLUICE_RETURN_IF_ERROR(CheckEncodeArguments(*this, input, out));
  const size_t n = input.gradient.size();
  if (selector_ == nullptr) return absl::InvalidArgumentError("sparse: this object decodes only");
  if (n > UINT32_MAX) return absl::InvalidArgumentError(absl::StrCat(name_, ": ", n, " elements; at most 2^32 - 1"));

  const auto [indices, values] = selector_->Select(input);
  std::vector<float> rest(input.residual_out.empty() ? 0 : indices.size());
  SLUICE_ASSIGN_OR_RETURN(
      const size_t value_bytes,
      values_->Encode({.gradient = values, .residual = {}, .residual_out = rest, .random = input.random},
                      out.subspan(kHeaderBytes)));
  for (size_t j = 0; j < rest.size(); ++j)
    if (rest[j] == 0 && values[j] == 0) rest[j] = values[j];   // a zero, whose sign stays
  StoreRest(input, indices, rest);

  std::byte* packed = out.data() + kHeaderBytes + value_bytes;
  Form form = kDrawn;
  size_t index_bytes = kKeyBytes;
  if (selector_->drawn()) {
    StoreLe(packed, SelectionKey(input.random));
  } else {
    const size_t gap_bytes = PackedGapBytes(indices);
    form = gap_bytes <= BitmapBytes(n) ? kGaps : kBitmap;
    index_bytes = form == kGaps ? gap_bytes : BitmapBytes(n);
    if (form == kGaps)
      PackGaps(indices, packed);
    else
      PackBitmap(indices, n, packed);
  }
  StoreLe(out.data(), static_cast<uint32_t>(indices.size()));
  StoreLe(out.data() + 4, static_cast<uint8_t>(form));
  StoreLe(out.data() + 5, static_cast<uint8_t>(values_->id()));
  StoreLe(out.data() + 6, uint16_t{0});
  return kHeaderBytes + value_bytes + index_bytes;
}

absl::StatusOr<Sparse::Parts> Sparse::Split(ConstBytes in, size_t n) {
  if (in.size() < kHeaderBytes)
    return absl::InvalidArgumentError(absl::StrCat("sparse: ", in.size(), " bytes; the header alone has ", kHeaderBytes));
  Parts parts;
  parts.count = LoadLe<uint32_t>(in.data());
  const uint8_t form = LoadLe<uint8_t>(in.data() + 4), id = LoadLe<uint8_t>(in.data() + 5);
  const uint16_t zero = LoadLe<uint16_t>(in.data() + 6);
  parts.codec = CarriesValues(static_cast<CodecId>(id)) ? DecoderFor(id) : nullptr;
  if (form > kDrawn || zero != 0 || parts.codec == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("sparse: index form ", form, ", values in codec ", id,
                                                   ", reserved bytes ", zero));
  parts.form = static_cast<Form>(form);
  const uint64_t value_bytes = parts.codec->MaxEncodedBytes(parts.count);
  if (parts.count > n || value_bytes > in.size() - kHeaderBytes)
    return absl::InvalidArgumentError(absl::StrCat("sparse: ", parts.count, " entries of ", parts.codec->name(), " for ", n,
                                                   " elements in ", in.size(), " bytes"));
  parts.values = in.subspan(kHeaderBytes, value_bytes);
  parts.indices = in.subspan(kHeaderBytes + value_bytes);
  if (parts.form == kDrawn && (parts.indices.size() != kKeyBytes || n > UINT32_MAX))
    return absl::InvalidArgumentError(absl::StrCat("sparse: the key of drawn indices has ", kKeyBytes, " bytes, not ",
                                                   parts.indices.size()));
  return parts;
}

template <typename F>
absl::Status Sparse::VisitIndices(const Parts& parts, size_t n, F f) {
  if (parts.form == kDrawn) {
    const uint64_t key = LoadLe<uint64_t>(parts.indices.data());
    uint32_t indices[kGapGroup];
    for (size_t first = 0; first < parts.count; first += kGapGroup) {
      const size_t members = std::min<size_t>(kGapGroup, parts.count - first);
      DrawnIndices(key, parts.count, n, first, {indices, members});
      f(first, std::span<const uint32_t>(indices, members));
    }
    return absl::OkStatus();
  }
  const absl::Status status = parts.form == kGaps ? VisitGaps(parts.indices, parts.count, n, f)
                                                  : VisitBitmap(parts.indices, parts.count, n, f);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("sparse: ", status.message()));
}

absl::StatusOr<std::unique_ptr<Codec>> Make(absl::StatusOr<std::unique_ptr<Selector>> selector,
                                            std::unique_ptr<Codec> values, bool chain) {
  SLUICE_RETURN_IF_ERROR(selector.status());
  std::string name = (*selector)->name();
  if (chain) name = absl::StrCat(name, "+", values->name());
  return std::make_unique<Sparse>(*std::move(selector), std::move(values), std::move(name));
}

}  // namespace

std::unique_ptr<Codec> MakeSparseDecoder() { return std::make_unique<Sparse>(nullptr, nullptr, "sparse"); }

absl::StatusOr<std::unique_ptr<Codec>> MakeRandK(std::string_view ratio) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> values, MakeFp16({}));
  return Make(MakeRandomSelector(ratio), std::move(values), false);
}

absl::StatusOr<std::unique_ptr<Codec>> MakeThreshold(std::string_view value) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> values, MakeFp16({}));
  return Make(MakeThresholdSelector(value), std::move(values), false);
}

absl::StatusOr<std::unique_ptr<Codec>> MakeChain(std::string_view picks, std::unique_ptr<Codec> values) {
  if (values->id() == CodecId::kLowRank)
    return absl::InvalidArgumentError(absl::StrCat("codec ", std::string(picks), "+", values->name(),
                                                   ": picked values are no matrix, so lowrank cannot follow; int8 can"));
  if (!CarriesValues(values->id()) && values->biased())
    return absl::InvalidArgumentError(absl::StrCat("codec ", std::string(picks), "+", values->name(),
                                                   ": both parts pick elements; the second must be the codec of the values, "
                                                   "such as int8"));
  if (!CarriesValues(values->id()))
    return absl::InvalidArgumentError(absl::StrCat(
        "codec ", std::string(picks), "+", values->name(), ": picking elements needs a residual, for which no bound holds with ",
        values->name(), ": its error may exceed the value; take int4 or int8:stochastic for the values"));
  const size_t colon = std::min(picks.find(':'), picks.size());
  const std::string_view stem = picks.substr(0, colon), parameter = picks.substr(std::min(colon + 1, picks.size()));
  if (stem == "topk") return Make(MakeTopKSelector(parameter), std::move(values), true);
  if (stem == "randk") return Make(MakeRandomSelector(parameter), std::move(values), true);
  if (stem == "threshold") return Make(MakeThresholdSelector(parameter), std::move(values), true);
  return absl::InvalidArgumentError(absl::StrCat("codec ", std::string(picks), "+", values->name(), ": ", std::string(picks),
                                                 " sends every element, so nothing can follow it; a chain begins with "
                                                 "topk, randk or threshold, as in topk:0.01+int8"));
}

}  // namespace sluice::compression
