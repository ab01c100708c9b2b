// Reproducible sums on the way through an aggregation tree: bins as they are, in as few bytes as they need, so that a sum that is
// merged at the owner has the bits of one that was never cut in two. docs/wire.md, "A push through a tree", has the format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "server/math/exact_sum.h"

namespace sluice::server {

// Of any sum of `elements` elements.
size_t MaxExactWireBytes(size_t elements);
size_t ExactWireBytes(const ExactSum& sum);               // about 16 bytes an element
void WriteExact(const ExactSum& sum, MutableBytes out);   // ExactWireBytes
// Hostile input is allowed: INVALID_ARGUMENT, and nothing has changed. contributions: of which it is the sum; no bin can be larger.
absl::Status MergeExact(ConstBytes wire, uint64_t contributions, ExactSum* sum);

}  // namespace sluice::server
