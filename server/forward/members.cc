#include "server/forward/members.h"

#include <algorithm>

#include "server/core.h"
#include "server/forward/forward_message.h"

namespace sluice::server {

std::vector<ForwardMember> MembersOf(const control::TreeWay& way, size_t node) {
  std::vector<ForwardMember> members;
  for (const uint32_t rank : way.nodes[node].ranks) members.push_back({rank, rank, {rank}});
  for (const uint32_t child : way.nodes[node].children) {
    const control::TreeWay::Node& below = way.nodes[child];
    members.push_back({kForwardRank | below.server, below.covers.front(), below.covers});
  }
  std::ranges::sort(members, {}, &ForwardMember::key);
  return members;
}

void AppendNesting(const control::TreeWay& way, size_t node, std::span<const uint32_t> ranks, std::vector<int32_t>* nesting) {
  nesting->push_back(-1 - static_cast<int32_t>(way.nodes[node].server));
  for (const ForwardMember& member : MembersOf(way, node)) {
    if ((member.id & kForwardRank) == 0) {
      if (std::ranges::binary_search(ranks, member.id)) nesting->push_back(static_cast<int32_t>(member.id));
      continue;
    }
    const auto has = [&](uint32_t rank) { return std::ranges::binary_search(ranks, rank); };
    if (std::ranges::none_of(member.covers, has)) continue;
    const auto child = std::ranges::find(way.nodes, member.id & ~kForwardRank, &control::TreeWay::Node::server);
    AppendNesting(way, static_cast<size_t>(child - way.nodes.begin()), ranks, nesting);
  }
  nesting->push_back(kNestingEnd);
}

}  // namespace sluice::server
