// Trains on a generated click log in one process, and says how close the test AUC comes to the best one possible.
//
//   bazel run //worker/model:fit_click_log -- [--lines=N] [--seeds=1,2,3] [--model=lr|fm] [--factors=K] …
//
// One line for each seed of the log and for each epoch. Exits with 1 if the last epoch of any seed is further from the
// planted optimum than --within.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <time.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/data/click_log.h"
#include "worker/model/local_trainer.h"

namespace sluice::worker {
namespace {

constexpr char kHelp[] =
    R"(fit_click_log: trains on a generated click log in one process; prints AUC and log loss beside the planted optimum.
  --lines=1000000 --test_lines=100000   lines of the log for training and testing
  --seeds=1                             of the log, several with commas
  --columns=8 --bias=-1.5 --weight_deviation=0.45 --tail=2 --common=0.0015 --zipf=1.05
  --planted_factors=0 --factor_deviation=0.3   the log's own pairs
  --model=lr                            or fm
  --factors=8                           of fm
  --optimizer=rowwise_adagrad           or adagrad, sgd
  --rate=0.1 --initial_accumulator=1e-5 --init_deviation=0   of rows
  --bias_rate=0.5                       of the bias, by plain SGD
  --batch=4096 --epochs=2
  --within=0.005                        exit with 1 if the AUC ends further from the optimum
)";

struct Flags {
  ClickLogSpec log;
  LocalTrainerOptions train;
  std::vector<uint64_t> seeds = {1};
  uint32_t epochs = 2;
  double within = 0.005;
};

bool ParseSeeds(absl::string_view text, std::vector<uint64_t>* seeds) {
  seeds->clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (!absl::SimpleAtoi(part, &seeds->emplace_back())) return false;
  }
  return true;
}

bool ParseFlag(absl::string_view argument, Flags* flags) {
  if (!absl::ConsumePrefix(&argument, "--")) return false;
  const std::pair<absl::string_view, absl::string_view> flag = absl::StrSplit(argument, absl::MaxSplits('=', 1));
  const auto& [name, value] = flag;
  ClickLogSpec& log = flags->log;
  LocalTrainerOptions& train = flags->train;
  if (name == "seeds") return ParseSeeds(value, &flags->seeds);
  if (name == "model") return train.model.kind = std::string(value), true;
  if (name == "optimizer") return train.optimizer = std::string(value), true;
  const std::pair<absl::string_view, double*> numbers[] = {
      {"bias", &log.bias}, {"weight_deviation", &log.weight_deviation}, {"zipf", &log.zipf}, {"tail", &log.tail}, {"common", &log.common},
      {"factor_deviation", &log.factor_deviation}, {"rate", &train.rate}, {"bias_rate", &train.bias_rate},
      {"initial_accumulator", &train.initial_accumulator}, {"init_deviation", &train.init_deviation},
      {"within", &flags->within}};
  for (const auto& [known, target] : numbers) {
    if (name == known) return absl::SimpleAtod(value, target);
  }
  const std::pair<absl::string_view, uint32_t*> wholes[] = {
      {"columns", &log.columns}, {"planted_factors", &log.factors}, {"factors", &train.model.factors},
      {"batch", &train.batch}, {"epochs", &flags->epochs}};
  for (const auto& [known, target] : wholes) {
    if (name == known) return absl::SimpleAtoi(value, target);
  }
  if (name == "lines") return absl::SimpleAtoi(value, &log.lines);
  if (name == "test_lines") return absl::SimpleAtoi(value, &log.test_lines);
  return false;
}

double CpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// How far the AUC ends below the optimum.
absl::StatusOr<double> Fit(const Flags& flags, uint64_t seed) {
  ClickLogSpec spec = flags.log;
  spec.seed = seed;
  const double start = CpuSeconds();
  const auto log = ClickLog::Create(spec);
  if (!log.ok()) return log.status();
  const SparseDataset train = log->Read(0, spec.lines), test = log->Read(spec.lines, spec.lines + spec.test_lines);
  const auto best = log->Optimum();
  if (!best.ok()) return best.status();
  std::printf("seed %lu: optimum auc %.4f log loss %.4f, clicks %.3f (drawn in %.1f s)\n", seed, best->auc,
              best->log_loss, best->click_rate, CpuSeconds() - start);
  auto trainer = LocalTrainer::Create(flags.train);
  if (!trainer.ok()) return trainer.status();
  double gap = 1, seconds = 0;
  for (uint32_t epoch = 0; epoch < flags.epochs; ++epoch) {
    const double begin = CpuSeconds();
    const double loss = trainer->Epoch(train, epoch);
    seconds += CpuSeconds() - begin;
    const auto evaluation = trainer->Evaluate(test);
    if (!evaluation.ok()) return evaluation.status();
    gap = best->auc - evaluation->auc;
    std::printf("  epoch %u: train loss %.4f, test auc %.4f (%+.4f) log loss %.4f (%+.4f), %zu rows, %.1f s\n", epoch + 1,
                loss, evaluation->auc, -gap, evaluation->log_loss, evaluation->log_loss - best->log_loss,
                trainer->rows(), seconds);
    std::fflush(stdout);
  }
  return gap;
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--help") return std::fputs(kHelp, stdout), 0;
    if (!ParseFlag(argv[i], &flags)) return std::fprintf(stderr, "no flag %s; --help has them\n", argv[i]), 2;
  }
  bool close = true;
  for (const uint64_t seed : flags.seeds) {
    const auto gap = Fit(flags, seed);
    if (!gap.ok()) return std::fprintf(stderr, "%s\n", std::string(gap.status().message()).c_str()), 1;
    close = close && *gap <= flags.within;
  }
  return close ? 0 : 1;
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) { return sluice::worker::Main(argc, argv); }
