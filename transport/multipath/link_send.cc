// The sending half: frames into packets, in order, over the lead.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/multipath/link.h"
#include "transport/multipath/link_limits.h"

namespace sluice::transport::multipath {

void MultipathLink::Send(const FrameHeader& header, ConstBytes payload, uint64_t cookie) {
  if (stopped_) {
    if (cookie != 0) owner_->Sent(cookie);
    return;
  }
  auto frame = std::make_shared<OutFrame>();
  frame->header = header;
  frame->header.flags &= static_cast<uint16_t>(~kFlagHash);
  frame->header.payload_hash = 0;
  frame->cookie = cookie;
  if (cookie == 0) {
    frame->copy.assign(payload.begin(), payload.end());
    frame->payload = frame->copy;
  } else {
    frame->payload = payload;
  }
  queued_bytes_ += kHeaderBytes + payload.size();
  queue_.push_back(std::move(frame));
}

void MultipathLink::Begin() {
  const uint64_t sequence = next_sequence_++;
  Post(kBasePath, paths_.at(kBasePath), sequence, builder_.Take(sequence));
}

void MultipathLink::FrameDone(OutFrame& frame) {
  open_.erase(frame.mark);
  if (frame.cookie != 0) owner_->Sent(std::exchange(frame.cookie, 0));
}

MultipathLink::Path* MultipathLink::Lead() {
  Path* lead = nullptr;
  for (auto& [id, path] : paths_) {
    if (path.up && path.info.packets && (lead == nullptr || path.info.tier > lead->info.tier)) lead = &path;
  }
  return lead;
}

bool MultipathLink::LeadHasRoom() {
  for (auto& [id, path] : paths_) {
    if (&path != Lead()) continue;
    const bool credit = !path.info.credits.has_value() || path.credits_granted != path.credits_used;
    return credit && owner_->Room(id) >= 1;
  }
  return false;
}

void MultipathLink::Post(PathId id, Path& path, uint64_t sequence, std::vector<std::byte> bytes) {
  if (path.info.credits.has_value()) ++path.credits_used;
  ++path.packets;
  path.packet_bytes += bytes.size();
  if (id != kBasePath) beside_out_ += bytes.size();
  owner_->SendPacket(id, bytes, sequence);
  // The base path keeps what it has taken, or the link is down.
  if (sequence != 0 && id != kBasePath) in_doubt_[sequence] = {std::move(bytes), id};
}

void MultipathLink::FlushPacket() {
  if (builder_.empty()) return;
  Path* lead = Lead();
  for (auto& [id, path] : paths_) {
    if (&path == lead) {
      const uint64_t sequence = next_sequence_++;
      Post(id, path, sequence, builder_.Take(sequence));
      return;
    }
  }
}

// Room for a record of so many bytes in a packet that can be sent; false: the lead is full.
bool MultipathLink::MakeRoom(size_t bytes) {
  if (!builder_.empty() && builder_.room() < bytes) FlushPacket();
  return !builder_.empty() || LeadHasRoom();
}

// The peer may send again what we have posted again. On the lead if it can, else on the base path, so that two sides
// without credits do not wait for each other.
void MultipathLink::SendCredits() {
  PacketBuilder builder;
  for (auto& [id, path] : paths_) {
    if (!path.up || !path.info.credits.has_value()) continue;
    const uint32_t posted = owner_->ReceivesPosted(id);
    if (!path.tell_credits && posted - path.credits_told < std::clamp<uint32_t>(path.info.receives / 4, 1, kCreditStep)) continue;
    builder.Credit(id, posted);
    path.credits_told = posted;
    path.tell_credits = false;
    if (builder.room() < 64) break;
  }
  if (builder.empty()) return;
  Path* lead = LeadHasRoom() ? Lead() : nullptr;
  for (auto& [id, path] : paths_) {
    if (lead != nullptr ? &path == lead : id == kBasePath) {
      Post(id, path, 0, builder.Take(0));
      return;
    }
  }
}

void MultipathLink::Resend() {
  while (!resend_.empty() && LeadHasRoom()) {
    Path* lead = Lead();
    for (auto& [id, path] : paths_) {
      if (&path != lead) continue;
      auto node = resend_.extract(resend_.begin());
      Post(id, path, node.key(), std::move(node.mapped()));
      break;
    }
  }
}

// Slots that opened and closed. False: the lead is full.
bool MultipathLink::Announce() {
  while (!control_.empty()) {
    Control& next = control_.front();
    if (!MakeRoom(kRecordHeaderBytes + 16 + 24 * next.targets.size())) return false;
    switch (next.kind) {
      case Control::kSlot: builder_.Slot(next.slot, next.bytes, next.targets); break;
      case Control::kClose: builder_.Close(next.slot, next.answer); break;
      case Control::kClosed:
        builder_.Closed(next.slot);
        --answers_owed_;
        break;
    }
    control_.pop_front();
  }
  return true;
}

// Payload in packets that the peer may have to hold back behind the oldest frame whose chunks are not all there.
uint64_t MultipathLink::HeldByPeer() const {
  return open_.empty() ? 0 : packet_bytes_ - open_.begin()->first;
}

// Chunks are announced one frame at a time; on streams, some ahead, so that a slow one can carry what is needed last.
size_t MultipathLink::Ahead() {
  const Path* lead = Lead();
  return lead != nullptr && lead->info.read_by_peer ? kMostAhead : 1;
}

bool MultipathLink::TakeFrames() {
  bool progress = false;
  while (!queue_.empty() && pending_bytes_ < Ahead()) {
    const std::shared_ptr<OutFrame> frame = queue_.front();
    if (!frame->begun) {
      if (HeldByPeer() > kMostHeldByPeer || !MakeRoom(kFrameRecordBytes + 8)) return progress;
      if (frame->header.slot != 0 && !frame->payload.empty()) {
        const auto slot = remote_slots_.find(frame->header.slot);
        if (slot != remote_slots_.end() && slot->second.closing) {
          queued_bytes_ -= kHeaderBytes + frame->payload.size();  // the peer would drop it
          queue_.pop_front();
          FrameDone(*frame);
          continue;
        }
        // (A slot that is not known here: closed long ago, or opened before the peer spoke in packets. It will know.)
        if (slot != remote_slots_.end()) {
          if (OpenChunks(frame)) {
            queue_.pop_front();
            progress = true;
            continue;
          }
          slot->second.sent += frame->payload.size();   // by packets: it counts all the same, see OpenChunks
        }
      }
    }
    if (!TakeFragments(*frame)) return progress;
    progress = true;
    ++frames_out_;
    payload_out_ += frame->payload.size();
    queue_.pop_front();
    FrameDone(*frame);
  }
  return progress;
}

// The frame's payload by packets. False: the lead is full; the frame goes on later.
bool MultipathLink::TakeFragments(OutFrame& frame) {
  if (!frame.begun) {
    frame.taken = builder_.Frame(frame.header, 0, 0, frame.payload);
    frame.begun = true;
    queued_bytes_ -= kHeaderBytes + frame.taken;
    packet_bytes_ += kHeaderBytes + frame.taken;
  }
  while (frame.taken < frame.payload.size()) {
    if (!MakeRoom(kRecordHeaderBytes + 8)) return false;
    const size_t taken = builder_.Fragment(frame.payload.subspan(frame.taken));
    frame.taken += taken;
    queued_bytes_ -= taken;
    packet_bytes_ += taken;
  }
  return true;
}

void MultipathLink::Pump(TimeNs now) {
  HandOver();
  if (stopped_) return;
  SendAll(now);
  CountStalls(now);
}

void MultipathLink::SendAll(TimeNs now) {
  SendLost();
  SendCredits();
  Resend();
  if (!resend_.empty()) return;  // their order is made good by their numbers, but nothing may overtake for ever
  if (!Announce()) return FlushPacket();
  for (;;) {
    const bool took = TakeFrames();
    FlushPacket();
    const bool issued = IssueChunks(now);
    if (stopped_ || (!took && !issued)) break;
  }
  SendAgain(now, /*idle=*/pending_.empty());
  if (!control_.empty() && Announce()) FlushPacket();
}

void MultipathLink::Finish() {
  const auto base = paths_.find(kBasePath);
  if (stopped_ || base == paths_.end()) return;
  for (auto& [sequence, packet] : in_doubt_) resend_.emplace(sequence, packet.bytes);
  in_doubt_.clear();
  for (auto& [sequence, bytes] : resend_) Post(kBasePath, base->second, sequence, std::move(bytes));
  resend_.clear();
  for (auto& [id, path] : paths_) path.info.packets = id == kBasePath;
  FlushPacket();
  // Frames behind one that still has chunks to come would be held back for ever.
  while (!queue_.empty() && open_.empty()) {
    OutFrame& frame = *queue_.front();
    if (!frame.begun && frame.header.slot != 0 && !frame.payload.empty()) break;
    if (!MakeRoom(kFrameRecordBytes + 8) || !TakeFragments(frame)) break;
    if (frame.cookie != 0) finished_.push_back(std::exchange(frame.cookie, 0));
    queue_.pop_front();
  }
  FlushPacket();
}

std::vector<uint64_t> MultipathLink::Stop() {
  std::vector<uint64_t> cookies = std::exchange(finished_, {});
  if (std::exchange(stopped_, true)) return cookies;
  const auto take = [&](OutFrame& frame) {
    if (frame.cookie != 0) cookies.push_back(std::exchange(frame.cookie, 0));
  };
  for (auto& [mark, frame] : open_) take(*frame);
  for (auto& frame : queue_) take(*frame);
  queue_.clear();
  pending_.clear();
  pending_bytes_ = 0;
  open_.clear();
  queued_bytes_ = 0;
  return cookies;
}

}  // namespace sluice::transport::multipath
