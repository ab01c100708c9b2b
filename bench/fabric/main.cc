// What the fabric library can do, and what it says of common fabrics.
//
//   bazel run //bench/fabric -- [--json FILE] [speed] [steps] [ways]
//
//   speed   of routes, flows, loads, and of routing anew after a failure; wall time of one run on one core
//   steps   predicted communication of a step: servers, trees, rings, hybrids on generated fabrics
//   ways    mean time of transfers: ways chosen by the live estimate against hashing, with a congested link
// Without names: all. Fabrics and traffic come from fixed seeds. docs/topology/fabric.md has a run's tables.
#include <fstream>
#include <set>

#include "bench/fabric/report.h"

int main(int argc, char** argv) {
  std::string file;
  std::set<std::string> parts;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--json" && i + 1 < argc) file = argv[++i];
    else if (arg == "speed" || arg == "steps" || arg == "ways") parts.insert(arg);
    else {
      std::fprintf(stderr, "usage: fabric [--json FILE] [speed] [steps] [ways]\n");
      return 2;
    }
  }
  const auto wanted = [&](const char* part) { return parts.empty() || parts.count(part) > 0; };
  sluice::bench::Json json = sluice::bench::Json::object();
  if (wanted("speed")) sluice::bench::MeasureSpeed(&json);
  if (wanted("steps")) sluice::bench::MeasureSteps(&json);
  if (wanted("ways")) sluice::bench::MeasureWays(&json);
  if (file.empty()) return 0;
  std::ofstream out(file);
  out << json.dump(1) << "\n";
  if (out.good()) return 0;
  std::fprintf(stderr, "cannot write %s\n", file.c_str());
  return 1;
}
