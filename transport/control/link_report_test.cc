#include "transport/control/link_report.h"

#include <limits>

#include "gtest/gtest.h"

namespace sluice::control {
namespace {

using transport::PathRow;

TEST(LinkReportTest, PathsOfALinkShareItsNumber) {
  const std::vector<PathRow> two = {{.kind = "tcp", .rail = "base", .address = "10.0.0.1:7", .bytes_out = 5, .note = "no device"},
                                    {.kind = "tcp", .rail = "further", .address = "10.1.0.1", .goodput = 2.5, .note = ""}};
  const std::vector<PathRow> one = {{.kind = "shm", .rail = "", .address = "", .note = ""}};
  proto::LinkReport a, b, sum;
  AddLink("worker 1", "a:1", two, &a);
  AddLink("worker 2", "a:2", one, &a);
  AddLink("worker 3", "", two, &b);
  AddReport(a, &sum);
  AddReport(b, &sum);
  ASSERT_EQ(sum.paths_size(), 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sum.paths(i).link(), std::vector<uint32_t>({0, 0, 1, 2, 2})[static_cast<size_t>(i)]) << i;
  EXPECT_EQ(sum.paths(0).peer(), "worker 1");
  EXPECT_EQ(sum.paths(0).note(), "no device");
  EXPECT_EQ(sum.paths(0).bytes_out(), 5u);
  EXPECT_EQ(sum.paths(1).goodput(), 2.5);
  EXPECT_EQ(sum.left_out(), 0u);
}

TEST(LinkReportTest, WhatAPeerSaysIsClipped) {
  proto::LinkReport said, kept;
  for (int i = 0; i < 1000; ++i) {
    proto::LinkPath* path = said.add_paths();
    path->set_link(static_cast<uint32_t>(i));
    for (std::string* text : {path->mutable_peer(), path->mutable_kind(), path->mutable_rail(), path->mutable_address(),
                              path->mutable_note()}) {
      *text = std::string(100000, 'x');
    }
    path->set_goodput(std::numeric_limits<double>::quiet_NaN());
  }
  said.mutable_paths(0)->set_peer("\x1b[2J");
  said.set_left_out(std::numeric_limits<uint32_t>::max());
  AddReport(said, &kept);
  EXPECT_EQ(kept.paths_size(), kMaxReportedPaths);
  EXPECT_EQ(kept.left_out(), std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(kept.paths(0).peer(), "?[2J");
  EXPECT_EQ(kept.paths(1).goodput(), 0);
  EXPECT_EQ(kept.paths(1).peer().size(), kMaxPeerBytes);
  EXPECT_EQ(kept.paths(1).note().size(), kMaxNoteBytes);
  EXPECT_LT(kept.ByteSizeLong(), 100000u);
}

}  // namespace
}  // namespace sluice::control
