// The shell of a lane: links, plans, and which job a frame is for. What a frame means is Job's and Partition's.

#include "server/core.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/job.h"
#include "server/peers.h"
#include "server/probe_sink.h"
#include "server/prober.h"
#include "server/reply.h"
#include "server/table_stats.h"
#include "transport/stream/stream_receiver.h"

namespace sluice::server {
namespace {

using transport::FrameHeader;
using transport::FrameType;
using transport::Hello;
using transport::LinkId;
using transport::Payload;
using transport::PeerRole;
using transport::RetryReason;
using transport::SlotId;
using transport::StreamReceiver;

constexpr TimeNs kPlanRequestEvery = 100 * kMillisecond;

transport::LinkQueueOptions QueueOptions(const proto::DataConfig& data) {
  transport::LinkQueueOptions options;
  if (data.stripe_bytes() > 0) options.stripe_bytes = data.stripe_bytes();
  options.fusion_bytes = data.fusion_bytes();
  // Nothing waits for company beyond its turn: a worker waits for every one of these.
  options.fusion_cycle = 0;
  return options;
}

transport::StreamReceiverOptions ReceiverOptions(const proto::DataConfig& data) {
  transport::StreamReceiverOptions options;
  if (data.pool_bytes() > 0) options.pool_bytes = data.pool_bytes();
  if (data.granted_bytes() > 0) options.granted_bytes = data.granted_bytes();
  options.max_message_bytes = options.pool_bytes / 4;   // also the reserve of the push that closes a round
  options.max_oversize_bytes = std::min<size_t>(options.pool_bytes, UINT32_MAX);   // of rows: twice pool_bytes in all
  return options;
}

// A lost answer is asked for after resend_ms, so half of it tells a repeat that is needed from one that crossed the answer.
TimeNs SettleTime(const proto::DataConfig& data) {
  return (data.resend_ms() > 0 ? data.resend_ms() * kMillisecond : kSecond) / 2;
}

class Core final : public ServerCore, StreamReceiver::Owner, JobHost {
 public:
  Core(ServerCoreOptions options, transport::Endpoint* endpoint, const Clock* clock)
      : options_(std::move(options)),
        endpoint_(endpoint),
        clock_(clock),
        values_(endpoint),
        scratch_(nullptr),
        replier_(endpoint, clock, QueueOptions(options_.data), SettleTime(options_.data)),
        receiver_options_(ReceiverOptions(options_.data)),
        receiver_(endpoint, replier_.queue(), this, receiver_options_),
        peers_(endpoint, clock, SelfHello()),
        prober_(endpoint, clock, SelfHello(), [this](const proto::ProbeResult& result) {
          if (options_.probed) options_.probed(result);
        }),
        probe_sink_(endpoint, clock) {
    replier_.set_on_payload([this](const FrameHeader& header, size_t bytes) {
      if (const auto it = jobs_.find(header.job); it != jobs_.end()) it->second->CountOut(header.partition, bytes);
    });
    if (options_.observer == nullptr) return;
    replier_.queue()->ObserveSends([this](const FrameHeader& header, const transport::SendTimes& times) {
      if (header.type != FrameType::kReply && header.type != FrameType::kValue) return;
      options_.observer->OnAnswered(header, times);
    });
  }

  // --- plans

  void OnPlan(const proto::Plan& plan) override {
    const bool over = plan.state() == proto::JOB_FINISHED || plan.state() == proto::JOB_FAILED;
    const auto ended = ended_.find(plan.job());
    if (ended != ended_.end() && ended->second == plan.uid()) return;
    auto it = jobs_.find(plan.job());
    // Another uid is another job: a scheduler that forgot its jobs counts them from 1 again.
    if (it != jobs_.end() && (over ? it->second->uid() == plan.uid() : it->second->uid() != plan.uid())) {
      it->second->Retire();
      jobs_.erase(it);
      it = jobs_.end();
      values_.Trim();
      scratch_.Trim();
    }
    if (over) {
      ended_[plan.job()] = plan.uid();
      return;
    }
    if (it == jobs_.end()) {
      it = jobs_.emplace(plan.job(), std::make_unique<Job>(plan.job(), plan.uid(), JobEnv())).first;
    } else if (plan.version() <= it->second->version()) {
      return;
    }
    it->second->OnPlan(plan);
    for (const auto& [link, state] : links_) CheckPeer(link, state.hello);
    Settle();
  }

  void OnProbe(const proto::Probe& probe) override { prober_.OnProbe(probe); }
  bool Probing(LinkId link) const override { return prober_.Owns(link) || probe_sink_.Owns(link); }

  void OnTick() override {
    peers_.OnTick();
    prober_.OnTick();
    probe_sink_.OnTick();
    for (auto& [number, job] : jobs_) job->OnTick();
    std::erase_if(buried_, [](const auto& channel) { return channel->idle(); });
    Settle();
    replier_.queue()->Flush();
  }

  void OnTurnEnd() override {
    Settle();
    receiver_.Pump();
    replier_.queue()->Flush();
  }

  void ReportState(uint32_t job, proto::Heartbeat* heartbeat) const override {
    if (const auto it = jobs_.find(job); it != jobs_.end()) it->second->Report(heartbeat);
  }

  ServerCoreStats stats() const override {
    ServerCoreStats stats = counters_;
    const transport::StreamReceiverStats receiver = receiver_.stats();
    stats.refused += receiver.corrupt;
    stats.pool_used = receiver.pool_used;
    stats.pool_peak = receiver.pool_peak;
    stats.oversize_used = receiver.oversize_used;
    stats.oversize_peak = receiver.oversize_peak;
    stats.waiting = receiver.waiting;
    stats.payload_out = replier_.payload_out();
    stats.state_bytes = values_.bytes() + scratch_.bytes() + exact_.bytes();
    uint64_t oldest = UINT64_MAX;
    for (const auto& [number, job] : jobs_) {
      stats.state_bytes += job->state_bytes();
      stats.copies += job->copies();
      stats.queued_bytes += job->queued_bytes();
      const std::string waiting = job->WaitingFor();
      if (waiting.empty() || (!stats.waiting_for.empty() && job->OldestOpenRound() >= oldest)) continue;
      oldest = job->OldestOpenRound();
      stats.waiting_for = waiting;
    }
    return stats;
  }

  std::vector<proto::ReplicaState> ReplicaStates() override {
    std::vector<proto::ReplicaState> states;
    for (auto& [number, job] : jobs_) job->ReplicaStates(&states);
    return states;
  }

  std::vector<TableStats> table_stats() const override {
    std::vector<TableStats> tables;
    for (const auto& [number, job] : jobs_) job->AddTableStats(&tables);
    return tables;
  }

  std::vector<proto::ShardCost> costs() const override {
    std::vector<proto::ShardCost> costs;
    for (const auto& [number, job] : jobs_) job->AddCosts(&costs);
    return costs;
  }

  // --- transport::Handler

  void OnUp(LinkId link, const Hello& peer) override {
    links_[link] = {peer, false};
    if (prober_.Owns(link)) return prober_.OnUp(link);
    replier_.queue()->LinkUp(link);
    if (peers_.OnUp(link)) {
      for (auto& [number, job] : jobs_) job->OnPeerUp(link);
    }
    CheckPeer(link, peer);
  }

  void OnDown(LinkId link, const absl::Status& reason) override {
    if (prober_.Owns(link)) {
      links_.erase(link);
      return prober_.OnDown(link, reason);
    }
    peers_.OnDown(link);
    std::erase_if(closing_, [&](const auto& entry) { return entry.second.first == link; });
    if (links_.erase(link) == 0) return;
    probe_sink_.OnDown(link);
    receiver_.LinkDown(link);
    replier_.queue()->LinkDown(link);
    for (auto& [number, job] : jobs_) job->LinkDown(link);
  }

  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (prober_.Owns(link)) return prober_.OnFrame(link, header, payload.bytes());
    if (header.type == FrameType::kBatch) {
      absl::Status status = transport::ForEachInBatch(
          header, payload.bytes(), [&](const FrameHeader& inner, ConstBytes bytes) {
            if (Hears(link)) Dispatch(link, inner, payload.Slice(bytes));
          });
      if (!status.ok() && Hears(link)) EndLink(link, header, status);
    } else if (Hears(link)) {
      Dispatch(link, header, std::move(payload));
    }
    Settle();
  }

  void OnSent(LinkId link, uint64_t cookie) override {
    if (!prober_.Owns(link)) replier_.queue()->OnSent(link, cookie);
  }
  void OnSlotClosed(LinkId link, SlotId slot) override {
    probe_sink_.OnSlotClosed(link, slot);
    receiver_.OnSlotClosed(link, slot);
    closing_.erase(slot);
  }
  void OnWritable(LinkId link) override {
    if (prober_.Owns(link)) prober_.OnWritable(link);
    else replier_.queue()->OnWritable(link);
  }

  // --- StreamReceiver::Owner

  StreamReceiver::Admission Admit(LinkId link, const FrameHeader& push) override {
    const auto it = jobs_.find(push.job);
    if (it == jobs_.end()) {
      AskForPlan(link, push);
      return StreamReceiver::Admission::kAnswered;
    }
    return it->second->Admit(link, push);
  }

  bool Joint(const FrameHeader& push) const override {
    const auto it = jobs_.find(push.job);
    return !push.has(transport::kFlagReplica) && it != jobs_.end() && it->second->joint();
  }
  bool Urgent(const FrameHeader& push) const override {
    const auto it = jobs_.find(push.job);
    return it != jobs_.end() && it->second->Urgent(push);
  }

  absl::Status OnContribution(LinkId link, const FrameHeader& push, Payload payload) override {
    const auto it = jobs_.find(push.job);
    if (it == jobs_.end()) {
      AskForPlan(link, push);
      return absl::OkStatus();
    }
    absl::Status status = it->second->Contribute(link, push, std::move(payload));
    if (!status.ok()) ++counters_.refused;
    return status;
  }

  // --- JobHost

  void RequestPlan(uint32_t job) override {
    if (!options_.request_plan) return;
    const auto [it, fresh] = plan_requested_.try_emplace(job, clock_->Now());
    if (!fresh && clock_->Now() - it->second < kPlanRequestEvery) return;
    if (plan_requested_.size() > kMaxRequested) plan_requested_.clear();   // job numbers come from peers
    plan_requested_[job] = clock_->Now();
    options_.request_plan(job);
  }

  void EndLink(LinkId link, const FrameHeader& about, const absl::Status& why) override {
    replier_.SendError(link, about, why);
    replier_.queue()->Flush();
    endpoint_->Close(link, why);
    // OnDown follows, and with it everything that the link held; until then nothing more is heard from it.
    if (const auto it = links_.find(link); it != links_.end()) it->second.ended = true;
  }

  LinkId PeerLink(const proto::Address& address) override { return peers_.Link(address); }

  std::unique_ptr<ReplicaChannel> MakeChannel() override {
    transport::StreamSenderOptions options;
    if (options_.data.eager_bytes() > 0) options.eager_bytes = options_.data.eager_bytes();
    if (options_.data.resend_ms() > 0) options.resend = options_.data.resend_ms() * kMillisecond;
    return std::make_unique<ReplicaChannel>(endpoint_, replier_.queue(), clock_, options);
  }
  void Bury(std::unique_ptr<ReplicaChannel> channel) override {
    if (!channel->idle()) buried_.push_back(std::move(channel));
  }

  void KeepUntilClosed(LinkId link, SlotId slot, BlockPtr memory) override { closing_[slot] = {link, std::move(memory)}; }

 private:
  static constexpr size_t kMaxRequested = 1024;
  struct LinkState {
    Hello hello;
    bool ended = false;   // by EndLink
  };

  Hello SelfHello() const {
    Hello hello;
    hello.role = PeerRole::kServer;
    hello.lane = options_.lane;
    hello.incarnation = options_.incarnation;
    hello.name = options_.id;
    return hello;
  }

  JobEnvironment JobEnv() {
    JobEnvironment env;
    env.id = options_.id;
    env.lane = options_.lane;
    env.incarnation = options_.incarnation;
    env.clock = clock_;
    if (options_.data.resend_ms() > 0) env.resend = options_.data.resend_ms() * kMillisecond;
    env.max_message_bytes = receiver_options_.max_message_bytes;
    env.fill_bytes_per_s = options_.data.fill_rate_bytes();
    env.max_row_push_bytes = receiver_options_.max_oversize_bytes;
    env.max_slotless_bytes = endpoint_->limits().max_slotless_bytes;
    env.replier = &replier_;
    env.values = &values_;
    env.scratch = &scratch_;
    env.exact = &exact_;
    env.receiver = &receiver_;
    env.endpoint = endpoint_;
    env.observer = options_.observer;
    env.counters = &counters_;
    env.host = this;
    return env;
  }

  bool Hears(LinkId link) const {
    const auto it = links_.find(link);
    return it != links_.end() && !it->second.ended;
  }

  // Refuses who does not belong to the job as the plan knows it. The plan of a job that is not known yet may still come:
  // its workers are looked at again then.
  void CheckPeer(LinkId link, const Hello& peer) {
    if (peer.role != PeerRole::kWorker) return;
    const auto it = jobs_.find(peer.job);
    if (it == jobs_.end()) return;
    if (const absl::Status status = it->second->CheckWorker(peer); !status.ok()) endpoint_->Close(link, status);
  }

  void AskForPlan(LinkId link, const FrameHeader& request) {
    ++counters_.refused;
    RequestPlan(request.job);
    replier_.SendRetry(link, request, RetryReason::kPlan, 0);
  }

  void Dispatch(LinkId link, const FrameHeader& header, Payload payload) {
    const Hello& peer = links_.find(link)->second.hello;
    switch (header.type) {
      case FrameType::kAnnounce:
      case FrameType::kPush:
      case FrameType::kPull:
        if (peer.role == PeerRole::kServer && header.job == 0 && header.type != FrameType::kPull) {
          counters_.refused += !probe_sink_.OnFrame(link, header);
          return;
        }
        if (!SpeaksForItself(peer, header)) {
          // (Which server it is, the job knows: by term, copy and owner.)
          EndLink(link, header,
                  absl::InvalidArgumentError(absl::StrCat(peer.name, " came as rank ", peer.index, " of job ", peer.job,
                                                          " and sent ", transport::DebugString(header))));
          return;
        }
        if (header.type != FrameType::kPull) {
          receiver_.OnFrame(link, header, std::move(payload));
        } else if (const auto it = jobs_.find(header.job); it != jobs_.end()) {
          it->second->OnPull(link, header, payload.bytes());
        } else {
          AskForPlan(link, header);
        }
        return;
      case FrameType::kPartial:
      case FrameType::kVerdict: {
        if (peer.role != PeerRole::kServer) {
          EndLink(link, header, absl::PermissionDeniedError(absl::StrCat(peer.name, " is no server and sent ",
                                                                         transport::DebugString(header))));
          return;
        }
        const auto it = jobs_.find(header.job);
        if (it == jobs_.end()) {
          RequestPlan(header.job);   // the owner asks again
        } else if (header.type == FrameType::kPartial) {
          it->second->OnPartial(link, header, payload.bytes());
        } else {
          it->second->OnVerdict(header, payload.bytes());
        }
        return;
      }
      case FrameType::kReply:
      case FrameType::kGrant:
      case FrameType::kState:
      case FrameType::kApplied:
      case FrameType::kRetry:
      case FrameType::kError:
        if (const auto it = jobs_.find(header.job); peer.role == PeerRole::kServer && it != jobs_.end()) {
          if ((header.rank & kReplicaRank) != 0 && header.type != FrameType::kReply) {
            it->second->OnReplicaAnswer(link, header, payload.bytes());
            return;
          }
          if ((header.rank & kReplicaRank) == 0 && (header.rank & kForwardRank) != 0) {
            it->second->OnForwardAnswer(link, header, payload);
            return;
          }
        }
        [[fallthrough]];
      default:
        // Answers to nothing that we asked; an ERROR of a peer is about its own affairs.
        ++counters_.refused;
        return;
    }
  }

  static bool SpeaksForItself(const Hello& peer, const FrameHeader& header) {
    if (peer.role == PeerRole::kServer) {
      if (header.type == FrameType::kPull || header.has(transport::kFlagReplica) == header.has(transport::kFlagForward)) return false;
      return header.has(transport::kFlagReplica) ? (header.rank & kReplicaRank) != 0
                                                 : (header.rank & (kReplicaRank | kForwardRank)) == kForwardRank;
    }
    return !header.has(transport::kFlagReplica) && !header.has(transport::kFlagForward) && peer.job == header.job && peer.index == header.rank;
  }

  void Settle() {
    for (auto& [number, job] : jobs_) job->Drain();
  }

  const ServerCoreOptions options_;
  transport::Endpoint* const endpoint_;
  const Clock* const clock_;
  ServerCoreStats counters_;
  BlockPool values_, scratch_;
  ExactPool exact_;
  Replier replier_;
  const transport::StreamReceiverOptions receiver_options_;
  StreamReceiver receiver_;
  Peers peers_;
  Prober prober_;
  ProbeSink probe_sink_;
  std::vector<std::unique_ptr<ReplicaChannel>> buried_;   // before the queue that they are attached to goes
  std::map<SlotId, std::pair<LinkId, BlockPtr>> closing_;
  std::unordered_map<LinkId, LinkState> links_;
  std::map<uint32_t, std::unique_ptr<Job>> jobs_;
  std::map<uint32_t, uint64_t> ended_;            // job -> uid
  std::map<uint32_t, TimeNs> plan_requested_;
};

}  // namespace

std::unique_ptr<ServerCore> ServerCore::Create(ServerCoreOptions options, transport::Endpoint* endpoint,
                                               const Clock* clock) {
  return std::make_unique<Core>(std::move(options), endpoint, clock);
}

}  // namespace sluice::server
