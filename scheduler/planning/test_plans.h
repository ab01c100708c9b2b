// Networks and plans for tests.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/network/network.h"

namespace sluice::planning {

// Racks of hosts "r0h0", "r0h1", …; host links of 100 MB/s, `narrow` between a rack and the core.
inline std::unique_ptr<network::Network> Racks(int racks, int hosts, double narrow, const std::string& trees = "auto") {
  using topology::Graph;
  using topology::Medium;
  using topology::VertexKind;
  Graph graph;
  const uint32_t core = graph.Add(VertexKind::kSwitch, "core").value();
  for (int r = 0; r < racks; ++r) {
    const uint32_t leaf = graph.Add(VertexKind::kSwitch, "r" + std::to_string(r)).value();
    EXPECT_TRUE(graph.Connect(leaf, core, Medium::kEthernet, narrow, 1e-6).ok());
    for (int h = 0; h < hosts; ++h) {
      const uint32_t host = graph.Add(VertexKind::kHost, "r" + std::to_string(r) + "h" + std::to_string(h)).value();
      EXPECT_TRUE(graph.Connect(host, leaf, Medium::kEthernet, 100e6, 1e-6).ok());
    }
  }
  proto::TopologyConfig config;
  config.set_link_bytes(100'000'000);
  config.set_oversubscription(1);
  config.set_trees(trees);
  return network::Network::Create(std::move(graph), config).value();
}

// `mib` of a model in partitions of 1 MiB, dealt out to shards in turn, these to servers in turn.
inline proto::Plan PlanOf(const std::vector<std::string>& workers, const std::vector<std::string>& servers, int mib, network::Network* network) {
  proto::Plan plan;
  plan.set_state(proto::JOB_RUNNING);
  plan.mutable_config()->set_workers(static_cast<uint32_t>(workers.size()));
  plan.mutable_config()->set_codec("none");
  plan.mutable_config()->set_reply(proto::REPLY_PARAMETERS);
  plan.mutable_config()->mutable_optimizer()->set_kind("sgd");
  for (size_t r = 0; r < workers.size(); ++r) {
    plan.add_workers()->set_rank(static_cast<uint32_t>(r));
    plan.mutable_workers(static_cast<int>(r))->set_host(workers[r]);
    plan.mutable_workers(static_cast<int>(r))->set_alive(true);
  }
  for (size_t s = 0; s < servers.size(); ++s) {
    proto::ServerInfo* server = plan.add_servers();
    server->set_server(static_cast<uint32_t>(s));
    server->set_id("s" + std::to_string(s));
    server->set_host(servers[s]);
    server->set_alive(true);
    server->add_lanes();
  }
  const int shards = 4 * plan.servers_size();
  for (int i = 0; i < shards; ++i) {
    plan.add_shards()->set_shard(static_cast<uint32_t>(i));
    plan.mutable_shards(i)->set_server(static_cast<uint32_t>(i % plan.servers_size()));
  }
  proto::TensorInfo* tensor = plan.add_tensors();
  tensor->mutable_spec()->set_name("t");
  tensor->mutable_spec()->add_shape(static_cast<uint64_t>(mib) << 18);
  for (int p = 0; p < mib; ++p) {
    tensor->add_partition_elements(1 << 18);
    tensor->add_partition_shard(static_cast<uint32_t>(p % shards));
  }
  network->AddHosts(workers);
  network->AddHosts(servers);
  return plan;
}

}  // namespace sluice::planning
