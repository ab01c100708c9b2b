// A small, obvious server for tests of the worker: one lane, BSP, sums in order of rank, plain SGD. It speaks the real
// protocol (StreamReceiver, LinkQueue), so links, grants and repeats are as they will be; everything behind is a loop.
#pragma once

#include <bit>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compression/codec.h"
#include "transport/stream/link_queue.h"
#include "transport/stream/stream_receiver.h"
#include "transport/transport.h"

namespace sluice::worker {

class FakeServer final : public transport::Handler, public transport::StreamReceiver::Owner {
 public:
  struct Options {
    uint32_t ranks = 1;
    bool optimizer = true;     // x -= rate * mean; else x = mean
    std::string change_codec;  // replies are changes in this codec; empty = values
    std::function<float(uint64_t)> rate = [](uint64_t) { return 0.5f; };  // by round
  };
  // Makes itself the endpoint's handler. Both outlive it.
  FakeServer(transport::Endpoint* endpoint, const Clock* clock, Options options)
      : options_(std::move(options)),
        endpoint_(endpoint),
        queue_(endpoint, clock, {}, [](uint64_t) {}),
        receiver_(endpoint, &queue_, this, {}) {
    endpoint_->SetHandler(this);
    if (!options_.change_codec.empty()) codec_ = *compression::MakeCodec(options_.change_codec);
  }

  struct Part {
    uint32_t tensor = 0, term = 1;
    size_t elements = 0;
    uint64_t open = 0;
    std::vector<float> x, y;
    std::map<uint32_t, std::vector<float>> contributions;  // decoded
    std::set<uint32_t> wants_skip, assigned;
    std::map<uint32_t, std::pair<transport::LinkId, transport::FrameHeader>> seats;  // of the open or the last round
    std::vector<std::byte> reply;
    uint16_t reply_codec = 0, reply_flags = 0;
    uint32_t contributors = 0;
  };
  void AddPartition(uint32_t partition, uint32_t tensor, size_t elements) {
    if (parts.contains(partition)) return;
    Part& part = parts[partition];
    part.tensor = tensor;
    part.elements = elements;
    part.x.assign(elements, 0);
    part.y.assign(elements, 0);
  }

  // Faults that tests ask for.
  std::set<std::pair<uint32_t, uint64_t>> reject;  // (rank, round): the push is dropped, and the worker told so
  int retry_busy = 0;                              // so many pushes are answered RETRY(BUSY)
  absl::Status refuse;                             // not OK: every push gets this as ERROR
  bool silent = false;                             // nothing is answered at all
  uint32_t min_incarnation = 0;
  std::map<uint32_t, Part> parts;
  uint64_t pushes_seen = 0, pulls_seen = 0;

  void TurnEnd() {
    receiver_.Pump();
    queue_.Flush();
  }

  // transport::Handler
  void OnUp(transport::LinkId link, const transport::Hello& peer) override {
    (void)peer;
    queue_.LinkUp(link);
  }
  void OnDown(transport::LinkId link, const absl::Status&) override {
    receiver_.LinkDown(link);
    queue_.LinkDown(link);
    for (auto& [index, part] : parts)
      std::erase_if(part.seats, [&](const auto& seat) { return seat.second.first == link; });
  }
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override {
    if (silent) return;
    if (header.type == transport::FrameType::kBatch) {
      (void)transport::ForEachInBatch(
          header, payload.bytes(),
          [&](const transport::FrameHeader& inner, ConstBytes bytes) { Dispatch(link, inner, payload.Slice(bytes)); });
      return;
    }
    Dispatch(link, header, std::move(payload));
  }
  void OnSent(transport::LinkId link, uint64_t cookie) override { queue_.OnSent(link, cookie); }
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot) override { receiver_.OnSlotClosed(link, slot); }
  void OnWritable(transport::LinkId link) override { queue_.OnWritable(link); }

  // transport::StreamReceiver::Owner
  transport::StreamReceiver::Admission Admit(transport::LinkId link, const transport::FrameHeader& h) override {
    using enum transport::StreamReceiver::Admission;
    ++pushes_seen;
    Part& part = parts.at(h.partition);
    if (!refuse.ok()) return Error(link, h, refuse), kAnswered;
    if (retry_busy > 0) return --retry_busy, Retry(link, h, transport::RetryReason::kBusy, part.term), kAnswered;
    if (h.term != part.term) {
      return Retry(link, h, h.term < part.term ? transport::RetryReason::kTerm : transport::RetryReason::kPlan,
                   part.term),
             kAnswered;
    }
    if (h.round > part.open) return Retry(link, h, transport::RetryReason::kBusy, part.term), kAnswered;
    if (h.round < part.open || part.contributions.contains(h.rank)) {
      part.seats[h.rank] = {link, h};
      if (h.round < part.open) {
        Answer(h.partition, h.rank);
      } else {
        transport::FrameHeader state = AnswerTo(h, transport::FrameType::kState);
        state.aux = static_cast<uint32_t>(transport::PushState::kReceived);
        queue_.SendSmall(link, state, {});
      }
      return kAnswered;
    }
    return kAccept;
  }
  bool Joint(const transport::FrameHeader&) const override { return true; }
  bool Urgent(const transport::FrameHeader&) const override { return true; }
  absl::Status OnContribution(transport::LinkId link, const transport::FrameHeader& h,
                              transport::Payload payload) override {
    if (Admit(link, h) == transport::StreamReceiver::Admission::kAnswered) return absl::OkStatus();
    Part& part = parts.at(h.partition);
    part.seats[h.rank] = {link, h};
    std::vector<float>& values = part.contributions[h.rank];
    if (h.has(transport::kFlagNonfinite)) {
      part.wants_skip.insert(h.rank);
    } else if (!h.has(transport::kFlagEmpty)) {
      values.resize(part.elements);
      if (absl::Status status = compression::DecoderFor(h.codec)->Decode(payload.bytes(), values); !status.ok())
        return status;
      if (h.has(transport::kFlagAssign)) part.assigned.insert(h.rank);
    }
    if (part.contributions.size() == options_.ranks) Close(h.partition);
    return absl::OkStatus();
  }

 private:
  static transport::FrameHeader AnswerTo(const transport::FrameHeader& h, transport::FrameType type) {
    transport::FrameHeader out;
    out.type = type;
    out.job = h.job;
    out.rank = h.rank;
    out.incarnation = h.incarnation;
    out.tensor = h.tensor;
    out.partition = h.partition;
    out.term = h.term;
    out.round = h.round;
    out.attempt = h.attempt;
    out.aux64 = h.aux64;
    out.elements = h.elements;
    return out;
  }
  void Retry(transport::LinkId link, const transport::FrameHeader& h, transport::RetryReason reason, uint32_t term) {
    transport::FrameHeader out = AnswerTo(h, transport::FrameType::kRetry);
    out.aux = static_cast<uint32_t>(reason);
    out.term = term;
    queue_.SendSmall(link, out, {});
  }
  void Error(transport::LinkId link, const transport::FrameHeader& h, const absl::Status& status) {
    transport::FrameHeader out = AnswerTo(h, transport::FrameType::kError);
    const std::string text(status.message());
    out.status = static_cast<uint16_t>(status.code());
    out.payload_bytes = static_cast<uint32_t>(text.size());
    out.total_bytes = text.size();
    queue_.SendSmall(link, out, std::as_bytes(std::span(text)));
  }
  void Dispatch(transport::LinkId link, const transport::FrameHeader& h, transport::Payload payload) {
    if (h.incarnation < min_incarnation) return Error(link, h, absl::AbortedError("rank was taken over"));
    if (h.type == transport::FrameType::kPull) return OnPull(link, h);
    receiver_.OnFrame(link, h, std::move(payload));
  }
  void OnPull(transport::LinkId link, const transport::FrameHeader& h) {
    ++pulls_seen;
    Part& part = parts.at(h.partition);
    if (!h.has(transport::kFlagAdmit) && part.open < h.round) return;  // it asks again
    transport::FrameHeader out = AnswerTo(h, transport::FrameType::kValue);
    out.round = part.open;
    if (part.contributions.contains(h.rank)) out.flags |= transport::kFlagContributed;
    out.rate_bits = Rate(part.open);
    Send(link, out, AsBytes(codec_ != nullptr ? part.y : part.x), h.reply_slot);
  }
  uint32_t Rate(uint64_t round) const { return options_.optimizer ? std::bit_cast<uint32_t>(options_.rate(round)) : 0; }

  void Close(uint32_t index) {
    Part& part = parts.at(index);
    std::vector<float> sum(part.elements, 0.0f);
    part.contributors = 0;
    for (const auto& [rank, values] : part.contributions) {
      if (values.empty() || reject.contains({rank, part.open})) continue;
      ++part.contributors;
      for (size_t i = 0; i < part.elements; ++i) sum[i] += values[i];
    }
    part.reply_flags = 0;
    part.reply_codec = 0;
    if (!part.assigned.empty()) {
      part.x = part.y = part.contributions.at(*part.assigned.begin());
    } else if (!part.wants_skip.empty()) {
      part.reply_flags = transport::kFlagSkipped;
    } else {
      for (size_t i = 0; i < part.elements; ++i) {
        const float mean = sum[i] / static_cast<float>(options_.ranks);
        part.x[i] = options_.optimizer ? part.x[i] - options_.rate(part.open) * mean : mean;
      }
    }
    if (codec_ != nullptr && part.assigned.empty() && part.wants_skip.empty()) {
      std::vector<float> change(part.elements);
      for (size_t i = 0; i < part.elements; ++i) change[i] = part.x[i] - part.y[i];
      part.reply.resize(codec_->MaxEncodedBytes(part.elements));
      compression::EncodeInput input;
      input.gradient = change;
      part.reply.resize(*codec_->Encode(input, part.reply));
      (void)codec_->DecodeAdd(part.reply, part.y);
      part.reply_codec = static_cast<uint16_t>(codec_->id());
      part.reply_flags |= transport::kFlagChange;
    } else if (codec_ != nullptr && part.assigned.empty()) {
      part.reply.clear();
    } else {
      const ConstBytes bytes = AsBytes(part.x);
      part.reply.assign(bytes.begin(), bytes.end());
    }
    part.contributions.clear();
    part.wants_skip.clear();
    part.assigned.clear();
    ++part.open;
    for (uint32_t rank = 0; rank < options_.ranks; ++rank) Answer(index, rank);
  }
  void Answer(uint32_t index, uint32_t rank) {
    Part& part = parts.at(index);
    auto seat = part.seats.find(rank);
    if (seat == part.seats.end()) return;
    const auto& [link, h] = seat->second;
    const bool value = !h.has(transport::kFlagNoReply) && !part.reply.empty();
    transport::FrameHeader out = AnswerTo(h, value ? transport::FrameType::kReply : transport::FrameType::kApplied);
    out.flags = part.reply_flags;
    if (reject.contains({rank, h.round})) out.flags |= transport::kFlagRejected;
    out.aux = part.contributors;
    out.rate_bits = Rate(part.open);
    out.codec = value ? part.reply_codec : 0;
    if (value) {
      Send(link, out, part.reply, h.reply_slot);
    } else {
      queue_.SendSmall(link, out, {});
    }
  }
  void Send(transport::LinkId link, transport::FrameHeader out, ConstBytes payload, transport::SlotId slot) {
    out.total_bytes = payload.size();
    out.payload_bytes = static_cast<uint32_t>(payload.size());
    if (slot == 0) return queue_.SendSmall(link, out, payload);
    // Two stripes, copied: what is lent may not change, and here nothing is kept track of.
    out.slot = slot;
    const size_t half = payload.size() / 2;
    for (const auto& [offset, size] : {std::pair{size_t{0}, half}, std::pair{half, payload.size() - half}}) {
      out.stripe_offset = offset;
      out.payload_bytes = static_cast<uint32_t>(size);
      endpoint_->Send(link, out, payload.subspan(offset, size), 0);
    }
  }

  const Options options_;
  std::unique_ptr<compression::Codec> codec_;
  transport::Endpoint* const endpoint_;
  transport::LinkQueue queue_;
  transport::StreamReceiver receiver_;
};

}  // namespace sluice::worker
