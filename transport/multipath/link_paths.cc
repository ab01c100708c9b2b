// Paths: which chunk goes by which, and what is done about one that was lost.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/multipath/link.h"
#include "transport/multipath/link_limits.h"

namespace sluice::transport::multipath {
namespace {

// A path that was not used for so long gets a chunk, whatever its goodput was: it may be better by now. Frames wait for that
// chunk, so a path whose last one took long is tried less often: at most a twentieth of the time goes into that.
constexpr TimeNs kProbeEvery = 250 * kMillisecond;
constexpr TimeNs kProbeShare = 20;
constexpr size_t kSmallPayload = 4096;
constexpr double kWindowSeconds = 0.02;   // of goodput that may be in flight on a path
constexpr size_t kLeastChunks = 4, kMostChunks = 32;
static_assert(kMostChunks < kRecentTags);

}  // namespace

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
  path.last_service = now - std::max(chunk.sent, path.last_done);
  path.last_done = now;
  path.goodput.Finished(chunk.bytes, !path.flying.empty(), now);
  Unfly(chunk.frame->header.slot);
  ChunkDone(chunk);
}

// One chunk fewer is on its way to this slot.
void MultipathLink::Unfly(SlotId id) {
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
    const bool probe = path.flying.empty() && now - path.goodput.last_used() >= std::max(kProbeEvery, kProbeShare * path.last_service);
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
  // Of one that nothing is known of, one chunk will tell.
  const bool unknown = best->rate == 0 && !path.flying.empty() && candidates.size() > 1;
  if (unknown || path.flying.size() >= kMostChunks || (!path.flying.empty() && path.flying_bytes + chunk.bytes > window) || !credit ||
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
    chunk.sent = now;
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
