#include "server/forward/forwarding.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/math/exact_wire.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;

Forwarding::Forwarding(Options options) : options_(std::move(options)) {
  env_.job = options_.context;
  env_.endpoint = options_.endpoint;
  env_.request_plan = options_.request_plan;
  env_.closing = options_.closing;
}

ForwardedPartition* Forwarding::Find(uint32_t partition) const {
  const auto it = partitions_.find(partition);
  return it == partitions_.end() ? nullptr : it->second.get();
}

absl::Status Forwarding::Update(const proto::Plan& plan, std::span<const proto::ShardInfo* const> shards,
                                std::span<const std::shared_ptr<const control::TreeWay>> ways, uint32_t server) {
  env_.server = server;
  // The life that the plan has here is the one that parents let forward. (A daemon's core is not told its own.)
  if (server < static_cast<uint32_t>(plan.servers_size())) env_.incarnation = plan.servers(static_cast<int>(server)).incarnation();
  std::set<uint32_t> kept;
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    if (tensor.spec().has_table()) continue;
    for (int i = 0; i < tensor.partition_shard_size(); ++i) {
      const uint32_t shard = tensor.partition_shard(i);
      const std::shared_ptr<const control::TreeWay>& way = ways[shard];
      const control::TreeWay::Node* node = way == nullptr ? nullptr : way->Find(server);
      if (node == nullptr || node->lane != options_.lane) continue;
      const uint32_t index = tensor.first_partition() + static_cast<uint32_t>(i);
      kept.insert(index);
      if (!partitions_.contains(index)) SLUICE_RETURN_IF_ERROR(Add(tensor, i));
      const int32_t parent = node->parent;
      ReplicaChannel* channel =
          ChannelTo(plan, parent == -1 ? Parent{shards[shard]->server(), shards[shard]->lane()}
                                       : Parent{way->nodes[static_cast<size_t>(parent)].server,
                                                way->nodes[static_cast<size_t>(parent)].lane});
      if (partitions_[index]->SetWay(way, static_cast<size_t>(node - way->nodes.data()), shards[shard]->term(), channel)) {
        options_.forget(index);
      }
    }
  }
  std::vector<uint32_t> gone;
  for (const auto& [index, partition] : partitions_) {
    if (!kept.contains(index)) gone.push_back(index);
  }
  for (const uint32_t index : gone) Remove(index);
  // Channels that nobody uses any more.
  std::set<const ReplicaChannel*> used;
  for (const auto& [index, partition] : partitions_) used.insert(partition->channel());
  for (auto it = channels_.begin(); it != channels_.end();) {
    const auto here = it++;
    if (used.contains(here->second.channel.get())) continue;
    here->second.channel->Close();
    options_.bury(std::move(here->second.channel));
    channels_.erase(here);
  }
  return absl::OkStatus();
}

absl::Status Forwarding::Add(const proto::TensorInfo& tensor, int position) {
  const Semantics& semantics = *options_.context->semantics;
  PartitionShape shape;
  shape.tensor = tensor.tensor();
  shape.partition = tensor.first_partition() + static_cast<uint32_t>(position);
  shape.position = static_cast<uint32_t>(position);
  shape.elements = tensor.partition_elements(position);
  shape.name = tensor.spec().name();
  shape.kind = tensor.spec().kind();
  shape.priority = tensor.spec().priority();
  const size_t head = ForwardHeadBytes(static_cast<uint32_t>(options_.context->workers.size()));
  const size_t most = options_.max_message_bytes;
  const bool exact = semantics.order == proto::ORDER_EXACT;
  // (Before what is computed from the number of elements: it comes from the plan.)
  if (shape.elements == 0 || shape.elements > most / sizeof(float) ||
      head + std::max(shape.elements * sizeof(float), exact ? MaxExactWireBytes(shape.elements) : 0) > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", shape.name, "' partition ", position, " has ", shape.elements, " elements; their sum",
        exact ? " (order exact: up to 19 bytes an element)" : "", " must fit ", most,
        " bytes to be forwarded: raise data.pool_bytes of the servers, lower job.partition_bytes, or set topology.trees=off"));
  }
  size_t largest = shape.elements * sizeof(float);
  if (semantics.reply == proto::REPLY_CHANGE) {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<compression::Codec> codec, semantics.ReplyCodec(tensor.spec()));
    if (codec != nullptr) largest = std::max<size_t>(largest, codec->MaxEncodedBytes(shape.elements));
  }
  const uint32_t index = shape.partition;
  partitions_[index] = std::make_unique<ForwardedPartition>(std::move(shape), largest, &env_);
  return absl::OkStatus();
}

ReplicaChannel* Forwarding::ChannelTo(const proto::Plan& plan, Parent parent) {
  proto::Address address;
  if (parent.first < static_cast<uint32_t>(plan.servers_size())) {
    const proto::ServerInfo& info = plan.servers(static_cast<int>(parent.first));
    if (parent.second < static_cast<uint32_t>(info.lanes_size())) address = info.lanes(static_cast<int>(parent.second));
  }
  Channel& channel = channels_[parent];
  const bool fresh = channel.channel == nullptr;
  if (fresh) channel.channel = options_.make_channel();
  // (What is under way to a former address is dropped: its server has another life, and the plan another term or tree.)
  if (fresh || channel.address.SerializeAsString() != address.SerializeAsString()) {
    channel.address = address;
    channel.channel->SetLink(options_.link(address));
  }
  return channel.channel.get();
}

void Forwarding::Remove(uint32_t partition) {
  const auto it = partitions_.find(partition);
  it->second->Retire();
  partitions_.erase(it);
  options_.forget(partition);
}

void Forwarding::Retire() {
  while (!partitions_.empty()) Remove(partitions_.begin()->first);
  for (auto& [parent, channel] : channels_) {
    channel.channel->Close();
    options_.bury(std::move(channel.channel));
  }
  channels_.clear();
}

absl::Status Forwarding::OnFrame(LinkId link, const FrameHeader& header, const transport::Payload& payload) {
  ForwardedPartition* partition = Find(header.partition);
  if (partition == nullptr || partition->channel() == nullptr || partition->channel()->link() != link ||
      header.rank != (kForwardRank | env_.server) || header.incarnation != env_.incarnation) {
    return absl::OkStatus();   // of a parent that it has no more
  }
  if (partition->channel()->OnFrame(link, header)) return absl::OkStatus();
  return partition->OnAnswer(header, payload);
}

void Forwarding::MembershipChanged() {
  for (const auto& [index, partition] : partitions_) partition->MembershipChanged();
}

void Forwarding::OnPeerUp() {
  for (auto& [parent, channel] : channels_) {
    const LinkId link = options_.link(channel.address);
    if (link == 0 || link == channel.channel->link()) continue;
    channel.channel->SetLink(link);
    for (const auto& [index, partition] : partitions_) {
      if (partition->channel() == channel.channel.get()) partition->ParentUp();
    }
  }
}

void Forwarding::LinkDown(LinkId link) {
  for (auto& [parent, channel] : channels_) channel.channel->LinkDown(link);
  for (const auto& [index, partition] : partitions_) partition->LinkDown(link);
}

void Forwarding::OnTick() {
  for (auto& [parent, channel] : channels_) channel.channel->OnTick();
  for (const auto& [index, partition] : partitions_) partition->OnTick();
}

std::string Forwarding::WaitingFor() const {
  const ForwardedPartition* oldest = nullptr;
  for (const auto& [index, partition] : partitions_) {
    if (!partition->open_round().has_value()) continue;
    if (oldest == nullptr || *partition->open_round() < *oldest->open_round()) oldest = partition.get();
  }
  return oldest == nullptr ? "" : oldest->WaitingFor();
}

}  // namespace sluice::server
