#include "server/table/row_sum.h"

#include <algorithm>
#include <bit>

#include "compression/row_payload.h"

namespace sluice::server {
namespace {

constexpr size_t kBatch = 64;  // rows whose memory is fetched ahead
constexpr size_t kLeastIndex = 64;

}  // namespace

void RowSum::Reserve(size_t rows) {
  const size_t wanted = std::bit_ceil(std::max(kLeastIndex, 2 * rows));
  if (wanted <= index_.size()) return;
  index_.assign(wanted, 0);
  for (size_t at = 0; at < ids_.size(); ++at) {
    slots_[at] = FreeSlot(ids_[at]);
    index_[slots_[at]] = static_cast<uint32_t>(at + 1);
  }
}

uint32_t RowSum::FreeSlot(uint64_t id) const {
  const size_t mask = index_.size() - 1;
  size_t slot = compression::MixId(id) & mask;
  while (index_[slot] != 0) slot = (slot + 1) & mask;
  return static_cast<uint32_t>(slot);
}

uint32_t RowSum::FindOrAppend(uint64_t id) {
  const size_t mask = index_.size() - 1;
  size_t slot = compression::MixId(id) & mask;
  for (; index_[slot] != 0; slot = (slot + 1) & mask)
    if (ids_[index_[slot] - 1] == id) return index_[slot] - 1;
  ids_.push_back(id);
  sightings_.push_back(0);
  slots_.push_back(static_cast<uint32_t>(slot));
  index_[slot] = static_cast<uint32_t>(ids_.size());
  return static_cast<uint32_t>(ids_.size() - 1);
}

// A batch passes three times: fetch the index, find the rows and fetch their sums, add.
void RowSum::Add(std::span<const uint64_t> ids, std::span<const float> values) {
  uint32_t found[kBatch];
  for (size_t first = 0; first < ids.size(); first += kBatch) {
    const size_t members = std::min(kBatch, ids.size() - first);
    Reserve(ids_.size() + members);
    const size_t mask = index_.size() - 1;
    for (size_t j = 0; j < members; ++j) __builtin_prefetch(&index_[compression::MixId(ids[first + j]) & mask]);
    for (size_t j = 0; j < members; ++j) {
      found[j] = FindOrAppend(ids[first + j]);
      if (sightings_[found[j]] > 0) __builtin_prefetch(&sums_[size_t{found[j]} * dim_], 1);
    }
    for (size_t j = 0; j < members; ++j) {
      const float* __restrict value = values.data() + (first + j) * dim_;
      if (sightings_[found[j]]++ == 0) {  // rows append in the order of their positions
        sums_.insert(sums_.end(), value, value + dim_);
        continue;
      }
      float* __restrict sum = sums_.data() + size_t{found[j]} * dim_;
      for (uint32_t i = 0; i < dim_; ++i) sum[i] += value[i];
    }
  }
}

void RowSum::Divide(float by) {
  for (float& sum : sums_) sum /= by;
}

void RowSum::Reset() {
  if (slots_.size() < index_.size() / 16) {
    for (const uint32_t slot : slots_) index_[slot] = 0;
  } else {
    std::fill(index_.begin(), index_.end(), 0);
  }
  ids_.clear();
  sums_.clear();
  sightings_.clear();
  slots_.clear();
}

size_t RowSum::bytes() const {
  return ids_.capacity() * sizeof(uint64_t) + sums_.capacity() * sizeof(float) +
         (sightings_.capacity() + slots_.capacity() + index_.capacity()) * sizeof(uint32_t);
}

}  // namespace sluice::server
