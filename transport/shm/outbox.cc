#include "transport/shm/outbox.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::transport {
namespace {

// Large payloads go through the arena in pieces, so that the reader copies one while the writer fills the next.
constexpr size_t kMaxChunk = 128 << 10;
// Smaller pieces of a larger payload are not worth a descriptor.
constexpr size_t kMinChunk = 16 << 10;

absl::Status CheckShape(const OutboxShape& shape) {
  if (!std::has_single_bit(shape.ring_entries) || shape.ring_entries > kMaxRingEntries ||
      !std::has_single_bit(shape.arena_bytes) || shape.arena_bytes < kPageBytes || shape.arena_bytes > kMaxArenaBytes ||
      shape.slots > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat("impossible outbox: ", shape.ring_entries, " ring entries, ",
                                                   shape.slots, " slots, arena of ", shape.arena_bytes, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Outbox> Outbox::Create(const OutboxShape& shape) {
  SLUICE_RETURN_IF_ERROR(CheckShape(shape));
  Outbox outbox;
  outbox.shape_ = shape;
  SLUICE_ASSIGN_OR_RETURN(outbox.file_, CreateSealedMemory("sluice-outbox", OutboxBytes(shape)));
  SLUICE_ASSIGN_OR_RETURN(outbox.mapping_, Mapping::Map(outbox.file_.get(), OutboxBytes(shape)));
  const OutboxHeader header{kOutboxMagic, shape.ring_entries, shape.slots, shape.arena_bytes};
  std::memcpy(outbox.base(), &header, sizeof(header));
  // The reader is asleep until it has looked for the first time.
  outbox.consumer().asleep.store(1);
  return outbox;
}

absl::StatusOr<Outbox> Outbox::Adopt(const UniqueFd& file) {
  SLUICE_ASSIGN_OR_RETURN(const size_t bytes, CheckSealedMemory(file.get()));
  if (bytes < kRingOffset || bytes > OutboxBytes({kMaxRingEntries, kMaxSlots, kMaxArenaBytes})) {
    return absl::InvalidArgumentError(absl::StrCat("impossible outbox of ", bytes, " bytes"));
  }
  Outbox outbox;
  SLUICE_ASSIGN_OR_RETURN(outbox.mapping_, Mapping::Map(file.get(), bytes));
  OutboxHeader header;
  std::memcpy(&header, outbox.base(), sizeof(header));
  if (header.magic != kOutboxMagic) {
    return absl::InvalidArgumentError("the peer's shared memory is no outbox of this version of Sluice");
  }
  outbox.shape_ = {header.ring_entries, header.slots, header.arena_bytes};
  SLUICE_RETURN_IF_ERROR(CheckShape(outbox.shape_));
  if (OutboxBytes(outbox.shape_) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("an outbox of ", bytes, " bytes says that it has ", OutboxBytes(outbox.shape_)));
  }
  return outbox;
}

OutboxWriter::OutboxWriter(const Outbox* outbox) : outbox_(outbox), entries_(outbox->shape().ring_entries) {}

absl::Status OutboxWriter::Refresh() {
  const uint64_t head = outbox_->consumer().head.load();
  if (head < head_ || head > tail_) {
    return absl::DataLossError(
        absl::StrCat("the peer's read position jumped from ", head_, " to ", head, ", but ", tail_, " were written"));
  }
  for (; head_ < head; ++head_) {
    const Entry& entry = entries_[head_ & (entries_.size() - 1)];
    arena_head_ = entry.arena_end;
    queued_bytes_ -= entry.accounted;
  }
  return absl::OkStatus();
}

OutboxWriter::Room OutboxWriter::Reserve(size_t want) const {
  const uint64_t size = outbox_->shape().arena_bytes;
  const uint64_t place = arena_tail_ & (size - 1);
  const uint64_t unused = size - (arena_tail_ - arena_head_);
  const uint64_t to_end = size - place;
  size_t bytes = std::min<uint64_t>({want, unused, to_end, kMaxChunk});
  // Short pieces only where the arena's end makes them so.
  if (bytes < std::min<uint64_t>({want, to_end, kMinChunk, size / 4})) bytes = 0;
  return {.position = arena_tail_, .data = outbox_->arena() + place, .bytes = bytes};
}

void OutboxWriter::Publish(const Descriptor& descriptor, size_t accounted) {
  const auto kind = static_cast<DescriptorKind>(descriptor.kind);
  if (kind == DescriptorKind::kFrame || kind == DescriptorKind::kChunk) arena_tail_ += descriptor.bytes;
  entries_[tail_ & (entries_.size() - 1)] = {arena_tail_, accounted};
  queued_bytes_ += accounted;
  std::memcpy(outbox_->entry(tail_), &descriptor, sizeof(descriptor));
  outbox_->producer().tail.store(++tail_);
}

bool OutboxWriter::MustWake() {
  auto& asleep = outbox_->consumer().asleep;
  return asleep.load() != 0 && asleep.exchange(0) != 0;
}

bool OutboxWriter::WaitForRoom() {
  const uint64_t wake_at = head_ + (tail_ - head_ + 1) / 2;
  outbox_->producer().wake_at.store(wake_at);
  return outbox_->consumer().head.load() < wake_at;
}

absl::StatusOr<std::optional<Descriptor>> OutboxReader::Next() {
  if (head_ == tail_) {
    const uint64_t tail = outbox_->producer().tail.load();
    if (tail < tail_ || tail - head_ > outbox_->shape().ring_entries) {
      return absl::DataLossError(
          absl::StrCat("the peer's write position jumped from ", tail_, " to ", tail, " at read position ", head_));
    }
    tail_ = tail;
    if (head_ == tail_) return std::nullopt;
  }
  Descriptor descriptor;
  std::memcpy(&descriptor, outbox_->entry(head_), sizeof(descriptor));
  return descriptor;
}

absl::StatusOr<ConstBytes> OutboxReader::Arena(const Descriptor& descriptor) const {
  const uint64_t size = outbox_->shape().arena_bytes;
  const uint64_t place = descriptor.position & (size - 1);
  if (descriptor.bytes > size - place) {
    return absl::DataLossError(absl::StrCat("a chunk of ", descriptor.bytes, " bytes at ", place,
                                            " does not lie in the arena of ", size, " bytes"));
  }
  return ConstBytes(outbox_->arena() + place, descriptor.bytes);
}

bool OutboxReader::Advance() {
  outbox_->consumer().head.store(++head_);
  auto& wake_at = outbox_->producer().wake_at;
  const uint64_t wanted = wake_at.load();
  return wanted != 0 && head_ >= wanted && wake_at.exchange(0) != 0;
}

bool OutboxReader::Sleep() {
  outbox_->consumer().asleep.store(1);
  if (outbox_->producer().tail.load() == head_) return true;
  outbox_->consumer().asleep.store(0);
  return false;
}

}  // namespace sluice::transport
