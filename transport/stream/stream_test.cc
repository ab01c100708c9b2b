// Sender and receiver over the simulated network: whatever is dropped, repeated, reordered, reset or cut, each
// contribution arrives once, with its bytes, and every round closes.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"
#include "transport/stream/stream_receiver.h"
#include "transport/stream/stream_sender.h"

namespace sluice::transport {
namespace {

struct Shape {
  uint32_t workers = 3, partitions = 5, max_bytes = 200;
  uint64_t rounds = 3;
  StreamReceiverOptions receiver = {.pool_bytes = 1000, .max_message_bytes = 200};
  StreamSenderOptions sender = {.eager_bytes = 16, .resend = 5 * kMillisecond, .max_announced = 2};
  LinkQueueOptions queue = {.stripe_bytes = 32, .fusion_bytes = 600, .fuse_below = 64};
  EndpointLimits limits;
  SimFaults faults;
  int cuts = 0;
};

std::vector<std::byte> Bytes(uint32_t rank, uint32_t partition, uint64_t round, uint32_t max_bytes) {
  PhiloxRandom random(round * 1000003 + partition * 1009 + rank, 5);
  std::vector<std::byte> bytes(random.Below(max_bytes + 1));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Owns every partition; sums in order of rank, so pushes of higher ranks wait as they came.
class Server : public Handler, public StreamReceiver::Owner {
 public:
  Server(const Shape& shape, SimNetwork* network, const Clock* clock)
      : shape_(shape), endpoint_(network->CreateEndpoint("server", shape.limits)), partitions_(shape.partitions) {
    endpoint_->SetHandler(this);
    endpoint_->Listen({.role = PeerRole::kServer});
    queue_ = std::make_unique<LinkQueue>(endpoint_.get(), clock, shape.queue, [](uint64_t) {});
    receiver_ = std::make_unique<StreamReceiver>(endpoint_.get(), queue_.get(), this, shape.receiver);
  }
  ~Server() override { endpoint_.reset(); }

  Address address() const { return endpoint_->address(); }
  void TurnEnd() {
    receiver_->Pump();
    queue_->Flush();
    EXPECT_LE(receiver_->stats().pool_used, shape_.receiver.pool_bytes);
    EXPECT_LE(receiver_->stats().oversize_used, shape_.receiver.max_oversize_bytes);
  }
  StreamReceiverStats stats() const { return receiver_->stats(); }
  bool done() const {
    return std::all_of(partitions_.begin(), partitions_.end(), [&](auto& p) { return p.round > shape_.rounds; });
  }

  void OnUp(LinkId link, const Hello& peer) override {
    queue_->LinkUp(link);
    links_[peer.index] = link;
  }
  void OnDown(LinkId link, const absl::Status&) override {
    queue_->LinkDown(link);
    receiver_->LinkDown(link);
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (header.type == FrameType::kBatch) {
      ASSERT_TRUE(ForEachInBatch(header, payload.bytes(), [&](const FrameHeader& inner, ConstBytes bytes) {
                    receiver_->OnFrame(link, inner, payload.Slice(bytes));
                  }).ok());
    } else {
      receiver_->OnFrame(link, header, std::move(payload));
    }
  }
  void OnSent(LinkId link, uint64_t cookie) override { EXPECT_TRUE(queue_->OnSent(link, cookie)); }
  void OnSlotClosed(LinkId link, SlotId slot) override { receiver_->OnSlotClosed(link, slot); }
  void OnWritable(LinkId link) override { queue_->OnWritable(link); }

  StreamReceiver::Admission Admit(LinkId link, const FrameHeader& header) override {
    Partition& p = partitions_.at(header.partition);
    if (header.round > p.round) ADD_FAILURE() << "a round ahead: " << DebugString(header);
    if (header.round < p.round) {
      Applied(link, header.rank, header.partition, header.round);
    } else if (p.seen.contains(header.rank)) {
      FrameHeader answer = header;
      answer.type = FrameType::kState;
      answer.total_bytes = answer.stripe_offset = answer.slot = 0;
      answer.aux = static_cast<uint32_t>(PushState::kReceived);
      queue_->SendSmall(link, answer, {});
    } else {
      return StreamReceiver::Admission::kAccept;
    }
    return StreamReceiver::Admission::kAnswered;
  }
  bool Joint(const FrameHeader&) const override { return true; }
  bool Urgent(const FrameHeader& header) const override { return header.rank == partitions_[header.partition].next; }
  absl::Status OnContribution(LinkId, const FrameHeader& header, Payload payload) override {
    Partition& p = partitions_.at(header.partition);
    EXPECT_EQ(header.round, p.round);
    EXPECT_FALSE(p.seen.contains(header.rank)) << "handed over twice: " << DebugString(header);
    const std::vector<std::byte> expected = Bytes(header.rank, header.partition, header.round, shape_.max_bytes);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), payload.bytes().begin(), payload.bytes().end()))
        << DebugString(header);
    ++contributions;
    p.seen[header.rank] = std::move(payload);
    while (p.seen.contains(p.next)) p.seen[p.next++] = Payload();  // consumed
    if (p.next == shape_.workers) {
      for (const auto& [rank, kept] : p.seen) Applied(links_[rank], rank, header.partition, p.round);
      p = {p.round + 1, 0, {}};
    }
    return absl::OkStatus();
  }

  uint64_t contributions = 0;

 private:
  struct Partition {
    uint64_t round = 1;
    uint32_t next = 0;  // lowest rank that is missing
    std::map<uint32_t, Payload> seen;
  };

  void Applied(LinkId link, uint32_t rank, uint32_t partition, uint64_t round) {
    queue_->SendSmall(link, {.type = FrameType::kApplied, .rank = rank, .partition = partition, .round = round}, {});
  }

  const Shape shape_;
  std::unique_ptr<SimEndpoint> endpoint_;
  std::unique_ptr<LinkQueue> queue_;
  std::unique_ptr<StreamReceiver> receiver_;
  std::vector<Partition> partitions_;
  std::map<uint32_t, LinkId> links_;
};

class Worker : public Handler {
 public:
  Worker(const Shape& shape, uint32_t rank, const Address& server, SimNetwork* network, const Clock* clock)
      : shape_(shape),
        rank_(rank),
        server_(server),
        network_(network),
        endpoint_(network->CreateEndpoint(absl::StrCat("worker", rank), shape.limits)) {
    endpoint_->SetHandler(this);
    queue_ = std::make_unique<LinkQueue>(endpoint_.get(), clock, shape.queue, [](uint64_t) {});
    sender_ = std::make_unique<StreamSender>(endpoint_.get(), queue_.get(), clock, shape.sender,
                                             [this](uint32_t partition) { Released(partition); });
    // Workers begin with different partitions and prefer different ones.
    for (uint32_t i = 0; i < shape_.partitions; ++i) Push((i + rank) % shape_.partitions, 1);
    Dial();
  }
  ~Worker() override { endpoint_.reset(); }

  void Dial() { link_ = endpoint_->Connect(server_, {.role = PeerRole::kWorker, .index = rank_}); }
  void TurnEnd() { queue_->Flush(); }
  void Tick() {
    sender_->OnTick();
    if (link_ == 0) Dial();
    queue_->Flush();
  }
  bool done() const { return sender_->unfinished() == 0; }
  size_t buffers() const { return buffers_.size(); }
  uint64_t replays() const { return sender_->replays(); }

  void OnUp(LinkId link, const Hello&) override {
    queue_->LinkUp(link);
    up_ = true;
    for (uint32_t p = 0; p < shape_.partitions; ++p) sender_->Route(p, link, 1, 1, 0);
  }
  void OnDown(LinkId link, const absl::Status&) override {
    queue_->LinkDown(link);
    sender_->LinkDown(link);
    link_ = 0;
    up_ = false;
  }
  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (header.type == FrameType::kBatch) {
      ASSERT_TRUE(ForEachInBatch(header, payload.bytes(), [&](const FrameHeader& inner, ConstBytes bytes) {
                    OnFrame(link, inner, payload.Slice(bytes));
                  }).ok());
    } else if (!sender_->OnFrame(link, header)) {
      ASSERT_EQ(header.type, FrameType::kApplied) << DebugString(header);
      if (sender_->Finish(header.partition, header.round) && header.round < shape_.rounds)
        Push(header.partition, header.round + 1);
    }
  }
  void OnSent(LinkId link, uint64_t cookie) override { EXPECT_TRUE(queue_->OnSent(link, cookie)); }
  void OnSlotClosed(LinkId, SlotId) override {}
  void OnWritable(LinkId link) override { queue_->OnWritable(link); }

 private:
  void Push(uint32_t partition, uint64_t round) {
    const std::vector<std::byte> bytes = Bytes(rank_, partition, round, shape_.max_bytes);
    auto buffer = endpoint_->Allocate(bytes.size());
    ASSERT_TRUE(buffer.ok());
    std::memcpy(buffer->get(), bytes.data(), bytes.size());
    const ConstBytes payload(buffer->get(), bytes.size());
    buffers_.insert({partition, *std::move(buffer)});
    FrameHeader h;
    h.rank = rank_, h.incarnation = 1, h.partition = partition, h.round = round;
    ASSERT_TRUE(sender_->Start(up_ ? link_ : 0, h, payload, static_cast<int32_t>((partition * 7 + rank_ * 3) % 5)).ok());
  }
  // The memory is ours again: what reads it from now on is wrong.
  void Released(uint32_t partition) {
    const auto it = buffers_.find(partition);  // the oldest of the partition: equal keys keep their order
    ASSERT_NE(it, buffers_.end());
    std::memset(it->second.get(), 0xEE, 16);
    buffers_.erase(it);
  }

  const Shape shape_;
  const uint32_t rank_;
  const Address server_;
  SimNetwork* const network_;
  std::unique_ptr<SimEndpoint> endpoint_;
  std::unique_ptr<LinkQueue> queue_;
  std::unique_ptr<StreamSender> sender_;
  std::multimap<uint32_t, std::shared_ptr<std::byte>> buffers_;
  LinkId link_ = 0;
  bool up_ = false;
};

struct Outcome {
  uint64_t contributions = 0, replays = 0;
  StreamReceiverStats stats;
  SimStats network;
};

Outcome RunCluster(uint64_t seed, const Shape& shape) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  ManualClock clock;
  SimNetwork network(seed, shape.faults, &clock);
  Server server(shape, &network, &clock);
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t rank = 0; rank < shape.workers; ++rank)
    workers.push_back(std::make_unique<Worker>(shape, rank, server.address(), &network, &clock));
  const auto done = [&] {
    return server.done() && std::all_of(workers.begin(), workers.end(), [](auto& w) { return w->done(); });
  };
  for (int i = 0; i < shape.cuts; ++i) {
    const uint32_t rank = network.random().Below(shape.workers);
    network.Schedule(network.random().Below(20000) * kMicrosecond, [&network, rank] {
      network.Cut("server", absl::StrCat("worker", rank), network.random().Below(10000) * kMicrosecond);
    });
  }
  const TimeNs start = clock.Now();
  TimeNs next_tick = start;
  while (!done() && clock.Now() < start + 60 * kSecond) {
    network.RunUntil(clock.Now() + network.random().Below(300) * kMicrosecond);
    server.TurnEnd();
    for (auto& worker : workers) worker->TurnEnd();
    if (clock.Now() < next_tick) continue;
    next_tick = clock.Now() + kMillisecond;
    for (auto& worker : workers) worker->Tick();
  }
  EXPECT_TRUE(done()) << "no progress";
  Outcome outcome;
  network.set_faults({});
  for (int i = 0; i < 3; ++i) {
    network.RunFor(kSecond);
    server.TurnEnd();
  }
  for (auto& worker : workers) {
    EXPECT_EQ(worker->buffers(), 0u) << "every buffer is released exactly once";
    outcome.replays += worker->replays();
  }
  EXPECT_EQ(server.contributions, shape.workers * shape.partitions * shape.rounds);
  outcome.contributions = server.contributions;
  outcome.stats = server.stats();
  EXPECT_EQ(outcome.stats.waiting, 0u);
  EXPECT_LE(outcome.stats.pool_peak, shape.receiver.pool_bytes);
  outcome.network = network.stats();
  EXPECT_EQ(outcome.network.changed_while_lent, 0u);
  return outcome;
}

TEST(StreamTest, WithoutFaultsNothingIsSentTwice) {
  Shape shape;
  shape.receiver.pool_bytes = 1 << 20;
  const Outcome outcome = RunCluster(1, shape);
  EXPECT_EQ(outcome.replays, 0u);
  EXPECT_EQ(outcome.stats.duplicates, 0u);
  EXPECT_EQ(outcome.stats.stale_attempts, 0u);
}

TEST(StreamTest, EveryContributionArrivesOnceUnderEveryFault) {
  uint64_t replays = 0, duplicates = 0, stale = 0, dropped_eager = 0, resets = 0, closed = 0;
  for (uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
    PhiloxRandom random(seed);
    Shape shape;
    shape.workers = 1 + random.Below(4);
    shape.partitions = 1 + random.Below(6);
    shape.receiver.pool_bytes = 400 + random.Below(1000);
    shape.limits.max_queued_bytes = random.Below(2) == 0 ? 300 : 1 << 20;
    shape.queue.fusion_bytes = random.Below(3) == 0 ? 0 : 600;
    shape.faults.max_delay = 1 + random.Below(20000) * kMicrosecond;  // beyond `resend` too
    shape.faults.min_delay = shape.faults.max_delay / 8;
    shape.faults.drop = random.Below(3) * 0.05;
    shape.faults.duplicate = random.Below(3) * 0.1;
    shape.faults.reorder = random.Below(3) * 0.2;
    shape.faults.reset = random.Below(3) * 0.01;
    shape.faults.connect_failure = 0.2;
    shape.faults.slow_write = random.Below(2) * 0.3;
    shape.faults.by_reference = random.Below(4) == 0;
    shape.cuts = static_cast<int>(random.Below(4));
    const Outcome outcome = RunCluster(seed, shape);
    replays += outcome.replays, duplicates += outcome.stats.duplicates, stale += outcome.stats.stale_attempts;
    dropped_eager += outcome.stats.dropped_eager, resets += outcome.network.resets;
    closed += outcome.network.closed_slot_drops;
  }
  // The seeds reach what they are there for.
  EXPECT_GT(replays, 100u);
  EXPECT_GT(duplicates, 100u);
  EXPECT_GT(stale, 0u);
  EXPECT_GT(dropped_eager, 10u);
  EXPECT_GT(resets, 20u);
  EXPECT_GT(closed, 20u);
}

TEST(StreamTest, SixtyFourWorkersShareATinyPool) {
  for (const bool lossy : {false, true}) {
    Shape shape;
    shape.workers = 64;
    shape.partitions = 6;
    shape.rounds = 2;
    shape.receiver.pool_bytes = 400;
    if (lossy) shape.faults.drop = shape.faults.reorder = 0.05;
    const Outcome outcome = RunCluster(7, shape);
    EXPECT_LE(outcome.stats.pool_peak, 400u);
  }
}

// Some fit the pool of 200 bytes, which counts 50 as the most, and some take turns beside it.
TEST(StreamTest, PushesBeyondThePoolArriveOnceUnderEveryFault) {
  size_t oversize = 0;
  for (uint64_t seed = 1; seed <= 60 && !testing::Test::HasFailure(); ++seed) {
    PhiloxRandom random(seed, 9);
    Shape shape;
    shape.workers = 1 + random.Below(5);
    shape.partitions = 1 + random.Below(4);
    shape.receiver = {.pool_bytes = 200, .max_message_bytes = 50, .max_oversize_bytes = 200};
    shape.faults.drop = random.Below(3) * 0.05;
    shape.faults.duplicate = random.Below(3) * 0.1;
    shape.faults.reorder = random.Below(3) * 0.2;
    shape.faults.reset = random.Below(3) * 0.01;
    shape.faults.by_reference = random.Below(4) == 0;
    shape.cuts = static_cast<int>(random.Below(4));
    const Outcome outcome = RunCluster(seed, shape);
    EXPECT_LE(outcome.stats.oversize_peak, 200u);
    EXPECT_EQ(outcome.stats.oversize_used, 0u);
    oversize += outcome.stats.oversize_peak > 50;
  }
  EXPECT_GT(oversize, 30u);
}

TEST(StreamTest, OneSeedOneHistory) {
  Shape shape;
  shape.faults.drop = shape.faults.duplicate = shape.faults.reorder = 0.1;
  shape.faults.reset = 0.01;
  const Outcome a = RunCluster(5, shape), b = RunCluster(5, shape);
  EXPECT_EQ(a.network.events, b.network.events);
  EXPECT_EQ(a.replays, b.replays);
}

}  // namespace
}  // namespace sluice::transport
