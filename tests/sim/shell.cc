#include "tests/sim/shell.h"

#include <utility>

namespace sluice::sim {
namespace {

constexpr uint32_t kTurnMicros = 15;  // at most, from the first event to the turn's end

}  // namespace

void Turn::Touch() {
  if (std::exchange(pending_, true)) return;
  const TimeNs delay = world_->network->random().Below(kTurnMicros) * kMicrosecond;
  world_->network->Schedule(delay, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    pending_ = false;
    end_();
  });
}

void Turn::EndAt(TimeNs time) {
  if (time == INT64_MAX) return;
  world_->network->Schedule(time - world_->clock->Now(), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Touch();
  });
}

void Turn::Every(TimeNs period, std::function<void()> tick) {
  world_->network->Schedule(period, [this, alive = std::weak_ptr<bool>(alive_), period, tick = std::move(tick)] {
    if (alive.expired()) return;
    tick();
    if (alive.expired()) return;
    Touch();
    Every(period, tick);
  });
}

void Tap::OnUp(transport::LinkId link, const transport::Hello& peer) {
  core_->OnUp(link, peer);
  turn_->Touch();
}
void Tap::OnDown(transport::LinkId link, const absl::Status& reason) {
  core_->OnDown(link, reason);
  turn_->Touch();
}
void Tap::OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) {
  core_->OnFrame(link, header, std::move(payload));
  turn_->Touch();
}
void Tap::OnSent(transport::LinkId link, uint64_t cookie) {
  core_->OnSent(link, cookie);
  turn_->Touch();
}
void Tap::OnSlotClosed(transport::LinkId link, transport::SlotId slot) {
  core_->OnSlotClosed(link, slot);
  turn_->Touch();
}
void Tap::OnWritable(transport::LinkId link) {
  core_->OnWritable(link);
  turn_->Touch();
}

void LyingCopies::OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) {
  if (header.type == transport::FrameType::kBatch) {
    (void)transport::ForEachInBatch(header, payload.bytes(), [&](const transport::FrameHeader& inner, ConstBytes bytes) {
      OnFrame(link, inner, payload.Slice(bytes));
    });
    return;
  }
  const bool push = header.type == transport::FrameType::kAnnounce || header.type == transport::FrameType::kPush;
  if (!push || !header.has(transport::kFlagReplica)) {
    next_->OnFrame(link, header, std::move(payload));
    return;
  }
  transport::FrameHeader answer = header;
  answer.type = transport::FrameType::kApplied;
  answer.flags = 0;
  answer.payload_bytes = 0;
  answer.total_bytes = answer.stripe_offset = answer.slot = 0;
  endpoint_->Send(link, answer, {}, 0);
}

control::MemberCore::Output MemberStream::output() {
  return {.send = [this](const proto::MemberMessage& message) {
            world_->network->SendMessage(end_, message.SerializeAsString());
          },
          .reconnect = [this](TimeNs delay) { Open(delay); }};
}

void MemberStream::Open(TimeNs delay) {
  if (const transport::ChannelEnd old = std::exchange(end_, 0); old != 0)
    world_->network->CloseChannel(old, absl::CancelledError("given up"));
  const uint64_t opening = ++opening_;
  world_->network->Schedule(delay, [this, alive = std::weak_ptr<bool>(alive_), opening] {
    if (!alive.expired() && opening == opening_) end_ = world_->network->Dial(name_, kSchedulerName, this);
  });
}

void MemberStream::OnChannelUp(transport::ChannelEnd end, const std::string& peer) {
  (void)peer;
  if (end != end_) return;
  member_->OnStreamUp();
  touched_();
}

void MemberStream::OnChannelDown(transport::ChannelEnd end, const absl::Status& status) {
  if (end != end_) return;
  end_ = 0;
  member_->OnStreamDown(status);
  touched_();
}

void MemberStream::OnChannelMessage(transport::ChannelEnd end, std::string message) {
  if (end != end_) return;
  proto::SchedulerMessage parsed;
  if (!parsed.ParseFromString(message)) {
    world_->fail(absl::InternalError("the scheduler sent what is no message"));
    return;
  }
  member_->OnMessage(parsed);
  touched_();
}

}  // namespace sluice::sim
