#include "worker/model/sparse_batch.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace sluice::worker {
namespace {

// The finalizer of splitmix64, so that neighbouring ids do not crowd together.
uint64_t Mix(uint64_t id) {
  id = (id ^ (id >> 30)) * 0xBF58476D1CE4E5B9;
  id = (id ^ (id >> 27)) * 0x94D049BB133111EB;
  return id ^ (id >> 31);
}

}  // namespace

// Distinct ids are found by hashing, in order of appearance, and only they are sorted: in a batch of a click log they are
// a fraction of the occurrences.
void IdCollector::Collect(std::span<const uint64_t> ids) {
  const size_t capacity = std::bit_ceil(2 * ids.size() + 2);
  slots_.assign(capacity, 0);
  seen_.clear();
  positions_.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    size_t slot = Mix(ids[i]) & (capacity - 1);
    while (slots_[slot] != 0 && seen_[slots_[slot] - 1] != ids[i]) slot = (slot + 1) & (capacity - 1);
    if (slots_[slot] == 0) {
      seen_.push_back(ids[i]);
      slots_[slot] = static_cast<uint32_t>(seen_.size());
    }
    positions_[i] = slots_[slot] - 1;
  }
  order_.resize(seen_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return seen_[a] < seen_[b]; });
  unique_.resize(seen_.size());
  place_.resize(seen_.size());
  for (size_t i = 0; i < order_.size(); ++i) {
    unique_[i] = seen_[order_[i]];
    place_[order_[i]] = static_cast<uint32_t>(i);
  }
  for (uint32_t& position : positions_) position = place_[position];
}

SparseBatch SparseBatchBuffer::Gather(const SparseDataset& data, std::span<const uint32_t> rows) {
  occurrences_.clear();
  values_.clear();
  labels_.clear();
  row_begin_.assign(1, 0);
  for (const uint32_t row : rows) {
    const std::span<const uint64_t> ids = data.row_ids(row);
    const std::span<const float> values = data.row_values(row);
    occurrences_.insert(occurrences_.end(), ids.begin(), ids.end());
    values_.insert(values_.end(), values.begin(), values.end());
    labels_.push_back(data.labels[row]);
    row_begin_.push_back(static_cast<uint32_t>(occurrences_.size()));
  }
  collector_.Collect(occurrences_);
  return {.row_begin = row_begin_, .positions = collector_.positions(), .values = values_, .labels = labels_,
          .ids = collector_.unique()};
}

}  // namespace sluice::worker
