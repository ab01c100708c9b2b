// Peers that lie, die and garble. Each must cost no more than its link, with a reason; the endpoint goes on.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "base/philox.h"
#include "transport/hello.h"
#include "transport/shm/outbox.h"
#include "transport/shm/packet_socket.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/shm/slots.h"
#include "transport/shm/testing.h"

namespace sluice::transport {
namespace {

using testing::Pattern;
using testing::PushHeader;
using testing::Recorder;
using testing::RunUntil;

std::vector<std::byte> Frame(FrameHeader header, ConstBytes payload = {}) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.total_bytes = payload.size();
  std::vector<std::byte> packet(kHeaderBytes + payload.size());
  EncodeHeader(header, packet.data());
  std::copy(payload.begin(), payload.end(), packet.begin() + kHeaderBytes);
  return packet;
}

// Speaks the protocol by hand.
struct RawPeer {
  UniqueFd socket;
  Outbox own = *Outbox::Create({.ring_entries = 16, .slots = 4, .arena_bytes = 8192});
  std::optional<Outbox> peer;
  uint64_t tail = 0;

  void Send(ConstBytes packet, int file = -1) { ASSERT_TRUE(SendPacket(socket.get(), packet, file).ok()); }
  void SendHello(int file) {
    Send(Frame({.type = FrameType::kHello}, EncodeHello({.role = PeerRole::kWorker, .name = "raw"})), file);
  }
  void Wake() {
    const std::byte byte{1};
    SendPacket(socket.get(), ConstBytes(&byte, 1)).IgnoreError();
  }
  void Publish(const Descriptor& descriptor) {
    std::memcpy(own.entry(tail), &descriptor, sizeof(descriptor));
    own.producer().tail.store(++tail);
    Wake();
  }
  void Slab(uint32_t slab, int file) {
    Send(Frame({.type = FrameType::kTransport, .aux = static_cast<uint32_t>(SocketMessage::kSlab), .aux64 = slab}),
         file);
  }
};

Descriptor Describe(DescriptorKind kind, const FrameHeader& header) {
  Descriptor descriptor{.kind = static_cast<uint32_t>(kind)};
  EncodeHeader(header, descriptor.header);
  return descriptor;
}

class HostilePeerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop_ = *Loop::Create();
    endpoint_ = *ShmEndpoint::Create(loop_.get(), {.self = {.role = PeerRole::kServer, .name = "victim"},
                                                   .handshake_timeout = 50 * kMillisecond,
                                                   .refused = [this](const absl::Status& why) { refused_ = why; }});
    endpoint_->SetHandler(&handler_);
  }

  void TearDown() override {
    // It still serves an honest peer.
    Recorder other;
    auto honest = *ShmEndpoint::Create(loop_.get(), {.listen = false});
    honest->SetHandler(&other);
    const LinkId link = honest->Connect(endpoint_->local_address(), {.role = PeerRole::kWorker});
    honest->Send(link, PushHeader(100), Pattern(100, 1), 0);
    EXPECT_TRUE(Run([&] { return !handler_.frames.empty() && handler_.frames.back().bytes == Pattern(100, 1); }));
  }

  bool Run(std::function<bool()> done) { return RunUntil(*loop_, std::move(done)); }

  void Dial(RawPeer& peer) { peer.socket = *ConnectPackets(endpoint_->local_address().unix_socket); }

  // An accepted link.
  void ConnectRaw(RawPeer& peer) {
    const size_t ups = handler_.up.size();
    Dial(peer);
    peer.SendHello(peer.own.file());
    ASSERT_TRUE(Run([&] { return handler_.up.size() == ups + 1; }));
    link_ = handler_.up.back().first;
    auto welcome = ReceivePacket(peer.socket.get());
    ASSERT_TRUE(welcome.ok() && welcome->files.size() == 1);
    auto adopted = Outbox::Adopt(welcome->files[0]);
    ASSERT_TRUE(adopted.ok()) << adopted.status();
    peer.peer = *std::move(adopted);
  }

  // The link goes down, for this reason.
  void ExpectDown(absl::string_view why) {
    ASSERT_TRUE(Run([&] { return handler_.down.contains(link_); })) << why;
    EXPECT_NE(handler_.down[link_].message().find(why), std::string::npos) << handler_.down[link_];
  }
  void ExpectDownAfter(const Descriptor& descriptor, absl::string_view why) {
    RawPeer peer;
    ConnectRaw(peer);
    peer.Publish(descriptor);
    ExpectDown(why);
    EXPECT_TRUE(handler_.frames.empty());
  }
  // The handler never hears of it.
  void ExpectRefused(absl::string_view why) {
    refused_.reset();
    ASSERT_TRUE(Run([&] { return refused_.has_value(); })) << why;
    EXPECT_NE(refused_->message().find(why), std::string::npos) << *refused_;
    EXPECT_TRUE(handler_.up.empty());
    EXPECT_TRUE(handler_.down.empty());
  }

  std::unique_ptr<Loop> loop_;
  Recorder handler_;
  std::unique_ptr<ShmEndpoint> endpoint_;
  LinkId link_ = 0;
  std::optional<absl::Status> refused_;
};

TEST_F(HostilePeerTest, HandshakesThatCannotBe) {
  RawPeer silent;
  Dial(silent);
  ExpectRefused("no HELLO within 50 ms");

  RawPeer garbage;
  Dial(garbage);
  garbage.Send(Pattern(300, 1));
  ExpectRefused("");

  RawPeer short_packet;
  Dial(short_packet);
  short_packet.Send(Pattern(5, 1));
  ExpectRefused("no frame");

  RawPeer long_packet;
  Dial(long_packet);
  long_packet.Send(Pattern(5000, 1));
  ExpectRefused("too long");

  RawPeer no_memory;
  Dial(no_memory);
  no_memory.SendHello(-1);
  ExpectRefused("without shared memory");

  RawPeer welcome;
  Dial(welcome);
  welcome.Send(Frame({.type = FrameType::kWelcome}, EncodeHello({.role = PeerRole::kWorker})), welcome.own.file());
  ExpectRefused("out of turn");

  RawPeer early_slab;
  Dial(early_slab);
  early_slab.Slab(1, early_slab.own.file());
  ExpectRefused("out of turn");

  RawPeer gone;
  Dial(gone);
  gone.socket.reset();
  ExpectRefused("ended or closed");
}

TEST_F(HostilePeerTest, OutboxesThatCannotBe) {
  RawPeer unsealed;
  UniqueFd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), 1 << 20), 0);
  Dial(unsealed);
  unsealed.SendHello(file.get());
  ExpectRefused("not sealed");

  RawPeer no_memfd;
  UniqueFd null(::open("/dev/null", O_RDWR));
  Dial(no_memfd);
  no_memfd.SendHello(null.get());
  ExpectRefused("no memfd");

  const auto with_header = [&](OutboxHeader header, size_t bytes, absl::string_view why) {
    RawPeer peer;
    auto memory = CreateSealedMemory("test", bytes);
    auto mapping = Mapping::Map(memory->get(), bytes);
    std::memcpy((*mapping)->data(), &header, sizeof(header));
    Dial(peer);
    peer.SendHello(memory->get());
    ExpectRefused(why);
  };
  with_header({0, 16, 4, 8192}, 1 << 20, "no outbox");
  with_header({kOutboxMagic, 15, 4, 8192}, 1 << 20, "impossible outbox");
  with_header({kOutboxMagic, 0, 4, 8192}, 1 << 20, "impossible outbox");
  with_header({kOutboxMagic, 1u << 31, 4, 8192}, 1 << 20, "impossible outbox");
  with_header({kOutboxMagic, 16, 1u << 31, 8192}, 1 << 20, "impossible outbox");
  with_header({kOutboxMagic, 16, 4, 1}, 1 << 20, "impossible outbox");
  with_header({kOutboxMagic, 16, 4, uint64_t{1} << 63}, 1 << 20, "impossible outbox");
  with_header({kOutboxMagic, 16, 4, 1 << 20}, 1 << 20, "says that it has");
  with_header({kOutboxMagic, 16, 4, 8192}, 4096, "says that it has");
}

TEST_F(HostilePeerTest, PositionsThatJump) {
  RawPeer forward;
  ConnectRaw(forward);
  forward.own.producer().tail.store(17);  // more than the ring holds
  forward.Wake();
  ExpectDown("write position jumped");

  RawPeer backward;
  ConnectRaw(backward);
  backward.Publish(Describe(DescriptorKind::kFrame, PushHeader(0, 9)));
  ASSERT_TRUE(Run([&] { return handler_.frames.size() == 1; }));
  backward.own.producer().tail.store(0);
  backward.Wake();
  ExpectDown("write position jumped");

  RawPeer reader;
  ConnectRaw(reader);
  reader.peer->consumer().head.store(5);  // has read what was never written
  endpoint_->Send(link_, PushHeader(0), {}, 3);
  reader.Wake();
  ExpectDown("read position jumped");
  EXPECT_EQ(handler_.sent, std::vector<uint64_t>{3});

  RawPeer rereader;
  ConnectRaw(rereader);
  endpoint_->Send(link_, PushHeader(0), {}, 0);
  rereader.peer->consumer().head.store(1);
  rereader.Wake();
  endpoint_->Send(link_, PushHeader(0), {}, 0);
  ASSERT_TRUE(Run([&] { return endpoint_->Writable(link_); }));
  rereader.peer->consumer().head.store(0);
  for (int i = 0; i < 3; ++i) rereader.Wake();
  ExpectDown("read position jumped");
}

TEST_F(HostilePeerTest, DescriptorsThatCannotBe) {
  ExpectDownAfter({.kind = 99}, "unknown kind");
  ExpectDownAfter({.kind = static_cast<uint32_t>(DescriptorKind::kFrame)}, "not a Sluice frame");
  ExpectDownAfter(Describe(DescriptorKind::kFrame, {.type = FrameType::kHello}), "does not belong");
  ExpectDownAfter(Describe(DescriptorKind::kFrame, PushHeader(100)), "a chunk of 0 bytes where 100 are missing");
  Descriptor damaged = Describe(DescriptorKind::kFrame, PushHeader(0));
  damaged.header[20] ^= std::byte{1};
  ExpectDownAfter(damaged, "check");
  Descriptor longer = Describe(DescriptorKind::kFrame, PushHeader(100));
  longer.bytes = 101;
  ExpectDownAfter(longer, "where 100 are missing");
  Descriptor outside = Describe(DescriptorKind::kFrame, PushHeader(8000));
  outside.bytes = 8000;
  outside.position = 8192 - 100;
  ExpectDownAfter(outside, "does not lie in the arena");
  Descriptor absurd = Describe(DescriptorKind::kFrame, PushHeader(0xFFFFFFFF));
  absurd.bytes = 0xFFFFFFFF;
  ExpectDownAfter(absurd, "larger than");
  Descriptor chunk{.kind = static_cast<uint32_t>(DescriptorKind::kChunk), .bytes = 10};
  ExpectDownAfter(chunk, "without its frame");
  ExpectDownAfter({.kind = static_cast<uint32_t>(DescriptorKind::kRelease), .token = 7}, "not lent");
  ExpectDownAfter(Describe(DescriptorKind::kPlaced, PushHeader(10)), "placed nowhere");
  Descriptor reference = Describe(DescriptorKind::kReference, PushHeader(10));
  reference.slab = 5;
  ExpectDownAfter(reference, "never announced slab 5");
}

TEST_F(HostilePeerTest, FrameInTheMiddleOfAnother) {
  RawPeer peer;
  ConnectRaw(peer);
  Descriptor first = Describe(DescriptorKind::kFrame, PushHeader(100));
  first.bytes = 50;
  peer.Publish(first);
  peer.Publish(Describe(DescriptorKind::kFrame, PushHeader(0)));
  ExpectDown("in the middle of");
}

TEST_F(HostilePeerTest, ReferencesOutsideTheirSlabOrTwice) {
  auto slab = CreateSealedMemory("test", 8192);
  for (const uint64_t offset : {uint64_t{1}, uint64_t{8192}, UINT64_MAX, UINT64_MAX - 8191}) {
    RawPeer peer;
    ConnectRaw(peer);
    peer.Slab(1, slab->get());
    Descriptor reference = Describe(DescriptorKind::kReference, PushHeader(8192));
    reference.slab = 1;
    reference.position = offset;
    peer.Publish(reference);
    ExpectDown("outside slab 1");
  }
  RawPeer twice;
  handler_.keep = true;
  ConnectRaw(twice);
  twice.Slab(1, slab->get());
  Descriptor reference = Describe(DescriptorKind::kReference, PushHeader(8192));
  reference.slab = 1;
  twice.Publish(reference);
  twice.Publish(reference);
  ExpectDown("repeats the reference");
  handler_.keep = false;
}

TEST_F(HostilePeerTest, SlabsThatCannotBe) {
  RawPeer unsealed;
  ConnectRaw(unsealed);
  UniqueFd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(file.get(), 8192), 0);
  unsealed.Slab(1, file.get());
  ExpectDown("not sealed");

  RawPeer no_file;
  ConnectRaw(no_file);
  no_file.Slab(1, -1);
  ExpectDown("without its file");

  RawPeer twice;
  ConnectRaw(twice);
  auto slab = CreateSealedMemory("test", 8192);
  twice.Slab(1, slab->get());
  twice.Slab(1, slab->get());
  ExpectDown("twice");
}

TEST_F(HostilePeerTest, SlotOfThePeerThatPointsNowhere) {
  for (const uint64_t offset : {uint64_t{0}, UINT64_MAX - 100}) {
    RawPeer peer;
    ConnectRaw(peer);
    auto slab = CreateSealedMemory("test", 4096);
    if (offset != 0) peer.Slab(9, slab->get());
    SlotTable table(&peer.own);
    std::vector<std::byte> memory(1 << 20);
    const SlotId slot = table.Open(1, memory, SlabRange{.slab = 9, .offset = offset, .bytes = 1 << 20});
    endpoint_->Send(link_, PushHeader(4096, 0, slot), Pattern(4096, 1), 6);
    ExpectDown("slab 9");
    EXPECT_EQ(handler_.sent, std::vector<uint64_t>{6});
    handler_.sent.clear();
  }
}

TEST_F(HostilePeerTest, SlotStateIsOverwritten) {
  RawPeer peer;
  ConnectRaw(peer);
  auto memory = *endpoint_->Allocate(4096);
  const SlotId slot = endpoint_->OpenSlot(link_, {memory.get(), 4096});
  peer.peer->slot(slot & 0xFFFF).state.store(0xFFFFFFFFFFFFFFFF);
  EXPECT_TRUE(endpoint_->CloseSlot(link_, slot));
  // A peer that "is writing" when the slot is closed, and dies in it.
  const SlotId busy = endpoint_->OpenSlot(link_, {memory.get(), 4096});
  SlotWrite write;
  ASSERT_EQ(write.Begin(*peer.peer, busy), SlotWrite::Outcome::kBegun);
  EXPECT_FALSE(endpoint_->CloseSlot(link_, busy));
  EXPECT_FALSE(endpoint_->CloseSlot(link_, busy));
  endpoint_->Close(link_, absl::CancelledError("test"));
  // The link lingers: whatever else happens, OnDown has to wait for the peer.
  const size_t ups = handler_.up.size();
  RawPeer other;
  Dial(other);
  other.SendHello(other.own.file());
  ASSERT_TRUE(Run([&] { return handler_.up.size() == ups + 1; }));
  EXPECT_TRUE(handler_.down.empty());
  EXPECT_TRUE(handler_.slots_closed.empty());
  peer.socket.reset();
  ASSERT_TRUE(Run([&] { return handler_.down.contains(link_); }));
  EXPECT_EQ(handler_.slots_closed, std::vector<SlotId>{busy});
}

TEST_F(HostilePeerTest, WriterThatFinishesAfterTheCloseSaysSo) {
  RawPeer peer;
  ConnectRaw(peer);
  auto memory = *endpoint_->Allocate(4096);
  const SlotId slot = endpoint_->OpenSlot(link_, {memory.get(), 4096});
  SlotWrite write;
  ASSERT_EQ(write.Begin(*peer.peer, slot), SlotWrite::Outcome::kBegun);
  EXPECT_FALSE(endpoint_->CloseSlot(link_, slot));
  write.End();
  EXPECT_EQ(SlotWrite().Begin(*peer.peer, slot), SlotWrite::Outcome::kClosed);
  peer.Publish(Describe(DescriptorKind::kPlaced, PushHeader(4096, 0, slot)));
  ASSERT_TRUE(Run([&] { return handler_.slots_closed == std::vector<SlotId>{slot}; }));
  EXPECT_TRUE(handler_.frames.empty());
}

TEST_F(HostilePeerTest, RandomBytesInTheRing) {
  PhiloxRandom random(7);
  for (int round = 0; round < 60; ++round) {
    RawPeer peer;
    ConnectRaw(peer);
    auto slab = CreateSealedMemory("test", 8192);
    peer.Slab(1, slab->get());
    for (int i = 0; i < 8; ++i) {
      FrameHeader header = PushHeader(random.Below(9000), i, random.Chance(0.3) ? random() : 0);
      Descriptor descriptor = Describe(static_cast<DescriptorKind>(random.Below(7)), header);
      if (random.Chance(0.7)) descriptor.bytes = random.Below(9000);
      if (random.Chance(0.7)) descriptor.position = random.Below(10000);
      descriptor.slab = random.Below(3);
      descriptor.token = random.Below(5);
      if (random.Chance(0.2)) reinterpret_cast<std::byte*>(&descriptor)[random.Below(192)] ^= std::byte{16};
      peer.Publish(descriptor);
    }
    peer.socket.reset();
    ASSERT_TRUE(Run([&] { return handler_.down.contains(link_); }));
  }
  handler_.frames.clear();
}

TEST_F(HostilePeerTest, KilledProcessIsNoticedAndItsFramesArrive) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const std::string name = endpoint_->local_address().unix_socket;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Speaks by hand: the parent's loop must not run here.
    RawPeer peer;
    peer.socket = *ConnectPackets(name);
    peer.SendHello(peer.own.file());
    pollfd welcome{.fd = peer.socket.get(), .events = POLLIN, .revents = 0};
    ::poll(&welcome, 1, -1);
    Descriptor frame = Describe(DescriptorKind::kFrame, PushHeader(5, 42));
    frame.bytes = 5;
    std::memcpy(peer.own.arena(), "hello", 5);
    peer.Publish(frame);
    [[maybe_unused]] const ssize_t n = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  ASSERT_TRUE(Run([&] { return !handler_.up.empty(); }));
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(Run([&] { return !handler_.down.empty(); }));
  ASSERT_EQ(handler_.frames.size(), 1);
  EXPECT_EQ(handler_.frames[0].header.round, 42);
  EXPECT_EQ(handler_.down.begin()->second.code(), absl::StatusCode::kUnavailable);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace sluice::transport
