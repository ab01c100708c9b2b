#include "worker/train/options.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace sluice::worker {
namespace {

constexpr int kMaxWidth = 1 << 16;
constexpr size_t kMaxLayers = 32;
constexpr int kDenseBatch = 32, kSparseBatch = 1024;

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", want));
}

}  // namespace

std::vector<ProgramFlag> TrainFlags(TrainOptions* options) {
  std::vector<ProgramFlag> flags = {
      {"rank", "this worker's rank; -1 = RANK, SLURM_PROCID, or the scheduler gives one", &options->rank},
      {"model",
       "dense: softmax or mlp; sparse, their rows in a table: lr (logistic regression) or fm (factorization machine)",
       &options->model},
      {"hidden", "mlp: widths of the hidden layers, e.g. 256 or 512,128", &options->hidden_text},
      {"data",
       "training data: a folder or file of IDX images (as Fashion-MNIST's), or a CSV or LIBSVM file; lr, fm: a LIBSVM "
       "file "
       "or a click log (label and categories, tabs between), of which each worker keeps its share of the lines",
       &options->data},
      {"format",
       "auto (by the name), idx, csv or libsvm; lr, fm: auto, libsvm or clicks. csv: the label (0, 1, …) is the first "
       "column, the others are the features; a first line with a cell that is no number is a header (docs/install.md)",
       &options->format},
      {"test_data", "test data; default: the folder's t10k files, or a share of the training data",
       &options->test_data},
      {"test_share", "share of the training data that is kept for testing where there is no test data",
       &options->test_share},
      {"epochs", "passes over the data; 0 = one, or as many as --steps takes", &options->epochs},
      {"steps", "end after so many steps; 0 = all of the epochs. With --epochs: whichever ends first", &options->steps},
      {"batch", "examples of one worker in one step; 0 = 32, of lr and fm 1024", &options->batch},
      {"seed", "of initial values and of the order of examples", &options->seed},
      {"eval_every",
       "epochs between evaluations on the test data (by rank 0; of lr and fm by all, each its share); 0 = at the "
       "end only",
       &options->eval_every},
      {"report_ms", "milliseconds between lines of progress", &options->report_ms},
      {"progress", "file for lines of progress in JSON; \"-\" = standard output", &options->progress},
      {"result", "file for the result in JSON", &options->result},
  };
  for (ProgramFlag& flag : SparseTrainFlags(&options->sparse)) flags.push_back(std::move(flag));
  return flags;
}

absl::Status FinishTrainOptions(TrainOptions* options) {
  if (options->data.empty()) return Bad("data", "", "a file or folder of training data is needed");
  const bool sparse = IsSparseModel(options->model);
  if (!sparse && options->model != "softmax" && options->model != "mlp") {
    return Bad("model", options->model, "softmax or mlp; with rows in a table: lr or fm");
  }
  if (sparse) {
    SLUICE_RETURN_IF_ERROR(CheckSparseTrainOptions(options->sparse));
    if (options->format != "auto" && options->format != "libsvm" && options->format != "clicks") {
      return Bad("format", options->format, "of lr and fm: auto, libsvm or clicks");
    }
  } else if (options->format != "auto" && options->format != "idx" && options->format != "csv" &&
             options->format != "libsvm") {
    return Bad("format", options->format, "auto, idx, csv or libsvm");
  }
  if (options->batch == 0) options->batch = sparse ? kSparseBatch : kDenseBatch;
  options->hidden.clear();
  if (options->model == "mlp") {
    for (absl::string_view part : absl::StrSplit(options->hidden_text, ',')) {
      int width = 0;
      if (!absl::SimpleAtoi(part, &width) || width < 1 || width > kMaxWidth || options->hidden.size() == kMaxLayers) {
        return Bad("hidden", options->hidden_text,
                   absl::StrCat("up to ", kMaxLayers, " widths of 1 to ", kMaxWidth, ", with commas between"));
      }
      options->hidden.push_back(width);
    }
  }
  if (options->epochs < 0) return Bad("epochs", absl::StrCat(options->epochs), "0 (one, or as --steps says) or more");
  if (options->batch < 1 || options->batch > 1 << 20)
    return Bad("batch", absl::StrCat(options->batch), "0 (the default) to 1048576");
  if (options->steps < 0) return Bad("steps", absl::StrCat(options->steps), "0 (all) or more");
  if (options->eval_every < 0)
    return Bad("eval_every", absl::StrCat(options->eval_every), "0 (at the end only) or more");
  if (options->report_ms < 1) return Bad("report_ms", absl::StrCat(options->report_ms), "at least 1");
  if (!(options->test_share >= 0 && options->test_share < 1))
    return Bad("test_share", absl::StrCat(options->test_share), "0 to below 1");
  return absl::OkStatus();
}

uint64_t TotalSteps(const TrainOptions& options, uint64_t steps_per_epoch) {
  const auto steps = static_cast<uint64_t>(options.steps);
  if (options.epochs == 0) return steps > 0 ? steps : steps_per_epoch;
  const uint64_t all = steps_per_epoch * static_cast<uint64_t>(options.epochs);
  return steps > 0 ? std::min(all, steps) : all;
}

}  // namespace sluice::worker
