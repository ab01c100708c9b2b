// A ServerCore with scripted workers around it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "compression/codec.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "server/core.h"
#include "server/testing/fake_endpoint.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;

// What the history would keep.
struct Observed final : ServerObserver {
  struct Round {
    RoundRecord record;
    std::vector<float> value;
    std::vector<std::byte> reply;
  };
  void OnContribution(const ContributionRecord& r) override {
    contributions.push_back(r);
    contributions.back().payload = {};
  }
  void OnRound(const RoundRecord& r) override {
    rounds.push_back({r, {r.value.begin(), r.value.end()}, {r.reply.begin(), r.reply.end()}});
    rounds.back().record.value = {};
    rounds.back().record.reply = {};
  }
  void OnAnswered(const FrameHeader& header, const transport::SendTimes& times) override {
    answered.emplace_back(header, times);
  }
  std::vector<ContributionRecord> contributions;
  std::vector<Round> rounds;
  std::vector<std::pair<FrameHeader, transport::SendTimes>> answered;
};

inline proto::JobConfig JobText(const std::string& text) {
  proto::JobConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

// A plan with one shard for each server lane, tensors cut into the given partitions, partition i on shard i mod shards.
struct PlanBuilder {
  explicit PlanBuilder(const std::string& job_text) {
    plan.set_job(1);
    plan.set_version(1);
    plan.set_uid(77);
    plan.set_state(proto::JOB_RUNNING);
    *plan.mutable_config() = JobText(job_text);
    for (uint32_t rank = 0; rank < plan.config().workers(); ++rank) {
      auto* worker = plan.add_workers();
      worker->set_rank(rank);
      worker->set_incarnation(10);
      worker->set_alive(true);
      worker->set_address("host-" + std::string(1, static_cast<char>('a' + rank)) + ":1");
    }
  }
  PlanBuilder& Server(const std::string& id, uint32_t lanes = 1) {
    auto* server = plan.add_servers();
    server->set_server(static_cast<uint32_t>(plan.servers_size() - 1));
    server->set_id(id);
    server->set_alive(true);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      auto* address = server->add_lanes();
      address->set_host(id);
      address->set_port(lane);
      auto* shard = plan.add_shards();
      shard->set_shard(static_cast<uint32_t>(plan.shards_size() - 1));
      shard->set_server(server->server());
      shard->set_lane(lane);
      shard->set_term(1);
    }
    return *this;
  }
  PlanBuilder& Tensor(const std::string& name, std::vector<uint64_t> partitions,
                      proto::TensorKind kind = proto::TENSOR_WEIGHT) {
    auto* tensor = plan.add_tensors();
    tensor->set_tensor(static_cast<uint32_t>(plan.tensors_size() - 1));
    tensor->mutable_spec()->set_name(name);
    tensor->mutable_spec()->set_kind(kind);
    tensor->set_first_partition(next_partition);
    uint64_t elements = 0;
    for (const uint64_t n : partitions) {
      tensor->add_partition_elements(n);
      tensor->add_partition_shard(next_partition++ % static_cast<uint32_t>(plan.shards_size()));
      elements += n;
    }
    tensor->mutable_spec()->add_shape(elements);
    return *this;
  }
  PlanBuilder& Table(const std::string& name, uint32_t dim, uint32_t segments, const std::string& spec_text = "") {
    auto* tensor = plan.add_tensors();
    tensor->set_tensor(static_cast<uint32_t>(plan.tensors_size() - 1));
    tensor->mutable_spec()->set_name(name);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(spec_text, tensor->mutable_spec()->mutable_table()));
    tensor->mutable_spec()->mutable_table()->set_dim(dim);
    tensor->set_first_partition(next_partition);
    for (uint32_t s = 0; s < segments; ++s) {
      tensor->add_partition_elements(dim);
      tensor->add_partition_shard(next_partition++ % static_cast<uint32_t>(plan.shards_size()));
    }
    return *this;
  }
  proto::Plan plan;
  uint32_t next_partition = 0;
};

class CoreHarness {
 public:
  explicit CoreHarness(std::string id = "s0", uint32_t lane = 0, std::optional<proto::DataConfig> data = std::nullopt) {
    ServerCoreOptions options;
    options.id = std::move(id);
    options.lane = lane;
    options.observer = &observed;
    if (data.has_value()) options.data = *data;
    options.request_plan = [this](uint32_t) { ++plan_requests; };
    core = ServerCore::Create(std::move(options), &endpoint, &clock);
    endpoint.SetHandler(core.get());
  }

  // The link of a worker: its rank plus 1.
  void WorkerUp(uint32_t rank, uint32_t incarnation = 10) {
    transport::Hello hello;
    hello.role = transport::PeerRole::kWorker;
    hello.job = 1;
    hello.job_uid = 77;
    hello.index = rank;
    hello.incarnation = incarnation;
    hello.name = "w" + std::to_string(rank);
    core->OnUp(rank + 1, hello);
  }
  void Start(const proto::Plan& plan) {
    core->OnPlan(plan);
    for (const auto& worker : plan.workers()) WorkerUp(worker.rank());
  }

  struct Push {
    uint32_t rank = 0, partition = 0;
    uint64_t round = 0;
    std::vector<float> values;
    uint16_t flags = 0;
    std::string codec = "none";
    uint32_t tensor = 0, term = 1, incarnation = 10, attempt = 1;
    uint64_t reply_slot = 0;
    std::optional<uint32_t> elements;
    LinkId link = 0;   // 0: the rank's own
  };
  static FrameHeader HeaderOf(const Push& push) {
    FrameHeader h;
    h.type = FrameType::kPush;
    h.flags = push.flags;
    h.job = 1;
    h.rank = push.rank;
    h.incarnation = push.incarnation;
    h.tensor = push.tensor;
    h.partition = push.partition;
    h.term = push.term;
    h.round = push.round;
    h.attempt = push.attempt;
    h.elements = push.elements.value_or(static_cast<uint32_t>(push.values.size()));
    h.reply_slot = push.reply_slot;
    h.plan_version = 1;
    return h;
  }
  static std::vector<std::byte> Encode(const std::string& name, std::span<const float> values) {
    auto codec = compression::MakeCodec(name);
    EXPECT_TRUE(codec.ok()) << codec.status();
    std::vector<std::byte> bytes((*codec)->MaxEncodedBytes(values.size()));
    compression::EncodeInput input;
    input.gradient = values;
    bytes.resize(*(*codec)->Encode(input, bytes));
    return bytes;
  }
  // An eager push: one frame.
  void Send(const Push& push) {
    FrameHeader h = HeaderOf(push);
    std::vector<std::byte> bytes;
    if ((push.flags & (transport::kFlagEmpty | transport::kFlagNonfinite)) == 0) bytes = Encode(push.codec, push.values);
    h.codec = static_cast<uint16_t>((*compression::MakeCodec(push.codec))->id());
    h.payload_bytes = static_cast<uint32_t>(bytes.size());
    h.total_bytes = bytes.size();
    Deliver(push.link != 0 ? push.link : push.rank + 1, h, bytes);
  }
  void Deliver(LinkId link, const FrameHeader& header, ConstBytes bytes) {
    auto copy = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    core->OnFrame(link, header, transport::Payload(*copy, copy));
    core->OnTurnEnd();
  }
  // What rank was sent since the last call.
  std::vector<SentFrame> Take(uint32_t rank) {
    core->OnTurnEnd();
    return endpoint.Take(rank + 1);
  }
  // The one frame that rank was sent.
  SentFrame TakeOne(uint32_t rank) {
    std::vector<SentFrame> frames = Take(rank);
    EXPECT_EQ(frames.size(), 1u) << "frames to rank " << rank;
    return frames.empty() ? SentFrame{} : frames.front();
  }

  ManualClock clock;
  FakeEndpoint endpoint;
  Observed observed;
  int plan_requests = 0;
  std::unique_ptr<ServerCore> core;
};

// A job of one tensor "w" of one partition.
inline proto::Plan OnePartition(const std::string& job, uint64_t elements = 4) {
  return PlanBuilder(job).Server("s0").Tensor("w", {elements}).plan;
}

}  // namespace sluice::server
