// How a job takes a plan: workers, partitions of this lane, coordinator.

#include <algorithm>
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
  return absl::OkStatus();
}

absl::Status Job::TakeWorkers(const proto::Plan& plan) {
  const uint32_t world = std::max(1u, context_.semantics->config.workers());
  if (world > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("job.workers is ", world, "; at most ", kMaxWorkers, " are possible"));
  }
  context_.workers.resize(world);
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
    worker.out_from_round.assign(info.out_from_round().begin(), info.out_from_round().end());
  }
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
  std::vector<bool> owned(partitions_.size(), false);
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
      const uint32_t shard = tensor.partition_shard(i);
      if (shard >= shards.size() || shards[shard] == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("the plan does not name shard ", shard, " of tensor '",
                                                       tensor.spec().name(), "' partition ", i));
      }
      if (!known || shards[shard]->server() != server_index_ || shards[shard]->lane() != env_.lane) continue;
      const uint32_t index = tensor.first_partition() + static_cast<uint32_t>(i);
      if (index >= partitions_.size()) {
        partitions_.resize(index + 1);
        owned.resize(index + 1, false);
      }
      owned[index] = true;
      if (partitions_[index] == nullptr) SLUICE_RETURN_IF_ERROR(CreatePartition(tensor, i));
      partitions_[index]->set_term(shards[shard]->term());
    }
  }
  for (uint32_t p = 0; p < partitions_.size(); ++p) {
    if (partitions_[p] != nullptr && !owned[p]) DropPartition(p);
  }
  verdicts_.set_partitions(owned_);
  return absl::OkStatus();
}

absl::Status Job::CreatePartition(const proto::TensorInfo& tensor, int position) {
  PartitionShape shape;
  shape.tensor = tensor.tensor();
  shape.partition = tensor.first_partition() + static_cast<uint32_t>(position);
  shape.position = static_cast<uint32_t>(position);
  shape.elements = tensor.partition_elements(position);
  shape.name = tensor.spec().name();
  shape.kind = tensor.spec().kind();
  shape.priority = tensor.spec().priority();
  if (tensor.spec().has_table()) return CreateSegment(tensor, std::move(shape));
  if (shape.elements == 0 || shape.elements > env_.max_message_bytes / sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", shape.name, "' partition ", position, " has ", shape.elements, " elements; this server takes 1 to ",
        env_.max_message_bytes / sizeof(float), ": raise its data.pool_bytes or lower job.partition_bytes"));
  }
  std::unique_ptr<compression::Codec> reply_codec;
  if (context_.semantics->reply == proto::REPLY_CHANGE) {
    SLUICE_ASSIGN_OR_RETURN(reply_codec, context_.semantics->ReplyCodec(tensor.spec()));
  }
  SLUICE_ASSIGN_OR_RETURN(partitions_[shape.partition],
                          DensePartition::Create(shape, std::move(reply_codec), &context_));
  ++owned_;
  return absl::OkStatus();
}

absl::Status Job::CreateSegment(const proto::TensorInfo& tensor, PartitionShape shape) {
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
  SLUICE_ASSIGN_OR_RETURN(partitions_[shape.partition],
                          TablePartition::Create(shape, spec, segments, limits, &context_));
  return absl::OkStatus();
}

void Job::DropPartition(uint32_t index) {
  env_.receiver->ForgetPartition(index, number_);
  if (!partitions_[index]->is_table()) --owned_;
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
  coordinator_address_.reset();
  if (at->id() != env_.id || env_.lane != 0) {
    coordinator_address_ = at->lanes(0);
    coordinator_.reset();
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
  return absl::OkStatus();
}

}  // namespace sluice::server
