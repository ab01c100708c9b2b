// The payload of a forward (docs/wire.md, "A push through a tree"): whose contributions it is the sum of, and the sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace sluice::server {

// FrameHeader.rank of what servers forward: this and the server's index in the plan.
inline constexpr uint32_t kForwardRank = 0x40000000;

// How the sum is written. 0 to 2 are those of server/sparse_sum.h.
inline constexpr uint32_t kForwardBins = 3, kForwardNothing = 4;

struct ForwardParts {
  uint32_t form = 0;
  uint64_t count = 0;               // of a sparse sum
  std::vector<uint32_t> ranks;      // ascending, not empty
  ConstBytes body;                  // a view
};

size_t ForwardHeadBytes(uint32_t workers);
// Writes the head alone. out has ForwardHeadBytes(workers); ranks are below `workers`.
void WriteForwardHead(uint32_t form, uint64_t count, std::span<const uint32_t> ranks, uint32_t workers, MutableBytes out);
// Hostile input is allowed. The body is not looked at.
absl::StatusOr<ForwardParts> ParseForward(ConstBytes payload, uint32_t workers);

}  // namespace sluice::server
