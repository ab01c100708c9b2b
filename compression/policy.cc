#include "compression/policy.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/codec.h"

namespace sluice::compression {
namespace {

std::string PushCodec(const proto::JobConfig& config) { return config.codec().empty() ? "none" : config.codec(); }
std::string ReplyCodec(const proto::JobConfig& config) {
  return config.reply_codec().empty() ? "fp16" : config.reply_codec();
}

absl::StatusOr<std::unique_ptr<Codec>> MakeNamed(const char* field, const std::string& name) {
  auto codec = MakeCodec(name);
  if (!codec.ok()) return absl::InvalidArgumentError(absl::StrCat("job.", field, ": ", codec.status().message()));
  return codec;
}

bool Exempt(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  if (tensor.kind() != proto::TENSOR_WEIGHT) return true;
  const uint64_t least = config.codec_min_elements() == 0 ? 1024 : config.codec_min_elements();
  uint64_t elements = 1;
  bool large = false;   // stop multiplying once it is large enough, so that no shape overflows
  for (const uint64_t extent : tensor.shape()) {
    if (extent == 0) return true;
    if (large || extent >= least) {
      large = true;
      continue;
    }
    elements *= extent;   // both below 2^32
    large = elements >= least;
  }
  return !large && elements < least;
}

}  // namespace

absl::Status CheckCodecConfig(const proto::JobConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeNamed("codec", PushCodec(config)));
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
  if (codec->biased() && config.no_error_feedback() && !config.allow_biased())
    return absl::InvalidArgumentError(absl::StrCat(
        "job.codec ", codec->name(),
        " is biased and job.no_error_feedback is set: what it leaves out is lost, "
        "and training gets worse or diverges. Unset job.no_error_feedback, or set job.allow_biased if this "
        "is what you want"));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  SLUICE_RETURN_IF_ERROR(CheckCodecConfig(config));
  return Exempt(config, tensor) ? "none" : PushCodec(config);
}

absl::StatusOr<std::string> ReplyCodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor) {
  SLUICE_RETURN_IF_ERROR(CheckCodecConfig(config));
  return Exempt(config, tensor) ? "none" : ReplyCodec(config);
}

absl::StatusOr<bool> NeedsResidual(const proto::JobConfig& config, std::string_view codec) {
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
