// Placement measured: `placement gap|scale|versus [N]`, or all three. JSON on stdout, tables on stderr. docs/topology.md
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/topology/rows.h"

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const uint32_t number = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 0;
  const uint32_t first = argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 0;
  nlohmann::json out;
  if (what == "gap" || what == "all") out["gap"] = sluice::bench::Gap(number > 0 ? number : 200, first);
  if (what == "scale" || what == "all") out["scale"] = sluice::bench::Scale(what != "all" && number > 0 ? number : 7);
  if (what == "versus" || what == "all") out["versus"] = sluice::bench::Versus(what != "all" && number > 0 ? number : 200'000);
  if (out.is_null()) {
    std::fprintf(stderr, "usage: placement [gap [INSTANCES [FIRST]] | scale [ZONES] | versus [EVALUATIONS]]\n");
    return 2;
  }
  std::printf("%s\n", out.dump(2).c_str());
  return 0;
}
