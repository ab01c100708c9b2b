#include "scheduler/placement/plan_job.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "scheduler/fabric/step_parts.h"
#include "scheduler/network/view.h"
#include "scheduler/placement/arc_loads.h"
#include "scheduler/placement/baselines.h"
#include "scheduler/placement/explain.h"
#include "scheduler/placement/plan_servers.h"
#include "scheduler/placement/sites.h"
#include "scheduler/placement/solver.h"
#include "scheduler/placement/traffic.h"
#include "scheduler/planning/explain_routes.h"
#include "scheduler/planning/explain_step.h"
#include "scheduler/planning/plan_step.h"
#include "scheduler/topology/formats/hostlist.h"

namespace sluice::placement {
namespace {

constexpr size_t kRanksWithDevices = 1 << 16;

struct Candidate {
  Exchange exchange = Exchange::kServers;
  Problem problem;
  JobTasks tasks;                // without what problem has
  Placement placement;
  Solution solution;             // of placement "best"
  ArcLoads loads;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> others;   // baselines with their times
};

class JobPlanner {
 public:
  JobPlanner(const proto::JobFile& job, const topology::Graph& graph, const fabric::Routes& routes, const PlanJobOptions& options)
      : job_(job), graph_(graph), routes_(routes), options_(options), view_(graph, routes), domains_(topology::Domains::Find(graph)) {}

  absl::StatusOr<proto::Explanation> Run() {
    SLUICE_RETURN_IF_ERROR(CheckJob());
    SLUICE_RETURN_IF_ERROR(FindSites());
    std::vector<Exchange> exchanges{Exchange::kServers};
    if (job_.job().exchange() == "allreduce" || job_.job().exchange() == "sharded") exchanges = {Exchange::kAllReduce};
    if (job_.job().exchange() == "auto") exchanges.push_back(Exchange::kAllReduce);
    std::vector<Candidate> candidates;
    for (const Exchange exchange : exchanges) {
      candidates.emplace_back();
      SLUICE_RETURN_IF_ERROR(Place(exchange, &candidates.back()));
    }
    size_t best = 0;
    for (size_t i = 1; i < candidates.size(); ++i)
      if (candidates[i].seconds < candidates[best].seconds) best = i;
    if (candidates.size() > 1) {
      proto::Choice* choice = out_.add_choices();
      choice->set_what("exchange of gradients");
      choice->set_chosen(NameOf(candidates[best].exchange));
      choice->set_why("the shorter predicted step, each placed for itself (job.exchange is auto)");
      std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
      for (const Candidate& c : candidates) AddOption(NameOf(c.exchange), c.seconds, "", choice);
      best = 0;
    }
    Describe(candidates[best]);
    return std::move(out_);
  }

 private:
  static const char* NameOf(Exchange exchange) { return exchange == Exchange::kServers ? "servers" : "all-reduce"; }

  void AddOption(const std::string& name, double seconds, const std::string& note, proto::Choice* choice) {
    proto::Option* option = choice->add_options();
    option->set_name(name);
    option->set_step_ms(job_.compute_ms() + 1e3 * seconds);
    option->set_note(note);
  }

  absl::Status CheckJob() {
    const std::string& exchange = job_.job().exchange();
    if (!exchange.empty() && exchange != "servers" && exchange != "allreduce" && exchange != "sharded" && exchange != "auto")
      return absl::InvalidArgumentError(absl::StrCat("job.exchange: \"", exchange, "\"; servers, allreduce, sharded and auto are possible"));
    const std::string& placement = job_.placement();
    if (!placement.empty() && placement != "best" && placement != "best-fit" && placement != "round-robin" && placement != "random")
      return absl::InvalidArgumentError(absl::StrCat("placement: \"", placement, "\"; best, best-fit, round-robin and random are possible"));
    if (!(job_.compute_ms() >= 0) || job_.compute_ms() > 1e9)
      return absl::InvalidArgumentError(absl::StrCat("compute_ms: ", job_.compute_ms(), " is not a time"));
    if (static_cast<double>(ParameterBytes(job_)) > kMaxParameterBytes)
      return absl::InvalidArgumentError(absl::StrCat("parameter_bytes or tensors: ", ParameterBytes(job_), " bytes; at most 1e15 can be planned"));
    if (job_.job().workers() > kMaxTasks)
      return absl::InvalidArgumentError(absl::StrCat("job.workers: ", job_.job().workers(), "; at most ", kMaxTasks, " can be planned"));
    return absl::OkStatus();
  }

  absl::Status Names(const google::protobuf::RepeatedPtrField<std::string>& lists, const char* field, absl::flat_hash_set<std::string>* names) {
    std::vector<std::string> missing;
    for (const std::string& list : lists) {
      auto expanded = topology::ExpandHostlist(list);
      if (!expanded.ok()) return absl::InvalidArgumentError(absl::StrCat(field, ": ", expanded.status().message()));
      for (std::string& name : *expanded) {
        const uint32_t vertex = graph_.Find(name);
        if (vertex == kNone || graph_.vertex(vertex).kind != topology::VertexKind::kHost) missing.push_back(name);
        names->insert(std::move(name));
      }
    }
    if (!missing.empty()) {
      const size_t shown = std::min<size_t>(3, missing.size());
      out_.add_notes(absl::StrCat(field, " names ", missing.size(), " hosts that the topology lacks: ",
                                  absl::StrJoin(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                                  missing.size() > shown ? ", …" : ""));
    }
    return absl::OkStatus();
  }

  absl::Status FindSites() {
    SiteRules rules;
    rules.slots_per_worker = std::max(1u, job_.gpus_per_worker());
    SLUICE_RETURN_IF_ERROR(Names(job_.only_hosts(), "only_hosts", &rules.only));
    SLUICE_RETURN_IF_ERROR(Names(job_.exclude_hosts(), "exclude_hosts", &rules.exclude));
    sites_ = SitesOf(graph_, domains_, rules);
    hierarchy_ = HierarchyOf(graph_, sites_, &routes_);
    const uint64_t workers = std::max(1u, job_.job().workers());
    uint64_t places = 0, all_slots = 0, allowed_slots = 0;
    for (const topology::Vertex& vertex : graph_.vertices())
      if (vertex.kind == topology::VertexKind::kHost) all_slots += vertex.slots;
    for (const Site& site : sites_) {
      places += site.places;
      allowed_slots += graph_.vertex(site.host).slots;
      most_places_ = std::max(most_places_, site.places);
    }
    const uint64_t needed = workers * rules.slots_per_worker;
    if (places < workers) {
      std::string text = absl::StrCat("the job does not fit: ", workers, " workers", rules.slots_per_worker > 1 ? absl::StrCat(" of ", rules.slots_per_worker, " GPUs") : "",
                                      " need ", needed, " slots, and there is room for ", places, " workers on ", sites_.size(), " hosts; ",
                                      (workers - places) * rules.slots_per_worker, " slots are missing");
      if (needed <= all_slots && allowed_slots < all_slots)
        absl::StrAppend(&text, "; only_hosts and exclude_hosts leave ", allowed_slots, " of ", all_slots, " slots");
      if (places * rules.slots_per_worker < allowed_slots)
        absl::StrAppend(&text, "; ", allowed_slots - places * rules.slots_per_worker, " slots lie in remainders smaller than gpus_per_worker (",
                        rules.slots_per_worker, ") of their hosts");
      return absl::ResourceExhaustedError(text);
    }
    return CheckDomains(workers);
  }

  // A fabric must hold all; a zone that does not is said.
  absl::Status CheckDomains(uint64_t workers) {
    std::vector<uint64_t> below(hierarchy_.nodes.size());
    for (uint32_t n = static_cast<uint32_t>(hierarchy_.nodes.size()); n-- > 0;) {
      const Hierarchy::Node& node = hierarchy_.nodes[n];
      if (node.site != kNone) below[n] = sites_[node.site].places;
      if (node.parent != kNone) below[node.parent] += below[n];
    }
    uint64_t largest_root = 0, largest_zone = 0;
    size_t roots = 0, zones = 0;
    for (uint32_t n = 0; n < hierarchy_.nodes.size(); ++n) {
      const Hierarchy::Node& node = hierarchy_.nodes[n];
      if (node.parent == kNone) largest_root = std::max(largest_root, below[n]), ++roots;
      if (node.parent != kNone && hierarchy_.nodes[node.parent].parent == kNone && node.site == kNone) largest_zone = std::max(largest_zone, below[n]), ++zones;
    }
    if (largest_root < workers)
      return absl::ResourceExhaustedError(absl::StrCat("the job does not fit in one fabric: ", workers, " workers, and the largest of ", roots,
                                                       " fabrics that nothing joins has room for ", largest_root, "; ", workers - largest_root,
                                                       " are too many: it would never start"));
    if (zones > 1 && largest_zone < workers)
      out_.add_notes(absl::StrCat("no domain below the top holds all ", workers, " workers (the roomiest of ", zones, " has room for ", largest_zone,
                                  "): the job lies across several; a rule that it must lie in one would keep it from ever starting"));
    return absl::OkStatus();
  }

  absl::Status Place(Exchange exchange, Candidate* c) {
    c->exchange = exchange;
    const uint32_t workers = std::max(1u, job_.job().workers());
    uint32_t servers = job_.servers();
    if (servers == 0 && most_places_ > 0)
      servers = std::min<uint32_t>((workers + most_places_ - 1) / most_places_, static_cast<uint32_t>(sites_.size()));
    SLUICE_ASSIGN_OR_RETURN(c->tasks, TasksOf(job_, exchange, servers));
    Problem& problem = c->problem;
    problem.tasks = std::move(c->tasks.tasks);
    problem.traffic = std::move(c->tasks.traffic);
    problem.blocks = std::move(c->tasks.blocks);
    problem.apart = std::move(c->tasks.apart);
    problem.sites = sites_;
    for (Site& site : problem.sites) site.seats = static_cast<uint32_t>((c->tasks.servers + sites_.size() - 1) / sites_.size());
    problem.hierarchy = hierarchy_;
    SLUICE_RETURN_IF_ERROR(Check(problem));
    const auto weigh = [&](const char* name, absl::StatusOr<Placement> placement) -> absl::Status {
      if (!placement.ok()) return placement.status();
      const ArcLoads loads = LoadsOf(problem, *placement, graph_, routes_);
      c->others.emplace_back(name, BusySeconds(loads.bytes, routes_));
      if (job_.placement() == name) c->placement = *std::move(placement);
      return absl::OkStatus();
    };
    SLUICE_RETURN_IF_ERROR(weigh("best-fit", BestFit(problem)));
    SLUICE_RETURN_IF_ERROR(weigh("round-robin", RoundRobin(problem)));
    SLUICE_RETURN_IF_ERROR(weigh("random", Random(problem, options_.seed)));
    if (c->placement.empty()) {
      SLUICE_ASSIGN_OR_RETURN(c->solution, Solve(problem, {.seed = options_.seed, .evaluations = options_.evaluations, .graph = &graph_, .routes = &routes_}));
      c->placement = c->solution.placement;
    }
    c->loads = LoadsOf(problem, c->placement, graph_, routes_);
    c->seconds = BusySeconds(c->loads.bytes, routes_);
    return absl::OkStatus();
  }

  void Describe(const Candidate& c) {
    out_.set_job(job_.job().name());
    out_.set_topology(TopologyLine(graph_));
    DescribePlacement(c);
    if (c.exchange == Exchange::kServers) DescribeServers(c);
    else DescribeLoads(c);
    out_.set_bound_ms(1e3 * Bound(c));
    for (uint32_t t = 0; t < c.problem.tasks.size(); ++t) {
      const Task& task = c.problem.tasks[t];
      const std::string& host = graph_.vertex(HostOf(c, t)).name;
      if (task.role == Role::kServer) out_.add_servers(absl::StrCat("server ", task.number, " on ", host));
    }
    FillRanks(c);
    for (const std::string& note : c.tasks.notes) out_.add_notes(note);
    for (const std::string& note : NotesOn(graph_)) out_.add_notes(note);
    if (c.loads.unreachable > 0) out_.add_notes("some of the traffic has no way: links are down");
    out_.add_notes("computing and communication are counted one after the other; a trainer that overlaps them is faster");
  }

  // With aggregation trees a host's workers send as one: what is not owned on the host goes out once and comes in once. Of
  // H hosts one owns 1/H of the model at most.
  double Bound(const Candidate& c) const {
    if (c.exchange == Exchange::kAllReduce || options_.trees == "off") return BoundOf(c.problem);
    Problem rest = c.problem;
    rest.traffic = WithoutServers(c);
    double fastest = 0;
    for (const uint32_t leaf : hierarchy_.leaf) fastest = std::max({fastest, hierarchy_.nodes[leaf].up, hierarchy_.nodes[leaf].down});
    const double hosts = (c.tasks.workers + most_places_ - 1) / std::max(1u, most_places_);
    const double bytes = static_cast<double>(ParameterBytes(job_)) * std::max(c.tasks.push, c.tasks.pull) * (1 - 1 / std::max(1.0, hosts));
    return std::max(BoundOf(rest), fastest > 0 ? bytes / fastest : 0);
  }

  void DescribePlacement(const Candidate& c) {
    proto::Choice* choice = out_.add_choices();
    choice->set_what("placement of workers and servers");
    const bool best = job_.placement().empty() || job_.placement() == "best";
    choice->set_chosen(best ? "best" : job_.placement());
    std::vector<std::tuple<double, std::string, std::string>> options;
    for (const auto& [name, seconds] : c.others) options.emplace_back(seconds, name, "");
    if (best) {
      options.emplace_back(c.seconds, "best", absl::StrCat("begun as: ", c.solution.start));
      choice->set_why(absl::StrCat("the least time of the most loaded link, then bytes that leave racks, then hops; ", c.solution.attempts.size(),
                                   " first placements, ", c.solution.evaluations, " swaps and moves tried"));
      if (c.solution.score.broken > 0) out_.add_notes("some copies of shards lie in the failure domain of their owner: there is no room elsewhere");
    } else {
      choice->set_why("the job file asks for it (placement)");
    }
    std::stable_sort(options.begin(), options.end(), [](const auto& a, const auto& b) { return std::get<0>(a) < std::get<0>(b); });
    for (const auto& [seconds, name, note] : options) AddOption(name, seconds, note, choice);
  }

  // All-reduce: what ranks exchange is all that there is.
  void DescribeLoads(const Candidate& c) {
    for (proto::LinkLoad& load : planning::BusiestLinks(view_, fabric::Busiest(c.loads.bytes, routes_, 1, planning::kBusiestLinks)))
      *out_.add_busiest() = std::move(load);
    out_.set_compute_ms(job_.compute_ms());
    out_.set_communication_ms(1e3 * c.seconds);
    out_.set_step_ms(job_.compute_ms() + 1e3 * c.seconds);
    std::vector<uint32_t> hosts;
    for (uint32_t t = 0; t < c.problem.tasks.size(); ++t) hosts.push_back(HostOf(c, t));
    fabric::StepRoutes routes(&graph_, &routes_, std::move(hosts));
    AddGroups(c, c.problem.traffic, &routes);
    planning::FillRoutes(graph_, routes_, routes, &out_);
  }

  void DescribeServers(const Candidate& c) {
    Problem rest = c.problem;
    rest.traffic = WithoutServers(c);
    ServersToPlan plan{.job = job_, .beside = LoadsOf(rest, c.placement, graph_, routes_).bytes, .trees = options_.trees};
    for (uint32_t t = 0; t < c.problem.tasks.size(); ++t)
      (c.problem.tasks[t].role == Role::kWorker ? plan.workers : plan.servers).push_back(HostOf(c, t));
    if (!PlanServers(plan, view_, [&](fabric::StepRoutes* routes) { AddGroups(c, rest.traffic, routes); }, &out_))
      DescribeLoads(c);   // a job without parameters
  }

  uint32_t HostOf(const Candidate& c, uint32_t task) const { return c.problem.sites[c.placement[task]].host; }

  // What workers exchange among themselves.
  void AddGroups(const Candidate& c, const Traffic& traffic, fabric::StepRoutes* routes) const {
    for (uint32_t t = 0; t < c.tasks.workers; ++t)
      for (const Traffic::Peer& peer : traffic.Peers(t)) routes->Add(HostOf(c, t), HostOf(c, peer.task), peer.out, fabric::kCollectives);
    const auto parts = [&](const std::vector<uint32_t>& tasks, double weight) {
      std::vector<fabric::Routes::Part> list;
      for (const uint32_t task : tasks) list.push_back({HostOf(c, task), weight});
      return list;
    };
    for (const Traffic::AllToAll& all : traffic.all_to_alls()) {
      routes->AddAll(parts(all.from, 1), parts(all.to, all.there), fabric::kCollectives);
      routes->AddAll(parts(all.to, 1), parts(all.from, all.back), fabric::kCollectives);
    }
  }

  static Traffic WithoutServers(const Candidate& c) {
    Traffic traffic(static_cast<uint32_t>(c.problem.tasks.size()));
    for (uint32_t t = 0; t < c.tasks.workers; ++t)
      for (const Traffic::Peer& peer : c.problem.traffic.Peers(t))
        if (peer.task < c.tasks.workers) traffic.Add(t, peer.task, peer.out);
    for (const Traffic::AllToAll& all : c.problem.traffic.all_to_alls())
      if (all.to.empty() || all.to.back() < c.tasks.workers) traffic.AddAllToAll(all);
    traffic.Finish();
    return traffic;
  }

  void FillRanks(const Candidate& c) {
    std::map<uint32_t, std::vector<std::string>> devices;   // of a host
    std::map<uint32_t, size_t> next;
    const size_t each = std::max(1u, job_.gpus_per_worker());
    for (uint32_t t = 0; t < c.tasks.workers; ++t) {
      const uint32_t host = HostOf(c, t);
      proto::PlacedRank* rank = out_.add_ranks();
      rank->set_rank(c.problem.tasks[t].number);
      rank->set_host(graph_.vertex(host).name);
      if (c.tasks.workers > kRanksWithDevices) continue;
      const auto [it, is_new] = devices.try_emplace(host);
      if (is_new) it->second = DeviceNames(graph_, host);
      size_t& at = next[host];
      for (size_t i = 0; i < each && at < it->second.size(); ++i) rank->add_devices(it->second[at++]);
    }
  }

  const proto::JobFile& job_;
  const topology::Graph& graph_;
  const fabric::Routes& routes_;
  const PlanJobOptions& options_;
  const network::View view_;
  const topology::Domains domains_;
  std::vector<Site> sites_;
  Hierarchy hierarchy_;
  uint32_t most_places_ = 0;
  proto::Explanation out_;
};

}  // namespace

absl::StatusOr<proto::Explanation> PlanJob(const proto::JobFile& job, const topology::Graph& graph, const fabric::Routes& routes,
                                           const PlanJobOptions& options) {
  return JobPlanner(job, graph, routes, options).Run();
}

}  // namespace sluice::placement
