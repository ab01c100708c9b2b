// The training loop of sluice-worker, on the public client library alone.
//
//   1. Parameters and gradients live in buffers that the transports reach without a copy.
//   2. Begin      from the snapshot; else from rank 0's initial values (Broadcast) where the job begins; else from the
//                 owners' parameters at the round that the job has reached. Step s is round s + 1: round 0 is the
//                 broadcast.
//   3. Step       backward hands each gradient over as soon as it is complete; the next step's forward waits parameter
//   by
//                 parameter, so pushes of late layers hide behind the backward pass of early ones.
//   4. Snapshot   (data.snapshot_dir) when the step's operations are done, before the next one begins.
//   5. At the end of an epoch rank 0 evaluates; at the end of the training everybody does.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/log.h"
#include "worker/client.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/sampler.h"
#include "worker/train/stop.h"
#include "worker/train/task.h"

namespace sluice::worker {

struct SnapshotPolicy {
  bool on = false;
  uint64_t every = 1;  // steps
};

class Training {
 public:
  // All of them outlive the training.
  Training(const TrainOptions& options, SnapshotPolicy snapshots, Task* task, Client* client, StopSignal* stop);

  // CANCELLED if a signal ended it: a restart goes on from there.
  absl::StatusOr<TrainResult> Run();
  // The job has this worker's tensors: what fails from then on is the training's doing.
  bool registered() const { return registered_; }

 private:
  absl::Status Register();
  absl::Status Begin();
  absl::Status BroadcastAll();
  absl::Status PullAll();
  absl::Status Restore(std::span<const std::byte> state);
  absl::Status Save();
  absl::Status Step(uint64_t step);
  absl::Status WaitFor(size_t parameter);
  absl::Status WaitForAll();
  absl::StatusOr<Evaluation> Test();
  absl::Status Report(uint64_t step, bool epoch_ended);
  std::string EpochText(uint64_t epoch, uint64_t step) const;
  uint64_t HashParameters() const;

  const TrainOptions& options_;
  const SnapshotPolicy snapshots_;
  Task* const task_;
  Client* const client_;
  StopSignal* const stop_;
  const Logger log_;
  std::vector<Tensor> tensors_;
  std::vector<Buffer> value_buffers_, gradient_buffers_;
  std::vector<std::span<float>> values_, gradients_;
  std::vector<std::span<const float>> const_values_;  // the same values, as the model reads them
  std::vector<std::optional<Handle>> pending_;
  std::optional<Sampler> sampler_;
  std::optional<ProgressWriter> progress_;
  uint64_t next_step_ = 0, total_steps_ = 0;
  bool registered_ = false;
  uint64_t skipped_steps_ = 0;
  BatchBuffer batch_;
  absl::Status hook_status_;      // of what went on inside the model's hooks
  double loss_since_report_ = 0;  // sum over the steps
  uint64_t correct_since_report_ = 0;
  uint64_t steps_since_report_ = 0;
  std::chrono::steady_clock::time_point started_, reported_;
};

}  // namespace sluice::worker
