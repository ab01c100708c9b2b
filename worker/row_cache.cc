#include "worker/row_cache.h"

#include <algorithm>

namespace sluice::worker {

std::vector<uint32_t> RowCache::Read(std::span<const uint64_t> ids, uint64_t round, std::span<float> out) {
  std::vector<uint32_t> missing;
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.reads += ids.size();
  for (uint32_t i = 0; i < ids.size(); ++i) {
    const auto it = index_.find(ids[i]);
    if (it == index_.end() || slots_[it->second].round + staleness_ < round) {
      missing.push_back(i);
      continue;
    }
    slots_[it->second].read = true;
    std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(it->second * dim_), dim_,
                out.begin() + static_cast<std::ptrdiff_t>(size_t{i} * dim_));
  }
  stats_.hits += ids.size() - missing.size();
  return missing;
}

size_t RowCache::SlotFor(uint64_t id) {
  if (const auto it = index_.find(id); it != index_.end()) return it->second;
  if (slots_.size() < most_rows_) {
    slots_.push_back({});
    values_.resize(slots_.size() * dim_);
    return index_[id] = slots_.size() - 1;
  }
  while (slots_[hand_].read) {
    slots_[hand_].read = false;
    hand_ = (hand_ + 1) % slots_.size();
  }
  const size_t slot = hand_;
  hand_ = (hand_ + 1) % slots_.size();
  index_.erase(slots_[slot].id);
  return index_[id] = slot;
}

void RowCache::Put(std::span<const uint64_t> ids, uint64_t round, std::span<const float> rows) {
  if (most_rows_ == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t at = SlotFor(ids[i]);
    Slot& slot = slots_[at];
    if (slot.id == ids[i] && slot.round > round) continue;   // a later pull was quicker
    slot.id = ids[i];
    slot.round = round;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(i * dim_), dim_,
                values_.begin() + static_cast<std::ptrdiff_t>(at * dim_));
  }
}

RowCache::Stats RowCache::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  Stats stats = stats_;
  stats.rows = index_.size();
  return stats;
}

}  // namespace sluice::worker
