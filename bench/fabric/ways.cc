#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "bench/fabric/report.h"
#include "scheduler/fabric/flows.h"
#include "scheduler/fabric/way_choice.h"
#include "scheduler/topology/generate.h"

namespace sluice::bench {
namespace {

struct Times {
  double mean = 0, p99 = 0;
};

enum class Rule { kHash, kEstimate, kEstimateAndOwn };

// Transfers of 16 to 256 MB begin at random times between random hosts; rates are max-min fair, and change whenever one
// begins or ends. Each keeps the way that it began on.
Times Run(const topology::Graph& graph, const fabric::Routes& truth, Rule rule, double load, uint32_t count, uint64_t seed) {
  std::vector<double> capacity;
  for (uint32_t arc = 0; arc < truth.arcs(); ++arc) capacity.push_back(truth.BytesPerSecond(arc));
  fabric::WayChoice choice(&truth, rule == Rule::kHash ? 1 : 8);
  const std::vector<uint32_t> hosts = graph.Hosts();
  PhiloxRandom random(seed);
  struct Transfer {
    fabric::WayChoice::Chosen chosen;
    double begin, left, rate;
  };
  std::vector<Transfer> moving;
  std::vector<double> times;
  constexpr double kMean = 136e6;
  const double per_second = load * static_cast<double>(hosts.size()) * 50e9 / kMean;
  double now = 0, next_begin = 0;
  uint32_t begun = 0;
  fabric::Flows flows;
  while (begun < count || !moving.empty()) {
    flows.Clear();
    for (const Transfer& t : moving) {
      flows.Add();
      for (const uint32_t arc : t.chosen.arcs) flows.Use(arc);
    }
    const std::vector<double> rates = MaxMinRates(capacity, flows);
    double next = begun < count ? next_begin : INFINITY;
    for (size_t i = 0; i < moving.size(); ++i) {
      moving[i].rate = rates[i];
      next = std::min(next, now + moving[i].left / rates[i]);
    }
    const double seconds = next - now;
    now = next;
    for (Transfer& t : moving) t.left -= t.rate * seconds;
    std::erase_if(moving, [&](const Transfer& t) {
      if (t.left > 1) return false;   // byte
      times.push_back(now - t.begin);
      choice.Done(t.chosen);
      return true;
    });
    if (begun < count && now >= next_begin) {
      const uint32_t from = hosts[random.Below(static_cast<uint32_t>(hosts.size()))];
      uint32_t to = from;
      while (to == from) to = hosts[random.Below(static_cast<uint32_t>(hosts.size()))];
      Transfer t{.begin = now, .left = (16 + 240 * random.Uniform()) * 1e6};
      choice.Choose(from, to, uint64_t{random()} << 32 | random(), &t.chosen);
      if (rule == Rule::kEstimate) choice.Done(t.chosen);   // own transfers are not counted
      moving.push_back(std::move(t));
      ++begun;
      next_begin = now - std::log(1 - random.Uniform()) / per_second;
    }
  }
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const double t : times) sum += t;
  return {sum / static_cast<double>(times.size()), times[times.size() * 99 / 100]};
}

}  // namespace

void MeasureWays(Json* json) {
  Table table(json, "time of a transfer, 64 hosts at 50 GB/s under 8 leaves and 8 spines, 4,000 transfers",
              {"links", "load", "rule", "mean ms", "99 % ms", "mean against hashing"});
  const topology::Graph graph = Must(topology::SpineLeaf({.leaves = 8, .spines = 8, .hosts_per_leaf = 8, .host = {.link_bytes_per_second = 50e9}}));
  for (const auto& [name, slow] : {std::pair("all as they should be", 0), std::pair("one at a tenth", 1), std::pair("a spine at a tenth", 8)}) {
    const auto routes = fabric::Routes::Create(&graph);
    for (int l = 0; l < slow; ++l) {
      const uint32_t link = graph.FindLink(graph.Find("leaf" + std::to_string(l)), graph.Find("spine0"), topology::Medium::kEthernet);
      for (const uint32_t arc : {2 * link, 2 * link + 1}) routes->SetBytesPerSecond(arc, 0.1 * routes->BytesPerSecond(arc));
    }
    for (const double load : {0.1, 0.3, 0.6}) {
      double hashed = 0;
      for (const auto& [rule_name, rule] : {std::pair("hash", Rule::kHash), std::pair("estimate", Rule::kEstimate),
                                            std::pair("estimate and own transfers", Rule::kEstimateAndOwn)}) {
        const Times times = Run(graph, *routes, rule, load, 4000, 5);
        if (rule == Rule::kHash) hashed = times.mean;
        table.Row({name, {load, "%.1f"}, rule_name, {times.mean * 1e3, "%.2f"}, {times.p99 * 1e3, "%.2f"},
                   {100 * (times.mean / hashed - 1), "%+.0f %%"}});
      }
    }
  }
}

}  // namespace sluice::bench
