// Sending: steps 2 and 3 of shm_link.h.
#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/shm/shm_link.h"

namespace sluice::transport {
namespace {

constexpr TimeNs kLateWake = kMillisecond;

}  // namespace

bool ShmLink::ByReference(ConstBytes payload) const {
  return state_ == State::kUp && payload.size() >= context_->min_reference_bytes &&
         context_->slabs->Find(payload).has_value();
}

void ShmLink::Sent(uint64_t cookie) {
  if (cookie == 0) return;
  ++owed_;
  context_->defer([self = shared_from_this(), cookie] {
    --self->owed_;
    self->context_->handler->OnSent(self->id_, cookie);
  });
}

void ShmLink::Send(const FrameHeader& header, ConstBytes payload, uint64_t cookie) {
  if (state_ == State::kLingering || state_ == State::kDown) return Sent(cookie);
  Outgoing frame{.header = header, .payload = payload, .cookie = cookie};
  // The hash is a property of the transport, and this one has none: the payload never leaves the machine's memory.
  frame.header.flags &= static_cast<uint16_t>(~kFlagHash);
  frame.header.payload_hash = 0;
  if (state_ == State::kUp && pending_.empty()) {
    publishing_ = cookie;
    const Progress progress = Publish(frame);
    publishing_ = 0;
    if (progress == Progress::kDone || state_ != State::kUp) return;  // not up: ShutDown has seen to the cookie
  }
  if (cookie == 0) {
    frame.copy.assign(payload.begin(), payload.end());
    frame.payload = frame.copy;
  }
  pending_bytes_ += kHeaderBytes + payload.size();
  pending_.push_back(std::move(frame));
  Flush();
}

bool ShmLink::Writable() {
  if (state_ == State::kLingering || state_ == State::kDown) return true;  // what is sent is dropped
  if (queued_bytes() <= context_->limits.max_queued_bytes) return true;
  wants_writable_ = true;
  Flush();
  return queued_bytes() <= context_->limits.max_queued_bytes;
}

void ShmLink::Flush() {
  while (state_ == State::kUp) {
    if (absl::Status status = writer_->Refresh(); !status.ok()) return Fail(status);
    FlushPending();
    if (state_ != State::kUp) return;
    if (wants_writable_ && queued_bytes() <= context_->limits.max_queued_bytes / 2) {
      wants_writable_ = false;
      context_->defer([weak = weak_from_this()] {
        auto self = weak.lock();
        if (self != nullptr && self->state_ == State::kUp) self->context_->handler->OnWritable(self->id_);
      });
    }
    if (pending_.empty() && pending_releases_.empty() && !wants_writable_) return;
    if (writer_->idle()) return;  // it is the socket that has no room
    if (writer_->WaitForRoom()) return;
  }
}

void ShmLink::FlushPending() {
  while (!pending_releases_.empty() && HasEntry()) {
    Descriptor release{.kind = static_cast<uint32_t>(DescriptorKind::kRelease), .token = pending_releases_.front()};
    pending_releases_.pop_front();
    if (self_.role == PeerRole::kWorker) {
      writer_->Publish(release, 0);
      WakeLater();
    } else {
      Publish(release, 0);
    }
  }
  while (state_ == State::kUp && !pending_.empty()) {
    // Taken out, because a link that fails on the way empties the queue.
    Outgoing frame = std::move(pending_.front());
    pending_.pop_front();
    pending_bytes_ -= kHeaderBytes + frame.payload.size() - frame.sent;
    publishing_ = frame.cookie;
    const Progress progress = Publish(frame);
    publishing_ = 0;
    if (progress == Progress::kDone) continue;
    if (state_ != State::kUp) return;  // ShutDown has seen to the cookie
    pending_bytes_ += kHeaderBytes + frame.payload.size() - frame.sent;
    pending_.push_front(std::move(frame));
    return;
  }
}

bool ShmLink::HasEntry() {
  if (writer_->HasEntry()) return true;
  if (absl::Status status = writer_->Refresh(); !status.ok()) {
    Fail(status);
    return false;
  }
  return writer_->HasEntry();
}

void ShmLink::Publish(const Descriptor& descriptor, size_t accounted) {
  writer_->Publish(descriptor, accounted);
  if (writer_->MustWake()) Wake();
}

void ShmLink::WakeLater() {
  if (std::exchange(wake_scheduled_, true)) return;
  context_->loop->After(kLateWake, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    self->wake_scheduled_ = false;
    if (self->state_ == State::kUp && self->writer_->MustWake()) self->Wake();
  });
}

Descriptor ShmLink::MakeDescriptor(DescriptorKind kind, const FrameHeader& header) const {
  Descriptor descriptor{.kind = static_cast<uint32_t>(kind)};
  EncodeHeader(header, descriptor.header);
  return descriptor;
}

ShmLink::Progress ShmLink::Publish(Outgoing& frame) {
  if (!HasEntry()) return Progress::kBlocked;
  if (!frame.started) {
    if (frame.header.slot != 0 && !frame.payload.empty()) {
      SlotWrite write;
      switch (write.Begin(*peer_, frame.header.slot)) {
        case SlotWrite::Outcome::kBegun:
          return PublishPlaced(frame, write);
        case SlotWrite::Outcome::kClosed:
          Sent(frame.cookie);
          return Progress::kDone;
        case SlotWrite::Outcome::kPrivate:
          break;
      }
    }
    if (frame.cookie != 0 && ByReference(frame.payload)) {
      const SlabRange range = *context_->slabs->Find(frame.payload);
      switch (AnnounceSlab(range.slab)) {
        case Announced::kYes:
          return PublishReference(frame, range);
        case Announced::kLater:
          return Progress::kBlocked;
        case Announced::kNever:
          break;
      }
    }
  }
  return PublishCopied(frame);
}

ShmLink::Progress ShmLink::PublishPlaced(Outgoing& frame, SlotWrite& write) {
  const absl::StatusOr<std::shared_ptr<Mapping>> mapping = FindPeerMemory(write.range());
  const uint64_t offset = frame.header.stripe_offset;
  const bool fits = offset <= write.range().bytes && frame.payload.size() <= write.range().bytes - offset;
  if (mapping.ok() && fits) {
    std::memcpy((*mapping)->data() + write.range().offset + offset, frame.payload.data(), frame.payload.size());
  }
  write.End();
  if (!mapping.ok()) {
    Fail(mapping.status());
    return Progress::kBlocked;
  }
  // A stripe that is too long for its slot is for the owner to refuse.
  if (!fits) return PublishCopied(frame);
  Publish(MakeDescriptor(DescriptorKind::kPlaced, frame.header), kHeaderBytes + frame.payload.size());
  stats_.payload_out += frame.payload.size();
  stats_.bytes_out += kHeaderBytes + frame.payload.size();
  ++stats_.frames_out;
  Sent(frame.cookie);
  return Progress::kDone;
}

ShmLink::Progress ShmLink::PublishReference(Outgoing& frame, const SlabRange& range) {
  Descriptor descriptor = MakeDescriptor(DescriptorKind::kReference, frame.header);
  descriptor.slab = range.slab;
  descriptor.position = range.offset;
  descriptor.token = ++last_token_;
  lent_.emplace(descriptor.token, frame.cookie);
  Publish(descriptor, kHeaderBytes + frame.payload.size());
  stats_.payload_out += frame.payload.size();
  stats_.bytes_out += kHeaderBytes + frame.payload.size();
  ++stats_.frames_out;
  return Progress::kDone;
}

ShmLink::Progress ShmLink::PublishCopied(Outgoing& frame) {
  const size_t total = frame.payload.size();
  do {
    if (!HasEntry()) return Progress::kBlocked;
    OutboxWriter::Room room;
    if (total > 0) {
      room = writer_->Reserve(total - frame.sent);
      if (room.bytes == 0) {
        if (absl::Status status = writer_->Refresh(); !status.ok()) {
          Fail(status);
          return Progress::kBlocked;
        }
        room = writer_->Reserve(total - frame.sent);
        if (room.bytes == 0) return Progress::kBlocked;
      }
      std::memcpy(room.data, frame.payload.data() + frame.sent, room.bytes);
    }
    Descriptor descriptor = frame.started ? Descriptor{.kind = static_cast<uint32_t>(DescriptorKind::kChunk)}
                                          : MakeDescriptor(DescriptorKind::kFrame, frame.header);
    descriptor.bytes = static_cast<uint32_t>(room.bytes);
    descriptor.position = room.position;
    const size_t header_bytes = frame.started ? 0 : kHeaderBytes;
    Publish(descriptor, header_bytes + room.bytes);
    frame.started = true;
    frame.sent += room.bytes;
    stats_.payload_out += room.bytes;
    stats_.bytes_out += header_bytes + room.bytes;
  } while (frame.sent < total);
  ++stats_.frames_out;
  Sent(frame.cookie);
  return Progress::kDone;
}

ShmLink::Announced ShmLink::AnnounceSlab(uint32_t slab) {
  if (announced_.contains(slab)) return Announced::kYes;
  if (socket_full_) return Announced::kLater;
  const absl::StatusOr<SlabFile> file = context_->slabs->File(slab);
  if (!file.ok()) return Announced::kNever;  // out of files: the payload is copied instead
  const absl::Status status =
      SendFrame({.type = FrameType::kTransport, .aux = static_cast<uint32_t>(SocketMessage::kSlab), .aux64 = slab}, {},
                file->fd.get());
  if (absl::IsResourceExhausted(status)) {
    WaitForSocket();
    return Announced::kLater;
  }
  if (!status.ok()) return Announced::kNever;  // the socket is dead: its hang-up is under way
  announced_.insert(slab);
  return Announced::kYes;
}

void ShmLink::SlabRetired(uint32_t slab) {
  if (state_ != State::kUp || announced_.erase(slab) == 0) return;
  retired_.push_back(slab);
  TellRetired();
}

void ShmLink::TellRetired() {
  while (!retired_.empty() && !socket_full_) {
    const absl::Status status = SendFrame({.type = FrameType::kTransport,
                                           .aux = static_cast<uint32_t>(SocketMessage::kSlabRetired),
                                           .aux64 = retired_.front()},
                                          {}, -1);
    if (absl::IsResourceExhausted(status)) return WaitForSocket();
    retired_.pop_front();
  }
}

void ShmLink::Release(uint64_t token) {
  if (state_ != State::kUp) return;
  peer_memory_.Drop(token);
  pending_releases_.push_back(token);
  Flush();
}

}  // namespace sluice::transport
