// Peers that send what cannot be: links end, memory stays bounded, and calls among the others go on.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "worker/collective/collectives.h"
#include "worker/collective/testing/nodes.h"

namespace sluice::collective {
namespace {

using transport::FrameHeader;
using transport::FrameType;

// Says HELLO as rank 0 and sends what the test wants.
class Impostor final : public transport::Handler {
 public:
  Impostor(Nodes* nodes, const transport::Hello& hello) : hello_(hello) {
    endpoint = nodes->network.CreateEndpoint("impostor");
    endpoint->SetHandler(this);
    Connect();
  }
  void Connect() { link = endpoint->Connect({.host = "w1"}, hello_); }
  void OnUp(transport::LinkId, const transport::Hello&) override { up = true; }
  void OnDown(transport::LinkId, const absl::Status& why) override {
    up = false;
    last = why;
    ++downs;
  }
  void OnFrame(transport::LinkId, const FrameHeader& header, transport::Payload) override {
    if (header.slot != 0) slots.push_back(header.slot);
  }
  void OnSent(transport::LinkId, uint64_t) override {}
  void OnSlotClosed(transport::LinkId, transport::SlotId) override {}
  void OnWritable(transport::LinkId) override {}

  std::unique_ptr<transport::SimEndpoint> endpoint;
  transport::LinkId link = 0;
  bool up = false;
  int downs = 0;
  absl::Status last;
  std::vector<uint64_t> slots;

 private:
  const transport::Hello hello_;
};

transport::Hello RankZero() {
  transport::Hello hello;
  hello.role = transport::PeerRole::kWorker;
  hello.job = 7;
  hello.job_uid = 99;
  hello.index = 0;
  hello.lane = 1;
  hello.incarnation = 1;
  return hello;
}

TEST(HostileWorker, WhoIsNotThePlansPeerIsNotLetIn) {
  const auto refused = [](auto change) {
    Nodes nodes(3);
    transport::Hello hello = RankZero();
    change(hello);
    Impostor impostor(&nodes, hello);
    nodes.network.RunFor(kSecond);
    const bool out = !impostor.up && impostor.downs == 1;
    impostor.endpoint.reset();
    return out;
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& hello) { hello.job = 8; }));
  EXPECT_TRUE(refused([](auto& hello) { hello.job_uid = 98; }));
  EXPECT_TRUE(refused([](auto& hello) { hello.index = 1; }));
  EXPECT_TRUE(refused([](auto& hello) { hello.index = 2; }));   // the lower rank connects
  EXPECT_TRUE(refused([](auto& hello) { hello.index = 77; }));
  EXPECT_TRUE(refused([](auto& hello) { hello.lane = 2; }));
  EXPECT_TRUE(refused([](auto& hello) { hello.incarnation = 2; }));
}

TEST(HostileWorker, RandomFramesNeitherCrashNorPileUp) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Nodes nodes(3, seed, {}, "a:3");
    PhiloxRandom random(seed, 1);
    std::vector<float> in(9000, 1.0f), out(9000);
    const auto waits = nodes.nodes[1]->Call({.input = in, .output = out});
    const auto receives = nodes.nodes[1]->Call({.kind = Kind::kReceive, .output = out, .peer = 0, .tag = 1});
    Impostor impostor(&nodes, RankZero());
    nodes.network.RunFor(50 * kMillisecond);
    // One true epoch, so that frames get beyond the first check.
    for (int i = 0; i < 4000; ++i) {
      if (!impostor.up) {
        impostor.Connect();
        nodes.network.RunFor(5 * kMillisecond);
      }
      FrameHeader header;
      const FrameType types[] = {FrameType::kAnnounce, FrameType::kGrant, FrameType::kPush, FrameType::kApplied,
                                 FrameType::kError, FrameType::kReply, FrameType::kValue};
      header.type = types[random.Below(random.Chance(0.02) ? 7 : 4)];
      header.job = random.Chance(0.99) ? 7 : 1;
      header.rank = random.Chance(0.9) ? (header.type == FrameType::kGrant || header.type == FrameType::kApplied ? 1 : 0) : random.Below(4);
      header.tensor = random.Below(random.Chance(0.98) ? 2 : 5);
      const uint32_t epoch = nodes.nodes[1]->core->epoch(std::min(header.tensor, 1u));
      header.term = random.Chance(0.9) ? epoch : random.Below(3);
      header.aux64 = random.Chance(0.6) ? 0 : random.Chance(0.5) ? kTagChannel | random.Below(3) : kTensorChannel | random.Below(3);
      header.round = random.Below(random.Chance(0.9) ? 3 : 1000000);
      header.partition = random.Below(random.Chance(0.9) ? 5 : UINT32_MAX);
      header.attempt = random.Below(4);
      header.aux = random.Below(2) == 0 ? 0 : random();
      header.status = static_cast<uint16_t>(random.Below(20));
      header.codec = static_cast<uint16_t>(random.Below(3));
      header.slot = random.Chance(0.3) && !impostor.slots.empty() ? impostor.slots[random.Below(static_cast<uint32_t>(impostor.slots.size()))] : random.Below(3) == 0 ? random.Below(50) : 0;
      std::vector<std::byte> payload(header.type == FrameType::kPush ? random.Below(random.Chance(0.1) ? 20000 : 300) : random.Below(2) * 8);
      header.payload_bytes = static_cast<uint32_t>(payload.size());
      header.total_bytes = payload.size() + (random.Chance(0.2) ? random.Below(40000) : 0);
      header.stripe_offset = header.total_bytes == payload.size() ? 0 : random.Below(static_cast<uint32_t>(header.total_bytes - payload.size()) + 1);
      impostor.endpoint->Send(impostor.link, header, payload, 0);
      if (i % 50 == 0) nodes.network.RunFor(kMillisecond);
      EXPECT_LE(nodes.nodes[1]->core->courier().early_bytes(0), kEarlyBytes);
      EXPECT_LE(nodes.nodes[1]->core->courier().early_frames(0), kEarlyFrames);
    }
    nodes.network.RunFor(kSecond);
    impostor.endpoint.reset();
    nodes.network.RunFor(kSecond);
    // Those who speak the protocol still can.
    std::vector<float> got(9000);
    Nodes::Outcomes outcomes = {nodes.nodes[1]->Call({.kind = Kind::kSend, .input = in, .peer = 2, .tag = 9}),
                                nodes.nodes[2]->Call({.kind = Kind::kReceive, .output = got, .peer = 1, .tag = 9})};
    ASSERT_TRUE(nodes.Await(outcomes));
    EXPECT_TRUE(outcomes[1]->status.ok()) << outcomes[1]->status;
    EXPECT_EQ(got, in);
  }
}

}  // namespace
}  // namespace sluice::collective
