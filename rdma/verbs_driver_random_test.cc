// Random faults at random moments, by seed, on a fabric that runs piece by piece: nothing is lost, comes twice, late or
// torn, and nothing lands in memory that is nobody's any more (rdma/testing/talk.h).
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rdma/testing/talk.h"

namespace sluice::rdma {
namespace {

using fake::Cut;
using testing::World;
using testing::WorldOptions;

constexpr int kRails = 2;

class Chaos {
 public:
  explicit Chaos(uint64_t seed) : random_(seed) {
    WorldOptions options;
    options.rails = kRails;
    options.driver = testing::SmallTimes();
    options.driver.queue_pair.receives = Any(2) == 0 ? 8 : 64;
    options.driver.queue_pair.signal_every = Any(2) == 0 ? 1 : 8;
    options.fabric = {.mode = fake::Mode::kStepped, .seed = seed, .reuse_qp_numbers = Any(2) == 0};
    options.device.bytes_per_step = size_t{500} << Any(6);
    options.revoked = Any(2) == 0 ? 0.02 : 0;
    options.most_bytes = 60'000;
    options.seed = seed;
    world_ = std::make_unique<World>(options);
    world_->most_steps = 1 + Any(60);
  }

  void Run() {
    world_->each_look = [this] {
      if (Any(every_) == 0) Fault();
    };
    world_->Begin(200);
    world_->Until([this] { return world_->a().received() + world_->b().received() > 400; });
    every_ = UINT64_MAX;
    MendAll();
    world_->Finish();
    EXPECT_TRUE(world_->a().up() && world_->b().up());
    if (testing_failed()) ADD_FAILURE() << "faults:" << story_;
    world_->Close();
  }

 private:
  static bool testing_failed() { return ::testing::Test::HasFailure(); }
  uint64_t Any(uint64_t n) { return random_() % n; }
  testing::End& AnyEnd() { return Any(2) == 0 ? world_->a() : world_->b(); }

  void Fault() {
    testing::End& end = AnyEnd();
    const int rail = static_cast<int>(Any(kRails));
    const std::string device = absl::StrCat("fake", rail);
    const uint64_t kind = Any(11);
    absl::StrAppend(&story_, " ", kind);
    const Cut cut = Any(2) == 0 ? Cut::kFail : Cut::kSilent;
    fake::Fabric& fabric = world_->fabric;
    switch (kind) {
      case 0: return fabric.CutPath(world_->a().port(rail), world_->b().port(static_cast<int>(Any(kRails))), cut);
      case 1: return fabric.CutOneWay(world_->a().port(rail), world_->b().port(rail), cut);
      case 2: return fabric.CutOneWay(world_->b().port(rail), world_->a().port(rail), cut);
      case 3: return fabric.PortDown(end.port(rail));
      case 4: return fabric.PortUp(end.port(rail));
      case 5: return end.host().Hang(device, 0);
      case 6: return end.host().LoseCompletions(device, 0);
      case 7: return end.host().FailPostSendAfter(Any(20));
      case 8: return fabric.ExpireRetries();
      default: return MendAll();
    }
  }

  void MendAll() {
    for (int a = 0; a < kRails; ++a) {
      for (int b = 0; b < kRails; ++b) world_->fabric.MendPath(world_->a().port(a), world_->b().port(b));
    }
    for (testing::End* end : {&world_->a(), &world_->b()}) {
      end->host().FailPostSendAfter(std::nullopt);
      for (int rail = 0; rail < kRails; ++rail) {
        world_->fabric.PortUp(end->port(rail));
        end->host().Hang(absl::StrCat("fake", rail), 0, false);
        end->host().LoseCompletions(absl::StrCat("fake", rail), 0, false);
      }
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<World> world_;
  uint64_t every_ = 15;
  std::string story_;
};

TEST(VerbsDriverRandomTest, EveryFrameArrivesOnceWholeAndInOrderWhateverBreaks) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Chaos(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice::rdma
