// A running job with several servers and copies of its shards: the core's harness, and what owners say of copies.
#pragma once

#include <string>
#include <vector>

#include "scheduler/core_harness.h"

namespace sluice::scheduler {

class CopiesHarness : public CoreHarness {
 protected:
  // One worker. settled: no lease counts for one after the scheduler's start.
  void Start(int servers, uint32_t replicas, uint32_t shards = 12, TimeNs settled = 6 * kSecond) {
    config_.set_servers(static_cast<uint32_t>(servers));
    config_.set_shards(shards);
    job_.set_replicas(replicas);
    job_.set_workers(1);
    StartCore();
    for (int i = 0; i < servers; ++i) s_.push_back(Connect(ServerReg("s" + std::to_string(i))));
    worker_.push_back(Connect(WorkerReg("w0", 0)));
    ASSERT_EQ(Plan().state(), proto::JOB_RUNNING);
    Run(settled, Everybody());
  }
  proto::Plan Plan() { return *core_->GetPlan("j"); }
  std::vector<SessionId> Others(size_t without) {
    std::vector<SessionId> others = worker_;
    for (size_t i = 0; i < s_.size(); ++i)
      if (i != without && peers_[s_[i]].open) others.push_back(s_[i]);
    return others;
  }
  std::vector<SessionId> Everybody() { return Others(SIZE_MAX); }
  // What each owner that is connected says of its copies: in sync, or so many bytes sent and left.
  void Report(bool in_sync, uint64_t sent = 0, uint64_t left = 0) {
    const proto::Plan plan = Plan();
    for (const auto& info : plan.servers()) {
      if (!info.alive() || !peers_[s_[info.server()]].open) continue;
      proto::MemberMessage message;
      message.mutable_heartbeat();
      for (const auto& shard : plan.shards()) {
        if (shard.server() != info.server()) continue;
        for (const auto& copy : shard.backups())
          if (!copy.in_sync()) *message.mutable_heartbeat()->add_replicas() = State(plan, shard, copy, in_sync, sent, left);
      }
      core_->OnMessage(s_[info.server()], message);
    }
  }
  static proto::ReplicaState State(const proto::Plan& plan, const proto::ShardInfo& shard,
                                   const proto::BackupInfo& copy, bool in_sync, uint64_t sent = 0, uint64_t left = 0) {
    proto::ReplicaState state;
    state.set_job(plan.job());
    state.set_job_uid(plan.uid());
    state.set_shard(shard.shard());
    state.set_term(shard.term());
    state.set_server(copy.server());
    state.set_since(copy.since());
    state.set_in_sync(in_sync);
    state.set_bytes_sent(sent);
    state.set_bytes_left(left);
    return state;
  }

  std::vector<SessionId> s_;   // of the servers
};

}  // namespace sluice::scheduler
