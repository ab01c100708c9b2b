// The examples of one step, and which rows of a table they need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/data/sparse_dataset.h"

namespace sluice::worker {

// In CSR form, but instead of its id each feature has the position of its id in `ids`.
struct SparseBatch {
  std::span<const uint32_t> row_begin;   // rows + 1
  std::span<const uint32_t> positions;   // below ids.size()
  std::span<const float> values;
  std::span<const float> labels;         // rows
  std::span<const uint64_t> ids;         // each once, ascending: as a table's payload has them

  size_t rows() const { return labels.size(); }
};

// Maps ids to their positions among the distinct ones, ascending: a pure function of the ids.
class IdCollector {
 public:
  // Valid until the next call. positions[i]: that of ids[i]. At most 2^31 - 1 ids.
  void Collect(std::span<const uint64_t> ids);
  std::span<const uint64_t> unique() const { return unique_; }
  std::span<const uint32_t> positions() const { return positions_; }

 private:
  std::vector<uint64_t> unique_;
  std::vector<uint32_t> positions_;
  std::vector<uint32_t> slots_;  // open addressing: 1 + number in order of appearance, 0 = free
  std::vector<uint32_t> order_, place_;
  std::vector<uint64_t> seen_;
};

// Gathers rows of a data set: a batch's memory.
class SparseBatchBuffer {
 public:
  // Valid until the next call. rows: at most 2^31 - 1 features in all.
  SparseBatch Gather(const SparseDataset& data, std::span<const uint32_t> rows);

 private:
  std::vector<uint64_t> occurrences_;
  std::vector<uint32_t> row_begin_;
  std::vector<float> values_, labels_;
  IdCollector collector_;
};

}  // namespace sluice::worker
