// sluice-worker: trains a built-in model on a file of data as one worker of a job.
#include <chrono>
#include <cstdio>

#include "base/config.h"
#include "base/cpu_check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/writable.h"
#include "worker/client.h"
#include "worker/client_runtime.h"
#include "worker/train/options.h"
#include "worker/train/progress.h"
#include "worker/train/sparse_options.h"
#include "worker/train/sparse_task.h"
#include "worker/train/sparse_training.h"
#include "worker/train/status.h"
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

absl::Status CheckJob(const proto::JobConfig& job, bool sparse) {
  if (job.optimizer().kind().empty() || job.optimizer().kind() == "none" || job.reply() == proto::REPLY_AGGREGATE) {
    return absl::InvalidArgumentError(
        "the built-in trainers need parameters back: set job.optimizer.kind (sgd, momentum, adam, …) and leave "
        "job.reply at "
        "parameters or change; a trainer of one's own can do without (worker/client.h)");
  }
  return sparse ? CheckSparseJob(job) : absl::OkStatus();
}

// What a worker has beside its task.
struct Launch {
  const TrainOptions& options;
  const LoadedConfig& loaded;
  const int rank;
  const Logger& log;
  StopSignal* const stop;
};

SnapshotPolicy Snapshots(const LoadedConfig& loaded) {
  SnapshotPolicy snapshots;
  snapshots.on = !loaded.config.data().snapshot_dir().empty();
  if (loaded.config.data().snapshot_every() > 0) snapshots.every = loaded.config.data().snapshot_every();
  return snapshots;
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const Launch& launch) {
  // The configuration is complete: the client takes each value as it is.
  ClientOptions options;
  for (const EffectiveValue& value : EffectiveValues(launch.loaded)) {
    options.settings.push_back(value.key + "=" + value.value);
  }
  options.use_environment = false;
  options.rank = launch.rank;
  Result<std::unique_ptr<Client>> client = Client::Connect(options);
  if (!client.ok()) return ToAbsl(client.status());
  return std::move(*client);
}

// The end of a training, good or bad. Ends the client, which must come before the end of what owns the buffers.
// in_course: the failure came in the course of training, not from this process's own options or data.
template <typename TrainingResult>
int Conclude(const Launch& launch, bool in_course, const absl::StatusOr<TrainingResult>& result,
             std::unique_ptr<Client>* client) {
  if (!result.ok()) {
    launch.log.Error(result.status().ToString());
    // What no restart cures fails the job. After anything else this worker may be started again: the job waits for it,
    // however often somebody mistypes a flag.
    if (in_course && absl::IsInvalidArgument(result.status())) {
      (void)(*client)->Abort(std::string(result.status().message()));
    }
    // Where the others go on without it, they need not wait until this worker's lease is over.
    if (launch.stop->stopped() && launch.loaded.config.job().on_worker_loss() == proto::LOSS_RESCALE) {
      (void)(*client)->Abort("it was told to end (SIGTERM or SIGINT)");
    }
    client->reset();
    return launch.stop->stopped() ? kStoppedExitCode : 1;
  }
  const std::string json = ToJson(*result);
  launch.log.Info("done: ", json);
  // The training is done also where its result cannot be written: the job is not to wait for this worker.
  absl::Status written;
  if (!launch.options.result.empty()) written = WriteFile(launch.options.result, json + "\n");
  if (!written.ok()) launch.log.Error("--result: ", written.ToString());
  const Status finished = (*client)->Finish();
  if (!finished.ok()) return Fail(launch.log, ToAbsl(finished));
  return written.ok() ? 0 : 1;
}

// Before hours of training, not after them.
absl::Status CheckOutputs(const TrainOptions& options, const proto::NodeConfig& node) {
  SLUICE_RETURN_IF_ERROR(CheckWritable("--result", options.result, HowWritten::kReplaced));
  if (options.progress != "-") {
    SLUICE_RETURN_IF_ERROR(CheckWritable("--progress", options.progress, HowWritten::kInPlace));
  }
  return CheckWritable("--node.trace", node.trace(), HowWritten::kReplaced);
}

// All read the whole data, before anything connects.
int TrainDense(const Launch& launch) {
  launch.log.Info("loads ", launch.options.data);
  const auto begun = std::chrono::steady_clock::now();
  absl::StatusOr<Task> task = LoadTask(launch.options);
  if (!task.ok()) return Fail(launch.log, task.status());
  launch.log.Info("loaded ", launch.options.data, ": ", task->train.rows, " rows to train on and ", task->test.rows,
                  " to test, in ", std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(),
                  " s");
  absl::StatusOr<std::unique_ptr<Client>> client = Connect(launch);
  if (!client.ok()) return Fail(launch.log, client.status());
  launch.stop->set_exit_at_once(false);
  Training training(launch.options, Snapshots(launch.loaded), &*task, client->get(), launch.stop);
  const absl::StatusOr<TrainResult> result = training.Run();
  return Conclude(launch, training.registered(), result, &*client);
}

// A worker's share of the data depends on its rank, so it connects first. Data that cannot be read ends this process
// and not the job, which waits for the rank to come with the right --data.
int TrainSparse(const Launch& launch) {
  if (absl::Status usable = CheckSparseFiles(launch.options); !usable.ok()) return Fail(launch.log, usable);
  absl::StatusOr<std::unique_ptr<Client>> client = Connect(launch);
  if (!client.ok()) return Fail(launch.log, client.status());
  launch.log.Info("loads its share of ", launch.options.data);
  const auto begun = std::chrono::steady_clock::now();
  absl::StatusOr<SparseTask> task = LoadSparseTask(launch.options, static_cast<uint32_t>((*client)->rank()),
                                                   static_cast<uint32_t>((*client)->world_size()));
  if (!task.ok()) return Fail(launch.log, task.status());
  launch.log.Info("loaded ", task->train.rows(), " of ", task->train.examples_in_file, " examples to train on and ",
                  task->test.rows(), " to test, in ",
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(), " s");
  for (const SparseDataset* data : {&task->train, &task->test}) {
    if (data->malformed > 0) {
      launch.log.Warn("left out ", data->malformed, " malformed lines; the first: ", data->first_malformed);
    }
  }
  launch.stop->set_exit_at_once(false);
  SparseTraining training(launch.options, Snapshots(launch.loaded), &*task, client->get(), launch.stop);
  const absl::StatusOr<SparseTrainResult> result = training.Run();
  return Conclude(launch, training.registered(), result, &*client);
}

int Main(int argc, char** argv) {
  TrainOptions options;
  ConfigOptions wanted;
  wanted.program = "sluice-worker";
  wanted.role = "worker";
  wanted.summary =
      "Trains a built-in model as one worker of a job: softmax regression or a perceptron with hidden layers on IDX, "
      "CSV "
      "or LIBSVM files; logistic regression or a factorization machine over sparse rows on LIBSVM files and click "
      "logs. "
      "For a trainer of your own see worker/client.h.";
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
  const bool sparse = IsSparseModel(options.model);
  if (usable.ok()) usable = CheckJob(loaded->config.job(), sparse);
  const int rank = options.rank >= 0 ? options.rank : loaded->launch.rank.value_or(-1);
  if (usable.ok()) usable = CheckMember(loaded->config.job(), rank);  // before the data takes its time
  if (usable.ok()) usable = CheckCpu();
  if (!usable.ok()) {
    log.Error(usable.ToString());
    return kUsageError;
  }

  if (usable = CheckOutputs(options, loaded->config.node()); !usable.ok()) return Fail(log, usable);
  absl::StatusOr<std::unique_ptr<StopSignal>> stop = StopSignal::Create();
  if (!stop.ok()) return Fail(log, stop.status());
  (*stop)->set_exit_at_once(true);
  const Launch launch{options, *loaded, rank, log, stop->get()};
  return sparse ? TrainSparse(launch) : TrainDense(launch);
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) { return sluice::worker::Main(argc, argv); }
