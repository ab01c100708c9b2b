#include "compression/policy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "compression/codec_rules.h"
#include "compression/codec_schedule.h"

namespace sluice::compression {
namespace {

constexpr size_t kMaxAutoCodecs = 16;

std::string PushCodec(const proto::JobConfig& config) { return config.codec().empty() ? "none" : config.codec(); }
std::string ReplyCodec(const proto::JobConfig& config) {
  return config.reply_codec().empty() ? "fp16" : config.reply_codec();
}

absl::StatusOr<std::vector<CodecRule>> Rules(const proto::JobConfig& config) {
  auto rules = ParseCodecRules(config.codec_rules());
  if (!rules.ok()) return absl::InvalidArgumentError(absl::StrCat("job.codec_rules: ", rules.status().message()));
  return rules;
}

absl::StatusOr<std::unique_ptr<Codec>> MakeNamed(const std::string& field, const std::string& name) {
  auto codec = MakeCodec(name);
  if (!codec.ok()) return absl::InvalidArgumentError(absl::StrCat("job.", field, ": ", codec.status().message()));
  return codec;
}

// Why the tensor goes uncompressed unless a rule names it; empty: it does not.
std::string Exemption(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  if (tensor.kind() == proto::TENSOR_BIAS) return "a bias";
  if (tensor.kind() != proto::TENSOR_WEIGHT) return "a norm";
  const uint64_t least = config.codec_min_elements() == 0 ? 1024 : config.codec_min_elements();
  const uint64_t elements = ElementsOf(tensor);
  if (elements >= least) return "";
  return absl::StrCat(elements, " elements, job.codec_min_elements is ", least);
}

// Of a codec for pushes. field: for messages.
absl::Status CheckPushCodec(const proto::JobConfig& config, const std::string& field, const std::string& name) {
  if (name == kAutoCodec) {
    if (!config.no_error_feedback()) return AutoCodecs(config).status();
    return absl::InvalidArgumentError(absl::StrCat(
        "job.", field, " auto chooses among codecs that need error feedback, and job.no_error_feedback is set"));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeNamed(field, name));
  if (!codec->biased() || !config.no_error_feedback() || config.allow_biased()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "job.", field, " ", codec->name(), " is biased and job.no_error_feedback is set: what it leaves out is lost, and training "
      "gets worse or diverges. Unset job.no_error_feedback, or set job.allow_biased if this is what you want"));
}

absl::Status CheckMomentumCorrection(const proto::JobConfig& config) {
  const double momentum = config.momentum_correction();
  if (momentum == 0) return absl::OkStatus();
  if (!(momentum > 0 && momentum < 1))
    return absl::InvalidArgumentError(absl::StrCat("job.momentum_correction is ", momentum, "; it must lie between 0 and 1"));
  const std::string& optimizer = config.optimizer().kind();
  if (!optimizer.empty() && optimizer != "sgd" && optimizer != "none")
    return absl::InvalidArgumentError(absl::StrCat(
        "job.momentum_correction keeps momentum at the workers, and job.optimizer.kind ", optimizer, " has its own at the "
        "servers: gradients would count twice. Take job.optimizer.kind=sgd"));
  if (config.no_error_feedback())
    return absl::InvalidArgumentError("job.momentum_correction corrects what error feedback delays; unset job.no_error_feedback");
  return absl::OkStatus();
}

// Whether something has a ratio to warm up.
bool HasRatio(const proto::JobConfig& config, const std::vector<CodecRule>& rules) {
  return RatioOf(PushCodec(config)).has_value() ||
         std::ranges::any_of(rules, [](const CodecRule& rule) { return RatioOf(rule.codec).has_value(); });
}

}  // namespace

uint64_t ElementsOf(const proto::TensorSpec& tensor) {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  uint64_t elements = 1;
  for (const uint64_t extent : tensor.shape()) {
    if (extent == 0) return 0;
    elements = elements > kMost / extent ? kMost : elements * extent;
  }
  return elements;
}

absl::StatusOr<std::vector<std::string>> AutoCodecs(const proto::JobConfig& config) {
  std::vector<std::string> names;
  const std::string text = config.auto_codecs().empty() ? "none,fp16,int8,int4,topk:0.1,topk:0.01" : config.auto_codecs();
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::string name(absl::StripAsciiWhitespace(part));
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeNamed("auto_codecs", name));
    // A residual that one codec left must be taken up by the next.
    if (!codec->lossless() && !codec->uses_residual())
      return absl::InvalidArgumentError(absl::StrCat("job.auto_codecs: ", codec->name(), " keeps no residual, so what another "
                                                     "codec left in it would be lost; take int8, int4 or topk"));
    names.push_back(codec->name());
  }
  if (names.size() > kMaxAutoCodecs)
    return absl::InvalidArgumentError(absl::StrCat("job.auto_codecs names ", names.size(), " codecs; ", kMaxAutoCodecs,
                                                   " are allowed"));
  if (names.front() != "none")
    return absl::InvalidArgumentError(absl::StrCat("job.auto_codecs begins with ", names.front(), "; the first is the mildest, "
                                                   "which is none: what compression costs is measured against it"));
  return names;
}

absl::Status CheckCodecConfig(const proto::JobConfig& config) {
  SLUICE_RETURN_IF_ERROR(CheckPushCodec(config, "codec", PushCodec(config)));
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> reply, MakeNamed("reply_codec", ReplyCodec(config)));
  if (reply->id() == CodecId::kLowRank)
    return absl::InvalidArgumentError(absl::StrCat(
        "job.reply_codec ", reply->name(),
        " begins each round where the last one ended, and replies keep nothing of it. Take one without state, such as "
        "int8 or topk:0.01"));
  if (reply->random())
    return absl::InvalidArgumentError(absl::StrCat(
        "job.reply_codec ", reply->name(),
        " draws random numbers, which replies do not have: what one reply loses goes into the next. Take one that rounds to "
        "nearest, such as int8 or int4"));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<CodecRule> rules, Rules(config));
  for (size_t i = 0; i < rules.size(); ++i)
    SLUICE_RETURN_IF_ERROR(CheckPushCodec(config, absl::StrCat("codec_rules rule ", i + 1), rules[i].codec));
  SLUICE_RETURN_IF_ERROR(CheckMomentumCorrection(config));
  if (!(config.local_clip_norm() >= 0 && config.local_clip_norm() <= std::numeric_limits<float>::max()))
    return absl::InvalidArgumentError(absl::StrCat("job.local_clip_norm is ", config.local_clip_norm(),
                                                   "; it must be a norm, or 0 for none"));
  if (!(config.auto_max_residual() >= 0))
    return absl::InvalidArgumentError(absl::StrCat("job.auto_max_residual is ", config.auto_max_residual(),
                                                   "; it must be above 0"));
  return absl::OkStatus();
}

std::vector<std::string> CodecWarnings(const proto::JobConfig& config) {
  std::vector<std::string> warnings;
  const auto rules = Rules(config);
  if (!rules.ok()) return warnings;
  if (config.codec_warmup_rounds() > 0 && !HasRatio(config, *rules))
    warnings.push_back(absl::StrCat("job.codec_warmup_rounds does nothing: neither job.codec ", PushCodec(config),
                                    " nor a rule has a ratio, as topk:0.01 has"));
  if (!config.no_error_feedback()) return warnings;
  const auto look = [&](const std::string& where, const std::string& name) {
    const auto codec = MakeCodec(name);
    if (codec.ok() && (*codec)->biased())
      warnings.push_back(absl::StrCat(where, " ", name, " is biased and runs without error feedback, as job.allow_biased asks: "
                                      "what it leaves out is lost. Expect worse training, or none"));
  };
  look("job.codec", PushCodec(config));
  for (const CodecRule& rule : *rules) look(absl::StrCat("rule ", rule.text, ":"), rule.codec);
  return warnings;
}

bool UsesAuto(const proto::JobConfig& config) {
  if (PushCodec(config) == kAutoCodec) return true;
  const auto rules = Rules(config);
  return rules.ok() && std::ranges::any_of(*rules, [](const CodecRule& rule) { return rule.codec == kAutoCodec; });
}

absl::StatusOr<TensorPolicy> PolicyFor(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  SLUICE_RETURN_IF_ERROR(CheckCodecConfig(config));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<CodecRule> rules, Rules(config));
  if (const CodecRule* rule = FirstMatch(rules, tensor, ElementsOf(tensor)); rule != nullptr)
    return TensorPolicy{rule->codec, absl::StrCat("rule ", rule->text)};
  if (std::string why = Exemption(config, tensor); !why.empty()) return TensorPolicy{"none", std::move(why)};
  return TensorPolicy{PushCodec(config), ""};
}

absl::StatusOr<std::string> CodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  SLUICE_ASSIGN_OR_RETURN(TensorPolicy policy, PolicyFor(config, tensor));
  return std::move(policy.codec);
}

absl::StatusOr<std::string> ReplyCodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  SLUICE_RETURN_IF_ERROR(CheckCodecConfig(config));
  return Exemption(config, tensor).empty() ? ReplyCodec(config) : "none";
}

absl::StatusOr<bool> NeedsResidual(const proto::JobConfig& config, std::string_view codec) {
  if (codec == kAutoCodec) return !config.no_error_feedback();
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> made, MakeCodec(codec));
  return made->uses_residual() && !config.no_error_feedback();
}

absl::StatusOr<std::unique_ptr<Codec>> MakeRowCodec(std::string_view name) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodec(name.empty() ? "none" : name));
  if (codec->biased()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec ", codec->name(), " leaves most of what a row is pushed for to later pushes, which may never come; rows go as "
        "none, fp16, bf16, mxfp8, int8 or int4. Push fewer rows to send less"));
  }
  if (codec->random()) {
    return absl::InvalidArgumentError(absl::StrCat("codec ", codec->name(), " draws random numbers for places in a tensor, "
                                                   "which rows do not have; rows go as none, fp16, bf16, mxfp8, int8 or int4"));
  }
  return codec;
}

}  // namespace sluice::compression
