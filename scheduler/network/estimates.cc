#include "scheduler/network/estimates.h"

#include <algorithm>
#include <cmath>

namespace sluice::network {

double Confidence(TimeNs age) {
  if (age <= kFresh) return 1;
  return age >= kForgotten ? 0 : static_cast<double>(kForgotten - age) / static_cast<double>(kForgotten - kFresh);
}

void LinkEstimates::Take(uint32_t from, uint32_t to, uint64_t who, const PairMeasure& measure) {
  if (from == to || !(measure.goodput > 0) || !std::isfinite(measure.goodput)) return;
  if (pairs_.size() >= kMaxPairs && pairs_.count({from, to, who}) == 0) {
    pairs_.erase(std::min_element(pairs_.begin(), pairs_.end(),
                                  [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  pairs_[{from, to, who}] = measure;
}

void LinkEstimates::Forget(TimeNs now) {
  std::erase_if(pairs_, [&](const auto& pair) { return now - pair.second.at >= kForgotten; });
}

std::map<uint32_t, ArcEstimate> LinkEstimates::Arcs(const fabric::Routes& routes, const std::vector<Nominal>& nominal,
                                                    TimeNs now) const {
  struct Arc {
    double flow = 0, fastest = 0;  // bytes a second; of one pair
    double weight = 0;             // of the most certain pair
    ArcEstimate estimate;
  };
  std::map<uint32_t, Arc> arcs;
  const auto each_arc = [&](const auto& pair, auto&& fn) {
    routes.Spread(std::get<0>(pair.first), std::get<1>(pair.first), [&](uint32_t arc, double share) {
      if (arc < nominal.size() && nominal[arc].bytes_per_second > 0) fn(arc, share);
    });
  };
  for (const auto& pair : pairs_) {
    const double confidence = Confidence(now - pair.second.at);
    if (confidence == 0) continue;
    each_arc(pair, [&](uint32_t index, double share) {
      Arc& arc = arcs[index];
      arc.flow += share * pair.second.goodput;
      arc.fastest = std::max(arc.fastest, share * pair.second.goodput);
      arc.weight = std::max(arc.weight, confidence);
      ArcEstimate& estimate = arc.estimate;
      estimate.at = std::max(estimate.at, pair.second.at);
      estimate.retransmits += pair.second.retransmits;
      if (pair.second.rtt_s > 0)
        estimate.rtt_s = estimate.rtt_s > 0 ? std::min(estimate.rtt_s, pair.second.rtt_s) : pair.second.rtt_s;
    });
  }
  // Which arcs are to blame for pairs that nothing explains.
  std::map<uint32_t, bool> narrow;
  for (const auto& pair : pairs_) {
    if (Confidence(now - pair.second.at) == 0) continue;
    double fullest = 0;
    uint32_t blamed = 0;
    each_arc(pair, [&](uint32_t index, double share) {
      const Arc& arc = arcs[index];
      const double ratio = arc.flow / nominal[index].bytes_per_second;
      if (ratio > fullest && share * pair.second.goodput >= kAsFast * arc.fastest) {
        fullest = ratio;
        blamed = index;
      }
    });
    if (fullest > 0 && fullest < kFull) narrow[blamed] = true;
  }
  std::map<uint32_t, ArcEstimate> out;
  for (auto& [index, arc] : arcs) {
    ArcEstimate& estimate = out[index] = arc.estimate;
    estimate.confidence = arc.weight;
    const auto [said, assumed] = nominal[index];
    const double measured = narrow.count(index) > 0 || (arc.flow > said && assumed) ? arc.flow : said;
    estimate.bytes_per_second = arc.weight * measured + (1 - arc.weight) * said;
  }
  return out;
}

}  // namespace sluice::network
