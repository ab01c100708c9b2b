#include "scheduler/plan_builder.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compression/matrix_shape.h"
#include "compression/policy.h"
#include "google/protobuf/util/message_differencer.h"

namespace sluice::scheduler {
namespace {

const std::string& Dtype(const proto::TensorSpec& spec) {
  static const std::string* const fp32 = new std::string("fp32");
  return spec.dtype().empty() ? *fp32 : spec.dtype();
}

// The rank that has restarted with another flag may be the one that registered first: it is the job and the process that
// differ, not two ranks.
absl::Status Differs(uint32_t known_rank, const std::string& known, const proto::TensorSpec& spec, uint32_t rank,
                     const std::string& mine) {
  return absl::InvalidArgumentError(absl::StrCat(
      spec.has_table() ? "table" : "tensor", " \"", spec.name(), "\": this job has ", known,
      known_rank == rank ? absl::StrCat(" (registered by an earlier process of rank ", rank, ")")
                         : absl::StrCat(" (registered by rank ", known_rank, ")"),
      ", this process (rank ", rank, ") has ", mine,
      "; all workers must build the same model: start it with the flags of the others"));
}

// Elements of a tensor's partitions, but for the last one: as many whole rows as job.partition_bytes has room for, so that a
// partition is a matrix; of a row that does not fit, as many elements.
uint64_t ChunkOf(const proto::TensorSpec& spec, const proto::Plan& plan) {
  const uint64_t most = std::max<uint64_t>(1, plan.config().partition_bytes() / 4), row = compression::ColumnsOf(spec);
  return row > most ? most : most - most % row;
}

// Where the next partition goes: by the bytes of lanes, then of their servers, then of the lane's shards.
class Loads {
 public:
  Loads(const proto::Plan& plan, const std::vector<double>& weights) {
    std::map<std::pair<uint32_t, uint32_t>, size_t> index;  // by server, lane
    for (int i = 0; i < plan.shards_size(); ++i) {
      const proto::ShardInfo& shard = plan.shards(i);
      const auto [it, is_new] = index.emplace(std::pair(shard.server(), shard.lane()), lanes_.size());
      Server& server = servers_[shard.server()];
      if (is_new) {
        lanes_.push_back({.server = shard.server(), .bytes = 0, .shards = {}});
        server.lanes.push_back(it->second);
      }
      lanes_[it->second].bytes += shard.bytes();
      lanes_[it->second].shards.emplace(shard.bytes(), i);
      server.bytes += shard.bytes();
    }
    const bool weighted = std::any_of(servers_.begin(), servers_.end(), [&](const auto& server) {
      return server.first < weights.size() && weights[server.first] > 0;
    });
    for (auto& [index, server] : servers_) {
      if (weighted) server.weight = index < weights.size() ? weights[index] : 0;
      for (const size_t lane : server.lanes)
        lanes_[lane].weight = weighted ? server.weight / static_cast<double>(server.lanes.size()) : 1;
    }
    for (size_t lane = 0; lane < lanes_.size(); ++lane)
      if (lanes_[lane].weight > 0) order_.insert(Key(lane));
  }

  // The shard for so many bytes. There must be one.
  int Place(uint64_t bytes) {
    Lane& lane = lanes_[std::get<3>(*order_.begin())];
    Server& server = servers_[lane.server];
    for (const size_t i : server.lanes) order_.erase(Key(i));
    const auto [load, shard] = lane.shards.top();
    lane.shards.pop();
    lane.shards.emplace(load + bytes, shard);
    lane.bytes += bytes;
    server.bytes += bytes;
    for (const size_t i : server.lanes) order_.insert(Key(i));
    return shard;
  }

 private:
  using Load = std::pair<uint64_t, int>;  // bytes, shard
  struct Lane {
    uint32_t server = 0;
    uint64_t bytes = 0;
    double weight = 1;
    std::priority_queue<Load, std::vector<Load>, std::greater<Load>> shards;
  };
  struct Server {
    uint64_t bytes = 0;
    double weight = 1;
    std::vector<size_t> lanes;
  };
  // The lane's bytes by its weight, the heavier weight first, its server's bytes by its weight, its index. Bytes are exact in
  // doubles: a plan has less than 2^53.
  using LaneKey = std::tuple<double, double, double, size_t>;
  LaneKey Key(size_t index) const {
    const Lane& lane = lanes_[index];
    const Server& server = servers_.at(lane.server);
    return {static_cast<double>(lane.bytes) / lane.weight, -lane.weight, static_cast<double>(server.bytes) / server.weight, index};
  }

  std::vector<Lane> lanes_;  // in the order of their first shards
  std::map<uint32_t, Server> servers_;
  std::set<LaneKey> order_;
};

}  // namespace

void PlaceShards(uint32_t count, uint32_t term, proto::Plan* plan) {
  std::vector<std::pair<uint32_t, uint32_t>> lanes;  // (lane, server): sorted, neighbours differ in the server
  for (const proto::ServerInfo& server : plan->servers())
    for (int lane = 0; lane < server.lanes_size(); ++lane) lanes.emplace_back(lane, server.server());
  std::sort(lanes.begin(), lanes.end());
  plan->clear_shards();
  if (lanes.empty()) return;
  const uint64_t wanted = count != 0 ? count : uint64_t{kShardsPerLane} * lanes.size();
  const uint32_t shards = static_cast<uint32_t>(std::min<uint64_t>(wanted, kMaxShards));
  for (uint32_t i = 0; i < shards; ++i) {
    proto::ShardInfo* shard = plan->add_shards();
    shard->set_shard(i);
    shard->set_lane(lanes[i % lanes.size()].first);
    shard->set_server(lanes[i % lanes.size()].second);
    shard->set_term(term);
  }
}

absl::StatusOr<uint64_t> CheckSpec(const proto::TensorSpec& spec) {
  if (spec.name().empty() || spec.name().size() > kMaxTensorNameBytes)
    return absl::InvalidArgumentError(absl::StrCat("a tensor's name must have 1 to ", kMaxTensorNameBytes,
                                                   " bytes, this one has ", spec.name().size()));
  if (Dtype(spec) != "fp32")
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", spec.name(), "\" has dtype \"", spec.dtype(), "\"; fp32 is the only one yet"));
  if (spec.has_table()) {
    const proto::TableSpec& table = spec.table();
    if (spec.shape_size() != 0)
      return absl::InvalidArgumentError(absl::StrCat("table \"", spec.name(), "\" has a shape; its rows have a dim instead"));
    if (table.dim() == 0 || table.dim() > kMaxTableDim)
      return absl::InvalidArgumentError(absl::StrCat("table \"", spec.name(), "\" has rows of ", table.dim(),
                                                     " values; 1 to ", kMaxTableDim, " are possible"));
    if (table.segments() > kMaxSegments)
      return absl::InvalidArgumentError(absl::StrCat("table \"", spec.name(), "\" asks for ", table.segments(),
                                                     " segments; at most ", kMaxSegments, " are possible"));
    if (const auto codec = compression::MakeRowCodec(table.codec()); !codec.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("table \"", spec.name(), "\": ", codec.status().message()));
    return table.dim();
  }
  if (!proto::TensorKind_IsValid(spec.kind()))
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", spec.name(), "\" has the unknown kind ", spec.kind()));
  if (spec.shape_size() > 64)
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", spec.name(), "\" has ", spec.shape_size(), " dimensions; at most 64 are allowed"));
  uint64_t elements = 1;
  for (uint64_t dimension : spec.shape()) {
    if (dimension == 0)
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", spec.name(), "\" of shape ", ShapeText(spec), " has no elements"));
    if (dimension > kMaxTensorElements / elements)
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", spec.name(), "\" of shape ", ShapeText(spec),
                                                     " has more than 2^30 elements; split it into several tensors"));
    elements *= dimension;
  }
  return elements;
}

absl::Status SameSpec(const proto::TensorSpec& known, uint32_t known_rank, const proto::TensorSpec& spec,
                      uint32_t rank) {
  if (known.has_table() || spec.has_table()) {
    if (known.has_table() == spec.has_table() &&
        google::protobuf::util::MessageDifferencer::Equals(known.table(), spec.table()))
      return absl::OkStatus();
    const auto text = [](const proto::TensorSpec& s) {
      return s.has_table() ? absl::StrCat("a table {", s.table().ShortDebugString(), "}") : "a tensor";
    };
    return Differs(known_rank, text(known), spec, rank, text(spec));
  }
  if (std::equal(known.shape().begin(), known.shape().end(), spec.shape().begin(), spec.shape().end()) &&
      Dtype(known) == Dtype(spec) && known.kind() == spec.kind() && known.occasional() == spec.occasional())
    return absl::OkStatus();
  const auto text = [](const proto::TensorSpec& s) {
    return absl::StrCat(ShapeText(s), " ", proto::TensorKind_Name(s.kind()), s.occasional() ? ", not pushed in every step" : "");
  };
  return Differs(known_rank, text(known), spec, rank, text(spec));
}

uint64_t PartitionsOf(const proto::TensorSpec& spec, uint64_t elements, const proto::Plan& plan) {
  if (!spec.has_table()) {
    const uint64_t chunk = ChunkOf(spec, plan);
    return (elements + chunk - 1) / chunk;
  }
  if (spec.table().segments() != 0) return spec.table().segments();
  std::set<std::pair<uint32_t, uint32_t>> lanes;
  for (const proto::ShardInfo& shard : plan.shards()) lanes.emplace(shard.server(), shard.lane());
  const uint64_t wanted = std::max<uint64_t>(1, uint64_t{kSegmentsPerLane} * lanes.size());
  return std::clamp<uint64_t>(wanted, 1, std::max(1, plan.shards_size()));
}

absl::Status CheckRoom(const proto::Plan& plan, uint64_t tensors, uint64_t partitions) {
  tensors += static_cast<uint64_t>(plan.tensors_size());
  partitions += CountPartitions(plan);
  if (tensors <= kMaxTensors && partitions <= kMaxPartitions) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the job would have ", tensors, " tensors in ", partitions,
                                                   " partitions; at most ", kMaxTensors, " and ", kMaxPartitions,
                                                   " are allowed: raise job.partition_bytes"));
}

void AddTensor(const proto::TensorSpec& spec, uint64_t elements, proto::Plan* plan, const std::vector<double>& weights,
               proto::Exchange exchange) {
  const uint64_t chunk = ChunkOf(spec, *plan);
  const uint64_t partitions = PartitionsOf(spec, elements, *plan);
  const uint32_t first = CountPartitions(*plan);
  uint64_t segments_before = 0;
  for (const proto::TensorInfo& other : plan->tensors())
    if (other.spec().has_table()) segments_before += static_cast<uint64_t>(other.partition_shard_size());
  proto::TensorInfo* tensor = plan->add_tensors();
  tensor->set_tensor(static_cast<uint32_t>(plan->tensors_size() - 1));
  *tensor->mutable_spec() = spec;
  tensor->mutable_spec()->set_dtype(Dtype(spec));
  tensor->set_first_partition(first);
  tensor->set_exchange(exchange);
  if (exchange != proto::EXCHANGE_SERVERS) return;

  Loads loads(*plan, weights);
  for (uint64_t i = 0; i < partitions; ++i) {
    if (spec.has_table()) {
      tensor->add_partition_elements(elements);
      tensor->add_partition_shard(
          static_cast<uint32_t>((segments_before + i) % static_cast<uint64_t>(plan->shards_size())));
      continue;
    }
    const uint64_t size = std::min(chunk, elements - i * chunk);
    const int shard = loads.Place(4 * size);
    tensor->add_partition_elements(size);
    tensor->add_partition_shard(static_cast<uint32_t>(shard));
    plan->mutable_shards(shard)->set_bytes(plan->shards(shard).bytes() + 4 * size);
  }
  // Who is out has no part in them from their first round on; who joins counts as anybody.
  for (proto::WorkerInfo& worker : *plan->mutable_workers())
    if (worker.out_from_round_size() > 0 && worker.joining() == 0)
      while (worker.out_from_round_size() < static_cast<int>(CountPartitions(*plan))) worker.add_out_from_round(0);
}

uint32_t CountPartitions(const proto::Plan& plan) {
  if (plan.tensors().empty()) return 0;
  const proto::TensorInfo& last = *plan.tensors().rbegin();
  return last.first_partition() + static_cast<uint32_t>(last.partition_elements_size());
}

std::string ShapeText(const proto::TensorSpec& spec) {
  const std::string shape = spec.shape().empty() ? "scalar" : absl::StrJoin(spec.shape(), "x");
  return absl::StrCat(shape, " ", Dtype(spec));
}

}  // namespace sluice::scheduler
