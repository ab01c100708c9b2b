// The simulated processes: each is the shell of one core, as the daemons are, and can be killed where the scenario says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/core.h"
#include "scheduler/memory_store.h"
#include "server/core.h"
#include "tests/sim/history.h"
#include "tests/sim/shell.h"
#include "tests/sim/trainer.h"
#include "transport/sim/sim_endpoint.h"
#include "worker/core.h"

namespace sluice::sim {

// Its store survives a crash.
class SchedulerNode final : public transport::ChannelHandler {
 public:
  explicit SchedulerNode(World* world) : world_(world) {}
  void Start();
  void Crash();
  bool up() const { return core_ != nullptr; }
  std::optional<proto::Plan> Plan() const;
  scheduler::SchedulerCore* core() { return core_.get(); }   // null while it is down

  void OnChannelUp(transport::ChannelEnd end, const std::string& peer) override;
  void OnChannelDown(transport::ChannelEnd end, const absl::Status& status) override;
  void OnChannelMessage(transport::ChannelEnd end, std::string message) override;

 private:
  World* const world_;
  scheduler::MemoryStore store_;
  std::unique_ptr<Turn> ticks_;
  std::unique_ptr<scheduler::SchedulerCore> core_;
};

// A server's process: one core a lane, one stream. All that it holds dies with it.
class ServerNode final : public control::MemberCore::Listener {
 public:
  ServerNode(World* world, uint32_t number);
  ~ServerNode() override;
  void Start();   // a new life
  void Crash();
  bool alive() const { return member_ != nullptr; }
  uint32_t incarnation() const { return lives_; }
  absl::Status CheckIdle() const;  // nothing is left of pushes
  std::string Waiting() const;

  void OnWelcome(const proto::Welcome&) override {}
  void OnPlan(const proto::Plan& plan) override;
  void OnRefused(const absl::Status& status) override;
  void OnReport(const proto::ReportState& report) override;
  void OnShutdown(const std::string&) override {}
  void OnProbe(const proto::Probe& probe) override;
  void FillHeartbeat(proto::Heartbeat* heartbeat) override;

  static std::string NodeName(uint32_t number);

 private:
  struct Lane {
    std::unique_ptr<ServerRecorder> recorder;
    std::unique_ptr<server::ServerCore> core;
    std::unique_ptr<Turn> turn;
    std::unique_ptr<Tap> tap;
    std::unique_ptr<LyingCopies> liar;
    std::unique_ptr<transport::SimEndpoint> endpoint;
  };

  World* const world_;
  const uint32_t number_;
  const std::string name_;
  uint32_t lives_ = 0;
  std::shared_ptr<bool> life_;   // of what is posted
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<MemberStream> stream_;
  std::unique_ptr<control::MemberCore> member_;
  std::unique_ptr<Turn> ticks_;
  struct Report {
    uint32_t request = 0;
    bool ready = false;
    proto::Heartbeat states;
  };
  Report report_;  // what is being gathered from the lanes, as the daemon does
  std::vector<proto::ProbeResult> probes_;   // not said yet
};

// A worker's place: lives come and go, what was saved stays.
class WorkerNode {
 public:
  WorkerNode(World* world, uint32_t rank);
  ~WorkerNode();
  void Start();   // a new life
  void Crash();
  void Lose() { Crash(), lost_ = true; }        // for good, or until Return
  void Return();                                // a new process, on a machine that has nothing of the former
  bool joins() const { return joins_; }         // it has come, and has not been let in
  bool alive() const { return life_ != nullptr; }
  bool trained() const { return trained_; }     // every round is done
  bool finished() const { return finished_ || lost_; }  // and the job was left in order
  const TrainerState& state() const { return state_; }
  std::string Waiting() const;

  static std::string NodeName(uint32_t rank);

 private:
  struct Life;
  void Registered(const absl::StatusOr<std::vector<uint32_t>>& ids);
  void BeginRound();
  void Save();
  void SubmitRound();
  void SubmitRows(uint32_t table);
  void Submit(uint32_t tensor, worker::OpRequest request);
  void SubmitTo(uint32_t id, worker::OpRequest request);
  void Register();
  void Join();
  void Align();
  void BeginJoined();
  void EndRound();
  void Fail(const std::string& what, const absl::Status& status);

  World* const world_;
  const uint32_t rank_;
  uint32_t lives_ = 0;
  std::unique_ptr<Life> life_;
  bool trained_ = false, finished_ = false, lost_ = false, joins_ = false;

  TrainerState state_;                     // of the running life
  struct Saved {
    TrainerState state;
    std::vector<std::byte> core;
  };
  std::optional<Saved> saved_;             // on "disk": at the beginning of a round
};

}  // namespace sluice::sim
