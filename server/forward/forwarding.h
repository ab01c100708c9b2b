// What one lane forwards of one job: its partitions in forward mode, and the channels to their parents.
//
// Partitions come and go with the plan: a lane forwards a partition if the plan's way of its shard has this server as a node, and
// the shard's number modulo the server's lanes is this lane's. It never does so for a partition that it owns (TreeWay).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/plan.pb.h"
#include "server/forward/forwarded_partition.h"

namespace sluice::server {

class Forwarding {
 public:
  struct Options {
    JobContext* context = nullptr;
    transport::Endpoint* endpoint = nullptr;
    uint32_t lane = 0;
    size_t max_message_bytes = 0;    // a larger sum cannot be forwarded
    std::function<void()> request_plan;
    std::function<std::unique_ptr<ReplicaChannel>()> make_channel;
    std::function<void(std::unique_ptr<ReplicaChannel>)> bury;
    std::function<transport::LinkId(const proto::Address&)> link;   // up, or 0 and OnPeerUp follows
    std::function<void(uint32_t partition)> forget;                 // pushes that are not whole
    std::function<void(transport::LinkId, transport::SlotId, BlockPtr)> closing;   // keeps the memory, also when the job is over
  };
  explicit Forwarding(Options options);

  // shards: the plan's, by number; ways: theirs. server: this one's index. An error: a sum that the pool cannot take.
  absl::Status Update(const proto::Plan& plan, std::span<const proto::ShardInfo* const> shards,
                      std::span<const std::shared_ptr<const control::TreeWay>> ways, uint32_t server);
  void Retire();

  ForwardedPartition* Find(uint32_t partition) const;   // null: not forwarded here
  bool empty() const { return partitions_.empty(); }
  // Of a parent: GRANT, STATE, REPLY, APPLIED, RETRY, ERROR. An error ends the link.
  absl::Status OnFrame(transport::LinkId link, const transport::FrameHeader& header, const transport::Payload& payload);
  void MembershipChanged();
  void OnPeerUp();
  void LinkDown(transport::LinkId link);
  void OnTick();
  std::string WaitingFor() const;        // of the oldest round

 private:
  using Parent = std::pair<uint32_t, uint32_t>;   // server, lane
  struct Channel {
    proto::Address address;
    std::unique_ptr<ReplicaChannel> channel;
  };
  absl::Status Add(const proto::TensorInfo& tensor, int position);
  ReplicaChannel* ChannelTo(const proto::Plan& plan, Parent parent);
  void Remove(uint32_t partition);

  const Options options_;
  ForwardedPartition::Env env_;
  std::map<uint32_t, std::unique_ptr<ForwardedPartition>> partitions_;
  std::map<Parent, Channel> channels_;
};

}  // namespace sluice::server
