#include "worker/data/click_log.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "worker/model/metrics.h"

namespace sluice::worker {
namespace {

constexpr uint32_t kMaxColumns = 1024;
constexpr uint64_t kMaxValues = uint64_t{1} << 28;  // of all tables: 1 GiB

// What a number is drawn for: the last word of the counter.
enum Purpose : uint32_t { kLine = 0, kPlanted = 1 };

std::array<uint32_t, 2> Key(uint64_t seed) { return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}; }

double UnitInterval(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// From two words (Box and Muller).
double Normal(uint32_t a, uint32_t b) {
  return std::sqrt(-2 * std::log(UnitInterval(a))) * std::cos(2 * std::numbers::pi * UnitInterval(b));
}

std::vector<uint32_t> GrowingVocabularies(const ClickLogSpec& spec) {
  std::vector<uint32_t> out(spec.columns, spec.largest_vocabulary);
  const double ratio = static_cast<double>(spec.largest_vocabulary) / spec.smallest_vocabulary;
  for (uint32_t c = 0; c + 1 < spec.columns; ++c) {
    out[c] = static_cast<uint32_t>(std::llround(spec.smallest_vocabulary * std::pow(ratio, c / (spec.columns - 1.0))));
  }
  return out;
}

// thresholds[r] = P(category <= r) in 2^-32; the last one is not looked at.
std::vector<uint32_t> ZipfThresholds(uint32_t vocabulary, double exponent) {
  std::vector<double> sums(vocabulary);
  double sum = 0;
  for (uint32_t r = 0; r < vocabulary; ++r) sums[r] = sum += std::pow(r + 1.0, -exponent);
  std::vector<uint32_t> out(vocabulary);
  for (uint32_t r = 0; r < vocabulary; ++r) {
    out[r] = static_cast<uint32_t>(std::min(sums[r] / sum * 0x1p32, 4294967295.0));
  }
  return out;
}

// The probability of category r.
double Share(std::span<const uint32_t> thresholds, size_t r) {
  const double up_to = r + 1 == thresholds.size() ? 0x1p32 : thresholds[r];
  return (up_to - (r == 0 ? 0 : thresholds[r - 1])) * 0x1p-32;
}

// Mean 0 and the deviation asked for, over lines. A column of one category has no deviation: its value is 0.
void Standardize(std::span<const uint32_t> thresholds, double deviation, std::span<float> values) {
  double mean = 0, variance = 0;
  for (size_t r = 0; r < values.size(); ++r) mean += Share(thresholds, r) * values[r];
  for (size_t r = 0; r < values.size(); ++r) variance += Share(thresholds, r) * (values[r] - mean) * (values[r] - mean);
  const double scale = variance > 0 ? deviation / std::sqrt(variance) : 0;
  for (float& value : values) value = static_cast<float>((value - mean) * scale);
}

// One value for each category of a column. which: 0 is the weight, the others are the factors' values.
std::vector<float> PlantedValues(const ClickLogSpec& spec, uint32_t column, uint32_t which,
                                 std::span<const uint32_t> thresholds, double deviation) {
  std::vector<float> out(thresholds.size());
  for (uint32_t r = 0; r < out.size(); ++r) {
    const PhiloxBlock words = Philox4x32({r, column, which, kPlanted}, Key(spec.seed));
    const double spread = std::pow(std::min(1.0, Share(thresholds, r) / spec.common), spec.tail);
    out[r] = static_cast<float>(spread * Normal(words[0], words[1]));
  }
  Standardize(thresholds, deviation, out);
  return out;
}

absl::Status CheckSpec(const ClickLogSpec& spec) {
  const auto refuse = [](auto&&... what) { return absl::InvalidArgumentError(absl::StrCat("click log: ", what...)); };
  if (spec.columns == 0 || spec.columns > kMaxColumns) {
    return refuse("columns = ", spec.columns, "; 1 to ", kMaxColumns, " are possible");
  }
  if (spec.smallest_vocabulary == 0 || spec.smallest_vocabulary > spec.largest_vocabulary) {
    return refuse("vocabularies from ", spec.smallest_vocabulary, " to ", spec.largest_vocabulary,
                  "; the smallest has to be 1 at least, the largest no smaller");
  }
  if (uint64_t{spec.columns} * spec.largest_vocabulary > kMaxValues / (2 + uint64_t{spec.factors})) {
    return refuse(spec.columns, " columns of up to ", spec.largest_vocabulary, " categories with ", spec.factors,
                  " factors have more than ", kMaxValues, " values");
  }
  if (!(spec.common > 0 && spec.common <= 1)) return refuse("common = ", spec.common, "; it is a share of the lines");
  for (const double number : {spec.zipf, spec.tail, spec.weight_deviation, spec.factor_deviation, std::abs(spec.bias)}) {
    if (!(number >= 0 && number <= 30)) {
      return refuse("zipf, tail and deviations lie from 0 to 30, bias from -30 to 30; ", number, " does not");
    }
  }
  if (spec.lines > uint64_t{1} << 48 || spec.test_lines > uint64_t{1} << 48) return refuse("more than 2^48 lines");
  return absl::OkStatus();
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

char* AppendNumber(char* at, uint32_t number) { return std::to_chars(at, at + 10, number).ptr; }

}  // namespace

absl::StatusOr<ClickLog> ClickLog::Create(const ClickLogSpec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckSpec(spec));
  ClickLog log;
  log.spec_ = spec;
  log.vocabularies_ = GrowingVocabularies(spec);
  for (uint32_t column = 0; column < spec.columns; ++column) {
    const uint32_t vocabulary = log.vocabularies_[column];
    const std::vector<uint32_t>& thresholds = log.thresholds_.emplace_back(ZipfThresholds(vocabulary, spec.zipf));
    log.weights_.push_back(PlantedValues(spec, column, 0, thresholds, spec.weight_deviation));
    std::vector<float>& vectors = log.vectors_.emplace_back(size_t{vocabulary} * spec.factors);
    for (uint32_t f = 0; f < spec.factors; ++f) {
      const std::vector<float> values = PlantedValues(spec, column, 1 + f, thresholds, spec.factor_deviation);
      for (uint32_t r = 0; r < vocabulary; ++r) vectors[size_t{r} * spec.factors + f] = values[r];
    }
  }
  return log;
}

void ClickLog::Draw(uint64_t n, Line* line) const {
  line->categories.resize(spec_.columns);
  const auto block = [&](uint32_t i) {
    return Philox4x32({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), i, kLine}, Key(spec_.seed));
  };
  // Block 0 is the label's; four columns share each of the next ones.
  double logit = spec_.bias;
  PhiloxBlock words = {};
  for (uint32_t column = 0; column < spec_.columns; ++column) {
    if (column % 4 == 0) words = block(1 + column / 4);
    const std::vector<uint32_t>& thresholds = thresholds_[column];
    const auto found = std::upper_bound(thresholds.begin(), thresholds.end() - 1, words[column % 4]);
    const uint32_t category = static_cast<uint32_t>(found - thresholds.begin());
    line->categories[column] = category;
    logit += weights_[column][category];
  }
  for (uint32_t f = 0; f < spec_.factors; ++f) {
    double sum = 0, squares = 0;
    for (uint32_t column = 0; column < spec_.columns; ++column) {
      const double v = vectors_[column][size_t{line->categories[column]} * spec_.factors + f];
      sum += v;
      squares += v * v;
    }
    logit += (sum * sum - squares) / 2;
  }
  line->logit = logit;
  line->label = UnitInterval(block(0)[0]) < Sigmoid(logit) ? 1 : 0;
}

absl::Status ClickLog::Write(uint64_t begin, uint64_t end, const std::string& path) const {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "we"));
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", path));
  Line line;
  std::vector<char> text(2 + size_t{spec_.columns} * 11);
  for (uint64_t n = begin; n < end; ++n) {
    Draw(n, &line);
    char* at = text.data();
    *at++ = line.label == 1 ? '1' : '0';
    for (const uint32_t category : line.categories) {
      *at++ = '\t';
      at = AppendNumber(at, category);
    }
    *at++ = '\n';
    const size_t bytes = static_cast<size_t>(at - text.data());
    if (std::fwrite(text.data(), 1, bytes, file.get()) != bytes) break;
  }
  if (std::fflush(file.get()) != 0 || std::ferror(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("writing ", path));
  }
  return absl::OkStatus();
}

SparseDataset ClickLog::Read(uint64_t begin, uint64_t end, uint32_t rank, uint32_t workers) const {
  SparseDataset data;
  data.examples_in_file = end - begin;
  data.label_values = {{0, 1}};
  data.columns = spec_.columns;
  Line line;
  for (uint64_t n = begin + rank; n < end; n += workers) {
    Draw(n, &line);
    for (uint32_t column = 0; column < spec_.columns; ++column) {
      char text[10];
      const char* const stop = AppendNumber(text, line.categories[column]);
      data.ids.push_back(CategoryId(column, {text, static_cast<size_t>(stop - text)}));
      data.values.push_back(1);
    }
    data.labels.push_back(line.label);
    data.row_begin.push_back(data.ids.size());
  }
  return data;
}

absl::StatusOr<ClickLog::Quality> ClickLog::Optimum() const {
  std::vector<float> logits, labels;
  Line line;
  double clicks = 0;
  for (uint64_t n = spec_.lines; n < spec_.lines + spec_.test_lines; ++n) {
    Draw(n, &line);
    logits.push_back(static_cast<float>(line.logit));
    labels.push_back(line.label);
    clicks += line.label;
  }
  SLUICE_ASSIGN_OR_RETURN(const double auc, ExactAuc(logits, labels));
  return Quality{.auc = auc, .log_loss = MeanLogLossOfLogits(logits, labels),
                 .click_rate = clicks / static_cast<double>(logits.size())};
}

}  // namespace sluice::worker
