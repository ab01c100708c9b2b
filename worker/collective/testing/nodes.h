// Workers' collectives on a simulated network, in one thread on simulated time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"
#include "transport/stream/link_queue.h"
#include "worker/collective/collectives.h"

namespace sluice::collective {

// One worker: endpoint, queue, core, and what its calls came to.
class Node final : public transport::Handler {
 public:
  struct Outcome {
    bool done = false, released = false;
    absl::Status status;
  };

  Node(transport::SimNetwork* network, const Clock* clock, uint32_t rank, uint32_t incarnation)
      : rank(rank), incarnation(incarnation), network_(network) {
    endpoint = network->CreateEndpoint(absl::StrCat("w", rank));
    endpoint->SetHandler(this);
    transport::Hello self;
    self.role = transport::PeerRole::kWorker;
    self.name = absl::StrCat("w", rank);
    endpoint->Listen(self);
    queue = std::make_unique<transport::LinkQueue>(endpoint.get(), clock, transport::LinkQueueOptions{.stripe_bytes = 4096},
                                                   [](uint64_t) {});
    Collectives::Options options;
    options.resend = 50 * kMillisecond;
    options.report = [this](const std::string& text) { reports.push_back(text); };
    options.request_plan = [this] { ++plans_requested; };
    core = std::make_unique<Collectives>(endpoint.get(), queue.get(), clock, std::move(options));
    Tick();
  }
  ~Node() override {
    *alive_ = false;
    endpoint.reset();
    core.reset();
  }

  void Plan(const proto::Plan& plan) {
    core->OnPlan(plan, rank, incarnation, absl::StrCat("w", rank));
    Touch();
  }
  std::shared_ptr<Outcome> Call(Request request) {
    auto outcome = std::make_shared<Outcome>();
    last_call = core->Submit(
        std::move(request),
        [outcome](const absl::Status& status) {
          outcome->done = true;
          outcome->status = status;
        },
        [outcome] { outcome->released = true; });
    Touch();
    return outcome;
  }

  void OnUp(transport::LinkId link, const transport::Hello& peer) override {
    queue->LinkUp(link);
    core->OnUp(link, peer);
    Touch();
  }
  void OnDown(transport::LinkId link, const absl::Status& reason) override {
    core->OnDown(link, reason);
    queue->LinkDown(link);
    Touch();
  }
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override {
    if (header.type != transport::FrameType::kBatch) {
      core->OnFrame(link, header, payload);
    } else {
      (void)transport::ForEachInBatch(header, payload.bytes(), [&](const transport::FrameHeader& inner, ConstBytes bytes) {
        transport::Payload part = payload.Slice(bytes);
        core->OnFrame(link, inner, part);
      });
    }
    Touch();
  }
  void OnSent(transport::LinkId link, uint64_t cookie) override {
    queue->OnSent(link, cookie);
    Touch();
  }
  void OnSlotClosed(transport::LinkId, transport::SlotId slot) override {
    core->OnSlotClosed(slot);
    Touch();
  }
  void OnWritable(transport::LinkId link) override { queue->OnWritable(link); }

  const uint32_t rank, incarnation;
  std::unique_ptr<transport::SimEndpoint> endpoint;
  std::unique_ptr<transport::LinkQueue> queue;
  std::unique_ptr<Collectives> core;
  std::vector<std::string> reports;
  // Whatever makes calls of this core's by itself: runs at the end of each turn, and says whether it wants another.
  std::function<bool()> after_turn;
  int plans_requested = 0;
  uint64_t last_call = 0;

  void Touch() {   // a turn's end is due
    if (std::exchange(turn_due_, true)) return;
    network_->Schedule(0, [this, alive = alive_] {
      if (!*alive) return;
      turn_due_ = false;
      core->OnTurnEnd();
      const bool again = after_turn && after_turn();
      queue->Flush();
      if (again || core->has_work()) Touch();
    });
  }
  void Tick() {
    network_->Schedule(10 * kMillisecond, [this, alive = alive_] {
      if (!*alive) return;
      core->OnTick();
      queue->Flush();
      if (after_turn || core->has_work()) Touch();
      Tick();
    });
  }

 private:
  transport::SimNetwork* const network_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool turn_due_ = false;
};

// All workers of a job, and its plan.
class Nodes {
 public:
  using Outcomes = std::vector<std::shared_ptr<Node::Outcome>>;

  explicit Nodes(uint32_t n, uint64_t seed = 1, transport::SimFaults faults = {}, const std::string& groups = "")
      : network(seed, faults, &clock) {
    plan.set_job(7);
    plan.set_uid(99);
    plan.set_version(1);
    plan.set_state(proto::JOB_RUNNING);
    plan.mutable_config()->set_name("test");
    plan.mutable_config()->set_workers(n);
    plan.mutable_config()->set_groups(groups);
    for (uint32_t rank = 0; rank < n; ++rank) {
      proto::WorkerInfo* info = plan.add_workers();
      info->set_rank(rank);
      info->set_incarnation(1);
      info->set_address(absl::StrCat("host", rank, ":1"));
      info->set_alive(true);
      info->add_listeners()->set_host(absl::StrCat("w", rank));
    }
    for (uint32_t rank = 0; rank < n; ++rank) nodes.push_back(std::make_unique<Node>(&network, &clock, rank, 1));
    Publish();
  }

  // All that live have this plan.
  void Publish() {
    plan.set_version(plan.version() + 1);
    for (auto& node : nodes)
      if (node != nullptr) node->Plan(plan);
  }
  proto::WorkerInfo* Info(uint32_t rank) { return plan.mutable_workers(static_cast<int>(rank)); }
  void Crash(uint32_t rank) {
    network.Crash(absl::StrCat("w", rank));
    nodes[rank].reset();
  }
  void Restart(uint32_t rank, uint32_t incarnation) {
    Info(rank)->set_incarnation(incarnation);
    Info(rank)->set_alive(true);
    nodes[rank] = std::make_unique<Node>(&network, &clock, rank, incarnation);
    Publish();
  }
  // Until all of them are released, or so long.
  bool Await(const std::vector<std::shared_ptr<Node::Outcome>>& outcomes, TimeNs most = 60 * kSecond) {
    const TimeNs end = clock.Now() + most;
    const auto pending = [&] {
      for (const auto& outcome : outcomes)
        if (outcome != nullptr && (!outcome->done || !outcome->released)) return true;
      return false;
    };
    while (pending() && clock.Now() < end) network.RunFor(kMillisecond);
    if (!pending()) return true;
    for (const auto& node : nodes)
      if (node != nullptr) ADD_FAILURE() << "rank " << node->rank << " has " << node->core->unfinished() << " calls: " << node->core->Waiting();
    return false;
  }

  ManualClock clock;
  transport::SimNetwork network;
  proto::Plan plan;
  std::vector<std::unique_ptr<Node>> nodes;
};

}  // namespace sluice::collective
