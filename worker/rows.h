// A trainer's rows, made ready for the wire: split by segment, sorted, duplicates brought together. Pure functions, which
// the client library calls on the trainer's thread and the simulator calls as it likes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "worker/row_pull.h"

namespace sluice::worker {

// What a worker needs to know of a table.
struct TableShape {
  std::string name;
  uint32_t dim = 0;
  uint32_t segments = 0;
  uint64_t vocabulary = 0;      // 0 = any id
  bool unknown_as_zero = false; // ids beyond it: read as zeros and not pushed, instead of refused
};

absl::Status BeyondVocabulary(const TableShape& table, uint64_t id, size_t position);

// One push of row gradients: a payload (compression/row_payload.h) for each segment.
struct RowPush {
  struct Part {
    std::vector<std::byte> payload;   // empty: no row of this segment
    uint32_t rows = 0;
  };
  std::vector<Part> parts;            // by segment
  uint16_t codec = 0;                 // of the values
  uint64_t raw_bytes = 0;             // fp32 bytes of the rows that are sent
};

// ids: any order, duplicates allowed; gradients: ids.size() x dim. The gradients of a duplicate are summed in fp32 in order
// of their occurrence. INVALID_ARGUMENT: sizes, an id beyond the vocabulary, a value that is not finite (table, id and
// position are named); nothing was prepared then.
absl::StatusOr<RowPush> PrepareRowPush(const TableShape& table, std::span<const uint64_t> ids,
                                       std::span<const float> gradients, const compression::Codec& codec);

}  // namespace sluice::worker
