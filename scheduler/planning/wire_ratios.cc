#include "scheduler/planning/wire_ratios.h"

#include "compression/codec.h"
#include "compression/policy.h"

namespace sluice::planning {
namespace {

constexpr uint64_t kProbeElements = 1 << 20;   // a codec's ratio is that of a partition of this size

}  // namespace

double WireRatios::Of(const std::string& codec) {
  const auto [it, is_new] = known_.emplace(codec, 1);
  if (!is_new || codec.empty() || codec == "none") return it->second;
  if (const auto made = compression::MakeCodec(codec); made.ok())
    it->second = static_cast<double>((*made)->MaxEncodedBytes(kProbeElements)) / (4.0 * kProbeElements);
  else if (unknown_.empty()) unknown_ = codec;
  return it->second;
}

void WireRatios::Add(const proto::TensorSpec& spec, double bytes, const std::string& auto_codec) {
  const auto pushed = compression::CodecFor(config_, spec);
  if (!pushed.ok() && unknown_.empty()) unknown_ = config_.codec();
  push_ += bytes * (pushed.ok() ? Of(*pushed == compression::kAutoCodec ? auto_codec : *pushed) : 1);
  const auto replied = compression::ReplyCodecFor(config_, spec);
  reply_ += bytes * (config_.reply() == proto::REPLY_CHANGE && replied.ok() ? Of(*replied) : 1);
  bytes_ += bytes;
}

}  // namespace sluice::planning
