#include "compression/row_payload.h"

#include <algorithm>
#include <bit>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::compression {
namespace {

constexpr size_t kHead = 8;  // u32 rows, u32 id_bytes
constexpr size_t kFirstId = 8;
constexpr size_t kMostRows = size_t{1} << 28;  // id_bytes is a u32

size_t Padded(size_t bytes) { return (bytes + 7) / 8 * 8; }
size_t Blocks(size_t rows) { return rows == 0 ? 0 : (rows - 1 + kIdBlock - 1) / kIdBlock; }
size_t BlockBytes(size_t members, unsigned width) { return (members * width + 7) / 8; }

// Writes one block of differences; `held` collects bits until they fill a word.
std::byte* PackBlock(const uint64_t* differences, size_t members, unsigned width, std::byte* out) {
  *out++ = static_cast<std::byte>(width);
  uint64_t held = 0;
  unsigned bits = 0;
  for (size_t j = 0; j < members; ++j) {
    held |= differences[j] << bits;
    bits += width;
    if (bits < 64) continue;
    StoreLe(out, held);
    out += 8;
    bits -= 64;
    held = bits == 0 ? 0 : differences[j] >> (width - bits);
  }
  for (; bits > 0; bits -= std::min(bits, 8u), held >>= 8) *out++ = static_cast<std::byte>(held);
  return out;
}

}  // namespace

size_t MaxPackedIdBytes(size_t rows) {
  return rows == 0 ? kHead : kHead + Padded(kFirstId + Blocks(rows) + (rows - 1) * 8);
}

absl::Status PackIds(std::span<const uint64_t> ids, std::vector<std::byte>* out) {
  if (ids.size() >= kMostRows)
    return absl::InvalidArgumentError(absl::StrCat(ids.size(), " rows in one payload; it must be fewer than ",
                                                   kMostRows, ": cut the call into several"));
  for (size_t i = 1; i < ids.size(); ++i)
    if (ids[i] <= ids[i - 1])
      return absl::InvalidArgumentError(
          absl::StrCat("row ids must ascend strictly: ids[", i, "] is ", ids[i], " after ", ids[i - 1]));
  const size_t begin = out->size();
  out->resize(begin + MaxPackedIdBytes(ids.size()));
  std::byte* const packed = out->data() + begin + kHead;
  std::byte* at = packed;
  if (!ids.empty()) {
    StoreLe(at, ids[0]);
    at += kFirstId;
  }
  for (size_t first = 1; first < ids.size(); first += kIdBlock) {
    const size_t members = std::min(kIdBlock, ids.size() - first);
    uint64_t differences[kIdBlock], all = 0;
    for (size_t j = 0; j < members; ++j) {
      differences[j] = ids[first + j] - ids[first + j - 1] - 1;
      all |= differences[j];
    }
    at = PackBlock(differences, members, static_cast<unsigned>(std::bit_width(all)), at);
  }
  const size_t id_bytes = static_cast<size_t>(at - packed);
  std::fill_n(at, Padded(id_bytes) - id_bytes, std::byte{0});
  StoreLe(packed - kHead, static_cast<uint32_t>(ids.size()));
  StoreLe(packed - 4, static_cast<uint32_t>(id_bytes));
  out->resize(begin + kHead + Padded(id_bytes));
  return absl::OkStatus();
}

absl::StatusOr<RowPayload> ParseRows(ConstBytes payload, size_t most_rows) {
  if (payload.size() < kHead)
    return absl::DataLossError(absl::StrCat("rows: a head of ", kHead, " bytes does not fit in ", payload.size()));
  const size_t rows = LoadLe<uint32_t>(payload.data()), id_bytes = LoadLe<uint32_t>(payload.data() + 4);
  if (rows > most_rows)
    return absl::DataLossError(absl::StrCat("rows: ", rows, " announced, at most ", most_rows, " expected"));
  if (Padded(id_bytes) > payload.size() - kHead)
    return absl::DataLossError(
        absl::StrCat("rows: ", id_bytes, " bytes of ids announced, ", payload.size() - kHead, " are there"));
  // Each block has a byte of its own, so a short payload cannot announce many rows: checked before anything is
  // allocated.
  if (const size_t least = rows == 0 ? 0 : kFirstId + Blocks(rows); id_bytes < least || (rows == 0 && id_bytes != 0))
    return absl::DataLossError(absl::StrCat("rows: ", rows, " ids cannot have ", id_bytes, " bytes"));

  RowPayload result;
  const std::byte* const packed = payload.data() + kHead;
  for (size_t at = id_bytes; at < Padded(id_bytes); ++at)
    if (packed[at] != std::byte{0})
      return absl::DataLossError(absl::StrCat("rows: byte ", at, " behind the ids is not zero"));
  result.values = payload.subspan(kHead + Padded(id_bytes));
  if (rows == 0) return result;

  result.ids.resize(rows);
  uint64_t previous = result.ids[0] = LoadLe<uint64_t>(packed);
  size_t at = kFirstId;
  for (size_t first = 1; first < rows; first += kIdBlock) {
    const size_t members = std::min(kIdBlock, rows - first);
    if (at >= id_bytes)
      return absl::DataLossError(absl::StrCat("rows: the ids end at byte ", at, ", row ", first, " of ", rows));
    const unsigned width = static_cast<unsigned>(packed[at++]);
    const size_t bytes = BlockBytes(members, width);
    if (width > 64 || bytes > id_bytes - at)
      return absl::DataLossError(absl::StrCat("rows: a width of ", width, " bits at row ", first, " with ",
                                              id_bytes - at, " bytes of ids left"));
    std::byte block[kIdBlock * 8 + 16];  // a copy: loads of 9 bytes stay inside
    std::memcpy(block, packed + at, bytes);
    std::memset(block + bytes, 0, 16);
    at += bytes;
    const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
    for (size_t j = 0; j < members; ++j) {
      const std::byte* word = block + j * width / 8;
      const unsigned shift = j * width % 8;
      uint64_t difference = LoadLe<uint64_t>(word) >> shift;
      if (shift + width > 64) difference |= static_cast<uint64_t>(word[8]) << (64 - shift);
      difference &= mask;
      if (difference >= ~previous)  // previous + 1 + difference is 2^64 or more
        return absl::DataLossError(absl::StrCat("rows: row ", first + j, " of ", rows, " lies beyond the largest id"));
      previous += difference + 1;
      result.ids[first + j] = previous;
    }
    if (const unsigned used = members * width % 8; used != 0 && static_cast<unsigned>(block[bytes - 1]) >> used != 0)
      return absl::DataLossError(absl::StrCat("rows: padding bits of the block at row ", first, " are not zero"));
  }
  if (at != id_bytes)
    return absl::DataLossError(absl::StrCat("rows: ", id_bytes - at, " bytes behind the ids of ", rows, " rows"));
  return result;
}

}  // namespace sluice::compression
