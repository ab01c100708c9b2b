// How fast a segment's rows are read and updated on one core, next to plain loops over one flat array in the same run.
// (growth.cc has how long its calls are while it grows.)
//
//   bazel run //bench/table_store:store -- [--repetitions N] [--rows N] [--json FILE]
//
// Batches of 4,096 ids, Zipf 1.05 over 10 million rows whose popularity has nothing to do with their place; fp32, sgd.
// The flat array holds the same rows in the order of their creation. Every repetition runs each cell once over all
// batches, in turn; the table has medians. Rows a second of the thread's CPU time.
//
//   gather        plain loop: memcpy of each row of the flat array to the output, by index (the memory's limit)
//   gather huge   the same from an array in huge pages, as the store's slabs are
//   read          TableSegment::Read of the same ids
//   gather once   as gather, each id of a batch once
//   update        plain loop: row -= rate * gradient in the flat array, each id once
//   apply         TableSegment::Apply of the same ids
//
// The segments ask for huge pages (SegmentLimits).
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/philox.h"
#include "server/table/segment.h"

namespace sluice {
namespace {

constexpr size_t kBatch = 4096;
constexpr size_t kBatches = 64;
constexpr double kZipf = 1.05;
constexpr float kRate = 0.01f;

double Seconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::unique_ptr<server::TableSegment> MakeSegment(uint32_t dim, bool huge_pages = true) {
  proto::TableSpec spec;
  spec.set_dim(dim);
  auto made = server::TableSegment::Create(spec, {.huge_pages = huge_pages});
  if (made.ok()) return *std::move(made);
  std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
  std::exit(1);
}

// kBatches of ids, and the same with each id once.
struct Batches {
  std::vector<std::vector<uint64_t>> drawn, once;

  explicit Batches(uint64_t rows) : drawn(kBatches), once(kBatches) {
    std::vector<double> sums(rows);  // of the weights of the ranks
    double sum = 0;
    for (uint64_t rank = 0; rank < rows; ++rank) sums[rank] = sum += std::pow(static_cast<double>(rank + 1), -kZipf);
    PhiloxRandom random(1);
    std::vector<uint32_t> place(rows);  // of a rank
    for (uint64_t i = 0; i < rows; ++i) place[i] = static_cast<uint32_t>(i);
    for (uint64_t i = rows; i > 1; --i) std::swap(place[i - 1], place[random.Below(static_cast<uint32_t>(i))]);
    for (size_t b = 0; b < kBatches; ++b) {
      std::set<uint64_t> seen;
      for (size_t i = 0; i < kBatch; ++i) {
        const double u = (random() + 0.5) / 4294967296.0 * sum;
        const auto rank = std::min<size_t>(rows - 1, std::lower_bound(sums.begin(), sums.end(), u) - sums.begin());
        drawn[b].push_back(place[rank]);
        if (seen.insert(place[rank]).second) once[b].push_back(place[rank]);
      }
    }
  }
  static size_t Rows(const std::vector<std::vector<uint64_t>>& batches) {
    size_t rows = 0;
    for (const auto& ids : batches) rows += ids.size();
    return rows;
  }
};

// Row i of the flat array is the row with this id; ids have no order that a hash could profit from.
uint64_t IdOf(uint64_t index) { return index * 0x9E3779B97F4A7C15 + 12345; }

std::vector<std::vector<uint64_t>> IdsOf(std::vector<std::vector<uint64_t>> indices) {
  for (auto& batch : indices)
    for (uint64_t& i : batch) i = IdOf(i);
  return indices;
}

struct Free {
  void operator()(float* p) const { std::free(p); }
};
std::unique_ptr<float[], Free> Flat(size_t floats, bool huge) {
  void* memory = nullptr;
  if (::posix_memalign(&memory, huge ? size_t{2} << 20 : 64, floats * sizeof(float)) != 0) std::exit(1);
  if (huge) ::madvise(memory, floats * sizeof(float) >> 21 << 21, MADV_HUGEPAGE);
  std::memset(memory, 0, floats * sizeof(float));
  return std::unique_ptr<float[], Free>(static_cast<float*>(memory));
}

struct Cell {
  std::string name;
  size_t rows;
  std::function<void()> run;
  std::vector<double> seconds = {};
};

nlohmann::json Throughput(uint32_t dim, uint64_t rows, int repetitions, const Batches& batches) {
  const auto segment = MakeSegment(dim);
  std::vector<uint64_t> ids(kBatch);
  std::vector<float> gradients(kBatch * dim, 0.001f), out(kBatch * dim);
  for (uint64_t first = 0; first < rows; first += kBatch) {
    ids.resize(std::min(kBatch, rows - first));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = IdOf(first + i);
    segment->Apply(ids, std::span(gradients).first(ids.size() * dim), {}, kRate, 1);
  }
  const auto flat = Flat(rows * dim, false), huge = Flat(rows * dim, true);
  const auto drawn = IdsOf(batches.drawn), once = IdsOf(batches.once);

  const auto gather = [&](const float* from, const std::vector<std::vector<uint64_t>>& indices) {
    for (const auto& batch : indices)
      for (size_t i = 0; i < batch.size(); ++i) std::memcpy(&out[i * dim], from + batch[i] * dim, dim * sizeof(float));
  };
  const size_t drawn_rows = Batches::Rows(drawn), once_rows = Batches::Rows(once);
  Cell cells[] = {
      {"gather", drawn_rows, [&] { gather(flat.get(), batches.drawn); }},
      {"gather huge", drawn_rows, [&] { gather(huge.get(), batches.drawn); }},
      {"read", drawn_rows,
       [&] {
         for (const auto& batch : drawn) segment->Read(batch, std::span(out).first(batch.size() * dim));
       }},
      {"gather once", once_rows, [&] { gather(flat.get(), batches.once); }},
      {"update", once_rows,
       [&] {
         for (const auto& batch : batches.once)
           for (size_t i = 0; i < batch.size(); ++i)
             for (size_t d = 0; d < dim; ++d) flat[batch[i] * dim + d] -= kRate * gradients[i * dim + d];
       }},
      {"apply", once_rows,
       [&] {
         for (const auto& batch : once)
           segment->Apply(batch, std::span(gradients).first(batch.size() * dim), {}, kRate, 1);
       }},
  };
  for (Cell& cell : cells) cell.run();  // pages and caches
  for (int r = 0; r < repetitions; ++r)
    for (Cell& cell : cells) {
      const double begin = Seconds(CLOCK_THREAD_CPUTIME_ID);
      cell.run();
      cell.seconds.push_back(Seconds(CLOCK_THREAD_CPUTIME_ID) - begin);
    }

  nlohmann::json result = {
      {"dim", dim}, {"rows", rows}, {"rows_once_a_batch", static_cast<double>(once_rows) / kBatches}};
  const server::SegmentStats stats = segment->stats();
  const double value_bytes = static_cast<double>(stats.rows) * dim * 4;
  result["bytes_by_row"] = static_cast<double>(stats.bytes) / static_cast<double>(stats.rows);
  std::printf("dim %u: %llu rows, %.1f bytes a row (%.3f of id and values), %.0f different ids a batch\n", dim,
              static_cast<unsigned long long>(stats.rows), result["bytes_by_row"].get<double>(),
              static_cast<double>(stats.bytes) / (value_bytes + 8.0 * static_cast<double>(stats.rows)),
              static_cast<double>(once_rows) / kBatches);
  std::printf("  %-12s %12s %8s %8s %18s\n", "", "M rows/s", "ns/row", "GB/s", "of gather");
  double base = 0;
  for (const Cell& cell : cells) {
    const double rate = static_cast<double>(cell.rows) / Median(cell.seconds);
    if (cell.name == "gather" || cell.name == "gather once") base = rate;
    std::printf("  %-12s %12.1f %8.1f %8.2f %18.2f\n", cell.name.c_str(), rate * 1e-6, 1e9 / rate, rate * dim * 4e-9,
                rate / base);
    result[cell.name] = {{"rows_per_second", rate}, {"of_gather", rate / base}};
  }
  return result;
}

int Main(int argc, char** argv) {
  int repetitions = 9;
  uint64_t rows = 10'000'000;
  std::string json_file;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--repetitions" && more && absl::SimpleAtoi(argv[i + 1], &repetitions) && repetitions > 0) {
      ++i;
    } else if (flag == "--rows" && more && absl::SimpleAtoi(argv[i + 1], &rows) && rows > kBatch && rows < UINT32_MAX) {
      ++i;
    } else if (flag == "--json" && more) {
      json_file = argv[++i];
    } else {
      std::fprintf(stderr, "usage: store [--repetitions N] [--rows N] [--json FILE]\n");
      return 2;
    }
  }
  nlohmann::json result;
  {
    const Batches batches(rows);
    for (const uint32_t dim : {16u, 64u}) result["throughput"].push_back(Throughput(dim, rows, repetitions, batches));
  }
  if (!json_file.empty()) std::ofstream(json_file) << result.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
