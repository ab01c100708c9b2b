#include "server/math/exact_wire.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice::server {
namespace {

constexpr size_t kHead = 8;
constexpr uint32_t kLeastWidth = 4, kMostWidth = 6;
constexpr int32_t kHighestBin = 7, kNonfinite = 15;   // of exact_sum.cc

size_t BytesFor(size_t elements, uint32_t width) { return kHead + elements * (1 + 3 * size_t{width}); }

uint32_t WidthFor(std::span<const int64_t> bins, uint32_t least) {
  int64_t low = 0, high = 0;
  for (const int64_t bin : bins) low = std::min(low, bin), high = std::max(high, bin);
  uint32_t width = least;
  while (width < kMostWidth && (low < -(int64_t{1} << (8 * width - 1)) || high >= int64_t{1} << (8 * width - 1))) ++width;
  return width;
}

uint32_t WidthOf(const ExactSum& sum) {
  return WidthFor(sum.above(), WidthFor(sum.home(), WidthFor(sum.below(), kLeastWidth)));
}

int64_t LoadBin(const std::byte* in, uint32_t width) {
  uint64_t bits = 0;
  std::memcpy(&bits, in, width);   // little-endian, as the machine
  const unsigned unused = 64 - 8 * width;
  return static_cast<int64_t>(bits << unused) >> unused;
}

}  // namespace

size_t MaxExactWireBytes(size_t elements) { return BytesFor(elements, kMostWidth); }

size_t ExactWireBytes(const ExactSum& sum) { return BytesFor(sum.size(), WidthOf(sum)); }

void WriteExact(const ExactSum& sum, MutableBytes out) {
  const uint32_t width = WidthOf(sum);
  StoreLe<uint32_t>(out.data(), width);
  StoreLe<uint32_t>(out.data() + 4, 0);
  std::byte* at = out.data() + kHead;
  for (const int32_t top : sum.top()) *at++ = static_cast<std::byte>(top);
  for (const std::span<const int64_t> bins : {sum.below(), sum.home(), sum.above()}) {
    for (const int64_t bin : bins) {
      std::memcpy(at, &bin, width);
      at += width;
    }
  }
}

absl::Status MergeExact(ConstBytes wire, uint64_t contributions, ExactSum* sum) {
  const size_t n = sum->size();
  const uint32_t width = wire.size() < kHead ? 0 : LoadLe<uint32_t>(wire.data());
  if (width < kLeastWidth || width > kMostWidth || wire.size() != BytesFor(n, width)) {
    return absl::InvalidArgumentError(absl::StrCat("bins of ", n, " elements in ", wire.size(), " bytes, ", width, " a bin"));
  }
  // Parts of values are below 2^32.
  const auto most = static_cast<int64_t>(std::min<uint64_t>(contributions, 1 << 24) << 32);
  ExactSum other(n);
  const std::byte* at = wire.data() + kHead;
  for (size_t i = 0; i < n; ++i) {
    const auto top = static_cast<int32_t>(*at++);
    if (top > kHighestBin && top != kNonfinite) return absl::InvalidArgumentError(absl::StrCat("element ", i, " has its top in bin ", top));
    other.top()[i] = top;
  }
  for (const std::span<int64_t> bins : {other.below(), other.home(), other.above()}) {
    for (size_t i = 0; i < n; ++i) {
      bins[i] = LoadBin(at, width);
      at += width;
      if (bins[i] > most || bins[i] < -most) {
        return absl::InvalidArgumentError(absl::StrCat("element ", i, " has a bin that ", contributions, " values cannot fill"));
      }
    }
  }
  sum->Merge(other);
  return absl::OkStatus();
}

}  // namespace sluice::server
