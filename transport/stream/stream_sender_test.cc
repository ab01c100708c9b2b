// The sender against a scripted peer: each numbered step of docs/wire.md, "A push, step by step".
#include "transport/stream/stream_sender.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "transport/stream/fake_endpoint.h"

namespace sluice::transport {
namespace {

ConstBytes Text(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

class StreamSenderTest : public testing::Test {
 protected:
  StreamSenderTest() { Make({.eager_bytes = 4, .resend = 100, .max_announced = 64}); }

  void Make(StreamSenderOptions options, TimeNs fusion_cycle = 0) {
    sender_.reset();
    queue_ = std::make_unique<LinkQueue>(&endpoint_, &clock_,
                                         LinkQueueOptions{.stripe_bytes = 4, .fusion_cycle = fusion_cycle},
                                         [](uint64_t) { ADD_FAILURE() << "a key of nobody"; });
    for (LinkId link = 1; link < 4; ++link) queue_->LinkUp(link);
    sender_ = std::make_unique<StreamSender>(&endpoint_, queue_.get(), &clock_, options,
                                             [this](uint32_t partition) { released_.push_back(partition); });
  }

  static FrameHeader Push(uint32_t partition, uint64_t round = 1) {
    return {.type = FrameType::kPush, .job = 1, .rank = 2, .incarnation = 3, .tensor = 4, .partition = partition,
            .term = 5, .round = round, .codec = 3, .elements = 9, .reply_slot = 77};
  }
  void Start(uint32_t partition, ConstBytes payload, LinkId link = 1, int32_t priority = 0, uint64_t round = 1) {
    ASSERT_TRUE(sender_->Start(link, Push(partition, round), payload, priority).ok());
  }
  void Answer(FrameType type, uint32_t partition, uint32_t attempt, uint32_t aux = 0, SlotId slot = 0,
              LinkId link = 1) {
    FrameHeader h = Push(partition);
    h.type = type, h.attempt = attempt, h.aux = aux, h.slot = slot;
    EXPECT_TRUE(sender_->OnFrame(link, h));
  }
  void Grant(uint32_t partition, uint32_t attempt, SlotId slot = 9, LinkId link = 1) {
    Answer(FrameType::kGrant, partition, attempt, 0, slot, link);
  }
  void Queued(uint32_t partition, uint32_t attempt) {
    Answer(FrameType::kState, partition, attempt, static_cast<uint32_t>(PushState::kQueued));
  }
  void Received(uint32_t partition, uint32_t attempt) {
    Answer(FrameType::kState, partition, attempt, static_cast<uint32_t>(PushState::kReceived));
  }
  // "ANNOUNCE 7/1" = partition 7, attempt 1; PUSH with "slot@offset". Completes every send.
  std::vector<std::string> Flush(bool complete = true) {
    queue_->Flush();
    std::vector<std::string> lines;
    for (const FakeEndpoint::Sent& frame : endpoint_.Take()) {
      std::string line = absl::StrCat(FrameTypeName(frame.header.type).data(), " ", frame.header.partition, "/",
                                      frame.header.attempt);
      if (frame.header.slot != 0) absl::StrAppend(&line, " slot ", frame.header.slot, "@", frame.header.stripe_offset);
      if (frame.link != 1) absl::StrAppend(&line, " link ", frame.link);
      lines.push_back(line);
      last_ = frame;
      if (frame.cookie == 0) continue;
      if (complete) {
        EXPECT_TRUE(queue_->OnSent(frame.link, frame.cookie));
      } else {
        pending_.push_back({frame.link, frame.cookie});
      }
    }
    for (const uint64_t cookie : std::exchange(endpoint_.batch_cookies, {})) queue_->OnSent(1, cookie);
    return lines;
  }
  void CompletePending() {
    for (const auto& [link, cookie] : std::exchange(pending_, {})) queue_->OnSent(link, cookie);
  }
  std::vector<std::string> Tick(TimeNs by) {
    clock_.Advance(by);
    sender_->OnTick();
    return Flush();
  }
  using Lines = std::vector<std::string>;

  ManualClock clock_;
  FakeEndpoint endpoint_;
  std::unique_ptr<LinkQueue> queue_;
  std::unique_ptr<StreamSender> sender_;
  std::vector<uint32_t> released_;
  std::vector<std::pair<LinkId, uint64_t>> pending_;
  FakeEndpoint::Sent last_;
  const std::string small_ = "abcd", large_ = "0123456789";
};

TEST_F(StreamSenderTest, Step1ALargePayloadIsAnnouncedWithTheSizesOfThePushToCome) {
  Start(7, Text(large_));
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 7/1"});
  EXPECT_EQ(last_.header.total_bytes, 10u);
  EXPECT_EQ(last_.header.payload_bytes, 0u);
  EXPECT_EQ(last_.header.elements, 9u);
  EXPECT_EQ(last_.header.codec, 3u);
  EXPECT_EQ(last_.header.reply_slot, 77u);
  EXPECT_EQ(last_.header.rank, 2u);
  EXPECT_EQ(last_.header.term, 5u);
}

// A 4 KiB push-pull over TCP took the whole fusion cycle, with nobody to fuse it with.
TEST_F(StreamSenderTest, ALoneSmallPushDoesNotWaitForTheCycle) {
  Make({.eager_bytes = 4, .resend = 1000}, /*fusion_cycle=*/100);
  Start(7, Text(small_));
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1"});
  Start(8, Text(small_));
  EXPECT_EQ(Flush(), Lines{}) << "an answer is awaited: company may come meanwhile";
  Start(9, Text(small_));
  EXPECT_EQ(Tick(100), (Lines{"PUSH 8/1", "PUSH 9/1"}));
  for (const uint32_t partition : {7u, 8u, 9u}) EXPECT_TRUE(sender_->Finish(partition, 1));
  Start(7, Text(small_), 1, 0, 2);
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1"}) << "all were answered";
}

TEST_F(StreamSenderTest, Step1ASmallPayloadGoesAtOnce) {
  Start(7, Text(small_));
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1"});
  EXPECT_EQ(last_.payload, small_);
  EXPECT_EQ(last_.header.reply_slot, 77u);
  EXPECT_TRUE(sender_->Finish(7, 1));
  EXPECT_EQ(released_, std::vector<uint32_t>{7});
}

TEST_F(StreamSenderTest, Step1ByReferenceGoesAtOnceAndWhole) {
  endpoint_.by_reference = true;
  Start(7, Text(large_));
  EXPECT_EQ(Flush(false), Lines{"PUSH 7/1"});
  EXPECT_EQ(last_.payload, large_);
  EXPECT_TRUE(sender_->Finish(7, 1));
  EXPECT_TRUE(released_.empty()) << "the receiver still looks at it";
  CompletePending();
  EXPECT_EQ(released_, std::vector<uint32_t>{7});
}

TEST_F(StreamSenderTest, Step3AGrantSendsStripesIntoTheSlot) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  EXPECT_EQ(Flush(), (Lines{"PUSH 7/1 slot 9@0", "PUSH 7/1 slot 9@4", "PUSH 7/1 slot 9@8"}));
  EXPECT_EQ(last_.header.total_bytes, 10u);
  EXPECT_EQ(last_.header.payload_bytes, 2u);
}

TEST_F(StreamSenderTest, Step3GrantsOfAnotherAttemptRoundLinkOrIncarnationAreIgnored) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 2);
  Grant(7, 0);
  Grant(8, 1);
  Grant(7, 1, 9, /*link=*/2);
  FrameHeader other = Push(7);
  other.type = FrameType::kGrant, other.attempt = 1, other.slot = 9;
  FrameHeader round = other, incarnation = other, rank = other;
  round.round = 2, incarnation.incarnation = 2, rank.rank = 3;
  sender_->OnFrame(1, round);
  sender_->OnFrame(1, incarnation);
  sender_->OnFrame(1, rank);
  EXPECT_EQ(Flush(), Lines{});
  sender_->OnFrame(1, other);
  EXPECT_EQ(Flush().size(), 3u);
}

TEST_F(StreamSenderTest, Step3ARepeatedGrantDoesNotSendTwice) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  Grant(7, 1);
  EXPECT_EQ(Flush().size(), 3u);
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{});
}

TEST_F(StreamSenderTest, Step5SilenceAsksAgainWithDoublingUpToEightTimes) {
  Start(7, Text(large_));
  Flush();
  EXPECT_EQ(Tick(99), Lines{});
  EXPECT_EQ(Tick(1), Lines{"ANNOUNCE 7/1"});
  std::vector<TimeNs> waits;
  for (int i = 0; i < 5; ++i) {
    TimeNs waited = 0;
    while (Tick(50).empty()) waited += 50;
    waits.push_back(waited + 50);
  }
  EXPECT_EQ(waits, (std::vector<TimeNs>{200, 400, 800, 800, 800}));
}

TEST_F(StreamSenderTest, Step5QueuedAndReceivedKeepItWaiting) {
  Start(7, Text(large_));
  Flush();
  clock_.Advance(60);
  Queued(7, 1);
  EXPECT_EQ(Tick(60), Lines{});
  Received(7, 1);
  EXPECT_EQ(Tick(60), Lines{});
  EXPECT_EQ(Tick(60), Lines{"ANNOUNCE 7/1"}) << "it still asks, as the reply may be lost";
}

TEST_F(StreamSenderTest, Step5AGrantAfterEverythingWasSentRaisesTheAttempt) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  Flush();
  EXPECT_EQ(Tick(100), Lines{"ANNOUNCE 7/1"});
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 7/2"});
  EXPECT_EQ(sender_->replays(), 1u);
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{});
  Grant(7, 2, 10);
  EXPECT_EQ(Flush(), (Lines{"PUSH 7/2 slot 10@0", "PUSH 7/2 slot 10@4", "PUSH 7/2 slot 10@8"}));
}

TEST_F(StreamSenderTest, Step5ALostEagerPushIsSentAgain) {
  Start(7, Text(small_));
  Flush();
  EXPECT_EQ(Tick(100), Lines{"ANNOUNCE 7/1"});
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1 slot 9@0"});
}

TEST_F(StreamSenderTest, Step5ALostPushByReferenceIsSentAgain) {
  endpoint_.by_reference = true;
  Start(7, Text(large_));
  Flush();
  EXPECT_EQ(Tick(100), Lines{"ANNOUNCE 7/1"});
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{"PUSH 7/2"});
  EXPECT_EQ(last_.payload, large_);
}

TEST_F(StreamSenderTest, Step2iADroppedEagerPushGoesIntoTheSlotOfItsGrant) {
  Start(7, Text(small_));
  Flush();
  Queued(7, 1);
  EXPECT_EQ(Flush(), Lines{});
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1 slot 9@0"});
  Queued(7, 1);  // a late copy
  Grant(7, 1);
  EXPECT_EQ(Flush(), Lines{});
}

TEST_F(StreamSenderTest, APushOfNoBytesNeedsNoSlot) {
  Start(7, {});
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1"});
  EXPECT_EQ(Tick(100), Lines{"ANNOUNCE 7/1"});
  Grant(7, 1, /*slot=*/0);
  EXPECT_EQ(Flush(), Lines{"PUSH 7/2"});
}

TEST_F(StreamSenderTest, Step2gReceivedStopsWhatIsStillQueued) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  endpoint_.room = 1;
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1 slot 9@0"});
  Received(7, 1);
  endpoint_.room = 100;
  queue_->OnWritable(1);
  EXPECT_EQ(Flush(), Lines{});
  EXPECT_TRUE(sender_->active(7));
  EXPECT_TRUE(sender_->Finish(7, 1));
  EXPECT_EQ(released_, std::vector<uint32_t>{7});
}

TEST_F(StreamSenderTest, Step7TheAnswerEndsThePushOnce) {
  Start(7, Text(large_));
  EXPECT_FALSE(sender_->Finish(7, 2));
  EXPECT_FALSE(sender_->Finish(8, 1));
  EXPECT_TRUE(sender_->active(7));
  EXPECT_TRUE(sender_->Finish(7, 1));
  EXPECT_FALSE(sender_->Finish(7, 1));
  EXPECT_FALSE(sender_->active(7));
  EXPECT_EQ(sender_->unfinished(), 0u);
  EXPECT_EQ(Flush(), Lines{}) << "it had not been announced yet";
  EXPECT_EQ(Tick(10000), Lines{});
}

TEST_F(StreamSenderTest, Step7ReleasedComesAfterTheLastStripeIsOut) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  Flush(/*complete=*/false);
  EXPECT_TRUE(sender_->Finish(7, 1));
  EXPECT_TRUE(released_.empty());
  Start(7, Text(small_), 1, 0, /*round=*/2);  // the next round does not wait for that
  EXPECT_EQ(Flush(), Lines{"PUSH 7/1"});
  EXPECT_TRUE(sender_->Finish(7, 2));
  EXPECT_TRUE(released_.empty()) << "in the order of the pushes";
  CompletePending();
  EXPECT_EQ(released_, (std::vector<uint32_t>{7, 7}));
}

TEST_F(StreamSenderTest, OnePushAPartition) {
  Start(7, Text(large_));
  EXPECT_EQ(sender_->Start(1, Push(7, 2), Text(large_), 0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StreamSenderTest, AfterALostLinkTheAttemptRisesAndTheBytesAreTheSame) {
  for (const bool granted : {false, true}) {
    Start(7, Text(large_));
    EXPECT_EQ(Flush(), Lines{"ANNOUNCE 7/1"});
    if (granted) {
      Grant(7, 1);
      Flush();
    }
    sender_->LinkDown(1);
    queue_->LinkDown(1);
    EXPECT_EQ(Tick(1000), Lines{}) << "without a link nobody is asked";
    sender_->Route(7, 2, /*term=*/6, /*incarnation=*/3, /*reply_slot=*/78);
    EXPECT_EQ(Flush(), Lines{"ANNOUNCE 7/2 link 2"});
    EXPECT_EQ(last_.header.term, 6u);
    EXPECT_EQ(last_.header.reply_slot, 78u);
    Grant(7, 1, 9, 2);
    EXPECT_EQ(Flush(), Lines{});
    Grant(7, 2, 11, 2);
    EXPECT_EQ(Flush().size(), 3u);
    EXPECT_EQ(last_.payload, "89");
    EXPECT_TRUE(sender_->Finish(7, 1));
    queue_->LinkUp(1);
  }
}

TEST_F(StreamSenderTest, RouteBeforeAnythingWasSentKeepsTheFirstAttempt) {
  Start(7, Text(large_), /*link=*/0);
  EXPECT_EQ(Flush(), Lines{});
  sender_->Route(7, 1, 5, 3, 0);
  sender_->Route(7, 2, 5, 3, 0);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 7/1 link 2"});
  EXPECT_EQ(sender_->replays(), 0u);
}

TEST_F(StreamSenderTest, RouteOverTheSameLinkAfterRetry) {
  Start(7, Text(small_));
  Flush();
  sender_->Route(7, 1, 6, 3, 77);
  EXPECT_EQ(Flush(), Lines{"PUSH 7/2"});
  EXPECT_EQ(last_.header.term, 6u);
  sender_->Route(7, 0, 6, 3, 0);
  EXPECT_EQ(Tick(10000), Lines{});
}

TEST_F(StreamSenderTest, RouteWhileStripesAreOutWaitsWithReleased) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  endpoint_.room = 2;
  Flush(/*complete=*/false);
  endpoint_.room = 100;
  sender_->Route(7, 2, 6, 3, 0);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 7/2 link 2"}) << "the third stripe is cancelled";
  EXPECT_TRUE(sender_->Finish(7, 1));
  EXPECT_TRUE(released_.empty());
  CompletePending();
  EXPECT_EQ(released_, std::vector<uint32_t>{7});
}

TEST_F(StreamSenderTest, AbandonForgetsAndReleases) {
  Start(7, Text(large_));
  Flush();
  Grant(7, 1);
  Flush(/*complete=*/false);
  sender_->Abandon(7);
  sender_->Abandon(8);
  EXPECT_FALSE(sender_->active(7));
  EXPECT_TRUE(released_.empty());
  CompletePending();
  EXPECT_EQ(released_, std::vector<uint32_t>{7});
}

TEST_F(StreamSenderTest, TheMostUrgentAreAnnouncedFirstUpToTheWindow) {
  Make({.eager_bytes = 4, .resend = 100, .max_announced = 2});
  for (uint32_t p = 0; p < 5; ++p) Start(p, Text(large_), 1, -static_cast<int32_t>(p));
  EXPECT_EQ(Flush(), (Lines{"ANNOUNCE 4/1", "ANNOUNCE 3/1"}));
  Start(9, Text(small_), 1, 100);
  EXPECT_EQ(Flush(), Lines{"PUSH 9/1"}) << "eager ones do not wait for the window";
  Queued(4, 1);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 2/1"}) << "the owner knows of 4; it no longer counts";
  Grant(3, 1);
  Flush();
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 1/1"}) << "3 is out";
  Received(2, 1);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 0/1"});
  Grant(4, 1);
  EXPECT_EQ(Flush().size(), 3u);
}

TEST_F(StreamSenderTest, ALostLinkEmptiesTheWindow) {
  Make({.eager_bytes = 4, .resend = 100, .max_announced = 1});
  Start(1, Text(large_));
  Start(2, Text(large_), 1, 1);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 1/1"});
  sender_->LinkDown(1);
  queue_->LinkDown(1);
  for (const uint32_t p : {2, 1}) sender_->Route(p, 2, 5, 3, 0);
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 1/2 link 2"});
  EXPECT_TRUE(sender_->Finish(1, 1));
  EXPECT_EQ(Flush(), Lines{"ANNOUNCE 2/1 link 2"});
}

TEST_F(StreamSenderTest, EagerPushesWaitForAWritableLink) {
  Start(1, Text(small_), 1, 5);
  Start(2, Text(small_), 1, 1);
  endpoint_.room = 0;
  EXPECT_EQ(Flush(), Lines{});
  endpoint_.room = 100;
  queue_->OnWritable(1);
  EXPECT_EQ(Flush(), (Lines{"PUSH 2/1", "PUSH 1/1"}));
}

TEST_F(StreamSenderTest, OtherFramesAreNotItsBusiness) {
  EXPECT_FALSE(sender_->OnFrame(1, {.type = FrameType::kReply}));
  EXPECT_FALSE(sender_->OnFrame(1, {.type = FrameType::kError}));
  EXPECT_TRUE(sender_->OnFrame(1, {.type = FrameType::kState, .partition = 99}));
}

}  // namespace
}  // namespace sluice::transport
