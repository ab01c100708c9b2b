#include "scheduler/rank_order.h"

#include <map>
#include <optional>

namespace sluice::scheduler {

uint32_t PreferRank(const std::vector<RankSeat>& seats, const std::vector<uint32_t>& sizes, const std::string& host,
                    absl::FunctionRef<bool(const std::string&, const std::string&)> near) {
  std::map<std::string, bool> asked;   // once a host
  const auto is_near = [&](const std::string& other) {
    const auto [known, is_new] = asked.emplace(other, false);
    if (is_new) known->second = near(host, other);
    return known->second;
  };
  // What a rank that is taken makes of its block. Innermost a block of strangers is worse than an empty one, even of near ones.
  const auto worth = [&](const std::string& other, bool innermost) {
    if (other == host) return 1;
    return is_near(other) ? (innermost ? -1 : 1) : (innermost ? -2 : -1);
  };
  // value[level][block]: the sum of that.
  std::vector<uint64_t> block;
  std::vector<std::vector<int64_t>> value;
  uint64_t ranks = 1;
  for (const uint32_t size : sizes) {
    ranks *= size;
    if (ranks <= 1 || ranks >= seats.size() || host.empty()) continue;   // a block of one, or of all, prefers nothing
    std::vector<int64_t>& of_block = value.emplace_back((seats.size() + ranks - 1) / ranks);
    block.push_back(ranks);
    for (size_t rank = 0; rank < seats.size(); ++rank)
      if (!seats[rank].free) of_block[rank / ranks] += worth(seats[rank].host, block.size() == 1);
  }
  std::optional<uint32_t> best;
  for (uint32_t rank = 0; rank < seats.size(); ++rank) {
    if (!seats[rank].free) continue;
    if (!best.has_value()) {
      best = rank;
      continue;
    }
    for (size_t level = 0; level < block.size(); ++level) {
      const int64_t mine = value[level][rank / block[level]], its = value[level][*best / block[level]];
      if (mine == its) continue;
      if (mine > its) best = rank;
      break;
    }
  }
  return best.value_or(0);
}

}  // namespace sluice::scheduler
