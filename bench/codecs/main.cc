// How fast each codec goes on one core, next to memcpy in the same run.
//
//   bazel run //bench/codecs -- [--repetitions N] [--only TEXT] [--json FILE]
//
// 64 MiB of fp32 in partitions of 4 MiB, as a worker sends them. GB/s are fp32 bytes that go in (encode) or come out
// (decode, add) a second of the thread's CPU time; memcpy's are bytes copied. Every repetition times each cell once, in
// turn; the table has the medians, and their ratio to memcpy's. "none" validates by its size alone, so it has no
// figure. Gradients are bell-shaped (sums of three uniforms) but where the row says another distribution. --only: the rows
// whose name has the text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <time.h>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "base/philox.h"
#include "compression/codec.h"

namespace sluice {
namespace {

using compression::Codec;

constexpr size_t kPartition = 1 << 20;   // elements: 4 MiB
constexpr size_t kPartitions = 16;
constexpr size_t kColumns = 1024;        // of the matrix that lowrank takes a partition for
constexpr size_t kElements = kPartition * kPartitions;

const char* const kCodecs[] = {"none",           "fp16",           "bf16",
                               "mxfp8",          "int8",           "int8:stochastic",
                               "int4",           "nvfp4",          "onebit",         "terngrad",
                               "qsgd:7",         "topk:0.01",      "topk:0.1",
                               "topk:0.01+int8", "randk:0.01",     "threshold:0.01",
                               "threshold:auto:0.01", "lowrank:1",     "lowrank:4",
                               "lowrank:4+fp16"};
// Distributions that top-k has a row for. Residuals have the same, a tenth as large.
const char* const kDistributions[] = {"gaussian", "heavy-tailed", "99 % zeros", "constant", "sorted"};
const char* const kSkewed[] = {"topk:0.01", "threshold:auto:0.01"};
const char* const kWays[] = {"encode", "encode+residual", "validate", "decode", "decode-add"};

struct Cell {
  std::string codec, way;
  std::function<void()> run;
  std::vector<double> seconds;

  double Median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
};

struct Input {
  std::vector<float> gradient, residual;
  Input() : gradient(kElements), residual(kElements) {
    PhiloxRandom random(1);
    for (float& v : gradient) v = (random.Uniform() + random.Uniform() + random.Uniform() - 1.5f) * 0.01f;
    for (float& v : residual) v = (random.Uniform() - 0.5f) * 0.001f;
  }
  explicit Input(const std::string& distribution) : gradient(kElements), residual(kElements) {
    PhiloxRandom random(2);
    const auto normal = [&] {
      return std::sqrt(-2 * std::log(1 - random.Uniform())) * std::cos(6.2831853f * random.Uniform());
    };
    for (float& v : gradient) {
      if (distribution == "constant") v = 0.01f;
      else if (distribution == "heavy-tailed") v = 0.01f * normal() / std::max(std::fabs(normal()), 1e-3f);   // Cauchy
      else if (distribution == "99 % zeros") v = random.Chance(0.01) ? normal() : 0.0f;
      else v = 0.01f * normal();
    }
    if (distribution == "sorted")   // each partition, the largest magnitudes last
      for (size_t p = 0; p < kElements; p += kPartition)
        std::sort(gradient.begin() + p, gradient.begin() + p + kPartition, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    for (size_t i = 0; i < kElements; ++i) residual[i] = 0.1f * gradient[i];
  }
};

struct Buffers {
  std::vector<float> residual_out, sum;
  Buffers() : residual_out(kElements), sum(kElements) {}
};

// One codec's encodings of all partitions.
struct Subject {
  std::string name;
  std::unique_ptr<Codec> codec;
  std::shared_ptr<Input> input;
  std::vector<std::vector<std::byte>> encoded;
  std::vector<size_t> sizes;
  std::vector<std::vector<std::byte>> state[2], state_next;   // of codecs that keep one: without residuals, and with them
};

std::span<float> Part(std::vector<float>& values, size_t p) {
  return std::span(values).subspan(p * kPartition, kPartition);
}

double CpuSeconds() {   // of this thread: time that other processes take does not count
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

void Encode(Subject& subject, Buffers& buffers, bool feedback) {
  for (size_t p = 0; p < kPartitions; ++p) {
    compression::EncodeInput input{.gradient = Part(subject.input->gradient, p), .residual = {}, .residual_out = {}};
    if (feedback) {
      input.residual = Part(subject.input->residual, p);
      input.residual_out = Part(buffers.residual_out, p);
    }
    input.random = {.seed = 1, .first_element = p * kPartition};
    std::vector<std::byte>& state = subject.state[feedback ? 1 : 0][p];
    input.state = state;
    input.state_out = subject.state_next[p];
    const auto size = subject.codec->Encode(input, subject.encoded[p]);
    state.swap(subject.state_next[p]);
    subject.state_next[p].resize(subject.codec->StateBytes(kPartition));
    Check(size.status());
    subject.sizes[p] = *size;
  }
}

void Run(const std::string& way, Subject& subject, Buffers& buffers) {
  if (way == "encode" || way == "encode+residual") return Encode(subject, buffers, way != "encode");
  for (size_t p = 0; p < kPartitions; ++p) {
    const ConstBytes bytes = ConstBytes(subject.encoded[p]).first(subject.sizes[p]);
    if (way == "validate") Check(subject.codec->Validate(bytes, kPartition));
    if (way == "decode") Check(subject.codec->Decode(bytes, Part(buffers.sum, p)));
    if (way == "decode-add") Check(subject.codec->DecodeAdd(bytes, Part(buffers.sum, p)));
  }
}

int Main(int argc, char** argv) {
  int repetitions = 9;
  std::string json_file, only;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--repetitions" && i + 1 < argc && absl::SimpleAtoi(argv[i + 1], &repetitions) && repetitions > 0) {
      ++i;
    } else if (flag == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (flag == "--json" && i + 1 < argc) {
      json_file = argv[++i];
    } else {
      std::fprintf(stderr, "usage: codecs [--repetitions N] [--only TEXT] [--json FILE]\n");
      return 2;
    }
  }

  Buffers buffers;
  std::vector<Subject> subjects;
  const auto usual = std::make_shared<Input>();
  const auto add = [&](const char* codec, const std::string& name, std::shared_ptr<Input> input) {
    Subject& subject = subjects.emplace_back();
    subject.name = name;
    subject.input = std::move(input);
    subject.codec = compression::MakeCodec(codec, kColumns).value();
    subject.encoded.assign(kPartitions, std::vector<std::byte>(subject.codec->MaxEncodedBytes(kPartition)));
    subject.sizes.resize(kPartitions);
    for (auto& state : subject.state) state.resize(kPartitions);
    subject.state_next.assign(kPartitions, std::vector<std::byte>(subject.codec->StateBytes(kPartition)));
    Encode(subject, buffers, false);
  };
  for (const char* codec : kCodecs)
    if (std::string(codec).find(only) != std::string::npos) add(codec, codec, usual);
  for (const char* distribution : kDistributions) {
    std::shared_ptr<Input> input;
    for (const char* codec : kSkewed) {
      const std::string name = std::string(codec) + ", " + distribution;
      if (name.find(only) == std::string::npos) continue;
      if (input == nullptr) input = std::make_shared<Input>(distribution);
      add(codec, name, input);
    }
  }
  std::vector<Cell> cells;
  cells.push_back({"memcpy", "", [&] { std::memcpy(buffers.sum.data(), usual->gradient.data(), kElements * 4); }, {}});
  cells.push_back({"finite", "", [&] { compression::FirstNonfinite(usual->gradient); }, {}});
  for (Subject& subject : subjects)
    for (const char* way : kWays)
      cells.push_back({subject.name, way, [&subject, &buffers, way] { Run(way, subject, buffers); }, {}});

  for (int repetition = -1; repetition < repetitions; ++repetition)   // the first one warms up
    for (Cell& cell : cells) {
      const double begin = CpuSeconds();
      cell.run();
      if (repetition >= 0) cell.seconds.push_back(CpuSeconds() - begin);
    }

  const double gigabytes = kElements * 4 / 1e9, copy = gigabytes / cells[0].Median();
  nlohmann::json json = {{"memcpy_gb_s", copy}, {"check_finite_gb_s", gigabytes / cells[1].Median()}};
  std::printf("memcpy %.1f GB/s, check for NaN and infinity %.1f GB/s\n", copy, gigabytes / cells[1].Median());
  std::printf("| codec | bytes/element |");
  for (const char* way : kWays) std::printf(" %s |", way);
  std::printf("\n| --- | --- |");
  for (size_t way = 0; way < std::size(kWays); ++way) std::printf(" --- |");
  for (size_t s = 0; s < subjects.size(); ++s) {
    size_t bytes = 0;
    for (size_t size : subjects[s].sizes) bytes += size;
    const double per_element = static_cast<double>(bytes) / kElements;
    std::printf("\n| %s | %.3f |", subjects[s].name.c_str(), per_element);
    nlohmann::json row = {{"codec", subjects[s].name}, {"bytes_per_element", per_element}};
    for (size_t way = 0; way < std::size(kWays); ++way) {
      if (subjects[s].codec->lossless() && kWays[way] == std::string("validate")) {
        std::printf(" |");
        continue;
      }
      const double rate = gigabytes / cells[2 + s * std::size(kWays) + way].Median();
      std::printf(" %.1f (%.2f) |", rate, rate / copy);
      row[kWays[way]] = {{"gb_s", rate}, {"of_memcpy", rate / copy}};
    }
    json["codecs"].push_back(row);
  }
  std::printf("\n");
  if (json_file.empty()) return 0;
  std::ofstream out(json_file);
  out << json.dump(2) << "\n";
  out.close();
  if (out.fail()) {
    std::fprintf(stderr, "cannot write %s\n", json_file.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
