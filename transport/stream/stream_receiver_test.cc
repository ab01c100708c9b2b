// The receiver against a scripted peer and owner: docs/wire.md, "A push, step by step".
#include "transport/stream/stream_receiver.h"

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "transport/stream/fake_endpoint.h"

namespace sluice::transport {
namespace {

using Admission = StreamReceiver::Admission;

struct ScriptedOwner : StreamReceiver::Owner {
  Admission Admit(LinkId, const FrameHeader& header) override {
    ++admits;
    return answered.contains({header.rank, header.partition}) ? Admission::kAnswered : Admission::kAccept;
  }
  bool Urgent(const FrameHeader& header) const override { return urgent.contains({header.rank, header.partition}); }
  bool Joint(const FrameHeader&) const override { return joint; }
  absl::Status OnContribution(LinkId, const FrameHeader& header, Payload payload) override {
    if (!verdict.ok()) return verdict;
    contributions.push_back(absl::StrCat(header.rank, "/", header.partition, "/", header.attempt, " ",
                                         FakeEndpoint::ToString(payload.bytes())));
    EXPECT_EQ(header.type, FrameType::kPush);
    EXPECT_EQ(header.payload_bytes, payload.size());
    EXPECT_EQ(header.stripe_offset, 0u);
    answered.insert({header.rank, header.partition});
    if (keep) kept.push_back(std::move(payload));
    return absl::OkStatus();
  }
  std::set<std::pair<uint32_t, uint32_t>> answered, urgent;  // rank, partition
  std::vector<std::string> contributions;
  std::vector<Payload> kept;
  absl::Status verdict;
  bool keep = false, joint = true;
  int admits = 0;
};

class StreamReceiverTest : public testing::Test {
 protected:
  StreamReceiverTest() { Make({.pool_bytes = 40, .max_message_bytes = 10}); }
  void Make(StreamReceiverOptions options) {
    queue_ = std::make_unique<LinkQueue>(&endpoint_, &clock_, LinkQueueOptions{}, [](uint64_t) {});
    for (LinkId link = 1; link < 4; ++link) queue_->LinkUp(link);
    receiver_ = std::make_unique<StreamReceiver>(&endpoint_, queue_.get(), &owner_, options);
  }

  static FrameHeader Header(FrameType type, uint32_t rank, uint32_t partition, uint32_t attempt, uint64_t total) {
    return {.type = type, .job = 1, .rank = rank, .incarnation = 3, .tensor = 4, .partition = partition, .term = 5,
            .round = 1, .attempt = attempt, .codec = 2, .total_bytes = total, .elements = 9, .reply_slot = 6};
  }
  void Announce(uint32_t rank, uint32_t partition, uint32_t attempt = 1, uint64_t total = 10, LinkId link = 1) {
    EXPECT_TRUE(receiver_->OnFrame(link, Header(FrameType::kAnnounce, rank, partition, attempt, total), {}));
    receiver_->Pump();  // a turn of its own
  }
  void Eager(uint32_t rank, uint32_t partition, const std::string& text, uint32_t attempt = 1, LinkId link = 1) {
    FrameHeader h = Header(FrameType::kPush, rank, partition, attempt, text.size());
    h.payload_bytes = static_cast<uint32_t>(text.size());
    const auto owner = std::make_shared<std::string>(text);
    EXPECT_TRUE(receiver_->OnFrame(
        link, h, Payload({reinterpret_cast<const std::byte*>(owner->data()), owner->size()}, owner)));
  }
  void Stripe(SlotId slot, uint32_t rank, uint32_t partition, uint64_t offset, const std::string& text,
              uint32_t attempt = 1, LinkId link = 1, uint64_t total = 10) {
    FrameHeader h = Header(FrameType::kPush, rank, partition, attempt, total);
    h.slot = slot, h.stripe_offset = offset, h.payload_bytes = static_cast<uint32_t>(text.size());
    if (!endpoint_.slots.contains(slot)) return;  // a transport drops frames of a closed slot
    EXPECT_TRUE(receiver_->OnFrame(
        link, h, endpoint_.Write(h, {reinterpret_cast<const std::byte*>(text.data()), text.size()})));
  }
  // "GRANT rank/partition/attempt slot", "STATE …  aux", "ERROR … text".
  std::vector<std::string> Answers() {
    queue_->Flush();
    std::vector<std::string> lines;
    for (const FakeEndpoint::Sent& frame : endpoint_.Take()) {
      const FrameHeader& h = frame.header;
      std::string line =
          absl::StrCat(FrameTypeName(h.type).data(), " ", h.rank, "/", h.partition, "/", h.attempt);
      if (h.type == FrameType::kGrant) absl::StrAppend(&line, " ", h.slot);
      if (h.aux != 0) absl::StrAppend(&line, " ", h.aux);
      if (frame.link != 1) absl::StrAppend(&line, " link ", frame.link);
      lines.push_back(line);
      last_ = frame;
    }
    return lines;
  }
  StreamReceiverStats Stats() const { return receiver_->stats(); }
  using Lines = std::vector<std::string>;

  ManualClock clock_;
  FakeEndpoint endpoint_;
  ScriptedOwner owner_;
  std::unique_ptr<LinkQueue> queue_;
  std::unique_ptr<StreamReceiver> receiver_;
  FakeEndpoint::Sent last_;
};

constexpr uint32_t kQueued = static_cast<uint32_t>(PushState::kQueued);

TEST_F(StreamReceiverTest, Step2iAnAnnounceIsGrantedAndStripesInAnyOrderMakeOneContribution) {
  Announce(0, 7);
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/1 100"});
  EXPECT_EQ(last_.header.round, 1u);
  EXPECT_EQ(last_.header.incarnation, 3u);
  EXPECT_EQ(last_.header.term, 5u);
  Stripe(100, 0, 7, 6, "6789");
  EXPECT_TRUE(owner_.contributions.empty());
  Stripe(100, 0, 7, 6, "6789");  // a repeat
  Stripe(100, 0, 7, 0, "012345");
  EXPECT_EQ(owner_.contributions, Lines{"0/7/1 0123456789"});
  EXPECT_TRUE(endpoint_.slots.empty());
  EXPECT_EQ(Stats().pool_used, 0u);
  EXPECT_EQ(Stats().pool_peak, 10u);
  EXPECT_EQ(Stats().grants, 1u);
}

TEST_F(StreamReceiverTest, ASmallPushIsHandedOnAsItIsAndCountedUntilDropped) {
  owner_.keep = true;
  Eager(0, 7, "abcd");
  EXPECT_EQ(owner_.contributions, Lines{"0/7/1 abcd"});
  EXPECT_EQ(endpoint_.allocations, 0);
  EXPECT_EQ(Stats().pool_used, 4u);
  owner_.kept.clear();
  EXPECT_EQ(Stats().pool_used, 0u);
}

TEST_F(StreamReceiverTest, APushByReferenceCostsThePoolNothing) {
  Make({.pool_bytes = 400, .max_message_bytes = 200});
  endpoint_.limits_.max_slotless_bytes = 100;
  owner_.keep = true;
  Eager(0, 7, std::string(101, 'r'));
  EXPECT_EQ(owner_.contributions.size(), 1u);
  EXPECT_EQ(Stats().pool_used, 0u);
}

TEST_F(StreamReceiverTest, Steps2aTo2gWhatTheOwnerAnsweredIsDropped) {
  owner_.answered.insert({0, 7});
  Announce(0, 7);
  Eager(0, 7, "abcd");
  EXPECT_EQ(Answers(), Lines{});
  EXPECT_TRUE(owner_.contributions.empty());
  EXPECT_EQ(Stats().duplicates, 2u);
}

TEST_F(StreamReceiverTest, TheOwnerIsAskedAgainWhenStripesCome) {
  Announce(0, 7);
  Answers();
  owner_.answered.insert({0, 7});  // e.g. the term has changed since the grant
  Stripe(100, 0, 7, 0, "0123456789");
  EXPECT_TRUE(owner_.contributions.empty());
  EXPECT_TRUE(endpoint_.slots.empty());
  EXPECT_EQ(Stats().pool_used, 0u);

  owner_.answered.clear();
  Announce(1, 7);
  Answers();
  Stripe(101, 1, 7, 0, "01234");
  owner_.answered.insert({1, 7});  // … or between the stripes
  Stripe(101, 1, 7, 5, "56789");
  EXPECT_TRUE(owner_.contributions.empty());
  EXPECT_EQ(Stats().pool_used, 0u);
}

TEST_F(StreamReceiverTest, Step5ARepeatedAnnounceGetsTheSameAnswer) {
  Announce(0, 7);
  Announce(0, 7);
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/7/1 100", "GRANT 0/7/1 100"}));
  EXPECT_EQ(Stats().pool_used, 10u);
  Announce(0, 1), Announce(0, 2), Announce(0, 3);
  Announce(0, 3);
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/1/1 101", "GRANT 0/2/1 102", absl::StrCat("STATE 0/3/1 ", kQueued),
                              absl::StrCat("STATE 0/3/1 ", kQueued)}));
  EXPECT_EQ(Stats().waiting, 1u);
}

TEST_F(StreamReceiverTest, ANewerAttemptFreesTheOlderAndStripesNeverMix) {
  Announce(0, 7);
  Stripe(100, 0, 7, 0, "XXXXX");
  Announce(0, 7, 2);
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/7/1 100", "GRANT 0/7/2 101"}));
  EXPECT_EQ(Stats().pool_used, 10u);
  EXPECT_FALSE(endpoint_.slots.contains(100));
  Stripe(101, 0, 7, 5, "56789", /*attempt=*/1);  // a liar's
  EXPECT_EQ(Stats().stale_attempts, 1u);
  Stripe(101, 0, 7, 5, "56789", 2);
  EXPECT_TRUE(owner_.contributions.empty());
  Stripe(101, 0, 7, 0, "01234", 2);
  EXPECT_EQ(owner_.contributions, Lines{"0/7/2 0123456789"});
}

TEST_F(StreamReceiverTest, Step2hAnOlderAttemptIsIgnored) {
  Announce(0, 7, 3);
  Answers();
  Announce(0, 7, 2);
  Eager(0, 7, "abcd", 2);
  EXPECT_EQ(Answers(), Lines{});
  EXPECT_EQ(Stats().stale_attempts, 2u);
  EXPECT_TRUE(owner_.contributions.empty());
}

TEST_F(StreamReceiverTest, ANewIncarnationBeginsItsAttemptsAgain) {
  Announce(0, 7, 3);
  Answers();
  FrameHeader h = Header(FrameType::kAnnounce, 0, 7, 1, 10);
  h.incarnation = 4;
  receiver_->OnFrame(2, h, {});
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/1 101 link 2"});
  EXPECT_EQ(Stats().pool_used, 10u);
}

TEST_F(StreamReceiverTest, Step2iWithoutMemoryItWaitsInOrderAndIsGrantedByItself) {
  owner_.keep = true;
  for (uint32_t p = 0; p < 5; ++p) Announce(0, p);
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/0/1 100", "GRANT 0/1/1 101", "GRANT 0/2/1 102",
                              absl::StrCat("STATE 0/3/1 ", kQueued), absl::StrCat("STATE 0/4/1 ", kQueued)}));
  Stripe(101, 0, 1, 0, "0123456789");
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{});
  owner_.kept.clear();
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/3/1 103"});
  EXPECT_EQ(Stats().waiting, 1u);
  EXPECT_LE(Stats().pool_peak, 30u) << "the reserve is not touched";
}

TEST_F(StreamReceiverTest, LaterAnnouncementsDoNotOvertakeTheQueue) {
  for (uint32_t p = 0; p < 3; ++p) Announce(0, p);
  Announce(0, 3);
  Answers();
  receiver_->LinkDown(9);
  Stripe(100, 0, 0, 0, "0123456789");
  Announce(0, 4, 1, 2);
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/3/1 103", absl::StrCat("STATE 0/4/1 ", kQueued)}));
}

TEST_F(StreamReceiverTest, ALinkHasLittleGrantedAtATime) {
  Make({.pool_bytes = 400, .max_message_bytes = 10, .granted_bytes = 20});
  for (uint32_t p = 0; p < 3; ++p) Announce(0, p);
  Announce(1, 0, 1, 10, /*link=*/2);
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/0/1 100", "GRANT 0/1/1 101", absl::StrCat("STATE 0/2/1 ", kQueued),
                              "GRANT 1/0/1 102 link 2"}));
  Stripe(100, 0, 0, 0, "01234");
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{});
  Stripe(100, 0, 0, 5, "56789");
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/2/1 103"});
}

TEST_F(StreamReceiverTest, TheUrgentIsGrantedFirstAndWhatOthersHaveBegunBeforeIt) {
  Make({.pool_bytes = 400, .max_message_bytes = 10, .granted_bytes = 10});
  const auto announce = [&](uint32_t rank, uint32_t partition, int32_t priority, LinkId link) {
    FrameHeader h = Header(FrameType::kAnnounce, rank, partition, 1, 10);
    h.aux = static_cast<uint32_t>(priority);
    EXPECT_TRUE(receiver_->OnFrame(link, h, {}));
  };
  for (uint32_t p = 0; p < 4; ++p) announce(0, p, -static_cast<int32_t>(p), 1);  // in one turn: the last is the most urgent
  receiver_->Pump();
  EXPECT_EQ(Answers(), (Lines{"GRANT 0/3/1 100", absl::StrCat("STATE 0/0/1 ", kQueued),
                              absl::StrCat("STATE 0/1/1 ", kQueued), absl::StrCat("STATE 0/2/1 ", kQueued)}));
  Announce(1, 9, 1, 10, 2);
  announce(1, 4, -4, 2), announce(1, 3, -3, 2);
  receiver_->Pump();
  Answers();
  Stripe(101, 1, 9, 0, "0123456789", 1, 2);
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 1/3/1 102 link 2"}) << "its round is begun, that of the more urgent 4 is not";
  Eager(2, 0, "ab", 1, 3);  // what comes without a grant begins a round, too
  Stripe(100, 0, 3, 0, "0123456789");
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/0/1 103"});
}

TEST_F(StreamReceiverTest, AnEagerPushWithoutMemoryIsDroppedAndGrantedLater) {
  for (uint32_t p = 0; p < 3; ++p) Announce(0, p);
  Answers();
  Eager(1, 7, "abcd");
  EXPECT_EQ(Answers(), Lines{absl::StrCat("STATE 1/7/1 ", kQueued)});
  EXPECT_TRUE(owner_.contributions.empty());
  EXPECT_EQ(Stats().dropped_eager, 1u);
  Eager(1, 7, "abcd");  // the network repeats it: it keeps its place
  EXPECT_EQ(Stats().waiting, 1u);
  Answers();
  Stripe(100, 0, 0, 0, "0123456789");
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 1/7/1 103"});
  Stripe(103, 1, 7, 0, "abcd", 1, 1, /*total=*/4);
  EXPECT_EQ(owner_.contributions.back(), "1/7/1 abcd");
}

TEST_F(StreamReceiverTest, AnEagerCopyOfAGrantedPushIsTakenAndFreesTheSlot) {
  Announce(0, 7, 1, 4);
  Answers();
  Eager(0, 7, "abcd");
  EXPECT_EQ(owner_.contributions, Lines{"0/7/1 abcd"});
  EXPECT_TRUE(endpoint_.slots.empty());
  EXPECT_EQ(Stats().pool_used, 0u);
}

TEST_F(StreamReceiverTest, TheReserveIsForTheUrgent) {
  owner_.keep = true;
  for (uint32_t p = 0; p < 3; ++p) Announce(1, p);
  Announce(2, 0);
  owner_.urgent.insert({0, 0});
  Announce(0, 0);
  EXPECT_EQ(Answers(), (Lines{"GRANT 1/0/1 100", "GRANT 1/1/1 101", "GRANT 1/2/1 102",
                              absl::StrCat("STATE 2/0/1 ", kQueued), "GRANT 0/0/1 103"}));
  EXPECT_EQ(Stats().pool_used, 40u);
  owner_.urgent.insert({0, 1});
  Announce(0, 1);
  EXPECT_EQ(Answers(), Lines{absl::StrCat("STATE 0/1/1 ", kQueued)}) << "one at a time";
  owner_.keep = false;
  Stripe(103, 0, 0, 0, "0123456789");
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/1/1 104"});
}

TEST_F(StreamReceiverTest, AWaitingPushThatBecomesUrgentIsGranted) {
  owner_.keep = true;
  for (uint32_t p = 0; p < 3; ++p) Announce(1, p);
  Announce(2, 0);
  Answers();
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{});
  owner_.urgent.insert({2, 0});
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 2/0/1 103"});
}

TEST_F(StreamReceiverTest, OfManyWaitingTheOneThatAContributionMadeUrgentIsFoundAtOnce) {
  Make({.pool_bytes = 20, .max_message_bytes = 10});
  owner_.keep = true;
  Eager(5, 500, "0123456789");  // fills what is not reserve
  for (uint32_t p = 0; p < 1000; ++p) Announce(1, p);
  for (uint32_t p = 0; p < 1000; ++p) Announce(2, p);
  Answers();
  receiver_->Pump();
  owner_.urgent.insert({0, 900});
  Announce(0, 900);
  EXPECT_EQ(Answers(), Lines{"GRANT 0/900/1 100"});
  owner_.keep = false;
  Stripe(100, 0, 900, 0, "0123456789");
  owner_.urgent = {{1, 900}};
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 1/900/1 101"});
}

// --- pushes that neither pool nor reserve holds: 10 bytes is the most of the pool here, 25 beside it

const std::string kLarge = "0123456789abcdefghijklmno";

TEST_F(StreamReceiverTest, AnOversizePushIsTakenBesideThePoolWhenItIsUrgentAndOneAtATime) {
  Make({.pool_bytes = 40, .max_message_bytes = 10, .max_oversize_bytes = 25});
  Announce(1, 7, 1, 25);
  EXPECT_EQ(Answers(), Lines{absl::StrCat("STATE 1/7/1 ", kQueued)});
  owner_.urgent = {{0, 7}, {0, 8}};
  Announce(0, 8, 1, 20);
  EXPECT_EQ(Answers(), Lines{"GRANT 0/8/1 100"});
  Announce(0, 7, 1, 25);
  EXPECT_EQ(Answers(), Lines{absl::StrCat("STATE 0/7/1 ", kQueued)}) << "one at a time";
  Announce(2, 9);
  EXPECT_EQ(Answers(), Lines{"GRANT 2/9/1 101"}) << "others do not wait behind them";
  EXPECT_EQ(Stats().oversize_used, 20u);
  EXPECT_EQ(Stats().pool_used, 10u);
  Stripe(100, 0, 8, 0, kLarge.substr(0, 20), 1, 1, 20);
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/1 102"});
  Stripe(102, 0, 7, 0, kLarge, 1, 1, 25);
  owner_.urgent = {{1, 7}};
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 1/7/1 103"});
  Stripe(103, 1, 7, 0, kLarge, 1, 1, 25);
  EXPECT_EQ(owner_.contributions, (Lines{"0/8/1 " + kLarge.substr(0, 20), "0/7/1 " + kLarge, "1/7/1 " + kLarge}));
  EXPECT_EQ(Stats().oversize_used, 0u);
  EXPECT_EQ(Stats().oversize_peak, 25u);
  EXPECT_EQ(Stats().waiting, 0u);
}

TEST_F(StreamReceiverTest, OversizePushesThatCloseNoRoundTogetherGoByPriorityThenComing) {
  Make({.pool_bytes = 40, .max_message_bytes = 10, .max_oversize_bytes = 25});
  owner_.joint = false;
  owner_.keep = true;
  Announce(3, 7, 1, 25);
  EXPECT_EQ(Answers(), Lines{"GRANT 3/7/1 100"});
  Announce(2, 7, 1, 25);
  Announce(1, 7, 1, 25);
  Answers();
  Stripe(100, 3, 7, 0, kLarge, 1, 1, 25);
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{}) << "the memory is in use until the owner drops it";
  owner_.kept.clear();
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 2/7/1 101"});
}

TEST_F(StreamReceiverTest, ALostLinkGivesTheOversizeGrantToTheNext) {
  Make({.pool_bytes = 40, .max_message_bytes = 10, .max_oversize_bytes = 25});
  owner_.urgent = {{0, 7}, {0, 8}};
  Announce(0, 7, 1, 25);
  Announce(0, 8, 1, 25, 2);
  Answers();
  receiver_->LinkDown(1);
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/8/1 101 link 2"});
  endpoint_.busy_slots = {101};   // forgotten while a stripe is landing: its memory is in use for a while
  receiver_->ForgetPartition(8);
  Announce(0, 7, 2, 25);
  EXPECT_EQ(Answers(), Lines{absl::StrCat("STATE 0/7/2 ", kQueued)});
  receiver_->OnSlotClosed(2, 101);
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/2 102"});
}

TEST_F(StreamReceiverTest, BeyondOversizeTheLinkEnds) {
  Make({.pool_bytes = 40, .max_message_bytes = 10, .max_oversize_bytes = 25});
  owner_.urgent = {{0, 7}};
  Announce(0, 7, 1, 26);
  EXPECT_TRUE(endpoint_.closed.contains(1));
  EXPECT_EQ(Stats().oversize_used + Stats().waiting, 0u);
}

TEST_F(StreamReceiverTest, Step4ABadPayloadIsAnsweredAndForgotten) {
  owner_.verdict = absl::DataLossError("tensor w, partition 7, rank 0: not an encoding");
  Announce(0, 7);
  Answers();
  Stripe(100, 0, 7, 0, "0123456789");
  EXPECT_EQ(Answers(), Lines{"ERROR 0/7/1"});
  EXPECT_EQ(last_.header.status, static_cast<uint16_t>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(last_.payload, "tensor w, partition 7, rank 0: not an encoding");
  EXPECT_EQ(Stats().pool_used, 0u);
  EXPECT_EQ(Stats().corrupt, 1u);
  EXPECT_TRUE(endpoint_.slots.empty());
  owner_.verdict = absl::OkStatus();
  Announce(0, 7, 2);
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/2 101"});
}

TEST_F(StreamReceiverTest, WhoBreaksTheProtocolLosesTheLink) {
  Announce(0, 1, 1, 11, /*link=*/1);  // too large
  EXPECT_TRUE(endpoint_.closed.contains(1));
  Announce(0, 2, 1, 10, /*link=*/2);
  Stripe(100, 0, 2, 0, "01234", 1, 2);
  Stripe(100, 0, 2, 4, "45", 1, 2);  // overlaps
  EXPECT_TRUE(endpoint_.closed.contains(2));
  EXPECT_EQ(Stats().pool_used, 0u);
  FrameHeader h = Header(FrameType::kPush, 0, 3, 1, 100);
  h.payload_bytes = 4;
  receiver_->OnFrame(3, h, {});  // a stripe without a slot
  EXPECT_TRUE(endpoint_.closed.contains(3));
  EXPECT_EQ(Answers(), (Lines{"ERROR 0/1/1", "GRANT 0/2/1 100 link 2", "ERROR 0/2/1 link 2", "ERROR 0/3/1 link 3"}));
  EXPECT_EQ(last_.header.status, static_cast<uint16_t>(absl::StatusCode::kInvalidArgument));
}

TEST_F(StreamReceiverTest, StripesOfAnotherMessageAreDropped) {
  Announce(0, 7);
  Answers();
  FrameHeader h = Header(FrameType::kPush, 0, 7, 1, 10);
  h.slot = 100, h.payload_bytes = 10;
  const std::string text = "0123456789";
  const auto send = [&](FrameHeader frame, LinkId link = 1) {
    receiver_->OnFrame(link, frame, endpoint_.Write(h, {reinterpret_cast<const std::byte*>(text.data()), 10}));
  };
  FrameHeader codec = h, elements = h, rank = h;
  codec.codec = 9, elements.elements = 8, rank.rank = 1;
  send(codec), send(elements), send(rank), send(h, 2);
  EXPECT_TRUE(owner_.contributions.empty());
  EXPECT_EQ(Stats().stale_attempts, 4u);
  send(h);
  EXPECT_EQ(owner_.contributions.size(), 1u);
}

TEST_F(StreamReceiverTest, LinkDownForgetsItsPushes) {
  for (uint32_t p = 0; p < 3; ++p) Announce(0, p, 1, 10, /*link=*/1);
  Announce(0, 3, 1, 10, 1);
  Announce(1, 4, 1, 10, /*link=*/2);
  Answers();
  Stripe(100, 0, 0, 0, "01234");
  EXPECT_EQ(Stats().waiting, 2u);
  receiver_->LinkDown(1);
  EXPECT_EQ(Stats().pool_used, 0u);
  EXPECT_EQ(Stats().partial, 0u);
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 1/4/1 103 link 2"});
  Announce(0, 0, 2, 10, /*link=*/3);
  EXPECT_EQ(Answers(), Lines{"GRANT 0/0/2 104 link 3"});
}

TEST_F(StreamReceiverTest, MemoryUnderAFrameThatIsLandingIsNotGivenAwayBeforeTheSlotIsClosed) {
  Announce(0, 7);
  Answers();
  endpoint_.busy_slots.insert(100);
  Announce(0, 7, 2);  // the older attempt is dropped while a frame lands in its slot
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/2 101"});
  EXPECT_EQ(Stats().pool_used, 20u);
  receiver_->OnSlotClosed(1, 100);
  EXPECT_EQ(Stats().pool_used, 10u);

  endpoint_.busy_slots = {101};  // the push is complete, and a repeat of a stripe is landing
  Stripe(101, 0, 7, 0, "0123456789", 2);
  EXPECT_TRUE(owner_.contributions.empty());
  receiver_->OnSlotClosed(1, 101);
  EXPECT_EQ(owner_.contributions, Lines{"0/7/2 0123456789"});
  EXPECT_EQ(Stats().pool_used, 0u);

  Announce(0, 8);
  Answers();
  endpoint_.busy_slots = {102};
  receiver_->ForgetPartition(8);
  EXPECT_EQ(Stats().pool_used, 10u);
  receiver_->LinkDown(1);
  EXPECT_EQ(Stats().pool_used, 0u) << "a dead link's slots are closed";
}

TEST_F(StreamReceiverTest, ForgetsRanksAndPartitions) {
  Announce(0, 1);
  Announce(1, 1);
  Announce(1, 2);
  EXPECT_EQ(Stats().pool_used, 30u);
  receiver_->ForgetRank(1, 3);
  EXPECT_EQ(Stats().pool_used, 30u) << "incarnation 3 is not below 3";
  receiver_->ForgetRank(1, 4, /*job=*/2);
  EXPECT_EQ(Stats().pool_used, 30u);
  receiver_->ForgetRank(1, 4);
  EXPECT_EQ(Stats().pool_used, 10u);
  receiver_->ForgetPartition(1);
  EXPECT_EQ(Stats().pool_used, 0u);
  EXPECT_TRUE(endpoint_.slots.empty());
}

TEST_F(StreamReceiverTest, TheQueueOfAnnouncementsIsBounded) {
  Make({.pool_bytes = 20, .max_message_bytes = 10, .max_waiting = 2});
  for (uint32_t p = 0; p < 4; ++p) Announce(0, p);
  EXPECT_EQ(Answers(),
            (Lines{"GRANT 0/0/1 100", absl::StrCat("STATE 0/1/1 ", kQueued), absl::StrCat("STATE 0/2/1 ", kQueued),
                   absl::StrCat("RETRY 0/3/1 ", static_cast<uint32_t>(RetryReason::kBusy))}));
  EXPECT_EQ(Stats().waiting, 2u);
}

TEST_F(StreamReceiverTest, AMachineOutOfMemoryIsAsAnEmptyPool) {
  endpoint_.fail_allocate = true;
  Announce(0, 7);
  EXPECT_EQ(Answers(), Lines{absl::StrCat("STATE 0/7/1 ", kQueued)});
  endpoint_.fail_allocate = false;
  receiver_->Pump();
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/1 100"});
}

TEST_F(StreamReceiverTest, AMessageOfNoBytes) {
  Announce(0, 7, 1, 0);
  EXPECT_EQ(Answers(), Lines{"GRANT 0/7/1 0"});
  Eager(0, 7, "", 2);
  EXPECT_EQ(owner_.contributions, Lines{"0/7/2 "});
}

TEST_F(StreamReceiverTest, BuffersAreUsedAgain) {
  Make({.pool_bytes = 1 << 20, .max_message_bytes = 1 << 18});
  for (uint32_t p = 0; p < 20; ++p) {
    Announce(0, p, 1, 10000 + p);
    Stripe(100 + p, 0, p, 0, std::string(10000 + p, 'x'), 1, 1, 10000 + p);
  }
  EXPECT_EQ(owner_.contributions.size(), 20u);
  EXPECT_EQ(endpoint_.allocations, 1);
}

TEST_F(StreamReceiverTest, PayloadsMayOutliveTheReceiver) {
  owner_.keep = true;
  Announce(0, 7);
  Eager(1, 7, "abcd");
  Answers();
  Stripe(100, 0, 7, 0, "0123456789");
  receiver_.reset();
  EXPECT_EQ(FakeEndpoint::ToString(owner_.kept[1].bytes()), "0123456789");
  owner_.kept.clear();
}

}  // namespace
}  // namespace sluice::transport
