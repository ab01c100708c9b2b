// libFuzzer's entry: data files of all formats. The first byte chooses the format and options.
#include <cstddef>
#include <cstdint>

#include "worker/data/parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice::worker;  // NOLINT
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
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
