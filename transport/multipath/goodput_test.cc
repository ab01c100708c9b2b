// The share of a path follows what it carries: on a made-up clock, with paths of given rates that change.
#include "transport/multipath/goodput.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "transport/multipath/link.h"

namespace sluice::transport::multipath {
namespace {

constexpr size_t kMessage = 1 << 20;
constexpr double kGb = 1e9;

// The sending end of a link whose paths are pipes: a chunk is done when all before it and itself have passed.
enum class Kind { kQueuePairs, kStreams };

class Pipes final : public MultipathLink::Owner {
 public:
  // Of streams, the first is the base.
  explicit Pipes(std::vector<double> rates, Kind kind = Kind::kQueuePairs)
      : rates_(std::move(rates)), first_(kind == Kind::kStreams ? kBasePath : 1), link_(this, {}, 256 << 10) {
    link_.PathUp(kBasePath, {.tier = 0, .read_by_peer = true}, now_);
    link_.Begin();
    PacketBuilder slot;
    std::vector<SlotTarget> targets{{.group = 1}};
    slot.Slot(7, uint64_t{1} << 50, targets);
    EXPECT_TRUE(link_.OnPacket(kBasePath, slot.Take(1)).ok());
    for (PathId path = 1; path < first_ + rates_.size(); ++path) {
      const bool stream = kind == Kind::kStreams;
      link_.PathUp(path, {.tier = stream ? 0u : 1u, .remote_group = 1, .packets = !stream, .credits = std::nullopt,
                          .read_by_peer = stream}, now_);
    }
  }

  // bytes a second; 0 = nothing passes.
  void SetRate(PathId path, double rate) {
    rates_[path - first_] = rate;
    // What is in the pipe goes on at the new rate.
    auto& pipe = pipes_[path];
    if (!pipe.empty()) pipe.front().done = rate == 0 ? kNever : now_ + Time(pipe.front().bytes, rate);
  }

  double Measured(PathId path) const {
    for (const PathState& state : link_.States()) {
      if (state.path == path) return state.goodput;
    }
    return 0;
  }
  uint64_t resent_chunks() const { return link_.resent_chunks(); }

  // Runs for so long and returns the bytes that each path has carried meanwhile.
  std::vector<double> Run(TimeNs time) {
    std::map<PathId, uint64_t> before = carried_;
    const TimeNs end = now_ + time;
    while (now_ < end) {
      while (link_.queued_bytes() < 16 * kMessage) {
        FrameHeader header;
        header.type = FrameType::kPush;
        header.slot = 7;
        header.stripe_offset = offset_;
        header.payload_bytes = kMessage;
        header.total_bytes = uint64_t{1} << 50;
        offset_ += kMessage;
        link_.Send(header, {memory_.data(), kMessage}, 1);
      }
      link_.Pump(now_);
      // The next completion, or the endpoint's tick.
      TimeNs next = std::min(end, now_ + 50 * kMillisecond);
      std::optional<PathId> path;
      for (auto& [id, pipe] : pipes_) {
        if (pipe.empty() || pipe.front().done > next) continue;
        next = pipe.front().done;
        path = id;
      }
      now_ = next;
      if (!path.has_value()) continue;
      const Flying done = pipes_[*path].front();
      pipes_[*path].pop_front();
      if (arrived_.insert(done.token).second) carried_[*path] += done.bytes;
      if (!pipes_[*path].empty()) Begin(*path);
      link_.Done(*path, done.token, now_);
    }
    std::vector<double> bytes;
    for (PathId path = first_; path < first_ + rates_.size(); ++path) bytes.push_back(static_cast<double>(carried_[path] - before[path]));
    return bytes;
  }

 private:
  static constexpr TimeNs kNever = INT64_MAX;
  struct Flying {
    uint64_t token;
    size_t bytes;
    TimeNs done;
  };
  static TimeNs Time(size_t bytes, double rate) { return static_cast<TimeNs>(static_cast<double>(bytes) * 1e9 / rate) + 1; }
  void Begin(PathId path) {
    Flying& first = pipes_[path].front();
    const double rate = rates_[path - first_];
    first.done = rate == 0 ? kNever : now_ + Time(first.bytes, rate);
  }

  size_t Room(PathId) override { return 64; }
  bool CanSendFrom(PathId, ConstBytes) override { return true; }
  void SendPacket(PathId path, ConstBytes, uint64_t token) override {
    if (path != kBasePath && token != 0) packets_.push_back({path, token});
  }
  void SendChunk(PathId path, const Chunk& chunk, uint64_t token) override {
    pipes_[path].push_back({token, chunk.payload.size(), kNever});
    if (pipes_[path].size() == 1) Begin(path);
  }
  void TakeBack(PathId, uint64_t) override {}
  uint32_t ReceivesPosted(PathId) override { return 0; }
  void BreakPath(PathId, const absl::Status&) override {}
  void Deliver(const FrameHeader&, Payload) override {}
  void Sent(uint64_t) override {}
  void SlotClosed(SlotId) override {}

  std::vector<double> rates_;
  const PathId first_;
  TimeNs now_ = kSecond;
  MultipathLink link_;
  std::map<PathId, std::deque<Flying>> pipes_;
  std::map<PathId, uint64_t> carried_;   // but second copies
  std::set<uint64_t> arrived_;
  std::vector<std::pair<PathId, uint64_t>> packets_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMessage);
  uint64_t offset_ = 0;
};

TEST(GoodputTest, PathsOfDifferentRatesAreAllFull) {
  Pipes pipes({5 * kGb, 1 * kGb, 0.5 * kGb});
  pipes.Run(kSecond / 5);
  const auto bytes = pipes.Run(kSecond);
  EXPECT_GT(bytes[0], 0.95 * 5 * kGb);
  EXPECT_GT(bytes[1], 0.9 * 1 * kGb);
  EXPECT_GT(bytes[2], 0.85 * 0.5 * kGb);
}

TEST(GoodputTest, APathThatSlowsDownLosesItsShareWithinASecondAndRegainsIt) {
  Pipes pipes({2 * kGb, 2 * kGb});
  const auto before = pipes.Run(kSecond);
  EXPECT_GT(before[1], 0.9 * 2 * kGb);
  pipes.SetRate(2, 0.02 * kGb);
  const auto during = pipes.Run(kSecond);
  // Little more than what it carries, and the other is not held up by it.
  EXPECT_LT(during[1], 0.05 * kGb);
  EXPECT_GT(during[0], 0.85 * 2 * kGb);
  const auto later = pipes.Run(kSecond);
  EXPECT_GT(later[0], 0.95 * 2 * kGb);
  pipes.SetRate(2, 2 * kGb);
  pipes.Run(kSecond);
  const auto after = pipes.Run(kSecond);
  EXPECT_GT(after[1], 0.9 * 2 * kGb);
  EXPECT_GT(after[0], 0.9 * 2 * kGb);
}

TEST(GoodputTest, APathThatStandsStillIsLeftAloneBeforeAnyCompletionSaysSo) {
  Pipes pipes({1 * kGb, 1 * kGb});
  pipes.Run(kSecond);
  pipes.SetRate(2, 0);
  pipes.Run(kSecond / 5);
  const auto during = pipes.Run(kSecond);
  EXPECT_EQ(during[1], 0);
  EXPECT_GT(during[0], 0.9 * kGb);
  pipes.SetRate(2, 1 * kGb);
  pipes.Run(kSecond);
  const auto after = pipes.Run(kSecond);
  EXPECT_GT(after[1], 0.9 * kGb);
}

TEST(GoodputTest, ProbesOfAVerySlowPathTakeATwentiethOfTheTime) {
  Pipes pipes({1 * kGb, 0.3e6});   // a chunk takes 0.87 s there, and its frame waits for it
  pipes.Run(5 * kSecond);
  const auto bytes = pipes.Run(60 * kSecond);
  EXPECT_LE(bytes[1], 0.3e6 * 60 / 10);
  EXPECT_GT(bytes[0], 0.9 * 60 * kGb);
}

TEST(GoodputTest, AFlappingPathDoesNotHoldUpTheOther) {
  Pipes pipes({1 * kGb, 1 * kGb});
  pipes.Run(kSecond);
  double steady = 0, flapping = 0;
  for (int i = 0; i < 10; ++i) {
    pipes.SetRate(2, i % 2 == 0 ? 0 : 1 * kGb);
    const auto bytes = pipes.Run(kSecond / 2);
    steady += bytes[0];
    flapping += bytes[1];
  }
  EXPECT_GT(steady, 0.8 * 5 * kGb);
  EXPECT_GT(flapping, 0.3 * 2.5 * kGb);
}

// Two rails of a fifth of a Gb/s.
constexpr double kRail = 25e6;

TEST(GoodputTest, AStreamThatIsThrottledToATenthCarriesItsTenthAndHoldsNobodyUp) {
  Pipes pipes({kRail, kRail}, Kind::kStreams);
  pipes.Run(2 * kSecond);
  const auto before = pipes.Run(kSecond);
  EXPECT_GT(before[0] + before[1], 0.95 * 2 * kRail);
  for (const PathId slow : {1, 0}) {
    pipes.SetRate(slow, kRail / 10);
    pipes.Run(kSecond / 2);
    const auto during = pipes.Run(kSecond);
    EXPECT_GT(during[1 - slow], 0.9 * kRail);
    EXPECT_GT(during[slow], 0.8 * kRail / 10);
    EXPECT_LT(pipes.Measured(slow), 1.2 * kRail / 10);
    pipes.SetRate(slow, kRail);
    pipes.Run(kSecond);
    const auto after = pipes.Run(kSecond);
    EXPECT_GT(after[0] + after[1], 0.95 * 2 * kRail);
  }
}

TEST(GoodputTest, AStreamThatVanishesCostsWhatWasInFlightThere) {
  Pipes pipes({kRail, kRail}, Kind::kStreams);
  pipes.Run(2 * kSecond);
  pipes.SetRate(1, 0);
  pipes.Run(kSecond / 2);
  const uint64_t resent = pipes.resent_chunks();
  EXPECT_GT(resent, 0u);
  const auto during = pipes.Run(10 * kSecond);
  EXPECT_GT(during[0], 0.98 * 10 * kRail);
  EXPECT_EQ(pipes.resent_chunks(), resent);   // it gets nothing new
  pipes.SetRate(1, kRail);
  pipes.Run(kSecond);
  const auto after = pipes.Run(kSecond);
  EXPECT_GT(after[1], 0.9 * kRail);
}

// Acknowledgements wait behind other traffic and come in bursts. Once one came with nothing in flight after it, in the same
// moment as the one before, and the goodput was bytes of a nanosecond.
TEST(GoodputTest, NoBurstOfAcknowledgementsIsMoreThanTheLinkCarries) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    PhiloxRandom random(seed);
    const double rate = 1e6 * (1 + random.Below(100));
    Goodput goodput;
    TimeNs now = kSecond, carried = now;   // carried: when the last chunk that was handed over has passed
    std::deque<std::pair<TimeNs, size_t>> flying;
    for (int burst = 0; burst < 2000; ++burst) {
      const uint32_t chunks = 1 + random.Below(8);
      for (uint32_t i = 0; i < chunks; ++i) {
        const size_t bytes = 8192 + random.Below(256 << 10);
        carried = std::max(carried, now) + static_cast<TimeNs>(static_cast<double>(bytes) * 1e9 / rate);
        goodput.Began(!flying.empty(), now);
        flying.emplace_back(carried, bytes);
      }
      // They come up to 5 ms late, at once; sometimes all.
      now = std::max(now, random.Chance(0.3) ? flying.back().first : flying.front().first) + random.Below(5'000'000);
      while (!flying.empty() && flying.front().first <= now) {
        const size_t bytes = flying.front().second;
        flying.pop_front();
        goodput.Finished(bytes, !flying.empty(), now);
      }
      if (flying.empty() && random.Chance(0.5)) now += random.Below(1'000'000'000);
      ASSERT_LE(goodput.measured(), 1.5 * rate) << burst;
      ASSERT_LE(goodput.Rate(0, now), 1.5 * rate) << burst;
    }
    EXPECT_GT(goodput.measured(), 0);
  }
}

TEST(GoodputTest, TheLeastTimeForgetsWhatIsLongAgo) {
  LeastTime least;
  EXPECT_EQ(least.Get(), 0);
  least.Add(5, kSecond);
  least.Add(9, 2 * kSecond);
  EXPECT_EQ(least.Get(), 5);
  least.Add(9, 7 * kSecond);
  EXPECT_EQ(least.Get(), 5);
  least.Add(9, 13 * kSecond);
  EXPECT_EQ(least.Get(), 9);
}

}  // namespace
}  // namespace sluice::transport::multipath
