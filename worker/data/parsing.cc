#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/data/parsers.h"

namespace sluice::worker {

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool ParseNumber(std::string_view text, float* out) {
  text = Trim(text);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  if (stop != end || text.empty()) return false;
  // Below the smallest float is zero to a model; above the largest is no number.
  if (error == std::errc::result_out_of_range) {
    double wide = 0;
    const auto again = std::from_chars(text.data(), end, wide);
    if ((again.ec != std::errc() && again.ec != std::errc::result_out_of_range) || std::abs(wide) > 1) return false;
    // Out of range for double as well: tiny if its exponent is negative.
    if (again.ec == std::errc::result_out_of_range && text.find("e-") == text.npos && text.find("E-") == text.npos) {
      return false;
    }
    *out = 0;
    return true;
  }
  return error == std::errc() && std::isfinite(*out);
}

bool ParseLabel(std::string_view text, int32_t* out) {
  text = Trim(text);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || stop != end || error != std::errc() || !(std::abs(value) <= 1 << 30)) return false;
  *out = static_cast<int32_t>(value);
  return *out == value;
}

std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) out += c < ' ' || c > '~' ? '?' : c;
  if (text.size() > 40) out += "…";
  return out + "\"";
}

absl::Status CheckSize(uint64_t rows, uint64_t features, const ReadLimits& limits, std::string_view where) {
  const absl::string_view place(where.data(), where.size());
  if (features > limits.max_features) {
    return absl::ResourceExhaustedError(
        absl::StrCat(place, ": ", features, " features; the limit is ", limits.max_features));
  }
  const uint64_t row_bytes = features * sizeof(float) + sizeof(int32_t);
  if (rows > limits.max_bytes / row_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        place, ": ", rows, " rows of ", features, " features need more than the ", limits.max_bytes, " bytes allowed"));
  }
  return absl::OkStatus();
}

absl::Status SetClasses(Dataset* data, const ReadOptions& options, std::string_view where) {
  const absl::string_view place(where.data(), where.size());
  if (data->rows == 0) return absl::InvalidArgumentError(absl::StrCat(place, ": there is no example in it"));
  const auto [least, largest] = std::minmax_element(data->y.begin(), data->y.end());
  if (*least < 0) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": label ", *least, " of example ",
                                                   least - data->y.begin() + 1, " is negative; labels are 0, 1, …"));
  }
  data->classes = static_cast<size_t>(*largest) + 1;
  const size_t most = options.classes > 0 ? options.classes : options.limits.max_classes;
  if (data->classes > most) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": label ", *largest, " of example ",
                                                   largest - data->y.begin() + 1, "; there are only classes 0 to ",
                                                   most - 1));
  }
  if (options.classes > 0) data->classes = options.classes;
  return absl::OkStatus();
}

}  // namespace sluice::worker
