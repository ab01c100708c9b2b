// Receiving: step 4 of shm_link.h. All of this reads memory that the peer may change at any time.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/shm/shm_link.h"

namespace sluice::transport {
namespace {

// What one link may take of one turn of the loop.
constexpr size_t kTurnDescriptors = 256;
constexpr size_t kTurnBytes = 8 << 20;

// Owns a payload that views the peer's slab.
struct ReferenceOwner {
  std::weak_ptr<ShmLink> link;
  uint64_t token;
  std::shared_ptr<Mapping> mapping;  // keeps the view readable after the link is gone
  ~ReferenceOwner() {
    if (auto up = link.lock()) up->Release(token);
  }
};

absl::StatusOr<FrameHeader> DecodeRingHeader(const Descriptor& descriptor) {
  SLUICE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeHeader(descriptor.header));
  switch (header.type) {
    case FrameType::kHello:
    case FrameType::kWelcome:
    case FrameType::kPing:
    case FrameType::kPong:
    case FrameType::kTransport:
      return absl::InvalidArgumentError(absl::StrCat(DebugString(header), " does not belong in the ring"));
    default:
      return header;
  }
}

// A slot in a frame without payload is something that the frame tells of (GRANT), not where it goes.
bool GoesIntoSlot(const FrameHeader& header) { return header.slot != 0 && header.payload_bytes > 0; }

}  // namespace

void ShmLink::Receive(bool everything) {
  const auto keep = shared_from_this();
  // Also when everything is wanted, a ring holds no more than its entries: the peer may not keep us here for ever.
  const size_t most = everything ? peer_->shape().ring_entries : kTurnDescriptors;
  const uint64_t before = stats_.bytes_in;
  for (size_t count = 0; state_ == State::kUp; ++count) {
    if (count >= most || (!everything && stats_.bytes_in - before >= kTurnBytes)) {
      if (!everything) ReceiveLater();
      return;
    }
    absl::StatusOr<std::optional<Descriptor>> next = reader_->Next();
    if (!next.ok()) return Fail(next.status());
    if (!next->has_value()) {
      if (reader_->Sleep()) return;
      continue;
    }
    if (absl::Status status = OnDescriptor(**next); !status.ok()) return Fail(status);
  }
}

void ShmLink::ReceiveLater() {
  if (std::exchange(receive_scheduled_, true)) return;
  context_->loop->After(0, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    self->receive_scheduled_ = false;
    if (self->state_ != State::kUp) return;
    self->Receive(false);
    if (self->state_ == State::kUp) self->Flush();
  });
}

absl::Status ShmLink::OnDescriptor(const Descriptor& descriptor) {
  const auto kind = static_cast<DescriptorKind>(descriptor.kind);
  if (incoming_.has_value() && kind != DescriptorKind::kChunk && kind != DescriptorKind::kRelease) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor of kind ", descriptor.kind, " in the middle of ",
                                                   DebugString(incoming_->header)));
  }
  switch (kind) {
    case DescriptorKind::kFrame: {
      SLUICE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeRingHeader(descriptor));
      SLUICE_RETURN_IF_ERROR(FindSlot(header).status());
      if (header.slot == 0 && header.payload_bytes > context_->limits.max_slotless_bytes) {
        return absl::InvalidArgumentError(absl::StrCat(DebugString(header), " has no slot and is larger than ",
                                                       context_->limits.max_slotless_bytes, " bytes"));
      }
      incoming_.emplace(Incoming{.header = header});
      if (header.slot == 0 && header.payload_bytes > 0) {
        incoming_->buffer = std::make_shared_for_overwrite<std::byte[]>(header.payload_bytes);
      }
      stats_.bytes_in += kHeaderBytes;
      return OnChunk(descriptor);
    }
    case DescriptorKind::kChunk:
      if (!incoming_.has_value()) return absl::InvalidArgumentError("a chunk without its frame");
      return OnChunk(descriptor);
    case DescriptorKind::kReference:
      return OnReference(descriptor);
    case DescriptorKind::kPlaced:
      return OnPlaced(descriptor);
    case DescriptorKind::kRelease:
      return OnRelease(descriptor);
  }
  return absl::InvalidArgumentError(absl::StrCat("descriptor of unknown kind ", descriptor.kind));
}

absl::StatusOr<const MutableBytes*> ShmLink::FindSlot(const FrameHeader& header) {
  if (!GoesIntoSlot(header)) return nullptr;
  const MutableBytes* memory = slots_->Find(header.slot);
  if (memory != nullptr && (header.stripe_offset > memory->size() ||
                            header.payload_bytes > memory->size() - header.stripe_offset)) {
    return absl::InvalidArgumentError(
        absl::StrCat(DebugString(header), " does not fit into its slot of ", memory->size(), " bytes"));
  }
  return memory;
}

absl::Status ShmLink::OnChunk(const Descriptor& descriptor) {
  const FrameHeader& header = incoming_->header;
  const size_t missing = header.payload_bytes - incoming_->received;
  if (descriptor.bytes > missing || (descriptor.bytes == 0 && missing > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", descriptor.bytes, " bytes where ", missing,
                                                   " are missing of ", DebugString(header)));
  }
  SLUICE_ASSIGN_OR_RETURN(const ConstBytes bytes, reader_->Arena(descriptor));
  // Looked up for each chunk: the slot may have been closed since the last one.
  SLUICE_ASSIGN_OR_RETURN(const MutableBytes* const slot, FindSlot(header));
  std::byte* const target = slot != nullptr ? slot->data() + header.stripe_offset : incoming_->buffer.get();
  if (target != nullptr && !bytes.empty()) std::memcpy(target + incoming_->received, bytes.data(), bytes.size());
  incoming_->received += bytes.size();
  stats_.bytes_in += bytes.size();
  if (reader_->Advance()) Wake();
  if (incoming_->received < header.payload_bytes) return absl::OkStatus();
  const Incoming complete = *std::move(incoming_);
  incoming_.reset();
  if (GoesIntoSlot(complete.header) && slot == nullptr) return absl::OkStatus();  // closed: dropped
  Deliver(complete.header, Payload(ConstBytes(target, complete.header.payload_bytes), complete.buffer));
  return absl::OkStatus();
}

absl::Status ShmLink::OnReference(const Descriptor& descriptor) {
  SLUICE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeRingHeader(descriptor));
  const SlabRange range{.slab = descriptor.slab, .offset = descriptor.position, .bytes = header.payload_bytes};
  SLUICE_ASSIGN_OR_RETURN(std::shared_ptr<Mapping> mapping, FindPeerMemory(range));
  const ConstBytes bytes(mapping->data() + range.offset, range.bytes);
  SLUICE_ASSIGN_OR_RETURN(const MutableBytes* const slot, FindSlot(header));
  stats_.bytes_in += kHeaderBytes + range.bytes;
  if (GoesIntoSlot(header)) {
    if (slot != nullptr) std::memcpy(slot->data() + header.stripe_offset, bytes.data(), bytes.size());
    if (reader_->Advance()) Wake();
    Release(descriptor.token);
    if (slot == nullptr || state_ != State::kUp) return absl::OkStatus();
    Deliver(header, Payload(slot->subspan(header.stripe_offset, bytes.size()), nullptr));
    return absl::OkStatus();
  }
  if (!peer_memory_.Hold(descriptor.token, mapping, range)) {
    return absl::InvalidArgumentError(absl::StrCat(DebugString(header), " repeats the reference ", descriptor.token));
  }
  if (reader_->Advance()) Wake();
  std::shared_ptr<const void> owner(new ReferenceOwner{weak_from_this(), descriptor.token, std::move(mapping)});
  Deliver(header, Payload(bytes, std::move(owner), /*by_reference=*/true));
  return absl::OkStatus();
}

absl::Status ShmLink::OnPlaced(const Descriptor& descriptor) {
  SLUICE_ASSIGN_OR_RETURN(const FrameHeader header, DecodeRingHeader(descriptor));
  if (!GoesIntoSlot(header)) {
    return absl::InvalidArgumentError(absl::StrCat(DebugString(header), " was placed nowhere"));
  }
  SLUICE_ASSIGN_OR_RETURN(const MutableBytes* const slot, FindSlot(header));
  stats_.bytes_in += kHeaderBytes + header.payload_bytes;
  if (reader_->Advance()) Wake();
  if (slot != nullptr) {
    Deliver(header, Payload(slot->subspan(header.stripe_offset, header.payload_bytes), nullptr));
  } else if (slots_->FinishedClosing(header.slot)) {
    context_->handler->OnSlotClosed(id_, header.slot);
  }
  return absl::OkStatus();
}

absl::Status ShmLink::OnRelease(const Descriptor& descriptor) {
  const auto it = lent_.find(descriptor.token);
  if (it == lent_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("release of ", descriptor.token, ", which is not lent"));
  }
  const uint64_t cookie = it->second;
  lent_.erase(it);
  if (reader_->Advance()) Wake();
  context_->handler->OnSent(id_, cookie);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Mapping>> ShmLink::FindPeerMemory(const SlabRange& range) {
  // Its announcement may still be in the socket.
  if (!peer_memory_.Has(range.slab)) ReadPackets(/*all=*/true);
  return peer_memory_.Find(range);
}

void ShmLink::Deliver(const FrameHeader& header, Payload payload) {
  ++stats_.frames_in;
  stats_.payload_in += header.payload_bytes;
  context_->handler->OnFrame(id_, header, std::move(payload));
}

}  // namespace sluice::transport
