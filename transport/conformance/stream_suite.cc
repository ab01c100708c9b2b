// The exactly-once stream over each transport: credit and its reserve, replay after a lost link, and a push that moves from
// one link to another in the middle.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "transport/conformance/suite.h"
#include "transport/stream/link_queue.h"
#include "transport/stream/stream_receiver.h"
#include "transport/stream/stream_sender.h"

namespace sluice::transport::conformance {
namespace {

void ForEachFrame(const FrameHeader& header, const Payload& payload,
                  const std::function<void(const FrameHeader&, Payload)>& fn) {
  if (header.type != FrameType::kBatch) return;
  const absl::Status status = ForEachInBatch(header, payload.bytes(), [&](const FrameHeader& inner, ConstBytes bytes) {
    fn(inner, payload.Slice(bytes));
  });
  EXPECT_TRUE(status.ok()) << status;
}

// A worker's half: pushes, and nothing else.
class Pusher : public Handler {
 public:
  Pusher(Endpoint* endpoint, const Clock* clock)
      : queue_(endpoint, clock, QueueOptions(), [](uint64_t) {}),
        sender(endpoint, &queue_, clock, SenderOptions(), [this](uint32_t partition) { released.insert(partition); }) {
    endpoint->SetHandler(this);
  }

  static LinkQueueOptions QueueOptions() {
    LinkQueueOptions options;
    options.stripe_bytes = 128 << 10;
    return options;
  }
  static StreamSenderOptions SenderOptions() {
    StreamSenderOptions options;
    options.resend = 20 * kMillisecond;
    return options;
  }

  void OnUp(LinkId link, const Hello&) override {
    queue_.LinkUp(link);
    up.insert(link);
  }
  void OnDown(LinkId link, const absl::Status& reason) override {
    sender.LinkDown(link);
    queue_.LinkDown(link);
    down.emplace(link, reason);
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (header.type == FrameType::kBatch) {
      ForEachFrame(header, payload, [&](const FrameHeader& inner, Payload part) { OnFrame(link, inner, std::move(part)); });
    } else if (header.type == FrameType::kApplied) {
      if (sender.Finish(header.partition, header.round)) applied.insert(header.partition);
    } else {
      if (header.type == FrameType::kState && header.aux == static_cast<uint32_t>(PushState::kQueued))
        queued.insert(header.partition);
      sender.OnFrame(link, header);
    }
  }
  void OnSent(LinkId link, uint64_t cookie) override { queue_.OnSent(link, cookie); }
  void OnSlotClosed(LinkId, SlotId) override {}
  void OnWritable(LinkId link) override { queue_.OnWritable(link); }

  void Step() {
    sender.OnTick();
    queue_.Flush();
  }

 private:
  LinkQueue queue_;

 public:
  StreamSender sender;
  std::set<LinkId> up;
  std::map<LinkId, absl::Status> down;
  std::set<uint32_t> released, applied, queued;
};

// A server's half: collects contributions of round 0; the test decides when they are applied.
class Collector : public Handler, public StreamReceiver::Owner {
 public:
  struct Contribution {
    FrameHeader header;
    std::vector<std::byte> bytes;
    Payload payload;  // while hold is set
    LinkId link;
  };
  using Id = std::pair<uint32_t, uint32_t>;  // rank, partition

  Collector(Endpoint* endpoint, const Clock* clock, StreamReceiverOptions options)
      : queue_(endpoint, clock, LinkQueueOptions(), [](uint64_t) {}),
        receiver(endpoint, &queue_, this, options) {
    endpoint->SetHandler(this);
  }

  void OnUp(LinkId link, const Hello&) override {
    queue_.LinkUp(link);
    up.push_back(link);
  }
  void OnDown(LinkId link, const absl::Status&) override {
    receiver.LinkDown(link);
    queue_.LinkDown(link);
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (header.type == FrameType::kBatch) {
      ForEachFrame(header, payload, [&](const FrameHeader& inner, Payload part) { OnFrame(link, inner, std::move(part)); });
      return;
    }
    if (header.type == FrameType::kPush) {
      push_links.insert(link);
      if (const auto moved = on_push) moved();
    }
    receiver.OnFrame(link, header, std::move(payload));
  }
  void OnSent(LinkId link, uint64_t cookie) override { queue_.OnSent(link, cookie); }
  void OnSlotClosed(LinkId link, SlotId slot) override { receiver.OnSlotClosed(link, slot); }
  void OnWritable(LinkId link) override { queue_.OnWritable(link); }

  StreamReceiver::Admission Admit(LinkId link, const FrameHeader& header) override {
    if (!contributions.contains({header.rank, header.partition})) return StreamReceiver::Admission::kAccept;
    if (applied.contains({header.rank, header.partition})) {
      Answer(link, header, FrameType::kApplied, 0);
    } else {
      Answer(link, header, FrameType::kState, static_cast<uint32_t>(PushState::kReceived));
    }
    return StreamReceiver::Admission::kAnswered;
  }
  bool Joint(const FrameHeader&) const override { return true; }
  bool Urgent(const FrameHeader& header) const override { return urgent && urgent(header); }
  absl::Status OnContribution(LinkId link, const FrameHeader& header, Payload payload) override {
    Contribution& c = contributions[{header.rank, header.partition}];
    EXPECT_TRUE(c.bytes.empty()) << "a contribution was handed over twice";
    c.header = header;
    c.link = link;
    c.bytes.assign(payload.bytes().begin(), payload.bytes().end());
    if (hold && hold(header)) c.payload = std::move(payload);
    if (on_contribution) on_contribution(link);
    return absl::OkStatus();
  }

  void Apply(Id id) {
    Contribution& c = contributions.at(id);
    c.payload = Payload();
    applied.insert(id);
    Answer(c.link, c.header, FrameType::kApplied, 0);
  }
  void Step() {
    receiver.Pump();
    queue_.Flush();
  }

 private:
  void Answer(LinkId link, const FrameHeader& about, FrameType type, uint32_t aux) {
    FrameHeader h;
    h.type = type;
    h.job = about.job, h.rank = about.rank, h.incarnation = about.incarnation, h.partition = about.partition;
    h.round = about.round, h.attempt = about.attempt, h.aux = aux;
    queue_.SendSmall(link, h, {});
  }

  LinkQueue queue_;

 public:
  StreamReceiver receiver;
  std::function<bool(const FrameHeader&)> urgent, hold;
  std::function<void(LinkId)> on_contribution;
  std::function<void()> on_push;
  std::vector<LinkId> up;
  std::set<LinkId> push_links;
  std::map<Id, Contribution> contributions;
  std::set<Id> applied;
};

FrameHeader PushOf(uint32_t rank, uint32_t partition, size_t bytes) {
  FrameHeader header;
  header.type = FrameType::kPush;
  header.job = 1, header.rank = rank, header.incarnation = 1, header.partition = partition, header.term = 1;
  header.elements = static_cast<uint32_t>(bytes / 4);
  return header;
}

}  // namespace

// The fixture again, with a pusher at a and a collector at b.
class StreamHarness {
 public:
  StreamHarness(Environment* env, Node* a, Node* b, StreamReceiverOptions options)
      : env_(env), a_(a), b_(b), worker(a->endpoint.get(), env->clock()), server(b->endpoint.get(), env->clock(), options) {
    env->AtStep([this, alive = std::weak_ptr<bool>(alive_)] {
      if (alive.expired()) return;
      worker.Step();
      server.Step();
    });
  }
  // Streams lend their memory to the endpoints, so the endpoints go first.
  ~StreamHarness() {
    alive_.reset();
    a_->endpoint.reset();
    b_->endpoint.reset();
  }

  LinkId Connect(const Address& to, const Hello& hello) {
    const LinkId link = a_->endpoint->Connect(to, hello);
    const size_t before = server.up.size();
    EXPECT_TRUE(env_->StepUntil([&] { return worker.up.contains(link) && server.up.size() > before; }));
    return link;
  }

 private:
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Environment* const env_;
  Node* const a_;
  Node* const b_;

 public:
  Pusher worker;
  Collector server;
};

TEST_P(ConformanceTest, PushesOfAllSizesAreContributedOnceAndReleased) {
  StreamHarness h(env_.get(), &a_, &b_, {});
  const LinkId link = h.Connect(b_.address, hello_a_);
  const size_t sizes[] = {4, 1000, 16 << 10, (16 << 10) + 4, 200000, 3 << 20};
  std::map<uint32_t, std::shared_ptr<std::byte>> memory;
  std::map<uint32_t, std::vector<std::byte>> patterns;
  for (uint32_t p = 0; p < 24; ++p) {
    patterns[p] = Pattern(sizes[p % 6], p);
    if (p % 2 == 0) {
      auto allocated = a_.endpoint->Allocate(patterns[p].size());
      ASSERT_TRUE(allocated.ok());
      memory[p] = *allocated;
      std::copy(patterns[p].begin(), patterns[p].end(), memory[p].get());
    }
    const ConstBytes payload = memory.contains(p) ? ConstBytes(memory[p].get(), patterns[p].size()) : patterns[p];
    ASSERT_TRUE(h.worker.sender.Start(link, PushOf(3, p, payload.size()), payload, static_cast<int32_t>(p)).ok());
  }
  ASSERT_TRUE(StepUntil([&] { return h.server.contributions.size() == 24; }));
  EXPECT_TRUE(h.worker.applied.empty());
  for (uint32_t p = 0; p < 24; ++p) {
    EXPECT_TRUE(h.server.contributions.at({3, p}).bytes == patterns[p]) << "partition " << p;
    h.server.Apply({3, p});
  }
  ASSERT_TRUE(StepUntil([&] { return h.worker.released.size() == 24; }));
  EXPECT_EQ(h.worker.applied.size(), 24u);
  EXPECT_EQ(h.worker.sender.unfinished(), 0u);
  EXPECT_EQ(h.server.receiver.stats().pool_used, 0u);
}

TEST_P(ConformanceTest, CreditIsBoundedAndItsReserveLetsTheOldestRoundClose) {
  constexpr size_t kPush = 256 << 10;
  StreamReceiverOptions options;
  options.max_message_bytes = kPush;
  options.pool_bytes = 4 * kPush;
  StreamHarness h(env_.get(), &a_, &b_, options);
  // Ranks 1 to 7 wait in the pool for rank 0, which comes last: only the reserve has room for it.
  h.server.hold = [](const FrameHeader& header) { return header.rank != 0; };
  h.server.urgent = [](const FrameHeader& header) { return header.rank == 0; };
  const LinkId link = h.Connect(b_.address, hello_a_);
  std::map<uint32_t, std::vector<std::byte>> patterns;
  const auto push = [&](uint32_t rank) {
    patterns[rank] = Pattern(kPush, rank);
    // One partition a rank, so that one sender can speak for all of them.
    ASSERT_TRUE(h.worker.sender.Start(link, PushOf(rank, rank, kPush), patterns[rank], 0).ok());
  };
  for (uint32_t rank = 1; rank < 8; ++rank) push(rank);
  ASSERT_TRUE(StepUntil([&] { return h.server.contributions.size() == 3 && h.worker.queued.size() >= 4; }));
  env_->Settle();
  EXPECT_EQ(h.server.contributions.size(), 3u);
  EXPECT_LE(h.server.receiver.stats().pool_used, 3 * kPush);
  push(0);
  ASSERT_TRUE(StepUntil([&] { return h.server.contributions.contains({0, 0}); }));
  EXPECT_LE(h.server.receiver.stats().pool_peak, options.pool_bytes);
  // The round closes, memory comes back, the others get their turn.
  ASSERT_TRUE(StepUntil([&] {
    for (const auto& [id, c] : h.server.contributions)
      if (!h.server.applied.contains(id)) h.server.Apply(id);
    return h.worker.released.size() == 8;
  }));
  for (uint32_t rank = 0; rank < 8; ++rank)
    EXPECT_TRUE(h.server.contributions.at({rank, rank}).bytes == patterns[rank]) << "rank " << rank;
  EXPECT_LE(h.server.receiver.stats().pool_peak, options.pool_bytes);
  EXPECT_EQ(h.server.receiver.stats().pool_used, 0u);
}

TEST_P(ConformanceTest, APushLargerThanAllowedIsRefusedWithWords) {
  StreamReceiverOptions options;
  options.max_message_bytes = 100 << 10;
  options.pool_bytes = 1 << 20;
  StreamHarness h(env_.get(), &a_, &b_, options);
  const LinkId link = h.Connect(b_.address, hello_a_);
  const auto payload = Pattern(200 << 10, 1);
  ASSERT_TRUE(h.worker.sender.Start(link, PushOf(3, 1, payload.size()), payload, 0).ok());
  ASSERT_TRUE(StepUntil([&] { return h.worker.down.contains(link); }));
  EXPECT_NE(h.worker.down.at(link).message().find("more than the"), absl::string_view::npos) << h.worker.down.at(link);
  EXPECT_TRUE(h.server.contributions.empty());
}

TEST_P(ConformanceTest, AfterALostLinkUnfinishedPushesAreReplayedOnceAndVerbatim) {
  StreamHarness h(env_.get(), &a_, &b_, {});
  const LinkId first = h.Connect(b_.address, hello_a_);
  std::map<uint32_t, std::vector<std::byte>> patterns;
  // Cut when some have arrived and none has been answered.
  h.server.on_contribution = [&](LinkId link) {
    if (h.server.contributions.size() == 2) b_.endpoint->Close(link, absl::AbortedError("cut by the test"));
  };
  for (uint32_t p = 0; p < 8; ++p) {
    patterns[p] = Pattern(1 << 20, p);
    ASSERT_TRUE(h.worker.sender.Start(first, PushOf(3, p, patterns[p].size()), patterns[p], 0).ok());
  }
  ASSERT_TRUE(StepUntil([&] { return h.worker.down.contains(first); }));
  const size_t before = h.server.contributions.size();
  ASSERT_LT(before, 8u) << "too fast to cut";
  const LinkId second = h.Connect(b_.address, hello_a_);
  for (uint32_t p = 0; p < 8; ++p) h.worker.sender.Route(p, second, 1, 1, 0);
  ASSERT_TRUE(StepUntil([&] { return h.server.contributions.size() == 8; }));
  for (uint32_t p = 0; p < 8; ++p) {
    auto& c = h.server.contributions.at({3, p});
    EXPECT_TRUE(c.bytes == patterns[p]) << "partition " << p;
    c.link = h.server.up.back();
    h.server.Apply({3, p});
  }
  ASSERT_TRUE(StepUntil([&] { return h.worker.released.size() == 8; }));
  EXPECT_GE(h.worker.sender.replays(), 8 - before);
}

TEST_P(ConformanceTest, PushesMoveToAnotherTransportInTheMiddleOfTheRound) {
  constexpr size_t kPush = 2 << 20;
  StreamReceiverOptions options;
  options.max_message_bytes = kPush;
  options.pool_bytes = 3 * kPush;  // two, and the reserve
  StreamHarness h(env_.get(), &a_, &b_, options);
  h.server.hold = [](const FrameHeader&) { return true; };
  const LinkId first = h.Connect(b_.address, hello_a_);
  Hello hello = hello_a_;
  hello.connection = 1;
  const LinkId second = h.Connect(b_.other, hello);
  const LinkId second_at_b = h.server.up.back();
  // The first stripe moves everything. Two pushes are under way then, and two wait for memory. The old link stays up, and
  // its late stripes must not mix with the new ones.
  h.server.on_push = [&] {
    for (uint32_t p = 0; p < 4; ++p) h.worker.sender.Route(p, second, 1, 1, 0);
    h.server.on_push = nullptr;
  };
  std::map<uint32_t, std::vector<std::byte>> patterns;
  for (uint32_t p = 0; p < 4; ++p) {
    patterns[p] = Pattern(kPush, p);
    ASSERT_TRUE(h.worker.sender.Start(first, PushOf(3, p, kPush), patterns[p], 0).ok());
  }
  ASSERT_TRUE(StepUntil([&] {
    for (const auto& [id, c] : h.server.contributions)
      if (!h.server.applied.contains(id)) h.server.Apply(id);
    return h.worker.applied.size() == 4;
  }));
  EXPECT_TRUE(h.server.push_links.contains(second_at_b));
  EXPECT_EQ(h.server.push_links.size(), 2u);
  for (uint32_t p = 0; p < 4; ++p)
    EXPECT_TRUE(h.server.contributions.at({3, p}).bytes == patterns[p]) << "partition " << p;
  EXPECT_TRUE(h.worker.down.empty());
  ASSERT_TRUE(StepUntil([&] { return h.worker.released.size() == 4 && h.server.receiver.stats().pool_used == 0; }));
}

}  // namespace sluice::transport::conformance
