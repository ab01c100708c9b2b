// Paths: what becomes of a chunk that was sent, and what is done about a path that was lost.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/multipath/link.h"
#include "transport/multipath/link_limits.h"

namespace sluice::transport::multipath {
void MultipathLink::PathUp(PathId id, const PathInfo& info, TimeNs now) {
  Path& path = paths_[id];
  path.info = info;
  path.credits_granted = info.credits.value_or(0);
  path.credits_used = info.credits_used;
  path.credits_told = info.receives;
  path.goodput.Began(false, now);
  if (auto early = early_recent_.extract(id)) path.recent = std::move(early.mapped());
  if (auto lost = early_lost_.extract(id)) {
    path.peer_tags = std::move(lost.mapped());
    owner_->BreakPath(id, absl::UnavailableError("the peer has given it up"));
  }
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
    if (chunk.frame == nullptr) continue;
    Unfly(path, chunk.frame->header.slot);
    if (std::find(path.peer_tags->begin(), path.peer_tags->end(), tag) != path.peer_tags->end()) {
      const OutChunk done = std::move(chunk);
      TakeBackCopies(tag);
      ChunkDone(done);
      continue;
    }
    if (OnAnotherPath(id, tag)) continue;
    const auto slot = remote_slots_.find(chunk.frame->header.slot);
    if (slot == remote_slots_.end() || slot->second.closing) {
      ChunkDone(chunk);  // the peer has closed the slot and waits for nothing
    } else {
      again.push_back(std::move(chunk));
    }
  }
  for (auto chunk = again.rbegin(); chunk != again.rend(); ++chunk) {
    queued_bytes_ += chunk->bytes;
    pending_bytes_ += chunk->bytes;
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
  path.last_service = now - std::max(chunk.sent, path.last_done);
  path.last_done = now;
  path.latency.Add(now - chunk.sent, now);
  path.goodput.Finished(chunk.bytes, !path.flying.empty(), now);
  if (chunk.frame == nullptr) return;
  TakeBackCopies(chunk.tag);
  Unfly(path, chunk.frame->header.slot);
  ChunkDone(chunk);
}

// A chunk is done: its other copies are nobody's business any more.
void MultipathLink::TakeBackCopies(uint32_t tag) {
  for (auto& [id, path] : paths_) {
    const auto copy = path.flying.find(tag);
    if (copy == path.flying.end() || copy->second.frame == nullptr) continue;
    if (path.up) owner_->TakeBack(id, kChunkToken | tag);
    copy->second.frame.reset();
  }
}

bool MultipathLink::OnAnotherPath(PathId id, uint32_t tag) const {
  for (const auto& [other, path] : paths_) {
    if (other != id && path.flying.contains(tag)) return true;
  }
  return false;
}

// One chunk fewer is on its way to this slot by remote writes.
void MultipathLink::Unfly(const Path& path, SlotId id) {
  if (path.info.read_by_peer) return;
  const auto slot = remote_slots_.find(id);
  if (slot == remote_slots_.end()) return;
  if (--slot->second.flying == 0 && slot->second.closing) {
    if (slot->second.answer) {
      ++answers_owed_;
      control_.push_back({.kind = Control::kClosed, .slot = id, .targets = {}});
    }
    remote_slots_.erase(slot);
  }
}

void MultipathLink::ChunkDone(const OutChunk& chunk) {
  if (--chunk.frame->chunks_left == 0) FrameDone(*chunk.frame);
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

// Since the last Pump, on paths that had no credit then though something waited; and which have none now.
void MultipathLink::CountStalls(TimeNs now) {
  const bool waiting = queued_bytes_ > 0 || !pending_.empty() || !resend_.empty() || !control_.empty();
  for (auto& [id, path] : paths_) {
    if (path.stalled.has_value()) credit_stall_ += std::max<TimeNs>(0, now - *path.stalled);
    path.stalled.reset();
    if (path.up && waiting && path.info.credits.has_value() && path.credits_granted == path.credits_used) path.stalled = now;
  }
}

TimeNs MultipathLink::OldestChunk(PathId id, TimeNs now) const {
  const auto it = paths_.find(id);
  if (it == paths_.end() || !it->second.up) return 0;
  TimeNs oldest = now;
  for (const auto& [tag, chunk] : it->second.flying) oldest = std::min(oldest, std::max(chunk.sent, it->second.last_done));
  return now - oldest;
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
                      .goodput = path.goodput.measured(),
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
