// The sending half: packets, chunks, and what is done about a path that was lost.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/multipath/link.h"
#include "transport/multipath/link_limits.h"

namespace sluice::transport::multipath {
namespace {

// A path that was not used for so long gets a chunk, whatever its goodput was: it may be better by now.
constexpr TimeNs kProbeEvery = 250 * kMillisecond;
constexpr size_t kSmallPayload = 4096;
constexpr double kWindowSeconds = 0.005;   // of goodput that may be in flight on a path
constexpr size_t kLeastChunks = 4, kMostChunks = 32;
static_assert(kMostChunks < kRecentTags);

}  // namespace

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

void MultipathLink::PathUp(PathId id, const PathInfo& info, TimeNs now) {
  Path& path = paths_[id];
  path.info = info;
  path.credits_granted = info.credits.value_or(0);
  path.credits_told = info.receives;
  path.goodput.Began(false, now);
  if (auto early = early_recent_.extract(id)) path.recent = std::move(early.mapped());
}

void MultipathLink::Begin() {
  const uint64_t sequence = next_sequence_++;
  Post(kBasePath, paths_.at(kBasePath), sequence, builder_.Take(sequence));
}

void MultipathLink::PathLost(PathId id, TimeNs now) {
  const auto it = paths_.find(id);
  if (it == paths_.end() || !it->second.up) return;
  Path& path = it->second;
  path.up = false;
  path.lost_at = now;
  ++paths_lost_;
  // Packets are known by their numbers, so they may go out again before the peer knows.
  for (auto packet = in_doubt_.begin(); packet != in_doubt_.end();) {
    if (packet->second.path != id) {
      ++packet;
      continue;
    }
    resend_.emplace(packet->first, std::move(packet->second.bytes));
    packet = in_doubt_.erase(packet);
  }
  // It may have carried the last report of credits for another path.
  for (auto& [other, alive] : paths_) alive.tell_credits = true;
  lost_to_tell_.push_back(id);
  Settle(id, path);
}

// Both ends are destroyed: what is in doubt is done, or goes out again.
void MultipathLink::Settle(PathId id, Path& path) {
  if (path.up || !path.peer_tags.has_value()) return;
  std::vector<OutChunk> again;
  for (auto& [tag, chunk] : path.flying) {
    Unfly(chunk.frame->header.slot);
    if (std::find(path.peer_tags->begin(), path.peer_tags->end(), tag) != path.peer_tags->end()) {
      ChunkDone(chunk);
      continue;
    }
    const auto slot = remote_slots_.find(chunk.frame->header.slot);
    if (slot == remote_slots_.end() || slot->second.closing) {
      ChunkDone(chunk);  // the peer has closed the slot and waits for nothing
    } else {
      again.push_back(std::move(chunk));
    }
  }
  for (auto chunk = again.rbegin(); chunk != again.rend(); ++chunk) {
    queued_bytes_ += chunk->bytes;
    ++resent_chunks_;
    pending_.push_front(std::move(*chunk));
  }
  // The peer is told by SendLost, which needs the tags: the path goes once that has happened.
  path.flying.clear();
  if (std::find(lost_to_tell_.begin(), lost_to_tell_.end(), id) == lost_to_tell_.end()) paths_.erase(id);
}

void MultipathLink::Done(PathId id, uint64_t token, TimeNs now) {
  const auto it = paths_.find(id);
  if (it == paths_.end() || token == 0) return;
  Path& path = it->second;
  if ((token & kChunkToken) == 0) {
    in_doubt_.erase(token);
    return;
  }
  const auto flying = path.flying.find(static_cast<uint32_t>(token));
  if (flying == path.flying.end()) return;
  const OutChunk chunk = std::move(flying->second);
  path.flying.erase(flying);
  path.flying_bytes -= chunk.bytes;
  path.goodput.Finished(chunk.bytes, !path.flying.empty(), now);
  Unfly(chunk.frame->header.slot);
  ChunkDone(chunk);
}

// One chunk fewer is on its way to this slot.
void MultipathLink::Unfly(SlotId id) {
  const auto slot = remote_slots_.find(id);
  if (slot == remote_slots_.end()) return;
  if (--slot->second.flying == 0 && slot->second.closing) {
    if (slot->second.answer) control_.push_back({.kind = Control::kClosed, .slot = id, .targets = {}});
    remote_slots_.erase(slot);
  }
}

void MultipathLink::ChunkDone(const OutChunk& chunk) {
  if (--chunk.frame->chunks_left == 0) FrameDone(*chunk.frame);
}

void MultipathLink::FrameDone(OutFrame& frame) {
  open_.erase(frame.mark);
  if (frame.cookie != 0) owner_->Sent(std::exchange(frame.cookie, 0));
}

// ---- packets ----

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

void MultipathLink::SendLost() {
  if (lost_to_tell_.empty()) return;
  const auto base = paths_.find(kBasePath);
  if (base == paths_.end()) return;
  for (const PathId id : std::exchange(lost_to_tell_, {})) {
    const auto it = paths_.find(id);
    if (it == paths_.end()) continue;
    PacketBuilder builder;
    builder.Lost(id, {it->second.recent.begin(), it->second.recent.end()});
    Post(kBasePath, base->second, 0, builder.Take(0));
    if (it->second.peer_tags.has_value()) paths_.erase(it);
  }
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
      case Control::kClosed: builder_.Closed(next.slot); break;
    }
    control_.pop_front();
  }
  return true;
}

// Payload in packets that the peer may have to hold back behind the oldest frame whose chunks are not all there.
uint64_t MultipathLink::HeldByPeer() const {
  return open_.empty() ? 0 : packet_bytes_ - open_.begin()->first;
}

bool MultipathLink::TakeFrames() {
  bool progress = false;
  while (!queue_.empty() && pending_.empty()) {
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

// Is there a path now that could take this frame's chunks?
bool MultipathLink::AnyWay(const OutFrame& frame) {
  const RemoteSlot& slot = remote_slots_.at(frame.header.slot);
  const Path* lead = Lead();
  for (const auto& [id, path] : paths_) {
    if (!path.up || lead == nullptr || path.info.tier < lead->info.tier) continue;  // packets are the better way then
    if (id == kBasePath) return true;
    for (const SlotTarget& target : slot.targets) {
      if (target.group == path.info.remote_group && owner_->CanSendFrom(id, frame.payload)) return true;
    }
  }
  return false;
}

bool MultipathLink::OpenChunks(const std::shared_ptr<OutFrame>& frame) {
  RemoteSlot& slot = remote_slots_.at(frame->header.slot);
  const size_t bytes = frame->payload.size();
  if (bytes <= kSmallPayload) return false;   // a packet and a copy cost less than a packet, a write and its notice
  // What does not lie in the slot is the receiver's to refuse. No more is written than the slot is long, since the receiver
  // may use the memory for something else as soon as so much has landed; what comes beyond goes by packets, which it copies.
  if (frame->header.stripe_offset > slot.bytes || bytes > slot.bytes - frame->header.stripe_offset) return false;
  if (slot.sent > slot.bytes || bytes > slot.bytes - slot.sent || !AnyWay(*frame)) return false;
  const size_t chunk = std::max(chunk_bytes_, (bytes / kMostChunksOfFrame + 4096) / 4096 * 4096);
  const uint32_t chunks = static_cast<uint32_t>((bytes + chunk - 1) / chunk);
  builder_.Frame(frame->header, next_tag_, chunks, {});
  frame->begun = true;
  frame->chunks_left = chunks;
  packet_bytes_ += kHeaderBytes;
  frame->mark = packet_bytes_;
  open_.emplace(frame->mark, frame);
  queued_bytes_ -= kHeaderBytes;
  slot.sent += bytes;
  for (size_t offset = 0; offset < bytes; offset += chunk) {
    pending_.push_back({frame, offset, std::min(chunk, bytes - offset), next_tag_++});
  }
  ++frames_out_;
  payload_out_ += bytes;
  return true;
}

// ---- chunks ----

// The path of the best tier on which this chunk is there first, by what is in flight and the measured goodput. Null: that
// one is full, and to wait for it is better than to take another.
MultipathLink::Path* MultipathLink::Choose(const OutChunk& chunk, TimeNs now, PathId* chosen, SlotTarget* target) {
  struct Candidate {
    PathId id;
    Path* path;
    SlotTarget target;
    double rate;
  };
  std::vector<Candidate> candidates;
  const RemoteSlot& slot = remote_slots_.at(chunk.frame->header.slot);
  for (auto& [id, path] : paths_) {
    if (!path.up || (!candidates.empty() && path.info.tier < candidates.front().path->info.tier)) continue;
    SlotTarget way;
    bool found = id == kBasePath;
    for (const SlotTarget& into : slot.targets) {
      if (found || into.group != path.info.remote_group) continue;
      way = into;
      found = owner_->CanSendFrom(id, chunk.frame->payload);
      break;
    }
    if (!found) continue;
    if (!candidates.empty() && path.info.tier > candidates.front().path->info.tier) candidates.clear();
    candidates.push_back({id, &path, way, path.goodput.Rate(path.flying_bytes, now)});
  }
  double best_rate = 0;
  for (const Candidate& candidate : candidates) best_rate = std::max(best_rate, candidate.rate);
  const Candidate* best = nullptr;
  double best_time = 0;
  for (const Candidate& candidate : candidates) {
    const Path& path = *candidate.path;
    const bool probe = path.flying.empty() && now - path.goodput.last_used() >= kProbeEvery;
    const double rate = candidate.rate > 0 ? candidate.rate : std::max(best_rate, 1.0);
    const double time = probe ? -1.0 : static_cast<double>(path.flying_bytes + chunk.bytes) / rate;
    if (best == nullptr || time < best_time) {
      best = &candidate;
      best_time = time;
    }
  }
  if (best == nullptr) return nullptr;
  Path& path = *best->path;
  const size_t window = std::clamp(static_cast<size_t>(best->rate * kWindowSeconds), kLeastChunks * chunk_bytes_,
                                   kMostChunks * chunk_bytes_);
  const bool credit = !path.info.credits.has_value() || path.credits_granted != path.credits_used;
  if (path.flying.size() >= kMostChunks || (!path.flying.empty() && path.flying_bytes + chunk.bytes > window) || !credit ||
      owner_->Room(best->id) < 2)
    return nullptr;
  *chosen = best->id;
  *target = best->target;
  return &path;
}

bool MultipathLink::IssueChunks(TimeNs now) {
  bool progress = false;
  while (!pending_.empty()) {
    const OutChunk& next = pending_.front();
    const SlotId slot_id = next.frame->header.slot;
    PathId id = 0;
    SlotTarget target;
    Path* path = Choose(next, now, &id, &target);
    if (path == nullptr) return progress;
    OutChunk chunk = std::move(pending_.front());
    pending_.pop_front();
    queued_bytes_ -= chunk.bytes;
    if (path->info.credits.has_value()) ++path->credits_used;
    path->goodput.Began(!path->flying.empty(), now);
    path->flying_bytes += chunk.bytes;
    path->bytes += chunk.bytes;
    if (id != kBasePath) beside_out_ += chunk.bytes;
    ++path->chunks;
    ++remote_slots_.at(slot_id).flying;
    const Chunk out{.payload = chunk.frame->payload.subspan(chunk.offset, chunk.bytes),
                    .slot = slot_id,
                    .offset = chunk.frame->header.stripe_offset + chunk.offset,
                    .target = target,
                    .tag = chunk.tag};
    path->flying.emplace(chunk.tag, std::move(chunk));
    owner_->SendChunk(id, out, kChunkToken | out.tag);
    progress = true;
  }
  return progress;
}

// Since the last Pump, on paths that had no credit then though something waited; and which have none now.
void MultipathLink::CountStalls(TimeNs now) {
  const bool waiting = queued_bytes_ > 0 || !pending_.empty() || !resend_.empty() || !control_.empty();
  for (auto& [id, path] : paths_) {
    if (path.stalled.has_value()) credit_stall_ += std::max<TimeNs>(0, now - *path.stalled);
    path.stalled.reset();
    if (path.up && waiting && path.info.credits.has_value() && path.credits_granted == path.credits_used) path.stalled = now;
  }
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
  open_.clear();
  queued_bytes_ = 0;
  return cookies;
}

absl::Status MultipathLink::Overdue(TimeNs now) const {
  if (stopped_) return absl::OkStatus();
  for (const auto& [id, path] : paths_) {
    if (!path.up && !path.peer_tags.has_value() && now - path.lost_at > kAnswerWithin)
      return absl::DeadlineExceededError(absl::StrCat("path ", id, " was lost ", (now - path.lost_at) / kSecond,
                                                      " s ago, and the peer has not said what came over it"));
  }
  for (const auto& [id, slot] : slots_) {
    if (slot.closing && now - slot.closing_since > kAnswerWithin)
      return absl::DeadlineExceededError(absl::StrCat("memory for the peer's writes was revoked ",
                                                      (now - slot.closing_since) / kSecond,
                                                      " s ago, and it has not said that nothing is on its way"));
  }
  return absl::OkStatus();
}

std::vector<PathState> MultipathLink::States() const {
  std::vector<PathState> states;
  for (const auto& [id, path] : paths_) {
    if (!path.up) continue;
    states.push_back({.path = id,
                      .tier = path.info.tier,
                      .goodput = path.goodput.last_rate(),
                      .chunks = path.chunks,
                      .bytes = path.bytes,
                      .packets = path.packets,
                      .packet_bytes = path.packet_bytes,
                      .messages_in = path.messages_in,
                      .bytes_in = path.bytes_in});
  }
  return states;
}

}  // namespace sluice::transport::multipath
