// One worker's collectives on a real loop and real endpoints, without a scheduler: the plan is handed in.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "transport/auto/auto_endpoint.h"
#include "transport/loop.h"
#include "transport/stream/link_queue.h"
#include "worker/collective/collectives.h"

namespace sluice::collective {

class ProcessNode final : public transport::Handler {
 public:
  static absl::StatusOr<std::unique_ptr<ProcessNode>> Start(uint32_t rank, transport::TransportChoice choice) {
    std::unique_ptr<ProcessNode> node(new ProcessNode(rank));
    auto loop = transport::Loop::Create();
    if (!loop.ok()) return loop.status();
    node->loop_ = *std::move(loop);
    transport::Hello self;
    self.role = transport::PeerRole::kWorker;
    self.name = absl::StrCat("rank ", rank);
    transport::AutoOptions options = transport::MakeAutoOptions(self, {});
    options.choice = choice;
    auto endpoint = transport::AutoEndpoint::Create(node->loop_.get(), &node->clock_, std::move(options));
    if (!endpoint.ok()) return endpoint.status();
    node->endpoint_ = *std::move(endpoint);
    node->endpoint_->SetHandler(node.get());
    node->queue_ = std::make_unique<transport::LinkQueue>(node->endpoint_.get(), &node->clock_, transport::LinkQueueOptions{},
                                                          [](uint64_t) {});
    Collectives::Options core;
    core.report = [](const std::string&) {};
    node->core_ = std::make_unique<Collectives>(node->endpoint_.get(), node->queue_.get(), &node->clock_, std::move(core));
    node->loop_->AtTurnEnd([n = node.get()] { n->TurnEnd(); });
    node->Tick();
    node->thread_ = std::thread([n = node.get()] { n->loop_->Run(); });
    return node;
  }
  ~ProcessNode() override {
    if (!thread_.joinable()) return;
    loop_->Post([this] { endpoint_.reset(); });
    loop_->Stop();
    thread_.join();
    core_.reset();
  }

  transport::Address address() const { return endpoint_->local_address(); }
  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes) { return endpoint_->Allocate(bytes); }
  void SetPlan(const proto::Plan& plan) {
    std::promise<void> done;
    loop_->Post([&] {
      core_->OnPlan(plan, rank_, plan.workers(static_cast<int>(rank_)).incarnation(), absl::StrCat("rank ", rank_));
      done.set_value();
    });
    done.get_future().wait();
  }
  // Until its buffers are released.
  std::future<absl::Status> Call(Request request) {
    auto promise = std::make_shared<std::promise<absl::Status>>();
    auto status = std::make_shared<absl::Status>();
    loop_->Post([this, request = std::move(request), promise, status]() mutable {
      core_->Submit(std::move(request), [status](const absl::Status& result) { *status = result; },
                    // A copy of its own: counting references is Abseil's, which thread sanitizers cannot see into.
                    [promise, status] { promise->set_value(absl::Status(status->code(), status->message())); });
    });
    return promise->get_future();
  }

  void OnUp(transport::LinkId link, const transport::Hello& peer) override {
    queue_->LinkUp(link);
    core_->OnUp(link, peer);
  }
  void OnDown(transport::LinkId link, const absl::Status& reason) override {
    core_->OnDown(link, reason);
    queue_->LinkDown(link);
  }
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override {
    if (header.type != transport::FrameType::kBatch) {
      core_->OnFrame(link, header, payload);
      return;
    }
    (void)transport::ForEachInBatch(header, payload.bytes(), [&](const transport::FrameHeader& inner, ConstBytes bytes) {
      transport::Payload part = payload.Slice(bytes);
      core_->OnFrame(link, inner, part);
    });
  }
  void OnSent(transport::LinkId link, uint64_t cookie) override { queue_->OnSent(link, cookie); }
  void OnSlotClosed(transport::LinkId, transport::SlotId slot) override { core_->OnSlotClosed(slot); }
  void OnWritable(transport::LinkId link) override { queue_->OnWritable(link); }

 private:
  explicit ProcessNode(uint32_t rank) : rank_(rank) {}
  void TurnEnd() {
    if (endpoint_ == nullptr) return;
    core_->OnTurnEnd();
    queue_->Flush();
    if (core_->has_work() && !std::exchange(turn_wanted_, true)) loop_->After(0, [this] { turn_wanted_ = false; });
  }
  void Tick() {
    loop_->After(20 * kMillisecond, [this] {
      if (endpoint_ == nullptr) return;
      core_->OnTick();
      Tick();
    });
  }

  const uint32_t rank_;
  SteadyClock clock_;
  std::unique_ptr<transport::Loop> loop_;
  std::unique_ptr<transport::LinkQueue> queue_;
  std::unique_ptr<Collectives> core_;   // outlives the endpoint, whose handler hands events to it
  std::unique_ptr<transport::AutoEndpoint> endpoint_;
  bool turn_wanted_ = false;
  std::thread thread_;
};

// A plan of a running job whose workers listen there.
inline proto::Plan PlanOf(const std::vector<transport::Address>& addresses) {
  proto::Plan plan;
  plan.set_job(1);
  plan.set_uid(17);
  plan.set_version(1);
  plan.set_state(proto::JOB_RUNNING);
  plan.mutable_config()->set_name("test");
  plan.mutable_config()->set_workers(static_cast<uint32_t>(addresses.size()));
  for (uint32_t rank = 0; rank < addresses.size(); ++rank) {
    proto::WorkerInfo* worker = plan.add_workers();
    worker->set_rank(rank);
    worker->set_incarnation(1);
    worker->set_alive(true);
    worker->set_address(absl::StrCat("process ", rank));
    proto::Address* listener = worker->add_listeners();
    listener->set_host(addresses[rank].host);
    listener->set_port(addresses[rank].port);
    listener->set_unix_socket(addresses[rank].unix_socket);
    listener->set_host_id(addresses[rank].host_id);
  }
  return plan;
}

}  // namespace sluice::collective
