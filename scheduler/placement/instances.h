// Problems for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

// Hosts in a regular tree, each with so many places and a seat, the leaf switch being the failure domain.
inline Problem RegularProblem(const std::vector<uint32_t>& counts, const std::vector<double>& bytes_per_second, uint32_t places) {
  Problem problem;
  problem.hierarchy = RegularHierarchy(counts, bytes_per_second);
  for (uint32_t site = 0; site < problem.hierarchy.leaf.size(); ++site)
    problem.sites.push_back({.host = site, .places = places, .seats = 1,
                             .failure_domain = problem.hierarchy.nodes[problem.hierarchy.leaf[site]].parent});
  return problem;
}

// 4 zones of 4 hosts, each host with one place; between zones a seventh of what the hosts of a zone could send.
inline Problem SixteenNodes() {
  constexpr double kHost = 12.5e9;
  return RegularProblem({4, 4}, {4 * kHost / 7, kHost}, 1);
}

inline void SetWorkers(uint32_t workers, Problem* problem) {
  for (uint32_t rank = 0; rank < workers; ++rank) problem->tasks.push_back({Role::kWorker, rank});
  problem->traffic = Traffic(workers);
}

// Each pair exchanges something with this chance, of very different sizes.
inline void AddRandomTraffic(PhiloxRandom* random, double chance, Problem* problem) {
  const uint32_t tasks = problem->traffic.tasks();
  for (uint32_t a = 0; a < tasks; ++a)
    for (uint32_t b = 0; b < tasks; ++b)
      if (a != b && random->Chance(chance)) problem->traffic.Add(a, b, 1e6 * (1u << random->Below(8)) * (1 + random->Uniform()));
}

// Ranks data x pipeline under shuffled numbers: rings over data, neighbours in a pipeline.
inline void AddGridTraffic(PhiloxRandom* random, uint32_t pipeline, double ring, double neighbours, Problem* problem) {
  const uint32_t tasks = problem->traffic.tasks(), data = tasks / pipeline;
  std::vector<uint32_t> name(tasks);
  for (uint32_t t = 0; t < tasks; ++t) name[t] = t;
  for (uint32_t t = 0; t + 1 < tasks; ++t) std::swap(name[t], name[t + random->Below(tasks - t)]);
  for (uint32_t d = 0; d < data; ++d) {
    for (uint32_t p = 0; p < pipeline; ++p) {
      const uint32_t me = name[d * pipeline + p];
      problem->traffic.Add(me, name[(d + 1) % data * pipeline + p], ring);
      if (p + 1 < pipeline) {
        problem->traffic.Add(me, name[d * pipeline + p + 1], neighbours);
        problem->traffic.Add(name[d * pipeline + p + 1], me, neighbours);
      }
    }
  }
}

// The last `servers` of the tasks are parameter servers in a process of their own with unequal parts of the model, and so
// are ordinary ranks as far as room goes.
inline void AddServerTraffic(PhiloxRandom* random, uint32_t servers, double model, Problem* problem) {
  const uint32_t tasks = problem->traffic.tasks();
  std::vector<double> part(servers);
  double sum = 0;
  for (double& p : part) sum += p = 0.5 + random->Uniform();
  for (uint32_t w = 0; w + servers < tasks; ++w) {
    for (uint32_t s = 0; s < servers; ++s) {
      problem->traffic.Add(w, tasks - servers + s, model * part[s] / sum);
      problem->traffic.Add(tasks - servers + s, w, model * part[s] / sum);
    }
  }
}

}  // namespace sluice::placement
