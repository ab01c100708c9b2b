// How long a segment's calls are while it grows, next to a plain loop that touches as much fresh memory at the same
// pace, in the same run.
//
//   bazel run //bench/table_store:growth -- [--from N] [--grow-to N] [--longest N] [--small] [--json FILE]
//
// dim 16, fp32, sgd. One call is an Apply of 4,096 ids that are not stored; calls count from --from rows on. The plain
// loop's step writes one byte to each 4 KiB of the next 4,096 rows' share of memory, which was asked for in pieces of
// 2 MiB with the same wish for huge pages: what a first touch costs on this machine, whoever touches.
//
// Each is run twice. "fresh" memory is the machine's to supply: of a virtual machine, the host may have to find it
// first, also memory that was used before and lay idle for seconds, where the guest reports that to the host. For
// "supplied", memory that was touched is given back to the kernel at the pace at which it is used, which then only has
// to fill it with zeros. For each: median, p99, p99.9 and the longest call, how many took over 5 ms and the sum, in
// time of the thread and of the wall; and the longest ones, with the rows at that time and the number of page faults.
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "server/table/segment.h"

namespace sluice {
namespace {

constexpr size_t kBatch = 4096;
constexpr uint32_t kDim = 16;
constexpr size_t kRowBytes = 92;  // of the store, at most
constexpr size_t kPage = 4096;
constexpr size_t kPiece = size_t{2} << 20;  // one huge page
constexpr size_t kLead = 8;                 // pieces that are given back ahead

double Seconds(clockid_t clock) {
  timespec t;
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

long Faults() {
  rusage usage;
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

struct Call {
  uint64_t rows;
  double wall, cpu;
  long faults;
};

class Stopwatch {
 public:
  Stopwatch() : faults_(Faults()), wall_(Seconds(CLOCK_MONOTONIC)), cpu_(Seconds(CLOCK_THREAD_CPUTIME_ID)) {}
  Call Stop(uint64_t rows) const {
    const double cpu = Seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_;
    return {rows, Seconds(CLOCK_MONOTONIC) - wall_, cpu, Faults() - faults_};
  }

 private:
  const long faults_;
  const double wall_, cpu_;
};

struct Growth {
  uint64_t from = 1'000'000, to = 20'000'000;
  size_t longest = 8;
  bool huge_pages = true;
};

uint64_t IdOf(uint64_t index) { return index * 0x9E3779B97F4A7C15 + 12345; }  // in no order that a hash profits from

struct Unmap {
  void operator()(char* piece) const { ::munmap(piece, 2 * kPiece); }
};
using Pieces = std::deque<std::unique_ptr<char, Unmap>>;

// Each piece is the aligned half of a mapping; only that is touched.
char* Aligned(const std::unique_ptr<char, Unmap>& piece) {
  return piece.get() + (kPiece - reinterpret_cast<uintptr_t>(piece.get()) % kPiece);
}

// Gives pieces back, oldest first, so that there is some more memory than `rows` take.
void GiveBack(const Growth& growth, uint64_t rows, size_t pieces, Pieces* supply) {
  const size_t given = (std::max(rows, growth.from) - growth.from) * kRowBytes / kPiece + kLead;
  while (supply != nullptr && !supply->empty() && pieces - supply->size() < given) supply->pop_front();
}

std::vector<Call> TouchPlainly(const Growth& growth, Pieces* pieces, Pieces* supply) {
  std::vector<Call> calls;
  calls.reserve(growth.to / kBatch + 1);
  const size_t supplied = supply == nullptr ? 0 : supply->size();
  size_t at = kPiece;  // in the last piece
  for (uint64_t first = growth.from; first < growth.to; first += kBatch) {
    GiveBack(growth, first, supplied, supply);
    const Stopwatch watch;
    for (size_t touched = 0; touched < kBatch * kRowBytes; touched += kPage, at += kPage) {
      if (at >= kPiece) {
        void* const memory = ::mmap(nullptr, 2 * kPiece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) std::exit(1);
        ::madvise(memory, 2 * kPiece, growth.huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        pieces->emplace_back(static_cast<char*>(memory));
        at = 0;
      }
      *const_cast<volatile char*>(Aligned(pieces->back()) + at) = 1;
    }
    calls.push_back(watch.Stop(first));
  }
  return calls;
}

std::vector<Call> GrowSegment(const Growth& growth, Pieces* supply, double* most_bytes) {
  proto::TableSpec spec;
  spec.set_dim(kDim);
  auto made = server::TableSegment::Create(spec, {.huge_pages = growth.huge_pages});
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    std::exit(1);
  }
  const std::unique_ptr<server::TableSegment> segment = *std::move(made);
  const size_t supplied = supply == nullptr ? 0 : supply->size();
  std::vector<uint64_t> ids(kBatch);
  const std::vector<float> gradients(kBatch * kDim, 0.001f);
  std::vector<Call> calls;
  calls.reserve(growth.to / kBatch + 1);
  for (uint64_t first = 0; first < growth.to; first += kBatch) {
    for (size_t i = 0; i < kBatch; ++i) ids[i] = IdOf(first + i);
    GiveBack(growth, first, supplied, supply);
    const Stopwatch watch;
    segment->Apply(ids, gradients, {}, 0.01f, first / kBatch);
    const Call call = watch.Stop(first);
    if (first < growth.from) continue;
    calls.push_back(call);
    const server::SegmentStats stats = segment->stats();
    *most_bytes = std::max(*most_bytes, static_cast<double>(stats.bytes) / static_cast<double>(stats.rows));
  }
  return calls;
}

nlohmann::json Report(const std::string& name, std::vector<Call> calls, size_t longest) {
  nlohmann::json result = {{"name", name}};
  std::printf("%-18s", name.c_str());
  const std::pair<const char*, double Call::*> clocks[] = {{"cpu", &Call::cpu}, {"wall", &Call::wall}};
  for (const auto& [clock, seconds] : clocks) {
    std::vector<double> sorted;
    double sum = 0;
    for (const Call& call : calls) sorted.push_back(call.*seconds * 1e3), sum += sorted.back();
    std::sort(sorted.begin(), sorted.end());
    const auto quantile = [&](double q) {
      return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1))];
    };
    result[clock] = {{"median_ms", quantile(0.5)},
                     {"p99_ms", quantile(0.99)},
                     {"p999_ms", quantile(0.999)},
                     {"longest_ms", sorted.back()},
                     {"total_s", sum * 1e-3},
                     {"over_5_ms", sorted.end() - std::upper_bound(sorted.begin(), sorted.end(), 5.0)}};
    std::printf("  %s %6.2f %6.2f %6.2f %6.2f (%zd > 5, %.1f s)", clock, quantile(0.5), quantile(0.99), quantile(0.999),
                sorted.back(), static_cast<ssize_t>(sorted.end() - std::upper_bound(sorted.begin(), sorted.end(), 5.0)),
                sum * 1e-3);
  }
  std::printf("\n");
  std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.cpu > b.cpu; });
  calls.resize(std::min(calls.size(), longest));
  for (const Call& call : calls) {
    std::printf("    at %9llu rows: cpu %6.2f ms, wall %6.2f ms, %ld faults\n",
                static_cast<unsigned long long>(call.rows), call.cpu * 1e3, call.wall * 1e3, call.faults);
    result["longest"].push_back(
        {{"rows", call.rows}, {"cpu_ms", call.cpu * 1e3}, {"wall_ms", call.wall * 1e3}, {"faults", call.faults}});
  }
  return result;
}

int Main(int argc, char** argv) {
  Growth growth;
  std::string json_file;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--from" && more && absl::SimpleAtoi(argv[i + 1], &growth.from)) {
      ++i;
    } else if (flag == "--grow-to" && more && absl::SimpleAtoi(argv[i + 1], &growth.to)) {
      ++i;
    } else if (flag == "--longest" && more && absl::SimpleAtoi(argv[i + 1], &growth.longest)) {
      ++i;
    } else if (flag == "--small") {
      growth.huge_pages = false;
    } else if (flag == "--json" && more) {
      json_file = argv[++i];
    } else {
      std::fprintf(stderr, "usage: growth [--from N] [--grow-to N] [--longest N] [--small] [--json FILE]\n");
      return 2;
    }
  }
  if (growth.to < growth.from + kBatch || growth.to > 500'000'000) {
    std::fprintf(stderr, "growth: --grow-to must be from --from + %zu to 500 million\n", kBatch);
    return 2;
  }
  std::printf("growth from %llu to %llu rows, calls of %zu new ids, %s pages; ms: median, p99, p99.9, longest\n",
              static_cast<unsigned long long>(growth.from), static_cast<unsigned long long>(growth.to), kBatch,
              growth.huge_pages ? "huge" : "small");
  nlohmann::json result = {{"from", growth.from}, {"to", growth.to}, {"huge_pages", growth.huge_pages}};
  const auto report = [&](const char* name, std::vector<Call> calls) {
    result["runs"].push_back(Report(name, std::move(calls), growth.longest));
  };
  Pieces first, second;
  double most_bytes = 0;                                          // a row
  report("plain, fresh", TouchPlainly(growth, &first, nullptr));  // keeps its memory: the segment must find other
  report("segment, fresh", GrowSegment(growth, nullptr, &most_bytes));
  report("plain, supplied", TouchPlainly(growth, &second, &first));
  report("segment, supplied", GrowSegment(growth, &second, &most_bytes));
  std::printf("at most %.1f bytes a row, of which %u are the row's values and id\n", most_bytes, 4 * kDim + 8);
  result["most_bytes_a_row"] = most_bytes;
  if (!json_file.empty()) std::ofstream(json_file) << result.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
