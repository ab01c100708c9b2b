#include "worker/train/sparse_training.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "transport/wire.h"
#include "worker/train/status.h"

namespace sluice::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTestChunk = 4096;  // examples
constexpr size_t kHashedRows = size_t{1} << 16;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

SparseTraining::SparseTraining(const TrainOptions& options, SnapshotPolicy snapshots, SparseTask* task, Client* client,
                               StopSignal* stop)
    : options_(options),
      snapshots_(snapshots),
      task_(task),
      client_(client),
      stop_(stop),
      log_(absl::StrCat("worker ", client->rank())),
      logistic_(options.sparse.loss == "logistic"),
      ahead_(1 + static_cast<uint64_t>(options.sparse.prefetch)),
      dim_(task->model->dim()),
      gather_(client),
      slots_(ahead_ + 1),
      pushed_(ahead_) {}

absl::StatusOr<SparseTrainResult> SparseTraining::Run() {
  SLUICE_ASSIGN_OR_RETURN(
      sampler_, ShareSampler::Create(task_->train.rows(), task_->epoch_examples, static_cast<uint32_t>(options_.batch),
                                     static_cast<uint32_t>(client_->rank()), static_cast<uint64_t>(options_.seed)));
  if (sampler_->batch() < static_cast<uint32_t>(options_.batch)) {
    log_.Info("takes batches of ", sampler_->batch(), " examples, as there are no more a worker");
  }
  SLUICE_ASSIGN_OR_RETURN(ProgressWriter progress, ProgressWriter::Open(options_.progress));
  progress_.emplace(std::move(progress));
  total_steps_ = TotalSteps(options_, sampler_->steps_per_epoch());
  SLUICE_RETURN_IF_ERROR(Register());
  registered_ = true;
  SLUICE_RETURN_IF_ERROR(Begin());
  started_ = reported_ = Clock::now();
  for (;;) {
    if (EvaluationIsDue()) {
      SLUICE_RETURN_IF_ERROR(Evaluate());
      // Not at the end: whoever comes back then is to have the result.
      if (snapshots_.on && next_step_ < total_steps_) SLUICE_RETURN_IF_ERROR(Save());
    }
    if (next_step_ >= total_steps_) break;
    SLUICE_RETURN_IF_ERROR(Step(next_step_));
    ++next_step_;
    if (next_step_ % sampler_->steps_per_epoch() == 0) {
      log_.Info("epoch ", next_step_ / sampler_->steps_per_epoch(), " has ended at step ", next_step_, " of ",
                total_steps_);
    }
    if (snapshots_.on && next_step_ % snapshots_.every == 0) SLUICE_RETURN_IF_ERROR(Save());
    if (!EvaluationIsDue()) SLUICE_RETURN_IF_ERROR(Report(/*always=*/false));
    if (stop_->stopped()) {
      SLUICE_RETURN_IF_ERROR(WaitForAll());
      if (snapshots_.on) SLUICE_RETURN_IF_ERROR(Save());
      return absl::CancelledError(absl::StrCat("ended by a signal after step ", next_step_, " of ", total_steps_));
    }
  }
  SLUICE_RETURN_IF_ERROR(WaitForAll());
  if (!evaluation_.has_value()) {
    SLUICE_ASSIGN_OR_RETURN(evaluation_, Gathered());
  }
  return MakeResult();
}

absl::Status SparseTraining::Register() {
  SLUICE_RETURN_IF_ERROR(gather_.Register(SparseScores::Numbers()));
  Result<Tensor> bias = client_->RegisterTensor({.name = "bias", .shape = {1}, .kind = TensorKind::kBias});
  if (!bias.ok()) return ToAbsl(bias.status());
  bias_tensor_ = *bias;
  Result<Table> table = client_->RegisterTable(
      WeightsTable(options_.sparse, options_.model, static_cast<uint32_t>(dim_), static_cast<uint64_t>(options_.seed)));
  if (!table.ok()) return ToAbsl(table.status());
  table_ = *table;
  return absl::OkStatus();
}

void SparseTraining::Gather(uint64_t step) {
  if (step >= total_steps_) return;
  Slot& slot = SlotOf(step);
  slot.batch = slot.buffer.Gather(task_->train, sampler_->Batch(step));
}

void SparseTraining::Pull(uint64_t step) {
  if (step >= total_steps_) return;
  Slot& slot = SlotOf(step);
  slot.rows.resize(slot.batch.ids.size() * dim_);
  if (!slot.rows.empty()) slot.pull = client_->PullRows(table_, slot.batch.ids, slot.rows);
}

void SparseTraining::PullAhead() {
  for (uint64_t k = 0; k <= ahead_; ++k) Gather(next_step_ + k);
  for (uint64_t k = 0; k < ahead_; ++k) Pull(next_step_ + k);
}

absl::Status SparseTraining::Step(uint64_t step) {
  Slot& slot = SlotOf(step);
  Pushed& pushed = PushedBefore(step);
  SLUICE_RETURN_IF_ERROR(WaitFor(&slot.pull));
  SLUICE_RETURN_IF_ERROR(WaitFor(&pushed.rows_push));
  SLUICE_RETURN_IF_ERROR(WaitFor(&pushed.bias_push));

  const size_t rows = slot.batch.rows();
  gradients_.resize(slot.rows.size());
  const double loss =
      task_->model->LossAndGradient(slot.batch, slot.rows, pushed.bias[0], gradients_, &pushed.gradient[0]);
  if (rows < sampler_->batch()) {
    // The mean over a short batch would give its examples more weight than others have.
    const float part = static_cast<float>(rows) / static_cast<float>(sampler_->batch());
    for (float& value : gradients_) value *= part;
    pushed.gradient[0] *= part;
  }
  for (uint64_t k = 1; k < ahead_; ++k) SLUICE_RETURN_IF_ERROR(WaitFor(&SlotOf(step + k).pull));
  pushed.rows_push = client_->PushRows(table_, slot.batch.ids, gradients_);
  pushed.bias_push = client_->PushPull(bias_tensor_, pushed.gradient, pushed.bias);
  Pull(step + ahead_);
  Gather(step + ahead_ + 1);

  loss_since_report_ += loss * static_cast<double>(rows);
  examples_since_report_ += rows;
  examples_ += rows;
  ++steps_since_report_;
  return absl::OkStatus();
}

absl::Status SparseTraining::WaitFor(std::optional<Handle>* handle) {
  if (!handle->has_value()) return absl::OkStatus();
  const Result<OpInfo> info = (*handle)->Wait();
  handle->reset();
  return ToAbsl(info.status());
}

absl::Status SparseTraining::WaitForAll() {
  for (Slot& slot : slots_) SLUICE_RETURN_IF_ERROR(WaitFor(&slot.pull));
  for (Pushed& pushed : pushed_) {
    SLUICE_RETURN_IF_ERROR(WaitFor(&pushed.rows_push));
    SLUICE_RETURN_IF_ERROR(WaitFor(&pushed.bias_push));
  }
  return absl::OkStatus();
}

uint64_t SparseTraining::EvaluationsBefore(uint64_t step) const {
  const uint64_t every = sampler_->steps_per_epoch() * static_cast<uint64_t>(options_.eval_every);
  const uint64_t until = std::min(step, total_steps_ - 1);  // the last step's is there in any case
  return (every > 0 ? until / every : 0) + (step >= total_steps_ ? 1 : 0);
}

absl::Status SparseTraining::Evaluate() {
  SLUICE_RETURN_IF_ERROR(WaitForAll());
  const Clock::time_point begun = Clock::now();
  seconds_ += Seconds(begun - started_);
  SLUICE_ASSIGN_OR_RETURN(SparseScores scores, Score());
  if (next_step_ >= total_steps_) {
    SLUICE_ASSIGN_OR_RETURN(scores.hash, HashRows());
  }
  SLUICE_RETURN_IF_ERROR(gather_.Gather(scores.ToNumbers()));
  SLUICE_ASSIGN_OR_RETURN(evaluation_, Gathered());
  if (evaluation_->not_numbers > 0) {
    log_.Warn(evaluation_->not_numbers, " of ", evaluation_->examples, " test examples have no score (NaN)");
  }
  reported_ += Clock::now() - begun;  // the time of an evaluation is not that of steps
  started_ = Clock::now();
  return Report(/*always=*/true);
}

absl::StatusOr<SparseEvaluation> SparseTraining::Gathered() const {
  std::vector<std::span<const uint64_t>> parts;
  for (size_t rank = 0; rank < gather_.ranks(); ++rank) parts.push_back(gather_.of(rank));
  return Together(logistic_, parts);
}

absl::StatusOr<SparseScores> SparseTraining::Score() {
  SparseScores scores(logistic_);
  const SparseDataset& test = task_->test;
  std::vector<uint32_t> rows;
  const auto begin_chunk = [&](size_t begin) {
    if (begin >= test.rows()) return;
    Slot& slot = test_slots_[begin / kTestChunk % 2];
    rows.resize(std::min(kTestChunk, test.rows() - begin));
    std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(begin));
    slot.batch = slot.buffer.Gather(test, rows);
    slot.rows.resize(slot.batch.ids.size() * dim_);
    if (!slot.rows.empty()) slot.pull = client_->PullRows(table_, slot.batch.ids, slot.rows);
  };
  begin_chunk(0);
  std::vector<float> outputs;
  for (size_t begin = 0; begin < test.rows(); begin += kTestChunk) {
    begin_chunk(begin + kTestChunk);
    Slot& slot = test_slots_[begin / kTestChunk % 2];
    SLUICE_RETURN_IF_ERROR(WaitFor(&slot.pull));
    outputs.resize(slot.batch.rows());
    task_->model->Outputs(slot.batch, slot.rows, NewestBias(), outputs);
    scores.Add(outputs, slot.batch.labels);
  }
  return scores;
}

absl::StatusOr<uint64_t> SparseTraining::HashRows() {
  std::vector<uint64_t> ids = task_->train.ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  ids_ = ids.size();
  ids.resize(std::min(ids.size(), kHashedRows));
  hashed_rows_.resize(ids.size() * dim_);
  if (!ids.empty()) {
    std::optional<Handle> pull = client_->PullRows(table_, ids, hashed_rows_);
    SLUICE_RETURN_IF_ERROR(WaitFor(&pull));
  }
  hashed_rows_.push_back(NewestBias());
  return transport::HashBytes(std::as_bytes(std::span(hashed_rows_)));
}

absl::Status SparseTraining::Report(bool always) {
  const Clock::time_point now = Clock::now();
  if (!always && now - reported_ < std::chrono::milliseconds(options_.report_ms)) return absl::OkStatus();
  const double seconds = Seconds(now - reported_);
  SparseProgressLine line;
  line.epoch = next_step_ == 0 ? 1 : (next_step_ - 1) / sampler_->steps_per_epoch() + 1;
  line.step = next_step_;
  line.steps = total_steps_;
  line.step_ms = seconds * 1000 / static_cast<double>(std::max<uint64_t>(steps_since_report_, 1));
  if (seconds > 0) line.examples_per_s = static_cast<double>(examples_since_report_) / seconds;
  if (examples_since_report_ > 0) line.loss = loss_since_report_ / static_cast<double>(examples_since_report_);
  if (always && evaluation_->examples > 0) {
    line.test_auc = evaluation_->auc;
    line.test_loss = evaluation_->loss;
  }
  const ClientStats stats = client_->stats();
  line.push_wire_bytes = stats.push_wire_bytes;
  line.push_raw_bytes = stats.push_raw_bytes;
  line.pull_wire_bytes = stats.pull_wire_bytes;
  line.rate = client_->rate();
  loss_since_report_ = 0;
  examples_since_report_ = steps_since_report_ = 0;
  reported_ = now;
  return progress_->Write(ToJson(line));
}

SparseTrainResult SparseTraining::MakeResult() const {
  SparseTrainResult result;
  result.rank = static_cast<uint32_t>(client_->rank());
  result.auc = evaluation_->auc;
  result.auc_error = evaluation_->auc_error;
  result.logloss = evaluation_->loss;
  result.test_examples = evaluation_->examples;
  result.seconds = seconds_;
  result.steps = total_steps_;
  result.examples = examples_;
  if (seconds_ > 0) result.examples_per_s = static_cast<double>(examples_) / seconds_;
  result.ids = ids_;
  result.malformed = task_->train.malformed + task_->test.malformed;
  const ClientStats stats = client_->stats();
  result.wire_bytes_push = stats.push_wire_bytes;
  result.wire_bytes_pull = stats.pull_wire_bytes;
  result.transport = stats.transport;
  result.params_hash = evaluation_->hash;
  return result;
}

}  // namespace sluice::worker
