// Two links joined by made-up paths that deliver in any order between them, die at any moment with bytes half written, and
// come back: every frame arrives once, whole and in order, no byte lands in memory that its owner has back, and every
// cookie returns.
#include "transport/multipath/link.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"

namespace sluice::transport::multipath {
namespace {

class World;

// A payload for a slot or not, as the test remembers it.
std::vector<std::byte> Pattern(size_t bytes, uint32_t seed) {
  PhiloxRandom random(seed, 77);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random() & 0xFF);
  return out;
}

struct Memory {
  std::vector<std::byte> bytes;
  bool open = true;      // false: its owner has it back
};

class Side final : public MultipathLink::Owner {
 public:
  struct Op {
    std::vector<std::byte> packet;       // or:
    ConstBytes payload;                  // lent, or of `copy` once it was taken back
    std::vector<std::byte> copy;
    uint64_t address = 0;
    uint32_t tag = 0;
    uint64_t token = 0;
    bool chunk = false;
  };
  struct Wire {                          // one direction of a path
    std::deque<Op> flying;
    std::deque<uint64_t> arrived;        // not known to the sender yet
    bool alive = true;                   // the sender's end
    uint32_t receives = 0, posted = 0;   // at the receiver
    size_t rate = 1;                     // 0: nothing passes
    bool stream = false;                 // the receiver reads it, and drops chunks for closed memory
  };

  Side(World* world, size_t chunk_bytes) : world_(world), link(this, {.max_slotless_bytes = 100000}, chunk_bytes) {}

  size_t Room(PathId path) override {
    return path == kBasePath ? (out[path].flying.size() < 40 ? 100 : 0) : 12 - std::min<size_t>(12, out[path].flying.size());
  }
  bool CanSendFrom(PathId, ConstBytes payload) override { return payload.size() % 7 != 0; }
  void SendPacket(PathId path, ConstBytes packet, uint64_t token) override {
    out[path].flying.push_back({.packet = {packet.begin(), packet.end()}, .payload = {}, .copy = {}, .token = token});
  }
  void SendChunk(PathId path, const Chunk& chunk, uint64_t token) override {
    const uint64_t address = path == kBasePath ? (chunk.slot << 32) + chunk.offset : chunk.target.address + chunk.offset;
    out[path].flying.push_back({.packet = {}, .payload = chunk.payload, .copy = {}, .address = address, .tag = chunk.tag,
                                .token = token, .chunk = true});
  }
  void TakeBack(PathId path, uint64_t token) override {
    EXPECT_TRUE(out[path].stream) << "a remote write cannot be taken back";
    for (Op& op : out[path].flying) {
      if (op.token != token) continue;
      op.copy.assign(op.payload.begin(), op.payload.end());
      op.payload = op.copy;
    }
  }
  uint32_t ReceivesPosted(PathId path) override;
  void BreakPath(PathId path, const absl::Status&) override;
  void Deliver(const FrameHeader& header, Payload payload) override {
    if (on_frame) on_frame(header, payload.bytes());
  }
  void Sent(uint64_t cookie) override {
    const auto it = lent.find(cookie);
    ASSERT_TRUE(it != lent.end()) << "cookie " << cookie << " came back twice or was never lent";
    // Used for something else from now on.
    std::fill(it->second.begin(), it->second.end(), std::byte{0xEE});
    used_again.push_back(std::move(it->second));
    lent.erase(it);
  }
  void SlotClosed(SlotId slot) override { memory.at(slot).open = false; }

  World* const world_;
  MultipathLink link;
  std::map<PathId, Wire> out;
  std::map<SlotId, Memory> memory;
  std::map<uint64_t, std::vector<std::byte>> lent;
  std::deque<std::vector<std::byte>> used_again;
  std::function<void(const FrameHeader&, ConstBytes)> on_frame;
  bool failed = false;
};

class World {
 public:
  World(uint64_t seed, size_t chunk_bytes) : random(seed), a(this, chunk_bytes), b(this, chunk_bytes) {
    for (Side* side : {&a, &b}) {
      side->link.PathUp(kBasePath, {.tier = 0, .read_by_peer = true}, now);
      side->out[kBasePath].stream = true;
    }
    a.link.Begin();
    b.link.Begin();
  }
  Side& Other(const Side& side) { return &side == &a ? b : a; }

  PathId AddPath(uint32_t tier) {
    const PathId id = next_path_++;
    const uint32_t receives = 8 + random.Below(20);
    for (Side* side : {&a, &b}) {
      side->out[id].posted = receives;
      side->out[id].rate = 1 + random.Below(5);
      side->link.PathUp(id, {.tier = tier, .remote_group = tier, .credits = receives, .receives = receives}, now);
    }
    paths.insert(id);
    return id;
  }

  PathId AddStream() {
    const PathId id = next_path_++;
    for (Side* side : {&a, &b}) {
      side->out[id].rate = 1 + random.Below(5);
      side->out[id].stream = true;
      side->link.PathUp(id, {.tier = 0, .remote_group = 1, .packets = false, .read_by_peer = true}, now);
    }
    paths.insert(id);
    return id;
  }

  // Bytes land; closed memory must not change.
  void Write(Side& at, uint64_t address, ConstBytes bytes, size_t count) {
    Memory& memory = at.memory.at(address >> 32);
    ASSERT_TRUE(memory.open) << "a late write into memory that its owner has back";
    const size_t offset = address & 0xFFFFFFFF;
    ASSERT_LE(offset + bytes.size(), memory.bytes.size());
    std::memcpy(memory.bytes.data() + offset, bytes.data(), count);
  }

  // The next thing on this wire arrives.
  void Arrive(Side& from, PathId path) {
    Side& to = Other(from);
    Side::Wire& wire = from.out[path];
    Side::Op op = std::move(wire.flying.front());
    wire.flying.pop_front();
    if (!to.out[path].alive) return;   // its end is destroyed
    if (path != kBasePath) ++wire.posted;
    absl::Status status;
    if (op.chunk) {
      if (!wire.stream || (to.memory.contains(op.address >> 32) && to.memory.at(op.address >> 32).open)) {
        Write(to, op.address, op.payload, op.payload.size());
        status = to.link.OnChunk(path, op.tag);
      }
    } else {
      status = to.link.OnPacket(path, op.packet);
    }
    ASSERT_TRUE(status.ok()) << status;
    if (wire.alive) wire.arrived.push_back(op.token);
  }

  // One end is destroyed: it hears of nothing more, and nothing that is on its way to it can land.
  void Destroy(Side& side, PathId path) {
    Side& other = Other(side);
    // What was acknowledged before comes out of the completion queue first.
    while (!side.out[path].arrived.empty() && random.Chance(0.5)) Acknowledge(side, path);
    side.out[path].arrived.clear();
    side.out[path].alive = false;
    for (const Side::Op& op : other.out[path].flying) {
      if (op.chunk && !other.out[path].stream && random.Chance(0.3))
        Write(side, op.address, op.payload, random.Below(static_cast<uint32_t>(op.payload.size()) + 1));
      break;
    }
    other.out[path].flying.clear();
    side.link.PathLost(path, now);
    paths.erase(path);
  }

  void Acknowledge(Side& side, PathId path) {
    const uint64_t token = side.out[path].arrived.front();
    side.out[path].arrived.pop_front();
    side.link.Done(path, token, now);
  }

  // One random event. False: nothing is left to happen.
  bool Step() {
    now += 1 + random.Below(2'000'000);
    choices_.clear();
    for (Side* side : {&a, &b}) {
      for (auto& [path, wire] : side->out) {
        for (size_t i = 0; i < wire.rate; ++i) {
          if (!wire.flying.empty()) choices_.push_back({side, path, true});
          if (!wire.arrived.empty()) choices_.push_back({side, path, false});
        }
      }
    }
    const bool any = !choices_.empty();
    if (any) {
      const Choice choice = choices_[random.Below(static_cast<uint32_t>(choices_.size()))];
      choice.arrives ? Arrive(*choice.side, choice.path) : Acknowledge(*choice.side, choice.path);
    }
    size_t before = 0, after = 0;
    for (Side* side : {&a, &b}) for (auto& [path, wire] : side->out) before += wire.flying.size();
    a.link.Pump(now);
    b.link.Pump(now);
    for (Side* side : {&a, &b}) for (auto& [path, wire] : side->out) after += wire.flying.size();
    return any || after != before;
  }

  // What stood still goes on. False: nothing did.
  bool Thaw() {
    bool any = false;
    for (Side* side : {&a, &b}) {
      for (auto& [path, wire] : side->out) {
        any |= wire.rate == 0;
        wire.rate = std::max<size_t>(wire.rate, 1);
      }
    }
    return any;
  }

  PhiloxRandom random;
  TimeNs now = kSecond;
  Side a, b;
  std::set<PathId> paths;   // alive at both ends

 private:
  struct Choice {
    Side* side;
    PathId path;
    bool arrives;   // else: is acknowledged
  };
  std::vector<Choice> choices_;
  PathId next_path_ = 1;
};

// The peer posts one receive again for each thing that arrived.
uint32_t Side::ReceivesPosted(PathId path) { return world_->Other(*this).out[path].posted; }
void Side::BreakPath(PathId path, const absl::Status&) { world_->Destroy(*this, path); }

struct Expected {
  uint64_t round;
  std::vector<std::byte> bytes;
  SlotId slot;
};

// streams: the paths are further TCP connections, some of which stand still for a while, and not queue pairs.
void Simulate(uint64_t seed, bool faults, bool revoke, bool streams = false, uint64_t* resent = nullptr) {
  World world(seed, 4096);
  PhiloxRandom& random = world.random;
  std::deque<Expected> expected;
  std::set<uint64_t> may_be_dropped;
  std::set<SlotId> revoked;
  uint64_t delivered = 0, dropped = 0, small = 0;
  world.b.on_frame = [&](const FrameHeader& header, ConstBytes payload) {
    while (!expected.empty() && expected.front().round != header.round && may_be_dropped.contains(expected.front().round)) {
      expected.pop_front();
      ++dropped;
    }
    ASSERT_FALSE(expected.empty());
    const Expected& next = expected.front();
    ASSERT_EQ(next.round, header.round);
    ASSERT_EQ(payload.size(), next.bytes.size());
    ASSERT_TRUE(payload.empty() || std::memcmp(payload.data(), next.bytes.data(), payload.size()) == 0);
    expected.pop_front();
    ++delivered;
    if (header.slot == 0 || payload.empty()) return;
    // Each frame fills its slot: the memory is free at once, whatever is on its way for others.
    Memory& memory = world.b.memory.at(header.slot);
    EXPECT_TRUE(world.b.link.CloseSlot(header.slot, world.now));
    memory.open = false;
  };
  uint64_t got_back = 0, sent_back = 0, round = 0, granted = 0;
  SlotId next_slot = 1;
  std::vector<SlotId> open;
  constexpr uint64_t kFrames = 120;
  const auto send = [&](SlotId slot, size_t bytes) {
    FrameHeader header{.type = FrameType::kPush, .round = round++};
    header.slot = slot;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    header.total_bytes = bytes;
    const uint64_t cookie = 1 + header.round;
    auto& lent = world.a.lent[cookie];
    lent = Pattern(bytes, static_cast<uint32_t>(header.round));
    expected.push_back({header.round, lent, slot});
    // What was revoked before is dropped by the receiver, or by the sender, who may know already.
    if (slot != 0 && revoked.contains(slot)) may_be_dropped.insert(header.round);
    world.a.link.Send(header, lent, cookie);
  };
  world.a.on_frame = [&](const FrameHeader& header, ConstBytes) {
    if (header.type == FrameType::kGrant) return send(header.slot, header.aux64);
    EXPECT_EQ(header.round, got_back++);
  };
  const auto add = [&] { streams ? world.AddStream() : world.AddPath(1); };
  for (int i = 0; i < 3; ++i) add();
  for (int step = 0; step < 200000; ++step) {
    if (granted < kFrames / 2 && random.Chance(0.04)) {
      const size_t bytes = 1 + random.Below(120000);
      const SlotId slot = next_slot++;
      ++granted;
      world.b.memory[slot].bytes.resize(bytes);
      std::vector<SlotTarget> targets;
      if (random.Chance(0.9)) targets.push_back({1, slot << 32, 0});
      world.b.link.OpenSlot(slot, world.b.memory[slot].bytes, targets, !targets.empty() && (!streams || random.Chance(0.5)));
      FrameHeader grant{.type = FrameType::kGrant};
      grant.slot = slot;
      grant.aux64 = bytes;
      world.b.link.Send(grant, {}, 0);
      open.push_back(slot);
    }
    if (small < kFrames / 2 && random.Chance(0.04)) {
      const size_t sizes[] = {0, 1, 100, 8000, 30000, 100000};
      send(0, sizes[random.Below(6)]);
      ++small;
    }
    if (random.Chance(0.02) && sent_back < kFrames / 2) world.b.link.Send({.type = FrameType::kApplied, .round = sent_back++}, {}, 0);
    if (faults && random.Chance(0.01) && !world.paths.empty()) {
      auto path = world.paths.begin();
      std::advance(path, random.Below(static_cast<uint32_t>(world.paths.size())));
      world.Destroy(random.Chance(0.5) ? world.a : world.b, *path);
    }
    if (faults && random.Chance(0.01) && world.paths.size() < 4) add();
    if (streams && random.Chance(0.02)) {
      Side& side = random.Chance(0.5) ? world.a : world.b;
      auto wire = side.out.begin();
      std::advance(wire, random.Below(static_cast<uint32_t>(side.out.size())));
      wire->second.rate = wire->second.rate == 0 || wire->first == kBasePath ? 1 + random.Below(5) : 0;
    }
    if (revoke && random.Chance(0.05) && !open.empty()) {
      const SlotId slot = open[random.Below(static_cast<uint32_t>(open.size()))];
      Memory& memory = world.b.memory.at(slot);
      if (memory.open) {
        revoked.insert(slot);
        for (const Expected& e : expected) if (e.slot == slot && !e.bytes.empty()) may_be_dropped.insert(e.round);
        if (world.b.link.CloseSlot(slot, world.now)) memory.open = false;
      }
    }
    bool any = world.Step();
    if (!any && streams) any = world.Thaw();
    if (testing::Test::HasFatalFailure()) return;
    if (!any && round == kFrames && sent_back == kFrames / 2) break;
  }
  for (const Expected& e : expected) {
    EXPECT_TRUE(may_be_dropped.contains(e.round)) << "frame " << e.round << " of " << e.bytes.size() << " bytes was lost";
  }
  EXPECT_EQ(round, kFrames);
  EXPECT_EQ(delivered + dropped + expected.size(), kFrames);
  EXPECT_EQ(got_back, sent_back);
  EXPECT_TRUE(world.a.lent.empty()) << "cookies that did not come back";
  EXPECT_EQ(world.a.link.queued_bytes(), 0u);
  EXPECT_FALSE(world.a.link.WaitsForChunks());
  if (resent != nullptr) *resent += world.a.link.resent_chunks();
  for (auto& [slot, memory] : world.b.memory) {
    if (memory.open) {
      EXPECT_TRUE(revoke) << slot;
    }
  }
}

TEST(MultipathLinkTest, FramesArriveOnceWholeAndInOrder) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Simulate(seed, false, false);
    if (HasFailure()) return;
  }
}

TEST(MultipathLinkTest, NothingIsLostOrWrittenLateWhenPathsDieAndComeBack) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Simulate(seed, true, false);
    if (HasFailure()) return;
  }
}

TEST(MultipathLinkTest, ASlotIsRevokedInTheMiddleOfWritesAndFaults) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Simulate(seed, true, true);
    if (HasFailure()) return;
  }
}

TEST(MultipathLinkTest, FramesArriveOnceThoughLateChunksAreSentAgainOverOtherStreams) {
  uint64_t resent = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Simulate(seed, false, false, /*streams=*/true, &resent);
    if (HasFailure()) return;
  }
  EXPECT_GT(resent, 50u);
}

TEST(MultipathLinkTest, StreamsStandStillDieAndComeBackWhileSlotsAreRevoked) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Simulate(seed, true, seed % 2 == 0, /*streams=*/true);
    if (HasFailure()) return;
  }
}

TEST(MultipathLinkTest, APeerThatNeverAnswersACloseOrALossIsOverdue) {
  World world(1, 4096);
  const PathId path = world.AddPath(1);
  std::vector<std::byte> memory(1000);
  world.b.link.OpenSlot(1, memory, {{.group = 1, .address = 4096}}, true);
  EXPECT_FALSE(world.b.link.CloseSlot(1, world.now));
  EXPECT_TRUE(world.b.link.Overdue(world.now + kSecond).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.b.link.Overdue(world.now + 60 * kSecond)));
  world.a.link.PathLost(path, world.now);
  EXPECT_TRUE(world.a.link.Overdue(world.now + kSecond).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.a.link.Overdue(world.now + 60 * kSecond)));
}

TEST(MultipathLinkTest, TheTimeWithoutCreditsCountsWhileSomethingWaits) {
  World world(1, 4096);
  MultipathLink& link = world.a.link;
  link.PathUp(2, {.tier = 1, .remote_group = 1, .credits = 2, .receives = 2}, world.now);
  link.Pump(world.now);
  link.Pump(world.now + kSecond);
  EXPECT_EQ(link.credit_stall(), 0);
  const std::vector<std::byte> payload(3000);
  FrameHeader header;
  header.type = FrameType::kPush;
  header.payload_bytes = 3000;
  header.total_bytes = 3000;
  for (int i = 0; i < 10; ++i) link.Send(header, payload, 0);
  link.Pump(world.now + kSecond);
  EXPECT_EQ(link.credit_stall(), 0);
  link.Pump(world.now + 3 * kSecond);
  EXPECT_EQ(link.credit_stall(), 2 * kSecond);
}

// A link with a base path that takes nothing: its peer does not read.
class Unread final {
 public:
  Unread() : world_(1, 4096) {
    // Room for no more.
    for (int i = 0; i < 100; ++i) world_.b.out[kBasePath].flying.push_back({});
  }
  absl::Status Receive(PacketBuilder& builder) { return world_.b.link.OnPacket(kBasePath, builder.Take(++sequence_)); }

 private:
  World world_;
  uint64_t sequence_ = 0;
};

TEST(MultipathLinkTest, MemoryDoesNotGrowWithClosesWhoseAnswersAreNotRead) {
  Unread link;
  absl::Status status;
  size_t closed = 0;
  for (SlotId slot = 1; status.ok() && slot < 1'000'000; closed = slot++) {
    PacketBuilder builder;
    builder.Slot(slot, 100, {});
    builder.Close(slot, /*answer=*/true);
    status = link.Receive(builder);
  }
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_LE(closed, 5000u);
}

TEST(MultipathLinkTest, AnswersForSlotsThatNeverWereAreRefused) {
  Unread link;
  PacketBuilder builder;
  builder.Close(12345, /*answer=*/true);
  EXPECT_TRUE(absl::IsInvalidArgument(link.Receive(builder)));
}

TEST(MultipathLinkTest, FramesOfSixtyThousandChunksAreRefused) {
  Unread link;
  FrameHeader header{.type = FrameType::kPush};
  header.slot = 9999;
  header.payload_bytes = 1 << 20;
  header.total_bytes = 1 << 20;
  PacketBuilder builder;
  builder.Frame(header, 0, 65536, {});
  EXPECT_TRUE(absl::IsInvalidArgument(link.Receive(builder)));
}

}  // namespace
}  // namespace sluice::transport::multipath
