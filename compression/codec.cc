#include "compression/codec.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config_schema.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

struct Entry {
  const char* name;
  const char* parameter;   // "" = takes none
  const char* help;
  std::unique_ptr<Codec> (*make)();                                       // without a parameter
  absl::StatusOr<std::unique_ptr<Codec>> (*make_with)(std::string_view);  // with one
  const char* decoder_parameter;   // any that is allowed: decoders ignore it
};

// In order of CodecId.
constexpr Entry kEntries[] = {
    {"none", "", "fp32 as it is; 4 bytes an element, lossless", MakeNone, nullptr, ""},
    {"fp16", "", "IEEE half precision, saturating; 2 bytes an element", MakeFp16, nullptr, ""},
    {"bf16", "", "bfloat16; 2 bytes an element", MakeBf16, nullptr, ""},
    {"int8", "", "8-bit integers, one scale for 128 elements; 1.03 bytes an element", MakeInt8, nullptr, ""},
    {"topk", "<ratio>",
     "the share <ratio> of elements with the largest magnitudes, as fp16; biased: needs error feedback", nullptr,
     MakeTopK, "1"},
};

std::string FullName(const Entry& entry) {
  return entry.make != nullptr ? entry.name : absl::StrCat(entry.name, ":", entry.parameter);
}

std::vector<std::unique_ptr<const Codec>> MakeDecoders() {
  std::vector<std::unique_ptr<const Codec>> decoders;
  for (const Entry& entry : kEntries)
    decoders.push_back(entry.make != nullptr ? entry.make() : entry.make_with(entry.decoder_parameter).value());
  return decoders;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(std::string_view name) {
  const size_t colon = name.find(':');
  const std::string stem(name.substr(0, std::min<size_t>(colon, 80)));   // an error quotes no more of it
  for (const Entry& entry : kEntries) {
    if (stem != entry.name) continue;
    if (entry.make != nullptr && colon == std::string_view::npos) return entry.make();
    if (entry.make != nullptr)
      return absl::InvalidArgumentError(absl::StrCat("codec \"", stem, "\" takes no parameter, so no ':' may follow"));
    if (colon == std::string_view::npos)
      return absl::InvalidArgumentError(absl::StrCat("codec \"", stem, "\" needs a parameter: ", FullName(entry)));
    return entry.make_with(name.substr(colon + 1));
  }
  std::vector<std::string> stems, names;
  for (const Entry& entry : kEntries) {
    stems.push_back(entry.name);
    names.push_back(FullName(entry));
  }
  const std::string nearest = Nearest(stem, stems);
  const size_t which = static_cast<size_t>(std::find(stems.begin(), stems.end(), nearest) - stems.begin());
  return absl::InvalidArgumentError(
      absl::StrCat("no codec \"", stem, "\"; the nearest is \"", names[which], "\""));
}

const Codec* DecoderFor(uint16_t id) {
  // Constants without state; never destroyed, so that threads may decode while the process ends.
  static const auto* decoders = new std::vector<std::unique_ptr<const Codec>>(MakeDecoders());
  return id < decoders->size() ? (*decoders)[id].get() : nullptr;
}

std::vector<std::string> KnownCodecs() {
  std::vector<std::string> lines;
  for (const Entry& entry : kEntries) lines.push_back(absl::StrCat(FullName(entry), ": ", entry.help));
  return lines;
}

size_t FirstNonfinite(std::span<const float> values) {
  constexpr size_t kBlock = 4096;
  constexpr uint32_t kExponent = 0x7F800000;
  const size_t n = values.size();
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(n, begin + kBlock);
    uint32_t largest = 0;   // magnitudes compare as their bits do; infinities and NaNs come last
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFF);
    if (largest < kExponent) continue;
    for (size_t i = begin; i < end; ++i)
      if ((std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent) return i;
  }
  return n;
}

}  // namespace sluice::compression
