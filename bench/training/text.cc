#include "bench/training/text.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace sluice::bench {
namespace {

constexpr size_t kMaxBytes = 64 << 20;
constexpr size_t kTestShare = 20;   // one part of so many

}  // namespace

absl::StatusOr<TextData> ReadText(const std::string& path, size_t context, size_t train_rows, size_t test_rows) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  const auto size = static_cast<size_t>(file.tellg());
  if (size > kMaxBytes || size / kTestShare <= context) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", size, " bytes: it should have more than ",
                                                   context * kTestShare, " and at most ", kMaxBytes));
  }
  std::string text(size, '\0');
  file.seekg(0);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read to its end"));
  }

  TextData data;
  std::array<bool, 256> seen{};
  for (const char c : text) seen[static_cast<unsigned char>(c)] = true;
  std::array<int, 256> number{};
  for (size_t c = 0; c < seen.size(); ++c) {
    if (seen[c]) number[c] = static_cast<int>(data.alphabet++);
  }
  const auto examples = [&](std::string_view part, size_t rows) {
    const size_t places = part.size() - context;
    worker::Dataset out{.rows = std::min(rows, places), .features = context, .classes = data.alphabet, .x = {}, .y = {}};
    for (size_t r = 0; r < out.rows; ++r) {
      const size_t at = r * places / out.rows;
      for (size_t i = 0; i < context; ++i) {
        out.x.push_back(static_cast<float>(number[static_cast<unsigned char>(part[at + i])]));
      }
      out.y.push_back(number[static_cast<unsigned char>(part[at + context])]);
    }
    return out;
  };
  const size_t train_bytes = size - size / kTestShare;
  data.train = examples(std::string_view(text).substr(0, train_bytes), train_rows);
  data.test = examples(std::string_view(text).substr(train_bytes), test_rows);
  return data;
}

}  // namespace sluice::bench
