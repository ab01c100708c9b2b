#include "scheduler/records.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace sluice::scheduler {
namespace {

absl::Status Unreadable(const std::string& key) {
  return absl::DataLossError(absl::StrCat("the scheduler's state has an unreadable record \"", key,
                                          "\"; move the state file away to start without it (running jobs are lost)"));
}

// Servers and shards are found by their numbers.
bool Coherent(const proto::Plan& plan) {
  const auto servers = static_cast<uint32_t>(plan.servers_size());
  for (uint32_t i = 0; i < servers; ++i)
    if (plan.servers(static_cast<int>(i)).server() != i) return false;
  for (int i = 0; i < plan.shards_size(); ++i) {
    const proto::ShardInfo& shard = plan.shards(i);
    if (shard.shard() != static_cast<uint32_t>(i) || shard.server() >= servers) return false;
    for (const proto::BackupInfo& copy : shard.backups())
      if (copy.server() >= servers) return false;
  }
  return servers == 0 || plan.coordinator_server() < servers;
}

}  // namespace

// Zero-padded, so that the store's order is the order of the numbers.
std::string JobKey(uint32_t number) { return absl::StrFormat("job/%010d", number); }
std::string ServerKey(const std::string& id) { return absl::StrCat("server/", id); }
std::string EventKey(uint64_t number) { return absl::StrFormat("event/%020d", number); }
std::string BarrierKey(uint32_t job, const std::string& name) { return absl::StrFormat("barrier/%010d/%s", job, name); }

absl::StatusOr<SavedState> ReadState(Store* store) {
  SLUICE_ASSIGN_OR_RETURN(auto records, store->ReadAll());
  SavedState state;
  for (const auto& [key, value] : records) {
    if (key == kMetaKey) {
      if (!state.meta.ParseFromString(value)) return Unreadable(key);
      if (state.meta.format() > kStateFormat)
        return absl::FailedPreconditionError(
            absl::StrCat("the state was written in format ", state.meta.format(), ", this release reads up to ",
                         kStateFormat, "; start the newer release again"));
    } else if (absl::StartsWith(key, "job/")) {
      proto::JobRecord job;
      if (!job.ParseFromString(value) || JobKey(job.plan().job()) != key ||
          job.workers_size() != static_cast<int>(job.plan().config().workers()) ||
          job.plan().workers_size() != job.workers_size() || job.tensor_ranks_size() != job.plan().tensors_size() ||
          !Coherent(job.plan()))
        return Unreadable(key);
      const uint32_t number = job.plan().job();
      state.jobs[number] = std::move(job);
    } else if (absl::StartsWith(key, "server/")) {
      proto::ServerRecord server;
      if (!server.ParseFromString(value) || ServerKey(server.id()) != key) return Unreadable(key);
      state.servers[server.id()] = std::move(server);
    } else if (absl::StartsWith(key, "barrier/")) {
      proto::BarrierRecord barrier;
      if (!barrier.ParseFromString(value)) return Unreadable(key);
      state.barriers.push_back(std::move(barrier));
    } else if (absl::StartsWith(key, "event/")) {
      proto::Event event;
      if (!event.ParseFromString(value)) return Unreadable(key);
      state.events.push_back(std::move(event));
    }
  }
  std::erase_if(state.barriers,
                [&](const auto& barrier) { return state.jobs.find(barrier.job()) == state.jobs.end(); });
  return state;
}

}  // namespace sluice::scheduler
