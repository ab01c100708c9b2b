// Rebalancing, on request and by itself (docs/admin.md; what is moved and when: balance.h).
//
//   1. Each server says with its heartbeats what it spends and what its shards cost; a LoadMeter keeps it smoothed.
//   2. Every kLookEvery a running job's watch sees the servers' loads, if node.rebalance_after_ms is not 0 and nothing
//      else is going on: no move, no drain, no copy to be filled, moves not paused.
//   3. It says that one server has been the bottleneck long enough: PlanRebalance. Worth it: the moves become records
//      of the job, written as an operator's are.
//   4. As long as shards move, and whenever a plan has other owners or servers (CommitJob), the watch is told so: its
//      cool-down begins with the last of it.
// A restart of the scheduler forgets loads, and begins with a cool-down.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "scheduler/core_impl.h"

namespace sluice::scheduler {
namespace {

constexpr TimeNs kLookEvery = 100 * kMillisecond;
constexpr TimeNs kShortestSmoothing = 100 * kMillisecond;
constexpr TimeNs kLongestSmoothing = 5 * kSecond;

std::map<uint32_t, double> ServerLoads(const std::map<uint32_t, const LoadMeter*>& meters) {
  std::map<uint32_t, double> loads;
  for (const auto& [server, meter] : meters) loads[server] = LoadOf(meter->total(), meter->capacity());
  return loads;
}

bool AllIdle(const std::map<uint32_t, double>& loads) {
  return std::ranges::all_of(loads, [](const auto& load) { return load.second < kIdleLoad; });
}

void FillLoad(const Balance& balance, const Loads& loads, uint32_t server, proto::ServerLoad* load) {
  const Cost& before = balance.cost_before.at(server);
  const Cost& after = balance.cost_after.at(server);
  const Capacity& capacity = loads.servers.at(server).capacity;
  load->set_load_before(LoadOf(before, capacity));
  load->set_load_after(LoadOf(after, capacity));
  load->set_cpu_before(before.cpu);
  load->set_cpu_after(after.cpu);
  load->set_in_before(static_cast<uint64_t>(before.in));
  load->set_in_after(static_cast<uint64_t>(after.in));
  load->set_out_before(static_cast<uint64_t>(before.out));
  load->set_out_after(static_cast<uint64_t>(after.out));
}

}  // namespace

TimeNs CoreImpl::Smoothing() const {
  const TimeNs after = TimeNs{config_.rebalance_after_ms()} * kMillisecond;
  return after == 0 ? kLongestSmoothing : std::clamp(after / 2, kShortestSmoothing, kLongestSmoothing);
}

// Rows of tables by shard: what a server said of a table, shared out to the segments that it owns.
std::map<uint32_t, uint64_t> CoreImpl::TableBytes(const JobState& job) const {
  std::map<uint32_t, uint64_t> bytes;
  for (const proto::TensorInfo& tensor : job.plan().tensors()) {
    if (!tensor.spec().has_table()) continue;
    for (const uint32_t shard : tensor.partition_shard()) {
      const uint32_t owner = job.plan().shards(static_cast<int>(shard)).server();
      auto server = job.tables.find(NameOf(job.plan(), owner));
      if (server == job.tables.end()) continue;
      auto table = server->second.find(tensor.tensor());
      if (table == server->second.end() || table->second.segments() == 0) continue;
      bytes[shard] += table->second.counts().bytes() / table->second.segments();
    }
  }
  return bytes;
}

// Of the servers that may own shards; none while some of them has not been measured.
std::optional<CoreImpl::Meters> CoreImpl::MetersOf(const JobState& job, const CopyRules& rules) const {
  const TimeNs fresh = 3 * TimeNs{config_.heartbeat_ms()} * kMillisecond + kSecond;
  Meters meters;
  for (const uint32_t server : Takers(job.plan(), rules)) {
    const auto it = servers_.find(NameOf(job.plan(), server));
    if (it == servers_.end() || !it->second.meter.Knows(clock_->Now(), Smoothing(), fresh)) return std::nullopt;
    meters[server] = &it->second.meter;
  }
  return meters;
}

Loads CoreImpl::LoadsOf(const JobState& job, const Meters& meters) const {
  const proto::Plan& plan = job.plan();
  Loads loads;
  for (const auto& [server, meter] : meters) loads.servers[server] = {meter->capacity(), meter->total()};
  const auto add = [&](uint32_t shard, uint32_t server) {
    const auto meter = meters.find(server);
    if (meter == meters.end()) return;
    const Cost cost = meter->second->Of(plan.job(), shard);
    loads.shards[{shard, server}] = cost;
    loads.servers[server].base -= cost;
  };
  for (const proto::ShardInfo& shard : plan.shards()) {
    add(shard.shard(), shard.server());
    for (const proto::BackupInfo& copy : shard.backups()) add(shard.shard(), copy.server());
  }
  return loads;
}

absl::StatusOr<proto::RebalanceAnswer> CoreImpl::Rebalance(const std::string& name, bool dry_run) {
  SLUICE_ASSIGN_OR_RETURN(JobState * job, RunningJob(name));
  const CopyRules rules = RulesFor(job->record);
  std::optional<Loads> loads;
  const std::optional<Meters> meters = MetersOf(*job, rules);
  if (meters && !AllIdle(ServerLoads(*meters))) loads = LoadsOf(*job, *meters);
  const Balance balance = PlanRebalance(job->record, rules, TableBytes(*job), loads ? &*loads : nullptr);
  proto::RebalanceAnswer answer;
  answer.set_job(job->name());
  answer.set_dry_run(dry_run);
  answer.set_by_load(loads.has_value());
  for (const auto& [server, bytes] : balance.before) {
    proto::ServerLoad* load = answer.add_servers();
    load->set_server(NameOf(job->plan(), server));
    load->set_bytes_before(bytes);
    load->set_bytes_after(balance.after.at(server));
    if (loads) FillLoad(balance, *loads, server, load);
  }
  for (const proto::MoveRecord& move : balance.moves) *answer.add_moves() = MoveStatusOf(*job, move);
  if (dry_run || balance.moves.empty()) return answer;
  proto::JobRecord next = job->record;
  for (const proto::MoveRecord& move : balance.moves) *next.add_moves() = move;
  SLUICE_RETURN_IF_ERROR(BeginAtOnce(*job, std::move(next)));
  Note("move_asked", job->name(), absl::StrCat("rebalance: ", balance.moves.size(), " shards are to move"));
  Settle();
  (void)Commit({});
  return answer;
}

void CoreImpl::WatchBottleneck(JobState& job) {
  const TimeNs now = clock_->Now();
  if (config_.rebalance_after_ms() == 0 || job.plan().state() != proto::JOB_RUNNING) return;
  if (now - job.watched < kLookEvery) return;
  job.watched = now;
  if (job.record.moves_size() > 0) return job.watch.Moves(now);
  const BottleneckWatch::Rule rule{.after = TimeNs{config_.rebalance_after_ms()} * kMillisecond,
                                   .over = 1 + config_.rebalance_over_percent() / 100.0,
                                   .cooldown = TimeNs{config_.rebalance_cooldown_ms()} * kMillisecond};
  const uint32_t replicas = job.plan().config().replicas();
  const CopyRules rules = RulesFor(job.record);
  const bool calm = !job.record.moves_paused() && rules.draining.empty() &&
                    (replicas == 0 || ProtectionOf(job.plan(), replicas).Full());
  const std::optional<Meters> meters = calm ? MetersOf(job, rules) : std::nullopt;
  if (!meters) {
    (void)job.watch.Observe(nullptr, rule, now);
    return;
  }
  const std::map<uint32_t, double> servers = ServerLoads(*meters);
  if (!job.watch.Observe(&servers, rule, now)) return;
  const Loads loads = LoadsOf(job, *meters);
  const Balance balance = PlanRebalance(job.record, rules, TableBytes(job), &loads);
  if (!Worth(balance, rule.cooldown)) return;
  proto::JobRecord next = job.record;
  for (const proto::MoveRecord& move : balance.moves) {
    *next.add_moves() = move;
    next.mutable_moves(next.moves_size() - 1)->set_automatic(true);
  }
  const std::string bottleneck = NameOf(job.plan(), *job.watch.server());
  const TimeNs lasts = now - job.watch.since();
  if (!BeginAtOnce(job, std::move(next)).ok()) return;   // the next look comes here again
  job.watch.Moves(now);
  Note("rebalance", job.name(),
       absl::StrFormat("server %s has been the bottleneck for %s: its load is %.0f %%, the mean %.0f %%; %d shards "
                       "are to move (%s), the largest load is then about %.0f %%",
                       bottleneck, Ago(lasts), 100 * balance.largest_before, 100 * balance.mean, balance.moves.size(),
                       SizeText(balance.moved_bytes), 100 * balance.largest_after));
}

}  // namespace sluice::scheduler
