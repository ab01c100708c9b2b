#include "worker/row_residual.h"

#include <algorithm>

namespace sluice::worker {

RowResidual::RowResidual(uint32_t dim, uint64_t most_rows)
    : dim_(dim), most_rows_(static_cast<size_t>(std::min<uint64_t>(most_rows, kNone - 1))) {}

void RowResidual::Push::Take(std::span<const uint64_t> ids, std::span<float> out) const {
  const size_t dim = residual_.dim_;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto it = residual_.index_.find(ids[i]);
    float* to = out.data() + i * dim;
    if (it == residual_.index_.end()) {
      std::fill_n(to, dim, 0.0f);
    } else {
      std::copy_n(residual_.Values(it->second), dim, to);
    }
  }
}

void RowResidual::Push::Keep(std::span<const uint64_t> ids, std::span<const float> values) {
  const size_t dim = residual_.dim_;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t place = residual_.PlaceFor(ids[i]);
    if (place != kNone) std::copy_n(values.data() + i * dim, dim, residual_.Values(place));
  }
}

void RowResidual::Return(std::span<const uint64_t> ids, std::span<const float> values) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++push_;
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t place = PlaceFor(ids[i]);
    if (place == kNone) continue;
    for (size_t k = 0; k < dim_; ++k) Values(place)[k] += values[i * dim_ + k];
  }
}

RowResidual::Saved RowResidual::Save() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Saved saved;
  saved.ids.reserve(places_.size());
  saved.values.reserve(values_.size());
  for (uint32_t at = oldest_; at != kNone; at = places_[at].newer) {
    saved.ids.push_back(places_[at].id);
    const float* values = values_.data() + size_t{at} * dim_;
    saved.values.insert(saved.values.end(), values, values + dim_);
  }
  return saved;
}

void RowResidual::Restore(const Saved& saved) {
  const std::lock_guard<std::mutex> lock(mutex_);
  index_.clear();
  places_.clear();
  values_.clear();
  oldest_ = newest_ = kNone;
  for (size_t i = 0; i < saved.ids.size(); ++i) {
    ++push_;
    const uint32_t place = PlaceFor(saved.ids[i]);
    if (place != kNone) std::copy_n(saved.values.data() + i * dim_, dim_, Values(place));
  }
}

RowResidual::Stats RowResidual::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {places_.size(), dropped_};
}

uint32_t RowResidual::PlaceFor(uint64_t id) {
  uint32_t place = kNone;
  if (const auto it = index_.find(id); it != index_.end()) {
    place = it->second;
    Unlink(place);
  } else if (places_.size() < most_rows_) {
    place = static_cast<uint32_t>(places_.size());
    places_.emplace_back();
    values_.resize(values_.size() + dim_);   // zeros
    index_[id] = place;
  } else {
    ++dropped_;
    if (oldest_ == kNone || places_[oldest_].push == push_) return kNone;
    place = oldest_;
    Unlink(place);
    index_.erase(places_[place].id);
    std::fill_n(Values(place), dim_, 0.0f);
    index_[id] = place;
  }
  places_[place].id = id;
  places_[place].push = push_;
  Append(place);
  return place;
}

void RowResidual::Append(uint32_t place) {
  places_[place].older = newest_;
  places_[place].newer = kNone;
  (newest_ == kNone ? oldest_ : places_[newest_].newer) = place;
  newest_ = place;
}

void RowResidual::Unlink(uint32_t place) {
  const Place& gone = places_[place];
  (gone.older == kNone ? oldest_ : places_[gone.older].newer) = gone.newer;
  (gone.newer == kNone ? newest_ : places_[gone.newer].older) = gone.older;
}

}  // namespace sluice::worker
