// What workers ask for: tensors, barriers, leaving. Each is answered by RequestDone, and a worker repeats what it has
// no answer to after it reconnected: every one is idempotent. What cannot be written (the disk is full) is not refused:
// the request stays pending and every tick tries again, so that a full disk costs time and nothing else.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/core_impl.h"
#include "scheduler/plan_builder.h"
#include "scheduler/planning/exchange_choice.h"

namespace sluice::scheduler {

// RegisterTensors:
//   1. The request waits until the job runs (shards exist then).
//   2. AddPendingTensors: each name is new, or the same as before (SameSpec). Ids are given in order of arrival; every
//      worker learns them by name, so the order decides nothing.
//   3. AnswerTensors: when every server of the plan has acknowledged a plan with all of them, so that a worker may
//      push at once.
void CoreImpl::OnRegisterTensors(SessionId session, const proto::RegisterTensors& message) {
  const SessionState& state = sessions_.at(session);
  if (state.role != proto::ROLE_WORKER)
    return Answer(session, message.request(), absl::FailedPreconditionError("only workers register tensors"));
  JobState& job = jobs_.at(state.job);
  if (message.tensors_size() > static_cast<int>(kMaxTensors) || job.tensors.size() >= kMaxPendingTensors)
    return Answer(session, message.request(),
                  absl::ResourceExhaustedError(absl::StrCat("too many tensors at once: ", message.tensors_size(),
                                                            ", and ", job.tensors.size(), " requests wait")));
  job.tensors.push_back({.session = session, .rank = state.rank, .message = message, .version = 0, .ids = {}});
}

absl::Status CoreImpl::AddTensorsOf(const PendingTensors& pending, const JobState& job, const std::vector<double>& weights,
                                    const ExchangeOf& exchanges, proto::JobRecord* next, std::map<std::string, uint32_t>* ids) const {
  std::map<std::string, const proto::TensorSpec*> fresh;
  std::vector<std::pair<const proto::TensorSpec*, uint64_t>> in_order;
  uint64_t partitions = 0;
  for (const proto::TensorSpec& spec : pending.message.tensors()) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t n, CheckSpec(spec));
    if (spec.occasional() && planning::ForcedExchange(next->plan().config()) != proto::EXCHANGE_SERVERS)
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", spec.name(), "\" is not pushed in every step (TensorSpec::every_step), which does not go with job.exchange=",
          next->plan().config().exchange(), ": all workers take part in each of its sums; use job.exchange=servers or auto"));
    if (auto it = job.tensor_ids.find(spec.name()); it != job.tensor_ids.end()) {
      SLUICE_RETURN_IF_ERROR(
          SameSpec(next->plan().tensors(it->second).spec(), next->tensor_ranks(it->second), spec, pending.rank));
    } else if (auto added = ids->find(spec.name()); added != ids->end()) {
      SLUICE_RETURN_IF_ERROR(
          SameSpec(next->plan().tensors(added->second).spec(), next->tensor_ranks(added->second), spec, pending.rank));
    } else if (auto [twin, is_new] = fresh.emplace(spec.name(), &spec); !is_new) {
      SLUICE_RETURN_IF_ERROR(SameSpec(*twin->second, pending.rank, spec, pending.rank));
    } else {
      in_order.emplace_back(&spec, n);
      if (!exchanges.contains(spec.name())) partitions += PartitionsOf(spec, n, next->plan());   // at most 2^20 times 2^30
    }
  }
  SLUICE_RETURN_IF_ERROR(CheckRoom(next->plan(), in_order.size(), partitions));
  for (const auto& [spec, n] : in_order) {
    (*ids)[spec->name()] = static_cast<uint32_t>(next->plan().tensors_size());
    const auto exchange = exchanges.find(spec->name());
    AddTensor(*spec, n, next->mutable_plan(), weights, exchange == exchanges.end() ? proto::EXCHANGE_SERVERS : exchange->second);
    next->add_tensor_ranks(pending.rank);
  }
  return absl::OkStatus();
}

void CoreImpl::AddPendingTensors(JobState& job) {
  if (std::all_of(job.tensors.begin(), job.tensors.end(), [](const auto& pending) { return pending.version != 0; }))
    return;
  Tensors planned = PlanTensors(job);
  const std::map<std::string, uint32_t>& added = planned.added;
  std::erase_if(job.tensors, [&](const PendingTensors& pending) {
    const auto refused = planned.refused.find(&pending);
    if (refused == planned.refused.end()) return false;
    Answer(pending.session, pending.message.request(), refused->second);
    return true;
  });
  if (!added.empty()) {
    if (!CommitJob(job, std::move(planned.next)).ok()) return;  // the next tick comes here again
    if (!planned.exchange.empty()) Note("exchange", job.name(), planned.exchange);
    if (!planned.trees.empty()) Note("trees", job.name(), planned.trees);
    Note("tensors", job.name(),
         absl::StrCat(added.size(), " tensors registered, ", job.plan().tensors_size(), " in all, ",
                      CountPartitions(job.plan()), " partitions"));
    job.tensor_ids.insert(added.begin(), added.end());
  }
  for (PendingTensors& pending : job.tensors) {
    if (pending.version != 0) continue;
    pending.version = job.plan().version();
    for (const proto::TensorSpec& spec : pending.message.tensors())
      pending.ids.push_back(job.tensor_ids.at(spec.name()));
  }
}

bool CoreImpl::ServersHave(const JobState& job, uint64_t version) const {
  return std::all_of(job.plan().servers().begin(), job.plan().servers().end(), [&](const proto::ServerInfo& info) {
    if (!info.alive()) return true;   // owns nothing
    auto server = servers_.find(info.id());
    if (server == servers_.end()) return false;
    auto acked = server->second.acked.find(job.plan().job());
    return acked != server->second.acked.end() && acked->second >= version;
  });
}

void CoreImpl::AnswerTensors(JobState& job) {
  std::erase_if(job.tensors, [&](const PendingTensors& pending) {
    if (pending.version == 0 || !ServersHave(job, pending.version)) return false;
    Answer(pending.session, pending.message.request(), absl::OkStatus(), pending.ids);
    return true;
  });
}

// A barrier is a name and, for each rank, how often it has entered before (the sequence). Sequence s is released when
// every active rank waits with s or more; a repeat of a released one is answered at once.
void CoreImpl::OnBarrier(SessionId session, const proto::BarrierEnter& message) {
  const SessionState& state = sessions_.at(session);
  if (state.role != proto::ROLE_WORKER)
    return Answer(session, message.request(), absl::FailedPreconditionError("only workers enter barriers"));
  JobState& job = jobs_.at(state.job);
  if (message.name().size() > kMaxIdBytes)
    return Answer(session, message.request(), absl::InvalidArgumentError("a barrier's name has at most 255 bytes"));
  auto released = job.released.find(message.name());
  if (released != job.released.end() && message.sequence() < released->second)
    return Answer(session, message.request(), absl::OkStatus());
  if (job.barriers.find(message.name()) == job.barriers.end() && released == job.released.end() &&
      job.barriers.size() + job.released.size() >= kMaxBarriers)
    return Answer(session, message.request(),
                  absl::ResourceExhaustedError(absl::StrCat("the job has ", kMaxBarriers,
                                                            " barriers of different names; use a name again")));
  job.barriers[message.name()][state.rank] = {
      .session = session, .request = message.request(), .sequence = message.sequence()};
}

void CoreImpl::ReleaseBarriers(JobState& job) {
  for (auto& [name, waits] : job.barriers) {
    if (waits.empty()) continue;
    uint64_t sequence = UINT64_MAX - 1;
    bool complete = true;
    for (uint32_t rank = 0; rank < job.workers.size() && complete; ++rank) {
      if (!job.Active(rank)) continue;
      auto wait = waits.find(rank);
      // One that joined a running job has not passed the barriers before; nobody can say which of them it will enter.
      if (wait == waits.end() && job.plan().workers(static_cast<int>(rank)).joining() != 0) continue;
      complete = wait != waits.end();
      if (complete) sequence = std::min(sequence, wait->second.sequence);
    }
    if (!complete) continue;
    proto::BarrierRecord record;
    record.set_job(job.plan().job());
    record.set_name(name);
    record.set_released(sequence + 1);
    if (!Commit({{BarrierKey(record.job(), name), record.SerializeAsString()}}).ok()) return;  // at the next tick
    job.released[name] = record.released();
    std::erase_if(waits, [&](const auto& entry) {
      const BarrierWait& wait = entry.second;
      if (wait.sequence > sequence) return false;
      Answer(wait.session, wait.request, absl::OkStatus());
      return true;
    });
  }
}

// Leave: in order, the rank has finished; failed, the job's rule for losses applies, except that nobody waits for a
// worker that says itself that it cannot go on.
void CoreImpl::OnLeave(SessionId session, const proto::Leave& message) {
  const SessionState& state = sessions_.at(session);
  if (state.role != proto::ROLE_WORKER)
    return Answer(session, message.request(), absl::FailedPreconditionError("only workers leave; a server just ends"));
  JobState& job = jobs_.at(state.job);
  job.leaves[state.rank] = {.session = session, .message = message};
  SettleLeaves(job);
}

void CoreImpl::SettleLeaves(JobState& job) {
  std::erase_if(job.leaves, [&](const auto& entry) {
    const auto& [rank, leave] = entry;
    if (!LeaveJob(job, rank, leave.message).ok()) return false;  // not written: the next tick comes here again
    Answer(leave.session, leave.message.request(), absl::OkStatus());
    return true;
  });
}

absl::Status CoreImpl::LeaveJob(JobState& job, uint32_t rank, const proto::Leave& message) {
  if (job.ended() || !job.Active(rank)) return absl::OkStatus();
  const proto::WorkerRecord& worker = job.record.workers(rank);
  const std::string who = absl::StrCat("rank ", rank, " (", worker.id(), ", ", worker.peer(), ")");
  if (message.failed() && job.plan().state() == proto::JOB_RUNNING) {
    const std::string why = absl::StrCat(who, " failed: ", Clip(message.why()));
    if (job.plan().config().on_worker_loss() == proto::LOSS_RESCALE) return BeginLeaving(job, rank, why);
    return EndJob(job, proto::JOB_FAILED, why);
  }
  proto::JobRecord next = job.record;
  proto::WorkerInfo* info = next.mutable_plan()->mutable_workers(rank);
  if (job.plan().state() == proto::JOB_FORMING) {
    next.mutable_workers(rank)->Clear();
    info->Clear();
    info->set_rank(rank);
  } else {
    info->set_finished(true);
  }
  SLUICE_RETURN_IF_ERROR(CommitJob(job, std::move(next)));
  if (job.plan().state() == proto::JOB_FORMING) {
    Note("worker_left", job.name(), absl::StrCat(who, " left before the job started", message.failed() ? ": " : "",
                                                 Clip(message.why())));
  } else {
    Note("worker_finished", job.name(), who);
  }
  return absl::OkStatus();
}

}  // namespace sluice::scheduler
