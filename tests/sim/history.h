// What a simulated run did, in order: each push as it was encoded, each contribution that a server took, each round that
// it applied, each result that a worker got. The checker and the reference read nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "proto/plan.pb.h"
#include "server/core.h"
#include "worker/core.h"

namespace sluice::sim {

using Bytes = std::vector<std::byte>;

// A worker has encoded a push.
struct Encoded {
  uint32_t rank, incarnation, partition;
  uint64_t round;
  uint16_t codec;
  std::vector<float> gradient;  // empty: a push of nothing
  Bytes payload;
};

// A server has taken a push, as its partition's owner or as a node of an aggregation tree.
struct Contribution {
  uint32_t server, lane;
  uint32_t rank, incarnation, tensor, partition;
  uint64_t round;
  uint16_t codec, flags;
  uint32_t elements;
  Bytes payload;
};

// A server has closed a round.
struct Round {
  uint32_t server, lane;
  uint32_t tensor, partition, term;
  uint64_t round;
  std::vector<uint32_t> contributors;
  bool skipped, assigned;
  bool backup;               // by a copy, which was told so
  double scale, trust;
  uint32_t rate_bits;
  std::vector<float> value;  // a table's: of the rows that were pushed, after the round
  Bytes reply;
  std::vector<int32_t> nesting;   // RoundRecord::nesting
};

// The answer to a push has arrived at a worker.
struct Result {
  uint32_t rank, incarnation, partition;
  uint64_t round;
  std::vector<float> value;  // empty: not asked for
  uint16_t flags = 0;        // of its header
};

// A life that goes on without anything of the one before takes part in this tensor from this round on.
struct Joined {
  uint32_t rank, incarnation, tensor;
  uint64_t round;
};

// The answer to a pull of a whole tensor.
struct Pulled {
  uint32_t rank, tensor;
  uint64_t round;  // rounds that this worker knew to be applied
  std::vector<float> value;
};

// The answer to a pull of rows.
struct PulledRows {
  uint32_t rank, tensor;
  uint64_t round;  // rounds of the table that this worker had pushed
  std::vector<uint64_t> ids;
  std::vector<float> values;
};

// A trainer has pushed rows: what it handed over, duplicates and all.
struct PushedRows {
  uint32_t rank, tensor;
  uint64_t round;
  std::vector<uint64_t> ids;
  std::vector<float> gradients;
};

using Event = std::variant<Encoded, Contribution, Round, Result, Pulled, PulledRows, PushedRows, Joined>;

struct History {
  proto::Plan plan;  // the last one: configuration, tensors, shards
  std::vector<Event> events;
};

// A partition as the plan lays it out.
struct PartitionLayout {
  bool table = false;
  uint32_t segments = 0;   // of the whole table
  uint32_t tensor = 0, position = 0, server = 0, lane = 0, term = 0;
  uint64_t offset = 0, elements = 0;
  uint64_t columns = 1;    // of the tensor as a matrix: all extents but the first
};
std::vector<PartitionLayout> LayoutOf(const proto::Plan& plan);  // by job-wide index

std::string Describe(const Event& event);  // one line

// Writes the events of one server lane. clock is not needed: events are in order.
class ServerRecorder final : public server::ServerObserver {
 public:
  ServerRecorder(uint32_t server, uint32_t lane, History* history) : server_(server), lane_(lane), history_(history) {}
  void OnContribution(const server::ContributionRecord& record) override;
  void OnRound(const server::RoundRecord& record) override;

 private:
  const uint32_t server_, lane_;
  History* const history_;
};

// Writes the events of one life of a worker.
class WorkerRecorder final : public worker::WorkerObserver {
 public:
  WorkerRecorder(uint32_t rank, uint32_t incarnation, History* history)
      : rank_(rank), incarnation_(incarnation), history_(history) {}
  void OnEncoded(uint32_t partition, uint64_t round, uint16_t codec, std::span<const float> gradient,
                 ConstBytes payload) override;
  void OnResult(uint32_t partition, uint64_t round, uint16_t flags, std::span<const float> value) override;

 private:
  const uint32_t rank_, incarnation_;
  History* const history_;
};

}  // namespace sluice::sim
