// 1. Each arc that is used goes into a heap by the rate at which it would be full if all its flows grew alike.
// 2. The first of it: flows with a cap below that rate stop at their caps. Then, if flows of the arc stopped since it was put
//    there, its rate is higher now, never lower, and it goes back; else its flows stop at that rate.
// 3. A flow that stops leaves its arcs to the others: what they have left, and how many grow on.
#include "scheduler/fabric/flows.h"

#include <algorithm>
#include <utility>

namespace sluice::fabric {
namespace {

struct ArcState {
  double left = 0;        // of its capacity, beside flows that stopped
  double growing = 0;     // sum of count * share of flows that grow
  uint32_t flows = 0;     // that grow
  double Rate() const { return left > 0 ? left / growing : 0; }
};

class Filling {
 public:
  Filling(const std::vector<double>& capacity, const Flows& flows) : flows_(flows), arcs_(capacity.size()), rates_(flows.size(), -1) {
    std::vector<uint32_t>& next = first_;   // first the number of flows of each arc, then where the next goes
    next.assign(capacity.size() + 1, 0);
    size_t uses = 0;
    for (uint32_t f = 0; f < flows.size(); ++f) {
      const std::span<const uint32_t> arcs = flows.Arcs(f);
      for (size_t i = 0; i < arcs.size(); ++i) {
        ++arcs_[arcs[i]].flows;
        arcs_[arcs[i]].growing += flows.count(f) * flows.Share(f, i);
      }
      uses += arcs.size();
    }
    for (size_t a = 0; a < capacity.size(); ++a) {
      arcs_[a].left = capacity[a];
      next[a + 1] = next[a] + arcs_[a].flows;
    }
    by_arc_.resize(uses);
    for (uint32_t f = static_cast<uint32_t>(flows.size()); f-- > 0;)
      for (const uint32_t arc : flows.Arcs(f)) by_arc_[--next[arc + 1]] = f;
    // Now next[a + 1] is where arc a begins.
    first_.erase(first_.begin());
    first_.push_back(static_cast<uint32_t>(uses));
  }

  std::vector<double> Run() {
    std::vector<std::pair<double, uint32_t>> heap;
    for (uint32_t a = 0; a < arcs_.size(); ++a)
      if (arcs_[a].flows > 0) heap.push_back({arcs_[a].Rate(), a});
    std::make_heap(heap.begin(), heap.end(), std::greater<>());
    SortCaps();
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      const auto [rate, a] = heap.back();
      heap.pop_back();
      StopCapped(rate);
      const ArcState& arc = arcs_[a];
      if (arc.flows == 0) continue;
      const double now = arc.Rate();
      if (now > rate * (1 + 1e-12)) {
        heap.push_back({now, a});
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
        continue;
      }
      for (uint32_t i = first_[a]; i < first_[a + 1]; ++i)
        if (rates_[by_arc_[i]] < 0) Stop(by_arc_[i], now);
    }
    StopCapped(std::numeric_limits<double>::infinity());
    for (uint32_t f = 0; f < rates_.size(); ++f)
      if (rates_[f] < 0) rates_[f] = flows_.cap(f);
    return std::move(rates_);
  }

 private:
  void Stop(uint32_t flow, double rate) {
    rates_[flow] = rate;
    const std::span<const uint32_t> arcs = flows_.Arcs(flow);
    for (size_t i = 0; i < arcs.size(); ++i) {
      ArcState& arc = arcs_[arcs[i]];
      const double weight = flows_.count(flow) * flows_.Share(flow, i);
      arc.left -= weight * rate;
      arc.growing -= weight;
      --arc.flows;
    }
  }

  void SortCaps() {
    for (uint32_t f = 0; f < flows_.size(); ++f)
      if (flows_.cap(f) < std::numeric_limits<double>::infinity()) capped_.push_back(f);
    std::sort(capped_.begin(), capped_.end(), [&](uint32_t x, uint32_t y) { return flows_.cap(x) > flows_.cap(y); });
  }

  void StopCapped(double rate) {
    for (; !capped_.empty() && flows_.cap(capped_.back()) <= rate; capped_.pop_back())
      if (rates_[capped_.back()] < 0) Stop(capped_.back(), flows_.cap(capped_.back()));
  }

  const Flows& flows_;
  std::vector<ArcState> arcs_;
  std::vector<double> rates_;                // below 0: it grows
  std::vector<uint32_t> first_, by_arc_;     // flows of each arc
  std::vector<uint32_t> capped_;             // the lowest cap last
};

}  // namespace

void Flows::Reserve(size_t flows, size_t uses) {
  first_.reserve(flows + 1);
  counts_.reserve(flows);
  arcs_.reserve(uses);
}

void Flows::Clear() {
  first_.assign(1, 0);
  counts_.clear();
  arcs_.clear();
  shares_.clear();
  caps_.clear();
}

uint32_t Flows::Add(uint32_t count, double cap) {
  if (caps_.empty() && cap < std::numeric_limits<double>::infinity())
    caps_.assign(counts_.size(), std::numeric_limits<double>::infinity());
  if (!caps_.empty() || cap < std::numeric_limits<double>::infinity()) caps_.push_back(cap);
  counts_.push_back(count);
  first_.push_back(first_.back());
  return static_cast<uint32_t>(counts_.size() - 1);
}

void Flows::Use(uint32_t arc, double share) {
  if (shares_.empty() && share != 1) shares_.assign(arcs_.size(), 1);
  const bool shared = !shares_.empty() || share != 1;
  arcs_.push_back(arc);
  if (shared) shares_.push_back(static_cast<float>(share));
  ++first_.back();
}

std::vector<double> MaxMinRates(const std::vector<double>& capacity, const Flows& flows) { return Filling(capacity, flows).Run(); }

}  // namespace sluice::fabric
