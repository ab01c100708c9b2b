#include "scheduler/network/estimates.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::network {
namespace {

constexpr double kWhole = 1 - 1e-9;   // share of a link that is on every way
constexpr double kAlike = 1.01;       // times as fast as the narrowest: as narrow

template <typename Map>
auto Oldest(const Map& measures) {
  return std::min_element(measures.begin(), measures.end(), [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
}

}  // namespace

double Confidence(TimeNs age) {
  if (age <= kFresh) return 1;
  return age >= kForgotten ? 0 : static_cast<double>(kForgotten - age) / static_cast<double>(kForgotten - kFresh);
}

void LinkEstimates::Take(uint32_t from, uint32_t to, uint64_t who, const PairMeasure& measure) {
  if (from == to || !(measure.goodput > 0) || !std::isfinite(measure.goodput)) return;
  if (pairs_.size() >= kMaxPairs && pairs_.count({from, to, who}) == 0) pairs_.erase(Oldest(pairs_));
  pairs_[{from, to, who}] = measure;
}

void LinkEstimates::TakeProbe(uint32_t from, uint32_t to, const PairMeasure& measure) {
  if (from == to || !(measure.goodput > 0) || !std::isfinite(measure.goodput)) return;
  if (probes_.size() >= kMaxPairs && probes_.count({from, to}) == 0) probes_.erase(Oldest(probes_));
  probes_[{from, to}] = measure;
}

void LinkEstimates::Forget(TimeNs now) {
  const auto old = [&](const auto& pair) { return now - pair.second.at >= kForgotten; };
  std::erase_if(pairs_, old);
  std::erase_if(probes_, old);
}

std::map<uint32_t, ArcEstimate> LinkEstimates::Probed(const fabric::Routes& routes, const std::vector<Nominal>& nominal,
                                                      TimeNs now) const {
  const auto each_arc = [&](const ProbeKey& pair, auto&& fn) {
    routes.Spread(pair.first, pair.second, [&](uint32_t arc, double share) {
      if (arc < nominal.size() && nominal[arc].bytes_per_second > 0) fn(arc, share > kWhole);
    });
  };
  std::map<uint32_t, ArcEstimate> out;
  for (const auto& [pair, probe] : probes_) {
    const double confidence = Confidence(now - probe.at);
    if (confidence == 0) continue;
    each_arc(pair, [&](uint32_t arc, bool) {
      ArcEstimate& estimate = out[arc];
      estimate.confidence = std::max(estimate.confidence, confidence);
      estimate.at = std::max(estimate.at, probe.at);
      if (probe.rtt_s > 0) estimate.rtt_s = estimate.rtt_s > 0 ? std::min(estimate.rtt_s, probe.rtt_s) : probe.rtt_s;
    });
  }
  // Links may have changed since older ones.
  const auto of_the_time = [&](uint32_t arc, const PairMeasure& probe) { return probe.at + kFresh >= out.at(arc).at; };
  std::map<uint32_t, double> carried;   // to the fastest probe
  for (const auto& [pair, probe] : probes_) {
    if (Confidence(now - probe.at) == 0) continue;
    each_arc(pair, [&](uint32_t arc, bool whole) {
      if (whole && of_the_time(arc, probe)) carried[arc] = std::max(carried[arc], probe.goodput);
    });
  }
  for (const auto& [pair, probe] : probes_) {
    if (Confidence(now - probe.at) == 0) continue;
    const auto may_be_it = [&](uint32_t arc) {
      const auto most = carried.find(arc);
      return most == carried.end() || most->second <= kProbesDiffer * probe.goodput;
    };
    double narrowest = std::numeric_limits<double>::infinity();
    each_arc(pair, [&](uint32_t arc, bool) {
      if (may_be_it(arc)) narrowest = std::min(narrowest, nominal[arc].bytes_per_second);
    });
    each_arc(pair, [&](uint32_t arc, bool whole) {
      if (!whole || !of_the_time(arc, probe) || !may_be_it(arc) || nominal[arc].bytes_per_second > kAlike * narrowest) return;
      out.at(arc).bytes_per_second = std::max(out.at(arc).bytes_per_second, probe.goodput);
    });
  }
  for (auto& [arc, estimate] : out) {
    const auto [said, assumed] = nominal[arc];
    const auto most = carried.find(arc);
    if (estimate.bytes_per_second > 0 && !assumed) estimate.bytes_per_second = std::min(estimate.bytes_per_second, said);
    if (estimate.bytes_per_second == 0 && assumed && most != carried.end() && most->second > said) estimate.bytes_per_second = most->second;
  }
  return out;
}

std::map<uint32_t, ArcEstimate> LinkEstimates::Arcs(const fabric::Routes& routes, const std::vector<Nominal>& graph,
                                                    TimeNs now) const {
  const std::map<uint32_t, ArcEstimate> probed = Probed(routes, graph, now);
  std::vector<Nominal> nominal = graph;
  for (const auto& [arc, probe] : probed) {
    if (probe.bytes_per_second == 0) continue;
    double& said = nominal[arc].bytes_per_second;
    said = probe.confidence * probe.bytes_per_second + (1 - probe.confidence) * said;
  }
  struct Arc {
    double flow = 0, fastest = 0;  // bytes a second; of one pair
    double weight = 0;             // of the most certain pair
    ArcEstimate estimate;
  };
  std::map<uint32_t, Arc> arcs;
  // 8: of a link that a probe has measured since, training says nothing.
  const auto outdated = [&](uint32_t arc, const PairMeasure& measure) {
    const auto it = probed.find(arc);
    return it != probed.end() && it->second.bytes_per_second > 0 && it->second.at > measure.at;
  };
  const auto each_arc = [&](const auto& pair, auto&& fn) {
    routes.Spread(std::get<0>(pair.first), std::get<1>(pair.first), [&](uint32_t arc, double share) {
      if (arc < nominal.size() && nominal[arc].bytes_per_second > 0 && !outdated(arc, pair.second)) fn(arc, share);
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
    double measured = narrow.count(index) > 0 || (arc.flow > said && assumed) ? arc.flow : said;
    // More than a probe said: it was not alone, or the link has recovered.
    if (!assumed && arc.flow > said) measured = std::min(arc.flow, graph[index].bytes_per_second);
    estimate.bytes_per_second = arc.weight * measured + (1 - arc.weight) * said;
  }
  for (const auto& [arc, probe] : probed) {
    const auto [at, only_probed] = out.try_emplace(arc, probe);
    ArcEstimate& estimate = at->second;
    if (only_probed) {
      estimate.bytes_per_second = nominal[arc].bytes_per_second;
      continue;
    }
    estimate.confidence = std::max(estimate.confidence, probe.confidence);
    estimate.at = std::max(estimate.at, probe.at);
    if (probe.rtt_s > 0 && !(estimate.rtt_s > 0 && estimate.rtt_s < probe.rtt_s)) estimate.rtt_s = probe.rtt_s;
  }
  return out;
}

}  // namespace sluice::network
