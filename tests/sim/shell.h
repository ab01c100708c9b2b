// What the simulated shells of servers and workers share: the stream to the scheduler, and turns.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "transport/control/member_core.h"
#include "transport/sim/sim_network.h"
#include "transport/transport.h"
#include "tests/sim/history.h"
#include "tests/sim/scenario.h"

namespace sluice::sim {

inline constexpr const char* kSchedulerName = "scheduler";

// The cluster as its nodes see it; outlives them.
struct World {
  const Scenario* scenario = nullptr;
  ManualClock* clock = nullptr;
  transport::SimNetwork* network = nullptr;
  History* history = nullptr;
  bool lying_copies = false;                                // RunOptions
  std::function<void(const std::string&)> note;             // a line of the trace
  std::function<void(const absl::Status&)> fail;            // the run has gone wrong
  std::function<void(uint32_t rank, uint64_t round)> begins;  // a worker begins a round
};

// A core's turn: after the first event of a burst, a moment is waited for company, then the turn ends.
class Turn {
 public:
  Turn(World* world, std::function<void()> end) : world_(world), end_(std::move(end)) {}
  void Touch();
  void EndAt(TimeNs time);  // also then
  // Every so often, until this is destroyed.
  void Every(TimeNs period, std::function<void()> tick);

 private:
  World* const world_;
  const std::function<void()> end_;
  bool pending_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Passes an endpoint's events on to the core, and tells its turn.
class Tap final : public transport::Handler {
 public:
  Tap(transport::Handler* core, Turn* turn) : core_(core), turn_(turn) {}
  void OnUp(transport::LinkId link, const transport::Hello& peer) override;
  void OnDown(transport::LinkId link, const absl::Status& reason) override;
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override;
  void OnSent(transport::LinkId link, uint64_t cookie) override;
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot) override;
  void OnWritable(transport::LinkId link) override;

 private:
  transport::Handler* const core_;
  Turn* const turn_;
};

// A planted bug in front of a server: it acknowledges messages for copies and drops them.
class LyingCopies final : public transport::Handler {
 public:
  LyingCopies(transport::Endpoint* endpoint, transport::Handler* next) : endpoint_(endpoint), next_(next) {}
  void OnUp(transport::LinkId link, const transport::Hello& peer) override { next_->OnUp(link, peer); }
  void OnDown(transport::LinkId link, const absl::Status& reason) override { next_->OnDown(link, reason); }
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override;
  void OnSent(transport::LinkId link, uint64_t cookie) override { next_->OnSent(link, cookie); }
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot) override { next_->OnSlotClosed(link, slot); }
  void OnWritable(transport::LinkId link) override { next_->OnWritable(link); }

 private:
  transport::Endpoint* const endpoint_;
  transport::Handler* const next_;
};

// MemberCore's stream over a channel of the simulated network: GrpcSession's part.
class MemberStream final : public transport::ChannelHandler {
 public:
  // touched: after each event. Bind comes before the core's Start.
  MemberStream(World* world, std::string name, std::function<void()> touched)
      : world_(world), name_(std::move(name)), touched_(std::move(touched)) {}
  control::MemberCore::Output output();
  void Bind(control::MemberCore* member) { member_ = member; }

  void OnChannelUp(transport::ChannelEnd end, const std::string& peer) override;
  void OnChannelDown(transport::ChannelEnd end, const absl::Status& status) override;
  void OnChannelMessage(transport::ChannelEnd end, std::string message) override;

 private:
  void Open(TimeNs delay);

  World* const world_;
  const std::string name_;
  const std::function<void()> touched_;
  control::MemberCore* member_ = nullptr;
  transport::ChannelEnd end_ = 0;
  uint64_t opening_ = 0;  // the last one that was asked for
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sluice::sim
