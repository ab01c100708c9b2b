#include "server/reply.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;

Replier::Replier(transport::Endpoint* endpoint, const Clock* clock, transport::LinkQueueOptions options, TimeNs settle)
    : endpoint_(endpoint),
      clock_(clock),
      settle_(settle),
      copy_up_to_(options.fusion_bytes > 0 ? std::min(options.fuse_below, options.fusion_bytes) : options.fuse_below),
      queue_(endpoint, clock, options, [this](uint64_t key) { Release(key); }) {}

Replier::~Replier() = default;

void Replier::Release(uint64_t key) {
  const auto it = lent_.find(key);
  if (it == lent_.end()) return;
  lent_.erase(it);
  ForgetSettled();
  released_.emplace_back(clock_->Now(), key);
  recent_.insert(key);
}

void Replier::ForgetSettled() {
  const TimeNs now = clock_->Now();
  while (!released_.empty() && now - released_.front().first >= settle_) {
    recent_.erase(released_.front().second);
    released_.pop_front();
  }
}

bool Replier::UnderWay(uint64_t key) {
  ForgetSettled();
  return InFlight(key) || recent_.contains(key);
}

FrameHeader AnswerTo(const FrameHeader& request, FrameType type) {
  FrameHeader answer;
  answer.type = type;
  answer.job = request.job;
  answer.rank = request.rank;
  answer.incarnation = request.incarnation;
  answer.tensor = request.tensor;
  answer.partition = request.partition;
  answer.term = request.term;
  answer.round = request.round;
  answer.attempt = request.attempt;
  answer.aux64 = request.aux64;
  answer.plan_version = request.plan_version;
  return answer;
}

void Replier::Send(LinkId link, const FrameHeader& answer) { queue_.SendSmall(link, answer, {}); }

void Replier::SendState(LinkId link, const FrameHeader& request, transport::PushState state) {
  FrameHeader answer = AnswerTo(request, FrameType::kState);
  answer.aux = static_cast<uint32_t>(state);
  queue_.SendSmall(link, answer, {});
}

void Replier::SendRetry(LinkId link, const FrameHeader& request, transport::RetryReason reason, uint32_t term) {
  FrameHeader answer = AnswerTo(request, FrameType::kRetry);
  answer.aux = static_cast<uint32_t>(reason);
  answer.term = term;
  queue_.SendSmall(link, answer, {});
}

void Replier::SendError(LinkId link, const FrameHeader& request, const absl::Status& status) {
  FrameHeader answer = AnswerTo(request, FrameType::kError);
  answer.status = static_cast<uint16_t>(status.code());
  const std::string text(status.message());
  answer.payload_bytes = static_cast<uint32_t>(text.size());
  answer.total_bytes = text.size();
  queue_.SendSmall(link, answer, std::as_bytes(std::span(text)));
}

uint64_t Replier::SendPayload(LinkId link, FrameHeader header, ConstBytes payload, std::shared_ptr<const void> owner,
                              int32_t priority) {
  header.total_bytes = payload.size();
  header.stripe_offset = 0;
  const bool by_reference = payload.size() > copy_up_to_ && endpoint_->ByReference(link, payload);
  if (payload.size() <= copy_up_to_) {
    header.slot = 0;   // batches carry no slot: it is matched by its key
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    Count(header, payload.size());
    queue_.SendSmall(link, header, payload);
    return 0;
  }
  if (!by_reference && header.slot == 0 && payload.size() > endpoint_->limits().max_slotless_bytes) {
    SendError(link, header,
              absl::FailedPreconditionError(
                  absl::StrCat("the answer for partition ", header.partition, " has ", payload.size(),
                               " bytes and needs a reply slot, and the request named none")));
    return 0;
  }
  if (by_reference) header.slot = 0;   // the receiver reads it where it lies: each of many workers copies for itself
  const uint64_t key = next_key_++;
  lent_.emplace(key, std::move(owner));
  Count(header, payload.size());
  queue_.SendLarge(link, header, payload, priority, key, by_reference);
  return key;
}

void Replier::Count(const FrameHeader& header, size_t bytes) {
  payload_out_ += bytes;
  if (on_payload_) on_payload_(header, bytes);
}

void Replier::Cancel(uint64_t key) {
  if (InFlight(key)) queue_.Cancel(key);
}

}  // namespace sluice::server
