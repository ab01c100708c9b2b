// Payloads of tables: which rows, and their values (docs/wire.md, "Rows").
//
//   u32 rows, u32 id_bytes, packed ids (id_bytes, padded to 8 with zeros), values (rows x dim in a codec's format)
//
// Ids are strictly ascending and packed as differences: the first id as it is, then blocks of 128 differences minus one,
// each block a byte of bit width (0 to 64) and its differences in that many bits, lowest first. A pull has no values.
// Nothing in a payload can make a reader allocate more than 8 bytes an announced row, or read beyond the payload.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::compression {

size_t MaxPackedIdBytes(size_t rows);   // of the head and the padded ids

// Appends head and ids. ids: strictly ascending (INVALID_ARGUMENT else).
absl::Status PackIds(std::span<const uint64_t> ids, std::vector<std::byte>* out);

struct RowPayload {
  std::vector<uint64_t> ids;
  ConstBytes values;    // of the payload that was parsed
};

// most_rows bounds what is accepted. DATA_LOSS says what is wrong and where.
absl::StatusOr<RowPayload> ParseRows(ConstBytes payload, size_t most_rows);

// Which segment an id belongs to: the upper bits of a mixing hash (the finalizer of splitmix64, Steele et al. 2014) scaled
// to the number of segments, so that neighbouring ids spread and every segment has a range of hashes.
uint64_t MixId(uint64_t id);
inline uint32_t SegmentOf(uint64_t id, uint32_t segments) {
  return static_cast<uint32_t>(((MixId(id) >> 32) * segments) >> 32);
}

}  // namespace sluice::compression
