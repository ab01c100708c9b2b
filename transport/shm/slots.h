// Slots of one link, both ends. The state machine of a slot stands in layout.h.
//
// A slot whose memory lies in a slab has an entry in the owner's table, and the peer writes into it by itself. Any
// other slot is known to the owner alone: payloads for it come through the arena and the owner copies them.
// SlotId: bit 62, then the slot's sequence number (46 bits), then its index in the table (16 bits; kNoEntry = none).
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "transport/shm/outbox.h"
#include "transport/shm/slab.h"
#include "transport/transport.h"

namespace sluice::transport {

// Links and slots of this transport have it, those of others do not, so one process can use both in one map.
inline constexpr uint64_t kShmIdBit = uint64_t{1} << 62;

// The owner's side.
class SlotTable {
 public:
  explicit SlotTable(const Outbox* own) : own_(own) {}

  // sequence: unique in the endpoint. range: where memory lies, if the peer may write there by itself.
  SlotId Open(uint64_t sequence, MutableBytes memory, const std::optional<SlabRange>& range);
  // As Endpoint::CloseSlot. False: the peer writes; it will send a kPlaced when it is done.
  bool Close(SlotId slot);
  // nullptr if it is closed, or is being closed.
  const MutableBytes* Find(SlotId slot) const;
  // After a kPlaced: true if this slot was being closed and the writer is out. It is forgotten then.
  bool FinishedClosing(SlotId slot);
  // Closes all. True: the peer writes into some of them.
  bool CloseAll();
  // The peer is gone: forgets all, and names those whose Close had returned false.
  std::vector<SlotId> Abandon();

 private:
  struct Slot {
    MutableBytes memory;
    bool closing = false;  // the peer was writing when it was closed
    bool named = false;    // Close has returned false
  };
  void Forget(std::unordered_map<SlotId, Slot>::iterator it);

  const Outbox* const own_;
  std::unordered_map<SlotId, Slot> slots_;
  std::vector<uint32_t> free_;  // entries that were used before
  uint32_t next_ = 0;           // entries from here on were never used
};

// The writer's side: one write into a peer's slot.
class SlotWrite {
 public:
  enum class Outcome { kPrivate, kClosed, kBegun };
  // kBegun: range() may be written until End, once it has been checked against the peer's slabs.
  Outcome Begin(const Outbox& peer, SlotId slot);
  const SlabRange& range() const { return range_; }
  void End();

 private:
  SlotEntry* entry_ = nullptr;
  uint64_t sequence_ = 0;
  SlabRange range_;
};

}  // namespace sluice::transport
