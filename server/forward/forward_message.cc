#include "server/forward/forward_message.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace sluice::server {
namespace {

constexpr size_t kFixedBytes = 16;

}  // namespace

size_t ForwardHeadBytes(uint32_t workers) { return kFixedBytes + (workers + 63) / 64 * 8; }

void WriteForwardHead(uint32_t form, uint64_t count, std::span<const uint32_t> ranks, uint32_t workers, MutableBytes out) {
  const size_t bytes = ForwardHeadBytes(workers);
  std::memset(out.data(), 0, bytes);
  StoreLe<uint32_t>(out.data(), static_cast<uint32_t>(bytes));
  StoreLe<uint32_t>(out.data() + 4, form);
  StoreLe<uint64_t>(out.data() + 8, count);
  for (const uint32_t rank : ranks) out[kFixedBytes + rank / 8] |= static_cast<std::byte>(1u << rank % 8);
}

absl::StatusOr<ForwardParts> ParseForward(ConstBytes payload, uint32_t workers) {
  const size_t bytes = ForwardHeadBytes(workers);
  if (payload.size() < bytes || LoadLe<uint32_t>(payload.data()) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a forward of ", payload.size(), " bytes whose head should have ", bytes));
  }
  ForwardParts parts;
  parts.form = LoadLe<uint32_t>(payload.data() + 4);
  parts.count = LoadLe<uint64_t>(payload.data() + 8);
  if (parts.form > kForwardNothing) return absl::InvalidArgumentError(absl::StrCat("a forward in form ", parts.form, ", which there is not"));
  for (size_t i = kFixedBytes; i < bytes; ++i) {
    const auto bits = static_cast<unsigned>(payload[i]);
    for (uint32_t bit = 0; bit < 8; ++bit) {
      if ((bits >> bit & 1) == 0) continue;
      const auto rank = static_cast<uint32_t>((i - kFixedBytes) * 8 + bit);
      if (rank >= workers) return absl::InvalidArgumentError(absl::StrCat("a forward names rank ", rank, " of ", workers));
      parts.ranks.push_back(rank);
    }
  }
  if (parts.ranks.empty()) return absl::InvalidArgumentError("a forward of nobody's contributions");
  parts.body = payload.subspan(bytes);
  if (parts.form == kForwardNothing && !parts.body.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("an empty forward that carries ", parts.body.size(), " bytes"));
  }
  return parts;
}

}  // namespace sluice::server
