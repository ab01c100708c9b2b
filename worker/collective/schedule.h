// What each member of a group does in a collective, as a list of steps. Pure.
//
// A schedule is made by each member for itself, from the algorithm, the members' number and places, its own index and the
// elements; members agree because they compute the same. Steps name ranges of one work buffer:
//   send    the range to a peer
//   reduce  a range that comes from a peer is added to what is there
//   copy    a range that comes from a peer replaces what is there
// The k-th range that a sends to b is the k-th that b takes from a, and is as long. A step may run when all earlier steps of
// its list that touch the same elements are done (reads beside reads apart): Dependencies(). So sums are added in the order
// of the list, whatever comes first, and a run repeats to the bit. Each element is summed up at one member and copied from
// there, so all members have equal bits.
//
// Ranges are cut into pieces of at most `piece` elements, which makes pipelines of long ways.
//
// Order of the sums, members by their index:
//   ring               part c (of n): ((x[c+1] + x[c+2]) + …) + x[c], indices modulo n
//   halving-doubling   by pairs: of the largest power of two p <= n, member v adds v ^ p/2, then v ^ p/4, …; before that the
//                      first 2(n-p) members are added by pairs (2j + (2j+1)), which then are one
//   double tree        own value, then the children's sums in the order of their index; the first half of the elements in one
//                      tree, the second in its mirror image (n even) or shifted by one (n odd)
//   chain, tree        (reduce) the same with one tree; chain: each member has one child
//   hierarchical       the ring's inside each domain of the narrowest level, then of these sums at the next; where the domains
//                      of a level are of different sizes, first all to the domain's first member, by a chain
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::collective {

enum class Algorithm : uint8_t { kAuto, kRing, kHalvingDoubling, kDoubleTree, kHierarchical, kChain, kTree };
absl::string_view AlgorithmName(Algorithm algorithm);   // "ring", "halving_doubling", "double_tree", "hierarchical", …
// INVALID_ARGUMENT lists the names.
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name);   // "" and "auto" = kAuto

struct Step {
  enum class Kind : uint8_t { kSend, kReduce, kCopy };
  Kind kind = Kind::kSend;
  bool from_input = false;   // send: the range lies in the caller's input, which nothing writes to, not in the work buffer
  uint32_t peer = 0;         // index in the group
  uint64_t offset = 0, count = 0;   // count > 0
  bool operator==(const Step&) const = default;
};
using Steps = std::vector<Step>;

// Where the members are. Level 0 is the narrowest (a host); the whole group is above the last level and not in the list.
struct Layout {
  uint32_t members = 1;
  uint32_t me = 0;
  std::vector<std::vector<uint32_t>> domains;   // [level][member]: two of equal number are in one domain
};

// The elements of part i of n, as equal as can be.
inline uint64_t PartBegin(uint64_t elements, uint32_t n, uint32_t i) {
  return elements / n * i + elements % n * i / n;
}

// kRing, kHalvingDoubling, kDoubleTree, kHierarchical: the work buffer holds own values at first and the sums at the end.
Steps AllReduceSteps(Algorithm algorithm, const Layout& layout, uint64_t elements, uint64_t piece);
// kChain, kTree. The root's work buffer holds the sums at the end; the others' is used up.
Steps ReduceSteps(Algorithm algorithm, const Layout& layout, uint32_t root, uint64_t elements, uint64_t piece);
Steps BroadcastSteps(Algorithm algorithm, const Layout& layout, uint32_t root, uint64_t elements, uint64_t piece);
// By a ring. The work buffer is members * count; block i is member i's: all-gather: what it brings; reduce-scatter: what it
// gets (the rest of the buffer is used up).
Steps AllGatherSteps(const Layout& layout, uint64_t count, uint64_t piece);
Steps ReduceScatterSteps(const Layout& layout, uint64_t count, uint64_t piece);
// Block j of the input goes to member j, block i of the work buffer comes from member i (the own one is not in the list).
Steps AllToAllSteps(const Layout& layout, uint64_t count, uint64_t piece);

// For each step the earlier ones that it must wait for: of those that touch some of its elements, the last ones are enough.
std::vector<std::vector<uint32_t>> Dependencies(const Steps& steps);

}  // namespace sluice::collective
