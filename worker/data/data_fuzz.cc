// libFuzzer's entry: data files of all formats. The first byte chooses the format and options.
#include <cstddef>
#include <cstdint>

#include "worker/data/parsers.h"
#include "worker/data/sparse_dataset.h"

namespace {

// Every choice of the first byte: what is read must be rows that can be used without a look at anything else.
void FuzzSparse(uint8_t choice, std::string_view text) {
  using namespace sluice::worker;  // NOLINT
  SparseOptions options;
  options.format = (choice & 1) != 0 ? SparseOptions::Format::kLibsvm : SparseOptions::Format::kClickLog;
  options.labels = (choice & 2) != 0 ? SparseOptions::Labels::kReal : SparseOptions::Labels::kBinary;
  options.numeric_columns = (choice & 4) != 0 ? 2 : 0;
  options.numeric = (choice & 8) != 0 ? SparseOptions::Numeric::kValue : SparseOptions::Numeric::kBucket;
  options.workers = (choice & 16) != 0 ? 2 : 1;
  options.max_malformed = (choice & 32) != 0 ? 3 : 0;
  options.limits = {.max_bytes = 1 << 20, .max_line_bytes = 4096, .max_features = 100};
  if ((choice & 64) != 0) options.label_values = {{0, 1}};
  const auto data = ReadSparse(OpenMemory(text, "fuzz").get(), options);
  if (!data.ok()) return;
  if (data->rows() == 0 || data->row_begin.size() != data->rows() + 1 || data->row_begin[0] != 0 ||
      data->row_begin.back() != data->ids.size() || data->ids.size() != data->values.size() ||
      data->bytes() > options.limits.max_bytes || data->malformed > options.max_malformed) {
    __builtin_trap();
  }
  for (size_t row = 0; row < data->rows(); ++row) {
    if (data->row_begin[row] > data->row_begin[row + 1] || data->row_ids(row).size() > 100) __builtin_trap();
    const float label = data->labels[row];
    if (options.labels == SparseOptions::Labels::kBinary ? label != 0 && label != 1 : label - label != 0)
      __builtin_trap();
  }
  for (const float value : data->values) {
    if (value - value != 0) __builtin_trap();  // not finite
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::worker;  // NOLINT
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 128) != 0) {
    FuzzSparse(data[0], text);
    return 0;
  }
  ReadOptions options;
  options.limits = {.max_bytes = 16 << 20, .max_line_bytes = 4096, .max_features = 1 << 16, .max_classes = 1000};
  if ((data[0] & 4) != 0) options.features = 3;
  if ((data[0] & 8) != 0) options.classes = 3;
  if ((data[0] & 16) != 0) options.label_column = -1;
  if ((data[0] & 32) != 0) options.first_index = 0;
  absl::StatusOr<Dataset> result;
  if ((data[0] & 3) == 0) {
    result = ReadCsv(OpenMemory(text, "fuzz").get(), options);
  } else if ((data[0] & 3) == 1) {
    result = ReadLibsvm(OpenMemory(text, "fuzz").get(), options);
  } else {
    const size_t cut = text.empty() ? 0 : static_cast<uint8_t>(text[0]) % text.size();
    result =
        ReadIdx(OpenMemory(text.substr(cut), "images").get(), OpenMemory(text.substr(0, cut), "labels").get(), options);
  }
  if (!result.ok()) return 0;
  if (result->rows == 0 || result->x.size() != result->rows * result->features || result->y.size() != result->rows) {
    __builtin_trap();
  }
  for (const int32_t y : result->y) {
    if (y < 0 || static_cast<size_t>(y) >= result->classes) __builtin_trap();
  }
  return 0;
}
