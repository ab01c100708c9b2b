// Which codec a tensor's gradients and replies travel in. Worker and server ask the same question and get one answer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace sluice::compression {

inline constexpr std::string_view kAutoCodec = "auto";   // the scheduler chooses, by plan (docs/policy.md)

// Checks the codec part of a job's configuration: all names are known, a biased codec (topk, onebit) is not used for pushes
// without error feedback unless allow_biased asks for it, momentum is not kept on both sides, and replies are not in a codec
// that draws random numbers: what a reply loses goes into the next one, which has no bound if the error may exceed the value.
absl::Status CheckCodecConfig(const proto::JobConfig& config);

struct TensorPolicy {
  std::string codec;   // may be kAutoCodec
  std::string why;     // for people, where it is not job.codec: the rule, or what exempts the tensor; else empty
};

// For pushes of this tensor: the first of job.codec_rules that it matches; else none for biases, norms and tensors below
// codec_min_elements (0 = 1024); else job.codec.
absl::StatusOr<TensorPolicy> PolicyFor(const proto::JobConfig& config, const proto::TensorSpec& tensor);
absl::StatusOr<std::string> CodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor);   // its codec

// What people should know of a configuration that is allowed: a biased codec without error feedback, a warm-up of nothing.
std::vector<std::string> CodecWarnings(const proto::JobConfig& config);

// Whether job.codec or a rule is kAutoCodec.
bool UsesAuto(const proto::JobConfig& config);

// The codecs that auto may choose from, mildest first.
absl::StatusOr<std::vector<std::string>> AutoCodecs(const proto::JobConfig& config);

// The product of the shape, held to 2^62 so that none overflows.
uint64_t ElementsOf(const proto::TensorSpec& tensor);

// Codec name for replies with REPLY_CHANGE: reply_codec ("" = fp16), with the same exemptions.
absl::StatusOr<std::string> ReplyCodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor);

// Whether a worker keeps a residual for pushes in this codec, which may be kAutoCodec: it loses something that error
// feedback brings back, and
// error feedback is on. (A server with REPLY_CHANGE needs none beyond its x - y.)
absl::StatusOr<bool> NeedsResidual(const proto::JobConfig& config, std::string_view codec);

// The codec for values of row gradients that a table asks for (TableSpec.codec; "" = none). Biased codecs are refused: a row
// is pushed because it is to change, and its residual may be dropped. So are those that draw random numbers: a push of rows
// has no place in a tensor to draw for.
absl::StatusOr<std::unique_ptr<Codec>> MakeRowCodec(std::string_view name);

}  // namespace sluice::compression
