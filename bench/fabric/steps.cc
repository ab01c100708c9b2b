#include <algorithm>
#include <cmath>
#include <functional>

#include "bench/fabric/report.h"
#include "scheduler/fabric/steps.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/generate.h"

namespace sluice::bench {
namespace {

using fabric::StepSpec;

constexpr double kBytes = 4e9;   // a billion fp32 parameters

// A rank on each GPU, a server on each host, which owns as much as any other.
StepSpec OnAllHosts(const topology::Graph& graph) {
  StepSpec spec;
  for (const uint32_t host : graph.Hosts()) spec.workers.insert(spec.workers.end(), graph.vertex(host).slots, host);
  spec.servers = graph.Hosts();
  spec.inside_bytes_per_second = 100e9;
  return spec;
}

void Own(StepSpec* spec, const std::vector<uint32_t>& owners, const std::vector<int32_t>& trees) {
  for (const uint32_t owner : owners)
    for (const int32_t tree : trees)
      spec->shards.push_back({.server = owner, .bytes = kBytes / static_cast<double>(owners.size() * trees.size()), .tree = tree});
}

std::vector<uint32_t> Every(size_t count, size_t stride) {
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < count; i += static_cast<uint32_t>(stride)) all.push_back(i);
  return all;
}

// Trees with an aggregator in each domain of the tiers up to `depth`: on each host, and on one host of each rack (zone), a
// different one in each of `count` trees, which share the bytes.
std::vector<fabric::StepTree> Trees(const StepSpec& spec, const topology::Tiers& tiers, size_t depth, uint32_t count) {
  std::vector<uint32_t> server_of(spec.workers.size());   // the server on a rank's host: hosts are in order
  for (size_t r = 1; r < server_of.size(); ++r) server_of[r] = server_of[r - 1] + (spec.workers[r] != spec.workers[r - 1] ? 1 : 0);
  std::vector<fabric::StepTree> trees;
  for (uint32_t t = 0; t < count; ++t) {
    fabric::StepTree tree;
    std::vector<int32_t> parent;   // of each domain of the tier above: its node
    for (size_t tier = depth; tier-- > 0;) {
      std::vector<std::vector<uint32_t>> members;   // of each domain: ranks
      for (uint32_t r = 0; r < spec.workers.size(); ++r) {
        const uint32_t domain = tiers.coordinates[r][tier];
        if (domain >= members.size()) members.resize(domain + 1);
        members[domain].push_back(r);
      }
      std::vector<int32_t> here;
      for (const std::vector<uint32_t>& ranks : members) {
        const uint32_t some = ranks[(ranks.size() * t / count + tier) % ranks.size()];
        here.push_back(static_cast<int32_t>(tree.nodes.size()));
        tree.nodes.push_back({.server = server_of[some],
                              .parent = parent.empty() ? -1 : parent[tiers.coordinates[ranks[0]][tier + 1]],
                              .ranks = tier == 0 ? ranks : std::vector<uint32_t>()});
      }
      parent = std::move(here);
    }
    trees.push_back(std::move(tree));
  }
  return trees;
}

std::string NameOf(const topology::Graph& graph, uint32_t arc) {
  const topology::Link& link = graph.link(arc / 2);
  const uint32_t from = arc & 1 ? link.b : link.a, to = arc & 1 ? link.a : link.b;
  return graph.vertex(from).name + " > " + graph.vertex(to).name;
}

void OnFabric(const char* name, const topology::Graph& graph, Table* table) {
  const auto routes = fabric::Routes::Create(&graph);
  const StepSpec base = OnAllHosts(graph);
  const topology::Tiers tiers = FindTiers(graph, base.workers);
  double flat = 0, best_servers = INFINITY, best_rings = INFINITY;
  StepSpec best = base;
  const auto row = [&](const std::string& what, const fabric::StepPrediction& p, double seconds) {
    if (flat == 0) flat = p.communication_s;
    table->Row({name, what, {p.communication_s * 1e3, "%.1f"}, {p.latency_s * 1e3, "%.2f"}, {flat / p.communication_s, "%.2f"},
                p.busiest.empty() ? "" : NameOf(graph, p.busiest[0].arc), {seconds, "%.2f"}});
  };
  const auto measure = [&](const std::string& what, const std::function<void(StepSpec*)>& change) {
    StepSpec spec = base;
    change(&spec);
    const Stopwatch watch;
    const auto model = Must(fabric::StepModel::Create(routes.get(), spec));
    const fabric::StepPrediction p = model.Predict();
    row(what, p, watch.Seconds());
    // The best of each, for the hybrid.
    const bool rings = spec.collective_bytes > 0;
    if (double& shortest = rings ? best_rings : best_servers; p.communication_s < shortest) {
      shortest = p.communication_s;
      if (rings) {
        best.coordinates = spec.coordinates;
        best.collective_bytes = 1;
      } else {
        best.shards = spec.shards;
        best.trees = spec.trees;
      }
    }
  };
  const std::vector<uint32_t> all = Every(base.servers.size(), 1);
  measure("servers on all hosts", [&](StepSpec* s) { Own(s, all, {-1}); });
  measure("servers on every 8th host", [&](StepSpec* s) { Own(s, Every(base.servers.size(), 8), {-1}); });
  const uint32_t count = 16;
  for (size_t depth = 1; depth < tiers.tiers.size(); ++depth)
    measure("tree up to " + tiers.tiers[depth - 1].name, [&](StepSpec* s) {
      s->trees = Trees(*s, tiers, depth, count);
      std::vector<int32_t> numbers;
      for (uint32_t t = 0; t < count; ++t) numbers.push_back(static_cast<int32_t>(t));
      Own(s, all, numbers);
    });
  measure("flat ring", [&](StepSpec* s) { s->collective_bytes = kBytes; });
  measure("rings by tiers", [&](StepSpec* s) {
    s->collective_bytes = kBytes;
    s->coordinates = tiers.coordinates;
  });
  // 400 tensors, sizes as in a transformer: many small, most bytes in the large ones.
  std::vector<double> tensors;
  for (int i = 0; i < 400; ++i) tensors.push_back(i % 4 == 0 ? 3.9e7 : i % 4 == 1 ? 9e5 : 5e4);
  double total = 0;
  for (const double t : tensors) total += t;
  for (double& t : tensors) t *= kBytes / total;
  const Stopwatch watch;
  const fabric::Hybrid hybrid = ChooseHybrid(Must(fabric::StepModel::Create(routes.get(), best)), tensors);
  double by_servers = 0;
  for (size_t i = 0; i < tensors.size(); ++i) by_servers += hybrid.by_servers[i] ? tensors[i] : 0;
  char share[64];
  std::snprintf(share, sizeof(share), "hybrid of the best (%.0f %% by servers)", 100 * by_servers / kBytes);
  row(share, hybrid.prediction, watch.Seconds());
}

}  // namespace

void MeasureSteps(Json* json) {
  Table table(json, "communication of a step, 4 GB of fp32 a rank, no codec",
              {"fabric", "exchange", "ms", "latency ms", "times as fast", "busiest link", "seconds to predict"});
  const topology::HostSpec host = {.slots = 8, .link_bytes_per_second = 50e9};
  OnFabric("two racks of 2 (1 Gb/s, 200 Mb/s)", Must(topology::SpineLeaf({.leaves = 2, .spines = 1, .hosts_per_leaf = 2, .ratio = 10,
                                                     .host = {.link_bytes_per_second = 125e6}})), &table);
  OnFabric("spine-leaf 256 hosts, 1:4", Must(topology::SpineLeaf({.leaves = 16, .spines = 4, .hosts_per_leaf = 16, .ratio = 4, .host = host})), &table);
  OnFabric("fat tree 250 hosts", Must(topology::FatTree({.k = 10, .host = host})), &table);
  OnFabric("rails 128 hosts", Must(topology::Rails({.groups = 4, .hosts_per_group = 32, .rails = 8, .spines = 8, .ratio = 2, .host = host})), &table);
  OnFabric("torus 4x4x4", Must(topology::Torus({.dims = {4, 4, 4}, .host = host})), &table);
  OnFabric("dragonfly 144 hosts", Must(topology::Dragonfly({.routers = 4, .global = 2, .hosts_per_router = 4, .host = host})), &table);
  OnFabric("zones 12,544 hosts, 1:7",
           Must(topology::Zones({.zones = 8, .spines_per_zone = 8, .cores = 16, .leaves_per_zone = 49, .hosts_per_leaf = 32, .zone_ratio = 7,
                                 .host = host})), &table);
}

}  // namespace sluice::bench
