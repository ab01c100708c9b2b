#include "scheduler/placement/traffic.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace sluice::placement {
namespace {

constexpr double kMaxBytes = 1e18;

// Bytes on the wire for one of fp32, where the codec says that by its name. Rough: headers and scales are left out.
double CodecRatio(absl::string_view codec, bool* known) {
  *known = true;
  const absl::string_view name = codec.substr(0, codec.find(':'));
  if (name.empty() || name == "none") return 1;
  if (name == "fp16" || name == "bf16") return 0.5;
  if (name == "int8" || name == "mxfp8") return 0.25;
  if (name == "int4") return 0.125;
  double share = 0;
  if ((name == "topk" || name == "randomk") && codec.size() > name.size() && absl::SimpleAtod(codec.substr(name.size() + 1), &share) &&
      share > 0 && share <= 0.5)
    return 2 * share;   // values and their indices
  *known = false;
  return 1;
}

void AddRing(const std::vector<uint32_t>& members, double bytes, Traffic* traffic) {
  for (size_t i = 0; i < members.size(); ++i) traffic->Add(members[i], members[(i + 1) % members.size()], bytes);
}

// Calls `each` with the members of every group of this kind.
template <typename F>
void ForEachGroup(const Group& group, uint32_t workers, F each) {
  std::vector<uint32_t> members(group.size);
  for (uint32_t first = 0; first < workers; ++first) {
    if (first / group.stride % group.size != 0) continue;
    for (uint32_t i = 0; i < group.size; ++i) members[i] = first + i * group.stride;
    each(members);
  }
}

absl::Status AddGroupTraffic(const proto::GroupTraffic& spec, const std::vector<Group>& groups, uint32_t workers, Traffic* traffic) {
  const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.name == spec.name(); });
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

absl::StatusOr<std::vector<Group>> ParseGroups(absl::string_view text, uint32_t workers) {
  std::vector<Group> groups;
  uint64_t product = 1;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    Group group;
    group.name = std::string(absl::StripAsciiWhitespace(pair.first));
    if (group.name.empty() || !absl::SimpleAtoi(pair.second, &group.size) || group.size == 0)
      return absl::InvalidArgumentError(absl::StrCat("job.groups: \"", part, "\" is not NAME:SIZE"));
    for (const Group& other : groups)
      if (other.name == group.name) return absl::InvalidArgumentError(absl::StrCat("job.groups: \"", group.name, "\" comes twice"));
    group.stride = static_cast<uint32_t>(product);
    product *= group.size;
    if (product > workers || workers % product != 0)
      return absl::InvalidArgumentError(absl::StrCat("job.groups: ", workers, " workers cannot be divided into groups of ", product,
                                                     " (\"", text, "\")"));
    groups.push_back(std::move(group));
  }
  return groups;
}

uint64_t ParameterBytes(const proto::JobFile& job) {
  if (job.tensors().empty()) return job.parameter_bytes();
  double bytes = 0;
  for (const proto::TensorSpec& tensor : job.tensors()) {
    if (tensor.has_table()) continue;   // rows: nobody knows how many
    double elements = 1;
    for (const uint64_t dimension : tensor.shape()) elements *= static_cast<double>(dimension);
    bytes += 4 * elements;
  }
  return static_cast<uint64_t>(std::min(bytes, kMaxBytes));
}

absl::StatusOr<JobTasks> TasksOf(const proto::JobFile& job, Exchange exchange, uint32_t servers) {
  JobTasks out;
  out.workers = std::max(1u, job.job().workers());
  out.servers = exchange == Exchange::kServers ? std::max(1u, servers) : 0;
  if (uint64_t{out.workers} + out.servers > kMaxTasks)
    return absl::InvalidArgumentError(absl::StrCat("job.workers and servers: ", uint64_t{out.workers} + out.servers, " are more than ", kMaxTasks));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Group> groups, ParseGroups(job.job().groups(), out.workers));
  const double model = static_cast<double>(ParameterBytes(job));
  if (model > kMaxBytes) return absl::InvalidArgumentError("parameter_bytes: too many");

  for (uint32_t rank = 0; rank < out.workers; ++rank) out.tasks.push_back({Role::kWorker, rank});
  for (uint32_t server = 0; server < out.servers; ++server) out.tasks.push_back({Role::kServer, server});
  out.traffic = Traffic(static_cast<uint32_t>(out.tasks.size()));
  for (const Group& group : groups) out.blocks.push_back(group.stride * group.size);
  for (const proto::GroupTraffic& spec : job.traffic())
    SLUICE_RETURN_IF_ERROR(AddGroupTraffic(spec, groups, out.workers, &out.traffic));

  bool known = true;
  out.push = CodecRatio(job.job().codec(), &known);
  out.pull = job.job().reply() == proto::REPLY_CHANGE ? 0.5 : 1;   // fp16, the default of job.reply_codec
  const double push = model * out.push;
  if (!known) out.notes.push_back(absl::StrCat("gradients in codec \"", job.job().codec(), "\" are counted as fp32"));
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
    const auto data = std::find_if(groups.begin(), groups.end(), [](const Group& g) { return g.name == "data"; });
    const Group all{.name = "data", .size = out.workers, .stride = 1};
    ForEachGroup(data == groups.end() ? all : *data, out.workers, [&](const std::vector<uint32_t>& members) {
      const double n = static_cast<double>(members.size());
      AddRing(members, (n - 1) / n * (push + model), &out.traffic);   // reduced on one way round, gathered on the other
    });
  }
  out.traffic.Finish();
  return out;
}

}  // namespace sluice::placement
