// Who pushes to a server in forward mode, and in which order it adds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/control/tree_way.h"

namespace sluice::server {

struct ForwardMember {
  uint32_t id = 0;                 // FrameHeader.rank of its pushes: a rank, or kForwardRank + server
  uint32_t key = 0;                // its smallest rank: sums are made in this order
  std::vector<uint32_t> covers;    // ranks, ascending
};

// Of way.nodes[node], by key.
std::vector<ForwardMember> MembersOf(const control::TreeWay& way, size_t node);

// How the node's sum of these ranks (ascending) was made, as RoundRecord::nesting has it.
void AppendNesting(const control::TreeWay& way, size_t node, std::span<const uint32_t> ranks, std::vector<int32_t>* nesting);

}  // namespace sluice::server
