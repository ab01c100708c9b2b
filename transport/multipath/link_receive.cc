// The receiving half: packets in order, chunks as they come, slots.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/multipath/link.h"
#include "transport/multipath/link_limits.h"

namespace sluice::transport::multipath {
namespace {

absl::Status Refuse(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer breaks the rules of a multipath link: ", what));
}

}  // namespace

class MultipathLink::Reader final : public PacketVisitor {
 public:
  explicit Reader(MultipathLink* link) : link_(link) {}
  absl::Status OnFrame(const FrameHeader& header, uint32_t first_tag, uint32_t chunks, ConstBytes payload) override {
    return link_->Opens(header, first_tag, chunks, payload);
  }
  absl::Status OnFragment(ConstBytes payload) override { return link_->Continue(payload); }
  absl::Status OnSlot(SlotId slot, uint64_t bytes, std::vector<SlotTarget> targets) override {
    if (link_->remote_slots_.size() >= kMostRemoteSlots) return Refuse("too many slots");
    RemoteSlot& remote = link_->remote_slots_[slot];
    if (remote.bytes != 0 || bytes == 0) return Refuse("a slot that is open already, or of no bytes");
    remote.bytes = bytes;
    remote.targets = std::move(targets);
    return absl::OkStatus();
  }
  absl::Status OnClose(SlotId slot, bool answer) override { return link_->PeerCloses(slot, answer); }
  absl::Status OnClosed(SlotId slot) override { return link_->PeerClosed(slot); }
  absl::Status OnCredit(PathId path, uint32_t receives) override {
    const auto it = link_->paths_.find(path);
    if (it == link_->paths_.end() || !it->second.info.credits.has_value()) return absl::OkStatus();
    Path& known = it->second;
    // Reports may overtake each other; the largest counts. What was used cannot be taken back.
    if (static_cast<int32_t>(receives - known.credits_granted) > 0) known.credits_granted = receives;
    return absl::OkStatus();
  }
  absl::Status OnLost(PathId path, std::vector<uint32_t> tags) override {
    return link_->PeerLost(path, std::move(tags));
  }

 private:
  MultipathLink* const link_;
};

MultipathLink::MultipathLink(Owner* owner, EndpointLimits limits, size_t chunk_bytes)
    : owner_(owner), limits_(limits), chunk_bytes_(std::max<size_t>(chunk_bytes, 4096)) {}

void MultipathLink::OpenSlot(SlotId slot, MutableBytes memory, std::vector<SlotTarget> targets, bool remote) {
  if (stopped_ || memory.empty()) return;
  slots_[slot] = {.memory = memory, .remote = remote};
  control_.push_back({.kind = Control::kSlot, .slot = slot, .bytes = memory.size(), .targets = std::move(targets)});
}

bool MultipathLink::CloseSlot(SlotId id, TimeNs now) {
  const auto it = slots_.find(id);
  if (stopped_ || it == slots_.end()) return true;
  LocalSlot& slot = it->second;
  if (slot.closing) return false;
  for (InFrame& frame : incoming_) {
    if (frame.header.slot == id && frame.header.payload_bytes > 0) Drop(frame);
  }
  const bool at_once = !slot.remote || slot.landed >= slot.memory.size();
  control_.push_back({.kind = Control::kClose, .slot = id, .targets = {}, .answer = !at_once});
  if (at_once) {
    slots_.erase(it);
  } else {
    slot.closing = true;
    slot.closing_since = now;
  }
  return at_once;  // what was held up by a frame for this slot is handed over by the next Pump: nobody is called from here
}

// The frame will not be handed over, and waits for no chunks.
void MultipathLink::Drop(InFrame& frame) {
  frame.target = nullptr;
  frame.dropped = true;
  for (uint32_t i = 0; i < frame.chunks && frame.missing > 0; ++i) {
    if (tags_.erase(frame.first_tag + i) > 0) --frame.missing;
  }
}

// A chunk of this frame has come over this path. (The last one is shorter than the others: that evens out.)
void MultipathLink::CountLanded(PathId id, const InFrame& frame) {
  const uint64_t bytes = frame.header.payload_bytes / frame.chunks;
  if (id != kBasePath) beside_in_ += bytes;
  const auto path = paths_.find(id);
  if (path == paths_.end()) return;
  ++path->second.messages_in;
  path->second.bytes_in += bytes;
}

absl::Status MultipathLink::OnPacket(PathId path, ConstBytes packet) {
  if (stopped_) return absl::OkStatus();
  if (path != kBasePath) beside_in_ += packet.size();
  if (const auto it = paths_.find(path); it != paths_.end()) {
    ++it->second.messages_in;
    it->second.bytes_in += packet.size();
  }
  SLUICE_ASSIGN_OR_RETURN(const uint64_t sequence, PacketSequence(packet));
  Reader reader(this);
  SLUICE_RETURN_IF_ERROR(ReadPacket(packet, Records::kOnArrival, reader));
  if (sequence == 0) return absl::OkStatus();
  if (sequence < expected_ || early_packets_.contains(sequence)) {
    ++duplicates_;
    return absl::OkStatus();
  }
  if (sequence > expected_) {
    if (early_packets_.size() >= kMostEarlyPackets) return Refuse("too many packets before one that is missing");
    early_packets_.emplace(sequence, std::vector<std::byte>(packet.begin(), packet.end()));
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(InOrder(packet));
  while (!stopped_ && !early_packets_.empty() && early_packets_.begin()->first == expected_) {
    const std::vector<std::byte> next = std::move(early_packets_.begin()->second);
    early_packets_.erase(early_packets_.begin());
    SLUICE_RETURN_IF_ERROR(InOrder(next));
  }
  return absl::OkStatus();
}

absl::Status MultipathLink::InOrder(ConstBytes packet) {
  ++expected_;
  Reader reader(this);
  SLUICE_RETURN_IF_ERROR(ReadPacket(packet, Records::kInOrder, reader));
  HandOver();
  return absl::OkStatus();
}

absl::Status MultipathLink::Opens(const FrameHeader& header, uint32_t first_tag, uint32_t chunks, ConstBytes payload) {
  switch (header.type) {
    case FrameType::kHello: case FrameType::kWelcome: case FrameType::kPing: case FrameType::kPong:
    case FrameType::kTransport: return Refuse(absl::StrCat("an inner frame ", DebugString(header)));
    default: break;
  }
  if (!incoming_.empty() && incoming_.back().chunks == 0 && !incoming_.back().complete())
    return Refuse("a frame before the end of the last one");
  if (incoming_.size() >= kMostHeldFrames) return Refuse("too many frames behind one that is not complete");
  InFrame frame{.header = header, .buffer = nullptr, .chunks = chunks, .missing = chunks, .first_tag = first_tag};
  if (header.slot != 0 && header.payload_bytes > 0) {
    const auto it = slots_.find(header.slot);
    if (it == slots_.end() || it->second.closing) {
      frame.dropped = true;
    } else {
      const MutableBytes memory = it->second.memory;
      if (header.payload_bytes > memory.size() || header.stripe_offset > memory.size() - header.payload_bytes)
        return Refuse(absl::StrCat("a stripe lies outside its slot of ", memory.size(), " bytes: ", DebugString(header)));
      frame.target = memory.data() + header.stripe_offset;
    }
  } else {
    if (chunks > 0) return Refuse("chunks without a slot");
    if (header.payload_bytes > limits_.max_slotless_bytes)
      return absl::ResourceExhaustedError(absl::StrCat("a frame without a slot of ", header.payload_bytes,
                                                       " bytes (at most ", limits_.max_slotless_bytes,
                                                       "): ", DebugString(header)));
    if (held_bytes_ + header.payload_bytes > kMostHeldBytes + limits_.max_slotless_bytes)
      return Refuse("too many bytes behind a frame that is not complete");
    if (header.payload_bytes > 0) {
      frame.buffer = std::make_shared_for_overwrite<std::byte[]>(header.payload_bytes);
      frame.target = frame.buffer.get();
      held_bytes_ += header.payload_bytes;
    }
  }
  incoming_.push_back(std::move(frame));
  InFrame& kept = incoming_.back();
  if (chunks > 0) {
    if (first_tag != announced_tag_) return Refuse("tags out of order");
    if (chunks > kMostChunksOfFrame || tags_.size() + chunks > kMostAnnouncedTags) return Refuse("too many chunks");
    announced_tag_ = first_tag + chunks;
    for (uint32_t i = 0; i < chunks && !(kept.dropped && early_tags_.empty()); ++i) {
      if (const auto early = early_tags_.extract(first_tag + i)) {
        --kept.missing;
        CountLanded(early.mapped(), kept);
      } else if (!kept.dropped) {
        tags_[first_tag + i] = &kept;
      }
    }
    return absl::OkStatus();
  }
  return Continue(payload);
}

absl::Status MultipathLink::Continue(ConstBytes payload) {
  if (incoming_.empty() || incoming_.back().chunks > 0) return payload.empty() ? absl::OkStatus() : Refuse("a fragment of nothing");
  InFrame& frame = incoming_.back();
  if (payload.size() > frame.header.payload_bytes - frame.received) return Refuse("more fragments than payload");
  if (frame.target != nullptr && !payload.empty()) std::memcpy(frame.target + frame.received, payload.data(), payload.size());
  frame.received += payload.size();
  return absl::OkStatus();
}

absl::Status MultipathLink::OnChunk(PathId id, uint32_t tag) {
  if (stopped_) return absl::OkStatus();
  const auto path = paths_.find(id);
  std::deque<uint32_t>& recent = path != paths_.end() ? path->second.recent : early_recent_[id];
  recent.push_back(tag);
  if (recent.size() > kRecentTags) recent.pop_front();
  const auto it = tags_.find(tag);
  if (it != tags_.end()) {
    InFrame& frame = *it->second;
    tags_.erase(it);
    CountLanded(id, frame);
    if (--frame.missing == 0) HandOver();
    return absl::OkStatus();
  }
  if (static_cast<int32_t>(tag - announced_tag_) < 0) return absl::OkStatus();  // of a frame that was dropped
  if (early_tags_.size() >= kMostEarlyTags) return Refuse("too many chunks before their frames");
  early_tags_.emplace(tag, id);
  return absl::OkStatus();
}

// Frames that are complete, in order. The handler may call back, also to stop.
void MultipathLink::HandOver() {
  if (handing_over_) return;
  handing_over_ = true;
  while (!stopped_ && !incoming_.empty() && incoming_.front().complete()) {
    InFrame& front = incoming_.front();
    const InFrame frame = std::move(front);
    incoming_.pop_front();
    if (frame.buffer != nullptr) held_bytes_ -= frame.header.payload_bytes;
    ++frames_in_;
    payload_in_ += frame.header.payload_bytes;
    if (frame.dropped) continue;
    if (frame.header.slot != 0) {
      if (const auto slot = slots_.find(frame.header.slot); slot != slots_.end())
        slot->second.landed += frame.header.payload_bytes;
    }
    owner_->Deliver(frame.header, Payload({frame.target, frame.header.payload_bytes}, frame.buffer));
  }
  handing_over_ = false;
}

absl::Status MultipathLink::PeerCloses(SlotId id, bool answer) {
  const auto it = remote_slots_.find(id);
  if (it == remote_slots_.end()) return answer ? Refuse("a slot is closed that was never opened") : absl::OkStatus();
  if (answers_owed_ >= kMostAnswersOwed) return Refuse("it closes slots and does not take the answers");
  if (it->second.closing) return Refuse("a slot that is closed twice");
  it->second.closing = true;
  it->second.answer = answer;
  std::deque<OutChunk> left;
  std::vector<OutChunk> done;
  for (OutChunk& chunk : pending_) {
    if (chunk.frame->header.slot != id) {
      left.push_back(std::move(chunk));
      continue;
    }
    queued_bytes_ -= chunk.bytes;
    pending_bytes_ -= chunk.bytes;
    done.push_back(std::move(chunk));
  }
  pending_ = std::move(left);
  // What is on its way in a stream will be dropped; nobody waits for it.
  for (auto& [path_id, path] : paths_) {
    if (!path.info.read_by_peer || !path.up) continue;
    for (auto& [tag, chunk] : path.flying) {
      if (chunk.frame == nullptr || chunk.frame->header.slot != id) continue;
      done.push_back(chunk);
      TakeBackCopies(tag);
    }
  }
  // Nothing by remote writes: the answer goes out at once.
  if (it->second.flying == 0) {
    if (answer) {
      ++answers_owed_;
      control_.push_back({.kind = Control::kClosed, .slot = id, .targets = {}});
    }
    remote_slots_.erase(it);
  }
  for (const OutChunk& chunk : done) ChunkDone(chunk);
  return absl::OkStatus();
}

absl::Status MultipathLink::PeerClosed(SlotId id) {
  const auto it = slots_.find(id);
  if (it == slots_.end() || !it->second.closing) return Refuse("an answer to a close that was not asked");
  slots_.erase(it);
  owner_->SlotClosed(id);
  return absl::OkStatus();
}

absl::Status MultipathLink::PeerLost(PathId id, std::vector<uint32_t> tags) {
  if (id == kBasePath) return Refuse("it has lost the base path and says so over it");
  const auto it = paths_.find(id);
  if (it == paths_.end()) {
    // One that is not up here yet, or never will be; then this is not heard of again.
    if (early_lost_.size() >= kMostEarlyLosses) return Refuse("too many losses of paths that there are not");
    early_lost_.emplace(id, std::move(tags));
    return absl::OkStatus();
  }
  if (it->second.peer_tags.has_value()) return absl::OkStatus();
  it->second.peer_tags = std::move(tags);
  if (it->second.up) {
    owner_->BreakPath(id, absl::UnavailableError("the peer has given it up"));
  } else {
    Settle(id, it->second);
  }
  return absl::OkStatus();
}

}  // namespace sluice::transport::multipath
