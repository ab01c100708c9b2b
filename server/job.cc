#include "server/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/table_partition.h"
#include "server/table_stats.h"
#include "transport/wire.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::RetryReason;
using Admission = transport::StreamReceiver::Admission;

Job::Job(uint32_t number, uint64_t uid, const JobEnvironment& environment)
    : number_(number),
      uid_(uid),
      env_(environment),
      replication_({.job = number,
                    .uid = uid,
                    .incarnation = environment.incarnation,
                    .clock = environment.clock,
                    .make_channel = [this] { return env_.host->MakeChannel(); },
                    .bury = [this](std::unique_ptr<ReplicaChannel> channel) { env_.host->Bury(std::move(channel)); },
                    .link = [this](const proto::Address& address) { return env_.host->PeerLink(address); },
                    .request_plan = [this] { env_.host->RequestPlan(number_); },
                    .acknowledged_bytes = &environment.counters->copied_out,
                    .fill_bytes_per_s = environment.fill_bytes_per_s,
                    // What this server takes, the others take: they are configured alike.
                    .piece_bytes = std::min<size_t>(8 << 20, environment.max_message_bytes)}),
      forwarding_({.context = &context_,
                   .endpoint = environment.endpoint,
                   .lane = environment.lane,
                   .max_message_bytes = environment.max_message_bytes,
                   .request_plan = [this] { env_.host->RequestPlan(number_); },
                   .make_channel = [this] { return env_.host->MakeChannel(); },
                   .bury = [this](std::unique_ptr<ReplicaChannel> channel) { env_.host->Bury(std::move(channel)); },
                   .link = [this](const proto::Address& address) { return env_.host->PeerLink(address); },
                   .forget = [this](uint32_t partition) { env_.receiver->ForgetPartition(partition, number_); },
                   .closing = [this](LinkId link, transport::SlotId slot, BlockPtr memory) {
                     env_.host->KeepUntilClosed(link, slot, std::move(memory));
                   }}),
      verdicts_(environment.clock, environment.resend,
                [this](uint64_t step, uint32_t phase, const std::vector<StepRecord>& records) {
                  SendRecords(step, phase, records);
                }) {
  context_.job = number;
  context_.replier = env_.replier;
  context_.values = env_.values;
  context_.scratch = env_.scratch;
  context_.exact = env_.exact;
  context_.replication = &replication_;
  context_.clock = env_.clock;
  context_.observer = env_.observer;
  // A worker asks for parts of 256 KiB, or a single row, whatever the pool: they are answered from other memory.
  context_.max_rows_bytes = std::max<size_t>(env_.max_message_bytes, 256 << 10);
  context_.counters = env_.counters;
  context_.submit = [this](uint64_t step, uint32_t phase, const StepRecord& record) {
    verdicts_.Add(step, phase, record);
  };
  context_.fail = [this](const absl::Status& why) { Fail(why); };
}

void Job::Retire() {
  for (uint32_t p = 0; p < partitions_.size(); ++p) {
    if (partitions_[p] != nullptr) env_.receiver->ForgetPartition(p, number_);
  }
  replication_.Retire();
  forwarding_.Retire();
}

Partition* Job::Find(uint32_t partition) const {
  if (partition >= partitions_.size() || partitions_[partition] == nullptr) return nullptr;
  return partitions_[partition]->owner() ? partitions_[partition].get() : nullptr;
}

void Job::Fail(const absl::Status& why) {
  if (error_.ok()) error_ = why;
}

absl::Status Job::CheckWorker(const transport::Hello& hello) const {
  if (hello.job_uid != 0 && uid_ != 0 && hello.job_uid != uid_) {
    return absl::FailedPreconditionError(absl::StrCat("job ", number_,
                                                      " is another one now: the scheduler was started anew; start the "
                                                      "worker again"));
  }
  if (!context_.workers.empty() && hello.index >= context_.workers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", hello.index, " in job ", number_, " of ",
                                                   context_.workers.size(), " workers"));
  }
  return absl::OkStatus();   // an older life learns of it by the answer to its first push (step 2b)
}

bool Job::Recognise(LinkId link, const FrameHeader& request, Partition** partition) {
  if (request.plan_version > context_.plan_version) env_.host->RequestPlan(number_);
  if (!error_.ok()) {
    env_.replier->SendError(link, request, error_);
    return false;
  }
  *partition = Find(request.partition);
  if (*partition == nullptr) {                                                                       // a
    // Of a copy we know the term, and who is behind it asks for the plan.
    const auto copy = incoming_.find(request.partition);
    const bool older = copy != incoming_.end() && request.term < copy->second.term;
    if (!older) env_.host->RequestPlan(number_);
    env_.replier->SendRetry(link, request, older ? RetryReason::kTerm : RetryReason::kPlan,
                            older ? copy->second.term : 0);
    return false;
  }
  const bool forward = request.has(transport::kFlagForward);
  if (forward ? !KnowsForwarder(link, request, (*partition)->term()) : !KnowsLife(link, request, (*partition)->term())) return false;   // b
  const uint32_t term = (*partition)->term();
  if (request.term != term) {                                                                        // c
    const bool older = request.term < term;
    if (!older) env_.host->RequestPlan(number_);
    env_.replier->SendRetry(link, request, older ? RetryReason::kTerm : RetryReason::kPlan, term);
    return false;
  }
  if (request.type == FrameType::kPull) return true;
  if (!IsOfThisWay(link, request, (*partition)->stamp(), term)) return false;
  if (!forward) return true;
  const control::TreeWay::Node* node = (*partition)->way() == nullptr ? nullptr : (*partition)->way()->Find(request.rank & ~kForwardRank);
  if (node != nullptr && node->parent == -1) return true;
  env_.host->EndLink(link, request,
                     absl::InvalidArgumentError(absl::StrCat("server ", request.rank & ~kForwardRank, " forwards to partition ",
                                                             request.partition, ", and the plan's tree does not let it")));
  return false;
}

Admission Job::Admit(LinkId link, const FrameHeader& push) {
  if (push.has(transport::kFlagReplica)) return AdmitReplica(link, push);
  if (ForwardedPartition* forwarded = FindForwarded(push.partition); forwarded != nullptr) {
    return AdmitForwarded(link, push, forwarded);
  }
  Partition* partition = nullptr;
  if (!Recognise(link, push, &partition)) {
    ++env_.counters->refused;
    return Admission::kAnswered;
  }
  // Pushes beside the pool are taken in the order of ranks, for which rounds that leave workers out do not wait.
  const bool beside = partition->is_table() && !context_.semantics->leaves_out();
  const size_t largest = beside ? std::max(env_.max_message_bytes, env_.max_row_push_bytes) : env_.max_message_bytes;
  if (absl::Status status = partition->CheckPush(push, largest); !status.ok()) {                             // d
    ++env_.counters->refused;
    env_.host->EndLink(link, push, status);
    return Admission::kAnswered;
  }
  if (!push.has(transport::kFlagForward)) partition->Named(push.rank, push.round, /*by_name=*/false);
  return partition->Admit(link, push);
}

bool Job::Urgent(const FrameHeader& push) const {
  if (push.has(transport::kFlagReplica)) return true;   // an owner and all its workers wait for it; taken on arrival
  if (const ForwardedPartition* forwarded = FindForwarded(push.partition); forwarded != nullptr) return forwarded->Urgent(push);
  const Partition* partition = Find(push.partition);
  const bool known = push.has(transport::kFlagForward) || push.rank < context_.workers.size();
  return partition != nullptr && known && partition->Urgent(push);
}

absl::Status Job::Contribute(LinkId link, const FrameHeader& push, transport::Payload payload) {
  if (push.has(transport::kFlagReplica)) {
    CountIn(push.partition, payload.bytes().size());
    return TakeReplica(link, push, payload.bytes());
  }
  if (ForwardedPartition* forwarded = FindForwarded(push.partition); forwarded != nullptr) {
    return ContributeForwarded(link, push, std::move(payload), forwarded);
  }
  Partition* partition = nullptr;
  if (!Recognise(link, push, &partition)) return absl::OkStatus();
  CountIn(push.partition, payload.bytes().size());
  if (!push.has(transport::kFlagForward)) partition->Named(push.rank, push.round, /*by_name=*/false);
  return partition->Contribute(link, push, std::move(payload));
}

void Job::OnPull(LinkId link, const FrameHeader& pull, ConstBytes payload) {
  Partition* partition = nullptr;
  if (!Recognise(link, pull, &partition)) {
    ++env_.counters->refused;
    return;
  }
  // One that asks for rounds alone, to name one then, pulls round 0.
  const bool by_name = pull.has(transport::kFlagAdmit);
  if (!by_name || pull.round > 0) partition->Named(pull.rank, pull.round, by_name);
  if (absl::Status status = partition->Pull(link, pull, payload); !status.ok()) {
    ++env_.counters->refused;
    env_.host->EndLink(link, pull, status);
  }
}

void Job::LinkDown(LinkId link) {
  for (const auto& partition : partitions_) {
    if (partition != nullptr) partition->LinkDown(link);
  }
  if (coordinator_ != nullptr) coordinator_->Forget(link);
  replication_.LinkDown(link);
  forwarding_.LinkDown(link);
}

void Job::Report(proto::Heartbeat* heartbeat) const {
  for (const auto& partition : partitions_) {
    if (partition != nullptr && partition->owner()) partition->Report(heartbeat->add_partitions());
  }
}

uint64_t Job::OldestOpenRound() const {
  uint64_t oldest = UINT64_MAX;
  for (const auto& partition : partitions_) {
    if (partition != nullptr && partition->owner()) oldest = std::min(oldest, partition->OldestOpenRound());
  }
  return oldest;
}

std::string Job::WaitingFor() const {
  if (!error_.ok()) return absl::StrCat("job ", number_, " cannot run here: ", error_.message());
  const Partition* oldest = nullptr;
  for (const auto& partition : partitions_) {
    if (partition == nullptr || !partition->owner() || (oldest != nullptr && oldest->OldestOpenRound() <= partition->OldestOpenRound())) {
      continue;
    }
    if (!partition->WaitingFor().empty()) oldest = partition.get();
  }
  std::string text = oldest == nullptr ? "" : oldest->WaitingFor();
  if (const std::string verdict = verdicts_.WaitingFor(); !verdict.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", verdict);
  }
  if (const std::string copies = replication_.WaitingFor(); !copies.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", copies);
  }
  if (const std::string forwards = forwarding_.WaitingFor(); !forwards.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", forwards);
  }
  if (coordinator_ != nullptr && !coordinator_->WaitingFor().empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", "coordinator: ", coordinator_->WaitingFor());
  }
  return text;
}

uint64_t Job::state_bytes() const {
  uint64_t bytes = 0;
  for (const auto& partition : partitions_) {
    if (partition != nullptr) bytes += partition->state_bytes();
  }
  return bytes;
}

void Job::CountIn(uint32_t partition, size_t bytes) {
  if (partition < traffic_.size()) traffic_[partition].in += bytes;
}

void Job::CountOut(uint32_t partition, size_t bytes) {
  if (partition < traffic_.size()) traffic_[partition].out += bytes;
}

void Job::AddCosts(std::vector<proto::ShardCost>* costs) const {
  std::map<uint32_t, Traffic> shards;
  for (uint32_t p = 0; p < traffic_.size(); ++p) {
    if (p >= partitions_.size() || partitions_[p] == nullptr) continue;
    Traffic& sum = shards[traffic_[p].shard];
    sum.in += traffic_[p].in;
    sum.out += traffic_[p].out;
  }
  for (const auto& [shard, sum] : shards) {
    proto::ShardCost& cost = costs->emplace_back();
    cost.set_job(number_);
    cost.set_job_uid(uid_);
    cost.set_shard(shard);
    cost.set_bytes_in(sum.in);
    cost.set_bytes_out(sum.out);
  }
}

void Job::AddTableStats(std::vector<TableStats>* tables) const {
  const size_t begin = tables->size();
  for (const auto& partition : partitions_) {   // a table's follow each other
    if (partition == nullptr || !partition->owner() || !partition->is_table()) continue;
    if (tables->size() == begin || tables->back().tensor != partition->shape().tensor) {
      TableStats& added = tables->emplace_back();
      added.job = number_;
      added.job_uid = uid_;
      added.job_name = context_.semantics->config.name();
      added.tensor = partition->shape().tensor;
      added.name = partition->shape().name;
    }
    tables->back().AddSegment(static_cast<const TablePartition&>(*partition).segment());
  }
}

// --- the step's verdict

void Job::SendRecords(uint64_t step, uint32_t phase, const std::vector<StepRecord>& records) {
  if (!coordinator_address_.has_value()) {
    local_records_.push_back({step, phase, records});
    return;
  }
  const LinkId link = env_.host->PeerLink(*coordinator_address_);
  if (link == 0) return;   // OnPeerUp sends them
  FrameHeader header;
  header.type = FrameType::kPartial;
  header.job = number_;
  header.rank = server_index_;
  header.incarnation = env_.incarnation;
  header.round = step;
  header.aux = phase;
  header.plan_version = context_.plan_version;
  for (const auto& piece : EncodePartial(records, phase, env_.max_slotless_bytes / 2)) {
    header.payload_bytes = static_cast<uint32_t>(piece.size());
    header.total_bytes = piece.size();
    env_.replier->queue()->SendSmall(link, header, piece);
  }
}

void Job::OnPeerUp(LinkId link) {
  if (coordinator_address_.has_value() && env_.host->PeerLink(*coordinator_address_) == link) {
    verdicts_.OnCoordinatorUp();
  }
  replication_.OnPeerUp();
  forwarding_.OnPeerUp();
}

void Job::OnPartial(LinkId link, const FrameHeader& partial, ConstBytes payload) {
  if (partial.plan_version > context_.plan_version) env_.host->RequestPlan(number_);
  if (coordinator_ == nullptr) return;   // one of us has an old plan; the owner asks again
  auto records = DecodePartial(payload, partial.aux);
  if (!records.ok()) {
    env_.host->EndLink(link, partial, records.status());
    return;
  }
  Coordinate(link, partial.round, partial.aux, *records);
}

void Job::Coordinate(Coordinator::Sender sender, uint64_t step, uint32_t phase, std::span<const StepRecord> records) {
  auto answer = coordinator_->Add(sender, step, phase, records);
  if (!answer.ok()) {
    // A tensor that is not pushed in every step. The wait shows in WaitingFor; the peer's own does too.
    ++env_.counters->refused;
    return;
  }
  for (const Coordinator::Sender to : *answer) SendVerdict(to, step, phase);
}

void Job::SendVerdict(Coordinator::Sender to, uint64_t step, uint32_t phase) {
  const Verdict* verdict = coordinator_->Find(step, phase);
  if (verdict == nullptr) return;
  if (to == 0) {
    local_verdicts_.push_back({step, phase, *verdict});
    return;
  }
  const std::vector<std::byte> payload = EncodeVerdict(*verdict);
  FrameHeader header;
  header.type = FrameType::kVerdict;
  header.job = number_;
  header.rank = server_index_;
  header.incarnation = env_.incarnation;
  header.round = step;
  header.aux = phase;
  header.plan_version = context_.plan_version;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.total_bytes = payload.size();
  env_.replier->queue()->SendSmall(to, header, payload);
}

void Job::OnVerdict(const FrameHeader& header, ConstBytes payload) {
  auto verdict = DecodeVerdict(payload);
  if (!verdict.ok()) {
    ++env_.counters->refused;   // it is asked for again
    return;
  }
  TakeVerdict(header.round, header.aux, *verdict);
}

void Job::TakeVerdict(uint64_t step, uint32_t phase, const Verdict& verdict) {
  if (!verdicts_.OnVerdict(step, phase)) return;   // a repeat
  for (const auto& partition : partitions_) {
    if (partition != nullptr && partition->owner()) partition->OnVerdict(step, phase, verdict);
  }
}

void Job::OnTick() {
  verdicts_.OnTick();
  replication_.OnTick();
  forwarding_.OnTick();
  if (context_.semantics == nullptr || context_.semantics->round_deadline == 0) return;
  for (const auto& partition : partitions_) {
    if (partition != nullptr && partition->owner()) partition->OnTick();
  }
}

void Job::OnReplicaAnswer(LinkId link, const FrameHeader& header, ConstBytes payload) {
  const std::string text = header.type != FrameType::kError
                               ? ""
                               : std::string(reinterpret_cast<const char*>(payload.data()), std::min<size_t>(payload.size(), 1024));
  replication_.OnFrame(link, header, text);   // else about what is over
}

void Job::Drain() {
  while (true) {
    const std::vector<Partition*> settled = replication_.TakeSettled();
    for (Partition* partition : settled) partition->OnSettled();
    verdicts_.Flush();
    if (settled.empty() && local_records_.empty() && local_verdicts_.empty()) return;
    for (const LocalRecords& local : std::exchange(local_records_, {})) {
      if (coordinator_ != nullptr) Coordinate(0, local.step, local.phase, local.records);
    }
    for (const LocalVerdict& local : std::exchange(local_verdicts_, {})) {
      TakeVerdict(local.step, local.phase, local.verdict);
    }
  }
}

}  // namespace sluice::server
