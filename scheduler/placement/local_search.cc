#include "scheduler/placement/local_search.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/philox.h"

namespace sluice::placement {
namespace {

constexpr size_t kAllPairs = 1 << 14;        // so many swaps and moves are tried one after another, more at random
constexpr uint32_t kDomainsTried = 32;
constexpr uint64_t kAcceptedBetweenSums = 1024;   // rounding adds up while bytes come and go

class Search {
 public:
  Search(Objective* objective, uint64_t seed, uint64_t budget)
      : o_(*objective), problem_(objective->problem()), random_(seed, 0x6c6f6361), budget_(budget),
        room_(FreeRoom(problem_, o_.placement())), tasks_at_(problem_.sites.size()), score_(o_.score()) {
    for (uint32_t t = 0; t < problem_.tasks.size(); ++t) {
      if (problem_.Movable(t)) movable_.push_back(t);
      tasks_at_[o_.placement()[t]].push_back(t);
    }
  }

  uint64_t used() const { return used_; }
  bool spent() const { return used_ >= budget_; }

  // Keeps it if it is better.
  bool TryMove(uint32_t task, uint32_t site) {
    const uint32_t old = o_.placement()[task];
    if (site == old || room_.Of(problem_.tasks[task], site) == 0) return false;
    o_.Move(task, site);
    if (!Keep()) {
      o_.Move(task, old);
      return false;
    }
    --room_.Of(problem_.tasks[task], site);
    ++room_.Of(problem_.tasks[task], old);
    Relocate(task, old, site);
    return true;
  }

  bool TrySwap(uint32_t a, uint32_t b) {
    const uint32_t site_a = o_.placement()[a], site_b = o_.placement()[b];
    if (site_a == site_b || TakesPlace(problem_.tasks[a]) != TakesPlace(problem_.tasks[b])) return false;
    o_.Swap(a, b);
    if (!Keep()) {
      o_.Swap(a, b);
      return false;
    }
    Relocate(a, site_a, site_b);
    Relocate(b, site_b, site_a);
    return true;
  }

  void All() {
    for (bool any = true; any && !spent();) {
      any = false;
      for (size_t i = 0; i < movable_.size() && !spent(); ++i) {
        for (size_t j = i + 1; j < movable_.size() && !spent(); ++j) any |= TrySwap(movable_[i], movable_[j]);
        for (uint32_t site = 0; site < problem_.sites.size() && !spent(); ++site) any |= TryMove(movable_[i], site);
      }
    }
  }

  // A task that makes the busiest arc busy, or any; next to one of its peers, or anywhere.
  void Guided() {
    const uint32_t tasks = static_cast<uint32_t>(movable_.size());
    uint64_t since_better = 0;
    const uint64_t patience = std::max<uint64_t>(2000, uint64_t{20} * tasks);
    while (!spent() && since_better < patience) {
      const uint32_t task = movable_[random_.Below(tasks)];
      const auto peers = problem_.traffic.Peers(task);
      uint32_t site;
      if (!peers.empty() && random_.Below(4) != 0) {
        site = o_.placement()[peers[random_.Below(static_cast<uint32_t>(peers.size()))].task];
        if (random_.Below(2) == 0) site = Neighbour(site);
      } else {
        site = random_.Below(static_cast<uint32_t>(problem_.sites.size()));
      }
      bool better = false;
      const uint64_t before = used_;
      if (room_.Of(problem_.tasks[task], site) > 0) better = TryMove(task, site);
      if (!better && !tasks_at_[site].empty()) {
        const uint32_t other = tasks_at_[site][random_.Below(static_cast<uint32_t>(tasks_at_[site].size()))];
        if (problem_.Movable(other)) better = TrySwap(task, other);
      }
      if (used_ == before) ++used_;   // nothing could be tried there: that counts, so that this ends
      since_better = better ? 0 : since_better + 1;
    }
  }

  void Run() {
    if (movable_.empty()) return;
    if (movable_.size() * (movable_.size() + problem_.sites.size()) <= kAllPairs) All();
    else Guided();
  }

  void Apart() {
    std::map<uint32_t, std::vector<uint32_t>> sites_of;   // of each failure domain
    for (uint32_t s = 0; s < problem_.sites.size(); ++s) sites_of[problem_.sites[s].failure_domain].push_back(s);
    std::vector<const std::vector<uint32_t>*> domains;
    for (const auto& [domain, sites] : sites_of) domains.push_back(&sites);
    for (const auto& set : problem_.apart) {
      if (score_.broken == 0 || spent()) return;
      for (const uint32_t task : set) {
        if (!problem_.Movable(task) || spent() || !Conflicts(set, task)) continue;
        const uint32_t first = random_.Below(static_cast<uint32_t>(domains.size()));
        for (uint32_t i = 0; i < domains.size() && i < kDomainsTried && !spent() && Conflicts(set, task); ++i) {
          const std::vector<uint32_t>& sites = *domains[(first + i) % domains.size()];
          const uint32_t at = random_.Below(static_cast<uint32_t>(sites.size()));
          bool moved = false;
          for (uint32_t k = 0; k < sites.size() && k < kDomainsTried && !moved; ++k) moved = TryMove(task, sites[(at + k) % sites.size()]);
          for (const uint32_t other : std::vector<uint32_t>(tasks_at_[sites[at]]))
            if (!moved && problem_.Movable(other)) moved = TrySwap(task, other);
        }
      }
    }
  }

 private:
  bool Keep() {
    ++used_;
    const Score now = o_.score();
    if (!Better(now, score_)) return false;
    score_ = now;
    if (++accepted_ % kAcceptedBetweenSums == 0) {
      o_.Reset(Placement(o_.placement()));
      score_ = o_.score();
    }
    return true;
  }

  void Relocate(uint32_t task, uint32_t from, uint32_t to) {
    auto& old = tasks_at_[from];
    const auto it = std::find(old.begin(), old.end(), task);
    *it = old.back();
    old.pop_back();
    tasks_at_[to].push_back(task);
  }

  uint32_t Neighbour(uint32_t site) {   // another host of its rack
    const Hierarchy& tree = problem_.hierarchy;
    const uint32_t up = tree.nodes[tree.leaf[site]].parent;
    if (up == kNone) return site;
    const auto& children = tree.nodes[up].children;
    const uint32_t other = tree.nodes[children[random_.Below(static_cast<uint32_t>(children.size()))]].site;
    return other == kNone ? site : other;
  }

  bool Conflicts(const std::vector<uint32_t>& set, uint32_t task) const {
    const uint32_t domain = problem_.sites[o_.placement()[task]].failure_domain;
    return std::any_of(set.begin(), set.end(), [&](uint32_t other) {
      return other != task && problem_.sites[o_.placement()[other]].failure_domain == domain;
    });
  }

  Objective& o_;
  const Problem& problem_;
  PhiloxRandom random_;
  const uint64_t budget_;
  Room room_;
  std::vector<std::vector<uint32_t>> tasks_at_;
  std::vector<uint32_t> movable_;
  Score score_;
  uint64_t used_ = 0, accepted_ = 0;
};

}  // namespace

uint64_t TakeApart(Objective* objective, uint64_t seed, uint64_t budget) {
  if (objective->score().broken == 0) return 0;
  Search search(objective, seed, budget);
  search.Apart();
  return search.used();
}

uint64_t Refine(Objective* objective, uint64_t seed, uint64_t budget) {
  Search search(objective, seed, budget);
  search.Run();
  return search.used();
}

}  // namespace sluice::placement
