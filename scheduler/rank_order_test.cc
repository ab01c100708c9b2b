#include "scheduler/rank_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/philox.h"

namespace sluice::scheduler {
namespace {

// "r1.h2": host 2 of rack 1.
bool OneRack(const std::string& a, const std::string& b) { return a.substr(0, a.find('.')) == b.substr(0, b.find('.')); }

std::vector<RankSeat> Seat(const std::vector<std::string>& hosts, const std::vector<uint32_t>& sizes) {
  std::vector<RankSeat> seats(hosts.size());
  for (const std::string& host : hosts) {
    const uint32_t rank = PreferRank(seats, sizes, host, OneRack);
    EXPECT_TRUE(seats[rank].free);
    seats[rank] = {.free = false, .host = host};
  }
  return seats;
}

TEST(RankOrderTest, WithoutGroupsOrHostsItIsTheLowestFreeRank) {
  std::vector<RankSeat> seats(4);
  seats[0] = {.free = false, .host = "r1.a"};
  EXPECT_EQ(PreferRank(seats, {}, "r2.b", OneRack), 1u);
  EXPECT_EQ(PreferRank(seats, {2, 2}, "", OneRack), 1u);
  EXPECT_EQ(PreferRank(seats, {4}, "r2.b", OneRack), 1u);
}

TEST(RankOrderTest, AHostsWorkersFillAGroup) {
  const auto seats = Seat({"r1.a", "r1.b", "r1.b", "r1.a"}, {2, 2});
  EXPECT_EQ(seats[0].host, "r1.a");
  EXPECT_EQ(seats[1].host, "r1.a");
  EXPECT_EQ(seats[2].host, "r1.b");
  EXPECT_EQ(seats[3].host, "r1.b");
}

TEST(RankOrderTest, OuterGroupsLieInARack) {
  // tensor:2 on a host, pipeline:2 in a rack, data:2 across.
  const auto seats = Seat({"r1.a", "r2.a", "r1.b", "r2.b", "r2.a", "r1.a", "r2.b", "r1.b"}, {2, 2, 2});
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(seats[rank].host, seats[rank ^ 1].host);
    EXPECT_TRUE(OneRack(seats[rank].host, seats[rank ^ 2].host)) << rank;
  }
}

TEST(RankOrderTest, WhoComesInAnyOrderGetsARankOfHisOwnAndWholeHostsAreWholeGroups) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PhiloxRandom random(seed, 1);
    const uint32_t hosts = 1 + random.Below(6), each = 1 + random.Below(4);
    std::vector<std::string> come;
    for (uint32_t h = 0; h < hosts; ++h)
      for (uint32_t i = 0; i < each; ++i) come.push_back("r" + std::to_string(h % 2) + "." + std::to_string(h));
    for (size_t i = come.size(); i > 1; --i) std::swap(come[i - 1], come[random.Below(static_cast<uint32_t>(i))]);
    const auto seats = Seat(come, {each, hosts});
    for (const RankSeat& seat : seats) ASSERT_FALSE(seat.free);
    for (size_t rank = 0; rank < seats.size(); ++rank)
      EXPECT_EQ(seats[rank].host, seats[rank / each * each].host) << "seed " << seed;
  }
}

}  // namespace
}  // namespace sluice::scheduler
