// For tests of the scheduler's core: sessions by hand, a clock by hand, everything that was sent kept.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/core.h"
#include "scheduler/memory_store.h"
#include "transport/control/member_core.h"

namespace sluice::scheduler {

class CoreHarness : public testing::Test {
 protected:
  struct Peer {
    std::vector<proto::SchedulerMessage> received;
    absl::Status closed;       // OK while open
    bool open = true;

    const proto::Welcome* welcome() const {
      for (const auto& message : received)
        if (message.has_welcome()) return &message.welcome();
      return nullptr;
    }
    const proto::Plan* plan() const {
      for (auto it = received.rbegin(); it != received.rend(); ++it)
        if (it->has_plan()) return &it->plan();
      return nullptr;
    }
    const proto::RequestDone* done(uint64_t request) const {
      for (const auto& message : received)
        if (message.has_done() && message.done().request() == request) return &message.done();
      return nullptr;
    }
    size_t count(proto::SchedulerMessage::KindCase kind) const {
      size_t n = 0;
      for (const auto& message : received) n += message.kind_case() == kind;
      return n;
    }
  };

  CoreHarness() {
    config_.set_servers(1);
    config_.set_lease_ms(5000);
    config_.set_heartbeat_ms(500);
    job_.set_name("j");
    job_.set_workers(2);
  }

  void StartCore() {
    auto core = SchedulerCore::Create(
        config_, &store_, &clock_, [this] { return clock_.Now() / kMillisecond; }, 42,
        {[this](SessionId s, const proto::SchedulerMessage& m) { peers_[s].received.push_back(m); },
         [this](SessionId s, const absl::Status& status) {
           peers_[s].closed = status;
           peers_[s].open = false;
         }},
        topology_ ? topology_() : nullptr);
    ASSERT_TRUE(core.ok()) << core.status();
    core_ = *std::move(core);
  }
  // The process dies; streams break; another one reads what was written.
  void RestartCore() {
    core_ = nullptr;
    for (auto& [session, peer] : peers_) peer.open = false;
    StartCore();
  }

  SessionId Connect(const proto::Register& reg) {
    const SessionId session = next_session_++;
    peers_[session];
    core_->OnSessionOpen(session, "10.0.0." + std::to_string(session));
    proto::MemberMessage message;
    *message.mutable_register_() = reg;
    core_->OnMessage(session, message);
    return session;
  }
  proto::Register ServerReg(const std::string& id, uint32_t incarnation = 100, int lanes = 1) {
    proto::Register reg;
    reg.set_protocol(control::kProtocolVersion);
    reg.set_version("test");
    reg.set_role(proto::ROLE_SERVER);
    reg.set_id(id);
    reg.set_incarnation(incarnation);
    reg.set_control("127.0.0.1:1");
    for (int i = 0; i < lanes; ++i) {
      reg.add_lanes()->set_host("127.0.0.1");
      reg.mutable_lanes(i)->set_port(1000 + i);
    }
    return reg;
  }
  proto::Register WorkerReg(const std::string& id, int rank, uint32_t incarnation = 200) {
    proto::Register reg;
    reg.set_protocol(control::kProtocolVersion);
    reg.set_version("test");
    reg.set_role(proto::ROLE_WORKER);
    reg.set_id(id);
    reg.set_rank(rank);
    reg.set_incarnation(incarnation);
    *reg.mutable_job() = job_;
    return reg;
  }
  // As after a broken stream or a restarted scheduler: what Welcome and the plan said.
  proto::Register Again(SessionId session, proto::Register reg) {
    const Peer& peer = peers_[session];
    if (peer.welcome() != nullptr) reg.set_incarnation(peer.welcome()->incarnation());
    if (peer.welcome() != nullptr && reg.role() == proto::ROLE_WORKER) reg.set_rank(peer.welcome()->rank());
    if (peer.plan() != nullptr) reg.set_plan_version(peer.plan()->version());
    return reg;
  }

  void Heartbeat(SessionId session) {
    proto::MemberMessage message;
    message.mutable_heartbeat()->set_sequence(1);
    core_->OnMessage(session, message);
  }
  void Ack(SessionId session) {
    const proto::Plan plan = *peers_[session].plan();
    proto::MemberMessage message;
    message.mutable_plan_ack()->set_job(plan.job());
    message.mutable_plan_ack()->set_version(plan.version());
    core_->OnMessage(session, message);
  }
  static proto::TensorSpec Spec(const std::string& name, std::vector<uint64_t> shape) {
    proto::TensorSpec spec;
    spec.set_name(name);
    for (uint64_t d : shape) spec.add_shape(d);
    return spec;
  }
  void Tensors(SessionId session, uint64_t request, std::vector<proto::TensorSpec> specs) {
    proto::MemberMessage message;
    message.mutable_tensors()->set_request(request);
    for (auto& spec : specs) *message.mutable_tensors()->add_tensors() = spec;
    core_->OnMessage(session, message);
  }
  void Barrier(SessionId session, uint64_t request, const std::string& name, uint64_t sequence) {
    proto::MemberMessage message;
    message.mutable_barrier()->set_request(request);
    message.mutable_barrier()->set_name(name);
    message.mutable_barrier()->set_sequence(sequence);
    core_->OnMessage(session, message);
  }
  void Leave(SessionId session, uint64_t request, bool failed = false, const std::string& why = "") {
    proto::MemberMessage message;
    message.mutable_leave()->set_request(request);
    message.mutable_leave()->set_failed(failed);
    message.mutable_leave()->set_why(why);
    core_->OnMessage(session, message);
  }
  void Cut(SessionId session) {
    peers_[session].open = false;
    core_->OnSessionClosed(session);
  }
  // Time passes in ticks of 100 ms; the given sessions send heartbeats meanwhile.
  void Run(TimeNs duration, const std::vector<SessionId>& alive = {}) {
    for (TimeNs t = 0; t < duration; t += 100 * kMillisecond) {
      clock_.Advance(100 * kMillisecond);
      for (SessionId session : alive)
        if (peers_[session].open) Heartbeat(session);
      core_->OnTick();
    }
  }
  // One server "s0" (session server_), workers "w0" and "w1" (sessions worker_[0], worker_[1]); the job runs.
  void StartJob() {
    StartCore();
    server_ = Connect(ServerReg("s0"));
    for (uint32_t i = 0; i < job_.workers(); ++i) worker_.push_back(Connect(WorkerReg("w" + std::to_string(i), i)));
    ASSERT_NE(peers_[worker_[0]].plan(), nullptr);
    ASSERT_EQ(peers_[worker_[0]].plan()->state(), proto::JOB_RUNNING);
  }
  std::vector<std::string> EventKinds() {
    std::vector<std::string> kinds;
    const proto::EventList list = core_->ListEvents(0, 0);  // range-for over a temporary's member would dangle
    for (const auto& event : list.events()) kinds.push_back(event.kind());
    return kinds;
  }

  proto::NodeConfig config_;
  proto::JobConfig job_;
  ManualClock clock_;
  std::function<std::unique_ptr<network::Network>()> topology_;   // null: no topology is given
  MemoryStore store_;
  std::map<SessionId, Peer> peers_;
  std::unique_ptr<SchedulerCore> core_;
  SessionId next_session_ = 1;
  SessionId server_ = 0;
  std::vector<SessionId> worker_;
};

}  // namespace sluice::scheduler
