#include <sys/resource.h>

#include "base/philox.h"
#include "bench/fabric/report.h"
#include "scheduler/fabric/flows.h"
#include "scheduler/fabric/routes.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/generate.h"

namespace sluice::bench {
namespace {

topology::Graph Zones(uint32_t leaves, uint32_t slots) {
  return Must(topology::Zones({.zones = 8, .spines_per_zone = 8, .cores = 16, .leaves_per_zone = leaves, .hosts_per_leaf = 32,
                               .leaf_ratio = 1, .zone_ratio = 7, .host = {.slots = slots, .link_bytes_per_second = 50e9}}));
}

double PeakMegabytes() {   // of the process, up to now
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

void MeasureSpeed(Json* json) {
  {
    Table table(json, "max-min fair rates (8 zones, 1:7 between them, one way a flow)",
                {"endpoints", "flows", "uses of arcs", "seconds", "peak MB"});
    for (const auto& [leaves, each] : {std::pair(96u, 4), std::pair(384u, 16)}) {
      const topology::Graph graph = Zones(leaves, 1);
      const auto routes = fabric::Routes::Create(&graph);
      const std::vector<uint32_t> hosts = graph.Hosts();
      PhiloxRandom random(1);
      fabric::Flows flows;
      flows.Reserve(hosts.size() * each, hosts.size() * each * 6);
      std::vector<uint32_t> way;
      size_t uses = 0;
      for (const uint32_t from : hosts)
        for (int i = 0; i < each; ++i) {
          uint32_t to = from;
          while (to == from) to = hosts[random.Below(static_cast<uint32_t>(hosts.size()))];
          flows.Add();
          routes->Way(from, to, random(), &way);
          for (const uint32_t arc : way) flows.Use(arc);
          uses += way.size();
        }
      std::vector<double> capacity;
      for (uint32_t arc = 0; arc < routes->arcs(); ++arc) capacity.push_back(routes->BytesPerSecond(arc));
      const Stopwatch watch;
      const std::vector<double> rates = MaxMinRates(capacity, flows);
      const double seconds = watch.Seconds();
      table.Row({{double(hosts.size()), "%.0f"}, {double(rates.size()), "%.0f"}, {double(uses), "%.0f"}, {seconds, "%.3f"}, {PeakMegabytes(), "%.0f"}});
    }
  }
  Table table(json, "12,544 hosts of 8 GPUs in three tiers", {"what", "seconds"});
  const Stopwatch generating;
  const topology::Graph graph = Zones(49, 8);
  table.Row({"generate", {generating.Seconds(), "%.6f"}});
  const Stopwatch creating;
  const auto routes = fabric::Routes::Create(&graph);
  table.Row({"Routes::Create", {creating.Seconds(), "%.6f"}});
  const std::vector<uint32_t> hosts = graph.Hosts();
  PhiloxRandom random(2);
  double sum = 0;
  size_t arcs = 0;
  const auto spread = [&] {
    routes->Spread(hosts[random.Below(static_cast<uint32_t>(hosts.size()))], hosts[random.Below(static_cast<uint32_t>(hosts.size()))],
                   [&](uint32_t, double share) { sum += share, ++arcs; });
  };
  constexpr int kCalls = 200000;
  const Stopwatch first;
  for (int i = 0; i < kCalls; ++i) spread();
  const Stopwatch again;
  arcs = 0;
  for (int i = 0; i < kCalls; ++i) spread();
  table.Row({"Routes::Spread, a call (" + std::to_string(arcs / kCalls) + " arcs)", {again.Seconds() / kCalls, "%.9f"}});
  const Stopwatch hopping;
  uint64_t hops = 0;
  for (int i = 0; i < kCalls; ++i) hops += routes->Hops(hosts[random.Below(static_cast<uint32_t>(hosts.size()))], hosts[0]);
  table.Row({"Routes::Hops, a call", {hopping.Seconds() / kCalls, "%.9f"}});
  std::vector<fabric::Routes::Part> all;
  for (const uint32_t host : hosts) all.push_back({host, 8});
  std::vector<double> load(routes->arcs());
  const Stopwatch loading;
  routes->AddLoads(all, all, &load);
  table.Row({"Routes::AddLoads, all hosts to all", {loading.Seconds(), "%.6f"}});
  const uint32_t arc = 2 * graph.FindLink(graph.Find("z0s0"), graph.Find("c0"), topology::Medium::kEthernet);
  const Stopwatch failing;
  routes->SetBytesPerSecond(arc, 0);
  routes->AddLoads(all, all, &load);
  table.Row({"a link goes down, and AddLoads again", {failing.Seconds(), "%.6f"}});
  const Stopwatch dividing;
  topology::Domains::Find(graph);
  table.Row({"Domains::Find", {dividing.Seconds(), "%.6f"}});
  std::vector<uint32_t> ranks;
  for (const uint32_t host : hosts) ranks.insert(ranks.end(), 8, host);
  const Stopwatch tiers;
  FindTiers(graph, ranks);
  table.Row({"FindTiers, 100,352 ranks", {tiers.Seconds(), "%.6f"}});
}

}  // namespace sluice::bench
