// A trainer's rows, made ready for the wire: split by segment, sorted, duplicates brought together. Pure functions, which
// the client library calls on the trainer's thread and the simulator calls as it likes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "worker/row_pull.h"
#include "worker/row_residual.h"

namespace sluice::worker {

// What a worker needs to know of a table.
struct TableShape {
  std::string name;
  uint32_t dim = 0;
  uint32_t segments = 0;
  uint64_t vocabulary = 0;      // 0 = any id
  bool unknown_as_zero = false; // ids beyond it: read as zeros and not pushed, instead of refused
  std::shared_ptr<const compression::Codec> codec;   // of the values that are pushed; null = none
  std::shared_ptr<RowResidual> residual;             // null: what the codec loses is lost
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

// ids: any order, duplicates allowed; gradients: ids.size() x dim.
//   1. Everything is checked. INVALID_ARGUMENT: sizes, an id beyond the vocabulary, a value or the sum of duplicates that is
//      not finite (table, id and position are named). Nothing was prepared then, and no residual has changed.
//   2. The gradients of a duplicate are summed in fp32 in order of their occurrence.
//   3. Segment by segment, rows ascending by id and packed one after the other are one vector of rows x dim elements to the
//      codec: a block of int8 (128 elements) spans rows where dim is less, and they share its scale.
//   4. A row's residual goes in with its sum, and what the encoding loses is its new one. This is the only time that residuals
//      change: the operation keeps the bytes, so that a repeat sends the same ones.
absl::StatusOr<RowPush> PrepareRowPush(const TableShape& table, std::span<const uint64_t> ids,
                                       std::span<const float> gradients);

// A part that its owner has not applied (flag REJECTED): its decoded values go back into the residual.
void ReturnRows(const TableShape& table, const RowPush::Part& part);

}  // namespace sluice::worker
