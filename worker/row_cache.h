// Rows of a table that a worker has pulled lately, kept for a bounded number of rounds.
//
// A row that was pulled when the worker had pushed r rounds may serve until it has pushed r + staleness (0: within the round
// only, which is exact under BSP). When it is full, rows go in the order of a clock: those not read since its hand last
// passed go first. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace sluice::worker {

class RowCache {
 public:
  RowCache(uint32_t dim, size_t most_rows, uint64_t staleness)
      : dim_(dim), most_rows_(most_rows), staleness_(staleness) {}

  // Copies what it has of `ids` to the same places of `out` (ids x dim); returns the positions that it has not.
  std::vector<uint32_t> Read(std::span<const uint64_t> ids, uint64_t round, std::span<float> out);
  // rows: ids x dim, pulled when `round` rounds had been pushed.
  void Put(std::span<const uint64_t> ids, uint64_t round, std::span<const float> rows);

  struct Stats {
    uint64_t reads = 0, hits = 0;
    size_t rows = 0;
  };
  Stats stats() const;

 private:
  struct Slot {
    uint64_t id = 0, round = 0;
    bool read = false;
  };
  size_t SlotFor(uint64_t id);   // with mutex held

  const uint32_t dim_;
  const size_t most_rows_;
  const uint64_t staleness_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, size_t> index_;   // guarded by mutex_, as the rest
  std::vector<Slot> slots_;
  std::vector<float> values_;
  size_t hand_ = 0;
  Stats stats_;
};

}  // namespace sluice::worker
