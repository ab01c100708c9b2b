// Lists of names as Slurm writes them: "n[01-08,12],login1,r[0-3]n[00-15]".
//
// A name may have several brackets; the last one counts fastest. The width of numbers is that of a range's first
// number: [08-11] is 08, 09, 10, 11; [8-11] is 8, 9, 10, 11. Order is kept, and a name that stands twice is twice
// there.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::topology {

inline constexpr size_t kMaxHostlistNames = size_t{1} << 20;

// INVALID_ARGUMENT: an empty name, brackets that do not match, a range that is none or goes down, a character that is
// in no name (blanks, quotes, '='), a name that is too long; RESOURCE_EXHAUSTED: more than `max_names`, said before any
// is made.
absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text, size_t max_names = kMaxHostlistNames);

// Neighbours that differ in their last number share a bracket. ExpandHostlist gives `names`, which must all be
// IsHostlistName, back in their order.
std::string CompressHostlist(std::span<const std::string> names);

// Whether `name` stands in a list for itself: not empty, and no character that a list gives a meaning to.
bool IsHostlistName(absl::string_view name);

}  // namespace sluice::topology
