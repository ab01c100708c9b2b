// Payloads of tables: which rows, and their values (docs/wire.md, "Rows").
//
//   u32 rows, u32 id_bytes, packed ids (id_bytes, padded to 8 with zeros), values (rows x dim in a codec's format)
//
// Ids are strictly ascending and packed as differences: the first id as it is (u64), then blocks of 128 differences
// minus one, each block a byte of bit width (0 to 64) and its differences in that many bits, lowest first, padded with
// zero bits to whole bytes. No rows have no packed ids. Writers take the least width of a block; readers accept any
// that holds. A pull has no values. Integers are little-endian; values begin at a multiple of 8 bytes from the head.
//
// Nothing in a payload can make a reader allocate more than 8 bytes an announced row, or read beyond the payload. Every
// byte of head and ids is read once, so a peer that writes meanwhile cannot slip past a check.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::compression {

inline constexpr size_t kIdBlock = 128;  // differences of one width

size_t MaxPackedIdBytes(size_t rows);  // of the head and the padded ids

// Appends head and ids. ids: strictly ascending, fewer than 2^28 (INVALID_ARGUMENT else, and nothing is appended).
absl::Status PackIds(std::span<const uint64_t> ids, std::vector<std::byte>* out);

struct RowPayload {
  std::vector<uint64_t> ids;
  ConstBytes values;  // of the payload that was parsed
};

// most_rows bounds what is accepted. DATA_LOSS says what is wrong and where.
absl::StatusOr<RowPayload> ParseRows(ConstBytes payload, size_t most_rows);

// Which segment an id belongs to: the upper bits of a mixing hash (the finalizer of splitmix64, Steele et al. 2014)
// scaled to the number of segments, so that neighbouring ids spread and every segment has a range of hashes.
inline uint64_t MixId(uint64_t id) {
  id = (id ^ (id >> 30)) * 0xBF58476D1CE4E5B9;
  id = (id ^ (id >> 27)) * 0x94D049BB133111EB;
  return id ^ (id >> 31);
}
inline uint32_t SegmentOfHash(uint64_t hash, uint32_t segments) {  // hash: MixId of the id
  return static_cast<uint32_t>(((hash >> 32) * segments) >> 32);
}
inline uint32_t SegmentOf(uint64_t id, uint32_t segments) { return SegmentOfHash(MixId(id), segments); }

}  // namespace sluice::compression
