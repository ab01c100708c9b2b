// A server that says anything: no frame, batch or plan may crash the worker or make it touch memory that is not its own
// (run under AddressSanitizer too). What a forged answer does to the values is another matter.
#include "base/philox.h"
#include "gtest/gtest.h"
#include "worker/admission.h"
#include "worker/core.h"
#include "worker/testing/cluster.h"

namespace sluice::worker {
namespace {

using transport::FrameHeader;
using transport::FrameType;

// A header near to what could be: most fields are right, some are anything.
FrameHeader Near(PhiloxRandom& random, const FrameHeader& right) {
  FrameHeader h = right;
  h.type = static_cast<FrameType>(1 + random.Below(transport::kMaxFrameType));
  if (h.type == FrameType::kBatch) h.type = FrameType::kReply;
  for (int i = 0; i < 3; ++i) {
    switch (random.Below(16)) {
      case 0: h.flags = static_cast<uint16_t>(random()); break;
      case 1: h.rank = random(); break;
      case 2: h.partition = random.Below(2) != 0 ? random() : random.Below(4); break;
      case 3: h.round = random.Below(3); break;
      case 4: h.codec = static_cast<uint16_t>(random.Below(6)); break;
      case 5: h.attempt = random.Below(4); break;
      case 6: h.aux = random.Below(2) != 0 ? random() : random.Below(5); break;
      case 7: h.aux64 = random.Below(20); break;
      case 8: h.slot = random.Below(8); break;
      case 9: h.status = static_cast<uint16_t>(random.Below(20)); break;
      case 10: h.elements = random(); break;
      case 11: h.rate_bits = random(); break;
      case 12: h.term = random.Below(4); break;
      default: break;
    }
  }
  return h;
}

TEST(HostileTest, FramesOfEveryKindAreBorne) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    PhiloxRandom random(seed);
    const bool change = seed % 2 == 0;
    ClusterOptions options{.ranks = 2, .job = "optimizer { kind: 'sgd' } codec: 'int8' codec_min_elements: 1"};
    if (change) {
      options.job += " reply: REPLY_CHANGE";
      options.server.change_codec = "fp16";
    }
    Cluster cluster(options);
    cluster.Start(0);
    cluster.Start(1);
    const auto ids = cluster.Register({{"w", 150}});
    const std::vector<float> g(150, 1.0f);
    std::vector<float> out(150);
    // Rank 1 never pushes, so rank 0's push stays in flight while nonsense comes in.
    const auto op = cluster.Submit(0, {.tensor = ids[0], .input = g, .output = out});
    if (seed % 3 == 0) cluster.RunFor(20 * kMillisecond);
    FrameHeader right;
    right.job = 1;
    right.rank = 0;
    right.incarnation = cluster.workers[0]->incarnation;
    right.tensor = ids[0];
    for (int i = 0; i < 40; ++i) {
      FrameHeader h = Near(random, right);
      std::vector<std::byte> payload(random.Below(2) != 0 ? random.Below(700) : 0);
      for (std::byte& b : payload) b = static_cast<std::byte>(random());
      h.payload_bytes = static_cast<uint32_t>(payload.size());
      h.total_bytes = payload.size() + (random.Below(3) == 0 ? random.Below(1000) : 0);
      h.stripe_offset =
          h.total_bytes == payload.size() ? 0 : random.Below(static_cast<uint32_t>(h.total_bytes - payload.size()) + 1);
      const auto owner = std::make_shared<std::vector<std::byte>>(std::move(payload));
      transport::Handler& handler = cluster.core(0);
      if (random.Below(4) == 0) {
        // A batch of it, or of a part of it.
        transport::BatchBuilder builder;
        h.stripe_offset = 0;
        h.total_bytes = owner->size();
        builder.Add(h, *owner);
        builder.Add(Near(random, right), {});
        auto [outer, bytes] = builder.Take();
        if (random.Below(2) == 0) bytes.resize(random.Below(static_cast<uint32_t>(bytes.size())));
        const auto batch = std::make_shared<std::vector<std::byte>>(std::move(bytes));
        handler.OnFrame(1, outer, transport::Payload(*batch, batch));
      } else {
        handler.OnFrame(1, h, transport::Payload(*owner, owner));
      }
      if (random.Below(8) == 0) handler.OnSlotClosed(1, random.Below(10));
      if (random.Below(8) == 0) handler.OnSent(1, random());
      if (random.Below(8) == 0) cluster.RunFor(10 * kMillisecond);
    }
    cluster.RunFor(kSecond);
    EXPECT_LE(op->calls, 1);
    EXPECT_FALSE(cluster.core(0).HasWork());
  }
}

TEST(HostileTest, PlansThatCannotBeAreRefused) {
  proto::Plan good;
  good.add_servers()->add_lanes();
  good.add_shards();
  proto::TensorInfo* w = good.add_tensors();
  w->mutable_spec()->set_name("w");
  w->mutable_spec()->add_shape(10);
  for (uint64_t n : {6, 4}) {
    w->add_partition_elements(n);
    w->add_partition_shard(0);
  }
  ASSERT_TRUE(CheckPlan(good).ok()) << CheckPlan(good);
  const auto bad = [&](auto change) {
    proto::Plan plan = good;
    change(plan);
    EXPECT_FALSE(CheckPlan(plan).ok()) << plan.ShortDebugString();
  };
  bad([](proto::Plan& p) { p.mutable_shards(0)->set_server(3); });
  bad([](proto::Plan& p) { p.mutable_shards(0)->set_lane(1); });
  bad([](proto::Plan& p) { p.mutable_shards(0)->set_shard(1); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->set_tensor(1); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->set_first_partition(1); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->set_partition_shard(1, 1); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->add_partition_shard(0); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->set_partition_elements(0, 7); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->set_partition_elements(0, 0); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->set_partition_elements(0, uint64_t{1} << 60); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->mutable_spec()->add_shape(uint64_t{1} << 63); });
  bad([](proto::Plan& p) { p.mutable_tensors(0)->mutable_spec()->add_shape(0); });
}

}  // namespace
}  // namespace sluice::worker
