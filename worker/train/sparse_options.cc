#include "worker/train/sparse_options.h"

#include "absl/strings/str_cat.h"
#include "compression/policy.h"

namespace sluice::worker {
namespace {

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", want));
}

}  // namespace

bool IsSparseModel(const std::string& model) { return model == "lr" || model == "fm"; }

std::vector<ProgramFlag> SparseTrainFlags(SparseTrainOptions* options) {
  return {
      {"factors", "fm: values of a row besides its weight", &options->factors},
      {"loss", "lr, fm: logistic (labels of two kinds), or squared (real labels)", &options->loss},
      {"prefetch",
       "lr, fm: 1 = pull the rows of a step before the gradients of the step before it are applied: quicker "
       "where the network is slow, one step stale; 0 = exact",
       &options->prefetch},
      {"row_optimizer", "lr, fm: sgd, adagrad, rowwise_adagrad, adam or ftrl (docs/tables.md)",
       &options->row_optimizer},
      {"row_rate", "lr, fm: rate of the rows; it follows the schedule of job.optimizer, whose own rate is the bias's",
       &options->row_rate},
      {"row_initial_accumulator", "lr, fm: adagrad, rowwise_adagrad, ftrl", &options->row_initial_accumulator},
      {"row_l1", "lr, fm: ftrl", &options->row_l1},
      {"row_l2", "lr, fm: ftrl; others: decay of the rows that are pushed", &options->row_l2},
      {"row_beta", "lr, fm: ftrl", &options->row_beta},
      {"row_init", "lr, fm: initial values: zero, uniform, normal; auto = zero for lr, normal for fm",
       &options->row_init},
      {"row_init_scale", "lr, fm: of uniform and normal initial values", &options->row_init_scale},
      {"row_dtype", "lr, fm: of rows at the servers: fp32 or bf16", &options->row_dtype},
      {"row_codec", "lr, fm: of the row gradients that are pushed: none, fp16, bf16, mxfp8, int8 or int4", &options->row_codec},
      {"row_residual_rows", "lr, fm: rows whose encoding error a worker keeps for their next push; 0 = none",
       &options->row_residual_rows},
      {"row_admit_after", "lr, fm: pushes that a new id needs before it gets a row", &options->row_admit_after},
      {"row_max_age", "lr, fm: steps without a push after which a row is evicted; 0 = never", &options->row_max_age},
      {"max_rows", "lr, fm: bound on the rows of all servers; 0 = none", &options->max_rows},
      {"max_row_bytes", "lr, fm: bound on the memory for rows of each server; 0 = none", &options->max_row_bytes},
      {"drop_zero_rows", "lr, fm: remove rows that have become zero (ftrl with --row_l1)", &options->drop_zero_rows},
      {"numeric_columns", "clicks: so many columns behind the label are numbers", &options->numeric_columns},
      {"numeric", "clicks: a number is the category of its size (bucket), or the value of one feature (value)",
       &options->numeric},
      {"max_malformed",
       "lr, fm: malformed lines of a worker's share of a file that are left out and counted; one more "
       "is an error",
       &options->max_malformed},
  };
}

absl::Status CheckSparseTrainOptions(const SparseTrainOptions& options) {
  if (options.factors < 1) return Bad("factors", absl::StrCat(options.factors), "1 or more");
  if (options.loss != "logistic" && options.loss != "squared") return Bad("loss", options.loss, "logistic or squared");
  if (options.prefetch < 0 || options.prefetch > 1) {
    return Bad("prefetch", absl::StrCat(options.prefetch), "0 (exact) or 1 (one step stale)");
  }
  if (options.row_init != "auto" && options.row_init != "zero" && options.row_init != "uniform" &&
      options.row_init != "normal") {
    return Bad("row_init", options.row_init, "auto, zero, uniform or normal");
  }
  if (const auto codec = compression::MakeRowCodec(options.row_codec); !codec.ok()) {
    return Bad("row_codec", options.row_codec, std::string(codec.status().message()));
  }
  // 0 would mean the default of the table, and a negative rate be refused as job.optimizer's.
  if (!(options.row_rate > 0)) return Bad("row_rate", absl::StrCat(options.row_rate), "above 0");
  if (options.row_residual_rows < 0) {
    return Bad("row_residual_rows", absl::StrCat(options.row_residual_rows), "0 (none) or more");
  }
  if (options.row_admit_after < 1) return Bad("row_admit_after", absl::StrCat(options.row_admit_after), "1 or more");
  if (options.row_max_age < 0) return Bad("row_max_age", absl::StrCat(options.row_max_age), "0 (never) or more");
  if (options.max_rows < 0) return Bad("max_rows", absl::StrCat(options.max_rows), "0 (no bound) or more");
  if (options.max_row_bytes < 0)
    return Bad("max_row_bytes", absl::StrCat(options.max_row_bytes), "0 (no bound) or more");
  if (options.numeric_columns < 0) return Bad("numeric_columns", absl::StrCat(options.numeric_columns), "0 or more");
  if (options.numeric != "bucket" && options.numeric != "value")
    return Bad("numeric", options.numeric, "bucket or value");
  if (options.max_malformed < 0) return Bad("max_malformed", absl::StrCat(options.max_malformed), "0 or more");
  return absl::OkStatus();
}

absl::Status CheckSparseJob(const proto::JobConfig& job) {
  const auto refuse = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " decides on whole steps of tensors and does not look at tables; --model=lr and fm go without it"));
  };
  if (job.optimizer().clip_norm() > 0) return refuse("job.optimizer.clip_norm");
  if (job.optimizer().kind() == "lamb") return refuse("job.optimizer.kind=lamb");
  if (job.on_nonfinite() == proto::NONFINITE_SKIP) return refuse("job.on_nonfinite=skip");
  return absl::OkStatus();
}

TableSpec WeightsTable(const SparseTrainOptions& options, const std::string& model, uint32_t dim, uint64_t seed) {
  TableSpec spec;
  spec.name = "weights";
  spec.dim = dim;
  spec.dtype = options.row_dtype;
  spec.initializer = options.row_init;
  if (spec.initializer == "auto") spec.initializer = model == "fm" ? "normal" : "zero";
  spec.init_scale = options.row_init_scale;
  spec.seed = seed;
  spec.optimizer.kind = options.row_optimizer;
  spec.optimizer.rate = options.row_rate;
  spec.optimizer.initial_accumulator = options.row_initial_accumulator;
  spec.optimizer.l1 = options.row_l1;
  spec.optimizer.l2 = options.row_l2;
  spec.optimizer.beta = options.row_beta;
  spec.codec = options.row_codec;
  spec.residual_rows = static_cast<uint64_t>(options.row_residual_rows);
  spec.admit_after = static_cast<uint32_t>(options.row_admit_after);
  spec.max_age_rounds = static_cast<uint64_t>(options.row_max_age);
  spec.max_rows = static_cast<uint64_t>(options.max_rows);
  spec.max_bytes_per_server = static_cast<uint64_t>(options.max_row_bytes);
  spec.drop_zero_rows = options.drop_zero_rows;
  return spec;
}

}  // namespace sluice::worker
