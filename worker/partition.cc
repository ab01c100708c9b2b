#include "worker/partition.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "worker/residual.h"

namespace sluice::worker {

using transport::FrameHeader;
using transport::LinkId;
using transport::Payload;

Partition::Partition(Shape shape, const compression::CodecSchedule* codecs, bool keep_residual,
                     const compression::Codec* reply_codec, PartitionEnv* env)
    : shape_(shape), codecs_(codecs), keep_residual_(keep_residual), reply_codec_(reply_codec), env_(env) {
  if (reply_codec_ != nullptr) replica_.assign(shape_.elements, 0.0f);
}

bool Partition::SetRoute(const worker::Route& route) {
  const bool changed = route != route_;
  route_ = route;
  return changed;
}

absl::Status Partition::StartPush(const Push& push, LinkId link) {
  phase_ = Phase::kPushing;
  push_ = push;
  since_ = env_->clock->Now();
  retry_at_ = 0;
  direct_ = false;
  state_.reset();
  answer_ = Answer{};
  if (env_->observer != nullptr) {
    env_->observer->OnStage(WorkerObserver::Stage::kQueue, shape_.tensor, shape_.index, push.round, push.submitted,
                            since_);
  }
  const bool empty = (push.flags & (transport::kFlagEmpty | transport::kFlagNonfinite)) != 0;
  const bool assign = (push.flags & transport::kFlagAssign) != 0;
  ConstBytes payload;
  uint16_t codec = static_cast<uint16_t>(compression::CodecId::kNone);
  bool plain = push.plain;
  if (push.prepared_count > 0) {
    payload = push.prepared;
    codec = push.prepared_codec;
  } else if (assign) {
    payload = AsBytes(push.gradient);
  } else if (!empty) {
    if (env_->calibration != nullptr && env_->calibration->Wanted(push.round))
      env_->calibration->Add(shape_.tensor, push.gradient);
    const compression::Codec& codec_now = codecs_->At(push.round);
    codec = static_cast<uint16_t>(codec_now.id());
    // What an earlier codec left in the residual goes with it.
    if (codec_now.lossless() && residual_.empty() && push.factor == 1) {
      payload = AsBytes(push.gradient);
      Measure(nullptr, codec_now, payload);
    } else {
      SLUICE_ASSIGN_OR_RETURN(payload, Encode(codec_now));
    }
    plain = codec_now.id() == compression::CodecId::kNone;
  }
  if (plain && payload.size() >= PlainTraffic::kLeastBytes) {
    plain_ = true;
    env_->plain_traffic.Begin(env_->clock->Now());   // encoding is over
  }
  if (env_->observer != nullptr) {
    env_->observer->OnEncoded(shape_.index, push.round, codec, push.gradient, payload);
    if (payload.size() <= env_->eager_bytes) {
      env_->fusing.push_back({shape_.tensor, shape_.index, push.round, env_->clock->Now()});
    }
  }

  link_ = link;
  if (link_ != 0) SLUICE_RETURN_IF_ERROR(OpenSlot());
  FrameHeader header;
  header.type = transport::FrameType::kPush;
  header.job = env_->job;
  header.rank = env_->rank;
  header.incarnation = env_->incarnation;
  header.tensor = shape_.tensor;
  header.partition = shape_.index;
  header.term = route_.term;
  header.round = push.round;
  header.codec = codec;
  header.elements = push.prepared_count > 0 ? push.prepared_count : static_cast<uint32_t>(shape_.elements);
  header.flags = push.flags;
  // A change must reach the replica even if the caller does not want the parameters.
  if (push.output.empty() && reply_codec_ == nullptr) header.flags |= transport::kFlagNoReply;
  header.rate_bits = rate_bits_;
  header.aux64 = route_.stamp;
  header.plan_version = env_->plan_version;
  header.reply_slot = slot_;
  payload_held_ = true;
  absl::Status started = env_->sender->Start(link_, header, payload, push.priority);
  if (!started.ok()) payload_held_ = false;
  return started;
}

absl::StatusOr<ConstBytes> Partition::Encode(const compression::Codec& codec) {
  const TimeNs begin = env_->clock->Now();
  const size_t most = codec.MaxEncodedBytes(shape_.elements);
  if (encoded_ == nullptr || encoded_room_ < most) {
    encoded_.reset();
    SLUICE_ASSIGN_OR_RETURN(encoded_, env_->slab->Allocate(most));
    encoded_room_ = most;
  }
  compression::EncodeInput input;
  input.gradient = push_.gradient;
  if (push_.factor != 1) {
    env_->scratch.resize(shape_.elements);
    std::transform(push_.gradient.begin(), push_.gradient.end(), env_->scratch.begin(),
                   [factor = push_.factor](float g) { return factor * g; });
    input.gradient = env_->scratch;
  }
  // By round and place alone, so that whoever encodes the push again writes the same bytes.
  input.random = {env_->random_seed, push_.round, shape_.tensor, shape_.offset};
  const float rate = std::bit_cast<float>(rate_bits_);
  if (keep_residual_) {
    residual_next_.resize(codec.lossless() ? 0 : shape_.elements);   // nothing is left behind by a lossless one
    input.residual = residual_;
    input.residual_out = residual_next_;
    if (env_->optimizer && !residual_.empty()) input.residual_scale = ResidualScale(residual_rate_, rate);
    residual_rate_next_ = ResidualRate(residual_rate_, rate);
  }
  codec_state_next_.resize(codec.StateBytes(shape_.elements));
  if (codec_state_.size() == codec_state_next_.size()) input.state = codec_state_;   // else another codec's
  input.state_out = codec_state_next_;
  SLUICE_ASSIGN_OR_RETURN(encoded_bytes_, codec.Encode(input, {encoded_.get(), most}));
  encoded_codec_ = static_cast<uint16_t>(codec.id());
  residual_pending_ = keep_residual_ || !codec_state_.empty() || !codec_state_next_.empty();
  if (env_->observer != nullptr) {
    env_->observer->OnStage(WorkerObserver::Stage::kEncode, shape_.tensor, shape_.index, push_.round, begin,
                            env_->clock->Now());
  }
  const ConstBytes payload{encoded_.get(), encoded_bytes_};
  Measure(&input, codec, payload);
  return payload;
}

// input: null where the payload is the gradient itself.
void Partition::Measure(const compression::EncodeInput* input, const compression::Codec& codec, ConstBytes payload) {
  if (!env_->codec_stats.Wanted(push_.round)) return;
  compression::EncodingNorms norms;
  if (input != nullptr) norms = compression::MeasureEncoding(*input, codec, payload);
  env_->codec_stats.Add(shape_.tensor, shape_.siblings, push_.round, codec.name(), shape_.elements * sizeof(float),
                        payload.size(), norms);
}

void Partition::NoteState(transport::PushState state) {
  state_ = state;
  if (state != transport::PushState::kReceived || !std::exchange(plain_, false)) return;
  env_->plain_traffic.End(env_->clock->Now(), shape_.elements * sizeof(float));
}

absl::Status Partition::StartPull(const Pull& pull, LinkId link) {
  phase_ = Phase::kPulling;
  pull_ = pull;
  since_ = heard_ = env_->clock->Now();
  pull_interval_ = env_->resend;
  retry_at_ = 0;
  state_.reset();
  answer_ = Answer{};
  link_ = link;
  request_ = 0;
  if (link_ == 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(OpenSlot());
  SendPull();
  return absl::OkStatus();
}

void Partition::SendPull() {
  FrameHeader header;
  header.type = transport::FrameType::kPull;
  header.job = env_->job;
  header.rank = env_->rank;
  header.incarnation = env_->incarnation;
  header.tensor = shape_.tensor;
  header.partition = shape_.index;
  header.term = route_.term;
  header.round = pull_.round;
  header.elements = static_cast<uint32_t>(shape_.elements);
  if (pull_.admit) header.flags |= transport::kFlagAdmit;
  if (pull_.bare) header.flags |= transport::kFlagNoReply;
  header.reply_slot = slot_;
  header.aux64 = request_ = env_->next_request++;
  header.plan_version = env_->plan_version;
  heard_ = env_->clock->Now();
  env_->queue->SendSmall(link_, header, {});
}

// Opens the slot of the answer on link_, if the answer needs one.
absl::Status Partition::OpenSlot() {
  slot_ = 0;
  reassembler_.reset();
  const bool change = reply_codec_ != nullptr;
  const std::span<float> output = phase_ == Phase::kPushing ? push_.output : pull_.output;
  if (phase_ == Phase::kPushing && output.empty() && !change) return absl::OkStatus();
  if (phase_ == Phase::kPulling && pull_.bare) return absl::OkStatus();
  const size_t plain = shape_.elements * sizeof(float);
  const size_t most = change ? std::max<size_t>(plain, reply_codec_->MaxEncodedBytes(shape_.elements)) : plain;
  if (most <= env_->eager_bytes) return absl::OkStatus();
  if (!output.empty() && !change) {
    target_ = AsWritableBytes(output);
  } else {
    if (staging_ == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(staging_, env_->slab->Allocate(most));
    }
    target_ = {staging_.get(), most};
  }
  slot_ = env_->endpoint->OpenSlot(link_, target_);
  slot_link_ = link_;
  return absl::OkStatus();
}

void Partition::CloseSlot() {
  if (slot_ == 0) return;
  if (!env_->endpoint->CloseSlot(slot_link_, slot_)) {
    closing_slot_ = slot_;
    closing_link_ = slot_link_;
  }
  slot_ = 0;
}

void Partition::Route(LinkId link) {
  retry_at_ = 0;
  if (phase_ != Phase::kPushing && phase_ != Phase::kPulling) return;
  CloseSlot();
  link_ = link;
  // The old slot's memory is the new one's: it must be quiet before it is opened again.
  route_waits_ = link_ != 0 && closing_slot_ != 0;
  if (route_waits_) return;
  if (link_ != 0) {
    if (absl::Status status = OpenSlot(); !status.ok()) {
      RetryAfter(env_->resend);  // no memory for a staging buffer: try again later
      return;
    }
  }
  if (phase_ == Phase::kPushing) {
    env_->sender->Route(shape_.index, link_, route_.term, env_->incarnation, slot_, route_.stamp);
  } else if (link_ != 0) {
    SendPull();
  }
}

bool Partition::LinkDown(LinkId link) {
  const bool ours = link_ == link && link_ != 0;
  if (ours) {
    link_ = 0;
    route_waits_ = false;
  }
  if (slot_ != 0 && slot_link_ == link) slot_ = 0;
  if (closing_slot_ != 0 && closing_link_ == link) OnSlotClosed(closing_slot_);
  if (!ours) return false;
  return phase_ == Phase::kPushing || phase_ == Phase::kPulling;
}

bool Partition::PullIsSilent() const {
  return phase_ == Phase::kPulling && link_ != 0 && !route_waits_ && env_->clock->Now() - heard_ >= pull_interval_;
}

absl::StatusOr<std::optional<ConstBytes>> Partition::Collect(const FrameHeader& header, const Payload& payload) {
  if (payload.size() == header.total_bytes) return payload.bytes();
  if (header.slot == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a stripe without a slot: ", transport::DebugString(header)));
  }
  if (header.slot != slot_) return std::nullopt;
  if (header.total_bytes > target_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an answer larger than its slot of ", target_.size(), " bytes: ", transport::DebugString(header)));
  }
  // A stripe of another answer has overwritten what was there: only stripes that came after it count.
  if (const std::pair<uint32_t, uint64_t> answer{header.attempt, header.round};
      !reassembler_.has_value() || reassembling_ != answer) {
    reassembler_.emplace(header.total_bytes);
    reassembling_ = answer;
  }
  if (header.total_bytes != reassembler_->total()) {
    return absl::InvalidArgumentError(absl::StrCat("stripes of different messages in one slot: first of ",
                                                   reassembler_->total(), " bytes, then ",
                                                   transport::DebugString(header)));
  }
  SLUICE_RETURN_IF_ERROR(reassembler_->Add(header.stripe_offset, header.payload_bytes));
  std::byte* place = target_.data() + header.stripe_offset;
  if (payload.data() != place) std::memcpy(place, payload.data(), payload.size());  // not received into the slot
  if (!reassembler_->complete()) return std::nullopt;
  return ConstBytes(target_.first(header.total_bytes));
}

absl::Status Partition::OnReply(const FrameHeader& header, const Payload& payload) {
  if (phase_ != Phase::kPushing || header.round != push_.round) return absl::OkStatus();  // a repeat
  ConstBytes bytes;
  if (header.type == transport::FrameType::kReply) {
    SLUICE_ASSIGN_OR_RETURN(std::optional<ConstBytes> whole, Collect(header, payload));
    if (!whole.has_value()) return absl::OkStatus();
    bytes = *whole;
  }
  const TimeNs begin = env_->clock->Now();
  if (header.has(transport::kFlagChange)) {
    SLUICE_RETURN_IF_ERROR(TakeChange(header, bytes, push_.output));
  } else {
    SLUICE_RETURN_IF_ERROR(TakeValue(header, bytes, push_.output));
  }
  if (env_->observer != nullptr) {
    const TimeNs end = env_->clock->Now();
    env_->observer->OnStage(WorkerObserver::Stage::kWait, shape_.tensor, shape_.index, push_.round, since_, begin);
    env_->observer->OnStage(WorkerObserver::Stage::kDecode, shape_.tensor, shape_.index, push_.round, begin, end);
    env_->observer->OnResult(shape_.index, push_.round, header.flags, push_.output);
  }
  SettleResidual(header.flags);
  rate_bits_ = header.rate_bits;
  const bool has_output = !push_.output.empty() && (!bytes.empty() || reply_codec_ != nullptr);
  answer_ = {absl::OkStatus(), header.round, header.flags, header.aux, has_output};
  Drain();
  return absl::OkStatus();
}

absl::Status Partition::OnValue(const FrameHeader& header, const Payload& payload) {
  if (phase_ != Phase::kPulling || header.aux64 != request_ || request_ == 0) return absl::OkStatus();
  heard_ = env_->clock->Now();
  SLUICE_ASSIGN_OR_RETURN(std::optional<ConstBytes> whole, Collect(header, payload));
  if (!whole.has_value()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(TakeValue(header, *whole, pull_.output));
  rate_bits_ = header.rate_bits;
  answer_ = {absl::OkStatus(), header.round, header.flags, header.aux, !pull_.output.empty()};
  Drain();
  return absl::OkStatus();
}

absl::Status Partition::TakeValue(const FrameHeader& header, ConstBytes bytes, std::span<float> output) {
  const bool change = reply_codec_ != nullptr;
  if (bytes.empty()) {
    const bool nothing_applied = (header.flags & (transport::kFlagSkipped | transport::kFlagRejected)) != 0;
    if (output.empty() || header.type == transport::FrameType::kApplied || nothing_applied) {
      // The parameters are what they were.
      if (change && !output.empty()) std::copy(replica_.begin(), replica_.end(), output.begin());
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("an answer without its value: ", transport::DebugString(header)));
  }
  const std::span<float> into = change ? std::span<float>(replica_) : output;
  if (into.empty()) return absl::OkStatus();  // an admission that needs the round only
  const compression::Codec* decoder = compression::DecoderFor(header.codec);
  if (decoder == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("codec ", header.codec, " is unknown: ", transport::DebugString(header)));
  }
  const MutableBytes raw = AsWritableBytes(into);
  if (bytes.data() == raw.data() && decoder->lossless()) {
    if (bytes.size() == raw.size()) return absl::OkStatus();  // it has landed where it belongs
    return absl::InvalidArgumentError(absl::StrCat("a value of another size: ", transport::DebugString(header)));
  }
  if (decoder->id() == compression::CodecId::kNone && bytes.size() == raw.size() && bytes.data() != raw.data()) {
    StreamCopy(bytes, raw);   // by reference: the trainer reads it next, not this loop
  } else if (bytes.data() == raw.data()) {
    const std::vector<std::byte> copy(bytes.begin(), bytes.end());
    SLUICE_RETURN_IF_ERROR(decoder->Decode(copy, into));
  } else {
    SLUICE_RETURN_IF_ERROR(decoder->Decode(bytes, into));
  }
  if (change && !output.empty()) std::copy(replica_.begin(), replica_.end(), output.begin());
  return absl::OkStatus();
}

absl::Status Partition::TakeChange(const FrameHeader& header, ConstBytes bytes, std::span<float> output) {
  const compression::Codec* decoder = compression::DecoderFor(header.codec);
  if (decoder == nullptr || reply_codec_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a change that was not asked for: ", transport::DebugString(header)));
  }
  if (!bytes.empty()) {
    // Checked first: a bad one must not leave the replica half changed.
    SLUICE_RETURN_IF_ERROR(decoder->Validate(bytes, shape_.elements));
    SLUICE_RETURN_IF_ERROR(decoder->DecodeAdd(bytes, replica_));
  }
  if (!output.empty()) std::copy(replica_.begin(), replica_.end(), output.begin());
  return absl::OkStatus();
}

void Partition::SettleResidual(uint16_t flags) {
  if (!residual_pending_) return;
  residual_pending_ = false;
  if ((flags & transport::kFlagSkipped) != 0) return;  // the whole step counts as not done: the old residual stays
  codec_state_.swap(codec_state_next_);
  if (!keep_residual_) return;
  residual_.swap(residual_next_);
  residual_rate_ = residual_rate_next_;
  if ((flags & transport::kFlagRejected) != 0) {
    // Our own encoding of our own size: it cannot fail.
    residual_.resize(shape_.elements);
    (void)compression::DecoderFor(encoded_codec_)->DecodeAdd({encoded_.get(), encoded_bytes_}, residual_);
  }
}

void Partition::Drain() {
  const bool pushed = phase_ == Phase::kPushing;
  phase_ = Phase::kDraining;
  retry_at_ = 0;
  route_waits_ = false;
  CloseSlot();
  if (std::exchange(plain_, false)) env_->plain_traffic.End(env_->clock->Now(), shape_.elements * sizeof(float));
  if (pushed) env_->sender->Finish(shape_.index, push_.round);
  MaybeIdle();
}

void Partition::Abandon(absl::Status why) {
  if (phase_ != Phase::kPushing && phase_ != Phase::kPulling) return;
  const bool pushed = phase_ == Phase::kPushing;
  phase_ = Phase::kDraining;
  answer_.status = std::move(why);
  residual_pending_ = false;
  if (std::exchange(plain_, false)) env_->plain_traffic.End(env_->clock->Now(), 0);
  retry_at_ = 0;
  route_waits_ = false;
  CloseSlot();
  if (pushed) env_->sender->Abandon(shape_.index);
  MaybeIdle();
}

void Partition::OnPayloadReleased() {
  payload_held_ = false;
  MaybeIdle();
}

void Partition::OnSlotClosed(transport::SlotId slot) {
  if (slot != closing_slot_ || slot == 0) return;
  closing_slot_ = 0;
  if (route_waits_) {
    Route(link_);
  } else {
    MaybeIdle();
  }
}

void Partition::MaybeIdle() {
  if (phase_ != Phase::kDraining || payload_held_ || closing_slot_ != 0) return;
  phase_ = Phase::kIdle;
  link_ = 0;
  if (reply_codec_ == nullptr && pull_.admit) staging_.reset();  // an admission's only
  pull_ = Pull{};
  env_->on_idle(this);
}

std::string Partition::Progress() const {
  const double seconds = static_cast<double>(env_->clock->Now() - since_) / kSecond;
  switch (phase_) {
    case Phase::kPushing:
      if (link_ == 0) return absl::StrFormat("waits for a connection for %.1f s", seconds);
      if (state_ == transport::PushState::kReceived) {
        return absl::StrFormat("pushed %.1f s ago and received; the round waits for other workers (sluicectl status)",
                               seconds);
      }
      if (state_ == transport::PushState::kQueued) {
        return absl::StrFormat("announced %.1f s ago; it waits for its turn at the server, or for memory there (data.pool_bytes)", seconds);
      }
      return absl::StrFormat("sent %.1f s ago, no answer yet", seconds);
    case Phase::kPulling: return absl::StrFormat("asked %.1f s ago, no value yet", seconds);
    case Phase::kDraining:
      return absl::StrFormat("answered; the transport still holds its memory after %.1f s", seconds);
    case Phase::kIdle: break;
  }
  return "idle";
}

Partition::Saved Partition::Save() const {
  return {rate_bits_, std::bit_cast<uint32_t>(residual_rate_), residual_, replica_, codec_state_};
}

Partition::Kept Partition::TakeKept() {
  Kept kept = {std::move(residual_), std::move(codec_state_), residual_rate_};
  residual_ = {};
  residual_next_ = {};
  codec_state_ = {};
  return kept;
}

absl::Status Partition::Restore(const Saved& saved) {
  if ((!saved.residual.empty() && (!keep_residual_ || saved.residual.size() != shape_.elements)) ||
      saved.replica.size() != replica_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshot's partition ", shape_.index, " was kept under another codec or reply"));
  }
  rate_bits_ = saved.rate_bits;
  residual_rate_ = std::bit_cast<float>(saved.residual_rate_bits);
  residual_.assign(saved.residual.begin(), saved.residual.end());
  codec_state_.assign(saved.codec_state.begin(), saved.codec_state.end());
  std::copy(saved.replica.begin(), saved.replica.end(), replica_.begin());
  return absl::OkStatus();
}

}  // namespace sluice::worker
