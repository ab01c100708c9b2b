// Thousands of random steps, sane and mad, with crashes of the scheduler and a disk that is full now and then: whatever
// happens, the core keeps what it promises.
#include <map>

#include "base/philox.h"
#include "scheduler/core_harness.h"

namespace sluice::scheduler {
namespace {

class RandomTest : public CoreHarness {
 protected:
  // Promises to members, checked over everything that was sent since the last call.
  void Check() {
    std::map<std::pair<uint32_t, uint32_t>, int> holders;
    for (auto& [session, peer] : peers_) {
      for (; seen_[session] < peer.received.size(); ++seen_[session]) {
        const proto::SchedulerMessage& message = peer.received[seen_[session]];
        if (message.has_plan()) {
          const proto::Plan& plan = message.plan();
          uint64_t& version = version_[{session, plan.job()}];
          ASSERT_GE(plan.version(), version) << "plans go upwards on a stream";
          version = plan.version();
          // A version means one plan, for everybody and for ever.
          const auto [it, fresh] = plans_.emplace(plan.version(), plan.SerializeAsString());
          ASSERT_EQ(it->second, plan.SerializeAsString()) << "two plans of version " << plan.version();
          for (const auto& worker : plan.workers()) {
            uint32_t& incarnation = incarnation_[{plan.uid(), worker.rank()}];
            if (plan.state() != proto::JOB_FORMING && fresh) {
              ASSERT_GE(worker.incarnation(), incarnation) << "a life that was fenced out came back";
              incarnation = worker.incarnation();
            }
          }
          std::vector<std::pair<uint32_t, uint32_t>>& owners = owners_[plan.uid()];   // server, term
          for (int i = 0; i < plan.shards_size() && fresh && plan.state() == proto::JOB_RUNNING; ++i) {
            const proto::ShardInfo& shard = plan.shards(i);
            ASSERT_TRUE(plan.servers(static_cast<int>(shard.server())).alive()) << "a shard without an owner";
            if (owners.size() <= static_cast<size_t>(i)) owners.emplace_back(shard.server(), shard.term());
            auto& [server, term] = owners[static_cast<size_t>(i)];
            ASSERT_GE(shard.term(), term);
            ASSERT_TRUE(shard.server() == server || shard.term() > term) << "two owners of one term";
            promotions_ += shard.server() != server;
            server = shard.server(), term = shard.term();
          }
          for (const auto& tensor : plan.tensors())
            for (uint32_t shard : tensor.partition_shard()) ASSERT_LT(static_cast<int>(shard), plan.shards_size());
        }
        if (message.has_welcome() && message.welcome().job() != 0)
          rank_[session] = {message.welcome().job(), message.welcome().rank()};
      }
      if (peer.open && rank_.count(session) > 0) ++holders[rank_[session]];
    }
    for (const auto& [rank, n] : holders)
      ASSERT_LE(n, 1) << "rank " << rank.second << " of job " << rank.first << " has two processes";
  }

  void Step(PhiloxRandom& random) {
    std::vector<SessionId> open;
    for (const auto& [session, peer] : peers_)
      if (peer.open) open.push_back(session);
    const auto any = [&] { return open.empty() ? SessionId{0} : open[random.Below(open.size())]; };
    switch (random.Below(17)) {
      case 0: {
        regs_[next_session_] =
            ServerReg("s" + std::to_string(random.Below(3)), 1 + random.Below(3), 1 + random.Below(2));
        Connect(regs_[next_session_]);
        break;
      }
      case 1:
      case 2: {
        job_.set_name(random.Chance(0.8) ? "a" : "b");
        job_.set_on_worker_loss(static_cast<proto::OnWorkerLoss>(loss_));
        job_.set_partition_bytes(64);
        job_.set_replicas(replicas_);
        regs_[next_session_] = WorkerReg("w" + std::to_string(random.Below(4)), static_cast<int>(random.Below(4)) - 1,
                                         1 + random.Below(100));
        Connect(regs_[next_session_]);
        break;
      }
      case 3: {  // a member that lost its stream
        if (regs_.empty()) break;
        auto it = regs_.begin();
        std::advance(it, random.Below(regs_.size()));
        const proto::Register again = Again(it->first, it->second);
        regs_[next_session_] = again;
        Connect(again);
        break;
      }
      case 4:
        if (SessionId s = any(); s != 0) Cut(s);
        break;
      case 5:
      case 6:
        if (SessionId s = any(); s != 0)
          Tensors(s, random.Below(9), {Spec("t" + std::to_string(random.Below(6)), {1 + random.Below(3) * 16u})});
        break;
      case 7:
        if (SessionId s = any(); s != 0) Barrier(s, random.Below(9), "b", random.Below(3));
        break;
      case 8:
        if (SessionId s = any(); s != 0 && random.Chance(0.3)) Leave(s, random.Below(9), random.Chance(0.3), "why");
        break;
      case 9: {
        const SessionId s = any();
        if (s == 0) break;
        proto::MemberMessage message;
        message.mutable_heartbeat()->set_report_request(random.Below(4));
        auto* state = message.mutable_heartbeat()->add_partitions();
        state->set_partition(random.Below(20));
        state->set_open_round(random.Below(5));
        state->set_contributed(std::string(random.Below(2), static_cast<char>(random())));
        core_->OnMessage(s, message);
        break;
      }
      case 10:
        for (SessionId s : open)
          if (peers_[s].plan() != nullptr && peers_[s].open) Ack(s);
        break;
      case 11: {  // nonsense
        const SessionId s = any();
        if (s == 0) break;
        proto::MemberMessage message;
        std::string bytes;
        for (uint32_t i = random.Below(40); i > 0; --i) bytes.push_back(static_cast<char>(random()));
        (void)message.ParseFromString(bytes);
        core_->OnMessage(s, message);
        break;
      }
      case 12:
        Run(random.Chance(0.1) ? 6 * kSecond : 200 * kMillisecond, open);
        break;
      case 14: {   // an owner speaks of copies, rightly or not
        const SessionId s = any();
        if (s == 0 || peers_[s].plan() == nullptr) break;
        const proto::Plan plan = *peers_[s].plan();
        proto::MemberMessage message;
        for (const auto& shard : plan.shards())
          for (const auto& copy : shard.backups()) {
            proto::ReplicaState* state = message.mutable_heartbeat()->add_replicas();
            state->set_job(plan.job());
            state->set_job_uid(plan.uid());
            state->set_shard(random.Chance(0.05) ? static_cast<uint32_t>(random()) : shard.shard());
            state->set_term(shard.term());
            state->set_server(random.Chance(0.05) ? random.Below(9) : copy.server());
            state->set_since(copy.since());
            state->set_in_sync(random.Chance(0.7));
            state->set_bytes_left(random());
          }
        core_->OnMessage(s, message);
        break;
      }
      case 15:
      case 16: {   // an operator asks
        const std::string job = random.Chance(0.8) ? "a" : "b", server = "s" + std::to_string(random.Below(4));
        switch (random.Below(8)) {
          case 0: (void)core_->MoveShard(job, random.Below(40), server); break;
          case 1: (void)core_->Rebalance(job, random.Chance(0.3)); break;
          case 2: (void)core_->SetMovesPaused(job, random.Chance(0.3)); break;
          case 3: (void)core_->CancelMoves(job); break;
          case 4: (void)core_->SetDraining(server, true); break;
          case 5: (void)core_->SetDraining(server, false); break;
          case 6: (void)core_->ListMoves(job); break;
          case 7: (void)core_->GetDrain(server); break;
        }
        (void)core_->GetCluster();
        break;
      }
      case 13:
        if (random.Chance(0.2)) store_.set_failure(absl::ResourceExhaustedError("full"));
        else store_.set_failure(absl::OkStatus());
        if (random.Chance(0.1)) {
          store_.set_failure(absl::OkStatus());
          RestartCore();
          rank_.clear();
        }
        break;
    }
  }

  int loss_ = 0;
  uint32_t replicas_ = 0;
  uint64_t promotions_ = 0;
  std::map<uint64_t, std::vector<std::pair<uint32_t, uint32_t>>> owners_;   // by uid of the job, shard
  std::map<SessionId, proto::Register> regs_;
  std::map<SessionId, size_t> seen_;
  std::map<SessionId, std::pair<uint32_t, uint32_t>> rank_;
  std::map<std::pair<SessionId, uint32_t>, uint64_t> version_;
  std::map<uint64_t, std::string> plans_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> incarnation_;
};

TEST_F(RandomTest, KeepsItsPromises) {
  size_t running = 0, finished = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxRandom random(seed);
    store_.records().clear();
    store_.set_failure(absl::OkStatus());
    peers_.clear(), regs_.clear(), seen_.clear(), rank_.clear(), version_.clear(), plans_.clear(), incarnation_.clear();
    owners_.clear();
    replicas_ = static_cast<uint32_t>(seed / 3 % 3);
    loss_ = static_cast<int>(seed % 3);
    StartCore();
    for (int step = 0; step < 300; ++step) {
      Step(random);
      Check();
      if (HasFatalFailure()) return;
    }
    for (const auto& kind : EventKinds()) running += kind == "job_running", finished += kind == "job_finished";
  }
  // Not all of it was refused at the door.
  EXPECT_GT(running, 30u);
  EXPECT_GT(finished, 3u);
  EXPECT_GT(promotions_, 100u);
}

}  // namespace
}  // namespace sluice::scheduler
