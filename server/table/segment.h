// One segment of a table: the rows whose ids hash into its range, and all that happens to a row in its life.
//
// A pure function of the calls made: no clock, no I/O, no thread. Equal calls give equal bits on every machine, so a
// backup or the oracle that repeats them holds the same rows. Life of a row (docs/tables.md):
//   unseen    reads give its initial values, a function of (spec.seed, id, position); nothing is stored
//   sighted   pushes are counted in a sketch until spec.admit_after; until then they change nothing
//   stored    created by the push that admits it, which also applies; from then on every push applies
//   evicted   by age, by the bounds on rows and bytes, or because its values are all zero; then it is unseen again
//
// Bounds hold at all times: a push that would create a row beyond them evicts the oldest row first, one that was not
// pushed in this round. A bound on bytes is kept as one on rows (MostRows), so that who goes does not depend on how
// memory happens to lie. Age is in rounds; from round 2^32 - 3 on all pushes count as of that round. Ids at or above
// spec.vocabulary read as zeros and their pushes are dropped; whoever must refuse them does so before. A row that was
// dropped for its zeros loses its state as well: ftrl with l1 then starts from z = 0 again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/plan.pb.h"

namespace sluice::server {

struct SegmentLimits {
  uint64_t max_rows = 0;  // of this segment; 0 = no bound
  uint64_t max_bytes = 0;
  // Asks the kernel for huge pages: reads of big segments are about half as fast again. A first touch then takes 2 MiB
  // at a time, which can be felt while a segment grows where the machine has to make that room first.
  bool huge_pages = true;
};

struct SegmentStats {
  uint64_t rows = 0;
  uint64_t bytes = 0;            // rows, state and index, as allocated
  uint64_t reads = 0, hits = 0;  // ids read, and those of them that were stored
  uint64_t updates = 0;          // row updates applied
  uint64_t created = 0, evicted_age = 0, evicted_bound = 0, dropped_zero = 0;
  uint64_t not_admitted = 0;  // row gradients that only counted as a sighting
  uint64_t no_room = 0;       // rows not created: the bound was reached and every row is of this round
  uint64_t nonfinite = 0;     // row gradients not applied because they were not finite
};

class TableSegment {
 public:
  // INVALID_ARGUMENT names the field of the spec, its value and what is allowed.
  static absl::StatusOr<std::unique_ptr<TableSegment>> Create(const proto::TableSpec& spec,
                                                              const SegmentLimits& limits);
  // How many rows such a segment holds at most: limits.max_rows, or fewer so that stats().bytes stays within max_bytes.
  static absl::StatusOr<uint64_t> MostRows(const proto::TableSpec& spec, const SegmentLimits& limits);
  virtual ~TableSegment() = default;

  virtual uint32_t dim() const = 0;

  // Values of ids.size() rows of dim() fp32, in their order; ids may repeat. Creates nothing.
  virtual void Read(std::span<const uint64_t> ids, std::span<float> out) = 0;

  // Applies one gradient to each row: to those stored first, in this order, then the others are sighted or created, in
  // this order, so that a call never evicts a row that it pushes. ids are unique; gradients: ids.size() x dim();
  // sightings[i]: how many pushes it is the sum of (empty: one each). A gradient that is not finite is counted and is
  // nothing else, no sighting either. round never falls from call to call. rate: the round's, rounded once.
  virtual void Apply(std::span<const uint64_t> ids, std::span<const float> gradients,
                     std::span<const uint32_t> sightings, float rate, uint64_t round) = 0;

  // Evicts by age: rows whose last push was max_age_rounds or more rounds ago; called once after the Applies of a
  // round. Eviction by the bounds (in Apply) goes by the oldest last push, then the smaller id.
  virtual void EndRound(uint64_t round) = 0;

  virtual SegmentStats stats() const = 0;
  // The stored ids with most sightings in applied pushes since their creation (hot_ids.h says how exact), most first.
  virtual std::vector<std::pair<uint64_t, uint64_t>> HotIds(size_t most) const = 0;

  // Every stored row in order of its id, for digests, checkpoints and tests.
  struct Row {
    uint64_t id = 0;
    std::span<const float> values;  // dim
    std::span<const float> state;   // the optimizer's
    uint64_t last_round = 0;
  };
  virtual void ForEach(const std::function<void(const Row&)>& fn) const = 0;

  // Of these rows, values and state, in their order; of those that are not stored, that they are not.
  virtual uint64_t Digest(std::span<const uint64_t> ids) const { return ids.size(); }

  // Rows, their state and ages, counts and the admission sketch, for a copy that reads, admits and evicts as this one does
  // from here on. (Hot ids are counted anew by the copy.) Rows in order of last round, then id.
  virtual size_t SavedBytes() const { return 0; }
  virtual void Save(std::span<std::byte> out) const { (void)out; }   // SavedBytes() of it
  // Into a segment in which nothing has happened. DATA_LOSS: it is of no use then.
  virtual absl::Status Load(std::span<const std::byte> saved) {
    (void)saved;
    return absl::UnimplementedError("this kind of segment is for tests and cannot be copied");
  }
};

}  // namespace sluice::server
