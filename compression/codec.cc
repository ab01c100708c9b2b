#include "compression/codec.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config_schema.h"
#include "base/status_macros.h"
#include "compression/registry.h"

namespace sluice::compression {
namespace {

enum class Parameter { kNone, kOptional, kNeeded };

struct Entry {
  const char* name;
  Parameter takes;
  const char* parameter;   // for people
  const char* help;
  const char* example;     // a name
  const char* bytes;       // of n elements, for people
  absl::StatusOr<std::unique_ptr<Codec>> (*make)(std::string_view);   // null: lowrank, which needs more
};

constexpr Entry kEntries[] = {
    {"none", Parameter::kNone, "", "fp32 as it is; 4 bytes an element, lossless", "none", "4n", MakeNone},
    {"fp16", Parameter::kNone, "", "IEEE half precision, saturating; 2 bytes an element", "fp16", "2n", MakeFp16},
    {"bf16", Parameter::kNone, "", "bfloat16; 2 bytes an element", "bf16", "2n", MakeBf16},
    {"mxfp8", Parameter::kNone, "", "8-bit floats (E4M3), one power of two for 32 elements; 8.25 bits an element", "mxfp8", "n + ceil(n/32)", MakeMxfp8},
    {"nvfp4", Parameter::kNone, "",
     "4-bit floats (E2M1), one 8-bit float for 16 elements and one scale for all; 4.5 bits an element", "nvfp4", "4 + ceil(n/16) + ceil(n/2)", MakeNvfp4},
    {"int8", Parameter::kOptional, "stochastic|static:<range>",
     "8-bit integers, one scale for 128 elements; 8.25 bits an element; rounds to nearest, or at random without bias; or one range for "
     "all (docs/policy.md, \"Calibration\"; needs error feedback)", "int8", "n + 4 ceil(n/128)", MakeInt8},
    {"int4", Parameter::kOptional, "stochastic|static:<range>", "the same with 4 bits; 4.25 bits an element", "int4", "ceil(n/2) + 4 ceil(n/128)", MakeInt4},
    {"onebit", Parameter::kNone, "",
     "signs, one scale for 256 elements; 1.13 bits an element; biased: needs error feedback", "onebit", "ceil(n/8) + 4 ceil(n/256)", MakeOneBit},
    {"terngrad", Parameter::kNone, "",
     "-1, 0 or 1 at random, one scale for 128 elements; 2.25 bits an element; unbiased, keeps no residual", "terngrad", "4 + 4 ceil(n/128) + 2 ceil(n/8)", MakeTernGrad},
    {"qsgd", Parameter::kNeeded, "<levels>",
     "-levels to levels (1 to 127), rounded at random, one scale for 128 elements; 4.25 bits an element with 7; unbiased, "
     "keeps no residual", "qsgd:7", "4 + 4 ceil(n/128) + b ceil(n/8), b = bit_width(2 levels)", MakeQsgd},
    {"topk", Parameter::kNeeded, "<ratio>",
     "the share <ratio> of elements with the largest magnitudes, as fp16; biased: needs error feedback; +CODEC: their values "
     "in CODEC, as in topk:0.01+int8", "topk:0.01", "8 + 2k + indices (about 1.2k at 0.01), k = ceil(ratio n)", MakeTopK},
    {"randk", Parameter::kNeeded, "<ratio>",
     "the share <ratio> of elements at random places, as fp16 without indices; biased: needs error feedback; +CODEC as well", "randk:0.01", "16 + 2k, k = ceil(ratio n)", MakeRandK},
    {"threshold", Parameter::kNeeded, "<value>",
     "elements whose magnitude is <value> or more, as fp16; biased: needs error feedback; +CODEC as well; "
     "threshold:auto:<ratio> follows the gradient towards that share", "threshold:1", "8 + 2 entries + indices; auto: at most 2k entries", MakeThreshold},
    {"lowrank", Parameter::kNeeded, "<rank>",
     "a tensor's rows as a matrix of that rank (1 to 64), as fp32; biased: needs error feedback; +fp16: its factors as halves", "lowrank:1", "12 + 4r (rows + columns), +fp16: 2r; 12 + 4n if that is no larger", nullptr},
};

// A codec of each CodecId before kSparse, in their order. Decoders ignore the parameter; the one here has the largest encodings.
constexpr const char* kDecoders[] = {"none", "fp16", "bf16", "int8", "topk:1", "int4", "onebit", "qsgd:127", "mxfp8"};

// The '+' of a chain, not that of an exponent (1e+6).
size_t ChainAt(std::string_view name) {
  size_t plus = name.find('+');
  while (plus != std::string_view::npos && plus >= 2 && (name[plus - 1] == 'e' || name[plus - 1] == 'E') &&
         name[plus - 2] >= '0' && name[plus - 2] <= '9')
    plus = name.find('+', plus + 1);
  return plus;
}

std::string FullName(const Entry& entry) {
  switch (entry.takes) {
    case Parameter::kNone: return entry.name;
    case Parameter::kOptional: return absl::StrCat(entry.name, "[:", entry.parameter, "]");
    case Parameter::kNeeded: break;
  }
  return absl::StrCat(entry.name, ":", entry.parameter);
}

std::vector<std::unique_ptr<const Codec>> MakeDecoders() {
  std::vector<std::unique_ptr<const Codec>> decoders;
  for (const char* name : kDecoders) decoders.push_back(MakeCodec(name).value());
  decoders.push_back(MakeSparseDecoder());
  decoders.push_back(MakeLowRank("1", false, 0).value());
  decoders.push_back(MakeNvfp4("").value());
  return decoders;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(std::string_view name, uint64_t columns) {
  if (const size_t plus = ChainAt(name); plus != std::string_view::npos) {
    const std::string_view first = name.substr(0, plus), second = name.substr(plus + 1);
    if (ChainAt(second) != std::string_view::npos)
      return absl::InvalidArgumentError(absl::StrCat("codec \"", std::string(name.substr(0, 80)),
                                                     "\": a chain has two parts, one that picks elements and one for their "
                                                     "values, as in topk:0.01+int8"));
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> alone, MakeCodec(first));
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> values, MakeCodec(second));
    if (alone->id() == CodecId::kLowRank) {
      if (values->id() == CodecId::kFp16) return MakeLowRank(first.substr(first.find(':') + 1), true, columns);
      return absl::InvalidArgumentError(absl::StrCat("codec ", alone->name(), "+", values->name(), ": the factors of lowrank "
                                                     "travel as fp32, or as halves: ", alone->name(), "+fp16"));
    }
    return MakeChain(first, std::move(values));
  }
  const size_t colon = name.find(':');
  const std::string stem(name.substr(0, std::min<size_t>(colon, 80)));   // an error quotes no more of it
  for (const Entry& entry : kEntries) {
    if (stem != entry.name) continue;
    const bool given = colon != std::string_view::npos;
    if (given && entry.takes == Parameter::kNone)
      return absl::InvalidArgumentError(absl::StrCat("codec \"", stem, "\" takes no parameter, so no ':' may follow"));
    const std::string_view parameter = given ? name.substr(colon + 1) : "";
    if ((given && parameter.empty()) || (!given && entry.takes == Parameter::kNeeded))
      return absl::InvalidArgumentError(absl::StrCat("codec \"", stem, "\" needs a parameter: ", FullName(entry)));
    return entry.make == nullptr ? MakeLowRank(parameter, false, columns) : entry.make(parameter);
  }
  std::vector<std::string> stems, names;
  for (const Entry& entry : kEntries) {
    stems.push_back(entry.name);
    names.push_back(entry.takes == Parameter::kNeeded ? FullName(entry) : entry.name);
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
  for (const Entry& entry : kEntries) {
    const std::unique_ptr<Codec> codec = MakeCodec(entry.example).value();
    lines.push_back(absl::StrCat(FullName(entry), ": ", entry.help, ". Bytes of n elements: ", entry.bytes, ". ",
                                 codec->lossless() ? "Lossless" : codec->biased() ? "Biased: needs error feedback" : "Unbiased or rounds to nearest",
                                 codec->uses_residual() ? ", keeps a residual" : ", keeps no residual"));
  }
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
