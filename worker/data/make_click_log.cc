// Writes a generated click log (worker/data/click_log.h) for the sparse trainers, and says what can be reached on it.
//
//   bazel run //worker/data:make_click_log -- --out=train.tsv --test_out=test.tsv [--lines=N] [--seed=S]
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/data/click_log.h"

namespace sluice::worker {
namespace {

constexpr char kHelp[] =
    R"(make_click_log: writes a click log with a planted model: a label and categories, separated by tabs.
  --out=FILE              the training lines
  --test_out=FILE         the lines behind them
  --lines=1000000         training lines
  --test_lines=N          default: a tenth of --lines
  --seed=1                another seed is another model
  --columns=8             of categories, with vocabularies from 10 to 100000
  --factors=0             length of the planted vectors whose products of pairs a factorization machine finds
  --help
It prints the AUC and log loss of the true probabilities on the test lines: no model can be expected to do better.
)";

struct Flags {
  ClickLogSpec spec;
  bool has_test_lines = false;
  std::string out, test_out;
};

bool ParseFlag(absl::string_view argument, Flags* flags) {
  if (!absl::ConsumePrefix(&argument, "--")) return false;
  const std::pair<absl::string_view, absl::string_view> flag = absl::StrSplit(argument, absl::MaxSplits('=', 1));
  const auto& [name, value] = flag;
  if (name == "lines") return absl::SimpleAtoi(value, &flags->spec.lines);
  if (name == "test_lines") {
    flags->has_test_lines = true;
    return absl::SimpleAtoi(value, &flags->spec.test_lines);
  }
  if (name == "seed") return absl::SimpleAtoi(value, &flags->spec.seed);
  if (name == "columns") return absl::SimpleAtoi(value, &flags->spec.columns);
  if (name == "factors") return absl::SimpleAtoi(value, &flags->spec.factors);
  if (name == "out" || name == "test_out") {
    (name == "out" ? flags->out : flags->test_out) = std::string(value);
    return !value.empty();
  }
  return false;
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "make_click_log: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--help") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (!ParseFlag(argv[i], &flags)) {
      std::fprintf(stderr, "make_click_log: cannot take %s; --help has the flags\n", argv[i]);
      return 2;
    }
  }
  if (flags.out.empty() && flags.test_out.empty()) {
    std::fprintf(stderr, "make_click_log: name a file by --out or --test_out; --help has the flags\n");
    return 2;
  }
  ClickLogSpec& spec = flags.spec;
  if (!flags.has_test_lines) spec.test_lines = spec.lines / 10;
  const auto log = ClickLog::Create(spec);
  if (!log.ok()) return Fail(log.status());
  if (!flags.out.empty()) {
    if (const auto status = log->Write(0, spec.lines, flags.out); !status.ok()) return Fail(status);
  }
  if (flags.test_out.empty()) return 0;
  if (const auto status = log->Write(spec.lines, spec.lines + spec.test_lines, flags.test_out); !status.ok()) {
    return Fail(status);
  }
  const auto best = log->Optimum();
  if (!best.ok()) return Fail(best.status());
  std::printf("optimum on the test lines: auc %.6f, log loss %.6f; clicks %.4f\n", best->auc, best->log_loss,
              best->click_rate);
  return 0;
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) { return sluice::worker::Main(argc, argv); }
