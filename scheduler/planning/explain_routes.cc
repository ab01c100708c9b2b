#include "scheduler/planning/explain_routes.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::planning {
namespace {

std::string Name(const topology::Graph& graph, uint32_t host, uint32_t hosts) {
  return absl::StrCat(graph.vertex(host).name, hosts > 1 ? absl::StrCat(" (and ", hosts - 1, " like it)") : "");
}

std::string UsesText(uint32_t uses) {
  std::vector<std::string> words;
  for (const auto& [bit, word] : {std::pair(fabric::kPushesAndReplies, "pushes and replies"), std::pair(fabric::kForwards, "forwards"),
                                  std::pair(fabric::kCopies, "copies"), std::pair(fabric::kCollectives, "collectives")})
    if ((uses & bit) != 0) words.push_back(word);
  return absl::StrJoin(words, ", ");
}

}  // namespace

void FillRoutes(const topology::Graph& graph, const fabric::Routes& routes, const fabric::StepRoutes& step, proto::Explanation* out) {
  const fabric::StepRoutes::Found found = step.Busiest(kMostRoutes);
  for (const fabric::StepRoute& route : found.routes) {
    proto::RouteLoad* row = out->add_routes();
    row->set_from(Name(graph, route.from, route.from_hosts));
    row->set_to(Name(graph, route.to, route.to_hosts));
    for (const fabric::HostWay::Stop& stop : route.way.via)
      row->add_via(absl::StrCat(graph.vertex(stop.vertex).name, stop.of > 1 ? absl::StrCat(" (one of ", stop.of, ")") : ""));
    row->set_what(UsesText(route.uses));
    row->set_bytes(route.bytes);
    if (route.way.narrowest == topology::kNone) continue;
    const topology::Link& link = graph.link(route.way.narrowest / 2);
    const bool from_a = route.way.narrowest % 2 == 0;
    row->set_bytes_per_second(routes.BytesPerSecond(route.way.narrowest));
    row->set_narrowest(absl::StrCat(graph.vertex(from_a ? link.a : link.b).name, " -> ", graph.vertex(from_a ? link.b : link.a).name));
  }
  out->set_routes_left_out(static_cast<uint32_t>(std::min<uint64_t>(found.left_out, std::numeric_limits<uint32_t>::max())));
  if (found.joined)
    out->add_notes("routes are of groups of hosts that hang alike on the network: bytes are those between all of both groups, the way is one pair's");
  if (found.parallel)
    out->add_notes("where hosts have several ways between them, routes show even shares, by cable, as is predicted; over several rails "
                   "the transport lays bytes as it measures each one's goodput");
}

}  // namespace sluice::planning
