#include "scheduler/placement/traffic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/groups.h"
#include "base/status_macros.h"
#include "compression/policy.h"
#include "scheduler/planning/wire_ratios.h"

namespace sluice::placement {
namespace {

constexpr double kMaxBytes = 1e18;

void AddRing(const std::vector<uint32_t>& members, double bytes, Traffic* traffic) {
  for (size_t i = 0; i < members.size(); ++i) traffic->Add(members[i], members[(i + 1) % members.size()], bytes);
}

// Calls `each` with the members of every group of this kind.
template <typename F>
void ForEachGroup(const GroupAxis& group, uint32_t workers, F each) {
  std::vector<uint32_t> members(group.size);
  for (uint32_t first = 0; first < workers; ++first) {
    if (first / group.stride % group.size != 0) continue;
    for (uint32_t i = 0; i < group.size; ++i) members[i] = first + i * group.stride;
    each(members);
  }
}

absl::Status AddGroupTraffic(const proto::GroupTraffic& spec, const std::vector<GroupAxis>& groups, uint32_t workers, Traffic* traffic) {
  const auto group = std::ranges::find(groups, spec.name(), &GroupAxis::name);
  if (group == groups.end())
    return absl::InvalidArgumentError(absl::StrCat("traffic: no group \"", spec.name(), "\" in job.groups"));
  const double n = group->size, bytes = static_cast<double>(spec.bytes());
  const std::string& pattern = spec.pattern();
  if (bytes > kMaxBytes) return absl::InvalidArgumentError(absl::StrCat("traffic of group \"", spec.name(), "\": too many bytes"));
  if (pattern != "allreduce" && pattern != "allgather" && pattern != "reducescatter" && pattern != "alltoall" && pattern != "neighbours")
    return absl::InvalidArgumentError(absl::StrCat("traffic of group \"", spec.name(), "\": no pattern \"", pattern,
                                                   "\"; allreduce, allgather, reducescatter, alltoall and neighbours are possible"));
  ForEachGroup(*group, workers, [&](const std::vector<uint32_t>& members) {
    if (pattern == "alltoall") {
      traffic->AddAllToAll({.from = members, .to = members, .there = bytes / n, .back = 0});
    } else if (pattern == "neighbours") {
      for (size_t i = 0; i + 1 < members.size(); ++i) {
        traffic->Add(members[i], members[i + 1], bytes);
        traffic->Add(members[i + 1], members[i], bytes);
      }
    } else {
      AddRing(members, (pattern == "allreduce" ? 2 : 1) * (n - 1) / n * bytes, traffic);
    }
  });
  return absl::OkStatus();
}

}  // namespace

double ElementsOf(const proto::TensorSpec& tensor) {
  double elements = 1;
  for (const uint64_t dimension : tensor.shape()) elements *= static_cast<double>(dimension);
  return elements;
}

std::vector<proto::TensorSpec> DenseTensors(const proto::JobFile& job) {
  std::vector<proto::TensorSpec> tensors;
  for (const proto::TensorSpec& tensor : job.tensors())
    if (!tensor.has_table()) tensors.push_back(tensor);
  if (job.tensors().empty() && job.parameter_bytes() > 0) {
    proto::TensorSpec& all = tensors.emplace_back();
    all.set_name("parameters");
    all.add_shape(std::max<uint64_t>(1, job.parameter_bytes() / 4));
  }
  return tensors;
}

uint64_t ParameterBytes(const proto::JobFile& job) {
  if (job.tensors().empty()) return job.parameter_bytes();
  double bytes = 0;
  for (const proto::TensorSpec& tensor : DenseTensors(job)) bytes += 4 * ElementsOf(tensor);
  return static_cast<uint64_t>(std::min(bytes, kMaxBytes));
}

absl::StatusOr<JobTasks> TasksOf(const proto::JobFile& job, Exchange exchange, uint32_t servers) {
  JobTasks out;
  out.workers = std::max(1u, job.job().workers());
  out.servers = exchange == Exchange::kServers ? std::max(1u, servers) : 0;
  if (uint64_t{out.workers} + out.servers > kMaxTasks)
    return absl::InvalidArgumentError(absl::StrCat("job.workers and servers: ", uint64_t{out.workers} + out.servers, " are more than ", kMaxTasks));
  SLUICE_ASSIGN_OR_RETURN(const Groups parsed, Groups::Parse(job.job().groups(), out.workers));
  const std::vector<GroupAxis>& groups = parsed.axes();
  const double model = static_cast<double>(ParameterBytes(job));
  if (model > kMaxBytes) return absl::InvalidArgumentError("parameter_bytes: too many");

  for (uint32_t rank = 0; rank < out.workers; ++rank) out.tasks.push_back({Role::kWorker, rank});
  for (uint32_t server = 0; server < out.servers; ++server) out.tasks.push_back({Role::kServer, server});
  out.traffic = Traffic(static_cast<uint32_t>(out.tasks.size()));
  for (const GroupAxis& group : groups) out.blocks.push_back(group.stride * group.size);
  for (const proto::GroupTraffic& spec : job.traffic())
    SLUICE_RETURN_IF_ERROR(AddGroupTraffic(spec, groups, out.workers, &out.traffic));

  planning::WireRatios ratios(job.job());
  for (const proto::TensorSpec& tensor : DenseTensors(job)) ratios.Add(tensor, 4 * ElementsOf(tensor));
  out.push = ratios.push();
  out.pull = ratios.reply();
  const double push = model * out.push;
  if (!ratios.unknown().empty() || compression::UsesAuto(job.job()))
    out.notes.push_back(absl::StrCat("gradients in codec \"", job.job().codec(), "\" are counted as fp32"));
  if (exchange == Exchange::kServers) {
    Traffic::AllToAll all;
    for (uint32_t rank = 0; rank < out.workers; ++rank) all.from.push_back(rank);
    for (uint32_t server = 0; server < out.servers; ++server) all.to.push_back(out.workers + server);
    all.there = push / out.servers;
    all.back = model * out.pull / out.servers;
    out.traffic.AddAllToAll(std::move(all));
    const uint32_t copies = std::min(job.job().replicas() + 1, out.servers);   // of a shard, with its owner
    for (uint32_t first = 0; copies > 1 && first < out.servers; first += copies) {
      std::vector<uint32_t> set;
      for (uint32_t i = 0; i < copies; ++i) set.push_back(out.workers + (first + i) % out.servers);
      std::sort(set.begin(), set.end());
      out.apart.push_back(std::move(set));
    }
  } else {
    const auto data = std::ranges::find(groups, "data", &GroupAxis::name);
    const GroupAxis all{.name = "data", .size = out.workers, .stride = 1};
    ForEachGroup(data == groups.end() ? all : *data, out.workers, [&](const std::vector<uint32_t>& members) {
      const double n = static_cast<double>(members.size());
      AddRing(members, (n - 1) / n * (push + model), &out.traffic);   // reduced on one way round, gathered on the other
    });
  }
  out.traffic.Finish();
  return out;
}

}  // namespace sluice::placement
