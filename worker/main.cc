// sluice-worker: trains a built-in model on a file of data as one worker of a job.
#include <chrono>
#include <cstdio>

#include "base/config.h"
#include "base/cpu_check.h"
#include "base/log.h"
#include "worker/client.h"
#include "worker/client_runtime.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/stop.h"
#include "worker/train/task.h"
#include "worker/train/training.h"

namespace sluice::worker {
namespace {

constexpr int kUsageError = 2;

// The built-in trainers leave the update to the servers.
constexpr char kDefaults[] = R"(job { optimizer { kind: "sgd" rate: 0.1 } })";

int Fail(const Logger& log, const absl::Status& status) {
  log.Error(status.ToString());
  return 1;
}

absl::Status CheckJob(const proto::JobConfig& job) {
  if (job.optimizer().kind().empty() || job.optimizer().kind() == "none" || job.reply() == proto::REPLY_AGGREGATE) {
    return absl::InvalidArgumentError(
        "the built-in trainers need parameters back: set job.optimizer.kind (sgd, momentum, adam, …) and leave "
        "job.reply at "
        "parameters or change; a trainer of one's own can do without (worker/client.h)");
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  TrainOptions options;
  ConfigOptions wanted;
  wanted.program = "sluice-worker";
  wanted.role = "worker";
  wanted.summary =
      "Trains a built-in model (softmax regression, or a perceptron with hidden layers) on IDX, CSV or LIBSVM files, "
      "as "
      "one worker of a job. For a trainer of your own see worker/client.h.";
  wanted.defaults = kDefaults;
  wanted.flags = TrainFlags(&options);
  int exit_code = 0;
  std::optional<LoadedConfig> loaded = LoadConfigForMain(wanted, argc, argv, &exit_code);
  if (!loaded.has_value()) return exit_code;
  const Logger log("worker");
  if (absl::StatusOr<LogLevel> level = ParseLogLevel(loaded->config.node().log_level()); level.ok()) {
    StderrLog::Get()->set_level(*level);
  }
  absl::Status usable = FinishTrainOptions(&options);
  if (usable.ok()) usable = CheckJob(loaded->config.job());
  const int rank = options.rank >= 0 ? options.rank : loaded->launch.rank.value_or(-1);
  if (usable.ok()) usable = CheckMember(loaded->config.job(), rank);  // before the data takes its time
  if (usable.ok()) usable = CheckCpu();
  if (!usable.ok()) {
    log.Error(usable.ToString());
    return kUsageError;
  }

  absl::StatusOr<std::unique_ptr<StopSignal>> stop = StopSignal::Create();
  if (!stop.ok()) return Fail(log, stop.status());
  (*stop)->set_exit_at_once(true);
  log.Info("loads ", options.data);
  const auto begun = std::chrono::steady_clock::now();
  absl::StatusOr<Task> task = LoadTask(options);
  if (!task.ok()) return Fail(log, task.status());
  log.Info("loaded ", options.data, ": ", task->train.rows, " rows to train on and ", task->test.rows, " to test, in ",
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), " s");

  // The configuration is complete: the client takes each value as it is.
  ClientOptions client_options;
  for (const EffectiveValue& value : EffectiveValues(*loaded)) {
    client_options.settings.push_back(value.key + "=" + value.value);
  }
  client_options.use_environment = false;
  client_options.rank = rank;
  Result<std::unique_ptr<Client>> client = Client::Connect(client_options);
  if (!client.ok()) {
    log.Error(client.status().ToString());
    return 1;
  }
  (*stop)->set_exit_at_once(false);

  SnapshotPolicy snapshots;
  snapshots.on = !loaded->config.data().snapshot_dir().empty();
  if (loaded->config.data().snapshot_every() > 0) snapshots.every = loaded->config.data().snapshot_every();
  Training training(options, snapshots, &*task, client->get(), stop->get());
  absl::StatusOr<TrainResult> result = training.Run();
  if (!result.ok()) {
    log.Error(result.status().ToString());
    // A gradient that no restart cures fails the job; after anything else this worker may be started again.
    if (absl::IsInvalidArgument(result.status())) (void)(*client)->Abort(std::string(result.status().message()));
    client->reset();  // before the training's buffers, which operations may still use
    return (*stop)->stopped() ? kStoppedExitCode : 1;
  }
  const std::string json = ToJson(*result);
  log.Info("done: ", json);
  if (!options.result.empty()) {
    if (absl::Status written = WriteFile(options.result, json + "\n"); !written.ok()) return Fail(log, written);
  }
  if (Status finished = (*client)->Finish(); !finished.ok()) {
    log.Error(finished.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) { return sluice::worker::Main(argc, argv); }
