// Every worker's numbers at every worker, exactly: what a job's reduction cannot do, which averages and rounds.
//
// There is a tensor for each rank, which that rank broadcasts to all; so a gather is one round of each of them,
// whatever the job's mode, optimizer and codec. A number of 64 bits travels as three whole numbers below 2^22, which
// fp32 holds exactly. The first number of each message is the gather's own, so that what a lost worker has left from an
// earlier one (job.on_worker_loss=rescale) is not taken for its part.
//
// Restarts. A snapshot between two gathers continues as that of any tensor does. A worker that comes back without one
// finds by the rounds of the tensors which parts of a torn gather are missing, and pulls the others.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/client.h"

namespace sluice::worker {

// numbers: below 2^64 each; out: three floats a number. The other way round.
void PackNumbers(std::span<const uint64_t> numbers, std::span<float> out);
void UnpackNumbers(std::span<const float> packed, std::span<uint64_t> numbers);

class JobGather {
 public:
  explicit JobGather(Client* client) : client_(client) {}
  JobGather(const JobGather&) = delete;
  JobGather& operator=(const JobGather&) = delete;

  // Before Client::RestoreSnapshot. numbers: of one worker in one gather, at most.
  absl::Status Register(size_t numbers);
  // In a life without a snapshot: finds how many gathers this worker has taken part in, and what the last ones brought.
  absl::Status Join();

  // The next one. Every worker calls it equally often.
  absl::Status Gather(std::span<const uint64_t> mine);
  // Of the last gather: as many as Register said, zeros behind those that were given; empty if the rank had no part in
  // it.
  std::span<const uint64_t> of(size_t rank) const { return parts_[rank]; }
  size_t ranks() const { return parts_.size(); }

  // How many gathers are complete: a part of a trainer's state.
  uint64_t done() const { return done_; }
  void set_done(uint64_t done) { done_ = done; }

 private:
  absl::Status Finish();

  Client* const client_;
  size_t numbers_ = 0;
  uint64_t done_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<float>> buffers_;  // of each rank; Sluice's while a gather runs
  std::vector<Handle> handles_;
  std::vector<std::vector<uint64_t>> parts_;
};

}  // namespace sluice::worker
