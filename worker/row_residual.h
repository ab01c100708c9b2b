// What encoding took from the gradients of rows, kept by row until the row is pushed again (error feedback,
// compression/codec.h): the residual of a row is added to its next gradient before that is encoded, and what the encoding
// loses then is the row's new residual.
//
// Bounded by most_rows. A push renews the rows that it has. When all places are taken a new row gets that of the row that
// was pushed longest ago, but never that of a row of the same push; a row that finds none keeps nothing. What is dropped is
// lost: one rounding of that row, never more, since nothing was added to it since. So a bound above the rows that one push
// has serves the rows that are pushed often, whatever comes between.
// The content is a function of the pushes and their order alone. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice::worker {

class RowResidual {
 public:
  RowResidual(uint32_t dim, uint64_t most_rows);

  // One push, which nothing else comes between: Take and Keep for each of its segments in turn.
  class Push {
   public:
    explicit Push(RowResidual* residual) : residual_(*residual), lock_(residual->mutex_) { ++residual_.push_; }
    // Their residuals, zeros where there is none: ids.size() x dim.
    void Take(std::span<const uint64_t> ids, std::span<float> out) const;
    // Their new ones. ids: unique.
    void Keep(std::span<const uint64_t> ids, std::span<const float> values);

   private:
    RowResidual& residual_;
    const std::lock_guard<std::mutex> lock_;
  };

  // Values that were sent and not applied: added to the residuals of their rows.
  void Return(std::span<const uint64_t> ids, std::span<const float> values);

  // For snapshots: the row that was pushed longest ago comes first. Restore replaces everything.
  struct Saved {
    std::vector<uint64_t> ids;
    std::vector<float> values;   // ids.size() x dim
  };
  Saved Save() const;
  void Restore(const Saved& saved);

  struct Stats {
    size_t rows = 0;
    uint64_t dropped = 0;        // residuals that found no place or lost theirs
  };
  Stats stats() const;
  uint32_t dim() const { return dim_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Place {
    uint64_t id = 0, push = 0;
    uint32_t older = kNone, newer = kNone;
  };

  // All with mutex_ held.
  uint32_t PlaceFor(uint64_t id);   // renewed or new; kNone: no room
  void Append(uint32_t place);      // as the newest
  void Unlink(uint32_t place);
  float* Values(uint32_t place) { return values_.data() + size_t{place} * dim_; }

  const uint32_t dim_;
  const size_t most_rows_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, uint32_t> index_;   // guarded by mutex_, as the rest
  std::vector<Place> places_;
  std::vector<float> values_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  uint64_t push_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace sluice::worker
