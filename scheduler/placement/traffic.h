// What a job's tasks exchange in a step, from its job file.
//
// Ranks in parallel groups "tensor:8,pipeline:4,data:16" (innermost first): rank = ((data*4)+pipeline)*8+tensor. A rank's
// group of a name is all ranks that differ from it in that number alone. What a group does in a step (GroupTraffic), with
// `bytes` a rank:
//
//   allreduce              a ring in the order of ranks: 2(n-1)/n bytes from each to the next
//   allgather, reducescatter   the same with (n-1)/n
//   alltoall               bytes/n from each to each
//   neighbours             bytes from each to the next and back (activations and their gradients); ends are not joined
//
// Gradients: with servers, each worker sends each server its part of the model and gets it back. With all-reduce, a ring
// over the group named "data", or over all ranks if there is none. Codecs shrink what workers send.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/topology.pb.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

struct Group {
  std::string name;
  uint32_t size = 1;
  uint32_t stride = 1;      // between neighbours: the product of the sizes of the groups inside of it
};
// INVALID_ARGUMENT: not NAME:SIZE,…, a name twice, or a product that does not divide `workers`.
absl::StatusOr<std::vector<Group>> ParseGroups(absl::string_view text, uint32_t workers);

uint64_t ParameterBytes(const proto::JobFile& job);   // fp32

enum class Exchange { kServers, kAllReduce };

struct JobTasks {
  std::vector<Task> tasks;                   // workers by rank, then servers
  uint32_t workers = 0, servers = 0;
  Traffic traffic;
  double push = 1, pull = 1;                 // bytes on the wire for one of the model's, to and from servers
  std::vector<uint32_t> blocks;              // as in Problem
  std::vector<std::vector<uint32_t>> apart;  // servers that hold copies of each other's shards
  std::vector<std::string> notes;            // what was assumed
};

// `servers`: none with kAllReduce. INVALID_ARGUMENT names the field that cannot be.
absl::StatusOr<JobTasks> TasksOf(const proto::JobFile& job, Exchange exchange, uint32_t servers);

}  // namespace sluice::placement
