#include "scheduler/codec_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/philox.h"
#include "compression/codec.h"

namespace sluice::scheduler {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kCodecs = {"none", "fp16", "int8", "int4", "topk:0.01"};

// A training run with the chooser in its loop: workers that compute, encode and send, one after the other.
struct Training {
  std::vector<uint64_t> tensors = {4 << 20, 1 << 20, 2048};   // elements
  double compute = 0.05;                                      // seconds a round
  std::function<double(double)> bandwidth = [](double) { return 125e6; };   // bytes a second, by time
  std::map<std::string, double> speeds = {{"fp16", 2.8e9}, {"int8", 2.8e9}, {"int4", 2.8e9}, {"topk:0.01", 1.6e9}};
  bool overlap = false;                                       // computing hides communication
  double noise = 0;                                           // relative, of each round's time
  std::function<double(uint32_t, const std::string&)> residual = [](uint32_t, const std::string&) { return 3.0; };
  std::function<std::optional<double>(double, size_t)> loss = [](double, size_t) { return std::nullopt; };
  uint32_t ranks = 2;

  CodecChooser chooser{{.codecs = kCodecs, .max_residual = 100}};
  PhiloxRandom random{1, 1};
  double time = 0, next_beat = 0.5, round_at = 0;
  uint64_t round = 0, plain_bytes = 0, plain_busy_us = 0;
  std::map<uint32_t, std::map<uint64_t, std::string>> schedule;   // by tensor, from round
  std::vector<std::string> whys;
  double slower_seconds = 0;                                  // in rounds slower than without any codec

  const std::string& CodecOf(uint32_t tensor) {
    auto it = schedule[tensor].upper_bound(round);
    static const std::string none = "none";
    return it == schedule[tensor].begin() ? none : std::prev(it)->second;
  }
  size_t Strongest() {
    size_t strongest = 0;
    for (uint32_t t = 0; t < tensors.size(); ++t)
      strongest = std::max(strongest, static_cast<size_t>(std::find(kCodecs.begin(), kCodecs.end(), CodecOf(t)) - kCodecs.begin()));
    return strongest;
  }
  double RoundTime(bool compressed) {
    double send = 0;
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const std::string& codec = compressed ? CodecOf(t) : kCodecs[0];
      const auto bytes = static_cast<double>((*compression::MakeCodec(codec))->MaxEncodedBytes(tensors[t]));
      if (codec != "none") send += 4.0 * static_cast<double>(tensors[t]) / speeds.at(codec);
      send += bytes / bandwidth(time);
      if (!compressed || codec != "none" || bytes < 65536) continue;
      plain_bytes += static_cast<uint64_t>(bytes);
      plain_busy_us += static_cast<uint64_t>(bytes / bandwidth(time) * 1e6);
    }
    return overlap ? std::max(compute, send) : compute + send;
  }
  void Run(double seconds) {
    if (round == 0)
      for (uint32_t t = 0; t < tensors.size(); ++t) chooser.AddTensor(t, "t" + std::to_string(t), tensors[t], "none");
    const double end = time + seconds;
    while (time < end) {
      const double took = RoundTime(true), plain = RoundTime(false);
      if (took > 1.02 * plain) slower_seconds += took;
      time += took * (1 + noise * (2 * static_cast<double>(random.Uniform()) - 1));
      ++round;
      round_at = time;
      while (next_beat < time) Beat();
    }
  }
  void Beat() {
    const auto now = static_cast<TimeNs>(next_beat * kSecond);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      proto::Heartbeat beat;
      beat.set_round(round);
      beat.set_round_at_us(static_cast<uint64_t>(round_at * 1e6));
      beat.set_plain_bytes(plain_bytes);
      beat.set_plain_busy_us(plain_busy_us);
      for (const auto& [codec, speed] : speeds) {
        proto::CodecSpeed* s = beat.add_codec_speeds();
        s->set_codec(codec);
        s->set_bytes_per_second(static_cast<uint64_t>(speed));
      }
      for (uint32_t t = 0; t < tensors.size(); ++t) {
        proto::TensorCodecState* state = beat.add_codecs();
        state->set_tensor(t);
        state->set_codec(CodecOf(t));
        state->set_residual_ratio(CodecOf(t) == "none" ? 0 : residual(t, CodecOf(t)));
      }
      if (const auto l = loss(next_beat, Strongest()); l.has_value()) beat.set_loss(*l);
      chooser.Take(rank, beat, now);
    }
    if (auto decision = chooser.Decide(now); decision.has_value()) {
      EXPECT_TRUE(decision->codecs.empty() || decision->from_round > round) << decision->why;
      for (const auto& [tensor, codec] : decision->codecs) schedule[tensor][decision->from_round] = codec;
      whys.push_back(decision->why);
    }
    next_beat += 0.5;
  }
};

TEST(CodecChooser, OnASlowLinkItTakesWhatMakesTheRoundShort) {
  Training training;
  training.Run(60);
  EXPECT_EQ(training.CodecOf(0), "topk:0.01");
  EXPECT_EQ(training.CodecOf(1), "topk:0.01");
  ASSERT_EQ(training.whys.size(), 2u) << training.whys.back();
  EXPECT_THAT(training.whys[0], HasSubstr("goodput 125 MB/s"));
  EXPECT_THAT(training.whys[1], HasSubstr("it stays"));
  EXPECT_EQ(training.CodecOf(2), "int4");   // 1 % of it would be 21 elements
  EXPECT_EQ(training.chooser.state(), CodecChooser::State::kSettled);
  EXPECT_NEAR(training.chooser.goodput(), 125e6, 1e6);
}

TEST(CodecChooser, OnAFastLinkNothingIsCompressedAndNothingIsTried) {
  Training training;
  training.bandwidth = [](double) { return 5e9; };
  training.Run(120);
  EXPECT_EQ(training.Strongest(), 0u);
  EXPECT_TRUE(training.whys.empty());
  EXPECT_EQ(training.slower_seconds, 0);
}

TEST(CodecChooser, AMilderCodecThatIsAsGoodIsPreferred) {
  Training training;   // int8 takes 0.36 + 0.26 / 2 ns a byte, int4 0.36 + 0.13 / 2: 13 % less; topk is slower than both
  training.bandwidth = [](double) { return 2e9; };
  training.speeds["topk:0.01"] = 0.5e9;
  training.speeds["int8"] = training.speeds["fp16"] = training.speeds["int4"] = 20e9;
  training.compute = 0;
  training.Run(60);
  EXPECT_EQ(training.CodecOf(0), "int4");
  Training even = Training();
  even.bandwidth = [](double) { return 2e9; };
  even.speeds["topk:0.01"] = 0.5e9;
  even.speeds["int8"] = even.speeds["fp16"] = 20e9;
  even.speeds["int4"] = 10e9;
  even.compute = 0;
  even.Run(60);
  EXPECT_EQ(even.CodecOf(0), "int8");   // what int4 saves on the link it takes to encode
}

// The model cannot see that computing hides the network: the trial does.
TEST(CodecChooser, WhatDoesNotMakeRoundsShorterIsTakenBackAndTriedLessAndLess) {
  Training training;
  training.overlap = true;
  training.compute = 0.3;   // above 21 MB at 125 MB/s
  training.Run(20);
  EXPECT_EQ(training.Strongest(), 0u);
  ASSERT_EQ(training.whys.size(), 2u);
  EXPECT_THAT(training.whys[1], HasSubstr("not worth it, back"));
  training.Run(3600);
  EXPECT_EQ(training.Strongest(), 0u);
  EXPECT_LE(training.whys.size(), 20u);   // a trial and its end each
}

TEST(CodecChooser, NoiseMakesNoChanges) {
  size_t trials = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Training training;
    training.random = PhiloxRandom(seed, 2);
    training.noise = 0.3;
    training.Run(500);
    EXPECT_EQ(training.CodecOf(0), "topk:0.01") << seed;
    for (const std::string& why : training.whys) trials += why.find("a trial") != std::string::npos;
  }
  EXPECT_LE(trials, 22u);   // one each, and hardly any more
}

TEST(CodecChooser, CongestionIsNoticedAndAnswered) {
  Training training;
  training.bandwidth = [](double time) { return time < 100 ? 4e9 : 50e6; };
  training.Run(90);
  EXPECT_EQ(training.Strongest(), 0u);
  training.Run(60);
  EXPECT_EQ(training.CodecOf(0), "topk:0.01");
  EXPECT_LT(training.slower_seconds, 1);
}

TEST(CodecChooser, WhenTheLinkIsFastAgainMilderCodecsComeBack) {
  Training training;
  training.bandwidth = [](double time) { return time < 100 ? 100e6 : 8e9; };
  training.Run(90);
  EXPECT_EQ(training.CodecOf(0), "topk:0.01");
  training.Run(1300);   // two probes
  EXPECT_EQ(training.Strongest(), 0u) << training.whys.back();
}

TEST(CodecChooser, NeverSlowerThanNoneForLong) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Training training;
    PhiloxRandom random(seed, 3);
    std::vector<double> speeds;
    for (int i = 0; i < 20; ++i) speeds.push_back(1e7 * std::pow(2.0, random.Below(10)));
    training.bandwidth = [speeds](double time) { return speeds[static_cast<size_t>(time / 200) % speeds.size()]; };
    training.overlap = random.Chance(0.5);
    training.compute = 0.01 * random.Below(30);
    training.noise = 0.1;
    training.Run(4000);
    // The link changes twenty times; each time there is something to notice, a probe and perhaps a trial.
    EXPECT_LT(training.slower_seconds, 0.1 * 4000) << seed;
  }
}

// Whoever is killed in a trial must not count against the codec.
TEST(CodecChooser, ADisturbedWindowDoesNotCount) {
  Training training;
  training.Run(4);
  while (training.chooser.state() != CodecChooser::State::kTrying) training.Run(0.5);
  const double compute = std::exchange(training.compute, 3.0);   // everything stands still now and then
  for (int i = 0; i < 5; ++i) {
    training.Run(3);
    training.chooser.Disturb();
  }
  EXPECT_EQ(training.chooser.state(), CodecChooser::State::kTrying);
  training.compute = compute;
  training.Run(10);
  EXPECT_EQ(training.CodecOf(0), "topk:0.01");
  EXPECT_THAT(training.whys.back(), HasSubstr("it stays"));
}

TEST(CodecChooser, ATensorWhoseResidualGrowsTooLargeGetsTheNextMilder) {
  Training training;
  training.residual = [](uint32_t tensor, const std::string& codec) { return tensor == 1 && codec == "topk:0.01" ? 150.0 : 3.0; };
  training.Run(60);
  EXPECT_EQ(training.CodecOf(0), "topk:0.01");
  EXPECT_EQ(training.CodecOf(1), "int4");
  training.Run(3000);
  EXPECT_EQ(training.CodecOf(1), "int4");   // for good
  EXPECT_THAT(training.whys, testing::Contains(HasSubstr("t1: 150 gradients")));
}

TEST(CodecChooser, WhenTheLossDepartsCodecsBecomeMilder) {
  Training training;
  double strong_since = -1;
  training.loss = [&](double time, size_t strongest) -> std::optional<double> {
    if (strongest < 4) strong_since = -1;
    if (strongest == 4 && strong_since < 0) strong_since = time;
    const double healthy = 1 + std::exp(-time / 50);
    return strong_since < 0 ? healthy : healthy + 0.02 * (time - strong_since);   // topk makes it grow
  };
  training.Run(300);
  EXPECT_EQ(training.CodecOf(0), "int4");
  EXPECT_THAT(training.whys, testing::Contains(HasSubstr("nothing stronger than int4")));
}

TEST(CodecChooser, ALossThatIsNotFiniteEndsCompressionAtOnce) {
  Training training;
  training.loss = [](double time, size_t) { return time > 50 ? std::numeric_limits<double>::quiet_NaN() : 1.0; };
  training.Run(40);
  EXPECT_EQ(training.Strongest(), 4u);
  training.Run(30);
  EXPECT_EQ(training.Strongest(), 0u);
  EXPECT_THAT(training.whys.back(), HasSubstr("not finite"));
}

TEST(CodecChooser, ALossThatOnlyFallsOrJittersChangesNothing) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Training training;
    PhiloxRandom random(seed, 4);
    training.loss = [&](double time, size_t) { return 0.3 + std::exp(-time / 100) + 0.05 * static_cast<double>(random.Uniform()); };
    training.Run(500);
    EXPECT_EQ(training.CodecOf(0), "topk:0.01") << training.whys.back();
  }
}

TEST(CodecChooser, GoesOnWithWhatThePlanHas) {
  CodecChooser chooser({.codecs = kCodecs});
  chooser.AddTensor(0, "w", 1 << 20, "int8");
  EXPECT_EQ(chooser.state(), CodecChooser::State::kSettled);
  EXPECT_EQ(chooser.Decide(kSecond), std::nullopt);   // nobody has spoken yet
}

TEST(CodecChooser, WhatWorkersSayMayBeAnything) {
  PhiloxRandom random(5, 5);
  CodecChooser chooser({.codecs = kCodecs});
  for (uint32_t t = 0; t < 4; ++t) chooser.AddTensor(t, "t", uint64_t{1} << (10 * t + 10), "none");
  const auto any = [&] { return uint64_t{random()} << 32 | random(); };
  const double odd[] = {0, -1, 1e300, -1e300, HUGE_VAL, std::nan("")};
  for (int i = 0; i < 20000; ++i) {
    proto::Heartbeat beat;
    beat.set_round(random.Chance(0.1) ? any() : static_cast<uint64_t>(i) * 3);
    beat.set_round_at_us(random.Chance(0.1) ? any() : static_cast<uint64_t>(i) * 500000);
    beat.set_plain_bytes(random.Chance(0.1) ? any() : static_cast<uint64_t>(i) << 20);
    beat.set_plain_busy_us(random.Chance(0.1) ? any() : static_cast<uint64_t>(i) * 1000);
    if (random.Chance(0.5)) beat.set_loss(odd[random.Below(6)]);
    proto::CodecSpeed* speed = beat.add_codec_speeds();
    speed->set_codec(random.Chance(0.9) ? kCodecs[random.Below(5)] : "gzip");
    speed->set_bytes_per_second(random.Chance(0.5) ? any() : 0);
    proto::TensorCodecState* state = beat.add_codecs();
    state->set_tensor(random.Below(6));
    state->set_codec(kCodecs[random.Below(5)]);
    state->set_residual_ratio(odd[random.Below(6)]);
    chooser.Take(random.Below(3), beat, i * kSecond / 2);
    if (random.Chance(0.01)) chooser.Forget(random.Below(3));
    const auto decision = chooser.Decide(i * kSecond / 2);
    if (!decision.has_value()) continue;
    for (const auto& [tensor, codec] : decision->codecs) ASSERT_LT(tensor, 4u);
  }
}

}  // namespace
}  // namespace sluice::scheduler
