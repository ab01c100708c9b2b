#include "rdma/queue_pair.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "rdma/fake/fabric.h"

namespace sluice::rdma {
namespace {

std::vector<std::byte> Text(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::transform(text.begin(), text.end(), bytes.begin(), [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

// One process: a host with a device, and what its queue pairs told it.
class Node : public QueuePair::Owner {
 public:
  Node(fake::Host& h, const std::string& device = "fake0", size_t bytes = 1 << 16) : host(h), memory(bytes) {
    region = registry.Add(memory.data(), memory.size());
    context = std::move(Context::Open(&host, host.RailOf(device), {.memory = &registry, .seed = 1})).value();
    domain = context->DomainOf(1).value();
  }

  std::unique_ptr<QueuePair> Make(const QueuePairOptions& options = {}) {
    auto qp = QueuePair::Create(domain, options, this);
    EXPECT_TRUE(qp.ok()) << qp.status();
    return std::move(qp).value();
  }
  // Hands out all completions; those of queue pairs that are gone go to nobody.
  void Poll(std::vector<QueuePair*> qps, TimeNs now = 0) {
    ASSERT_TRUE(context
                    ->Poll([&](const ibv_wc& wc) {
                      for (QueuePair* qp : qps) {
                        if (qp->number() == wc.qp_num) qp->OnCompletion(wc, now);
                      }
                    })
                    .ok());
  }
  Domain::Keys Keys() { return *domain->Find(ConstBytes(memory)); }
  uint64_t Address() const { return reinterpret_cast<uintptr_t>(memory.data()); }

  void QpDone(QueuePair&, uint64_t cookie) override { done.push_back(cookie); }
  void QpPacket(QueuePair&, ConstBytes packet) override {
    packets.emplace_back(reinterpret_cast<const char*>(packet.data()), packet.size());
  }
  void QpNotice(QueuePair&, uint32_t tag) override { notices.push_back(tag); }

  fake::Host& host;
  std::vector<std::byte> memory;
  MemoryRegistry registry;
  MemoryRegistry::Handle region;
  std::unique_ptr<Context> context;
  Domain* domain = nullptr;
  std::vector<uint64_t> done;
  std::vector<std::string> packets;
  std::vector<uint32_t> notices;
};

class QueuePairTest : public testing::Test {
 protected:
  explicit QueuePairTest(const fake::FabricOptions& options = {})
      : fabric_(options), a_host_(fabric_.AddHost("a")), b_host_(fabric_.AddHost("b")) {
    a_host_.AddDevice({.name = "fake0", .address = "10.0.0.1"});
    b_host_.AddDevice({.name = "fake0", .address = "10.0.0.2"});
    a_ = std::make_unique<Node>(a_host_);
    b_ = std::make_unique<Node>(b_host_);
  }
  ~QueuePairTest() override { EXPECT_EQ(fabric_.misuses(), std::vector<std::string>{}); }

  void Connect(const QueuePairOptions& options = {}) {
    x_ = a_->Make(options);
    y_ = b_->Make(options);
    ASSERT_TRUE(x_->Connect(y_->local(), 0).ok());
    ASSERT_TRUE(y_->Connect(x_->local(), 0).ok());
  }
  void Poll(TimeNs now = 0) {
    a_->Poll({x_.get()}, now);
    b_->Poll({y_.get()}, now);
  }
  void Write(size_t bytes, size_t from, size_t to, uint32_t tag, uint64_t cookie) {
    x_->Write(ConstBytes(a_->memory).subspan(from, bytes), a_->Keys().lkey, b_->Address() + to, b_->Keys().rkey, tag,
              cookie);
  }

  fake::Fabric fabric_;
  fake::Host& a_host_;
  fake::Host& b_host_;
  std::unique_ptr<Node> a_, b_;
  std::unique_ptr<QueuePair> x_, y_;  // of a and of b
};

class SteppedQueuePairTest : public QueuePairTest {
 protected:
  SteppedQueuePairTest() : QueuePairTest({.mode = fake::Mode::kStepped}) {}
};

class ReusedNumbersTest : public QueuePairTest {
 protected:
  ReusedNumbersTest() : QueuePairTest({.reuse_qp_numbers = true}) {}
};

TEST_F(QueuePairTest, PacketsArriveAndAreDone) {
  Connect();
  EXPECT_EQ(x_->room(), 128u);
  x_->Packet(Text("hello"), 7);
  x_->Packet(Text(std::string(8192, 'x')), 8);
  x_->Packet({}, 9);
  EXPECT_EQ(x_->room(), 125u);
  EXPECT_TRUE(b_->packets.empty());
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->packets, (std::vector<std::string>{"hello", std::string(8192, 'x'), ""}));
  EXPECT_EQ(a_->done, (std::vector<uint64_t>{7, 8, 9}));
  EXPECT_EQ(x_->room(), 128u);
}

TEST_F(QueuePairTest, WritesLandBeforeTheirNotice) {
  Connect();
  std::fill(a_->memory.begin(), a_->memory.end(), std::byte{3});
  Write(1000, 0, 500, 42, 7);
  EXPECT_EQ(x_->room(), 126u);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->notices, std::vector<uint32_t>{42});
  EXPECT_EQ(std::count(b_->memory.begin() + 500, b_->memory.begin() + 1500, std::byte{3}), 1000);
  EXPECT_EQ(std::count(b_->memory.begin(), b_->memory.end(), std::byte{3}), 1000);
  EXPECT_EQ(a_->done, std::vector<uint64_t>{7});
}

TEST_F(QueuePairTest, AWriteOfNothingIsANotice) {
  Connect();
  Write(0, 0, 0, 1, 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->notices, std::vector<uint32_t>{1});
  EXPECT_EQ(a_->done, std::vector<uint64_t>{2});
}

TEST_F(QueuePairTest, WhatWasCollectedBeforeConnectGoesWithIt) {
  x_ = a_->Make();
  y_ = b_->Make();
  x_->Packet(Text("early"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  ASSERT_TRUE(y_->Connect(x_->local(), 0).ok());
  ASSERT_TRUE(x_->Connect(y_->local(), 0).ok());
  Poll();
  EXPECT_EQ(b_->packets, std::vector<std::string>{"early"});
}

TEST_F(QueuePairTest, OneCompletionCoversMany) {
  Connect({.signal_every = 16});
  for (uint64_t i = 0; i < 40; ++i) x_->Packet(Text("p"), i);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(a_->done.size(), 40u);
  EXPECT_TRUE(std::is_sorted(a_->done.begin(), a_->done.end()));
  EXPECT_EQ(x_->counters().signalled, 3u);  // 16, 32, 40
  EXPECT_EQ(x_->counters().posts, 1u);
  EXPECT_EQ(x_->counters().completions[IBV_WC_SUCCESS], 3u);
}

TEST_F(QueuePairTest, RunsForLongInSmallQueues) {
  Connect({.sends = 6, .receives = 5, .packet_bytes = 64, .signal_every = 4});
  uint64_t cookie = 0;
  std::vector<std::string> expected;
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    for (int i = 0; i < 5 && x_->room() >= 2; ++i) {
      if (random() % 3 == 0) {
        Write(10, 0, 0, static_cast<uint32_t>(cookie), cookie);
      } else {
        expected.push_back("packet " + std::to_string(cookie));
        x_->Packet(Text(expected.back()), cookie);
      }
      ++cookie;
    }
    ASSERT_TRUE(x_->Flush(0).ok()) << x_->broken();
    Poll();
    ASSERT_TRUE(y_->Flush(0).ok()) << y_->broken();
    Poll();
  }
  EXPECT_EQ(b_->packets, expected);
  ASSERT_EQ(a_->done.size(), cookie);
  for (uint64_t i = 0; i < cookie; ++i) ASSERT_EQ(a_->done[i], i);
  EXPECT_EQ(y_->receives_posted(), static_cast<uint32_t>(5 + b_->packets.size() + b_->notices.size()));
}

TEST_F(QueuePairTest, ReceivesComeBackInSmallChainsAndWithFlush) {
  Connect({.receives = 32});
  EXPECT_EQ(y_->receives_posted(), 32u);
  EXPECT_EQ(y_->local().receives, 32);
  for (uint64_t i = 0; i < 11; ++i) x_->Packet(Text("p"), i);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(y_->receives_posted(), 32u + 8u);
  ASSERT_TRUE(y_->Flush(0).ok());
  EXPECT_EQ(y_->receives_posted(), 32u + 11u);
}

TEST_F(QueuePairTest, AShortInlineCapIsKept) {
  a_host_.SetInline("fake0", 60, /*refuse=*/true);
  Connect({.inline_bytes = 256});
  EXPECT_LE(x_->inline_bytes(), 60u);
  EXPECT_GT(x_->inline_bytes(), 0u);
  EXPECT_EQ(y_->inline_bytes(), 256u);
  x_->Packet(Text(std::string(x_->inline_bytes(), 'i')), 1);
  x_->Packet(Text(std::string(x_->inline_bytes() + 1, 'o')), 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->packets.size(), 2u);
  EXPECT_EQ(x_->counters().inline_packets_out, 1u);
}

TEST_F(QueuePairTest, LessInlineThanAskedOrNoneWorks) {
  a_host_.SetInline("fake0", 100, /*refuse=*/false);
  b_host_.SetInline("fake0", 0, /*refuse=*/true);
  Connect({.inline_bytes = 256});
  EXPECT_EQ(x_->inline_bytes(), 100u);
  EXPECT_EQ(y_->inline_bytes(), 0u);
  y_->Packet(Text("p"), 1);
  ASSERT_TRUE(y_->Flush(0).ok());
  Poll();
  EXPECT_EQ(a_->packets, std::vector<std::string>{"p"});
}

TEST_F(QueuePairTest, EndsThatDoNotFitAreNamed) {
  x_ = a_->Make();
  y_ = b_->Make();
  const auto refused = [&](auto change) {
    QpAddress remote = y_->local();
    change(&remote);
    const absl::Status status = x_->Connect(remote, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_NE(refused([](QpAddress* r) { r->link_layer = IBV_LINK_LAYER_INFINIBAND; }).find("link layer"),
            std::string::npos);
  EXPECT_NE(refused([](QpAddress* r) { r->gid_type = 1; }).find("RoCE v1"), std::string::npos);
  EXPECT_NE(refused([](QpAddress* r) { r->gid_type = 77; }).find("unknown"), std::string::npos);
  EXPECT_NE(refused([](QpAddress* r) { r->packet_bytes = 1; }).find("packets of 1"), std::string::npos);
  refused([](QpAddress* r) { r->qp_number = 0; });
  refused([](QpAddress* r) { r->qp_number = 1 << 24; });
  refused([](QpAddress* r) { r->packet_sequence = 1 << 24; });
  refused([](QpAddress* r) { r->mtu = 0; });
  refused([](QpAddress* r) { r->mtu = 6; });
  refused([](QpAddress* r) { r->receives = 0; });
  refused([](QpAddress* r) { std::fill(std::begin(r->gid), std::end(r->gid), 0); });
  EXPECT_TRUE(x_->Connect(y_->local(), 0).ok());
  EXPECT_EQ(x_->Connect(y_->local(), 0).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(QueuePairTest, NoWayToThePeerIsUnavailable) {
  x_ = a_->Make();
  y_ = b_->Make();
  fabric_.PortDown({&a_host_});
  const absl::Status status = x_->Connect(y_->local(), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("::ffff:10.0.0.2"), std::string::npos) << status;
  EXPECT_FALSE(x_->broken().ok());
}

TEST_F(QueuePairTest, TheSmallerMtuIsTaken) {
  b_host_.AddDevice({.name = "fake1", .address = "10.0.1.2", .mtu = IBV_MTU_1024});
  b_ = std::make_unique<Node>(b_host_, "fake1");
  Connect();
  EXPECT_EQ(x_->local().mtu, IBV_MTU_4096);
  EXPECT_EQ(y_->local().mtu, IBV_MTU_1024);
  EXPECT_EQ(b_->Make({.mtu = IBV_MTU_256})->local().mtu, IBV_MTU_256);
  EXPECT_EQ(b_->Make({.mtu = IBV_MTU_4096})->local().mtu, IBV_MTU_1024);
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->packets.size(), 1u);
}

TEST_F(QueuePairTest, InfiniBandGoesByLid) {
  a_host_.AddDevice({.name = "ib0", .address = "10.0.3.1", .infiniband = true});
  b_host_.AddDevice({.name = "ib0", .address = "10.0.3.2", .infiniband = true});
  a_ = std::make_unique<Node>(a_host_, "ib0");
  b_ = std::make_unique<Node>(b_host_, "ib0");
  Connect();
  EXPECT_NE(x_->local().lid, 0);
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->packets.size(), 1u);
}

TEST_F(QueuePairTest, BadOptionsAreRefusedWithTheReason) {
  const auto refused = [&](const QueuePairOptions& options) {
    const absl::Status status = QueuePair::Create(a_->domain, options, a_.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  refused({.sends = 1});
  refused({.receives = 0});
  refused({.packet_bytes = 0});
  refused({.signal_every = 0});
  refused({.retry_count = 8});
  refused({.mtu = 6});
  EXPECT_NE(refused({.timeout = 0}).find("for ever"), std::string::npos);
  EXPECT_NE(refused({.min_rnr_timer = 0}).find("655 ms"), std::string::npos);
  EXPECT_NE(refused({.sends = 5000}).find("4096"), std::string::npos);
}

TEST_F(QueuePairTest, ADeviceThatIsFullSaysWhatIsShort) {
  const auto full = [&](const QueuePairOptions& options = {}) {
    const absl::Status status = QueuePair::Create(a_->domain, options, a_.get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    return std::string(status.message());
  };
  a_host_.LimitRegistrations(0);
  EXPECT_NE(full().find("memlock"), std::string::npos);
  a_host_.LimitRegistrations(std::nullopt);
  EXPECT_NE(full({.sends = 4000, .receives = 4000}).find("completion queue"), std::string::npos);
  a_host_.AddDevice({.name = "tiny", .address = "10.0.9.9", .max_qp = 1});
  a_ = std::make_unique<Node>(a_host_, "tiny");
  x_ = a_->Make();
  EXPECT_NE(full().find("it has 1 in all"), std::string::npos);
  x_.reset();
  EXPECT_EQ(a_->context->reserved_completions(), 0u);
  x_ = a_->Make();
}

TEST_F(QueuePairTest, QueuePairsLeaveNothingBehind) {
  const fake::Live before = fabric_.live();
  for (int i = 0; i < 100; ++i) {
    Connect();
    x_->Packet(Text("p"), 1);
    ASSERT_TRUE(x_->Flush(0).ok());
    Poll();
    x_->Break(absl::CancelledError("done with it"));
    Poll();
    EXPECT_TRUE(x_->drained());
    x_.reset();
    y_.reset();
  }
  EXPECT_EQ(fabric_.live(), before);
  EXPECT_EQ(a_->context->reserved_completions(), 0u);
}

// --- Faults ---

TEST_F(QueuePairTest, ACutBreaksTheSenderAndSaysSo) {
  Connect();
  fabric_.CutPath({&a_host_}, {&b_host_});
  x_->Packet(Text("lost"), 1);
  x_->Packet(Text("lost too"), 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(x_->broken().message().find("did not acknowledge"), std::string::npos) << x_->broken();
  EXPECT_TRUE(a_->done.empty());
  EXPECT_TRUE(b_->packets.empty());
  EXPECT_TRUE(x_->drained());
  EXPECT_EQ(x_->room(), 0u);
  x_->Packet(Text("nothing happens"), 3);
  Write(10, 0, 0, 1, 4);
  EXPECT_EQ(x_->Flush(0), x_->broken());
  EXPECT_EQ(x_->counters().completions[IBV_WC_RETRY_EXC_ERR], 1u);
  EXPECT_TRUE(y_->broken().ok());  // nobody told it
}

TEST_F(SteppedQueuePairTest, WhatCompletedWellBeforeTheEndIsReported) {
  Connect({.signal_every = 1});
  y_->Packet(Text("from the peer"), 9);
  ASSERT_TRUE(y_->Flush(0).ok());
  fabric_.Run();
  for (uint64_t i = 1; i <= 4; ++i) x_->Packet(Text("x" + std::to_string(i)), i);
  ASSERT_TRUE(x_->Flush(0).ok());
  EXPECT_EQ(fabric_.Step(2), 2u);
  x_->Break(absl::DeadlineExceededError("the watchdog"));
  EXPECT_FALSE(x_->drained());
  Poll();
  EXPECT_TRUE(x_->drained());
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(a_->done, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(b_->packets, (std::vector<std::string>{"x1", "x2"}));
  EXPECT_EQ(a_->packets, std::vector<std::string>{"from the peer"});
}

TEST_F(SteppedQueuePairTest, NothingAfterABreakIsReported) {
  Connect();
  x_->Packet(Text("never"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  x_->Packet(Text("not even posted"), 2);
  x_->Break(absl::CancelledError("stop"));
  x_->Break(absl::InternalError("the first reason stays"));
  fabric_.Run();
  Poll();
  EXPECT_TRUE(x_->drained());
  EXPECT_TRUE(a_->done.empty());
  EXPECT_TRUE(b_->packets.empty());
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kCancelled);
}

TEST_F(QueuePairTest, APeerThatDestroyedItsEndIsNoticed) {
  Connect();
  y_.reset();
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  a_->Poll({x_.get()});
  EXPECT_FALSE(x_->broken().ok());
  EXPECT_TRUE(x_->drained());
}

TEST_F(QueuePairTest, AWriteIntoRevokedMemoryIsAborted) {
  Connect();
  const uint32_t key = b_->Keys().rkey;
  b_->region.Reset();
  x_->Write(ConstBytes(a_->memory).first(10), a_->Keys().lkey, b_->Address(), key, 1, 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kAborted) << x_->broken();
  EXPECT_FALSE(y_->broken().ok());
  EXPECT_TRUE(x_->drained());
  EXPECT_TRUE(y_->drained());
  EXPECT_TRUE(b_->notices.empty());
  EXPECT_EQ(b_->context->OnAsyncEvents([](const ibv_async_event&) {}), 1);
}

TEST_F(QueuePairTest, APeersKeyOfAnotherJobOpensNothing) {
  Connect();
  const auto keys = (*b_->context->DomainOf(2))->Find(ConstBytes(b_->memory));
  x_->Write(ConstBytes(a_->memory).first(10), a_->Keys().lkey, b_->Address(), keys->rkey, 1, 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kAborted);
}

TEST_F(QueuePairTest, APostThatFailsInTheMiddleBreaksAndDrains) {
  Connect();
  a_host_.FailPostSendAfter(2);
  for (uint64_t i = 1; i <= 5; ++i) x_->Packet(Text("p"), i);
  EXPECT_EQ(x_->Flush(0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(x_->broken().message().find("took 2 of 5"), std::string::npos) << x_->broken();
  EXPECT_FALSE(x_->drained());  // the two are in flight or have landed, and nothing told of it
  Poll();
  EXPECT_TRUE(a_->done.empty());
  EXPECT_EQ(b_->packets.size(), 2u);
  EXPECT_EQ(x_->counters().packets_out, 2u);
}

TEST_F(QueuePairTest, AHangShowsInTheOldestWait) {
  Connect();
  EXPECT_EQ(x_->oldest_wait(5 * kSecond), 0);
  a_host_.Hang("fake0", x_->number());
  x_->Packet(Text("p"), 1);
  EXPECT_EQ(x_->oldest_wait(5 * kSecond), 0);
  ASSERT_TRUE(x_->Flush(2 * kSecond).ok());
  x_->Packet(Text("q"), 2);
  ASSERT_TRUE(x_->Flush(4 * kSecond).ok());
  Poll();
  EXPECT_EQ(x_->oldest_wait(5 * kSecond), 3 * kSecond);
  x_->Break(absl::DeadlineExceededError("hung"));
  Poll();
  EXPECT_TRUE(x_->drained());
}

TEST_F(QueuePairTest, ACompletionThatNeverComesIsNeitherDoneNorDrained) {
  Connect();
  a_host_.LoseCompletions("fake0", x_->number());
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->packets.size(), 1u);
  EXPECT_TRUE(a_->done.empty());
  x_->Break(absl::DeadlineExceededError("hung"));
  Poll();
  EXPECT_FALSE(x_->drained());
}

TEST_F(QueuePairTest, ReceivesThatComeLateOnlyCostTime) {
  Connect({.receives = 1});
  for (uint64_t i = 1; i <= 3; ++i) x_->Packet(Text("p"), i);
  ASSERT_TRUE(x_->Flush(0).ok());
  for (int i = 0; i < 3; ++i) Poll();
  EXPECT_EQ(b_->packets.size(), 3u);
  EXPECT_EQ(a_->done.size(), 3u);
}

TEST_F(QueuePairTest, APortThatGoesDownAndUpNeedsAQueuePairAnew) {
  Connect();
  fabric_.PortDown({&a_host_});
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_FALSE(x_->broken().ok());
  EXPECT_EQ(QueuePair::Create(a_->domain, {}, a_.get()).status().code(), absl::StatusCode::kUnavailable);
  fabric_.PortUp({&a_host_}, "10.0.0.77");
  EXPECT_EQ(QueuePair::Create(a_->domain, {}, a_.get()).status().code(), absl::StatusCode::kFailedPrecondition);
  a_->context->UseRail(a_host_.RailOf("fake0"));
  Connect();
  x_->Packet(Text("again"), 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(b_->packets, std::vector<std::string>{"again"});
}

TEST_F(ReusedNumbersTest, CompletionsOfAnEarlierQueuePairOfThisNumberAreIgnored) {
  Connect();
  const uint32_t number = x_->number();
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  x_.reset();  // its completions are still in the queue
  y_.reset();
  Connect();
  ASSERT_EQ(x_->number(), number);
  x_->Packet(Text("q"), 2);
  x_->Packet(Text("r"), 3);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll();
  EXPECT_EQ(a_->done, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b_->packets, (std::vector<std::string>{"q", "r"}));
  EXPECT_TRUE(x_->broken().ok());
}

TEST_F(QueuePairTest, CompletionsThatMakeNoSenseAreIgnored) {
  Connect();
  x_->Packet(Text("p"), 1);
  ASSERT_TRUE(x_->Flush(0).ok());
  a_->context
      ->Poll([&](const ibv_wc& wc) {
        ibv_wc other = wc;
        other.wr_id += 1;
        x_->OnCompletion(other, 0);
        other.wr_id = wc.wr_id ^ (uint64_t{1} << 31) ^ 0x1000;
        x_->OnCompletion(other, 0);
        EXPECT_TRUE(a_->done.empty());
        x_->OnCompletion(wc, 0);
        x_->OnCompletion(wc, 0);
      })
      .IgnoreError();
  EXPECT_EQ(a_->done, std::vector<uint64_t>{1});
}

TEST_F(QueuePairTest, MisuseBreaksInsteadOfCrashing) {
  Connect({.sends = 4, .packet_bytes = 100});
  x_->Packet(Text(std::string(101, 'x')), 1);
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kInternal);
  Connect({.sends = 4});
  for (int i = 0; i < 5; ++i) x_->Packet(Text("p"), 1);
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kInternal);
  Connect({.sends = 4});
  for (int i = 0; i < 3; ++i) Write(1, 0, 0, 0, 0);
  EXPECT_EQ(x_->broken().code(), absl::StatusCode::kInternal);
}

TEST_F(QueuePairTest, CountersAddUp) {
  Connect();
  x_->Packet(Text("12345"), 1);
  Write(100, 0, 0, 1, 2);
  ASSERT_TRUE(x_->Flush(0).ok());
  Poll(3 * kMicrosecond);
  EXPECT_EQ(x_->counters().packets_out, 1u);
  EXPECT_EQ(x_->counters().packet_bytes_out, 5u);
  EXPECT_EQ(x_->counters().writes_out, 1u);
  EXPECT_EQ(x_->counters().write_bytes_out, 100u);
  EXPECT_EQ(y_->counters().packets_in, 1u);
  EXPECT_EQ(y_->counters().packet_bytes_in, 5u);
  EXPECT_EQ(y_->counters().notices_in, 1u);
  EXPECT_EQ(x_->counters().latency[2], 2u);  // 2 to 3 microseconds
  QpCounters sum;
  sum.Add(x_->counters());
  sum.Add(x_->counters());
  EXPECT_EQ(sum.write_bytes_out, 200u);
  EXPECT_EQ(sum.latency[2], 4u);
}

// The loop's order of arming and polling: nothing is lost when completions come between any two steps.
TEST_F(QueuePairTest, ArmThenPollThenWaitLosesNothing) {
  Connect();
  const auto readable = [](int fd) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
  };
  const auto send = [&] {
    x_->Packet(Text("p"), 0);
    ASSERT_TRUE(x_->Flush(0).ok());
  };
  for (int gap = 0; gap < 3; ++gap) {
    b_->packets.clear();
    if (gap == 0) send();
    ASSERT_TRUE(b_->context->Arm().ok());
    if (gap == 1) send();
    b_->Poll({y_.get()});
    if (gap == 2) send();
    if (b_->packets.empty()) {
      ASSERT_TRUE(readable(b_->context->completion_fd())) << gap;
      ASSERT_TRUE(b_->context->Arm().ok());
      b_->Poll({y_.get()});
    }
    EXPECT_EQ(b_->packets.size(), 1u);
    a_->Poll({x_.get()});
  }
}

// Bytes against a slow reference, with several QPs that progress in random pieces and order: a notice never comes
// before its bytes, each arrives once, and those of one QP in order.
TEST_F(SteppedQueuePairTest, RandomSchedulesDeliverEverythingOnceAndInOrder) {
  constexpr size_t kQps = 3, kSlot = 1000, kMessages = 60;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    fake::Fabric fabric({.mode = fake::Mode::kStepped, .seed = seed});
    fake::Host& ah = fabric.AddHost("a");
    fake::Host& bh = fabric.AddHost("b");
    ah.AddDevice({.address = "10.0.0.1", .bytes_per_step = 333});
    bh.AddDevice({.address = "10.0.0.2"});
    Node a(ah), b(bh);
    std::mt19937 random(static_cast<uint32_t>(seed));
    for (auto& value : a.memory) value = static_cast<std::byte>(random());
    std::vector<std::unique_ptr<QueuePair>> xs, ys;
    std::vector<QueuePair*> xp, yp;
    for (size_t i = 0; i < kQps; ++i) {
      xs.push_back(a.Make({.sends = 8, .receives = 4, .signal_every = 3}));
      ys.push_back(b.Make({.sends = 8, .receives = 4, .signal_every = 3}));
      ASSERT_TRUE(xs[i]->Connect(ys[i]->local(), 0).ok());
      ASSERT_TRUE(ys[i]->Connect(xs[i]->local(), 0).ok());
      xp.push_back(xs[i].get());
      yp.push_back(ys[i].get());
    }
    size_t next = 0;
    size_t checked = 0;
    std::map<size_t, size_t> by_qp;  // message -> QP
    while (b.notices.size() < kMessages || a.done.size() < kMessages) {
      const size_t qp = random() % kQps;
      if (next < kMessages && xs[qp]->room() >= 2) {
        by_qp[next] = qp;
        xs[qp]->Write(ConstBytes(a.memory).subspan(next * kSlot, kSlot), a.Keys().lkey, b.Address() + next * kSlot,
                      b.Keys().rkey, static_cast<uint32_t>(next), next);
        ++next;
        ASSERT_TRUE(xs[qp]->Flush(0).ok());
      }
      fabric.Step(random() % 5);
      a.Poll(xp);
      b.Poll(yp);
      for (QueuePair* y : yp) ASSERT_TRUE(y->Flush(0).ok());
      for (; checked < b.notices.size(); ++checked) {
        const size_t at = b.notices[checked] * kSlot;
        ASSERT_TRUE(std::equal(a.memory.begin() + static_cast<ptrdiff_t>(at),
                               a.memory.begin() + static_cast<ptrdiff_t>(at + kSlot),
                               b.memory.begin() + static_cast<ptrdiff_t>(at)));
      }
    }
    for (size_t qp = 0; qp < kQps; ++qp) {
      std::vector<uint64_t> done, notices;
      for (uint64_t m : a.done) {
        if (by_qp[m] == qp) done.push_back(m);
      }
      for (uint32_t m : b.notices) {
        if (by_qp[m] == qp) notices.push_back(m);
      }
      EXPECT_EQ(done, notices);
      EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    }
    xs.clear();
    ys.clear();
    EXPECT_TRUE(fabric.misuses().empty());
  }
}

}  // namespace
}  // namespace sluice::rdma
