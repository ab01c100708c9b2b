// Which rank a worker gets that asks for none, so that ranks of one parallel group (job.groups) come to lie near each other.
//
// Workers come one by one, so this is greedy. Groups are nested: with tensor:8,pipeline:4 ranks 0 to 7 are a block of the
// first level, 0 to 31 one of the second. From the innermost level on, a block is better the more of its ranks are near the
// newcomer and the fewer are not. Near is: on its host in the innermost level (there under its switch is better than far, and
// worse than nobody), under its switch in the next ones. Of equal ranks the lowest. So a host's workers fill a block, and the first of another host begins a new one. Without groups it is
// the lowest free rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace sluice::scheduler {

struct RankSeat {
  bool free = true;
  std::string host;            // of whom has it; "" = not known
};

// sizes: of the groups, innermost first; their product is at most seats.size(). near(a, b): hosts under one switch. There
// is a free seat.
uint32_t PreferRank(const std::vector<RankSeat>& seats, const std::vector<uint32_t>& sizes, const std::string& host,
                    absl::FunctionRef<bool(const std::string&, const std::string&)> near);

}  // namespace sluice::scheduler
