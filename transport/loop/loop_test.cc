#include "transport/loop.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::transport {
namespace {

class LoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = Loop::Create();
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    ASSERT_EQ(pipe(a_), 0);
    ASSERT_EQ(pipe(b_), 0);
  }
  void TearDown() override {
    for (int fd : {a_[0], a_[1], b_[0], b_[1]}) close(fd);
  }

  std::unique_ptr<Loop> loop_;
  int a_[2], b_[2];
  std::string log_;
};

TEST_F(LoopTest, PostedClosuresRunInOrderAndStopEndsTheRunAfterThem) {
  for (char c : {'a', 'b', 'c'}) loop_->Post([this, c] { log_ += c; });
  loop_->Stop();
  loop_->Post([this] { log_ += 'd'; });  // same turn as the stop
  loop_->Run();
  EXPECT_EQ(log_, "abcd");
}

TEST_F(LoopTest, PostFromOtherThreadsWakesASleepingLoop) {
  constexpr int kThreads = 4, kEach = 500;
  int ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        loop_->Post([&] {
          if (++ran == kThreads * kEach) loop_->Stop();
        });
      }
    });
  }
  loop_->Run();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kEach);
}

TEST_F(LoopTest, PostFromTheLoopItselfRunsInTheNextTurn) {
  loop_->AtTurnEnd([this] { log_ += '|'; });
  loop_->Post([this] {
    log_ += 'a';
    loop_->Post([this] {
      log_ += 'b';
      loop_->Stop();
    });
  });
  loop_->Run();
  EXPECT_EQ(log_, "a|b||");
}

TEST_F(LoopTest, TurnEndHooksRunByStage) {
  loop_->AtTurnEnd([this] { log_ += '1'; }, 1);
  loop_->AtTurnEnd([this] { log_ += '0'; });
  loop_->Stop();
  loop_->Run();
  EXPECT_EQ(log_, "01");
}

TEST_F(LoopTest, TimersFireByDueTimeNotByOrderOfCalls) {
  loop_->After(3 * kMillisecond, [this] {
    log_ += 'c';
    loop_->Stop();
  });
  loop_->After(1 * kMillisecond, [this] { log_ += 'b'; });
  loop_->After(0, [this] { log_ += 'a'; });
  const uint64_t cancelled = loop_->After(2 * kMillisecond, [this] { log_ += 'x'; });
  loop_->CancelTimer(cancelled);
  loop_->CancelTimer(cancelled);
  loop_->CancelTimer(123456);
  loop_->Run();
  EXPECT_EQ(log_, "abc");
}

TEST_F(LoopTest, ATimerIsNotEarly) {
  const SteadyClock clock;
  const TimeNs begin = clock.Now();
  TimeNs fired = 0;
  loop_->After(2 * kMillisecond, [&] {
    fired = clock.Now();
    loop_->Stop();
  });
  loop_->Run();
  EXPECT_GE(fired - begin, 2 * kMillisecond);
}

TEST_F(LoopTest, ZeroTimersThatRepeatThemselvesDoNotStarveRealOnesOrEvents) {
  std::function<void()> again = [&] { loop_->After(0, again); };
  again();
  ASSERT_TRUE(loop_->Watch(a_[0], EPOLLIN, [this](uint32_t) {
    char c;
    ASSERT_EQ(read(a_[0], &c, 1), 1);
    log_ += 'e';
  }).ok());
  ASSERT_EQ(write(a_[1], "x", 1), 1);
  loop_->After(kMillisecond, [this] { loop_->Stop(); });
  loop_->Run();
  EXPECT_EQ(log_, "e");
}

TEST_F(LoopTest, NothingIsCalledForADescriptorAfterUnwatchEvenInTheSameBurst) {
  for (int* fds : {a_, b_}) {
    ASSERT_TRUE(loop_->Watch(fds[0], EPOLLIN, [this](uint32_t) {
      log_ += 'e';
      loop_->Unwatch(a_[0]);
      loop_->Unwatch(b_[0]);
      loop_->Post([this] { loop_->Stop(); });
    }).ok());
    ASSERT_EQ(write(fds[1], "x", 1), 1);
  }
  loop_->Run();
  EXPECT_EQ(log_, "e");
}

TEST_F(LoopTest, RewatchChangesTheEvents) {
  ASSERT_TRUE(loop_->Watch(a_[1], 0, [this](uint32_t events) {
    EXPECT_EQ(events, static_cast<uint32_t>(EPOLLOUT));
    log_ += 'w';
    loop_->Rewatch(a_[1], 0);
    loop_->After(kMillisecond, [this] { loop_->Stop(); });
  }).ok());
  loop_->Post([this] { loop_->Rewatch(a_[1], EPOLLOUT); });
  loop_->Run();
  EXPECT_EQ(log_, "w");
}

TEST_F(LoopTest, WatchOfABadDescriptorIsAnError) {
  EXPECT_FALSE(loop_->Watch(-1, EPOLLIN, [](uint32_t) {}).ok());
}

TEST_F(LoopTest, SpinningLoopStillSeesPostsAndTimers) {
  loop_->set_spin(kMillisecond);
  std::thread other;
  loop_->After(2 * kMillisecond, [&] {
    other = std::thread([this] {
      loop_->Post([this] {
        log_ += 'p';
        loop_->Stop();
      });
    });
  });
  loop_->Run();
  other.join();
  EXPECT_EQ(log_, "p");
}

}  // namespace
}  // namespace sluice::transport
