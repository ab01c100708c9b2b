// Rising indices in few bytes: gaps packed by groups of 64, or a bitmap. docs/codecs.md has the bytes.
//
//   gaps    gap = index - previous index - 1 (the first: index). 64 gaps a group: one byte, the width w of the widest
//           gap in bits, then the gaps of w bits each, lowest bit first, padded with zeros to whole bytes.
//   bitmap  ceil(n / 8) bytes; bit i % 8 of byte i / 8 says whether index i is there; bits from n on are zero.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"

namespace sluice::compression {

inline constexpr size_t kGapGroup = 64;
inline constexpr unsigned kMaxGapWidth = 32;

size_t PackedGapBytes(std::span<const uint32_t> indices);
// Bound of PackedGapBytes for `count` indices below n. No overflow for n < 2^48.
uint64_t MaxPackedGapBytes(uint64_t count, uint64_t n);
void PackGaps(std::span<const uint32_t> indices, std::byte* out);   // writes PackedGapBytes

inline uint64_t BitmapBytes(uint64_t n) { return n / 8 + (n % 8 != 0); }
void PackBitmap(std::span<const uint32_t> indices, size_t n, std::byte* out);

// Reads `count` gaps from untrusted bytes and calls visit(first, span of up to 64 rising indices, all below n) for each
// group. Every byte is read once. Trailing bytes are an error.
template <typename Visit>
absl::Status VisitGaps(ConstBytes in, size_t count, size_t n, Visit visit) {
  size_t at = 0;
  uint64_t next = 0;   // the least index that may come
  for (size_t first = 0; first < count; first += kGapGroup) {
    const size_t members = std::min(kGapGroup, count - first);
    if (at >= in.size())
      return absl::InvalidArgumentError(absl::StrCat("indices end at byte ", at, ", entry ", first, " of ", count));
    const unsigned width = static_cast<unsigned>(in[at++]);
    const size_t bytes = (members * width + 7) / 8;
    if (width > kMaxGapWidth || bytes > in.size() - at)
      return absl::InvalidArgumentError(absl::StrCat("indices of entry ", first, ": a width of ", width, " bits with ",
                                                     in.size() - at, " bytes left"));
    std::byte packed[kGapGroup * kMaxGapWidth / 8 + 8] = {};   // a copy: loads of 8 bytes stay inside
    std::memcpy(packed, in.data() + at, bytes);
    at += bytes;
    const uint64_t mask = (uint64_t{1} << width) - 1;
    uint32_t indices[kGapGroup];
    for (size_t j = 0; j < members; ++j) {
      const size_t bit = j * width;
      next += LoadLe<uint64_t>(packed + bit / 8) >> (bit % 8) & mask;
      if (next >= n) return absl::InvalidArgumentError(absl::StrCat("entry ", first + j, ": index ", next, " of ", n));
      indices[j] = static_cast<uint32_t>(next++);
    }
    if (const size_t used = members * width;
        used % 8 != 0 && static_cast<unsigned>(packed[bytes - 1]) >> (used % 8) != 0)
      return absl::InvalidArgumentError(absl::StrCat("indices of entry ", first, ": padding is not zero"));
    visit(first, std::span<const uint32_t>(indices, members));
  }
  if (at != in.size())
    return absl::InvalidArgumentError(absl::StrCat(in.size() - at, " bytes after the indices of ", count, " entries"));
  return absl::OkStatus();
}

// The same for a bitmap.
template <typename Visit>
absl::Status VisitBitmap(ConstBytes in, size_t count, size_t n, Visit visit) {
  if (in.size() != BitmapBytes(n))
    return absl::InvalidArgumentError(
        absl::StrCat("a bitmap of ", n, " bits has ", BitmapBytes(n), " bytes, not ", in.size()));
  size_t seen = 0, pending = 0;
  uint32_t indices[kGapGroup];
  for (size_t at = 0; at < in.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, in.data() + at, std::min<size_t>(8, in.size() - at));
    for (; word != 0; word &= word - 1) {
      const uint64_t index = at * 8 + static_cast<unsigned>(std::countr_zero(word));
      if (index >= n || seen + pending == count)
        return absl::InvalidArgumentError(absl::StrCat("bitmap: bit ", index, " of ", n, " is entry ", seen + pending,
                                                       " of ", count));
      indices[pending++] = static_cast<uint32_t>(index);
      if (pending < kGapGroup) continue;
      visit(seen, std::span<const uint32_t>(indices, pending));
      seen += pending;
      pending = 0;
    }
  }
  if (pending > 0) visit(seen, std::span<const uint32_t>(indices, pending));
  if (seen + pending != count)
    return absl::InvalidArgumentError(
        absl::StrCat("the bitmap has ", seen + pending, " bits set for ", count, " entries"));
  return absl::OkStatus();
}

}  // namespace sluice::compression
