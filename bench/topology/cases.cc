#include "bench/topology/cases.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "scheduler/placement/sites.h"
#include "scheduler/topology/domains.h"
#include "scheduler/topology/generate.h"

namespace sluice::bench {
namespace {

constexpr uint32_t kGpus = 8;

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

void AddTraffic(const char* group, const char* pattern, uint64_t bytes, proto::JobFile* job) {
  proto::GroupTraffic* traffic = job->add_traffic();
  traffic->set_name(group);
  traffic->set_pattern(pattern);
  traffic->set_bytes(bytes);
}

}  // namespace

const char* UseName(Use use) {
  switch (use) {
    case Use::kEmpty: return "empty";
    case Use::kWholeHosts: return "a third of the hosts in use";
    case Use::kFragments: return "fragmented";
  }
  return "?";
}

Cluster ThreeTiers(uint32_t zones, uint32_t leaves_per_zone, uint32_t hosts_per_leaf, Use use, uint64_t seed) {
  Cluster cluster;
  cluster.graph = OrDie(topology::Zones({.zones = zones, .spines_per_zone = 4, .cores = 8, .leaves_per_zone = leaves_per_zone,
                                         .hosts_per_leaf = hosts_per_leaf, .leaf_ratio = 2, .zone_ratio = 7, .host = {.slots = kGpus}}));
  cluster.routes = fabric::Routes::Create(&cluster.graph);
  const size_t hosts = size_t{zones} * leaves_per_zone * hosts_per_leaf;
  cluster.name = absl::StrCat(hosts * kGpus, " GPUs, ", UseName(use));
  PhiloxRandom random(seed, 0x757365);
  uint32_t load = 0;
  for (size_t host = 0; host < hosts; ++host) {
    if (host % hosts_per_leaf == 0) load = random.Below(kGpus);   // of a rack
    if (use == Use::kEmpty) cluster.used.push_back(0);
    if (use == Use::kWholeHosts) cluster.used.push_back(random.Below(3) == 0 ? kGpus : 0);
    if (use == Use::kFragments) cluster.used.push_back(random.Chance(0.2) ? kGpus : random.Below(1 + load));
  }
  return cluster;
}

Job LargeModel(uint32_t workers) {
  Job job{.name = absl::StrCat("tensor 8, pipeline 4, data ", workers / 32), .file = {}};
  job.file.mutable_job()->set_workers(workers);
  job.file.mutable_job()->set_groups(absl::StrCat("tensor:8,pipeline:4,data:", workers / 32));
  job.file.set_parameter_bytes(1 << 30);
  AddTraffic("tensor", "allreduce", uint64_t{4} << 30, &job.file);
  AddTraffic("pipeline", "neighbours", 256 << 20, &job.file);
  return job;
}

std::vector<Job> Jobs() {
  std::vector<Job> jobs{LargeModel(256)};
  const auto add = [&](const char* name, uint32_t workers, const char* groups, uint64_t bytes, placement::Exchange exchange, uint32_t servers) {
    jobs.push_back({.name = name, .file = {}, .exchange = exchange, .servers = servers});
    jobs.back().file.mutable_job()->set_workers(workers);
    jobs.back().file.mutable_job()->set_groups(groups);
    jobs.back().file.mutable_job()->set_replicas(1);
    jobs.back().file.set_parameter_bytes(bytes);
    return &jobs.back().file;
  };
  using placement::Exchange;
  AddTraffic("tensor", "allreduce", uint64_t{1} << 30, add("tensor 4, pipeline 8, data 6", 192, "tensor:4,pipeline:8,data:6", 1 << 30, Exchange::kAllReduce, 0));
  AddTraffic("expert", "alltoall", uint64_t{1} << 30, add("experts 16, data 12", 192, "expert:16,data:12", 256 << 20, Exchange::kAllReduce, 0));
  add("data 200, ring", 200, "", 1 << 30, Exchange::kAllReduce, 0);
  add("data 128, 16 servers", 128, "", 1 << 30, Exchange::kServers, 16);
  AddTraffic("pipeline", "neighbours", 512 << 20, add("pipeline 4, data 24, 12 servers", 96, "pipeline:4,data:24", 256 << 20, Exchange::kServers, 12));
  return jobs;
}

placement::Problem ProblemOf(const Cluster& cluster, const Job& job) {
  placement::Problem problem;
  placement::JobTasks tasks = OrDie(placement::TasksOf(job.file, job.exchange, job.servers));
  placement::SiteRules rules;
  const std::vector<uint32_t> hosts = cluster.graph.Hosts();
  for (size_t i = 0; i < hosts.size(); ++i)
    if (cluster.used[i] > 0) rules.used_slots[cluster.graph.vertex(hosts[i]).name] = cluster.used[i];
  problem.tasks = std::move(tasks.tasks);
  problem.traffic = std::move(tasks.traffic);
  problem.blocks = std::move(tasks.blocks);
  problem.apart = std::move(tasks.apart);
  problem.sites = placement::SitesOf(cluster.graph, topology::Domains::Find(cluster.graph), rules);
  problem.hierarchy = placement::HierarchyOf(cluster.graph, problem.sites, cluster.routes.get());
  return problem;
}

}  // namespace sluice::bench
