// libFuzzer's entry: messages for copies from a stranger. The first byte chooses what they are for: a tensor's partition under
// BSP or ASP, or a segment of a table; the rest is the message.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "server/core.h"
#include "server/replica_message.h"
#include "server/testing/fake_endpoint.h"

namespace {

sluice::proto::Plan PlanOf(unsigned kind) {
  sluice::proto::Plan plan;
  plan.set_job(1);
  plan.set_version(1);
  plan.set_uid(7);
  plan.set_state(sluice::proto::JOB_RUNNING);
  plan.mutable_config()->set_workers(2);
  plan.mutable_config()->mutable_optimizer()->set_kind("momentum");
  plan.mutable_config()->mutable_optimizer()->set_rate(0.1);
  if (kind == 1) plan.mutable_config()->set_mode(sluice::proto::MODE_ASP);
  for (uint32_t i = 0; i < 2; ++i) {
    plan.add_workers()->set_rank(i);
    auto* server = plan.add_servers();
    server->set_server(i);
    server->set_id(i == 0 ? "s0" : "s1");
    server->add_lanes()->set_host("nowhere");
  }
  auto* shard = plan.add_shards();
  shard->set_term(1);
  auto* backup = shard->add_backups();
  backup->set_server(1);
  backup->set_since(1);
  auto* tensor = plan.add_tensors();
  tensor->mutable_spec()->set_name("t");
  tensor->add_partition_elements(kind == 2 ? 2 : 5);
  tensor->add_partition_shard(0);
  if (kind == 2) {
    auto* table = tensor->mutable_spec()->mutable_table();
    table->set_dim(2);
    table->set_max_rows(8);
    table->set_max_age_rounds(3);
  }
  return plan;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  if (size < 1) return 0;
  ManualClock clock;
  server::FakeEndpoint endpoint;
  server::ServerCoreOptions options;
  options.id = "s1";
  const auto core = server::ServerCore::Create(std::move(options), &endpoint, &clock);
  endpoint.SetHandler(core.get());
  core->OnPlan(PlanOf(data[0] % 3));
  transport::Hello hello;
  hello.role = transport::PeerRole::kServer;
  hello.name = "s0";
  core->OnUp(1, hello);
  transport::FrameHeader header;
  header.type = transport::FrameType::kPush;
  header.flags = transport::kFlagReplica;
  header.job = 1;
  header.rank = server::kReplicaRank;
  header.term = 1;
  header.aux64 = 1;
  header.attempt = 1;
  // A copy of its own, so that the address sanitizer sees every byte read beyond the end. Sent twice: a state may be followed by
  // what it does not expect.
  const auto bytes = std::make_shared<std::vector<std::byte>>(reinterpret_cast<const std::byte*>(data) + 1,
                                                              reinterpret_cast<const std::byte*>(data) + size);
  for (uint64_t number = 0; number < 2; ++number) {
    header.round = number;
    header.payload_bytes = static_cast<uint32_t>(bytes->size());
    header.total_bytes = bytes->size();
    core->OnFrame(1, header, transport::Payload(*bytes, bytes));
    core->OnTurnEnd();
  }
  return 0;
}
