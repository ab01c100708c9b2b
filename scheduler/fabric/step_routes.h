// Which hosts exchange how many bytes in a step, and by which ways: what StepModel (steps.h) puts on links, told by pairs.
//
// Up to kMaxHostPairs pairs each pair of hosts stands for itself. In larger jobs hosts that are alike are joined: those on the same
// switches, then those under switches that are linked to the same higher switches, and so on until there are few enough; where
// that leads nowhere (a torus) all hosts are one. A joined pair carries the bytes between any two hosts of both groups, and
// its ways are those of one of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/fabric/routes.h"
#include "scheduler/fabric/steps.h"
#include "scheduler/fabric/ways.h"
#include "scheduler/topology/graph.h"

namespace sluice::fabric {

inline constexpr size_t kMaxHostPairs = 1 << 16;

// What bytes are for; bits, as a pair may exchange several.
enum RouteUse : uint32_t {
  kPushesAndReplies = 1,   // between workers and owners, or aggregators
  kForwards = 2,           // between aggregators and what is above them: sums, and replies on their way down
  kCopies = 4,             // from owners to backups
  kCollectives = 8,        // among workers
};

struct StepRoute {
  uint32_t from = topology::kNone, to = topology::kNone;   // hosts; of joined ones an example
  uint32_t from_hosts = 1, to_hosts = 1;                   // that are joined
  HostWay way;
  uint32_t uses = 0;
  double bytes = 0;                                        // a step
};

class StepRoutes {
 public:
  // hosts: all that take part, in any order, each as often as one likes. Both live longer.
  StepRoutes(const topology::Graph* graph, const Routes* routes, std::vector<uint32_t> hosts);

  void Add(uint32_t from, uint32_t to, double bytes, RouteUse use);
  // Each sender to each receiver that is another host: the product of weights.
  void AddAll(std::span<const Routes::Part> senders, std::span<const Routes::Part> receivers, RouteUse use);
  // The exchange with servers and the rings of a spec that StepModel::Create accepts.
  void AddStep(const StepSpec& spec);

  struct Found {
    std::vector<StepRoute> routes;
    uint64_t left_out = 0;
    uint64_t unreachable = 0;   // pairs without a way
    bool joined = false;        // rows are of hosts that are alike
    bool parallel = false;      // some pair has several ways
  };
  // Those of the pairs that keep their narrowest link busy for longest, at most `most`; ways of a pair stand together.
  Found Busiest(size_t most) const;

 private:
  struct Group {
    uint32_t first = topology::kNone, second = topology::kNone;   // hosts
    uint32_t hosts = 0;
  };
  struct Pair {
    double bytes = 0;
    uint32_t uses = 0;
  };

  void Join(const std::vector<uint32_t>& hosts);
  Pair& At(uint32_t from_group, uint32_t to_group) { return pairs_[size_t{from_group} * groups_.size() + to_group]; }

  const topology::Graph& graph_;
  const Routes& routes_;
  std::vector<uint32_t> group_of_;   // of each vertex
  std::vector<Group> groups_;
  std::vector<Pair> pairs_;          // from each group to each
  std::vector<double> own_, out_, in_;   // at hand: of each vertex; of each group
};

}  // namespace sluice::fabric
