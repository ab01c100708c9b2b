// A trainer's rows, made ready for the wire: split by segment, sorted, duplicates brought together. Pure functions, which
// the client library calls on the trainer's thread and the simulator calls as it likes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"

namespace sluice::worker {

// What a worker needs to know of a table.
struct TableShape {
  std::string name;
  uint32_t dim = 0;
  uint32_t segments = 0;
  uint64_t vocabulary = 0;      // 0 = any id
  bool unknown_as_zero = false; // ids beyond it: read as zeros and not pushed, instead of refused
};

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

// One pull of rows. Rows of one part are asked for together; row r of a part (its r-th id) goes to
// places[starts[first + r]] … places[starts[first + r + 1] - 1], positions in the caller's list of ids.
struct RowPull {
  struct Part {
    uint32_t segment = 0;
    uint32_t rows = 0;
    uint32_t first = 0;
    std::vector<std::byte> payload;   // ids only, as docs/wire.md, "Rows", has them for a PULL
  };
  uint32_t dim = 0;
  bool packed = false;                // payloads are packed ids; else u64 each
  std::vector<Part> parts;
  std::vector<uint32_t> starts, places;
  std::vector<uint32_t> unknown;      // positions that read as zeros
};

// Splits into parts of at most this many bytes of values, however many ids there are (fewer than 2^32).
inline constexpr size_t kPullPartBytes = 256 << 10;

absl::StatusOr<RowPull> PrepareRowPull(const TableShape& table, std::span<const uint64_t> ids);

// Copies a part's rows (fp32, part.rows x dim) to their places in `out` (ids.size() x dim).
void PlaceRows(const RowPull& pull, const RowPull::Part& part, ConstBytes values, std::span<float> out);

}  // namespace sluice::worker
