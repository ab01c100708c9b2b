#include "compression/index_pack.h"

namespace sluice::compression {
namespace {

// Calls group(gaps, members, width) for each group of indices.
template <typename Group>
void ForGroups(std::span<const uint32_t> indices, Group group) {
  uint32_t next = 0;
  for (size_t first = 0; first < indices.size(); first += kGapGroup) {
    const size_t members = std::min(kGapGroup, indices.size() - first);
    uint32_t gaps[kGapGroup], all = 0;
    for (size_t j = 0; j < members; ++j) {
      gaps[j] = indices[first + j] - next;
      next = indices[first + j] + 1;
      all |= gaps[j];
    }
    group(gaps, members, static_cast<unsigned>(std::bit_width(all)));
  }
}

}  // namespace

size_t PackedGapBytes(std::span<const uint32_t> indices) {
  size_t bytes = 0;
  ForGroups(indices, [&](const uint32_t*, size_t members, unsigned width) { bytes += 1 + (members * width + 7) / 8; });
  return bytes;
}

// The gaps of all groups add up to less than n, so the widest gaps x_g of G groups do. A width is at most
// log2(x_g + 1) + 1, and by concavity the sum of G logarithms is at most G log2(n / G + 1).
uint64_t MaxPackedGapBytes(uint64_t count, uint64_t n) {
  const uint64_t groups = count / kGapGroup + (count % kGapGroup != 0);
  if (groups == 0) return 0;
  const uint64_t width = std::min<uint64_t>(static_cast<uint64_t>(std::bit_width(n / groups + 1)) + 1, 48);
  return groups + groups * width * (kGapGroup / 8);
}

void PackGaps(std::span<const uint32_t> indices, std::byte* out) {
  ForGroups(indices, [&](const uint32_t* gaps, size_t members, unsigned width) {
    *out++ = static_cast<std::byte>(width);
    uint64_t held = 0;   // bits that are not written yet
    unsigned bits = 0;
    for (size_t j = 0; j < members; ++j) {
      held |= uint64_t{gaps[j]} << bits;
      bits += width;
      for (; bits >= 8; bits -= 8, held >>= 8) *out++ = static_cast<std::byte>(held);
    }
    if (bits > 0) *out++ = static_cast<std::byte>(held);
  });
}

void PackBitmap(std::span<const uint32_t> indices, size_t n, std::byte* out) {
  std::memset(out, 0, BitmapBytes(n));
  for (const uint32_t i : indices) out[i / 8] |= static_cast<std::byte>(1u << (i % 8));
}

}  // namespace sluice::compression
