// What a pull of rows asks each segment for, and where the answers go. Pure functions, which the client library calls on
// the trainer's thread and the simulator calls as it likes.
//
// Rows of one part are asked for together, as often as the wire allows: an id that the caller has several times is asked
// for once, unless it was pushed out of a small table of recent ids in between. Packed ids are each asked for once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::worker {

struct TableShape;   // worker/rows.h

struct RowPull {
  // Row `row` of a part's answer goes to position `position` of the caller's list of ids.
  struct Place {
    uint32_t position;
    uint32_t row;
  };
  struct Part {
    uint32_t segment = 0;
    uint32_t rows = 0;
    size_t first_place = 0, places = 0;
    size_t first_byte = 0, bytes = 0;
  };
  // What a part's PULL carries: ids only, as docs/wire.md, "Rows", has them.
  ConstBytes Payload(const Part& part) const {
    return (packed ? ConstBytes(packed_ids) : std::as_bytes(std::span(ids))).subspan(part.first_byte, part.bytes);
  }

  uint32_t dim = 0;
  bool packed = false;                // payloads are packed ids; else u64 each
  std::vector<Part> parts;
  std::vector<uint64_t> ids;          // by part
  std::vector<std::byte> packed_ids;  // by part
  std::vector<Place> places;          // by part, then position
  std::vector<uint32_t> unknown;      // positions that read as zeros
};

// Memory that PrepareRowPull uses, to be kept from call to call: fresh memory costs more than the work. One call at a time.
class RowPullScratch {
 private:
  friend absl::StatusOr<RowPull> PrepareRowPull(const TableShape& table, std::span<const uint64_t> ids,
                                                RowPullScratch* scratch);
  struct Recent {
    uint64_t id;
    uint32_t number;
    uint32_t call;   // of an earlier one: means nothing
  };
  struct Target {
    uint32_t part;
    uint32_t row;
  };
  void Grow(size_t ids);

  std::vector<Recent> recent_;
  uint32_t call_ = 0;
  std::vector<uint32_t> number_;    // by position
  std::vector<uint64_t> ids_;       // by number, as the next two
  std::vector<uint32_t> segment_;
  std::vector<Target> target_;
};

// Splits into parts of at most this many bytes of values, however many ids there are (fewer than 2^32).
inline constexpr size_t kPullPartBytes = 256 << 10;

absl::StatusOr<RowPull> PrepareRowPull(const TableShape& table, std::span<const uint64_t> ids,
                                       RowPullScratch* scratch = nullptr);

// Copies a part's rows (fp32, part.rows x dim) to their places in `out` (ids.size() x dim).
void PlaceRows(const RowPull& pull, const RowPull::Part& part, ConstBytes values, std::span<float> out);

}  // namespace sluice::worker
