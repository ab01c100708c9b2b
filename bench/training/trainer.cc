// A worker of bench/convergence. It reads its data once, says "ready", and then trains once for each line on stdin:
//   train --seed=1 --steps=1000 --batch=32 --curve=8 --job.name=… --job.codec=…     (any setting of Sluice's)
// Each training is a job of its own, with the same start and the same order of examples for the same seed. It answers with
// one line of JSON when the job is done: accuracy and loss on the test data, bytes pushed since the first step, and along
// the way `curve` points [step, bytes pushed, accuracy, loss] on the first 2,000 rows of the test data. Only rank 0
// evaluates.
// Options: --model=mlp|conv|text --data=FOLDER or FILE, and Sluice's own by their full names.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/training/models.h"
#include "bench/training/text.h"
#include "worker/client.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/train/sampler.h"
#include "worker/train/status.h"

namespace sluice::bench {
namespace {

using worker::ToAbsl;

constexpr size_t kContext = 8, kTrainRows = 500000, kTestRows = 20000, kCurveRows = 2000, kHidden = 128;

struct Task {
  worker::Dataset train, test, curve;   // curve: the first rows of test
  std::unique_ptr<worker::Model> model;
};

absl::StatusOr<Task> LoadTask(const std::string& model, const std::string& data) {
  Task task;
  if (model == "text") {
    SLUICE_ASSIGN_OR_RETURN(TextData text, ReadText(data, kContext, kTrainRows, kTestRows));
    task.train = std::move(text.train);
    task.test = std::move(text.test);
    task.model = MakeCharModel(text.alphabet, kContext);
  } else if (model == "mlp" || model == "conv") {
    SLUICE_ASSIGN_OR_RETURN(task.train, worker::ReadDataset(data + "/train-images-idx3-ubyte.gz"));
    SLUICE_ASSIGN_OR_RETURN(task.test, worker::ReadDataset(data + "/t10k-images-idx3-ubyte.gz",
                                                           worker::OptionsLike(task.train, {})));
    if (model == "conv") {
      constexpr size_t kSide = 28;
      if (task.train.features != kSide * kSide) return absl::InvalidArgumentError("conv takes images of 28 x 28");
      task.model = MakeConvNet(kSide, task.train.classes);
    } else {
      SLUICE_ASSIGN_OR_RETURN(task.model, worker::MakeModel({.kind = "mlp",
                                                             .features = task.train.features,
                                                             .classes = task.train.classes,
                                                             .hidden = {kHidden}}));
    }
  } else {
    return absl::InvalidArgumentError(absl::StrCat("--model=", model, ": mlp, conv or text"));
  }
  task.curve = task.test;
  task.curve.rows = std::min(task.test.rows, kCurveRows);
  task.curve.x.resize(task.curve.rows * task.curve.features);
  task.curve.y.resize(task.curve.rows);
  return task;
}

// Takes --name=value out of the arguments.
std::optional<std::string> Take(std::vector<std::string>* arguments, const std::string& name) {
  const std::string prefix = "--" + name + "=";
  for (size_t i = 0; i < arguments->size(); ++i) {
    if (!(*arguments)[i].starts_with(prefix)) continue;
    std::string value = (*arguments)[i].substr(prefix.size());
    arguments->erase(arguments->begin() + static_cast<std::ptrdiff_t>(i));
    return value;
  }
  return std::nullopt;
}

absl::StatusOr<uint64_t> TakeNumber(std::vector<std::string>* arguments, const std::string& name, uint64_t fallback) {
  const std::optional<std::string> text = Take(arguments, name);
  if (!text.has_value()) return fallback;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text->c_str(), &end, 10);
  if (text->empty() || *end != '\0') return absl::InvalidArgumentError(absl::StrCat("--", name, "=", *text, ": a number"));
  return value;
}

// One job, from its connection to its end.
class Run {
 public:
  explicit Run(Task* task) : task_(task) {}

  // JSON.
  absl::StatusOr<std::string> Train(std::vector<std::string> arguments) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t seed, TakeNumber(&arguments, "seed", 1));
    SLUICE_ASSIGN_OR_RETURN(const uint64_t steps, TakeNumber(&arguments, "steps", 1000));
    SLUICE_ASSIGN_OR_RETURN(const uint64_t batch, TakeNumber(&arguments, "batch", 32));
    SLUICE_ASSIGN_OR_RETURN(const uint64_t points, TakeNumber(&arguments, "curve", 8));
    SLUICE_RETURN_IF_ERROR(Connect(arguments));
    SLUICE_RETURN_IF_ERROR(Begin(seed));
    SLUICE_ASSIGN_OR_RETURN(worker::Sampler sampler,
                            worker::Sampler::Create(task_->train.rows, static_cast<uint32_t>(batch),
                                                    static_cast<uint32_t>(client_->world_size()),
                                                    static_cast<uint32_t>(client_->rank()), seed));
    const auto started = std::chrono::steady_clock::now();
    const uint64_t every = points == 0 ? steps : std::max<uint64_t>(1, steps / points);
    std::string curve;
    for (uint64_t step = 1; step <= steps; ++step) {
      SLUICE_RETURN_IF_ERROR(Step(buffer_.Gather(task_->train, sampler.Batch(step - 1))));
      if (points > 0 && step % every == 0 && client_->rank() == 0) {
        SLUICE_ASSIGN_OR_RETURN(const worker::Evaluation now, task_->model->Evaluate(task_->curve, const_values_));
        absl::StrAppend(&curve, curve.empty() ? "" : ",", "[", step, ",", PushedBytes(), ",", now.accuracy, ",",
                        now.loss, "]");
      }
    }
    const uint64_t pushed = PushedBytes();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    worker::Evaluation end;
    if (client_->rank() == 0) {
      SLUICE_ASSIGN_OR_RETURN(end, task_->model->Evaluate(task_->test, const_values_));
    }
    SLUICE_RETURN_IF_ERROR(ToAbsl(client_->Finish()));
    return absl::StrCat("{\"rank\":", client_->rank(), ",\"steps\":", steps, ",\"accuracy\":", end.accuracy,
                        ",\"loss\":", Finite(end.loss), ",\"push_bytes\":", pushed, ",\"seconds\":", seconds.count(),
                        ",\"curve\":[", curve, "]}");
  }

 private:
  // JSON knows no infinity, which is where a diverging training ends.
  static double Finite(double loss) { return loss < 1e9 ? loss : 1e9; }

  absl::Status Connect(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    int argc = static_cast<int>(argv.size());
    argv.push_back(nullptr);
    auto client = Client::ConnectFromFlags(&argc, argv.data());
    if (!client.ok()) return ToAbsl(client.status());
    if (argc > 1) return absl::InvalidArgumentError(absl::StrCat("no flag ", argv[1]));
    client_ = std::move(*client);
    return absl::OkStatus();
  }

  // Everybody draws the same values; rank 0's become the servers'.
  absl::Status Begin(uint64_t seed) {
    std::vector<TensorSpec> specs;
    for (const worker::ParameterSpec& parameter : task_->model->parameters()) {
      const bool bias = parameter.kind == worker::ParameterKind::kBias;
      specs.push_back({.name = parameter.name,
                       .shape = parameter.shape,
                       .kind = bias ? TensorKind::kBias : TensorKind::kWeight});
      values_.emplace_back(parameter.size());
      gradients_.emplace_back(parameter.size());
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      value_spans_.emplace_back(values_[i]);
      const_values_.emplace_back(values_[i]);
      gradient_spans_.emplace_back(gradients_[i]);
    }
    task_->model->Initialize(seed, value_spans_);
    auto tensors = client_->RegisterTensors(specs);
    if (!tensors.ok()) return ToAbsl(tensors.status());
    tensors_ = std::move(*tensors);
    for (size_t i = 0; i < tensors_.size(); ++i) handles_.push_back(client_->Broadcast(tensors_[i], value_spans_[i]));
    SLUICE_RETURN_IF_ERROR(Wait());
    pushed_before_ = client_->stats().push_wire_bytes;
    return absl::OkStatus();
  }

  absl::Status Step(const worker::Batch& batch) {
    task_->model->LossAndGradient(batch, const_values_, gradient_spans_);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      handles_.push_back(client_->PushPull(tensors_[i], gradients_[i], value_spans_[i]));
    }
    return Wait();
  }

  absl::Status Wait() {
    for (Handle& handle : handles_) {
      if (auto done = handle.Wait(); !done.ok()) return ToAbsl(done.status());
    }
    handles_.clear();
    return absl::OkStatus();
  }

  uint64_t PushedBytes() const { return client_->stats().push_wire_bytes - pushed_before_; }

  Task* const task_;
  std::vector<std::vector<float>> values_, gradients_;   // Sluice's while handles_ run
  std::vector<std::span<float>> value_spans_, gradient_spans_;
  std::vector<std::span<const float>> const_values_;
  worker::BatchBuffer buffer_;
  std::unique_ptr<Client> client_;
  std::vector<Tensor> tensors_;
  std::vector<Handle> handles_;
  uint64_t pushed_before_ = 0;
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "trainer: %s\n", status.ToString().c_str());
  return 1;
}

int Main(int argc, char** argv) {
  std::vector<std::string> common(argv, argv + argc);
  const std::string model = Take(&common, "model").value_or(""), data = Take(&common, "data").value_or("");
  absl::StatusOr<Task> task = LoadTask(model, data);
  if (!task.ok()) return Fail(task.status());
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word != "train") return Fail(absl::InvalidArgumentError(line + ": only \"train …\" is known"));
    std::vector<std::string> arguments = common;
    while (words >> word) arguments.push_back(word);
    const absl::StatusOr<std::string> result = Run(&*task).Train(std::move(arguments));
    if (!result.ok()) return Fail(result.status());
    std::puts(result->c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
