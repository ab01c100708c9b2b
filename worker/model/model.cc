#include "worker/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/model/mlp.h"

namespace sluice::worker {
namespace {

constexpr size_t kMaxWidth = 1 << 24;
constexpr size_t kMaxHiddenLayers = 64;
constexpr uint64_t kMaxWeights = uint64_t{1} << 32;  // of one layer: 16 GiB

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec) {
  std::vector<size_t> widths{spec.features};
  if (spec.kind == "mlp") {
    if (spec.hidden.empty() || spec.hidden.size() > kMaxHiddenLayers) {
      return absl::InvalidArgumentError(
          absl::StrCat("an mlp has 1 to ", kMaxHiddenLayers, " hidden layers, not ", spec.hidden.size()));
    }
    widths.insert(widths.end(), spec.hidden.begin(), spec.hidden.end());
  } else if (spec.kind != "softmax") {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no model \"", spec.kind, "\"; softmax and mlp are built in"));
  }
  widths.push_back(spec.classes);
  if (spec.classes < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a classifier needs 2 classes at least, the data has ", spec.classes));
  }
  for (size_t l = 0; l < widths.size(); ++l) {
    if (widths[l] == 0 || widths[l] > kMaxWidth) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", l, " of the model has ", widths[l], " units; 1 to ",
                                                     kMaxWidth, " are possible"));
    }
    if (l > 0 && uint64_t{widths[l - 1]} * widths[l] > kMaxWeights) {
      return absl::InvalidArgumentError(absl::StrCat("a layer from ", widths[l - 1], " to ", widths[l],
                                                     " units has more than ", kMaxWeights, " weights"));
    }
  }
  return MakeMlp(std::move(widths));
}

Batch BatchBuffer::Gather(const Dataset& data, std::span<const uint32_t> rows) {
  x_.resize(rows.size() * data.features);
  y_.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const float> from = data.row(rows[i]);
    std::copy(from.begin(), from.end(), x_.begin() + static_cast<ptrdiff_t>(i * data.features));
    y_[i] = data.y[rows[i]];
  }
  return {.rows = rows.size(), .x = x_, .y = y_};
}

}  // namespace sluice::worker
