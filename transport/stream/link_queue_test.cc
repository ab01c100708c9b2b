#include "transport/stream/link_queue.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "transport/stream/fake_endpoint.h"

namespace sluice::transport {
namespace {

ConstBytes Text(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

class LinkQueueTest : public testing::Test {
 protected:
  LinkQueue& Make(LinkQueueOptions options) {
    queue_ = std::make_unique<LinkQueue>(&endpoint_, &clock_, options, [this](uint64_t key) { ++released_[key]; });
    queue_->LinkUp(1);
    return *queue_;
  }
  static FrameHeader Header(uint32_t partition, SlotId slot = 0) {
    return {.type = FrameType::kPush, .partition = partition, .slot = slot};
  }
  // OnSent for everything lent so far.
  void Complete() {
    for (const FakeEndpoint::Sent& frame : endpoint_.Take())
      if (frame.cookie != 0) { EXPECT_TRUE(queue_->OnSent(frame.link, frame.cookie)); }
    for (const uint64_t cookie : std::exchange(endpoint_.batch_cookies, {})) EXPECT_TRUE(queue_->OnSent(1, cookie));
  }
  std::vector<uint32_t> SentPartitions() {
    std::vector<uint32_t> partitions;
    for (const FakeEndpoint::Sent& frame : endpoint_.sent) partitions.push_back(frame.header.partition);
    return partitions;
  }

  ManualClock clock_;
  FakeEndpoint endpoint_;
  std::map<uint64_t, int> released_;
  std::unique_ptr<LinkQueue> queue_;
};

TEST_F(LinkQueueTest, FusesSmallFramesUntilFlush) {
  LinkQueue& queue = Make({.fusion_bytes = 1000, .fuse_below = 100});
  for (uint32_t i = 0; i < 3; ++i) queue.SendSmall(1, Header(i), Text("abc"));
  EXPECT_TRUE(endpoint_.sent.empty());
  queue.Flush();
  EXPECT_EQ(endpoint_.batches, 1);
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(endpoint_.sent[1].payload, "abc");
  EXPECT_EQ(endpoint_.size_errors, 0);
  queue.Flush();
  EXPECT_EQ(endpoint_.sent.size(), 3u);
}

TEST_F(LinkQueueTest, OneFrameGoesWithoutABatch) {
  LinkQueue& queue = Make({});
  queue.SendSmall(1, Header(7), Text("abc"));
  queue.Flush();
  ASSERT_EQ(endpoint_.sent.size(), 1u);
  EXPECT_EQ(endpoint_.batches, 0);
  EXPECT_EQ(endpoint_.sent[0].payload, "abc");
  EXPECT_EQ(endpoint_.sent[0].header.total_bytes, 3u);
  EXPECT_EQ(endpoint_.size_errors, 0);
  EXPECT_TRUE(queue.OnSent(1, endpoint_.sent[0].cookie));
  EXPECT_FALSE(queue.OnSent(1, endpoint_.sent[0].cookie));
  EXPECT_FALSE(queue.OnSent(1, 12345)) << "a cookie of somebody else";
}

TEST_F(LinkQueueTest, AFullBatchGoesBeforeFlushAndOrderIsKept) {
  LinkQueue& queue = Make({.fusion_bytes = 600, .fuse_below = 100});
  const std::string big(101, 'b');
  for (uint32_t i = 0; i < 5; ++i) queue.SendSmall(1, Header(i), Text("abc"));
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{0, 1, 2, 3})) << "4 frames of 136 bytes fit 600";
  queue.SendSmall(1, Header(5), Text(big));  // too large to be fused
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(endpoint_.sent[5].payload, big);
  EXPECT_EQ(endpoint_.size_errors, 0);
}

TEST_F(LinkQueueTest, WithoutFusionEveryFrameGoesAtOnce) {
  LinkQueue& queue = Make({.fusion_bytes = 0});
  queue.SendSmall(1, Header(1), Text("abc"));
  queue.SendSmall(1, Header(2), {});
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(endpoint_.batches, 0);
}

TEST_F(LinkQueueTest, ABatchKeepsTheEndpointsLimit) {
  endpoint_.limits_.max_slotless_bytes = 300;
  LinkQueue& queue = Make({});
  for (uint32_t i = 0; i < 4; ++i) queue.SendSmall(1, Header(i), Text("abc"));
  queue.Flush();
  EXPECT_EQ(endpoint_.batches, 2);
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST_F(LinkQueueTest, PayloadsWaitForTheCycleAndControlFramesDoNot) {
  LinkQueue& queue = Make({.fusion_cycle = 100});
  EXPECT_EQ(queue.NextDeadline(), std::numeric_limits<TimeNs>::max());
  queue.SendSmall(1, Header(1), Text("abc"));
  const TimeNs start = clock_.Now();
  queue.Flush();
  EXPECT_TRUE(endpoint_.sent.empty());
  EXPECT_EQ(queue.NextDeadline(), start + 100);
  clock_.Advance(99);
  queue.Flush();
  EXPECT_TRUE(endpoint_.sent.empty());
  clock_.Advance(1);
  queue.Flush();
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{1}));
  EXPECT_EQ(queue.NextDeadline(), std::numeric_limits<TimeNs>::max());

  queue.SendSmall(1, Header(2), Text("abc"));
  queue.SendSmall(1, {.type = FrameType::kGrant, .partition = 3}, {});
  queue.Flush();
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{1, 2, 3}));
}

TEST_F(LinkQueueTest, LargeMessagesGoInStripesAndAreReleasedOnce) {
  LinkQueue& queue = Make({.stripe_bytes = 4});
  const std::string text = "0123456789";
  queue.SendLarge(1, Header(1, 9), Text(text), 0, 77, false);
  EXPECT_TRUE(endpoint_.sent.empty()) << "not before Flush";
  queue.Flush();
  ASSERT_EQ(endpoint_.sent.size(), 3u);
  std::string joined;
  for (const FakeEndpoint::Sent& frame : endpoint_.sent) {
    EXPECT_EQ(frame.header.stripe_offset, joined.size());
    EXPECT_EQ(frame.header.total_bytes, 10u);
    EXPECT_EQ(frame.header.slot, 9u);
    joined += frame.payload;
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(endpoint_.size_errors, 0);
  const auto sent = endpoint_.Take();
  EXPECT_TRUE(queue.OnSent(1, sent[2].cookie));
  EXPECT_TRUE(queue.OnSent(1, sent[0].cookie));
  EXPECT_EQ(released_[77], 0);
  EXPECT_TRUE(queue.OnSent(1, sent[1].cookie));
  EXPECT_EQ(released_[77], 1);
}

TEST_F(LinkQueueTest, ByReferenceAndSlotlessMessagesGoWhole) {
  LinkQueue& queue = Make({.stripe_bytes = 4});
  const std::string text = "0123456789";
  queue.SendLarge(1, Header(1, 9), Text(text), 0, 1, /*by_reference=*/true);
  queue.SendLarge(1, Header(2), Text(text), 0, 2, false);
  queue.SendLarge(1, Header(3), {}, 0, 3, false);
  queue.Flush();
  ASSERT_EQ(endpoint_.sent.size(), 3u);
  EXPECT_EQ(endpoint_.sent[0].payload, text);
  EXPECT_EQ(endpoint_.sent[1].payload, text);
  Complete();
  EXPECT_EQ(released_, (std::map<uint64_t, int>{{1, 1}, {2, 1}, {3, 1}}));
}

TEST_F(LinkQueueTest, TheUrgentOvertakesWhatWaitsButNotWhatWasBegun) {
  LinkQueue& queue = Make({.stripe_bytes = 1});
  const std::string bulk = "bbbbb", urgent = "uu";
  endpoint_.room = 2;
  queue.SendLarge(1, Header(1, 1), Text(bulk), 10, 1, false);
  queue.Flush();
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{1, 1}));
  queue.SendLarge(1, Header(2, 3), Text(bulk), 10, 2, false);  // ties go in order
  queue.SendLarge(1, Header(3, 2), Text(urgent), -5, 3, false);
  endpoint_.room = 100;
  queue.OnWritable(1);
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{1, 1, 1, 1, 1, 3, 3, 2, 2, 2, 2, 2}));
}

TEST_F(LinkQueueTest, AfterACancelledMessageThatWasBegunTheMostUrgentIsNext) {
  LinkQueue& queue = Make({.stripe_bytes = 1});
  const std::string bulk = "bbbbb", urgent = "uu";
  endpoint_.room = 2;
  queue.SendLarge(1, Header(1, 1), Text(bulk), 10, 1, false);
  queue.Flush();
  queue.SendLarge(1, Header(2, 3), Text(bulk), 10, 2, false);
  queue.SendLarge(1, Header(3, 2), Text(urgent), -5, 3, false);
  queue.Cancel(1);
  endpoint_.room = 100;
  queue.OnWritable(1);
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{1, 1, 3, 3, 2, 2, 2, 2, 2}));
}

TEST_F(LinkQueueTest, WithinATurnTheUrgentGoesFirst) {
  LinkQueue& queue = Make({});
  const std::string text = "x";
  for (uint32_t i = 0; i < 4; ++i) queue.SendLarge(1, Header(i, 1), Text(text), -static_cast<int32_t>(i), i, false);
  queue.Flush();
  EXPECT_EQ(SentPartitions(), (std::vector<uint32_t>{3, 2, 1, 0}));
}

TEST_F(LinkQueueTest, CancelDropsWhatWaitsAndReleasesAfterWhatIsOut) {
  LinkQueue& queue = Make({.stripe_bytes = 1});
  const std::string text = "abcdef";
  endpoint_.room = 2;
  queue.SendLarge(1, Header(1, 1), Text(text), 0, 1, false);
  queue.SendLarge(1, Header(2, 1), Text(text), 0, 2, false);
  queue.Flush();
  queue.Cancel(2);
  EXPECT_EQ(released_[2], 1) << "nothing of it was out: from inside the call";
  queue.Cancel(1);
  EXPECT_EQ(released_[1], 0);
  queue.Cancel(1);
  queue.Cancel(999);
  endpoint_.room = 100;
  queue.OnWritable(1);
  EXPECT_EQ(endpoint_.sent.size(), 2u);
  Complete();
  EXPECT_EQ(released_, (std::map<uint64_t, int>{{1, 1}, {2, 1}}));
}

TEST_F(LinkQueueTest, AKeyIsReleasedWithItsLastMessage) {
  LinkQueue& queue = Make({});
  queue.LinkUp(2);
  const std::string text = "abc";
  queue.SendLarge(1, Header(1, 1), Text(text), 0, 5, false);
  queue.SendLarge(2, Header(1, 1), Text(text), 0, 5, false);
  queue.Flush();
  const auto sent = endpoint_.Take();
  queue.OnSent(1, sent[0].cookie);
  EXPECT_EQ(released_[5], 0);
  queue.OnSent(2, sent[1].cookie);
  EXPECT_EQ(released_[5], 1);
}

TEST_F(LinkQueueTest, LinkDownDropsAndReleases) {
  LinkQueue& queue = Make({.stripe_bytes = 1});
  const std::string text = "abc";
  endpoint_.room = 1;
  queue.SendLarge(1, Header(1, 1), Text(text), 0, 1, false);
  queue.SendLarge(1, Header(2, 1), Text(text), 0, 2, false);
  queue.SendSmall(1, Header(3), Text(text));
  queue.Flush();
  Complete();  // a transport calls OnSent for all before OnDown
  queue.LinkDown(1);
  EXPECT_EQ(released_, (std::map<uint64_t, int>{{1, 1}, {2, 1}}));
  queue.SendSmall(1, Header(4), Text(text));
  queue.SendLarge(1, Header(5, 1), Text(text), 0, 5, false);
  EXPECT_EQ(released_[5], 0);
  endpoint_.room = 100;
  queue.Flush();
  EXPECT_EQ(released_[5], 1) << "a message for a dead link is released at the next Flush";
  EXPECT_TRUE(endpoint_.sent.empty());
}

TEST_F(LinkQueueTest, AReleasedCallbackMaySendAgain) {
  int again = 3;
  const std::string text = "abc";
  queue_ = std::make_unique<LinkQueue>(&endpoint_, &clock_, LinkQueueOptions{}, [&](uint64_t key) {
    ++released_[key];
    if (again-- > 0) queue_->SendLarge(1, Header(1, 1), Text(text), 0, key, false);
  });
  queue_->LinkUp(1);
  queue_->SendLarge(1, Header(1, 1), Text(text), 0, 1, false);
  for (int i = 0; i < 10; ++i) {
    queue_->Flush();
    Complete();
  }
  EXPECT_EQ(released_[1], 4);
}

// Random calls against the promise: each enqueued key is released once, and only when nothing of it is lent.
TEST_F(LinkQueueTest, AnObserverIsToldWhenEachMessageWasQueuedBegunAndLetGoOf) {
  LinkQueue& queue = Make({.stripe_bytes = 2, .fusion_bytes = 1000, .fusion_cycle = 5, .fuse_below = 3});
  std::map<uint32_t, SendTimes> told;
  queue.ObserveSends([&](const FrameHeader& header, const SendTimes& times) {
    EXPECT_TRUE(told.emplace(header.partition, times).second) << header.partition;
    EXPECT_TRUE(released_.empty()) << "the memory is the queue's until it has told";
  });
  const auto expect = [&](uint32_t partition, TimeNs queued, TimeNs begun, TimeNs done) {
    ASSERT_TRUE(told.contains(partition)) << partition;
    EXPECT_EQ(told[partition].queued, queued) << partition;
    EXPECT_EQ(told[partition].begun, begun) << partition;
    EXPECT_EQ(told[partition].done, done) << partition;
  };
  const std::string text = "0123456";
  const TimeNs start = clock_.Now();
  endpoint_.room = 0;
  queue.SendLarge(1, Header(1, 50), Text(text), 0, 8, false);
  queue.SendSmall(1, Header(2), Text("abc"));
  clock_.Advance(1);
  queue.SendSmall(1, Header(3), Text("abc"));
  clock_.Advance(4);
  queue.Flush();  // the batch's cycle is over; the large one finds no room
  clock_.Advance(5);
  endpoint_.room = 1;
  queue.OnWritable(1);  // its first stripe
  EXPECT_TRUE(told.empty());
  clock_.Advance(10);
  Complete();
  expect(2, start, start + 5, start + 20);
  expect(3, start + 1, start + 5, start + 20);
  EXPECT_EQ(told.size(), 2u) << "three stripes are missing";
  endpoint_.room = 10;
  queue.OnWritable(1);
  clock_.Advance(10);
  EXPECT_TRUE(released_.empty());
  queue.ObserveSends([&](const FrameHeader& header, const SendTimes& times) { told[header.partition] = times; });
  Complete();
  expect(1, start, start + 10, start + 30);
  EXPECT_EQ(released_[8], 1);

  queue.SendSmall(1, Header(4), Text(text));  // too large to be fused: the endpoint copies it
  expect(4, start + 30, start + 30, start + 30);
  queue.SendSmall(1, Header(5), {});  // nothing to be sent
  queue.SendLarge(1, Header(6, 50), Text(text), 0, 9, false);
  queue.Cancel(9);
  queue.Flush();
  EXPECT_EQ(told.size(), 4u);
  EXPECT_EQ(released_[9], 1);
}

TEST_F(LinkQueueTest, EveryKeyIsReleasedExactlyOnceWhateverHappens) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    PhiloxRandom random(seed);
    FakeEndpoint endpoint;
    std::map<uint64_t, int> released, lent;
    std::map<uint64_t, uint64_t> cookies;
    LinkQueue queue(&endpoint, &clock_, {.stripe_bytes = 2}, [&](uint64_t key) {
      ++released[key];
      EXPECT_EQ(lent[key], 0);
    });
    const std::string text = "0123456789";
    uint64_t next = 1;
    LinkId link = 1;
    queue.LinkUp(link);
    const auto take = [&] {
      for (const FakeEndpoint::Sent& frame : endpoint.Take()) {
        cookies[frame.cookie] = frame.header.aux64;
        ++lent[frame.header.aux64];
      }
    };
    const auto complete = [&](std::map<uint64_t, uint64_t>::iterator it) {
      const auto [cookie, key] = *it;
      cookies.erase(it);
      --lent[key];
      EXPECT_TRUE(queue.OnSent(link, cookie));
    };
    for (int i = 0; i < 100; ++i) {
      endpoint.room = static_cast<int>(random.Below(4));
      switch (random.Below(6)) {
        case 0:
        case 1: {
          FrameHeader header = Header(1, random.Below(2));
          header.aux64 = next;
          queue.SendLarge(link, header, Text(text), static_cast<int32_t>(random.Below(3)), next++, random.Below(2) == 0);
          break;
        }
        case 2: queue.Cancel(1 + random.Below(static_cast<uint32_t>(next))); break;
        case 3: queue.Flush(); break;
        case 4:
          take();
          if (!cookies.empty()) complete(std::next(cookies.begin(), random.Below(static_cast<uint32_t>(cookies.size()))));
          break;
        case 5:
          if (random.Below(10) != 0) break;
          take();
          while (!cookies.empty()) complete(cookies.begin());
          queue.LinkDown(link++);
          queue.LinkUp(link);
          break;
      }
      take();
    }
    while (!cookies.empty()) complete(cookies.begin());
    queue.LinkDown(link);
    for (uint64_t key = 1; key < next; ++key) EXPECT_EQ(released[key], 1) << "seed " << seed << " key " << key;
  }
}

}  // namespace
}  // namespace sluice::transport
