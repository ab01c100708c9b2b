#include "transport/sim/sim_network.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "transport/sim/sim_endpoint.h"

namespace sluice::transport {
namespace {

ConstBytes Text(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }
std::string ToString(ConstBytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Writes down what happens; keeps payloads if told so.
struct Recorder : Handler {
  void OnUp(LinkId link, const Hello& peer) override {
    log.push_back(absl::StrCat("up ", link, " ", peer.name));
    last = link;
  }
  void OnDown(LinkId link, const absl::Status& reason) override {
    log.push_back(absl::StrCat("down ", link, " ", absl::StatusCodeToString(reason.code())));
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    log.push_back(absl::StrCat("frame ", link, " ", header.aux, " ", ToString(payload.bytes())));
    if (keep) kept.push_back(std::move(payload));
  }
  void OnSent(LinkId link, uint64_t cookie) override { log.push_back(absl::StrCat("sent ", link, " ", cookie)); }
  void OnSlotClosed(LinkId link, SlotId slot) override {
    log.push_back(absl::StrCat("closed ", link, " ", slot));
  }
  void OnWritable(LinkId link) override { log.push_back(absl::StrCat("writable ", link)); }

  size_t Count(const std::string& prefix) const {
    return static_cast<size_t>(std::count_if(log.begin(), log.end(), [&](const std::string& line) {
      return line.compare(0, prefix.size(), prefix) == 0;
    }));
  }

  std::vector<std::string> log;
  std::vector<Payload> kept;
  bool keep = false;
  LinkId last = 0;
};

struct Pair {
  explicit Pair(uint64_t seed, SimFaults faults = {}, EndpointLimits limits = {}) : network(seed, faults, &clock) {
    a = network.CreateEndpoint("a", limits);
    b = network.CreateEndpoint("b/0", limits);
    a->SetHandler(&at_a);
    b->SetHandler(&at_b);
    b->Listen({.role = PeerRole::kServer, .name = "bee"});
    Dial();
  }
  void Dial() {
    link = a->Connect(b->address(), {.role = PeerRole::kWorker, .name = "ay"});
    network.RunFor(kSecond);
  }
  void Send(uint32_t number, const std::string& text, uint64_t cookie = 0, SlotId slot = 0) {
    a->Send(link,
            {.type = FrameType::kPush, .total_bytes = text.size(), .payload_bytes = static_cast<uint32_t>(text.size()),
             .slot = slot, .aux = number},
            Text(text), cookie);
  }

  ManualClock clock;
  SimNetwork network;
  Recorder at_a, at_b;
  std::unique_ptr<SimEndpoint> a, b;
  LinkId link = 0;
};

TEST(SimNetworkTest, ConnectsAndCarriesFramesInOrder) {
  Pair pair(1);
  EXPECT_EQ(pair.at_a.log, std::vector<std::string>{"up 1 bee"});
  EXPECT_EQ(pair.at_b.log, std::vector<std::string>{"up 1 ay"});
  pair.at_b.log.clear();
  std::vector<std::string> expected;
  for (uint32_t i = 0; i < 100; ++i) {
    pair.Send(i, "x");
    expected.push_back(absl::StrCat("frame 1 ", i, " x"));
  }
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_b.log, expected);
}

TEST(SimNetworkTest, OneSeedOneHistory) {
  SimFaults faults;
  faults.drop = faults.duplicate = faults.reorder = 0.2;
  faults.reset = 0.005;
  const auto run = [&](uint64_t seed) {
    Pair pair(seed, faults);
    const std::string text = "payload";
    for (uint32_t i = 0; i < 200; ++i) pair.Send(i, text, 1 + i);
    pair.network.RunFor(kSecond);
    pair.at_b.log.insert(pair.at_b.log.end(), pair.at_a.log.begin(), pair.at_a.log.end());
    return pair.at_b.log;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST(SimNetworkTest, FaultsHappenAndEveryCookieComesBackOnce) {
  SimFaults faults;
  faults.drop = faults.duplicate = faults.reorder = 0.2;
  Pair pair(3, faults);
  const std::string text = "payload";
  for (uint32_t i = 0; i < 1000; ++i) pair.Send(i, text, 1 + i);
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_a.Count("sent "), 1000u);
  EXPECT_EQ(pair.a->lent(), 0u);
  const SimStats& stats = pair.network.stats();
  EXPECT_GT(stats.dropped, 100u);
  EXPECT_GT(stats.duplicated, 100u);
  EXPECT_EQ(pair.at_b.Count("frame "), 1000 - stats.dropped + stats.duplicated);
  std::vector<std::string> frames;
  for (const std::string& line : pair.at_b.log)
    if (line.starts_with("frame ")) frames.push_back(line.substr(8));
  const auto number = [](const std::string& line) { return std::stoi(line); };
  EXPECT_FALSE(std::is_sorted(frames.begin(), frames.end(), [&](auto& x, auto& y) { return number(x) < number(y); }));
}

TEST(SimNetworkTest, LentBytesAreReadLateButNeverAfterOnSent) {
  // The sender overwrites its buffer as soon as OnSent allows it; a copy taken at Send or just before OnSent is right.
  struct Overwriter : Recorder {
    void OnSent(LinkId link, uint64_t cookie) override {
      Recorder::OnSent(link, cookie);
      buffer[cookie - 1] = std::string(8, '!');
    }
    std::vector<std::string> buffer;
  } at_a;
  Pair pair(4);
  pair.a->SetHandler(&at_a);
  at_a.buffer.assign(200, "original");
  int early = 0;
  for (uint32_t i = 0; i < 200; ++i) pair.Send(i, at_a.buffer[i], 1 + i);
  for (uint32_t i = 0; i < 200; ++i) at_a.buffer[i][0] = 'O';  // too early: half of the frames see it
  pair.network.RunFor(kSecond);
  for (const std::string& line : pair.at_b.log) {
    EXPECT_EQ(line.find('!'), std::string::npos) << line;
    early += line.find("Original") != std::string::npos;
  }
  EXPECT_GT(early, 50);
  EXPECT_LT(early, 150);
  EXPECT_EQ(pair.network.stats().changed_while_lent + static_cast<uint64_t>(early), 200u);
}

TEST(SimNetworkTest, SlotsAreWrittenAtDeliveryAndClosedOnesDropFrames) {
  Pair pair(5);
  std::string memory(10, '.');
  const SlotId slot = pair.b->OpenSlot(1, {reinterpret_cast<std::byte*>(memory.data()), memory.size()});
  pair.Send(1, "hello", 0, slot);
  EXPECT_EQ(memory, "..........");
  pair.network.RunFor(kSecond);
  EXPECT_EQ(memory, "hello.....");
  pair.Send(2, "again", 0, slot);
  EXPECT_TRUE(pair.b->CloseSlot(1, slot));
  pair.network.RunFor(kSecond);
  EXPECT_EQ(memory, "hello.....");
  EXPECT_EQ(pair.at_b.Count("frame "), 1u);
  EXPECT_EQ(pair.network.stats().closed_slot_drops, 1u);
}

TEST(SimNetworkTest, ClosingASlotInTheMiddleOfAFrameIsReportedLater) {
  SimFaults faults;
  faults.slow_write = 1;
  Pair pair(6, faults);
  std::string memory(4, '.');
  const SlotId slot = pair.b->OpenSlot(1, {reinterpret_cast<std::byte*>(memory.data()), memory.size()});
  pair.Send(1, "abcd", 0, slot);
  while (memory == "....") ASSERT_TRUE(pair.network.Step());
  EXPECT_EQ(memory, "ab..");
  EXPECT_FALSE(pair.b->CloseSlot(1, slot));
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_b.Count("frame "), 0u);
  EXPECT_EQ(pair.at_b.Count("closed 1 "), 1u);
}

TEST(SimNetworkTest, AStripeOutsideItsSlotTakesTheLinkDown) {
  Pair pair(7);
  std::string memory(4, '.');
  const SlotId slot = pair.b->OpenSlot(1, {reinterpret_cast<std::byte*>(memory.data()), memory.size()});
  pair.Send(1, "too long", 0, slot);
  pair.network.RunFor(kSecond);
  EXPECT_EQ(memory, "....");
  EXPECT_EQ(pair.at_a.Count("down "), 1u);
  EXPECT_EQ(pair.at_b.Count("down 1 INVALID_ARGUMENT"), 1u);
}

TEST(SimNetworkTest, LargeFramesNeedASlot) {
  Pair pair(8, {}, {.max_slotless_bytes = 10});
  pair.Send(1, "0123456789");
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_b.Count("frame "), 1u);
  pair.Send(2, "0123456789x");
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_b.Count("down 1 RESOURCE_EXHAUSTED"), 1u);
}

TEST(SimNetworkTest, ByReferenceOnSentComesWhenTheReceiverDrops) {
  SimFaults faults;
  faults.by_reference = true;
  Pair pair(9, faults);
  auto memory = pair.a->Allocate(100);
  ASSERT_TRUE(memory.ok());
  std::memcpy(memory->get(), "shared", 6);
  const ConstBytes payload(memory->get(), 6);
  const std::string own = "private";
  EXPECT_TRUE(pair.a->ByReference(pair.link, payload));
  EXPECT_FALSE(pair.a->ByReference(pair.link, Text(own)));
  pair.at_b.keep = true;
  pair.a->Send(pair.link, {.type = FrameType::kPush, .total_bytes = 6, .payload_bytes = 6}, payload, 5);
  pair.network.RunFor(kSecond);
  ASSERT_EQ(pair.at_b.kept.size(), 1u);
  EXPECT_EQ(pair.at_b.kept[0].data(), payload.data());
  EXPECT_EQ(pair.at_a.Count("sent "), 0u);
  pair.at_b.kept.clear();
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_a.Count("sent 1 5"), 1u);

  pair.network.set_faults({.drop = 1, .by_reference = true});
  pair.a->Send(pair.link, {.type = FrameType::kPush, .total_bytes = 6, .payload_bytes = 6}, payload, 6);
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_a.Count("sent 1 6"), 1u) << "a lost frame's payload is let go too";
}

TEST(SimNetworkTest, WritableComesBack) {
  Pair pair(10, {}, {.max_queued_bytes = 1000});
  const std::string text(500, 'x');
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pair.a->Writable(pair.link), i < 2);
    pair.Send(i, text);
  }
  EXPECT_FALSE(pair.a->Writable(pair.link));
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_a.Count("writable 1"), 1u);
  EXPECT_TRUE(pair.a->Writable(pair.link));
}

TEST(SimNetworkTest, ACutBreaksLinksAndConnectsUntilItEnds) {
  Pair pair(11);
  const std::string text = "x";
  pair.network.Cut("a", "b", 2 * kSecond);
  pair.Send(1, text, 9);
  pair.network.RunFor(kSecond / 2);
  EXPECT_EQ(pair.at_a.log.back(), "down 1 UNAVAILABLE");
  EXPECT_EQ(pair.at_a.Count("sent 1 9"), 1u);
  pair.Dial();
  EXPECT_EQ(pair.at_a.log.back(), "down 2 UNAVAILABLE");
  pair.network.RunFor(kSecond);
  pair.Dial();
  EXPECT_EQ(pair.at_a.log.back(), "up 3 bee");
}

TEST(SimNetworkTest, ACutInOneDirectionLosesWhatIsSentThereAndThenBreaksTheLink) {
  Pair pair(11);
  const std::string text = "x";
  pair.network.CutOneWay("a", "b", kSecond);
  pair.Send(1, text, 9);
  pair.network.RunFor(SimNetwork::kDeafAfter / 2);
  EXPECT_EQ(pair.at_a.Count("sent 1 9"), 1u);   // nobody has told it
  EXPECT_EQ(pair.network.stats().dropped, 1u);
  EXPECT_EQ(pair.at_a.Count("down 1 UNAVAILABLE"), 0u);
  pair.network.RunFor(SimNetwork::kDeafAfter);
  EXPECT_EQ(pair.at_a.Count("down 1 UNAVAILABLE"), 1u);
  pair.Dial();
  EXPECT_EQ(pair.at_a.log.back(), "down 2 UNAVAILABLE");
  pair.network.RunFor(kSecond);
  pair.Dial();
  EXPECT_EQ(pair.at_a.log.back(), "up 3 bee");
}

TEST(SimNetworkTest, ACrashIsSilentForTheDeadAndHeardByThePeer) {
  Pair pair(12);
  auto text = std::make_unique<std::string>("doomed");
  for (uint32_t i = 0; i < 20; ++i) pair.Send(i, *text, 1 + i);
  pair.network.Crash("a");
  text.reset();  // a sanitizer would see a late read
  pair.at_a.log.clear();
  pair.a.reset();
  pair.network.RunFor(kSecond);
  EXPECT_TRUE(pair.at_a.log.empty());
  EXPECT_EQ(pair.at_b.log.back(), "down 1 UNAVAILABLE");
}

TEST(SimNetworkTest, ListenerMayRefuse) {
  Pair pair(13);
  pair.b->Listen({.role = PeerRole::kServer}, [](const Hello& hello) {
    return hello.job == 3 ? absl::OkStatus() : absl::FailedPreconditionError("another job");
  });
  pair.Dial();
  EXPECT_EQ(pair.at_a.log.back(), "down 2 FAILED_PRECONDITION");
  pair.a->Connect({"nowhere", 1, "", ""}, {.role = PeerRole::kWorker});
  pair.network.RunFor(kSecond);
  EXPECT_EQ(pair.at_a.log.back(), "down 3 UNAVAILABLE");
}

struct ChannelRecorder : ChannelHandler {
  void OnChannelUp(ChannelEnd end, const std::string& peer) override {
    log.push_back("up " + peer);
    last = end;
  }
  void OnChannelDown(ChannelEnd, const absl::Status& status) override {
    log.push_back("down " + std::string(status.message()));
  }
  void OnChannelMessage(ChannelEnd, std::string message) override { log.push_back(message); }
  std::vector<std::string> log;
  ChannelEnd last = 0;
};

TEST(SimChannelTest, CarriesMessagesInOrderUntilItBreaks) {
  ManualClock clock;
  SimNetwork network(1, {.drop = 1}, &clock);  // faults of frames do not concern channels
  ChannelRecorder server, client;
  const ChannelEnd refused = network.Dial("w", "scheduler", &client);
  network.RunFor(kSecond);
  EXPECT_EQ(client.log, std::vector<std::string>{"down scheduler: nobody answers"});
  network.SendMessage(refused, "into the void");

  client.log.clear();
  network.Serve("scheduler", &server);
  const ChannelEnd end = network.Dial("w", "scheduler", &client);
  network.RunFor(kSecond);
  std::vector<std::string> expected = {"up w"};
  for (int i = 0; i < 50; ++i) {
    network.SendMessage(end, absl::StrCat(i));
    expected.push_back(absl::StrCat(i));
  }
  network.SendMessage(server.last, "hello");
  network.RunFor(kSecond);
  EXPECT_EQ(server.log, expected);
  EXPECT_EQ(client.log, (std::vector<std::string>{"up scheduler", "hello"}));

  network.SendMessage(server.last, "last words");
  network.SendMessage(end, "too late");
  network.CloseChannel(server.last, absl::AlreadyExistsError("twice"));
  network.RunFor(kSecond);
  EXPECT_EQ(server.log.back(), "down twice");
  EXPECT_EQ(std::count(server.log.begin(), server.log.end(), "too late"), 0);
  EXPECT_EQ(client.log, (std::vector<std::string>{"up scheduler", "hello", "last words", "down twice"}));
}

TEST(SimChannelTest, BreaksOnCutAndCrash) {
  ManualClock clock;
  SimNetwork network(2, {}, &clock);
  ChannelRecorder server, client;
  network.Serve("scheduler", &server);
  network.Dial("w", "scheduler", &client);
  network.RunFor(kSecond);
  network.Cut("scheduler", "w", kSecond);
  network.RunFor(kSecond / 2);
  EXPECT_EQ(client.log.back(), "down the network is cut");
  network.Dial("w", "scheduler", &client);
  network.RunFor(kSecond);
  EXPECT_EQ(client.log.back(), "down scheduler: nobody answers");
  network.Dial("w", "scheduler", &client);
  network.RunFor(kSecond);
  EXPECT_EQ(client.log.back(), "up scheduler");
  server.log.clear();
  network.Cut("scheduler", "w", 1);
  network.Crash("scheduler");  // before it has heard of the cut, and now it never will
  network.RunFor(kSecond);
  EXPECT_TRUE(server.log.empty());
  EXPECT_EQ(client.log.back(), "down the network is cut");

  network.Serve("scheduler", &server);
  network.Dial("w", "scheduler", &client);
  network.RunFor(kSecond);
  server.log.clear();
  network.Crash("scheduler");
  network.RunFor(kSecond);
  EXPECT_EQ(client.log.back(), "down scheduler is gone");
  EXPECT_TRUE(server.log.empty());
}

}  // namespace
}  // namespace sluice::transport
