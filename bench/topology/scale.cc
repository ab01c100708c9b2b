// A job over nearly all of a three-tier fabric: how long planning takes, and planning again after a link has changed.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "bench/topology/cases.h"
#include "bench/topology/rows.h"
#include "scheduler/fabric/step_parts.h"
#include "scheduler/placement/arc_loads.h"
#include "scheduler/placement/plan_job.h"
#include "scheduler/placement/sites.h"
#include "scheduler/placement/solver.h"

namespace sluice::bench {
namespace {

constexpr double kPlanGoal = 10, kMemoryGoal = 4.0 * (1 << 30), kReplanGoal = 1;

double PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

// Of this thread's core, whatever else the machine does.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// All of `sluicectl plan --dry-run` but reading files: every exchange that the job allows, owners, trees, routes, text.
nlohmann::json DryRuns(const Cluster& cluster, std::vector<Job> jobs) {
  nlohmann::json rows = nlohmann::json::array();
  std::fprintf(stderr, "\n%-60s %8s %8s %8s\n", "dry run", "CPU", "step", "routes");
  jobs.push_back({.name = "servers, a rank a GPU", .file = jobs[0].file, .exchange = placement::Exchange::kServers});
  for (Job& job : jobs) {
    job.file.mutable_job()->set_exchange(job.exchange == placement::Exchange::kServers ? "servers" : "allreduce");
    if (job.servers > 0) job.file.set_servers(job.servers);
    const double t = CpuSeconds();
    const auto plan = placement::PlanJob(job.file, cluster.graph, *cluster.routes, {});
    const double plan_s = CpuSeconds() - t;
    if (!plan.ok()) {
      std::fprintf(stderr, "%s: %s\n", job.name.c_str(), plan.status().ToString().c_str());
      continue;
    }
    std::fprintf(stderr, "%-60s %6.2f s %5.3g ms %8d\n", (std::to_string(job.file.job().workers()) + " ranks (" + job.name + ")").c_str(), plan_s,
                 plan->step_ms(), plan->routes_size());
    rows.push_back({{"cluster", cluster.name}, {"job", job.name}, {"ranks", job.file.job().workers()}, {"dry_run_s", plan_s},
                    {"step_ms", plan->step_ms()}, {"peak_bytes", PeakBytes()}, {"goal_met", plan_s < kPlanGoal && PeakBytes() < kMemoryGoal}});
  }
  return rows;
}

}  // namespace

nlohmann::json Scale(uint32_t zones) {
  nlohmann::json rows = nlohmann::json::array();
  std::fprintf(stderr, "\n%-44s %8s %8s %8s %9s %8s\n", "job and cluster", "problem", "solve", "replan", "predict", "memory");
  for (const Use use : {Use::kEmpty, Use::kWholeHosts}) {
    const double t0 = Seconds();
    Cluster cluster = ThreeTiers(zones, 56, 32, use, 1);
    const double made = Seconds() - t0;
    uint64_t free = 0;
    for (const uint32_t used : cluster.used) free += 8 - used;
    std::vector<Job> jobs{LargeModel(static_cast<uint32_t>(free / 256 * 256))};
    jobs.push_back({.name = "servers", .file = {}, .exchange = placement::Exchange::kServers, .servers = static_cast<uint32_t>(free / 64)});
    jobs.back().file.mutable_job()->set_workers(static_cast<uint32_t>(free / 8));
    jobs.back().file.mutable_job()->set_replicas(1);
    jobs.back().file.set_parameter_bytes(1 << 30);
    for (const Job& job : jobs) {
      double t = Seconds();
      placement::Problem problem = ProblemOf(cluster, job);
      const double problem_s = Seconds() - t;
      t = Seconds();
      const auto solution = placement::Solve(problem, {});
      const double solve_s = Seconds() - t;
      if (!solution.ok()) {
        std::fprintf(stderr, "%s\n", solution.status().ToString().c_str());
        continue;
      }
      t = Seconds();
      const placement::ArcLoads loads = placement::LoadsOf(problem, solution->placement, cluster.graph, *cluster.routes);
      const double predict_s = Seconds() - t;
      const auto busiest = fabric::Busiest(loads.bytes, *cluster.routes, 1, 1);
      // The busiest link has a quarter left.
      t = Seconds();
      if (!busiest.empty()) {
        const uint32_t arc = busiest[0].arc;
        const double was = cluster.routes->BytesPerSecond(arc);
        cluster.routes->SetBytesPerSecond(arc, was / 4);
        problem.hierarchy = placement::HierarchyOf(cluster.graph, problem.sites, cluster.routes.get());
        const auto again = placement::Improve(problem, solution->placement, {.evaluations = 20'000});
        cluster.routes->SetBytesPerSecond(arc, was);
        if (!again.ok()) std::fprintf(stderr, "%s\n", again.status().ToString().c_str());
      }
      const double replan_s = Seconds() - t, plan_s = problem_s + solve_s;
      std::fprintf(stderr, "%-44s %6.2f s %6.2f s %6.2f s %7.2f s %4.2f GiB  %s\n",
                   (std::to_string(problem.tasks.size()) + " tasks (" + job.name + ")").c_str(), problem_s, solve_s, replan_s, predict_s,
                   PeakBytes() / (1 << 30), cluster.name.c_str());
      rows.push_back({{"cluster", cluster.name}, {"job", job.name}, {"tasks", problem.tasks.size()}, {"make_fabric_s", made},
                      {"problem_s", problem_s}, {"solve_s", solve_s}, {"predict_s", predict_s}, {"replan_s", replan_s},
                      {"peak_bytes", PeakBytes()}, {"step_s", busiest.empty() ? 0 : busiest[0].busy_s}, {"start", solution->start},
                      {"goal_met", plan_s < kPlanGoal && replan_s < kReplanGoal && PeakBytes() < kMemoryGoal}});
    }
    if (use == Use::kEmpty)
      for (nlohmann::json& row : DryRuns(cluster, jobs)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace sluice::bench
