// Which chunk goes by which path, and when it goes by another one, too.
//
//   1. A chunk takes the path on which it is there first, by what is in flight there and the path's goodput. If that one has
//      its window in flight, chunks wait for it.
//   2. Meanwhile a slower path takes the last chunk of what waits, if it will be there before the others have carried the
//      rest. So a path at a tenth of the rate carries its tenth, and nobody waits for it.
//   3. A path has little in flight: queue pairs 20 ms of their goodput, in whole chunks; streams as much as their shortest
//      round trip and 10 ms need, a slow one a single chunk. Of a path that nothing is known of, one chunk tells.
//   4. A chunk on a stream is late when it took three times as long as it should, and 100 ms more. Its path gets nothing new,
//      and the chunk goes out again over another stream. So does one that will be there late, once nothing else waits.
//   5. A path that was not used for a while gets a chunk, since it may be better by now.
#include <algorithm>
#include <utility>

#include "transport/multipath/link.h"
#include "transport/multipath/link_limits.h"

namespace sluice::transport::multipath {
namespace {

// 5: where no chunk can be sent again, frames wait for that chunk, so a path whose last one took long is tried less often: at
// most a twentieth of the time goes into that.
constexpr TimeNs kProbeEvery = 250 * kMillisecond;
constexpr TimeNs kProbeShare = 20, kStreamProbeShare = 5;
constexpr size_t kSmallPayload = 4096;
constexpr double kWindowSeconds = 0.02;   // of goodput that may be in flight on a queue pair
constexpr double kStreamSeconds = 0.01;   // on a stream, beside its round trips
constexpr size_t kLeastChunks = 4, kMostChunks = 32;
static_assert(kMostChunks < kRecentTags);
constexpr double kSlow = 4;               // a stream with so much less than the best one has one chunk in flight
// Chunks of streams are so small that a path at a tenth of the rate carries one while others carry a frame.
constexpr size_t kLeastStreamChunk = 64 << 10;
constexpr double kStreamChunkSeconds = 0.002;
constexpr TimeNs kLateBy = 100 * kMillisecond;
constexpr TimeNs kUnknownTime = 250 * kMillisecond;   // of a chunk on a path that nothing is known of
constexpr TimeNs kWorthIt = 10 * kMillisecond;        // a chunk that another path has sooner by this is sent again if idle

TimeNs Nanoseconds(double seconds) { return static_cast<TimeNs>(std::min(seconds, 1e6) * 1e9); }

}  // namespace

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

size_t MultipathLink::ChunkBytes(size_t payload) {
  size_t chunk = chunk_bytes_;
  if (const Path* lead = Lead(); lead != nullptr && lead->info.read_by_peer) {
    double rate = 0;
    for (const auto& [id, path] : paths_) {
      if (path.up) rate += path.goodput.measured();
    }
    const size_t least = std::min(kLeastStreamChunk, chunk_bytes_);
    chunk = std::clamp(static_cast<size_t>(rate * kStreamChunkSeconds) / 4096 * 4096, least, chunk_bytes_);
  }
  return std::max(chunk, (payload / kMostChunksOfFrame + 4096) / 4096 * 4096);
}

bool MultipathLink::OpenChunks(const std::shared_ptr<OutFrame>& frame) {
  RemoteSlot& slot = remote_slots_.at(frame->header.slot);
  const size_t bytes = frame->payload.size();
  if (bytes <= kSmallPayload) return false;   // a packet and a copy cost less than a packet, a write and its notice
  // What does not lie in the slot is the receiver's to refuse. No more is written than the slot is long, since the receiver
  // may use the memory for something else as soon as so much has landed; what comes beyond goes by packets, which it copies.
  if (frame->header.stripe_offset > slot.bytes || bytes > slot.bytes - frame->header.stripe_offset) return false;
  if (slot.sent > slot.bytes || bytes > slot.bytes - slot.sent || !AnyWay(*frame)) return false;
  const size_t chunk = ChunkBytes(bytes);
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
    pending_.push_back({.frame = frame, .offset = offset, .bytes = std::min(chunk, bytes - offset), .tag = next_tag_++});
  }
  pending_bytes_ += bytes;
  ++frames_out_;
  payload_out_ += bytes;
  return true;
}

// The paths of the best tier that can take this chunk.
std::vector<MultipathLink::Way> MultipathLink::Ways(const OutChunk& chunk, TimeNs now) {
  std::vector<Way> ways;
  const RemoteSlot& slot = remote_slots_.at(chunk.frame->header.slot);
  for (auto& [id, path] : paths_) {
    if (!path.up || (!ways.empty() && path.info.tier < ways.front().path->info.tier)) continue;
    SlotTarget target;
    bool found = id == kBasePath;
    for (const SlotTarget& into : slot.targets) {
      if (found || into.group != path.info.remote_group) continue;
      target = into;
      found = owner_->CanSendFrom(id, chunk.frame->payload);
      break;
    }
    if (!found) continue;
    if (!ways.empty() && path.info.tier > ways.front().path->info.tier) ways.clear();
    const bool late = path.info.read_by_peer && std::any_of(path.flying.begin(), path.flying.end(),
                                                            [&](const auto& sent) { return sent.second.due < now; });
    ways.push_back({.id = id, .path = &path, .target = target, .rate = path.goodput.Rate(path.flying_bytes, now), .late = late});
  }
  return ways;
}

// No more of this size now.
bool MultipathLink::Full(const Way& way, size_t bytes, double best_rate, bool only_one) {
  const Path& path = *way.path;
  const bool credit = !path.info.credits.has_value() || path.credits_granted != path.credits_used;
  if (!credit || path.flying.size() >= kMostChunks || owner_->Room(way.id) < 2) return true;
  if (path.flying.empty()) return false;
  if (way.rate == 0 && !only_one) return true;
  double window = static_cast<double>(kLeastChunks * chunk_bytes_);
  if (!path.info.read_by_peer) {
    window = std::clamp(way.rate * kWindowSeconds, window, static_cast<double>(kMostChunks * chunk_bytes_));
  } else if (way.rate > 0) {
    const double seconds = 2e-9 * static_cast<double>(path.latency.Get()) + kStreamSeconds;
    const double least = way.rate * kSlow < best_rate ? 1 : 2;
    window = std::max(way.rate * seconds, least * static_cast<double>(bytes));
  }
  return static_cast<double>(path.flying_bytes + bytes) > window;
}

// 1. None: the best path is full, and to wait for it is better than to take another.
std::optional<MultipathLink::Way> MultipathLink::Choose(const OutChunk& chunk, TimeNs now) {
  const std::vector<Way> ways = Ways(chunk, now);
  double best_rate = 0;
  for (const Way& way : ways) best_rate = std::max(best_rate, way.rate);
  const Way* best = nullptr;
  double best_time = 0;
  for (const Way& way : ways) {
    const Path& path = *way.path;
    const TimeNs share = path.info.read_by_peer ? kStreamProbeShare : kProbeShare;
    const bool probe = path.flying.empty() && now - path.goodput.last_used() >= std::max(kProbeEvery, share * path.last_service);
    const double rate = way.rate > 0 ? way.rate : std::max(best_rate, 1.0);
    double time = probe ? -1.0 : static_cast<double>(path.flying_bytes + chunk.bytes) / rate;
    if (way.late) time += 1e9;   // only if all are
    if (best == nullptr || time < best_time) {
      best = &way;
      best_time = time;
    }
  }
  if (best == nullptr || Full(*best, chunk.bytes, best_rate, ways.size() == 1)) return std::nullopt;
  return *best;
}

// 2. For the last chunk, when Choose has no way for the first one.
std::optional<MultipathLink::Way> MultipathLink::ChooseForTail(const OutChunk& chunk, TimeNs now) {
  const std::vector<Way> ways = Ways(chunk, now);
  double rates = 0, best_rate = 0;
  size_t flying = 0;
  for (const Way& way : ways) {
    if (way.late) continue;
    rates += way.rate;
    best_rate = std::max(best_rate, way.rate);
    flying += way.path->flying_bytes;
  }
  const Way* best = nullptr;
  double best_time = 0;
  for (const Way& way : ways) {
    if (!way.path->info.read_by_peer || way.late || way.rate == 0 || Full(way, chunk.bytes, best_rate, false)) continue;
    const double time = static_cast<double>(way.path->flying_bytes + chunk.bytes) / way.rate;
    const double rest = static_cast<double>(pending_bytes_ - chunk.bytes + flying - way.path->flying_bytes) /
                        std::max(rates - way.rate, 1.0);
    if (time > rest || (best != nullptr && time >= best_time)) continue;
    best = &way;
    best_time = time;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

void MultipathLink::Issue(const Way& way, OutChunk chunk, TimeNs now) {
  Path& path = *way.path;
  const SlotId slot = chunk.frame->header.slot;
  if (path.info.credits.has_value()) ++path.credits_used;
  path.goodput.Began(!path.flying.empty(), now);
  path.flying_bytes += chunk.bytes;
  path.bytes += chunk.bytes;
  if (way.id != kBasePath) beside_out_ += chunk.bytes;
  ++path.chunks;
  if (!path.info.read_by_peer) ++remote_slots_.at(slot).flying;
  const TimeNs takes = way.rate == 0 ? kUnknownTime
                                     : path.latency.Get() + Nanoseconds(static_cast<double>(path.flying_bytes) / way.rate);
  chunk.sent = now;
  chunk.expected = now + takes;
  chunk.due = now + 3 * takes + kLateBy;
  const Chunk out{.payload = chunk.frame->payload.subspan(chunk.offset, chunk.bytes),
                  .slot = slot,
                  .offset = chunk.frame->header.stripe_offset + chunk.offset,
                  .target = way.target,
                  .tag = chunk.tag};
  path.flying.emplace(chunk.tag, std::move(chunk));
  owner_->SendChunk(way.id, out, kChunkToken | out.tag);
}

bool MultipathLink::IssueChunks(TimeNs now) {
  bool progress = false;
  SendAgain(now, /*idle=*/false);
  while (!pending_.empty()) {
    OutChunk chunk;
    std::optional<Way> way = Choose(pending_.front(), now);
    if (way.has_value()) {
      chunk = std::move(pending_.front());
      pending_.pop_front();
    } else {
      way = ChooseForTail(pending_.back(), now);
      if (!way.has_value()) return progress;
      chunk = std::move(pending_.back());
      pending_.pop_back();
    }
    queued_bytes_ -= chunk.bytes;
    pending_bytes_ -= chunk.bytes;
    Issue(*way, std::move(chunk), now);
    progress = true;
  }
  return progress;
}

// 4. A chunk is on one path once at most, so this ends.
void MultipathLink::SendAgain(TimeNs now, bool idle) {
  if (stopped_) return;
  for (auto& [id, path] : paths_) {
    if (!path.up || !path.info.read_by_peer) continue;
    for (const auto& [tag, chunk] : path.flying) {
      const bool late = chunk.due < now;
      if (chunk.frame == nullptr || (!late && !(idle && chunk.expected > now + kWorthIt))) continue;
      if (!remote_slots_.contains(chunk.frame->header.slot)) continue;
      const std::vector<Way> ways = Ways(chunk, now);
      const Way* best = nullptr;
      double best_time = 0, best_rate = 0;
      for (const Way& way : ways) best_rate = std::max(best_rate, way.rate);
      for (const Way& way : ways) {
        if (way.late || way.rate == 0 || !way.path->info.read_by_peer || way.path->flying.contains(tag)) continue;
        if (Full(way, chunk.bytes, best_rate, false)) continue;
        const double time = static_cast<double>(way.path->flying_bytes + chunk.bytes) / way.rate;
        if (best != nullptr && time >= best_time) continue;
        best = &way;
        best_time = time;
      }
      if (best == nullptr || (!late && now + 2 * Nanoseconds(best_time) + kWorthIt > chunk.expected)) continue;
      ++resent_chunks_;
      Issue(*best, chunk, now);
    }
  }
}

}  // namespace sluice::transport::multipath
