#include "scheduler/network/probe_choice.h"

#include <algorithm>
#include <utility>

namespace sluice::network {
namespace {

class Chooser {
 public:
  Chooser(const fabric::Routes& routes, std::span<const uint32_t> hosts, const std::vector<bool>& wanted, size_t most_pairs)
      : routes_(routes), hosts_(hosts), open_(wanted), most_pairs_(most_pairs) {
    open_.resize(routes.arcs());
  }

  ProbeChoice Choose() {
    FindUnreachable();
    Greedy(hosts_.size() <= kAllPairsHosts ? AllPairs() : SomePairs());
    if (hosts_.size() > kAllPairsHosts) SearchTheRest();
    for (size_t arc = 0; arc < open_.size(); ++arc) choice_.left_out += open_[arc];
    choice_.pairs = picked_.size();
    MakeRounds();
    return std::move(choice_);
  }

 private:
  std::vector<uint32_t> ArcsOf(ProbePair pair) const {
    std::vector<uint32_t> arcs;
    (void)routes_.Spread(hosts_[pair.from], hosts_[pair.to], [&](uint32_t arc, double share) {
      if (share > 0) arcs.push_back(arc);
    });
    return arcs;
  }
  size_t Open(const std::vector<uint32_t>& arcs) const {
    return static_cast<size_t>(std::count_if(arcs.begin(), arcs.end(), [&](uint32_t arc) { return open_[arc]; }));
  }
  void Pick(ProbePair pair, std::vector<uint32_t> arcs) {
    for (const uint32_t arc : arcs) open_[arc] = false;
    picked_.emplace_back(pair, std::move(arcs));
  }

  void FindUnreachable() {
    std::vector<double> load(routes_.arcs());
    if (hosts_.size() <= kAllPairsHosts) {
      for (const ProbePair pair : AllPairs())
        for (const uint32_t arc : ArcsOf(pair)) load[arc] = 1;
    } else {
      std::vector<fabric::Routes::Part> all;
      for (const uint32_t host : hosts_) all.push_back({host, 1});
      (void)routes_.AddLoads(all, all, &load);   // false: some have no way, theirs are left out
    }
    for (uint32_t arc = 0; arc < open_.size(); ++arc) {
      if (!open_[arc] || load[arc] > 0) continue;
      choice_.unreachable.push_back(arc);
      open_[arc] = false;
    }
  }

  std::vector<ProbePair> AllPairs() const {
    std::vector<ProbePair> pairs;
    for (uint32_t a = 0; a < hosts_.size(); ++a)
      for (uint32_t b = 0; b < hosts_.size(); ++b)
        if (a != b) pairs.push_back({a, b});
    return pairs;
  }
  std::vector<ProbePair> SomePairs() const {
    std::vector<ProbePair> pairs;
    const uint32_t n = static_cast<uint32_t>(hosts_.size());
    for (uint32_t apart = 1; apart < n; apart = apart < 4 ? apart + 1 : apart + apart / 2) {
      for (uint32_t a = 0; a < n; ++a) {
        pairs.push_back({a, (a + apart) % n});
        pairs.push_back({a, (a + n - apart) % n});
      }
    }
    return pairs;
  }

  // Gains only ever fall, so each pair waits in the class of the gain that it had last, and is looked at again when its turn comes.
  void Greedy(const std::vector<ProbePair>& pairs) {
    struct Candidate {
      ProbePair pair;
      size_t gain = 0, hops = 0;
      bool Before(const Candidate& other) const {   // a larger part of the way; then a shorter way
        if (gain * other.hops != other.gain * hops) return gain * other.hops > other.gain * hops;
        if (hops != other.hops) return hops < other.hops;
        return std::pair(pair.from, pair.to) < std::pair(other.pair.from, other.pair.to);
      }
    };
    const auto later = [](const Candidate& a, const Candidate& b) { return b.Before(a); };
    std::vector<Candidate> heap;
    for (const ProbePair pair : pairs) {
      const std::vector<uint32_t> arcs = ArcsOf(pair);
      if (const size_t gain = Open(arcs); gain > 0) heap.push_back({pair, gain, arcs.size()});
    }
    std::make_heap(heap.begin(), heap.end(), later);
    while (!heap.empty() && picked_.size() < most_pairs_) {
      std::pop_heap(heap.begin(), heap.end(), later);
      Candidate best = heap.back();
      heap.pop_back();
      std::vector<uint32_t> arcs = ArcsOf(best.pair);
      if (const size_t gain = Open(arcs); gain == best.gain) {
        Pick(best.pair, std::move(arcs));
      } else if (gain > 0) {
        best.gain = gain;
        heap.push_back(best);
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
  }

  void SearchTheRest() {
    size_t open = static_cast<size_t>(std::count(open_.begin(), open_.end(), true)), looks = 0;
    for (uint32_t a = 0; a < hosts_.size(); ++a) {
      for (uint32_t b = 0; b < hosts_.size(); ++b) {
        if (open == 0 || picked_.size() >= most_pairs_ || ++looks > kMostLooks) return;
        if (a == b) continue;
        std::vector<uint32_t> arcs = ArcsOf({a, b});
        if (const size_t gain = Open(arcs); gain > 0) {
          open -= gain;
          Pick({a, b}, std::move(arcs));
        }
      }
    }
  }

  // Each pair goes into the first round where all of its way is free.
  void MakeRounds() {
    struct Busy {
      std::vector<bool> links, sends, receives;
    };
    std::vector<Busy> busy;
    for (const auto& [pair, arcs] : picked_) {
      size_t round = 0;
      for (; round < busy.size(); ++round) {
        const Busy& taken = busy[round];
        if (!taken.sends[pair.from] && !taken.receives[pair.to] &&
            std::none_of(arcs.begin(), arcs.end(), [&](uint32_t arc) { return taken.links[arc / 2]; }))
          break;
      }
      if (round == busy.size()) {
        busy.push_back({std::vector<bool>(open_.size() / 2), std::vector<bool>(hosts_.size()), std::vector<bool>(hosts_.size())});
        choice_.rounds.emplace_back();
      }
      busy[round].sends[pair.from] = busy[round].receives[pair.to] = true;
      for (const uint32_t arc : arcs) busy[round].links[arc / 2] = true;
      choice_.rounds[round].push_back(pair);
    }
  }

  const fabric::Routes& routes_;
  const std::span<const uint32_t> hosts_;
  std::vector<bool> open_;             // wanted, and on no picked pair's way
  const size_t most_pairs_;
  std::vector<std::pair<ProbePair, std::vector<uint32_t>>> picked_;
  ProbeChoice choice_;
};

}  // namespace

ProbeChoice ChooseProbes(const fabric::Routes& routes, std::span<const uint32_t> hosts, const std::vector<bool>& wanted,
                         size_t most_pairs) {
  return Chooser(routes, hosts, wanted, most_pairs).Choose();
}

}  // namespace sluice::network
