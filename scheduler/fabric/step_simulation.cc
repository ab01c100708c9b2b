// SimulateStep: every message as a transfer.
//
// Servers: a stream (shards that take the same way) is cut into partitions. Of each rank, the pushes to one receiver go out
// in order, each when the last byte of the one before has left. An aggregator sends its sum of a partition on when all its
// ranks and children have brought theirs; the owner replies when all have; an aggregator passes the reply on.
// Rings: each member sends a piece on when it has got it, behind the one before. A level begins when the rank is done with the level
// inside it; reduce-scatter from the innermost level outwards, all-gather back.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/fabric/simulation.h"
#include "scheduler/fabric/step_parts.h"

namespace sluice::fabric {
namespace {

constexpr size_t kMaxTasks = 50000;
constexpr size_t kMaxPartitions = 16;   // of a stream to an owner: more make no difference worth their time
using Tasks = std::vector<uint32_t>;

class Builder {
 public:
  Builder(const Routes& routes, const StepSpec& spec) : routes_(routes), spec_(spec), sim_(Capacity(routes, spec)) {}

  absl::Status Build() {
    double tasks = 0;
    const std::vector<Stream> streams = StreamsOf(spec_);
    for (const Stream& stream : streams) {
      const double nodes = stream.tree < 0 ? 0 : static_cast<double>(spec_.trees[stream.tree].nodes.size());
      tasks += 2.0 * kMaxPartitions * static_cast<double>(stream.bytes.size()) * (static_cast<double>(spec_.workers.size()) + nodes);
    }
    const auto levels = spec_.collective_bytes > 0 ? RingsOf(spec_) : std::vector<std::vector<Ring>>();
    for (const auto& level : levels)
      for (const Ring& ring : level) tasks += 2.0 * static_cast<double>(ring.ranks.size()) * static_cast<double>(ring.ranks.size());
    if (tasks > kMaxTasks)
      return absl::ResourceExhaustedError(absl::StrCat("a step of up to ", tasks, " transfers is too large to simulate (", kMaxTasks,
                                                       "): predict it by its loads"));
    for (const Stream& stream : streams)
      for (const auto& [owner, bytes] : stream.bytes)
        if (bytes > 0) AddStream(stream, owner, bytes);
    AddRings(levels);
    return absl::OkStatus();
  }

  StepPrediction Run(size_t busiest) const {
    Simulation::Result result = sim_.Run();
    result.arc_bytes.resize(routes_.arcs());
    StepPrediction prediction{.compute_s = spec_.compute_s, .communication_s = result.end, .complete = complete_};
    prediction.step_s = spec_.compute_s + std::max(0.0, result.end - spec_.overlap * spec_.compute_s);
    prediction.busiest = Busiest(result.arc_bytes, routes_, spec_.efficiency, busiest);
    return prediction;
  }

 private:
  // Behind the network's arcs: what each rank has towards others of its host, in rings.
  static std::vector<double> Capacity(const Routes& routes, const StepSpec& spec) {
    std::vector<double> capacity;
    for (uint32_t arc = 0; arc < routes.arcs(); ++arc) capacity.push_back(routes.BytesPerSecond(arc) * spec.efficiency * spec.utilization);
    capacity.insert(capacity.end(), spec.workers.size(), spec.inside_bytes_per_second);
    return capacity;
  }

  struct Path {
    std::vector<Simulation::Use> way;
    double latency = 0;
    bool found = true;
  };

  const Path& Between(uint32_t from, uint32_t to) {
    const auto [it, is_new] = paths_.emplace(std::pair(from, to), Path());
    Path& path = it->second;
    if (is_new && from != to) {
      path.found = routes_.Spread(from, to, [&](uint32_t arc, double share) { path.way.push_back({arc, share}); });
      path.latency = path.found ? routes_.Latency(from, to) : 0;
    }
    return path;
  }

  // What has no way is left out, and counts as done.
  uint32_t Send(uint32_t from, uint32_t to, double bytes, const Tasks& after) {
    const Path& path = Between(from, to);
    complete_ = complete_ && path.found;
    return path.found ? sim_.Transfer(bytes, path.way, path.latency, after) : sim_.Compute(0, after);
  }

  // One after the other among those of one key.
  using Last = absl::flat_hash_map<uint32_t, uint32_t>;
  uint32_t SendInOrder(Last* last, uint32_t key, uint32_t from, uint32_t to, double bytes, Tasks after) {
    if (const auto it = last->find(key); it != last->end()) after.push_back(Simulation::Sent(it->second));
    return (*last)[key] = Send(from, to, bytes, after);
  }

  void AddStream(const Stream& stream, uint32_t owner, double total) {
    const size_t partitions = std::clamp<size_t>(static_cast<size_t>(std::ceil(total / spec_.partition_bytes)), 1, kMaxPartitions);
    const double bytes = total / static_cast<double>(partitions);
    static const StepTree kNoTree;
    const StepTree& tree = stream.tree < 0 ? kNoTree : spec_.trees[stream.tree];
    const std::vector<uint32_t> depths = DepthsOf(tree);
    std::vector<size_t> order(tree.nodes.size());   // leaves first
    for (size_t n = 0; n < order.size(); ++n) order[n] = n;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return depths[a] > depths[b]; });
    const uint32_t ranks = static_cast<uint32_t>(spec_.workers.size()), at = spec_.servers[owner];
    const auto host = [&](size_t node) { return spec_.servers[tree.nodes[node].server]; };
    Last up, down;   // by sender (a rank, or a node behind all ranks), and by receiver
    for (size_t p = 0; p < partitions; ++p) {
      std::vector<Tasks> in(tree.nodes.size());
      Tasks all;
      for (const uint32_t rank : stream.direct)
        all.push_back(SendInOrder(&up, rank, spec_.workers[rank], at, bytes * spec_.push_ratio, {}));
      for (const size_t n : order) {
        const StepTree::Node& node = tree.nodes[n];
        for (const uint32_t rank : node.ranks)
          in[n].push_back(SendInOrder(&up, rank, spec_.workers[rank], host(n), bytes * spec_.push_ratio, {}));
        const uint32_t name = ranks + static_cast<uint32_t>(n);
        const uint32_t sum = SendInOrder(&up, name, host(n), node.parent < 0 ? at : host(node.parent), bytes * spec_.forward_ratio, in[n]);
        (node.parent < 0 ? all : in[node.parent]).push_back(sum);
      }
      const uint32_t applied = sim_.Compute(0, all);
      for (const uint32_t rank : stream.direct)
        SendInOrder(&down, rank, at, spec_.workers[rank], bytes * spec_.reply_ratio, {applied});
      std::vector<uint32_t> reply(tree.nodes.size());
      for (auto it = order.rbegin(); it != order.rend(); ++it) {
        const StepTree::Node& node = tree.nodes[*it];
        const uint32_t name = ranks + static_cast<uint32_t>(*it);
        reply[*it] = SendInOrder(&down, name, node.parent < 0 ? at : host(node.parent), host(*it), bytes * spec_.reply_ratio,
                                 {node.parent < 0 ? applied : reply[node.parent]});
        for (const uint32_t rank : node.ranks)
          SendInOrder(&down, rank, host(*it), spec_.workers[rank], bytes * spec_.reply_ratio, {reply[*it]});
      }
    }
  }

  uint32_t SendInRing(uint32_t from, uint32_t to, double bytes, const Tasks& after) {
    if (spec_.workers[from] != spec_.workers[to]) return Send(spec_.workers[from], spec_.workers[to], bytes, after);
    const Simulation::Use inside[] = {{static_cast<uint32_t>(routes_.arcs()) + from, 1}};
    return sim_.Transfer(bytes, inside, 0, after);
  }

  void AddRings(const std::vector<std::vector<Ring>>& levels) {
    std::vector<Tasks> done(spec_.workers.size());   // of each rank: what it has to have before it goes on
    const auto half = [&](const std::vector<Ring>& level, double ratio) {
      std::vector<Tasks> after(spec_.workers.size());
      for (const Ring& ring : level) {
        const size_t m = ring.ranks.size();
        const double bytes = spec_.collective_bytes * ring.part * ratio / static_cast<double>(m);
        std::vector<Tasks> last(m);
        for (size_t i = 0; i < m; ++i) last[i] = done[ring.ranks[i]];
        Tasks before;   // what each member sent last: the next one goes out behind it
        for (size_t step = 0; step + 1 < m; ++step) {
          std::vector<Tasks> next(m);
          Tasks sent;
          for (size_t i = 0; i < m; ++i) {
            if (step > 0) last[i].push_back(Simulation::Sent(before[i]));
            sent.push_back(SendInRing(ring.ranks[i], ring.ranks[(i + 1) % m], bytes, last[i]));
            next[(i + 1) % m] = {sent.back()};
          }
          before = std::move(sent);
          last = std::move(next);
        }
        for (size_t i = 0; i < m; ++i) after[ring.ranks[i]].insert(after[ring.ranks[i]].end(), last[i].begin(), last[i].end());
      }
      for (size_t r = 0; r < after.size(); ++r)
        if (!after[r].empty()) done[r] = std::move(after[r]);
    };
    for (const auto& level : levels) half(level, spec_.reduce_ratio);
    for (auto it = levels.rbegin(); it != levels.rend(); ++it) half(*it, spec_.gather_ratio);
  }

  const Routes& routes_;
  const StepSpec& spec_;
  Simulation sim_;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Path> paths_;
  bool complete_ = true;
};

}  // namespace

absl::StatusOr<StepPrediction> SimulateStep(const Routes& routes, const StepSpec& spec, size_t busiest) {
  SLUICE_RETURN_IF_ERROR(CheckStep(spec));
  Builder builder(routes, spec);
  SLUICE_RETURN_IF_ERROR(builder.Build());
  return builder.Run(busiest);
}

}  // namespace sluice::fabric
