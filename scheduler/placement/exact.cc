#include "scheduler/placement/exact.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::placement {
namespace {

class BranchAndBound {
 public:
  BranchAndBound(const Problem& problem, uint64_t most)
      : problem_(problem), tree_(problem.hierarchy), most_(most), placed_in_(tree_.nodes.size()),
        placement_(problem.tasks.size(), kNone), room_(FreeRoom(problem, {})), form_(tree_.nodes.size()) {
    for (const Hierarchy::Node& node : tree_.nodes) {
      loads_.AddArc(node.up, false);
      loads_.AddArc(node.down, false);
    }
    // Pairs alone, whatever the job is: it is small.
    const size_t n = problem.tasks.size();
    bytes_.assign(n * n, 0);
    for (uint32_t t = 0; t < n; ++t)
      for (const Traffic::Peer& peer : problem.traffic.Peers(t)) bytes_[t * n + peer.task] += peer.out;
    for (const Traffic::AllToAll& all : problem.traffic.all_to_alls()) {
      for (const uint32_t from : all.from) {
        for (const uint32_t to : all.to) {
          if (from == to) continue;
          bytes_[from * n + to] += all.there;
          bytes_[to * n + from] += all.back;
        }
      }
    }
    order_.resize(n);
    std::iota(order_.begin(), order_.end(), 0u);
    std::vector<double> sum(n);
    for (size_t a = 0; a < n; ++a)
      for (size_t b = 0; b < n; ++b) sum[a] += bytes_[a * n + b] + bytes_[b * n + a];
    std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      return std::tuple(problem.Movable(a), -sum[a]) < std::tuple(problem.Movable(b), -sum[b]);
    });
    for (uint32_t node = static_cast<uint32_t>(tree_.nodes.size()); node-- > 0;) form_[node] = FormOf(node);
    like_last_.resize(n);
    for (size_t i = 1; i < n; ++i) like_last_[i] = Alike(order_[i - 1], order_[i]);
  }

  absl::Status Run(double to_beat) {
    best_ = to_beat;
    Place(0);
    if (visited_ > most_) return absl::ResourceExhaustedError(absl::StrCat("more than ", most_, " partial placements"));
    return absl::OkStatus();
  }
  const Placement& found() const { return found_; }   // empty: none is better
  double best() const { return best_; }
  uint64_t visited() const { return visited_; }

 private:
  // Domains of one form are alike: same capacities, same room, the same inside.
  uint32_t FormOf(uint32_t node) {
    const Hierarchy::Node& n = tree_.nodes[node];
    std::vector<uint32_t> inside;
    for (const uint32_t child : n.children) inside.push_back(form_[child]);
    std::sort(inside.begin(), inside.end());
    const uint32_t places = n.site == kNone ? 0 : problem_.sites[n.site].places, seats = n.site == kNone ? 0 : problem_.sites[n.site].seats;
    return forms_.emplace(std::tuple(n.up, n.down, places, seats, inside), static_cast<uint32_t>(forms_.size())).first->second;
  }

  // Whether two tasks could be exchanged: of several such, those that come later go to sites of no smaller number.
  bool Alike(uint32_t a, uint32_t b) const {
    const size_t n = problem_.tasks.size();
    if (!problem_.Movable(a) || !problem_.Movable(b) || TakesPlace(problem_.tasks[a]) != TakesPlace(problem_.tasks[b])) return false;
    if (bytes_[a * n + b] != bytes_[b * n + a]) return false;
    for (size_t other = 0; other < n; ++other)
      if (other != a && other != b && (bytes_[a * n + other] != bytes_[b * n + other] || bytes_[other * n + a] != bytes_[other * n + b]))
        return false;
    return true;
  }

  // Whether a domain on the way to `site` is empty, and a sibling before it is its like.
  bool HasTwin(uint32_t site) const {
    for (uint32_t node = tree_.leaf[site]; node != kNone && placed_in_[node] == 0; node = tree_.nodes[node].parent) {
      const uint32_t parent = tree_.nodes[node].parent;
      if (parent == kNone) break;
      for (const uint32_t sibling : tree_.nodes[parent].children) {
        if (sibling == node) break;
        if (placed_in_[sibling] == 0 && form_[sibling] == form_[node]) return true;
      }
    }
    return false;
  }

  void AddPairs(uint32_t task, double sign) {
    const size_t n = problem_.tasks.size();
    for (uint32_t other = 0; other < n; ++other) {
      if (placement_[other] == kNone || placement_[other] == placement_[task]) continue;
      const double there = sign * bytes_[task * n + other], back = sign * bytes_[other * n + task];
      if (there == 0 && back == 0) continue;
      uint32_t from = tree_.leaf[placement_[task]], to = tree_.leaf[placement_[other]];
      while (from != to) {
        const bool climbs = from != kNone && (to == kNone || tree_.nodes[from].depth >= tree_.nodes[to].depth);
        uint32_t& node = climbs ? from : to;
        loads_.Add(2 * node + (climbs ? 0 : 1), there);
        loads_.Add(2 * node + (climbs ? 1 : 0), back);
        node = tree_.nodes[node].parent;
      }
    }
  }

  void Place(size_t depth) {
    if (++visited_ > most_) return;
    if (depth == order_.size()) {
      best_ = loads_.MaxBusy();
      found_ = placement_;
      return;
    }
    const uint32_t task = order_[depth];
    for (uint32_t site = like_last_[depth] ? placement_[order_[depth - 1]] : 0; site < problem_.sites.size(); ++site) {
      uint32_t& room = room_.Of(problem_.tasks[task], site);
      if (room == 0 || (!problem_.Movable(task) && problem_.fixed[task] != site) || (problem_.Movable(task) && HasTwin(site))) continue;
      placement_[task] = site;
      --room;
      for (uint32_t node = tree_.leaf[site]; node != kNone; node = tree_.nodes[node].parent) ++placed_in_[node];
      AddPairs(task, 1);
      if (loads_.MaxBusy() < best_ * (1 - 1e-9)) Place(depth + 1);
      AddPairs(task, -1);
      for (uint32_t node = tree_.leaf[site]; node != kNone; node = tree_.nodes[node].parent) --placed_in_[node];
      ++room;
      placement_[task] = kNone;
      if (visited_ > most_) return;
    }
  }

  const Problem& problem_;
  const Hierarchy& tree_;
  const uint64_t most_;
  Loads loads_;
  std::vector<uint32_t> placed_in_;   // tasks in each domain
  Placement placement_;
  Room room_;
  std::vector<double> bytes_;
  std::vector<uint32_t> order_;
  std::vector<char> like_last_;       // of `order_`
  std::vector<uint32_t> form_;
  std::map<std::tuple<double, double, uint32_t, uint32_t, std::vector<uint32_t>>, uint32_t> forms_;
  double best_ = 0;
  Placement found_;
  uint64_t visited_ = 0;
};

}  // namespace

absl::StatusOr<Exact> SolveExactly(const Problem& problem, const Placement& known, uint64_t most) {
  SLUICE_RETURN_IF_ERROR(Check(problem));
  SLUICE_RETURN_IF_ERROR(CheckFits(problem));
  SLUICE_RETURN_IF_ERROR(Check(problem, known));
  TreeObjective objective(&problem);
  objective.Reset(known);
  BranchAndBound search(problem, most);
  SLUICE_RETURN_IF_ERROR(search.Run(objective.score().time));
  return Exact{.placement = search.found().empty() ? known : search.found(), .time = search.best(), .visited = search.visited()};
}

}  // namespace sluice::placement
