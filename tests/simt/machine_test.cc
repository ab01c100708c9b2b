// The emulator itself: what it computes, and that it reports what would hang or race on a GPU.
#include "tests/simt/machine.h"

#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compression/cuda/device.h"

namespace sluice::simt {
namespace {

using namespace sluice::device;  // NOLINT: a kernel's words
using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kSeeds = 30;

// Runs a kernel under several seeds: the reports, "" where it ran through.
template <typename... P>
std::vector<std::string> Reports(uint32_t blocks, uint32_t threads, void (*kernel)(P...),
                                 std::type_identity_t<P>... arguments) {
  std::vector<std::string> reports;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine(seed);
    const int error = Launch(&machine, {"test", blocks, 1, threads}, kernel, arguments...);
    EXPECT_EQ(error != 0, !machine.report().empty());
    reports.push_back(machine.report());
  }
  return reports;
}

SLUICE_KERNEL(64) WarpOperations(uint32_t* failures) {
  const uint32_t lane = Lane();
  uint32_t bad = 0;
  bad += Shuffle(lane * 3, 5u) != 15;
  bad += Shuffle(lane, (lane + 1) % 32) != (lane + 1) % 32;
  bad += ShuffleXor(lane, 6u) != (lane ^ 6);
  bad += ShuffleDown(uint64_t{lane} << 40, 4u) != uint64_t{lane < 28 ? lane + 4 : lane} << 40;
  bad += ShuffleUp(static_cast<float>(lane), 1u) != static_cast<float>(lane == 0 ? 0 : lane - 1);
  bad += Ballot(lane % 2 == 1) != 0xAAAAAAAA;
  bad += !Any(lane == 7) || Any(lane == 40);
  bad += !All(lane < 32) || All(lane < 31);
  bad += WarpMax(100 - lane) != 100 || WarpAdd(lane) != 496;
  if (lane < 4) bad += WarpAdd(lane, 0xF) != 6 || Ballot(lane != 2, 0xF) != 0xB;
  uint32_t total = 0;
  bad += BlockExclusiveSum<64>(ThreadIndex(), &total) != ThreadIndex() * (ThreadIndex() - 1) / 2 || total != 2016;
  bad += BlockExclusiveSum<64>(1, &total) != ThreadIndex() || total != 64;
  AtomicAdd(failures, bad);
}

TEST(Machine, WarpAndBlockOperationsGiveWhatCudaGives) {
  uint32_t failures = 0;
  for (const std::string& report : Reports(5, 64, WarpOperations, &failures)) EXPECT_EQ(report, "");
  EXPECT_EQ(failures, 0u);
}

SLUICE_KERNEL(96) ReverseThroughSharedMemory(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 96, values);
  values.Store(ThreadIndex(), ThreadIndex() + 1000 * BlockX());
  Barrier();
  out[BlockX() * 96 + ThreadIndex()] = values.Load(95 - ThreadIndex());
}

TEST(Machine, EachBlockHasItsOwnSharedMemory) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine(seed);
    std::vector<uint32_t> out(7 * 96);
    ASSERT_EQ(Launch(&machine, {"reverse", 7, 1, 96}, ReverseThroughSharedMemory, out.data()), 0) << machine.report();
    for (uint32_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i / 96 * 1000 + 95 - i % 96);
  }
}

SLUICE_KERNEL(64) BarrierInBranch(int) {
  if (ThreadIndex() < 40) Barrier();
}
SLUICE_KERNEL(64) TwoBarriers(int) {
  if (ThreadIndex() < 32) {
    Barrier();
  } else {
    Barrier();
  }
}
SLUICE_KERNEL(64) WarpOperationInBranch(uint32_t* out) {
  if (Lane() != 9) *out = WarpMax(Lane());
}
SLUICE_KERNEL(32) ForeignLanes(uint32_t* out) { *out = WarpAdd(1, 0x0000FFFF); }

TEST(Machine, ReportsABarrierThatSomeThreadsNeverReach) {
  for (const std::string& report : Reports(2, 64, BarrierInBranch, 0))
    EXPECT_THAT(report, AllOf(HasSubstr("kernel test, block ("), HasSubstr("divergent barrier"),
                              HasSubstr("tests/simt/machine_test.cc:"), HasSubstr("thread 40 has ended")));
}

TEST(Machine, ReportsThreadsThatMeetAtDifferentBarriers) {
  for (const std::string& report : Reports(1, 64, TwoBarriers, 0))
    EXPECT_THAT(report, AllOf(HasSubstr("divergent barrier"), HasSubstr("machine_test.cc")));
}

TEST(Machine, ReportsAWarpOperationThatANamedLaneNeverReaches) {
  uint32_t out = 0;
  for (const std::string& report : Reports(1, 64, WarpOperationInBranch, &out))
    EXPECT_THAT(report, AllOf(HasSubstr("divergent warp operation"), HasSubstr("warp maximum"),
                              HasSubstr("machine_test.cc:"), HasSubstr("has ended")));
}

TEST(Machine, ReportsAWarpOperationOfALaneThatItDoesNotName) {
  uint32_t out = 0;
  for (const std::string& report : Reports(1, 32, ForeignLanes, &out))
    EXPECT_THAT(report, AnyOf(HasSubstr("does not name its own lane")));
}

SLUICE_KERNEL(64) MissingBarrier(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 64, values);
  values.Store(ThreadIndex(), ThreadIndex());
  out[ThreadIndex()] = values.Load((ThreadIndex() + 32) % 64);
}
SLUICE_KERNEL(64) WarpSyncForTwoWarps(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 64, values);
  values.Store(ThreadIndex(), ThreadIndex());
  WarpSync();
  out[ThreadIndex()] = values.Load((ThreadIndex() + 32) % 64);
}
SLUICE_KERNEL(64) WarpSyncForOneWarp(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 64, values);
  values.Store(ThreadIndex(), ThreadIndex());
  WarpSync();
  out[ThreadIndex()] = values.Load(ThreadIndex() ^ 1);
}
SLUICE_KERNEL(64) ShuffleInsteadOfWarpSync(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 64, values);
  values.Store(ThreadIndex(), ThreadIndex());
  Shuffle(1u, 0u);
  out[ThreadIndex()] = values.Load(ThreadIndex() ^ 1);
}
SLUICE_KERNEL(64) AtomicsOnly(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 1, sum);
  if (ThreadIndex() == 0) sum.Store(0, 0);
  Barrier();
  sum.AtomicAdd(0, ThreadIndex());
  Barrier();
  out[ThreadIndex()] = sum.Load(0);
}
SLUICE_KERNEL(64) PlainBesideAtomic(uint32_t* out) {
  SLUICE_SHARED(uint32_t, 1, sum);
  sum.AtomicAdd(0, 1);
  *out = sum.Load(0);
}
SLUICE_KERNEL(64) OutOfBounds(uint32_t*) {
  SLUICE_SHARED(uint32_t, 8, values);
  values.Store(ThreadIndex(), 1);
}

TEST(SharedArray, RacesAreReportedUnderEverySchedule) {
  std::vector<uint32_t> out(64);
  for (const auto kernel : {MissingBarrier, WarpSyncForTwoWarps, ShuffleInsteadOfWarpSync, PlainBesideAtomic})
    for (const std::string& report : Reports(1, 64, kernel, out.data()))
      EXPECT_THAT(report, AllOf(HasSubstr("race in shared memory"), HasSubstr("machine_test.cc:")));
  for (const auto kernel : {WarpSyncForOneWarp, AtomicsOnly})
    for (const std::string& report : Reports(1, 64, kernel, out.data())) EXPECT_EQ(report, "");
  for (const std::string& report : Reports(1, 64, OutOfBounds, out.data())) EXPECT_THAT(report, HasSubstr("of 8"));
}

// A planted race in global memory: blocks take numbers without an atomic add. No detector watches; schedules show it.
SLUICE_KERNEL(32) TakeNumbers(uint32_t* counter) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t seen = *counter;
    WarpSync();
    if (Lane() == 0) *counter = seen + 1;
    WarpSync();
  }
}

TEST(Machine, SomeSchedulesShowARaceBetweenBlocks) {
  std::set<uint32_t> results;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Machine machine(seed);
    uint32_t counter = 0;
    ASSERT_EQ(Launch(&machine, {"numbers", 4, 1, 32}, TakeNumbers, &counter), 0) << machine.report();
    results.insert(counter);
  }
  EXPECT_GT(results.size(), 1u);
  EXPECT_LT(*results.begin(), 16u);
}

TEST(Machine, ASeedIsASchedule) {
  const auto run = [](uint64_t seed) {
    Machine machine(seed);
    uint32_t counter = 0;
    Launch(&machine, {"numbers", 6, 1, 64}, TakeNumbers, &counter);
    return counter;
  };
  std::set<uint32_t> results;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(run(seed), run(seed));
    results.insert(run(seed));
  }
  EXPECT_GT(results.size(), 1u);
}

TEST(Machine, RefusesBlocksThatAreNoWholeWarps) {
  Machine machine(0);
  uint32_t counter = 0;
  EXPECT_NE(Launch(&machine, {"odd", 1, 1, 33}, TakeNumbers, &counter), 0);
  EXPECT_THAT(machine.report(), HasSubstr("multiple of 32"));
}

}  // namespace
}  // namespace sluice::simt
