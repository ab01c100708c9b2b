#include "worker/collective/collectives.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "worker/collective/make_operation.h"

namespace sluice::collective {

using transport::LinkId;

namespace {

constexpr size_t kMaxFailures = 256;   // kept of a channel, to answer peers that come late

const proto::WorkerInfo* WorkerOf(const proto::Plan& plan, uint32_t rank) {
  return rank < static_cast<uint32_t>(plan.workers_size()) ? &plan.workers(static_cast<int>(rank)) : nullptr;
}

bool Lost(const proto::WorkerInfo& worker) { return !worker.alive() && !worker.finished(); }

// docs/wire.md, "Between workers": term.
uint32_t EpochOf(const proto::Plan& plan, const RankGroup& group) {
  std::vector<std::byte> bytes(sizeof(uint64_t) + group.size * 2 * sizeof(uint32_t));
  StoreLe(bytes.data(), plan.uid());
  for (uint32_t member = 0; member < group.size; ++member) {
    const proto::WorkerInfo* worker = WorkerOf(plan, group.rank(member));
    std::byte* at = bytes.data() + sizeof(uint64_t) + member * 2 * sizeof(uint32_t);
    StoreLe(at, group.rank(member));
    StoreLe(at + sizeof(uint32_t), worker == nullptr ? uint32_t{0} : worker->incarnation());
  }
  return std::max(1u, static_cast<uint32_t>(transport::HashBytes(bytes)));
}

}  // namespace

Collectives::Collectives(transport::Endpoint* endpoint, transport::LinkQueue* queue, const Clock* clock, Options options)
    : endpoint_(endpoint),
      clock_(clock),
      options_(std::move(options)),
      mesh_(endpoint, clock),
      courier_(endpoint, queue, clock, this),
      pool_(transport::BufferPool::Create(endpoint, kPoolBytes, 0)) {}

Collectives::~Collectives() = default;

Collectives::Call* Collectives::Find(uint64_t id) {
  const auto it = calls_.find(id);
  return it == calls_.end() ? nullptr : it->second.get();
}

OpName Collectives::ChannelOf(const OpName& name) {
  OpName channel = name;
  channel.sequence = 0;
  return channel;
}

// ---------------------------------------------------------------------------------------------------- the plan

void Collectives::OnPlan(const proto::Plan& plan, uint32_t rank, uint32_t incarnation, const std::string& name) {
  const bool first = !planned_;
  const proto::Plan former = std::exchange(plan_, plan);
  if (!first) {   // which algorithm is taken must not change under the calls of a running job: docs/topology/collectives.md
    *plan_.mutable_tiers() = former.tiers();
    for (int i = 0; i < plan_.workers_size() && i < former.workers_size(); ++i)
      *plan_.mutable_workers(i)->mutable_coordinates() = former.workers(i).coordinates();
  }
  rank_ = rank;
  transport::Hello hello;
  hello.role = transport::PeerRole::kWorker;
  hello.job = plan.job();
  hello.job_uid = plan.uid();
  hello.index = rank;
  hello.incarnation = incarnation;
  hello.name = name.substr(0, 255);
  mesh_.SetIdentity(hello);
  mesh_.UpdatePlan(plan);
  courier_.SetIdentity({.job = plan.job(), .rank = rank, .incarnation = incarnation, .resend = options_.resend});
  if (plan.state() != proto::JOB_RUNNING) return;   // members come one by one
  planned_ = true;
  if (absl::StatusOr<Groups> groups = Groups::Parse(plan.config().groups(), plan.config().workers()); groups.ok()) {
    groups_ = *std::move(groups);
  } else {
    groups_ = *Groups::Parse("", plan.config().workers());
    if (options_.report) options_.report(std::string(groups.status().message()));
  }
  states_.resize(groups_.axes().size() + 1);
  for (uint32_t number = 0; number < states_.size(); ++number) {   // step 5
    const absl::StatusOr<RankGroup> group = groups_.Of(rank_, number);
    if (!group.ok()) return;
    GroupState& state = states_[number];
    const uint32_t epoch = EpochOf(plan, *group);
    if (state.epoch == epoch) continue;
    if (state.epoch != 0) {
      std::string who = "a member";
      for (uint32_t member = 0; member < group->size; ++member) {
        const proto::WorkerInfo* then = WorkerOf(former, group->rank(member));
        const proto::WorkerInfo* now = WorkerOf(plan, group->rank(member));
        if (then != nullptr && now != nullptr && then->incarnation() != now->incarnation()) who = mesh_.Describe(now->rank());
      }
      const absl::Status why = absl::AbortedError(
          absl::StrCat(who, " of group ", group->name, " was started again, and knows nothing of what was under way: let all members "
                       "go back to a common state (a checkpoint, a broadcast); the next call is the first of the new life"));
      for (auto& [id, call] : calls_)
        if (call->group.number == number && !call->over) FailCall(*call, why, /*peers_know=*/true);
      if (state.called && !state.told) state.broken = std::string(why.message());
      state.called = state.told = false;
      for (auto it = channels_.begin(); it != channels_.end();)
        it = it->first.group == number ? channels_.erase(it) : std::next(it);
      courier_.ForgetGroup(number);
    }
    state.epoch = epoch;
  }
  absent_.clear();
  for (const proto::WorkerInfo& worker : plan.workers()) {
    if (worker.rank() == rank_ || (worker.alive() && !worker.finished())) continue;
    absent_.insert(worker.rank());
    if (worker.finished()) courier_.PeerFinished(worker.rank());
  }
  courier_.Run();
  for (auto& [id, call] : calls_) {   // step 4: nobody waits for who is lost
    if (call->over) continue;
    for (const uint32_t other : Others(call->request, call->group)) {
      const proto::WorkerInfo* worker = WorkerOf(plan_, other);
      if (worker == nullptr || !Lost(*worker)) continue;
      FailCall(*call, absl::UnavailableError(absl::StrCat(mesh_.Describe(other), " was lost (no heartbeat for node.lease_ms); start it again")));
      break;
    }
  }
}

std::vector<uint32_t> Collectives::Others(const Request& request, const RankGroup& group) const {
  std::vector<uint32_t> others;
  if (request.kind == Kind::kSend || request.kind == Kind::kReceive) {
    if (request.peer < group.size) others.push_back(group.rank(request.peer));
    return others;
  }
  for (uint32_t member = 0; member < group.size; ++member)
    if (member != group.index) others.push_back(group.rank(member));
  return others;
}

absl::Status Collectives::MembersAreThere(const Request& request, const RankGroup& group) const {
  for (const uint32_t other : Others(request, group)) {
    const proto::WorkerInfo* worker = WorkerOf(plan_, other);
    if (worker == nullptr) return absl::InternalError(absl::StrCat("the plan has no rank ", other));
    if (worker->finished())
      return absl::FailedPreconditionError(absl::StrCat(mesh_.Describe(other), " has left the job (Client::Finish)"));
    if (Lost(*worker)) return absl::UnavailableError(absl::StrCat(mesh_.Describe(other), " is lost; start it again"));
    if (worker->listeners_size() == 0 && other != group.first)
      return absl::FailedPreconditionError(
          absl::StrCat(mesh_.Describe(other), " listens nowhere: an older release, or one without a listener; start it again with this one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Network> Collectives::NetworkOf(const std::string& name) const {
  if (!planned_) return absl::FailedPreconditionError("there is no plan of a running job yet");
  SLUICE_ASSIGN_OR_RETURN(const RankGroup group, groups_.Of(rank_, name));
  Network network;
  network.layout.members = group.size;
  network.layout.me = group.index;
  const int tiers = plan_.tiers_size();
  for (const proto::Tier& tier : plan_.tiers())
    network.tiers.push_back({tier.latency_us() * 1e-6, static_cast<double>(tier.bytes_per_second())});
  for (int level = 0; level + 1 < tiers; ++level) {
    std::vector<uint32_t> domains;
    for (uint32_t member = 0; member < group.size; ++member) {
      const proto::WorkerInfo* worker = WorkerOf(plan_, group.rank(member));
      if (worker != nullptr && worker->coordinates_size() == tiers) domains.push_back(worker->coordinates(level));
    }
    if (domains.size() == group.size) network.layout.domains.push_back(std::move(domains));
  }
  if (network.layout.domains.size() + 1 != network.tiers.size()) {   // where a rank is not placed, all are taken as one
    network.layout.domains.clear();
    network.tiers.assign(1, network.tiers.empty() ? kDefaultTier : network.tiers.back());
  }
  return network;
}

// ---------------------------------------------------------------------------------------------------- calls

uint64_t Collectives::Submit(Request request, DoneFn done, std::function<void()> released) {
  const uint64_t id = next_call_++;
  const auto refuse = [&](absl::Status why) {
    ++failures_;
    deferred_.push_back([done = std::move(done), why = std::move(why)] { done(why); });
    deferred_.push_back(std::move(released));
    return id;
  };
  ++operations_;
  if (!failed_.ok()) return refuse(failed_);
  if (!planned_) return refuse(absl::FailedPreconditionError("a collective before the job runs"));
  const absl::StatusOr<RankGroup> group = groups_.Of(rank_, request.group);
  if (!group.ok()) return refuse(group.status());
  GroupState& state = states_[group->number];
  if (!state.broken.empty()) {
    state.told = true;
    return refuse(absl::AbortedError(std::exchange(state.broken, "")));
  }
  state.called = true;
  auto made = std::make_unique<Call>();
  Call& call = *made;
  call.id = id;
  call.request = std::move(request);
  call.group = *group;
  call.done = std::move(done);
  call.released = std::move(released);
  call.submitted = clock_->Now();
  call.name = {.group = group->number, .epoch = state.epoch};
  const bool message = call.request.kind == Kind::kSend || call.request.kind == Kind::kReceive;
  if (message) {
    call.name.channel = kTagChannel | call.request.tag;
    const uint32_t peer = group->rank(std::min(call.request.peer, group->size - 1));
    call.name.source = call.request.kind == Kind::kSend ? rank_ : peer;
    call.name.destination = call.request.kind == Kind::kSend ? peer : rank_;
  } else if (call.request.tensor.has_value()) {
    call.name.channel = kTensorChannel | *call.request.tensor;
  }
  // Numbers count whatever becomes of the call, so that all members go on alike.
  Channel& channel = channels_[ChannelOf(call.name)];
  call.name.sequence = channel.next++;
  channel.open.insert(call.name.sequence);
  calls_[id] = std::move(made);
  absl::Status status = Check(call.request, call.group);
  if (status.ok()) status = MembersAreThere(call.request, call.group);
  if (!status.ok()) {
    // No link may lead to those who wait for this call yet: they hear of it when they ask.
    for (const uint32_t other : Others(call.request, call.group)) mesh_.Want(other);
    FailCall(call, status);
  } else if (call.name.channel == 0) {
    state.queue.push_back(id);
    StartDue(group->number);
  } else {
    Start(call);
  }
  return id;
}

absl::Status Collectives::Check(const Request& request, const RankGroup& group) const {
  const size_t in = request.input.size(), out = request.output.size(), n = group.size;
  const auto sizes = [&](absl::string_view rule) {
    return absl::InvalidArgumentError(absl::StrCat(KindName(request.kind), " in a group of ", n, ": ", in, " values in and ", out,
                                                   " out; ", rule));
  };
  switch (request.kind) {
    case Kind::kAllReduce:
      if (in != out || in == 0) return sizes("both must be equal, and not 0");
      break;
    case Kind::kReduce:
      if (in == 0 || (group.index == request.root && in != out)) return sizes("at the root both must be equal, and not 0");
      break;
    case Kind::kBroadcast:
      if (out == 0) return sizes("there must be some");
      break;
    case Kind::kAllGather:
      if (in == 0 || out != in * n) return sizes("out must be in times the members, and not 0");
      break;
    case Kind::kReduceScatter:
      if (out == 0 || in != out * n) return sizes("in must be out times the members, and not 0");
      break;
    case Kind::kAllToAll:
      if (in != out || in == 0 || in % n != 0) return sizes("both must be equal, not 0, and divide by the members");
      if (request.input.data() < request.output.data() + out && request.output.data() < request.input.data() + in)
        return absl::InvalidArgumentError("all-to-all: input and output must not overlap");
      break;
    case Kind::kSend:
      if (in == 0) return sizes("there must be some");
      break;
    case Kind::kReceive:
      if (out == 0) return sizes("there must be some");
      break;
    case Kind::kBarrier: break;
  }
  const bool rooted = request.kind == Kind::kReduce || request.kind == Kind::kBroadcast;
  if (rooted && request.root >= n) return absl::InvalidArgumentError(absl::StrCat("root ", request.root, " in a group of ", n));
  if (request.kind == Kind::kSend || request.kind == Kind::kReceive) {
    if (request.peer >= n) return absl::InvalidArgumentError(absl::StrCat("peer ", request.peer, " in a group of ", n));
    if (request.peer == group.index) return absl::InvalidArgumentError("a message to oneself");
  }
  return CheckCodec(request, group);
}

void Collectives::StartDue(uint32_t number) {
  GroupState& state = states_[number];
  while (!state.queue.empty() && state.running < kAtOnce) {
    Call* call = Find(state.queue.front());
    state.queue.pop_front();
    if (call == nullptr || call->over) continue;
    ++state.running;
    Start(*call);
  }
}

void Collectives::Start(Call& call) {
  call.started = true;
  OperationEnv env{.courier = &courier_, .pool = pool_.get(), .op = call.id, .group = call.group,
                   .priority = call.request.priority};
  const absl::StatusOr<Network> network = NetworkOf(call.group.name);
  absl::StatusOr<MadeOperation> made =
      network.ok() ? MakeOperation(call.request, std::move(env), *network, {.job = plan_.config().name(), .rank = rank_, .name = call.name})
                   : network.status();
  courier_.Open(call.id, call.name, made.ok() ? made->signature : 0);
  if (!made.ok()) return FailCall(call, made.status());
  call.operation = std::move(made->operation);
  call.work = std::move(made->work);
  call.values = made->values;
  if (call.operation != nullptr) {
    for (const uint32_t peer : call.operation->peers()) mesh_.Want(peer);
    if (absl::Status status = call.operation->Start(); !status.ok()) return FailCall(call, status);
  }
  Progress(call);
}

void Collectives::Progress(Call& call) {
  if (call.over || (call.operation != nullptr && !call.operation->done())) return;
  if (call.operation != nullptr) call.operation->Commit();
  FinishValues(call.request, call.group, call.values);
  courier_.Close(call.id, absl::OkStatus());
  End(call);
}

void Collectives::End(Call& call) {
  call.over = true;
  if (const auto it = channels_.find(ChannelOf(call.name)); it != channels_.end()) it->second.open.erase(call.name.sequence);
  if (!call.started || call.name.channel != 0) return;
  GroupState& state = states_[call.group.number];
  if (state.running > 0) --state.running;
  deferred_.push_back([this, number = call.group.number] { StartDue(number); });
}

// Step 4. peers_know: whoever is concerned hears of it otherwise.
void Collectives::FailCall(Call& call, const absl::Status& why, bool peers_know) {
  if (call.over) return;
  ++failures_;
  states_[call.group.number].told = true;
  if (const auto it = channels_.find(ChannelOf(call.name)); it != channels_.end()) {
    it->second.failed[call.name.sequence] = why;
    if (it->second.failed.size() > kMaxFailures) it->second.failed.erase(it->second.failed.begin());
  }
  const absl::Status status(why.code(), absl::StrFormat("%s failed after %.1f s: %s", Describe(call),
                                                        static_cast<double>(clock_->Now() - call.submitted) / kSecond, why.message()));
  const bool opened = call.started;
  End(call);
  deferred_.push_back([done = std::exchange(call.done, nullptr), status] { done(status); });
  if (opened) {
    courier_.Close(call.id, peers_know ? absl::OkStatus() : why,
                   call.operation == nullptr ? Others(call.request, call.group) : call.operation->peers());
  } else {
    deferred_.push_back([this, id = call.id] { OnReleased(id); });
  }
}

bool Collectives::Cancel(uint64_t id) { return Cancel(id, absl::CancelledError(absl::StrCat("rank ", rank_, " has cancelled it"))); }

bool Collectives::Cancel(uint64_t id, const absl::Status& why) {
  Call* call = Find(id);
  if (call == nullptr || call->over) return false;
  FailCall(*call, why);
  return true;
}

void Collectives::Fail(const absl::Status& why) {
  if (!failed_.ok()) return;
  failed_ = why;
  for (auto& [id, call] : calls_)
    if (!call->over) FailCall(*call, why);
  mesh_.CloseAll(why);
}

// ---------------------------------------------------------------------------------------------------- courier

Courier::Place Collectives::Where(const OpName& name, uint32_t peer, absl::Status* why) const {
  if (!planned_ || !failed_.ok()) return Courier::Place::kStranger;
  const absl::StatusOr<RankGroup> group = groups_.Of(rank_, name.group);
  if (!group.ok() || !group->Contains(peer)) return Courier::Place::kNever;
  if (name.epoch != states_[name.group].epoch) return Courier::Place::kStranger;
  const auto it = channels_.find(ChannelOf(name));
  if (it == channels_.end() || name.sequence >= it->second.next) return Courier::Place::kFuture;
  if (const auto failed = it->second.failed.find(name.sequence); failed != it->second.failed.end()) {
    *why = failed->second;
    return Courier::Place::kFailed;
  }
  return it->second.open.contains(name.sequence) ? Courier::Place::kFuture : Courier::Place::kPast;
}

void Collectives::OnArrived(uint64_t op, uint32_t handle, uint16_t codec, ConstBytes bytes) {
  Call* call = Find(op);
  if (call == nullptr || call->over) return;
  if (absl::Status status = call->operation->OnArrived(handle, codec, bytes); !status.ok()) return FailCall(*call, status);
  Progress(*call);
}

void Collectives::OnAcknowledged(uint64_t op, uint32_t handle) {
  Call* call = Find(op);
  if (call == nullptr || call->over) return;
  if (absl::Status status = call->operation->OnAcknowledged(handle); !status.ok()) return FailCall(*call, status);
  Progress(*call);
}

void Collectives::OnFailed(uint64_t op, uint32_t peer, const absl::Status& why) {
  Call* call = Find(op);
  if (call == nullptr || call->over) return;
  if (why.message() == kAnotherCall) {
    FailCall(*call, absl::InvalidArgumentError(absl::StrCat(mesh_.Describe(peer), " calls something else there than rank ", rank_,
                                                            ", which calls ", DescribeRequest(call->request, call->group),
                                                            ": all members must make the same calls in the same order")));
  } else {
    FailCall(*call, why);
  }
}

void Collectives::OnReleased(uint64_t op) {
  const auto it = calls_.find(op);
  if (it == calls_.end()) return;
  std::unique_ptr<Call> call = std::move(it->second);
  calls_.erase(it);
  if (call->done) deferred_.push_back([done = std::move(call->done)] { done(absl::OkStatus()); });
  deferred_.push_back(std::move(call->released));
}

// ---------------------------------------------------------------------------------------------------- events

bool Collectives::OnUp(LinkId link, const transport::Hello& peer) {
  const Mesh::Up up = mesh_.OnUp(link, peer);
  if (up.usable) courier_.LinkUp(up.rank, link);
  if (up.newer && options_.request_plan) options_.request_plan();
  return up.ours;
}

bool Collectives::OnDown(LinkId link, const absl::Status& reason) {
  const Mesh::Down down = mesh_.OnDown(link, reason);
  if (!down.ours) return false;
  courier_.LinkDown(down.rank, link);
  const bool matters = std::any_of(calls_.begin(), calls_.end(), [](const auto& call) { return !call.second->over; });
  if (down.was_up && matters && options_.report)
    options_.report(absl::StrCat("link to ", mesh_.Describe(down.rank), ": ", reason.message(), "; what was under way is sent again"));
  return true;
}

bool Collectives::OnFrame(LinkId link, const transport::FrameHeader& header, transport::Payload& payload) {
  const uint32_t* rank = mesh_.RankOf(link);
  if (rank == nullptr) return false;
  courier_.OnFrame(*rank, link, header, std::move(payload));
  return true;
}

void Collectives::OnTick() {
  mesh_.OnTick();
  courier_.OnTick();
  const TimeNs now = clock_->Now();
  for (auto& [id, call] : calls_) {
    if (call->over) continue;
    if (call->request.deadline != 0 && now >= call->request.deadline) {
      const Courier::Silence silence = courier_.Waits(id);
      const std::string trouble = silence.waits ? mesh_.Trouble(silence.peer) : "";
      FailCall(*call, absl::DeadlineExceededError(absl::StrCat(
                          "the deadline of rank ", rank_, " has passed (data.op_timeout_ms, or the call's own); ",
                          silence.waits ? silence.what : "it waited for earlier calls of its group",
                          trouble.empty() ? "" : absl::StrCat("; ", trouble))));
      continue;
    }
    for (const uint32_t rank : absent_) {   // left in order, and something is still missing from it
      if (!courier_.Needs(id, rank)) continue;
      FailCall(*call, absl::UnavailableError(absl::StrCat(mesh_.Describe(rank), " has left the job before its end")));
      break;
    }
  }
  OnTurnEnd();
}

bool Collectives::has_work() const {
  if (!deferred_.empty() || courier_.has_work()) return true;
  return std::any_of(calls_.begin(), calls_.end(), [](const auto& call) {
    return !call.second->over && call.second->operation != nullptr && call.second->operation->has_work();
  });
}

void Collectives::OnTurnEnd() {
  courier_.Run();
  for (auto& [id, call] : calls_) {
    if (call->over || call->operation == nullptr || !call->operation->has_work()) continue;
    if (absl::Status status = call->operation->Work(); !status.ok()) FailCall(*call, status);
    else Progress(*call);
  }
  courier_.Run();
  RunDeferred();
}

void Collectives::RunDeferred() {
  for (size_t due = deferred_.size(); due > 0 && !deferred_.empty(); --due) {
    const std::function<void()> fn = std::move(deferred_.front());
    deferred_.pop_front();
    if (fn) fn();
  }
}

// ---------------------------------------------------------------------------------------------------- for people

std::string Collectives::Describe(const Call& call) const {
  std::string text = absl::StrCat(DescribeRequest(call.request, call.group));
  if (call.name.channel == 0) absl::StrAppend(&text, ", call ", call.name.sequence);
  else if ((call.name.channel & kTagChannel) != 0) absl::StrAppend(&text, ", message ", call.name.sequence, " of tag ", call.request.tag);
  else absl::StrAppend(&text, ", round ", call.name.sequence, " of tensor ", *call.request.tensor);
  return text;
}

std::optional<TimeNs> Collectives::oldest() const {
  for (const auto& [id, call] : calls_)
    if (!call->over) return call->submitted;
  return std::nullopt;
}

std::string Collectives::Waiting() const {
  for (const auto& [id, call] : calls_) {
    if (call->over) continue;
    std::string text = absl::StrFormat("%s, %.1f s of %s: ", Describe(*call),
                                       static_cast<double>(clock_->Now() - call->submitted) / kSecond,
                                       call->request.deadline == 0 ? "no limit"
                                                                   : absl::StrFormat("%.1f s", static_cast<double>(call->request.deadline - call->submitted) / kSecond));
    if (!call->started) return absl::StrCat(text, "waits for earlier calls of its group");
    const Courier::Silence silence = courier_.Waits(id);
    if (!silence.waits) return absl::StrCat(text, "computes");
    const std::string trouble = mesh_.Trouble(silence.peer);
    return absl::StrCat(text, silence.what, "; ", trouble.empty() ? absl::StrCat("is ", mesh_.Describe(silence.peer), " in the same call?") : trouble);
  }
  return "";
}

CollectiveStats Collectives::stats() const {
  CollectiveStats stats;
  stats.operations = operations_;
  stats.failed = failures_;
  stats.resent = courier_.resent();
  stats.reconnects = mesh_.reconnects();
  stats.bytes_in = mesh_.bytes_in();
  stats.bytes_out = mesh_.bytes_out();
  return stats;
}

}  // namespace sluice::collective
