#include "server/probe_sink.h"

#include <algorithm>

#include "server/prober.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::SlotId;

bool ProbeSink::OnFrame(LinkId link, const FrameHeader& header) {
  if (header.type == FrameType::kAnnounce) {
    Grant(link, header);
    return true;
  }
  if (link != link_ || closing_ || header.attempt != attempt_) return false;
  heard_ = clock_->Now();
  arrived_ += header.payload_bytes;
  FrameHeader state;
  state.type = FrameType::kState;
  state.aux = static_cast<uint32_t>(transport::PushState::kReceived);
  state.aux64 = arrived_;
  Answer(link, header, state);
  return true;
}

void ProbeSink::Grant(LinkId link, const FrameHeader& announce) {
  FrameHeader answer;
  if (link_ == 0) {
    if (auto memory = endpoint_->Allocate(kProbeWindow); memory.ok()) {
      memory_ = *std::move(memory);
      slot_ = endpoint_->OpenSlot(link, {memory_.get(), kProbeWindow});
      if (slot_ != 0) link_ = link;
      else memory_.reset();
    }
  }
  if (link_ == link && !closing_) {
    attempt_ = announce.attempt;
    arrived_ = 0;
    heard_ = clock_->Now();
    answer.type = FrameType::kGrant;
    answer.slot = slot_;
    answer.aux64 = std::clamp<uint64_t>(announce.total_bytes, 1, kProbeWindow);
  } else {
    answer.type = FrameType::kRetry;
    answer.aux = static_cast<uint32_t>(transport::RetryReason::kBusy);
  }
  Answer(link, announce, answer);
}

void ProbeSink::Answer(LinkId link, const FrameHeader& to, FrameHeader answer) {
  // A peer that does not read has no answer to come: it may not make the link's queue grow.
  if (!endpoint_->Writable(link)) return;
  answer.attempt = to.attempt;
  endpoint_->Send(link, answer, {}, 0);
}

void ProbeSink::OnDown(LinkId link) {
  if (link == link_) Release();   // its slots are closed
}

void ProbeSink::OnSlotClosed(LinkId link, SlotId slot) {
  if (link == link_ && slot == slot_ && closing_) Release();
}

void ProbeSink::OnTick() {
  if (link_ == 0 || closing_ || clock_->Now() - heard_ < kProbeSilence) return;
  if (endpoint_->CloseSlot(link_, slot_)) Release();
  else closing_ = true;
}

void ProbeSink::Release() {
  link_ = 0;
  slot_ = 0;
  closing_ = false;
  memory_.reset();
}

}  // namespace sluice::server
