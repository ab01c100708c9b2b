// Statistics of tables: what servers say of their segments with heartbeats, and the sums that the admin service shows.
//
// A heartbeat may carry anything. Taken is: of at most kMaxReportedTables of its tables what is in the plan of the job that it
// names, from a server of that plan, with kMaxHotIds hot ids. Sums stop at the largest number. What a server said last of a
// job that it does not speak of any more stays: the job has ended, and people look at it then.
#include <algorithm>
#include <functional>
#include <limits>

#include "base/status_macros.h"
#include "scheduler/core_impl.h"

namespace sluice::scheduler {
namespace {

uint64_t Sum(uint64_t a, uint64_t b) { return a + b < a ? std::numeric_limits<uint64_t>::max() : a + b; }

void AddCounts(const proto::TableCounts& from, proto::TableCounts* to) {
  to->set_rows(Sum(to->rows(), from.rows()));
  to->set_bytes(Sum(to->bytes(), from.bytes()));
  to->set_reads(Sum(to->reads(), from.reads()));
  to->set_hits(Sum(to->hits(), from.hits()));
  to->set_updates(Sum(to->updates(), from.updates()));
  to->set_created(Sum(to->created(), from.created()));
  to->set_evicted_age(Sum(to->evicted_age(), from.evicted_age()));
  to->set_evicted_bound(Sum(to->evicted_bound(), from.evicted_bound()));
  to->set_dropped_zero(Sum(to->dropped_zero(), from.dropped_zero()));
  to->set_not_admitted(Sum(to->not_admitted(), from.not_admitted()));
  to->set_no_room(Sum(to->no_room(), from.no_room()));
  to->set_nonfinite(Sum(to->nonfinite(), from.nonfinite()));
}

bool IsServerOf(const proto::Plan& plan, const std::string& id) {
  return std::ranges::any_of(plan.servers(), [&](const proto::ServerInfo& server) { return server.id() == id; });
}

}  // namespace

void CoreImpl::TakeTables(const std::string& server, const proto::Heartbeat& heartbeat) {
  std::map<uint32_t, std::map<uint32_t, proto::TableState>> taken;   // by job, tensor
  const int tables = std::min(heartbeat.tables_size(), kMaxReportedTables);
  for (int i = 0; i < tables; ++i) {
    const proto::TableState& said = heartbeat.tables(i);
    const auto job = jobs_.find(said.job());
    if (job == jobs_.end() || job->second.plan().uid() != said.job_uid()) continue;
    const proto::Plan& plan = job->second.plan();
    if (said.tensor() >= static_cast<uint32_t>(plan.tensors_size())) continue;
    const proto::TensorInfo& tensor = plan.tensors(static_cast<int>(said.tensor()));
    if (!tensor.spec().has_table()) continue;
    const auto [kept, fresh] = taken[said.job()].try_emplace(said.tensor());
    if (!fresh) continue;
    // Field by field: what this release does not know is not kept either.
    kept->second.set_segments(std::min(said.segments(), static_cast<uint32_t>(tensor.partition_shard_size())));
    AddCounts(said.counts(), kept->second.mutable_counts());
    for (int h = 0; h < std::min(said.hot_size(), kMaxHotIds); ++h) {
      proto::HotId* hot = kept->second.add_hot();
      hot->set_id(said.hot(h).id());
      hot->set_count(said.hot(h).count());
    }
  }
  for (auto& [number, states] : taken) {
    JobState& job = jobs_.at(number);
    if (IsServerOf(job.plan(), server)) job.tables[server] = std::move(states);
  }
}

absl::StatusOr<proto::TableList> CoreImpl::ListTables(const std::string& name) const {
  SLUICE_ASSIGN_OR_RETURN(const JobState* job, FindJob(name));
  proto::TableList list;
  list.set_job(job->name());
  for (const proto::TensorInfo& tensor : job->plan().tensors()) {
    if (!tensor.spec().has_table()) continue;
    const proto::TableSpec& spec = tensor.spec().table();
    proto::TableStatus* status = list.add_tables();
    status->set_name(tensor.spec().name());
    status->set_dim(spec.dim());
    status->set_dtype(spec.dtype().empty() ? "fp32" : spec.dtype());
    status->set_optimizer(spec.optimizer().kind().empty() ? "sgd" : spec.optimizer().kind());
    status->set_segments(static_cast<uint32_t>(tensor.partition_shard_size()));
    proto::TableCounts* counts = status->mutable_counts();
    std::map<uint64_t, uint64_t> hot;   // servers have no id in common, unless one of them is wrong
    std::set<std::string> owners;
    for (const uint32_t shard : tensor.partition_shard())
      owners.insert(job->plan().servers(static_cast<int>(job->plan().shards(static_cast<int>(shard)).server())).id());
    for (const auto& [server, tables] : job->tables) {
      if (owners.count(server) == 0) continue;   // another owns now what this one spoke of
      const auto state = tables.find(tensor.tensor());
      if (state == tables.end()) continue;
      status->set_segments_reported(
          std::min(status->segments(), status->segments_reported() + state->second.segments()));
      AddCounts(state->second.counts(), counts);
      for (const proto::HotId& one : state->second.hot()) hot[one.id()] = Sum(hot[one.id()], one.count());
    }
    if (counts->reads() > 0)
      status->set_hit_rate(static_cast<double>(std::min(counts->hits(), counts->reads())) / static_cast<double>(counts->reads()));
    std::vector<std::pair<uint64_t, uint64_t>> order(hot.begin(), hot.end());
    std::ranges::stable_sort(order, std::greater<>(), [](const auto& one) { return one.second; });
    for (size_t i = 0; i < std::min<size_t>(order.size(), kMaxHotIds); ++i) {
      status->add_hot()->set_id(order[i].first);
      status->mutable_hot(static_cast<int>(i))->set_count(order[i].second);
    }
  }
  return list;
}

}  // namespace sluice::scheduler
