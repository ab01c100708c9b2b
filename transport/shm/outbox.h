// The two ends of an outbox's ring and arena: layout.h.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/shm/layout.h"
#include "transport/shm/shared_memory.h"

namespace sluice::transport {

// An outbox in this process's memory, of a shape that is known to fit its mapping.
class Outbox {
 public:
  // A new one; file() is for the peer.
  static absl::StatusOr<Outbox> Create(const OutboxShape& shape);
  // A peer's: INVALID_ARGUMENT if it cannot be mapped without danger or its header lies.
  static absl::StatusOr<Outbox> Adopt(const UniqueFd& file);

  const OutboxShape& shape() const { return shape_; }
  int file() const { return file_.get(); }
  void CloseFile() { file_.reset(); }

  ProducerLine& producer() const { return *reinterpret_cast<ProducerLine*>(base() + kProducerOffset); }
  ConsumerLine& consumer() const { return *reinterpret_cast<ConsumerLine*>(base() + kConsumerOffset); }
  std::byte* entry(uint64_t position) const {
    return base() + kRingOffset + (position & (shape_.ring_entries - 1)) * sizeof(Descriptor);
  }
  SlotEntry& slot(uint32_t index) const {
    return reinterpret_cast<SlotEntry*>(base() + SlotsOffset(shape_))[index];
  }
  std::byte* arena() const { return base() + ArenaOffset(shape_); }

 private:
  std::byte* base() const { return mapping_->data(); }
  OutboxShape shape_;
  std::shared_ptr<Mapping> mapping_;
  UniqueFd file_;
};

// The owner's end. A method that reports an error has caught the peer cheating.
class OutboxWriter {
 public:
  explicit OutboxWriter(const Outbox* outbox);

  // Learns how far the peer has read.
  absl::Status Refresh();
  // Room for one more descriptor, as far as is known.
  bool HasEntry() const { return tail_ - head_ < entries_.size(); }
  // Contiguous arena bytes to write `want` bytes or a part of them into; 0 bytes = no room worth while yet.
  // What is written belongs to the next Publish.
  struct Room {
    uint64_t position = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  Room Reserve(size_t want) const;
  // Publishes one descriptor (HasEntry must hold). `accounted` bytes count as queued until the peer has read it.
  void Publish(const Descriptor& descriptor, size_t accounted);
  // True if the peer sleeps and must be woken; it counts as awake from now on.
  bool MustWake();
  // Asks for a wake-up when about half of what is in the ring has been read. False: that is so already, look again.
  bool WaitForRoom();

  // Nothing is in the ring, as far as is known.
  bool idle() const { return head_ == tail_; }
  // Bytes that the peer has not read yet, as far as is known.
  size_t queued_bytes() const { return queued_bytes_; }

 private:
  struct Entry {
    uint64_t arena_end = 0;
    size_t accounted = 0;
  };
  const Outbox* const outbox_;
  std::vector<Entry> entries_;  // by place in the ring
  uint64_t tail_ = 0, head_ = 0;
  uint64_t arena_tail_ = 0, arena_head_ = 0;
  size_t queued_bytes_ = 0;
};

// The peer's end.
class OutboxReader {
 public:
  explicit OutboxReader(const Outbox* outbox) : outbox_(outbox) {}

  // The next descriptor, copied out; nullopt = none now. An error has caught the owner cheating.
  absl::StatusOr<std::optional<Descriptor>> Next();
  // The bytes that a kFrame or kChunk names.
  absl::StatusOr<ConstBytes> Arena(const Descriptor& descriptor) const;
  // Gives the descriptor of the last Next back, with its part of the arena. True: the owner waits and must be woken.
  bool Advance();
  // Goes to sleep. False: something has come meanwhile, go on reading.
  bool Sleep();

 private:
  const Outbox* const outbox_;
  uint64_t head_ = 0, tail_ = 0;
};

}  // namespace sluice::transport
