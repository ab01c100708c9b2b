// The simulator's command line.
//   --seed N [--frames]   one run, told step by step (with --frames, each frame too)
//   --seeds A-B | --seeds N (= 1-N)   a range; the first seed that fails is named with the command that replays it
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/sim/cluster.h"

namespace {

int Usage() {
  std::fprintf(stderr, "usage: sim --seed N [--frames] | --seeds A-B | --seeds N\n");
  return 2;
}

int RunOne(uint64_t seed, bool frames) {
  std::printf("%s\n", sluice::sim::MakeScenario(seed).ToString().c_str());
  sluice::sim::RunOptions options;
  options.trace = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  options.trace_frames = frames;
  sluice::sim::Outcome outcome;
  const absl::Status status = sluice::sim::JudgeSeed(seed, options, &outcome);
  std::printf("%.3f simulated seconds, %llu events, %llu frames (%llu dropped, %llu repeated), %llu resets\n",
              static_cast<double>(outcome.took) / sluice::kSecond,
              static_cast<unsigned long long>(outcome.network.events),
              static_cast<unsigned long long>(outcome.network.frames),
              static_cast<unsigned long long>(outcome.network.dropped),
              static_cast<unsigned long long>(outcome.network.duplicated),
              static_cast<unsigned long long>(outcome.network.resets));
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

int RunRange(uint64_t first, uint64_t last) {
  uint64_t failed = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const absl::Status status = sluice::sim::JudgeSeed(seed);
    if (status.ok()) continue;
    ++failed;
    std::printf("seed %llu: %s\n  replay: bazel run //tests/sim -- --seed %llu\n",
                static_cast<unsigned long long>(seed), status.ToString().c_str(),
                static_cast<unsigned long long>(seed));
    std::fflush(stdout);
  }
  std::printf("%llu seeds passed", static_cast<unsigned long long>(last - first + 1 - failed));
  if (failed > 0) std::printf(", %llu failed", static_cast<unsigned long long>(failed));
  std::printf("\n");
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return Usage();
  const std::string flag = argv[1], value = argv[2];
  if (flag == "--seed") {
    uint64_t seed = 0;
    const bool frames = argc > 3 && std::string(argv[3]) == "--frames";
    if (!absl::SimpleAtoi(value, &seed)) return Usage();
    return RunOne(seed, frames);
  }
  if (flag != "--seeds") return Usage();
  uint64_t first = 1, last = 0;
  const std::vector<std::string> parts = absl::StrSplit(value, '-');
  const bool good = parts.size() == 1 ? absl::SimpleAtoi(parts[0], &last)
                                      : parts.size() == 2 && absl::SimpleAtoi(parts[0], &first) &&
                                            absl::SimpleAtoi(parts[1], &last);
  if (!good || last < first) return Usage();
  return RunRange(first, last);
}
