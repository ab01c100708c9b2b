#include "transport/shm/shm_endpoint.h"

#include <atomic>
#include <optional>
#include <thread>

#include "base/philox.h"
#include "transport/shm/testing.h"

namespace sluice::transport {
namespace {

using testing::Pattern;
using testing::PushHeader;
using testing::Recorder;
using testing::RunUntil;

// Two endpoints on one loop, connected: a is the connector.
class ShmEndpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *Loop::Create();
    Open();
  }

  void Open(ShmOptions options = {}) {
    a_.reset();
    b_.reset();
    handler_a_ = Recorder();
    handler_b_ = Recorder();
    options.self = {.role = PeerRole::kServer, .index = 7, .name = "b"};
    auto b = ShmEndpoint::Create(loop_.get(), options);
    ASSERT_TRUE(b.ok()) << b.status();
    b_ = *std::move(b);
    options.listen = false;
    a_ = *ShmEndpoint::Create(loop_.get(), options);
    a_->SetHandler(&handler_a_);
    b_->SetHandler(&handler_b_);
    link_a_ = a_->Connect(b_->local_address(), {.role = PeerRole::kWorker, .job = 3, .index = 2, .name = "a"});
    EXPECT_TRUE(handler_a_.up.empty());
    ASSERT_TRUE(Run([&] { return !handler_a_.up.empty() && !handler_b_.up.empty(); }));
    ASSERT_EQ(handler_a_.up[0].first, link_a_);
    link_b_ = handler_b_.up[0].first;
  }

  bool Run(std::function<bool()> done) { return RunUntil(*loop_, std::move(done)); }

  std::shared_ptr<std::byte> Filled(Endpoint& endpoint, const std::vector<std::byte>& bytes) {
    auto memory = *endpoint.Allocate(bytes.size());
    std::memcpy(memory.get(), bytes.data(), bytes.size());
    return memory;
  }

  std::unique_ptr<Loop> loop_;
  Recorder handler_a_, handler_b_;
  std::unique_ptr<ShmEndpoint> a_, b_;
  LinkId link_a_ = 0, link_b_ = 0;
};

TEST_F(ShmEndpointTest, HelloGoesBothWays) {
  EXPECT_EQ(handler_b_.up[0].second.role, PeerRole::kWorker);
  EXPECT_EQ(handler_b_.up[0].second.index, 2);
  EXPECT_EQ(handler_a_.up[0].second.role, PeerRole::kServer);
  EXPECT_EQ(handler_a_.up[0].second.index, 7);
  EXPECT_EQ(a_->Stats(link_a_).kind, "shm");
}

TEST_F(ShmEndpointTest, FramesOfAllSizesArriveInOrder) {
  std::vector<std::vector<std::byte>> sent;
  uint64_t cookies = 0;
  for (const size_t bytes : {0, 1, 100, 4096, 70000, 1 << 20, 3, 0, 300000}) {
    sent.push_back(Pattern(bytes, bytes + 1));
    a_->Send(link_a_, PushHeader(bytes, sent.size()), sent.back(), sent.size() % 2 == 0 ? 0 : ++cookies);
  }
  EXPECT_TRUE(handler_a_.sent.empty());  // never from inside the call
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == sent.size() && handler_a_.sent.size() == cookies; }));
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(handler_b_.frames[i].header.round, i + 1);
    EXPECT_EQ(handler_b_.frames[i].bytes, sent[i]);
  }
  EXPECT_EQ(a_->Stats(link_a_).payload_out, b_->Stats(link_b_).payload_in);
  EXPECT_EQ(a_->Stats(link_a_).frames_out, b_->Stats(link_b_).frames_in);
  EXPECT_EQ(a_->Stats(link_a_).bytes_out, b_->Stats(link_b_).bytes_in);
}

TEST_F(ShmEndpointTest, ThousandsOfFramesOverflowTheRingAndArrive) {
  constexpr uint64_t kFrames = 5000;
  for (uint64_t i = 0; i < kFrames; ++i) a_->Send(link_a_, PushHeader(i % 300, i), Pattern(i % 300, i), 0);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == kFrames; }));
  for (uint64_t i = 0; i < kFrames; ++i) {
    ASSERT_EQ(handler_b_.frames[i].header.round, i);
    ASSERT_EQ(handler_b_.frames[i].bytes, Pattern(i % 300, i));
  }
}

// A worker does not wake a server to give memory back; the late wake-up sees to it where nothing else is said.
TEST_F(ShmEndpointTest, WhatAServerLentComesBackToItThoughBothSidesAreSilent) {
  const auto bytes = Pattern(300000, 6);
  const auto memory = Filled(*b_, bytes);
  b_->Send(link_b_, PushHeader(bytes.size(), 1), {memory.get(), bytes.size()}, 8);
  ASSERT_TRUE(Run([&] { return handler_a_.frames.size() == 1 && !handler_b_.sent.empty(); }));
  EXPECT_EQ(handler_a_.frames[0].bytes, bytes);
}

// A sender that learns of a slot before the loop has read the socket looks there for the slot's slab, and finds the wake-up for
// the frame behind it, too. Links between workers were silent in one direction for ever.
TEST_F(ShmEndpointTest, AWakeUpThatIsReadInSearchOfASlabIsNotLost) {
  ASSERT_TRUE(Run([&] { return true; }));   // both rings are empty, and their readers asleep
  const auto memory = *b_->Allocate(4096);
  const SlotId slot = b_->OpenSlot(link_b_, {memory.get(), 4096});   // announces the slab
  b_->Send(link_b_, PushHeader(0, 1), {}, 0);                        // wakes the other side up
  const auto bytes = Pattern(4096, 3);
  a_->Send(link_a_, PushHeader(bytes.size(), 2, slot), bytes, 9);    // before its loop has had a turn
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 1; }));
  EXPECT_EQ(std::memcmp(memory.get(), bytes.data(), bytes.size()), 0);
  ASSERT_TRUE(Run([&] { return handler_a_.frames.size() == 1; }));
  b_->Send(link_b_, PushHeader(0, 3), {}, 0);
  EXPECT_TRUE(Run([&] { return handler_a_.frames.size() == 2; }));
}

TEST_F(ShmEndpointTest, SlabPayloadArrivesByReferenceAndComesBackWhenDropped) {
  handler_b_.keep = true;
  const auto bytes = Pattern(3 << 20, 5);
  auto memory = Filled(*a_, bytes);
  ASSERT_TRUE(a_->ByReference(link_a_, {memory.get(), bytes.size()}));
  EXPECT_FALSE(a_->ByReference(link_a_, bytes));
  EXPECT_FALSE(a_->ByReference(link_a_, {memory.get(), 100}));  // small ones are copied
  a_->Send(link_a_, PushHeader(bytes.size()), {memory.get(), bytes.size()}, 11);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 1; }));
  EXPECT_EQ(handler_b_.frames[0].bytes, bytes);
  a_->Send(link_a_, PushHeader(0, 1), {}, 0);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 2; }));
  EXPECT_TRUE(handler_a_.sent.empty());
  handler_b_.frames[0].payload = Payload();
  ASSERT_TRUE(Run([&] { return handler_a_.sent == std::vector<uint64_t>{11}; }));
  EXPECT_EQ(a_->Stats(link_a_).payload_out, bytes.size());
}

TEST_F(ShmEndpointTest, SlotInSlabIsWrittenInPlace) {
  auto memory = *b_->Allocate(1 << 20);
  const SlotId slot = b_->OpenSlot(link_b_, {memory.get(), 1 << 20});
  const auto bytes = Pattern(1 << 20, 9);
  constexpr size_t kHalf = 1 << 19;
  for (size_t offset : {kHalf, size_t{0}}) {  // any order
    FrameHeader header = PushHeader(kHalf, 0, slot);
    header.total_bytes = 1 << 20;
    header.stripe_offset = offset;
    a_->Send(link_a_, header, ConstBytes(bytes).subspan(offset, kHalf), offset + 1);
  }
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 2 && handler_a_.sent.size() == 2; }));
  EXPECT_EQ(std::memcmp(memory.get(), bytes.data(), bytes.size()), 0);
  EXPECT_TRUE(b_->CloseSlot(link_b_, slot));
  EXPECT_TRUE(b_->CloseSlot(link_b_, slot));
  // A frame for the closed slot is dropped, and its cookie comes back.
  a_->Send(link_a_, PushHeader(100, 0, slot), ConstBytes(bytes).first(100), 77);
  a_->Send(link_a_, PushHeader(0, 5), {}, 0);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 3 && handler_a_.sent.size() == 3; }));
  EXPECT_EQ(handler_b_.frames[2].header.round, 5);
}

TEST_F(ShmEndpointTest, SlotInPrivateMemoryIsFilledFromPrivateAndSlabPayloads) {
  std::vector<std::byte> memory(3 << 20);
  const SlotId slot = b_->OpenSlot(link_b_, memory);
  const auto bytes = Pattern(memory.size(), 4);
  a_->Send(link_a_, PushHeader(bytes.size(), 1, slot), bytes, 1);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 1 && handler_a_.sent.size() == 1; }));
  EXPECT_EQ(memory, bytes);
  const auto others = Pattern(memory.size(), 5);
  auto slab = Filled(*a_, others);
  a_->Send(link_a_, PushHeader(others.size(), 2, slot), {slab.get(), others.size()}, 2);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 2 && handler_a_.sent.size() == 2; }));
  EXPECT_EQ(memory, others);
}

TEST_F(ShmEndpointTest, ClosingPrivateSlotInMidPayloadStopsTheWriting) {
  ShmOptions options;
  options.shape.arena_bytes = 64 << 10;
  Open(options);
  std::vector<std::byte> memory(2 << 20);
  const SlotId slot = b_->OpenSlot(link_b_, memory);
  const auto bytes = Pattern(memory.size(), 4);
  a_->Send(link_a_, PushHeader(bytes.size(), 1, slot), bytes, 1);
  ASSERT_TRUE(Run([&] { return b_->Stats(link_b_).bytes_in > 300000; }));
  ASSERT_TRUE(b_->CloseSlot(link_b_, slot));
  const auto before = memory;
  a_->Send(link_a_, PushHeader(0, 2), {}, 0);
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 1; }));
  EXPECT_EQ(handler_b_.frames[0].header.round, 2);
  EXPECT_EQ(memory, before);
  EXPECT_EQ(handler_a_.sent, std::vector<uint64_t>{1});
}

TEST_F(ShmEndpointTest, MoreSlotsThanTableEntriesStillWork) {
  ShmOptions options;
  options.shape.slots = 2;
  Open(options);
  auto memory = *b_->Allocate(4 * 4096);
  for (uint64_t i = 0; i < 4; ++i) {
    const SlotId slot = b_->OpenSlot(link_b_, {memory.get() + i * 4096, 4096});
    a_->Send(link_a_, PushHeader(4096, i, slot), Pattern(4096, i), 0);
  }
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 4; }));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(handler_b_.frames[i].bytes, Pattern(4096, i));
}

TEST_F(ShmEndpointTest, BackPressureShowsAndEnds) {
  const auto bytes = Pattern(1 << 20, 1);
  int sent = 0;
  while (a_->Writable(link_a_)) {
    a_->Send(link_a_, PushHeader(bytes.size(), sent++), bytes, 0);
    ASSERT_LT(sent, 100);
  }
  EXPECT_GE(sent, 4);
  EXPECT_EQ(handler_a_.writable, 0);
  ASSERT_TRUE(Run([&] { return handler_a_.writable == 1; }));
  EXPECT_TRUE(a_->Writable(link_a_));
  ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == static_cast<size_t>(sent); }));
  EXPECT_EQ(handler_a_.writable, 1);
}

TEST_F(ShmEndpointTest, BackPressureCountsReferencesThatWereNotReadYet) {
  auto memory = *a_->Allocate(1 << 20);
  int sent = 0;
  while (a_->Writable(link_a_)) {
    ++sent;
    a_->Send(link_a_, PushHeader(1 << 20, sent), {memory.get(), 1 << 20}, sent);
    ASSERT_LT(sent, 100);
  }
  ASSERT_TRUE(Run([&] { return handler_a_.writable == 1 && handler_a_.sent.size() == static_cast<size_t>(sent); }));
}

TEST_F(ShmEndpointTest, OversizeWithoutSlotTakesTheLinkDown) {
  const auto bytes = Pattern((1 << 20) + 1, 1);
  a_->Send(link_a_, PushHeader(bytes.size()), bytes, 5);
  ASSERT_TRUE(Run([&] { return !handler_a_.down.empty() && !handler_b_.down.empty(); }));
  EXPECT_EQ(handler_a_.sent, std::vector<uint64_t>{5});
  EXPECT_NE(handler_a_.down[link_a_].message().find("no slot"), std::string::npos) << handler_a_.down[link_a_];
}

TEST_F(ShmEndpointTest, StripeOutsideItsSlotTakesTheLinkDown) {
  for (const bool in_slab : {false, true}) {
    Open();
    auto slab = *b_->Allocate(4096);
    std::vector<std::byte> own(4096);
    const SlotId slot = b_->OpenSlot(link_b_, in_slab ? MutableBytes(slab.get(), 4096) : MutableBytes(own));
    a_->Send(link_a_, PushHeader(4097, 0, slot), Pattern(4097, 1), 5);
    ASSERT_TRUE(Run([&] { return !handler_a_.down.empty() && !handler_b_.down.empty(); }));
    EXPECT_NE(handler_b_.down[link_b_].message().find("does not fit"), std::string::npos) << handler_b_.down[link_b_];
  }
}

TEST_F(ShmEndpointTest, CloseTellsThePeerWhyAfterWhatWasSent) {
  a_->Send(link_a_, PushHeader(10, 1), Pattern(10, 1), 0);
  a_->Close(link_a_, absl::AbortedError("moved to another rail"));
  EXPECT_TRUE(handler_a_.down.empty());
  ASSERT_TRUE(Run([&] { return !handler_a_.down.empty() && !handler_b_.down.empty(); }));
  EXPECT_EQ(handler_a_.down[link_a_].message(), "moved to another rail");
  EXPECT_EQ(handler_b_.down[link_b_].code(), absl::StatusCode::kAborted);
  EXPECT_NE(handler_b_.down[link_b_].message().find("moved to another rail"), std::string::npos);
  EXPECT_EQ(handler_b_.frames.size(), 1);
  // A dead link takes frames and gives the cookies back.
  a_->Send(link_a_, PushHeader(0), {}, 9);
  handler_a_.down.clear();  // the recorder would object
  ASSERT_TRUE(Run([&] { return handler_a_.sent == std::vector<uint64_t>{9}; }));
  EXPECT_TRUE(a_->CloseSlot(link_a_, 1));
}

// The sender may use its memory again once its cookie came back, so what the receiver still holds must not change then.
TEST_F(ShmEndpointTest, HeldPayloadOutlivesTheLinkUnchanged) {
  for (const bool closed_by_sender : {true, false}) {
    Open();
    handler_b_.keep = true;
    const auto bytes = Pattern(100000, 5);
    auto memory = Filled(*a_, bytes);
    a_->Send(link_a_, PushHeader(bytes.size()), {memory.get(), bytes.size()}, 11);
    ASSERT_TRUE(Run([&] { return handler_b_.frames.size() == 1; }));
    if (closed_by_sender) {
      a_->Close(link_a_, absl::CancelledError("test"));
    } else {
      b_->Close(link_b_, absl::CancelledError("test"));
    }
    ASSERT_TRUE(Run([&] { return !handler_a_.down.empty() && !handler_b_.down.empty(); }));
    EXPECT_EQ(handler_a_.sent, std::vector<uint64_t>{11});
    std::memset(memory.get(), 0, bytes.size());
    const ConstBytes held = handler_b_.frames[0].payload.bytes();
    EXPECT_TRUE(std::equal(held.begin(), held.end(), bytes.begin(), bytes.end()));
    b_.reset();
    EXPECT_TRUE(std::equal(held.begin(), held.end(), bytes.begin(), bytes.end()));
    handler_b_.frames.clear();
  }
}

TEST_F(ShmEndpointTest, LentPayloadsComeBackOnlyWhenThePeerIsOut) {
  // b's loop does not run while a closes: it is the same one, so b cannot have answered within the call.
  auto memory = *a_->Allocate(8192);
  a_->Send(link_a_, PushHeader(8192), {memory.get(), 8192}, 1);
  a_->Close(link_a_, absl::CancelledError("test"));
  ASSERT_TRUE(Run([&] { return !handler_a_.down.empty(); }));
  EXPECT_EQ(handler_a_.sent, std::vector<uint64_t>{1});
  EXPECT_FALSE(handler_b_.frames.empty());  // sent before the close, so delivered
}

TEST_F(ShmEndpointTest, DestroyedEndpointHangsUp) {
  handler_a_.keep = true;
  auto memory = Filled(*b_, Pattern(8192, 3));
  b_->Send(link_b_, PushHeader(8192), {memory.get(), 8192}, 1);
  ASSERT_TRUE(Run([&] { return handler_a_.frames.size() == 1; }));
  a_->OpenSlot(link_a_, {});
  b_.reset();
  ASSERT_TRUE(Run([&] { return !handler_a_.down.empty(); }));
  EXPECT_EQ(handler_a_.down[link_a_].code(), absl::StatusCode::kUnavailable);
  memory.reset();
  const ConstBytes held = handler_a_.frames[0].payload.bytes();
  const auto bytes = Pattern(8192, 3);
  EXPECT_TRUE(std::equal(held.begin(), held.end(), bytes.begin(), bytes.end()));
}

TEST_F(ShmEndpointTest, ConnectThatCannotWorkSaysWhy) {
  const Hello self{.role = PeerRole::kWorker, .name = "a"};
  const LinkId nobody = a_->Connect({.unix_socket = "sluice-nobody-listens-here"}, self);
  const LinkId nowhere = a_->Connect({.host = "localhost", .port = 1}, self);
  const LinkId long_name = a_->Connect({.unix_socket = std::string(200, 'x')}, self);
  EXPECT_TRUE(handler_a_.down.empty());
  ASSERT_TRUE(Run([&] { return handler_a_.down.size() == 3; }));
  EXPECT_EQ(handler_a_.down[nobody].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(handler_a_.down[nowhere].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(handler_a_.down[long_name].code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmEndpointTest, OtherHostsAreRefused) {
  ShmOptions options{.listen = false, .host_id = "here"};
  auto endpoint = *ShmEndpoint::Create(loop_.get(), options);
  Recorder handler;
  endpoint->SetHandler(&handler);
  Address address = b_->local_address();
  address.host_id = "there";
  const LinkId link = endpoint->Connect(address, {.role = PeerRole::kWorker});
  ASSERT_TRUE(Run([&] { return handler.down.size() == 1; }));
  EXPECT_EQ(handler.down[link].code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ShmEndpointTest, TakenNameAndMissingRoleAreErrors) {
  ShmOptions options{.self = {.role = PeerRole::kServer}, .name = b_->local_address().unix_socket};
  EXPECT_EQ(ShmEndpoint::Create(loop_.get(), options).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ShmEndpoint::Create(loop_.get(), {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ShmEndpointTest, PeersBeyondMaxLinksAreRefused) {
  ShmOptions options;
  options.limits.max_links = 1;
  Open(options);
  ShmOptions other{.listen = false};
  auto c = *ShmEndpoint::Create(loop_.get(), other);
  Recorder handler;
  c->SetHandler(&handler);
  const LinkId link = c->Connect(b_->local_address(), {.role = PeerRole::kWorker});
  ASSERT_TRUE(Run([&] { return handler.down.size() == 1; }));
  EXPECT_EQ(handler.down[link].code(), absl::StatusCode::kResourceExhausted) << handler.down[link];
}

TEST_F(ShmEndpointTest, AcceptorMayRefuseByHello) {
  ShmOptions options{.self = {.role = PeerRole::kServer}};
  options.admit = [](const Hello& peer) {
    return peer.job == 3 ? absl::OkStatus() : absl::PermissionDeniedError("another job");
  };
  auto picky = *ShmEndpoint::Create(loop_.get(), options);
  Recorder handler;
  picky->SetHandler(&handler);
  const LinkId good = a_->Connect(picky->local_address(), {.role = PeerRole::kWorker, .job = 3});
  const LinkId bad = a_->Connect(picky->local_address(), {.role = PeerRole::kWorker, .job = 4});
  ASSERT_TRUE(Run([&] { return handler_a_.up.size() == 2 && handler_a_.down.size() == 1; }));
  EXPECT_EQ(handler_a_.up[1].first, good);
  EXPECT_EQ(handler_a_.down[bad].code(), absl::StatusCode::kPermissionDenied) << handler_a_.down[bad];
  EXPECT_TRUE(handler.down.empty());
}

TEST_F(ShmEndpointTest, FreedSlabsAreForgottenByThePeer) {
  for (int i = 0; i < 50; ++i) {
    const auto bytes = Pattern(40 << 10, i);
    auto memory = Filled(*a_, bytes);
    a_->Send(link_a_, PushHeader(bytes.size(), i), {memory.get(), bytes.size()}, 1 + i);
    ASSERT_TRUE(Run([&] { return handler_a_.sent.size() == static_cast<size_t>(i) + 1; }));
    ASSERT_EQ(handler_b_.frames[i].bytes, bytes);
    memory.reset();  // the slab's last piece: it goes
  }
}

TEST_F(ShmEndpointTest, EndpointsSharingSlabsSendEachOthersMemory) {
  auto slabs = SlabAllocator::Create();
  ShmOptions options;
  options.slabs = slabs;
  Open(options);
  const auto bytes = Pattern(100000, 3);
  auto memory = Filled(*b_, bytes);
  EXPECT_TRUE(a_->ByReference(link_a_, {memory.get(), bytes.size()}));
  a_->Send(link_a_, PushHeader(bytes.size()), {memory.get(), bytes.size()}, 1);
  ASSERT_TRUE(Run([&] { return handler_a_.sent.size() == 1; }));
  EXPECT_EQ(handler_b_.frames[0].bytes, bytes);
}

// Both directions at once, all kinds of payloads, on two threads.
TEST(ShmThreadsTest, TwoLoopsExchangeRandomTraffic) {
  constexpr uint64_t kFrames = 150;
  struct Side {
    std::unique_ptr<Loop> loop = *Loop::Create();
    Recorder handler;
    std::unique_ptr<ShmEndpoint> endpoint;
    LinkId link = 0;
    std::shared_ptr<std::byte> slab, slot_slab;
    std::vector<std::byte> slot_private;
    uint64_t next = 0;
    PhiloxRandom random{0};

    // Sends while it may; frame i of either side carries Pattern(size of i, i).
    void Pump() {
      while (next < kFrames && endpoint->Writable(link)) {
        const size_t bytes = random.Below(random.Chance(0.2) ? 300000 : 2000);
        const auto pattern = Pattern(bytes, next);
        ++next;
        if (random.Chance(0.3) && bytes > 4096) {
          // The slab is one buffer, so it is used again only when it came back.
          if (lent) {
            endpoint->Send(link, PushHeader(bytes, next - 1), pattern, 0);
          } else {
            std::memcpy(slab.get(), pattern.data(), bytes);
            lent = true;
            endpoint->Send(link, PushHeader(bytes, next - 1), {slab.get(), bytes}, 1);
          }
        } else {
          endpoint->Send(link, PushHeader(bytes, next - 1), pattern, 0);
        }
      }
    }
    bool lent = false, complete = false;
  };
  Side sides[2];
  for (int i = 0; i < 2; ++i) {
    Side& side = sides[i];
    side.random = PhiloxRandom(i);
    ShmOptions options{.self = {.role = PeerRole::kServer}, .limits = {.max_queued_bytes = 500000}, .listen = i == 0};
    side.endpoint = *ShmEndpoint::Create(side.loop.get(), options);
    side.slab = *side.endpoint->Allocate(300000);
  }
  std::vector<std::thread> threads;
  // A loop that stops as soon as its own side has everything may owe the other one a wake-up that a timer of it sees to.
  std::atomic<int> complete = 0;
  const Address address = sides[0].endpoint->local_address();
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&side = sides[i], &complete, i, address] {
      side.endpoint->SetHandler(&side.handler);
      if (i == 1) side.endpoint->Connect(address, {.role = PeerRole::kWorker});
      EXPECT_TRUE(RunUntil(*side.loop, [&] { return !side.handler.up.empty(); }));
      side.link = side.handler.up[0].first;
      EXPECT_TRUE(RunUntil(*side.loop, [&] {
        if (!side.handler.sent.empty()) {
          side.handler.sent.clear();
          side.lent = false;
        }
        side.Pump();
        if (!side.complete && side.next == kFrames && side.handler.frames.size() == kFrames && !side.lent) {
          side.complete = true;
          ++complete;
        }
        return complete == 2;
      }));
      for (uint64_t f = 0; f < side.handler.frames.size(); ++f) {
        ASSERT_EQ(side.handler.frames[f].header.round, f);
        ASSERT_EQ(side.handler.frames[f].bytes, Pattern(side.handler.frames[f].bytes.size(), f));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& side : sides) side.endpoint.reset();
}

}  // namespace
}  // namespace sluice::transport
