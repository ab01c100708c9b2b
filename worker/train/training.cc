#include "worker/train/training.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "transport/wire.h"
#include "worker/train/saved_settings.h"
#include "worker/train/status.h"

namespace sluice::worker {
namespace {

using Clock = std::chrono::steady_clock;

// The trainer's part of a snapshot: u32 version, u32 parameters, u64 next step, u64 skipped steps; the settings that
// decide what is computed: u64 seed, u64 batch, u64 epochs, u64 steps, u64 examples in the data; then the values.
constexpr uint32_t kStateVersion = 2;
constexpr size_t kStateHeader = 64;

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Training::Training(const TrainOptions& options, SnapshotPolicy snapshots, Task* task, Client* client, StopSignal* stop)
    : options_(options),
      snapshots_(snapshots),
      task_(task),
      client_(client),
      stop_(stop),
      log_(absl::StrCat("worker ", client->rank())) {}

absl::StatusOr<TrainResult> Training::Run() {
  SLUICE_ASSIGN_OR_RETURN(
      sampler_, Sampler::Create(task_->train.rows, static_cast<uint32_t>(options_.batch),
                                static_cast<uint32_t>(client_->world_size()), static_cast<uint32_t>(client_->rank()),
                                static_cast<uint64_t>(options_.seed)));
  SLUICE_ASSIGN_OR_RETURN(ProgressWriter progress, ProgressWriter::Open(options_.progress));
  progress_.emplace(std::move(progress));
  total_steps_ = TotalSteps(options_, sampler_->steps_per_epoch());
  if (total_steps_ < static_cast<uint64_t>(options_.steps)) {
    log_.Warn("--epochs=", options_.epochs, " ends the training after ", total_steps_, " steps, before --steps=",
              options_.steps);
  }
  SLUICE_RETURN_IF_ERROR(Register());
  registered_ = true;
  SLUICE_RETURN_IF_ERROR(Begin());
  started_ = reported_ = Clock::now();
  while (next_step_ < total_steps_) {
    SLUICE_RETURN_IF_ERROR(Step(next_step_));
    ++next_step_;
    if (snapshots_.on && next_step_ % snapshots_.every == 0) {
      SLUICE_RETURN_IF_ERROR(WaitForAll());
      SLUICE_RETURN_IF_ERROR(Save());
    }
    SLUICE_RETURN_IF_ERROR(Report(next_step_, next_step_ % sampler_->steps_per_epoch() == 0));
    if (stop_->stopped()) {
      SLUICE_RETURN_IF_ERROR(WaitForAll());
      if (snapshots_.on) SLUICE_RETURN_IF_ERROR(Save());
      return absl::CancelledError(absl::StrCat("ended by a signal after step ", next_step_, " of ", total_steps_));
    }
  }
  SLUICE_RETURN_IF_ERROR(WaitForAll());

  TrainResult result;
  result.seconds = Seconds(Clock::now() - started_);
  SLUICE_ASSIGN_OR_RETURN(const Evaluation test, Test());
  result.rank = static_cast<uint32_t>(client_->rank());
  result.test_accuracy = test.accuracy;
  result.test_loss = test.loss;
  result.steps = total_steps_;
  result.skipped_steps = skipped_steps_;
  const ClientStats stats = client_->stats();
  result.wire_bytes_push = stats.push_wire_bytes;
  result.wire_bytes_pull = stats.pull_wire_bytes;
  result.transport = stats.transport;
  result.params_hash = HashParameters();
  return result;
}

absl::Status Training::Register() {
  std::vector<TensorSpec> specs;
  for (const ParameterSpec& parameter : task_->model->parameters()) {
    specs.push_back({.name = parameter.name,
                     .shape = parameter.shape,
                     .kind = parameter.kind == ParameterKind::kBias ? TensorKind::kBias : TensorKind::kWeight});
    for (std::vector<Buffer>* buffers : {&value_buffers_, &gradient_buffers_}) {
      Result<Buffer> buffer = client_->AllocateBuffer(parameter.size());
      if (!buffer.ok()) return ToAbsl(buffer.status());
      (buffers == &value_buffers_ ? values_ : gradients_).push_back(buffer->values());
      buffers->push_back(std::move(*buffer));
    }
  }
  const_values_.assign(values_.begin(), values_.end());
  pending_.resize(specs.size());
  Result<std::vector<Tensor>> tensors = client_->RegisterTensors(specs);
  if (!tensors.ok()) return ToAbsl(tensors.status());
  tensors_ = std::move(*tensors);
  return absl::OkStatus();
}

absl::Status Training::Begin() {
  Result<std::optional<std::vector<std::byte>>> state = client_->RestoreSnapshot();
  if (state.ok() && state->has_value()) return Restore(**state);
  uint64_t round = UINT64_MAX;
  for (const Tensor& tensor : tensors_) round = std::min(round, client_->NextRound(tensor));
  task_->model->Initialize(static_cast<uint64_t>(options_.seed), values_);
  if (round == 0) {
    SLUICE_RETURN_IF_ERROR(BroadcastAll());
  } else {
    log_.Warn("joins the job at step ", round - 1,
              " without a snapshot, so the result will not be the bits of an uninterrupted run: ",
              WhyNoSnapshot(client_->snapshot_path(), ToAbsl(state.status())));
    next_step_ = round - 1;
    SLUICE_RETURN_IF_ERROR(PullAll());
  }
  return snapshots_.on ? Save() : absl::OkStatus();
}

absl::Status Training::BroadcastAll() {
  // All ranks have drawn the same values, so any of them may be the root; all see alike which one was lost.
  absl::Status lost;
  for (int root = 0; root < client_->world_size(); ++root) {
    for (size_t i = 0; i < tensors_.size(); ++i) pending_[i] = client_->Broadcast(tensors_[i], values_[i], root);
    lost = absl::OkStatus();
    for (size_t i = 0; i < pending_.size(); ++i) {
      const absl::Status status = WaitFor(i);
      if (absl::IsAborted(status)) {
        lost = status;
      } else if (!status.ok()) {
        return status;
      }
    }
    if (lost.ok()) return absl::OkStatus();
    log_.Warn(std::string(lost.message()), "; rank ", root + 1, " is the next");
    task_->model->Initialize(static_cast<uint64_t>(options_.seed), values_);   // they have been overwritten
  }
  return lost;
}

absl::Status Training::PullAll() {
  for (size_t i = 0; i < tensors_.size(); ++i) pending_[i] = client_->Pull(tensors_[i], values_[i]);
  return WaitForAll();
}

absl::Status Training::Restore(std::span<const std::byte> state) {
  size_t values = 0;
  for (const auto& v : values_) values += v.size();
  const std::string path = client_->snapshot_path();
  if (state.size() < kStateHeader || LoadLe<uint32_t>(state.data()) != kStateVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ".0 and .1: the snapshot is that of another trainer or release; move both files away to go on without"));
  }
  const auto saved = [&](size_t i) { return LoadLe<uint64_t>(state.data() + 24 + 8 * i); };
  SLUICE_RETURN_IF_ERROR(CheckSavedSettings(path, {{"--seed", saved(0), static_cast<uint64_t>(options_.seed)},
                                                   {"--batch", saved(1), static_cast<uint64_t>(options_.batch)},
                                                   {"--epochs", saved(2), static_cast<uint64_t>(options_.epochs)},
                                                   {"--steps", saved(3), static_cast<uint64_t>(options_.steps)},
                                                   {"examples in --data", saved(4), task_->train.rows}}));
  if (state.size() != kStateHeader + values * sizeof(float) || LoadLe<uint32_t>(state.data() + 4) != values_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ".0 and .1: the snapshot has ", (state.size() - kStateHeader) / sizeof(float),
        " parameters, this process ", values, "; start it with the --model and --hidden of before"));
  }
  next_step_ = LoadLe<uint64_t>(state.data() + 8);
  skipped_steps_ = LoadLe<uint64_t>(state.data() + 16);
  const std::byte* from = state.data() + kStateHeader;
  for (const auto& v : values_) {
    std::memcpy(v.data(), from, v.size_bytes());
    from += v.size_bytes();
  }
  log_.Info("continues from its snapshot at step ", next_step_, " of ", total_steps_);
  return absl::OkStatus();
}

absl::Status Training::Save() {
  size_t bytes = kStateHeader;
  for (const auto& v : values_) bytes += v.size_bytes();
  std::vector<std::byte> state(bytes);
  StoreLe<uint32_t>(state.data(), kStateVersion);
  StoreLe<uint32_t>(state.data() + 4, static_cast<uint32_t>(values_.size()));
  StoreLe<uint64_t>(state.data() + 8, next_step_);
  StoreLe<uint64_t>(state.data() + 16, skipped_steps_);
  StoreLe<uint64_t>(state.data() + 24, static_cast<uint64_t>(options_.seed));
  StoreLe<uint64_t>(state.data() + 32, static_cast<uint64_t>(options_.batch));
  StoreLe<uint64_t>(state.data() + 40, static_cast<uint64_t>(options_.epochs));
  StoreLe<uint64_t>(state.data() + 48, static_cast<uint64_t>(options_.steps));
  StoreLe<uint64_t>(state.data() + 56, task_->train.rows);
  std::byte* to = state.data() + kStateHeader;
  for (const auto& v : values_) {
    std::memcpy(to, v.data(), v.size_bytes());
    to += v.size_bytes();
  }
  return ToAbsl(client_->SaveSnapshot(state));
}

absl::Status Training::Step(uint64_t step) {
  StepHooks hooks;
  hooks.before_layer = [this](size_t i) {
    if (hook_status_.ok()) hook_status_ = WaitFor(i);
  };
  hooks.on_gradient = [this](size_t i) {
    if (hook_status_.ok()) pending_[i] = client_->PushPull(tensors_[i], gradients_[i], values_[i]);
  };
  const Batch batch = batch_.Gather(task_->train, sampler_->Batch(step));
  const BatchScore score = task_->model->LossAndGradient(batch, const_values_, gradients_, hooks);
  SLUICE_RETURN_IF_ERROR(hook_status_);
  client_->ReportLoss(score.loss);
  loss_since_report_ += score.loss;
  correct_since_report_ += score.correct;
  ++steps_since_report_;
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> Training::Test() {
  if (task_->test.rows == 0) return Evaluation{};
  return task_->model->Evaluate(task_->test, const_values_);
}

absl::Status Training::WaitFor(size_t parameter) {
  if (!pending_[parameter].has_value()) return absl::OkStatus();
  const Result<OpInfo> info = pending_[parameter]->Wait();
  pending_[parameter].reset();
  if (!info.ok()) return ToAbsl(info.status());
  // A step is skipped as a whole: one of its tensors speaks for all.
  if (parameter == 0 && (*info).skipped) ++skipped_steps_;
  return absl::OkStatus();
}

absl::Status Training::WaitForAll() {
  for (size_t i = 0; i < pending_.size(); ++i) SLUICE_RETURN_IF_ERROR(WaitFor(i));
  return absl::OkStatus();
}

absl::Status Training::Report(uint64_t step, bool epoch_ended) {
  const Clock::time_point now = Clock::now();
  const bool last = step == total_steps_;
  const uint64_t epoch = (step - 1) / sampler_->steps_per_epoch() + 1;
  const bool evaluate = epoch_ended && client_->rank() == 0 && options_.eval_every > 0 &&
                        epoch % static_cast<uint64_t>(options_.eval_every) == 0;
  if (epoch_ended && !evaluate) log_.Info(EpochText(epoch, step));
  if (!evaluate && !last && now - reported_ < std::chrono::milliseconds(options_.report_ms)) return absl::OkStatus();
  ProgressLine line;
  line.epoch = epoch;
  line.step = step;
  line.steps = total_steps_;
  line.step_ms = Seconds(now - reported_) * 1000 / static_cast<double>(std::max<uint64_t>(steps_since_report_, 1));
  if (steps_since_report_ > 0) {
    line.loss = loss_since_report_ / static_cast<double>(steps_since_report_);
    line.accuracy = static_cast<double>(correct_since_report_) /
                    static_cast<double>(steps_since_report_ * static_cast<uint64_t>(options_.batch));
  }
  if (evaluate) {
    SLUICE_RETURN_IF_ERROR(WaitForAll());
    SLUICE_ASSIGN_OR_RETURN(const Evaluation test, Test());
    line.test_accuracy = test.accuracy;
    log_.Info(EpochText(epoch, step), ", test accuracy ", test.accuracy);
  }
  const ClientStats stats = client_->stats();
  line.push_wire_bytes = stats.push_wire_bytes;
  line.push_raw_bytes = stats.push_raw_bytes;
  line.pull_wire_bytes = stats.pull_wire_bytes;
  line.rate = client_->rate();
  loss_since_report_ = 0;
  correct_since_report_ = 0;
  steps_since_report_ = 0;
  reported_ = Clock::now();
  return progress_->Write(ToJson(line));
}

std::string Training::EpochText(uint64_t epoch, uint64_t step) const {
  return absl::StrCat("epoch ", epoch, " has ended at step ", step, " of ", total_steps_);
}

uint64_t Training::HashParameters() const {
  std::vector<std::byte> all;
  for (const auto& v : values_) {
    const auto bytes = std::as_bytes(v);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return transport::HashBytes(all);
}

}  // namespace sluice::worker
