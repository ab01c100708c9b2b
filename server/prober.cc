#include "server/prober.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::server {
namespace {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;

constexpr uint64_t kCookie = 1;          // of all payloads: they are the same memory
constexpr size_t kMaxErrorBytes = 500;   // of a peer's words

std::string Seconds(TimeNs time) { return absl::StrFormat("%.1f s", static_cast<double>(time) / kSecond); }

}  // namespace

Prober::Prober(transport::Endpoint* endpoint, const Clock* clock, transport::Hello self,
               std::function<void(const proto::ProbeResult&)> done)
    : endpoint_(endpoint), clock_(clock), self_(std::move(self)), done_(std::move(done)) {}

void Prober::OnProbe(const proto::Probe& probe) {
  if (probe.request() <= newest_) return;
  newest_ = probe.request();
  while (!turns_.empty()) End(absl::StrCat("the scheduler has sent request ", probe.request(), " before it had ended"));
  for (const proto::ProbePeer& peer : probe.peers()) {
    if (turns_.size() >= kMaxProbePeers) break;
    const TimeNs limit = probe.timeout_ms() > 0 ? probe.timeout_ms() * kMillisecond : kDefaultProbeTime;
    turns_.push_back({peer, probe.request(), std::clamp<uint64_t>(probe.bytes(), 1, kMaxProbeBytes), std::min(limit, kMaxProbeTime)});
  }
  Next();
}

void Prober::Next() {
  while (!turns_.empty() && state_ == State::kNone) {
    const Turn& turn = turns_.front();
    ++attempt_;
    began_ = clock_->Now();
    slot_ = slot_bytes_ = sent_ = arrived_ = 0;
    rtt_ = first_sent_ = 0;
    const auto& addresses = turn.peer.addresses();
    const auto address = std::ranges::find_if(addresses, [](const proto::Address& each) { return !each.host().empty(); });
    if (zeros_ == nullptr) {
      if (auto memory = endpoint_->Allocate(kProbeStripe); memory.ok()) zeros_ = *std::move(memory);
    }
    if (address == addresses.end() || zeros_ == nullptr) {
      state_ = State::kConnecting;
      End(address == addresses.end() ? "the scheduler has named no address of it" : "there is no memory for what to send");
      continue;
    }
    const transport::Address to{address->host(), address->port(), "", ""};
    address_ = to.ToString();
    state_ = State::kConnecting;
    link_ = endpoint_->Connect(to, self_);
    links_.insert(link_);
  }
}

void Prober::OnTick() {
  if (turns_.empty() || clock_->Now() - began_ < turns_.front().limit) return;
  End(absl::StrCat(WhatItWaitsFor(), " for ", Seconds(clock_->Now() - began_), ", the time limit; check that it runs, and the network between"));
  Next();
}

std::string Prober::WhatItWaitsFor() const {
  switch (state_) {
    case State::kNone:
    case State::kConnecting: return "no connection";
    case State::kAsked: return "connected, but no answer to the announcement of a probe";
    case State::kEmpty: return "connected, but no answer to an empty message";
    case State::kSending: return absl::StrCat(arrived_, " of ", turns_.front().bytes, " bytes have arrived");
  }
  return "";
}

void Prober::End(const std::string& error) {
  const Turn turn = std::move(turns_.front());
  turns_.pop_front();
  const TimeNs now = clock_->Now();
  proto::ProbeResult result;
  result.set_request(turn.request);
  result.set_peer(turn.peer.peer());
  result.set_bytes(arrived_);
  if (first_sent_ > 0) result.set_elapsed_us(static_cast<uint64_t>(std::max<TimeNs>(1, (now - first_sent_) / kMicrosecond)));
  result.set_rtt_us(static_cast<uint64_t>(rtt_ / kMicrosecond));
  if (!error.empty()) result.set_error(absl::StrCat("server ", turn.peer.peer(), " at ", address_.empty() ? "?" : address_, ": ", error));
  if (link_ != 0) endpoint_->Close(link_, absl::CancelledError("the probe has ended"));
  link_ = 0;
  address_.clear();
  state_ = State::kNone;
  done_(result);
}

void Prober::OnUp(LinkId link) {
  if (link != link_ || state_ != State::kConnecting) return;
  state_ = State::kAsked;
  FrameHeader header = Header(FrameType::kAnnounce);
  header.total_bytes = turns_.front().bytes;
  endpoint_->Send(link_, header, {}, 0);
}

void Prober::OnDown(LinkId link, const absl::Status& reason) {
  links_.erase(link);
  if (link != link_) return;
  link_ = 0;
  End(absl::StrCat(std::string(reason.message()).substr(0, kMaxErrorBytes), " (", WhatItWaitsFor(), ", after ", Seconds(clock_->Now() - began_), ")"));
  Next();
}

void Prober::OnFrame(LinkId link, const FrameHeader& header, ConstBytes payload) {
  if (link != link_ || header.attempt != attempt_) return;
  std::string error;
  switch (header.type) {
    case FrameType::kGrant:
      if (state_ != State::kAsked) return;
      if (header.slot == 0 || header.aux64 == 0) {
        error = "it granted no memory";
        break;
      }
      slot_ = header.slot;
      slot_bytes_ = std::min<uint64_t>(header.aux64, kProbeWindow);
      state_ = State::kEmpty;
      asked_ = clock_->Now();
      Push(0);
      return;
    case FrameType::kState:
      if (state_ == State::kEmpty && header.aux64 == 0) {
        rtt_ = std::max<TimeNs>(0, clock_->Now() - asked_);
        state_ = State::kSending;
        first_sent_ = clock_->Now();
      } else if (state_ != State::kSending || header.aux64 < arrived_) {
        return;   // late
      } else if (header.aux64 > sent_) {
        error = absl::StrCat("it acknowledged ", header.aux64, " bytes, and ", sent_, " were sent");
        break;
      } else {
        arrived_ = header.aux64;
      }
      if (arrived_ < turns_.front().bytes) return Pump();
      break;
    case FrameType::kRetry:
      error = "it takes part in another probe now; try again later";
      break;
    case FrameType::kError:
      error = absl::StrCat("refused: ", std::string(reinterpret_cast<const char*>(payload.data()), std::min(payload.size(), kMaxErrorBytes)));
      break;
    default: return;
  }
  End(error);
  Next();
}

void Prober::OnWritable(LinkId link) {
  if (link == link_ && state_ == State::kSending) Pump();
}

void Prober::Pump() {
  while (sent_ < turns_.front().bytes && endpoint_->Writable(link_)) {
    // A stripe lies inside of one filling of the slot, and the slot is never written to where bytes are still under way.
    const uint64_t bytes = std::min({uint64_t{kProbeStripe}, turns_.front().bytes - sent_, slot_bytes_ - sent_ % slot_bytes_});
    if (sent_ + bytes - arrived_ > slot_bytes_) return;
    Push(bytes);
  }
}

void Prober::Push(uint64_t bytes) {
  FrameHeader header = Header(FrameType::kPush);
  header.round = sent_ / slot_bytes_;
  header.total_bytes = slot_bytes_;
  header.stripe_offset = sent_ % slot_bytes_;
  header.payload_bytes = static_cast<uint32_t>(bytes);
  header.slot = bytes > 0 ? slot_ : 0;
  sent_ += bytes;
  endpoint_->Send(link_, header, {zeros_.get(), bytes}, bytes > 0 ? kCookie : 0);
}

FrameHeader Prober::Header(FrameType type) const {
  FrameHeader header;
  header.type = type;
  header.incarnation = self_.incarnation;
  header.attempt = attempt_;
  return header;
}

}  // namespace sluice::server
