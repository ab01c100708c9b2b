// The servers of a running job, and the copies of its shards (docs/replication.md; the plan's half is replicas.h).
//
//   lost       CheckLeases finds it (members.cc), or SettleServers sees that a new life has its id.
//   joined     SettleServers: a server with a stream that the plan does not name, or names as not alive. It holds
//              nothing; it gets copies where they lack, and shards when an operator moves some.
//   in sync    TakeReplicas: an owner says it of a copy, in its heartbeats, until the plan does.
//   protected  KeepProtection: with each commit it is kept since when the job is not, and why.
//
// UpdateServers makes one plan of it all: losses, promotions, joins, new copies. Nobody ever sees a shard without an owner.
#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/core_impl.h"

namespace sluice::scheduler {
namespace {

constexpr size_t kNamedShards = 8;

std::string ShardsText(const std::vector<uint32_t>& shards) {
  const std::vector<uint32_t> named(shards.begin(), shards.begin() + std::min(shards.size(), kNamedShards));
  return absl::StrCat(shards.size() == 1 ? "shard " : "shards ", absl::StrJoin(named, ", "),
                      shards.size() > named.size() ? absl::StrCat(", … (", shards.size(), ")") : "");
}

std::string OrphansText(const Loss& loss, uint32_t replicas) {
  const std::string shards = ShardsText(loss.orphans);
  if (replicas == 0)
    return absl::StrCat("; its shards are gone (job.replicas is 0: ", shards, " had no copy): start the server and the job "
                        "again; workers resume from their own snapshots. With job.replicas=1 and two servers a job "
                        "survives this");
  return absl::StrCat("; ", shards, " had no copy in sync on another server (job.replicas is ", replicas,
                      "): start the job again; workers resume from their own snapshots. A job survives as many losses at "
                      "a time as job.replicas, if it has more servers than that; `sluicectl status` says when it is "
                      "protected");
}

std::string ReplacedText(const proto::Plan& plan, const Loss& loss, const Tended& tended) {
  std::vector<std::string> parts;
  for (const auto& [server, n] : loss.promoted)
    parts.push_back(absl::StrCat(n, n == 1 ? " shard goes to " : " shards go to ", plan.servers(static_cast<int>(server)).id()));
  if (loss.promoted.empty()) parts.push_back("it owned no shard");
  if (loss.coordinator)
    parts.push_back(absl::StrCat("the step coordinator is ",
                                 plan.servers(static_cast<int>(plan.coordinator_server())).id()));
  parts.push_back(tended.named == 0
                      ? "no copies can be filled now"
                      : absl::StrCat(tended.named, tended.named == 1 ? " copy is" : " copies are", " to be filled"));
  return absl::StrJoin(parts, ", ");
}

}  // namespace

CopyRules CoreImpl::RulesFor(const proto::JobRecord& record) const {
  CopyRules rules;
  rules.replicas = record.plan().config().replicas();
  rules.since = meta_.plan_version() + 1;
  rules.term = NextTerm(record.plan(), meta_.term_floor());
  for (const proto::ServerInfo& info : record.plan().servers()) {
    auto it = servers_.find(info.id());
    if (it == servers_.end() || it->second.live.session == 0 || it->second.record.incarnation() != info.incarnation())
      rules.avoid.insert(info.server());
    if (it != servers_.end() && it->second.record.draining() && info.alive()) rules.draining.insert(info.server());
    if (const uint32_t host = network_->Host(info.host()); host != topology::kNone) {
      const std::span<const uint32_t> domains = network_->domains().Of(host);
      rules.domains[info.server()].assign(domains.begin(), domains.end());
    }
  }
  return rules;
}

// Whether some running job has this server, and each that has it would go on at once without it.
bool CoreImpl::CanSpare(const std::string& server) const {
  bool in_use = false;
  for (const auto& [number, job] : jobs_) {
    if (job.plan().state() != proto::JOB_RUNNING) continue;
    const auto& infos = job.plan().servers();
    auto info = std::find_if(infos.begin(), infos.end(), [&](const auto& i) { return i.id() == server && i.alive(); });
    if (info == infos.end()) continue;
    in_use = true;
    const CopyRules rules = RulesFor(job.record);
    for (const proto::ShardInfo& shard : job.plan().shards()) {
      if (shard.server() == info->server() &&
          std::none_of(shard.backups().begin(), shard.backups().end(), [&](const proto::BackupInfo& copy) {
            return copy.in_sync() && rules.avoid.count(copy.server()) == 0;
          }))
        return false;
    }
  }
  return in_use;
}

void CoreImpl::SettleServers(JobState& job) {
  LostServers lost;
  std::unordered_map<std::string, bool> alive;
  for (const proto::ServerInfo& info : job.plan().servers()) {
    alive[info.id()] = info.alive();
    if (!info.alive()) continue;
    auto it = servers_.find(info.id());
    if (it != servers_.end() && it->second.record.incarnation() == info.incarnation()) continue;
    lost[info.server()] = absl::StrCat("server ", info.id(), " (", info.control(), ") ",
                                       it != servers_.end() ? "restarted and lost its shards" : "is not known any more");
  }
  const bool joins = std::any_of(servers_.begin(), servers_.end(), [&](const auto& entry) {
    if (entry.second.live.session == 0) return false;
    auto it = alive.find(entry.first);
    return it == alive.end() ? job.plan().servers_size() < static_cast<int>(kMaxServers) : !it->second;
  });
  const CopyRules rules = RulesFor(job.record);
  if (lost.empty() && !joins && !NeedsTending(rules, job.plan()) &&
      !PlanMoves(job.record, rules, config_.moves_at_once()).Any())
    return;
  (void)UpdateServers(job, lost);   // if it was not written the next tick comes here again
}

std::vector<std::string> CoreImpl::JoinServers(proto::Plan* plan) const {
  std::unordered_map<std::string, int> index;
  for (const proto::ServerInfo& info : plan->servers()) index[info.id()] = static_cast<int>(info.server());
  std::vector<std::string> joined;
  for (const auto& [id, server] : servers_) {
    if (server.live.session == 0) continue;
    auto it = index.find(id);
    if (it == index.end() && plan->servers_size() >= static_cast<int>(kMaxServers)) continue;
    if (it != index.end() && plan->servers(it->second).alive()) continue;
    proto::ServerInfo* info = it == index.end() ? plan->add_servers() : plan->mutable_servers(it->second);
    if (it == index.end()) info->set_server(static_cast<uint32_t>(plan->servers_size() - 1));
    info->set_id(id);
    info->set_incarnation(server.record.incarnation());
    *info->mutable_lanes() = server.record.lanes();
    info->set_control(server.record.control());
    info->set_host(server.record.host());
    info->set_alive(true);
    joined.push_back(id);
  }
  return joined;
}

absl::Status CoreImpl::UpdateServers(JobState& job, const LostServers& lost) {
  proto::JobRecord next = job.record;
  proto::Plan* plan = next.mutable_plan();
  Loss loss;
  if (!lost.empty()) {
    std::set<uint32_t> indices;
    for (const auto& [index, text] : lost) indices.insert(index);
    loss = LoseServers(indices, RulesFor(next), plan);
    if (!loss.orphans.empty()) {
      std::vector<std::string> texts;
      for (const auto& [index, text] : lost) texts.push_back(text);
      return EndJob(job, proto::JOB_FAILED, absl::StrCat(absl::StrJoin(texts, "; "),
                                                         OrphansText(loss, plan->config().replicas())));
    }
  }
  const std::vector<std::string> joined = JoinServers(plan);
  std::vector<std::string> hosts;
  for (const proto::ServerInfo& info : plan->servers()) hosts.push_back(info.host());
  network_->AddHosts(hosts);
  const CopyRules rules = RulesFor(next);
  ApplyMoves(PlanMoves(next, rules, config_.moves_at_once()), rules, &next);
  const Tended tended = Tend(rules, /*in_sync=*/false, plan);
  if (next.unprotected_unix_ms() == 0 && !lost.empty())
    next.set_unprotected_why(
        absl::StrCat("server ", plan->servers(static_cast<int>(lost.begin()->first)).id(), " was lost"));
  if (absl::Status status = CommitJob(job, std::move(next)); !status.ok()) return status;
  NoteMoved(job, tended);
  for (const auto& [index, text] : lost)
    Note("server_lost", job.name(), absl::StrCat(text, "; ", ReplacedText(job.plan(), loss, tended)));
  for (const std::string& id : joined) {
    // How many of the copies that were named just now it got.
    const auto& infos = job.plan().servers();
    auto info = std::find_if(infos.begin(), infos.end(), [&](const auto& i) { return i.id() == id; });
    Note("server_joined", job.name(),
         absl::StrCat("server ", id, " is number ", info->server(), " of the plan; it is to hold ",
                      HeldBy(job.plan(), info->server()).copies, " copies"));
  }
  return absl::OkStatus();
}

void CoreImpl::NoteMoved(const JobState& job, const Tended& tended) {
  for (const uint32_t shard : tended.moved)
    Note("shard_moved", job.name(),
         absl::StrCat("shard ", shard, " is owned by ",
                      job.plan().servers(static_cast<int>(job.plan().shards(static_cast<int>(shard)).server())).id(),
                      " now"));
}

// Of copies that are filled, or that the plan does not name any more.
void CoreImpl::ForgetProgress(JobState& job) const {
  std::erase_if(job.progress, [&](const auto& entry) {
    const proto::BackupInfo* copy = FindCopy(job.plan().shards(static_cast<int>(entry.first.first)), entry.first.second);
    return copy == nullptr || copy->since() != entry.second.since || copy->in_sync();
  });
}

void CoreImpl::TakeProgress(const proto::ReplicaState& state, CopyProgress* progress) const {
  const TimeNs now = clock_->Now();
  if (progress->since != state.since()) *progress = {.since = state.since(), .sent = 0, .left = 0, .at = 0, .rate = 0};
  if (progress->at != 0 && now > progress->at && state.bytes_sent() >= progress->sent) {
    const double rate = static_cast<double>(state.bytes_sent() - progress->sent) * kSecond /
                        static_cast<double>(now - progress->at);
    progress->rate = progress->rate == 0 ? rate : 0.7 * progress->rate + 0.3 * rate;
  }
  progress->sent = state.bytes_sent();
  progress->left = state.bytes_left();
  progress->at = now;
}

void CoreImpl::TakeReplicas(const std::string& server, const proto::Heartbeat& heartbeat) {
  std::map<uint32_t, proto::JobRecord> changed;   // by job
  for (const proto::ReplicaState& state : heartbeat.replicas()) {
    auto it = jobs_.find(state.job());
    if (it == jobs_.end() || it->second.plan().uid() != state.job_uid() ||
        it->second.plan().state() != proto::JOB_RUNNING)
      continue;
    JobState& job = it->second;
    if (state.shard() >= static_cast<uint32_t>(job.plan().shards_size())) continue;
    const proto::ShardInfo& shard = job.plan().shards(static_cast<int>(state.shard()));
    const proto::ServerInfo& owner = job.plan().servers(static_cast<int>(shard.server()));
    if (owner.id() != server || owner.incarnation() != servers_.at(server).record.incarnation() ||
        shard.term() != state.term())
      continue;
    const proto::BackupInfo* copy = FindCopy(shard, state.server());
    if (copy == nullptr || copy->since() != state.since() || copy->in_sync()) continue;
    if (!state.in_sync()) {
      TakeProgress(state, &job.progress[{state.shard(), state.server()}]);
      continue;
    }
    proto::JobRecord& next = changed.try_emplace(state.job(), job.record).first->second;
    auto* copies = next.mutable_plan()->mutable_shards(static_cast<int>(state.shard()))->mutable_backups();
    for (proto::BackupInfo& each : *copies)
      if (each.server() == state.server()) each.set_in_sync(true);
  }
  for (auto& [number, next] : changed) {
    JobState& job = jobs_.at(number);
    const Tended tended = Tend(RulesFor(next), /*in_sync=*/false, next.mutable_plan());
    if (!CommitJob(job, std::move(next)).ok()) continue;   // the owner says it again
    NoteMoved(job, tended);
  }
}

void CoreImpl::KeepProtection(const JobState& job, proto::JobRecord* next) const {
  if (next->plan().state() != proto::JOB_RUNNING || next->plan().config().replicas() == 0) return;
  if (ProtectionOf(next->plan(), next->plan().config().replicas()).Full()) {
    next->set_unprotected_unix_ms(0);
    next->clear_unprotected_why();
  } else if (next->unprotected_unix_ms() == 0) {
    next->set_unprotected_unix_ms(std::max<int64_t>(1, wall_ms_()));
    if (next->unprotected_why().empty())
      next->set_unprotected_why(job.plan().state() == proto::JOB_RUNNING ? "its copies were changed"
                                                                         : "it started with too few servers");
  }
}

void CoreImpl::NoteProtection(const proto::JobRecord& before, const proto::JobRecord& now) {
  const std::string& name = now.plan().config().name();
  if (now.plan().state() != proto::JOB_RUNNING ||
      (before.unprotected_unix_ms() == 0) == (now.unprotected_unix_ms() == 0))
    return;
  const Protection protection = ProtectionOf(now.plan(), now.plan().config().replicas());
  if (now.unprotected_unix_ms() == 0) {
    Note("job_protected", name,
         absl::StrCat("every shard has ", protection.wanted, protection.wanted == 1 ? " copy" : " copies",
                      " in sync again, ",
                      Ago(std::max<int64_t>(0, wall_ms_() - before.unprotected_unix_ms()) * kMillisecond), " after ",
                      before.unprotected_why()));
  } else {
    Note("job_unprotected", name,
         absl::StrCat(now.unprotected_why(), ": ", protection.bare, " of ", now.plan().shards_size(),
                      " shards have no copy in sync, ", protection.filling, " copies are being filled"));
  }
}

// One line: protected or not; if not, since when and what is missing.
std::string CoreImpl::ProtectionText(const JobState& job) const {
  const proto::Plan& plan = job.plan();
  const uint32_t replicas = plan.config().replicas();
  if (replicas == 0) return "not protected: job.replicas is 0, so the loss of a server ends the job";
  const Protection protection = ProtectionOf(plan, replicas);
  const std::string few =
      protection.wanted < replicas
          ? absl::StrCat(" (job.replicas is ", replicas, "; more need more servers)") : "";
  if (protection.Full())
    return absl::StrCat("protected: every shard has ", protection.wanted, protection.wanted == 1 ? " copy" : " copies",
                        " in sync", few);
  uint64_t left = 0;
  for (const auto& [key, progress] : job.progress) left += progress.left;
  std::string text = absl::StrCat(
      "not protected for ", Ago(std::max<int64_t>(0, wall_ms_() - job.record.unprotected_unix_ms()) * kMillisecond), " (",
      job.record.unprotected_why(), "): ", protection.bare, " of ", plan.shards_size(), " shards have no copy in sync");
  if (protection.lacking > protection.bare)
    absl::StrAppend(&text, ", ", protection.lacking - protection.bare, " too few");
  if (protection.wanted == 0) return absl::StrCat(text, "; there is no other server: start one", few);
  if (protection.filling == 0) return absl::StrCat(text, "; no server can take copies now");
  return absl::StrCat(text, "; ", protection.filling, protection.filling == 1 ? " copy is" : " copies are",
                      " being filled, ", left >> 20, " MiB left", few);
}

}  // namespace sluice::scheduler
