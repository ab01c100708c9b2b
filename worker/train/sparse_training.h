// The training loop of the sparse models, on the public client library alone: the rows in the table "weights", the bias
// in a tensor of one element.
//
//   1. Register   the table, the bias, and what evaluations gather (worker/train/job_gather.h).
//   2. Begin      from the snapshot; else, where the job begins, from the broadcast bias (0); else at the step that the
//                 job has reached. Then all workers make sure that they train on the same data in the same way.
//   3. Step s     waits for its rows, computes, waits for the rows of the steps that are pulled ahead, pushes the rows'
//                 gradients and the bias's, and asks for the rows of step s + ahead. While those are on their way, the
//                 batch after them is put together.
//   4. Snapshot   (data.snapshot_dir) when all that step s has begun is done, with the rows of the steps to come.
//   5. Evaluate   at the end of epochs and of the training: every worker its share of the test data.
//
// What step s computes with. `ahead` is 1, and 2 with --prefetch=1. The rows of step s are asked for after the pushes
// of step s - ahead and have arrived before those of the step after it are sent, so under BSP they are those of exactly
// s - ahead + 1 rounds, however fast anybody is; the bias is kept as long as that, and has the same age. A worker that
// comes back computes with the rows in its snapshot and not with new ones, as the servers may hold its next push
// already.
// Step s is round s of the table and round s + 1 of the bias, whose round 0 is the broadcast.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/log.h"
#include "worker/client.h"
#include "worker/model/sparse_batch.h"
#include "worker/train/job_gather.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/share_sampler.h"
#include "worker/train/sparse_evaluation.h"
#include "worker/train/sparse_task.h"
#include "worker/train/stop.h"
#include "worker/train/training.h"

namespace sluice::worker {

class SparseTraining {
 public:
  // All of them outlive the training.
  SparseTraining(const TrainOptions& options, SnapshotPolicy snapshots, SparseTask* task, Client* client,
                 StopSignal* stop);

  // CANCELLED if a signal ended it: a restart goes on from there. After an error the client must end before this does.
  absl::StatusOr<SparseTrainResult> Run();
  // The job has this worker's tensors: what fails from then on is the training's doing.
  bool registered() const { return registered_; }

 private:
  // A step to come: its batch and the rows of it. `rows` is Sluice's while `pull` runs.
  struct Slot {
    SparseBatchBuffer buffer;
    SparseBatch batch;
    std::vector<float> rows;
    std::optional<Handle> pull;
  };
  // A step that has been computed, until its pushes are answered; then the bias that step + ahead_ computes with.
  struct Pushed {
    float bias[1] = {0};  // Sluice's while `bias_push` runs, as is the gradient
    float gradient[1] = {0};
    std::optional<Handle> rows_push, bias_push;
  };

  absl::Status Register();
  absl::Status Begin();
  absl::Status Join(uint64_t bias_round);
  absl::Status Agree();
  absl::Status Restore(std::span<const std::byte> state);
  absl::Status Save();
  absl::Status Step(uint64_t step);
  absl::Status Evaluate();
  // This worker's share of the test data, in chunks: the rows of one are on their way while another is scored.
  absl::StatusOr<SparseScores> Score();
  // Of up to kHashedRows rows of this worker's share, those with the smallest ids, and of the bias.
  absl::StatusOr<uint64_t> HashRows();
  absl::Status Report(bool always);
  SparseTrainResult MakeResult() const;

  Slot& SlotOf(uint64_t step) { return slots_[step % slots_.size()]; }
  Pushed& PushedBefore(uint64_t step) { return pushed_[step % ahead_]; }  // what step `step` takes its bias from
  float NewestBias() { return pushed_[next_step_ == 0 ? 0 : (next_step_ - 1) % ahead_].bias[0]; }
  void Gather(uint64_t step);
  void Pull(uint64_t step);
  void PullAhead();
  absl::Status WaitFor(std::optional<Handle>* handle);
  absl::Status WaitForAll();
  // Evaluations that are due before step `step`.
  uint64_t EvaluationsBefore(uint64_t step) const;
  bool EvaluationIsDue() const { return 1 + EvaluationsBefore(next_step_) > gather_.done(); }
  absl::StatusOr<SparseEvaluation> Gathered() const;

  const TrainOptions& options_;
  const SnapshotPolicy snapshots_;
  SparseTask* const task_;
  Client* const client_;
  StopSignal* const stop_;
  const Logger log_;
  const bool logistic_;
  const uint64_t ahead_;  // steps that rows are pulled before they are used
  const size_t dim_;

  Table table_;
  Tensor bias_tensor_;
  JobGather gather_;
  std::optional<ShareSampler> sampler_;
  std::optional<ProgressWriter> progress_;
  uint64_t next_step_ = 0, total_steps_ = 0;
  bool registered_ = false;
  std::string why_no_snapshot_;  // for the warning, should the job be in its course

  std::vector<Slot> slots_;     // ahead + 1: of the step that runs and of those to come
  std::vector<Pushed> pushed_;  // ahead
  std::vector<float> gradients_;

  Slot test_slots_[2];
  std::vector<float> hashed_rows_;
  std::optional<SparseEvaluation> evaluation_;  // the newest
  uint64_t ids_ = 0;                            // different ones in this worker's share

  double loss_since_report_ = 0;  // sum over examples
  uint64_t examples_since_report_ = 0, steps_since_report_ = 0, examples_ = 0;
  std::chrono::steady_clock::time_point started_, reported_;
  double seconds_ = 0;
};

}  // namespace sluice::worker
