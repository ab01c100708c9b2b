// How a job takes a plan: workers, partitions of this lane, coordinator.

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/dense_partition.h"
#include "server/job.h"
#include "server/table_partition.h"

namespace sluice::server {
namespace {

constexpr uint32_t kMaxWorkers = 1 << 16;
constexpr uint32_t kMaxPartitions = 1 << 24;   // an index needs 8 bytes on every lane

}  // namespace

void Job::OnPlan(const proto::Plan& plan) {
  context_.plan_version = plan.version();
  if (!error_.ok()) return;
  plan_ = plan;
  if (absl::Status status = TakePlan(plan); !status.ok()) Fail(status);
}

absl::Status Job::TakePlan(const proto::Plan& plan) {
  if (context_.semantics == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(context_.semantics, Semantics::Create(plan.config()));
  }
  SLUICE_RETURN_IF_ERROR(TakeWorkers(plan));
  SLUICE_RETURN_IF_ERROR(TakePartitions(plan));
  if (context_.semantics->needs_verdict()) SLUICE_RETURN_IF_ERROR(TakeCoordinator(plan));
  for (const auto& partition : partitions_) {
    if (partition != nullptr) partition->MembershipChanged();
  }
  forwarding_.MembershipChanged();
  return absl::OkStatus();
}

absl::Status Job::TakeWorkers(const proto::Plan& plan) {
  const uint32_t world = std::max(1u, context_.semantics->config.workers());
  if (world > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("job.workers is ", world, "; at most ", kMaxWorkers, " are possible"));
  }
  context_.workers.resize(world);
  bool joiners = false, others = static_cast<uint32_t>(plan.workers_size()) < world;
  for (const proto::WorkerInfo& info : plan.workers()) {
    if (info.rank() >= world) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan names rank ", info.rank(), " in a job of ", world, " workers"));
    }
    WorkerView& worker = context_.workers[info.rank()];
    if (info.incarnation() > worker.incarnation) {
      env_.receiver->ForgetRank(info.rank(), info.incarnation(), number_);
      worker.incarnation = info.incarnation();
    }
    worker.alive = info.alive();
    worker.finished = info.finished();
    worker.address = info.address();
    worker.joining = info.joining();
    worker.out_from_round.assign(info.out_from_round().begin(), info.out_from_round().end());
    joiners |= worker.joining != 0 && !worker.finished;
    others |= worker.joining == 0 && !worker.finished && worker.out_from_round.empty();
  }
  context_.only_joiners = joiners && !others;
  return absl::OkStatus();
}

absl::Status Job::TakePartitions(const proto::Plan& plan) {
  const auto self = std::ranges::find_if(plan.servers(), [&](const proto::ServerInfo& s) { return s.id() == env_.id; });
  // A plan that names an earlier life of this server speaks of state that is gone.
  const bool known = self != plan.servers().end() && (self->incarnation() == 0 || env_.incarnation == 0 ||
                                                      self->incarnation() == env_.incarnation);
  if (known) server_index_ = self->server();
  servers_ = static_cast<size_t>(std::max(1, plan.servers_size()));
  std::vector<const proto::ShardInfo*> shards;
  for (const proto::ShardInfo& shard : plan.shards()) {
    if (shard.shard() >= kMaxPartitions) return absl::InvalidArgumentError("the plan has a shard number out of range");
    if (shard.shard() >= shards.size()) shards.resize(shard.shard() + 1, nullptr);
    shards[shard.shard()] = &shard;
  }
  std::vector<std::shared_ptr<const control::TreeWay>> ways;   // by shard
  for (const proto::ShardInfo* shard : shards) ways.push_back(shard == nullptr ? nullptr : control::WayOf(plan, *shard));
  std::map<uint32_t, Replication::Owned> owned;   // by shard
  std::set<uint32_t> kept;
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    if (tensor.tensor() >= kMaxPartitions ||
        uint64_t{tensor.first_partition()} + tensor.partition_elements_size() > kMaxPartitions ||
        tensor.partition_elements_size() != tensor.partition_shard_size()) {
      return absl::InvalidArgumentError(absl::StrCat("the plan's entry of tensor '", tensor.spec().name(),
                                                     "' does not hold together: use one release everywhere"));
    }
    if (tensor.tensor() >= tensor_kinds_.size()) tensor_kinds_.resize(tensor.tensor() + 1, proto::TENSOR_WEIGHT);
    tensor_kinds_[tensor.tensor()] = tensor.spec().kind();
    for (int i = 0; i < tensor.partition_elements_size(); ++i) {
      const uint32_t number = tensor.partition_shard(i);
      if (number >= shards.size() || shards[number] == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("the plan does not name shard ", number, " of tensor '",
                                                       tensor.spec().name(), "' partition ", i));
      }
      const proto::ShardInfo& shard = *shards[number];
      const bool owns = known && shard.server() == server_index_ && shard.lane() == env_.lane;
      const auto backup = std::ranges::find_if(shard.backups(), [&](const proto::BackupInfo& b) {
        return known && b.server() == server_index_ && b.lane() == env_.lane;
      });
      if (!owns && backup == shard.backups().end()) continue;
      const uint32_t index = tensor.first_partition() + static_cast<uint32_t>(i);
      if (index >= partitions_.size()) partitions_.resize(index + 1);
      if (index >= traffic_.size()) traffic_.resize(index + 1);
      traffic_[index].shard = number;
      kept.insert(index);
      if (!owns && partitions_[index] != nullptr && partitions_[index]->owner()) {
        // What was answered it has, so it may stay as a copy in sync; else it begins anew.
        if (backup->in_sync()) {
          SLUICE_RETURN_IF_ERROR(Demote(tensor, i, index));
        } else {
          DropPartition(index);
        }
      }
      if (partitions_[index] == nullptr) {
        SLUICE_ASSIGN_OR_RETURN(partitions_[index], MakePartition(tensor, i));
      }
      if (owns) {
        Own(index, shard.term());
        if (!tensor.spec().has_table() && partitions_[index]->SetWay(ways[number])) env_.receiver->ForgetPartition(index, number_);
        owned[number].partitions.push_back(partitions_[index].get());
      } else {
        TakeCopy(shard, *backup, index);
      }
    }
  }
  for (uint32_t p = 0; p < partitions_.size(); ++p) {
    if (partitions_[p] != nullptr && !kept.contains(p)) DropPartition(p);
  }
  // Shards without partitions too: their copies are in sync.
  std::vector<Replication::Owned> list;
  for (const proto::ShardInfo* shard : shards) {
    if (shard == nullptr || !known || shard->server() != server_index_ || shard->lane() != env_.lane) continue;
    Replication::Owned& one = owned[shard->shard()];
    one.info = shard;
    list.push_back(std::move(one));
  }
  replication_.Update(server_index_, plan, list);
  if (!known) return absl::OkStatus();
  return forwarding_.Update(plan, shards, ways, server_index_);
}

void Job::Own(uint32_t index, uint32_t term) {
  Partition& partition = *partitions_[index];
  if (!partition.owner()) {
    // Promoted: what it has not got whole is sent again by those who wait for an answer.
    env_.receiver->ForgetPartition(index, number_);
    incoming_.erase(index);
    partition.set_owner(true);
    ++env_.counters->promoted;
  }
  partition.set_term(term);
}

// The rounds that it has closed, and nothing of the open one: whose parts those are sends them to the new owner.
absl::Status Job::Demote(const proto::TensorInfo& tensor, int position, uint32_t index) {
  SLUICE_ASSIGN_OR_RETURN(const ReplicaMessage message, partitions_[index]->Save());
  SLUICE_ASSIGN_OR_RETURN(const ReplicaParts parts, ParseReplicaMessage(message.bytes));
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Partition> copy, MakePartition(tensor, position));
  copy->set_owner(false);
  SLUICE_RETURN_IF_ERROR(copy->Load(parts.head, parts.bulk));
  DropPartition(index);
  partitions_[index] = std::move(copy);
  return absl::OkStatus();
}

void Job::TakeCopy(const proto::ShardInfo& shard, const proto::BackupInfo& backup, uint32_t index) {
  partitions_[index]->set_owner(false);
  partitions_[index]->set_term(shard.term());
  Incoming& incoming = incoming_[index];
  if (incoming.term == shard.term() && incoming.since == backup.since() && incoming.owner == shard.server()) return;
  // Another stream, which begins with the state; until that is whole the copy is what it was.
  env_.receiver->ForgetPartition(index, number_);
  incoming = Incoming{shard.server(), shard.term(), backup.since(), 0, {}};
}

absl::StatusOr<std::unique_ptr<Partition>> Job::MakePartition(const proto::TensorInfo& tensor, int position) {
  PartitionShape shape;
  shape.tensor = tensor.tensor();
  shape.partition = tensor.first_partition() + static_cast<uint32_t>(position);
  shape.position = static_cast<uint32_t>(position);
  shape.elements = tensor.partition_elements(position);
  shape.name = tensor.spec().name();
  shape.kind = tensor.spec().kind();
  shape.priority = tensor.spec().priority();
  if (tensor.spec().has_table()) return MakeSegment(tensor, std::move(shape));
  if (shape.elements == 0 || shape.elements > env_.max_message_bytes / sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", shape.name, "' partition ", position, " has ", shape.elements, " elements; this server takes 1 to ",
        env_.max_message_bytes / sizeof(float), ": raise its data.pool_bytes or lower job.partition_bytes"));
  }
  std::unique_ptr<compression::Codec> reply_codec;
  if (context_.semantics->reply == proto::REPLY_CHANGE) {
    SLUICE_ASSIGN_OR_RETURN(reply_codec, context_.semantics->ReplyCodec(tensor.spec()));
  }
  return DensePartition::Create(shape, std::move(reply_codec), &context_);
}

absl::StatusOr<std::unique_ptr<Partition>> Job::MakeSegment(const proto::TensorInfo& tensor, PartitionShape shape) {
  const proto::TableSpec& spec = tensor.spec().table();
  if (spec.dim() == 0 || spec.dim() != shape.elements || spec.dim() > env_.max_message_bytes / (2 * sizeof(float))) {
    return absl::InvalidArgumentError(absl::StrCat("table '", shape.name, "' has rows of ", spec.dim(),
                                                   " values; this server takes 1 to ",
                                                   env_.max_message_bytes / (2 * sizeof(float)), ": raise its data.pool_bytes"));
  }
  const auto segments = static_cast<uint32_t>(tensor.partition_shard_size());
  SegmentLimits limits;
  // By the plan alone, so that every owner of a segment evicts the same rows.
  if (spec.max_rows() != 0) limits.max_rows = std::max<uint64_t>(1, spec.max_rows() / segments);
  if (spec.max_bytes_per_server() != 0) {
    limits.max_bytes = std::max<uint64_t>(1, spec.max_bytes_per_server() * servers_ / segments);
  }
  return TablePartition::Create(shape, spec, segments, limits, &context_);
}

void Job::DropPartition(uint32_t index) {
  env_.receiver->ForgetPartition(index, number_);
  incoming_.erase(index);
  // The logs go by pointer; the Update that follows names those that are left.
  replication_.Forget(index);
  partitions_[index].reset();
}

absl::Status Job::TakeCoordinator(const proto::Plan& plan) {
  if (VerdictBytes(tensor_kinds_.size()) > env_.max_slotless_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor_kinds_.size(), " tensors are too many for step-wide decisions (clipping, skipping, lamb): a verdict must "
        "fit ", env_.max_slotless_bytes, " bytes"));
  }
  const auto at = std::ranges::find_if(
      plan.servers(), [&](const proto::ServerInfo& s) { return s.server() == plan.coordinator_server(); });
  if (at == plan.servers().end() || at->lanes_size() == 0) return absl::OkStatus();   // still forming
  const std::pair life{at->server(), at->incarnation()};
  const bool another = coordinator_life_.has_value() && *coordinator_life_ != life;
  coordinator_life_ = life;
  coordinator_address_.reset();
  if (at->id() != env_.id || env_.lane != 0) {
    coordinator_address_ = at->lanes(0);
    coordinator_.reset();
    if (another) Resubmit();
    return absl::OkStatus();
  }
  if (coordinator_ == nullptr) {
    StepRules rules;
    rules.clip_norm = context_.semantics->clip_norm;
    rules.layerwise = context_.semantics->layerwise;
    rules.rate_bits = [this](uint64_t step) { return context_.semantics->RateBits(step); };
    rules.trust = [this](uint32_t tensor, double parameters, double update) {
      return context_.semantics->optimizer(tensor_kinds_[tensor]).TrustRatio({parameters, update});
    };
    coordinator_ = std::make_unique<Coordinator>(std::move(rules));
  }
  std::vector<uint32_t> tensor_of;
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    const size_t end = tensor.first_partition() + static_cast<size_t>(tensor.partition_elements_size());
    if (tensor_of.size() < end) tensor_of.resize(end);
    std::fill(tensor_of.begin() + tensor.first_partition(), tensor_of.begin() + static_cast<ptrdiff_t>(end),
              tensor.spec().has_table() ? Coordinator::kNoTensor : tensor.tensor());
  }
  coordinator_->SetLayout(std::move(tensor_of));
  if (another) Resubmit();
  return absl::OkStatus();
}

void Job::Resubmit() {
  for (const auto& partition : partitions_) {
    if (partition != nullptr && partition->owner()) partition->Resubmit();
  }
}

}  // namespace sluice::server
