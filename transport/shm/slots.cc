#include "transport/shm/slots.h"

namespace sluice::transport {
namespace {

constexpr uint32_t kNoEntry = 0xFFFF;

uint32_t IndexOf(SlotId slot) { return static_cast<uint32_t>(slot & 0xFFFF); }
uint64_t SequenceOf(SlotId slot) { return (slot & ~kShmIdBit) >> 16; }
uint64_t Word(uint64_t sequence, SlotState state) { return sequence << 2 | static_cast<uint64_t>(state); }

bool Move(SlotEntry& entry, uint64_t sequence, SlotState from, SlotState to) {
  uint64_t expected = Word(sequence, from);
  return entry.state.compare_exchange_strong(expected, Word(sequence, to));
}

}  // namespace

SlotId SlotTable::Open(uint64_t sequence, MutableBytes memory, const std::optional<SlabRange>& range) {
  uint32_t index = kNoEntry;
  if (range.has_value()) {
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (next_ < own_->shape().slots) {
      index = next_++;
    }
  }
  if (index != kNoEntry) {
    SlotEntry& entry = own_->slot(index);
    entry.offset = range->offset;
    entry.bytes = memory.size();
    entry.slab = range->slab;
    entry.state.store(Word(sequence, SlotState::kOpen));
  }
  const SlotId slot = kShmIdBit | sequence << 16 | index;
  slots_.emplace(slot, Slot{memory});
  return slot;
}

void SlotTable::Forget(std::unordered_map<SlotId, Slot>::iterator it) {
  if (IndexOf(it->first) != kNoEntry) free_.push_back(IndexOf(it->first));
  slots_.erase(it);
}

bool SlotTable::Close(SlotId slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return true;
  it->second.named = true;
  if (it->second.closing) return false;
  if (const uint32_t index = IndexOf(slot); index != kNoEntry) {
    SlotEntry& entry = own_->slot(index);
    const uint64_t sequence = SequenceOf(slot);
    // An honest peer moves only between OPEN and BUSY, so one of the two soon succeeds. Whatever else a dishonest one
    // stores is as good as CLOSED: it can write into the slab at any time anyway.
    for (int tries = 0; tries < 64; ++tries) {
      if (Move(entry, sequence, SlotState::kOpen, SlotState::kClosed)) break;
      if (Move(entry, sequence, SlotState::kBusy, SlotState::kClosing)) {
        it->second.closing = true;
        return false;
      }
    }
    entry.state.store(Word(sequence, SlotState::kClosed));
  }
  Forget(it);
  return true;
}

const MutableBytes* SlotTable::Find(SlotId slot) const {
  const auto it = slots_.find(slot);
  return it == slots_.end() || it->second.closing ? nullptr : &it->second.memory;
}

bool SlotTable::FinishedClosing(SlotId slot) {
  const auto it = slots_.find(slot);
  if (it == slots_.end() || !it->second.closing) return false;
  if (own_->slot(IndexOf(slot)).state.load() == Word(SequenceOf(slot), SlotState::kClosing)) return false;
  own_->slot(IndexOf(slot)).state.store(Word(SequenceOf(slot), SlotState::kClosed));
  Forget(it);
  return true;
}

bool SlotTable::CloseAll() {
  bool busy = false;
  for (auto it = slots_.begin(); it != slots_.end();) {
    const auto next = std::next(it);
    const bool named = it->second.named;
    if (!Close(it->first)) {
      busy = true;
      it->second.named = named;
    }
    it = next;
  }
  return busy;
}

std::vector<SlotId> SlotTable::Abandon() {
  std::vector<SlotId> closing;
  for (const auto& [id, slot] : slots_) {
    if (slot.named) closing.push_back(id);
  }
  slots_.clear();
  return closing;
}

SlotWrite::Outcome SlotWrite::Begin(const Outbox& peer, SlotId slot) {
  const uint32_t index = IndexOf(slot);
  if (index >= peer.shape().slots) return Outcome::kPrivate;
  entry_ = &peer.slot(index);
  sequence_ = SequenceOf(slot);
  if (!Move(*entry_, sequence_, SlotState::kOpen, SlotState::kBusy)) return Outcome::kClosed;
  // Loaded once: the copy is what is checked and used.
  range_ = {.slab = std::atomic_ref(entry_->slab).load(std::memory_order_relaxed),
            .offset = std::atomic_ref(entry_->offset).load(std::memory_order_relaxed),
            .bytes = std::atomic_ref(entry_->bytes).load(std::memory_order_relaxed)};
  return Outcome::kBegun;
}

void SlotWrite::End() {
  if (!Move(*entry_, sequence_, SlotState::kBusy, SlotState::kOpen)) {
    entry_->state.store(Word(sequence_, SlotState::kClosed));
  }
}

}  // namespace sluice::transport
