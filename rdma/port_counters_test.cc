#include "rdma/port_counters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sluice::rdma {
namespace {

class PortCountersTest : public testing::Test {
 protected:
  PortCountersTest() : root_(std::filesystem::path(testing::TempDir()) / "port_counters") {
    std::filesystem::remove_all(root_);
  }
  ~PortCountersTest() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& below, const std::string& text) {
    const auto path = root_ / "class/infiniband/mlx5_0/ports/1" / below;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::filesystem::path root_;
};

TEST_F(PortCountersTest, NothingThereIsNoError) {
  EXPECT_TRUE(ReadPortCounters("mlx5_0", 1, root_.string()).empty());
  EXPECT_EQ(Summarize({}).timeouts, 0u);
}

TEST_F(PortCountersTest, ReadsBothFolders) {
  Write("counters/port_xmit_data", "1000\n");
  Write("counters/port_xmit_packets", "12\n");
  Write("counters/shared", "1\n");
  Write("hw_counters/shared", "2\n");
  Write("hw_counters/lifespan", "10\n");
  Write("hw_counters/rp_cnp_handled", "18446744073709551615\n");
  const std::map<std::string, uint64_t> expected = {
      {"port_xmit_data", 4000}, {"port_xmit_packets", 12}, {"shared", 2}, {"rp_cnp_handled", UINT64_MAX}};
  EXPECT_EQ(ReadPortCounters("mlx5_0", 1, root_.string()), expected);
  EXPECT_TRUE(ReadPortCounters("mlx5_0", 2, root_.string()).empty());
}

TEST_F(PortCountersTest, WhatIsNoNumberIsLeftOut) {
  Write("counters/a", "");
  Write("counters/b", "N/A (no PMA)\n");
  Write("counters/c", "-1\n");
  Write("counters/d/e", "3\n");
  Write("counters/f", "7");
  EXPECT_EQ(ReadPortCounters("mlx5_0", 1, root_.string()), (std::map<std::string, uint64_t>{{"f", 7}}));
}

TEST_F(PortCountersTest, TroubleHasOneNameForAllVendors) {
  const PortTrouble mlx5 = Summarize({{"out_of_sequence", 1},
                                      {"packet_seq_err", 2},
                                      {"local_ack_timeout_err", 3},
                                      {"rnr_nak_retry_err", 4},
                                      {"np_cnp_sent", 5},
                                      {"np_ecn_marked_roce_packets", 6},
                                      {"rp_cnp_handled", 7},
                                      {"roce_adp_retrans", 8},
                                      {"port_xmit_data", 9}});
  EXPECT_EQ(mlx5.out_of_sequence, 3u);
  EXPECT_EQ(mlx5.timeouts, 3u);
  EXPECT_EQ(mlx5.not_ready, 4u);
  EXPECT_EQ(mlx5.cnp_sent, 5u);
  EXPECT_EQ(mlx5.ecn_marked, 6u);
  EXPECT_EQ(mlx5.cnp_handled, 7u);
  EXPECT_EQ(mlx5.retries, 8u);
  EXPECT_EQ(mlx5.link_errors, 0u);
  const PortTrouble rxe = Summarize({{"rcvd_seq_err", 1}, {"retry_exceeded_err", 2}, {"completer_retry_err", 3}});
  EXPECT_EQ(rxe.out_of_sequence, 1u);
  EXPECT_EQ(rxe.timeouts, 2u);
  EXPECT_EQ(rxe.retries, 3u);
}

}  // namespace
}  // namespace sluice::rdma
