// Which codec a tensor's gradients and replies travel in. Worker and server ask the same question and get one answer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "proto/config.pb.h"
#include "proto/plan.pb.h"

namespace sluice::compression {

// Checks the codec part of a job's configuration: both names are known, a biased codec (topk, onebit) is not used for
// pushes without error feedback unless allow_biased asks for it, and replies are not in a codec that draws random numbers:
// what a reply loses goes into the next one, which has no bound if the error may exceed the value.
absl::Status CheckCodecConfig(const proto::JobConfig& config);

// Codec name for pushes of this tensor. Biases, norms and tensors below codec_min_elements (0 = 1024) travel as "none".
absl::StatusOr<std::string> CodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor);

// Codec name for replies with REPLY_CHANGE: reply_codec ("" = fp16), with the same exemptions.
absl::StatusOr<std::string> ReplyCodecFor(const proto::JobConfig& config, const proto::TensorSpec& tensor);

// Whether a worker keeps a residual for pushes in this codec: it loses something that error feedback brings back, and
// error feedback is on. (A server with REPLY_CHANGE needs none beyond its x - y.)
absl::StatusOr<bool> NeedsResidual(const proto::JobConfig& config, std::string_view codec);

// The codec for values of row gradients that a table asks for (TableSpec.codec; "" = none). Biased codecs are refused: a row
// is pushed because it is to change, and its residual may be dropped. So are those that draw random numbers: a push of rows
// has no place in a tensor to draw for.
absl::StatusOr<std::unique_ptr<Codec>> MakeRowCodec(std::string_view name);

}  // namespace sluice::compression
