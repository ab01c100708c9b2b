// What a job's tasks exchange in a step, from its job file.
//
// Ranks are in parallel groups (base/groups.h). What a group does in a step (GroupTraffic), with `bytes` a rank:
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
#include "proto/topology.pb.h"
#include "scheduler/placement/problem.h"

namespace sluice::placement {

// Without tables: nobody knows how many rows they will have. A job that gives parameter_bytes alone has one tensor, "parameters".
std::vector<proto::TensorSpec> DenseTensors(const proto::JobFile& job);
double ElementsOf(const proto::TensorSpec& tensor);
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
