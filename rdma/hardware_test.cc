// Queue pairs on the devices that this host really has (Soft-RoCE will do): both ends on one port, without a network.
// Skipped, with the reason, where there is no device: tests/rdma_vm has some, and so has a cluster.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rdma/port_counters.h"
#include "rdma/queue_pair.h"

namespace sluice::rdma {
namespace {

class End : public QueuePair::Owner {
 public:
  End(Verbs* verbs, const Rail& rail) : memory(4 << 20) {
    region = registry.Add(memory.data(), memory.size());
    auto opened = Context::Open(verbs, rail, {.memory = &registry});
    EXPECT_TRUE(opened.ok()) << opened.status();
    context = std::move(opened).value();
    domain = context->DomainOf(1).value();
  }
  void Make(const QueuePairOptions& options) {
    auto made = QueuePair::Create(domain, options, this);
    ASSERT_TRUE(made.ok()) << made.status();
    qp = std::move(made).value();
  }
  void Poll() {
    ASSERT_TRUE(context
                    ->Poll([&](const ibv_wc& wc) {
                      if (qp != nullptr && wc.qp_num == qp->number()) qp->OnCompletion(wc, clock.Now());
                    })
                    .ok());
    if (qp != nullptr && qp->broken().ok()) qp->Flush(clock.Now()).IgnoreError();
  }
  void QpDone(QueuePair&, uint64_t cookie) override { done.push_back(cookie); }
  void QpPacket(QueuePair&, ConstBytes packet) override {
    packets.emplace_back(reinterpret_cast<const char*>(packet.data()), packet.size());
  }
  void QpNotice(QueuePair&, uint32_t tag) override { notices.push_back(tag); }

  SteadyClock clock;
  std::vector<std::byte> memory;
  MemoryRegistry registry;
  MemoryRegistry::Handle region;
  std::unique_ptr<Context> context;
  Domain* domain = nullptr;
  std::unique_ptr<QueuePair> qp;
  std::vector<uint64_t> done;
  std::vector<std::string> packets;
  std::vector<uint32_t> notices;
};

class HardwareTest : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = LoadVerbs();
    if (!loaded.ok()) GTEST_SKIP() << loaded.status().message();
    verbs_ = std::move(loaded).value();
    const RailChoice choice = ChooseRails(GatherFacts(verbs_.get(), absl::OkStatus()), {});
    for (const Finding& finding : choice.findings) {
      std::printf("%s: %s; %s\n", finding.device.c_str(), finding.what.c_str(), finding.mend.c_str());
    }
    if (choice.rails.empty()) GTEST_SKIP() << "no usable device";
    rail_ = choice.rails.front();
    std::printf("%s\n", rail_.ToString().c_str());
    a_ = std::make_unique<End>(verbs_.get(), rail_);
    b_ = std::make_unique<End>(verbs_.get(), rail_);
  }
  void Connect(QueuePairOptions options = {}) {
    options.timeout = 10;  // 4 ms: what breaks here breaks soon
    options.retry_count = 3;
    a_->Make(options);
    b_->Make(options);
    for (auto [from, to] : {std::pair{a_.get(), b_.get()}, {b_.get(), a_.get()}}) {
      const absl::Status status = from->qp->Connect(to->qp->local(), from->clock.Now());
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  template <typename Condition>
  bool Until(Condition condition) {
    for (const TimeNs end = a_->clock.Now() + 20 * kSecond; a_->clock.Now() < end;) {
      a_->Poll();
      b_->Poll();
      if (condition()) return true;
    }
    return false;
  }
  void Write(size_t bytes, uint32_t tag, uint64_t cookie) {
    a_->qp->Write(ConstBytes(a_->memory).first(bytes), a_->domain->Find(ConstBytes(a_->memory))->lkey,
                  reinterpret_cast<uintptr_t>(b_->memory.data()), b_->domain->Find(ConstBytes(b_->memory))->rkey, tag,
                  cookie);
  }
  absl::Status Flush() { return a_->qp->Flush(a_->clock.Now()); }

  std::unique_ptr<Verbs> verbs_;
  Rail rail_;
  std::unique_ptr<End> a_, b_;
};

TEST_F(HardwareTest, PacketsAndWrites) {
  Connect();
  std::printf("inline %u, MTU %u\n", a_->qp->inline_bytes(), 128u << a_->qp->local().mtu);
  for (size_t i = 0; i < a_->memory.size(); ++i) a_->memory[i] = static_cast<std::byte>(i * 7);
  std::vector<std::string> expected;
  uint64_t cookie = 0;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{200}, size_t{a_->qp->inline_bytes()},
                       size_t{a_->qp->inline_bytes()} + 1, size_t{8192}}) {
    expected.emplace_back(bytes, static_cast<char>('a' + cookie));
    a_->qp->Packet(ConstBytes(reinterpret_cast<const std::byte*>(expected.back().data()), bytes), ++cookie);
  }
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, a_->memory.size()}) {
    Write(bytes, static_cast<uint32_t>(bytes), ++cookie);
  }
  ASSERT_TRUE(Flush().ok());
  ASSERT_TRUE(Until([&] { return a_->done.size() == cookie && b_->notices.size() == 4; })) << a_->qp->broken();
  EXPECT_EQ(b_->packets, expected);
  EXPECT_EQ(b_->notices, (std::vector<uint32_t>{0, 1, 4096, 4 << 20}));
  EXPECT_EQ(a_->memory, b_->memory);
  for (uint64_t i = 0; i < cookie; ++i) EXPECT_EQ(a_->done[i], i + 1);
}

TEST_F(HardwareTest, ManyInSmallQueues) {
  Connect({.sends = 8, .receives = 4, .packet_bytes = 64, .signal_every = 3});
  uint64_t next = 0;
  ASSERT_TRUE(Until([&] {
    while (next < 2000 && a_->qp->room() >= 2) {
      if (next % 3 == 0) {
        Write(100, static_cast<uint32_t>(next), next);
      } else {
        a_->qp->Packet(ConstBytes(a_->memory).first(next % 65), next);
      }
      ++next;
    }
    return a_->done.size() == 2000 && b_->packets.size() + b_->notices.size() == 2000;
  })) << a_->done.size()
      << " " << b_->packets.size() << " " << b_->notices.size() << " " << a_->qp->broken();
  for (uint64_t i = 0; i < a_->done.size(); ++i) ASSERT_EQ(a_->done[i], i);
}

TEST_F(HardwareTest, EventsWakeALoop) {
  Connect();
  for (uint64_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(b_->context->Arm().ok());
    b_->Poll();
    a_->qp->Packet(ConstBytes(a_->memory).first(100), i);
    ASSERT_TRUE(Flush().ok());
    while (b_->packets.size() < i) {
      pollfd entry{b_->context->completion_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&entry, 1, 20000), 1);
      ASSERT_TRUE(b_->context->Arm().ok());
      b_->Poll();
    }
    a_->Poll();
  }
}

TEST_F(HardwareTest, BreakDrains) {
  Connect();
  for (uint64_t i = 1; i <= 50; ++i) Write(100000, 1, i);
  ASSERT_TRUE(Flush().ok());
  a_->qp->Break(absl::CancelledError("test"));
  ASSERT_TRUE(Until([&] { return a_->qp->drained(); }));
  EXPECT_LE(a_->done.size(), 50u);
  EXPECT_LE(a_->done.size(), b_->notices.size());
  b_->qp->Break(absl::CancelledError("test"));
  ASSERT_TRUE(Until([&] { return b_->qp->drained(); }));
}

TEST_F(HardwareTest, RevokedMemoryIsAborted) {
  Connect();
  const uint32_t key = b_->domain->Find(ConstBytes(b_->memory))->rkey;
  const uint32_t own = a_->domain->Find(ConstBytes(a_->memory))->lkey;
  b_->region.Reset();
  a_->qp->Write(ConstBytes(a_->memory).first(10), own, reinterpret_cast<uintptr_t>(b_->memory.data()), key, 1, 2);
  ASSERT_TRUE(Flush().ok());
  ASSERT_TRUE(Until([&] { return !a_->qp->broken().ok() && a_->qp->drained(); }));
  EXPECT_EQ(a_->qp->broken().code(), absl::StatusCode::kAborted) << a_->qp->broken();
  EXPECT_TRUE(b_->notices.empty());
}

TEST_F(HardwareTest, APeerThatIsGoneIsNoticed) {
  Connect();
  b_->qp.reset();
  a_->qp->Packet(ConstBytes(a_->memory).first(10), 1);
  ASSERT_TRUE(Flush().ok());
  ASSERT_TRUE(Until([&] { return !a_->qp->broken().ok() && a_->qp->drained(); }));
  std::printf("%s\n", a_->qp->broken().ToString().c_str());
  EXPECT_TRUE(a_->done.empty());
}

TEST_F(HardwareTest, ManyLivesLeaveNothing) {
  for (int i = 0; i < 200; ++i) {
    Connect({.sends = 16, .receives = 16, .packet_bytes = 256});
    a_->qp->Packet(ConstBytes(a_->memory).first(10), 1);
    ASSERT_TRUE(Flush().ok());
    if (i % 2 == 0) {
      ASSERT_TRUE(Until([&] { return b_->packets.size() == 1; })) << i;
    }
    a_->qp.reset();
    b_->qp.reset();
    a_->Poll();
    b_->Poll();
    b_->packets.clear();
  }
}

TEST_F(HardwareTest, PortCounters) { EXPECT_FALSE(ReadPortCounters(rail_.device, rail_.port).empty()); }

}  // namespace
}  // namespace sluice::rdma
