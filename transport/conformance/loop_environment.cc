#include "transport/conformance/loop_environment.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::transport::conformance {
namespace {

// Long enough for a machine that is busy with other things; only a test that fails gets there.
constexpr TimeNs kGiveUp = 60 * kSecond;
// Turns in a row that found nothing to do: what is under way between sockets of one loop has arrived by then.
constexpr int kQuietTurns = 20;

class LoopEnvironment final : public Environment {
 public:
  LoopEnvironment(std::unique_ptr<Loop> loop, NodeMaker maker,
                  std::function<std::unique_ptr<RawPeer>(const Address&)> raw)
      : loop_(std::move(loop)), maker_(std::move(maker)), raw_(std::move(raw)) {
    loop_->AtTurnEnd([this] {
      for (const auto& step : steps_) step();
    });
  }

  Node NewNode(const std::string& name, const Hello& self, EndpointLimits limits) override {
    auto node = maker_(loop_.get(), &clock_, self, limits);
    EXPECT_TRUE(node.ok()) << name << ": " << node.status();
    return node.ok() ? *std::move(node) : Node{};
  }

  bool StepUntil(const std::function<bool()>& done) override {
    const TimeNs begin = clock_.Now();
    bool reached = done();
    std::function<void()> poll = [&] {
      reached = done();
      if (reached || clock_.Now() - begin > kGiveUp) {
        loop_->Stop();
        return;
      }
      // Every turn looks; with nothing to do at all, a short wait keeps the machine's other processes going.
      pending_ = loop_->After(++looks_ % 8 == 0 ? 50 * kMicrosecond : 0, poll);
    };
    if (reached) return true;
    pending_ = loop_->After(0, poll);
    loop_->Run();
    loop_->CancelTimer(pending_);
    return reached;
  }

  void Settle() override {
    int turns = 0;
    StepUntil([&] { return ++turns > 8 * kQuietTurns; });
  }

  void AtStep(std::function<void()> fn) override { steps_.push_back(std::move(fn)); }
  const Clock* clock() const override { return &clock_; }
  std::unique_ptr<RawPeer> ConnectRaw(const Address& to) override { return raw_ ? raw_(to) : nullptr; }

 private:
  const SteadyClock clock_;
  const std::unique_ptr<Loop> loop_;
  const NodeMaker maker_;
  const std::function<std::unique_ptr<RawPeer>(const Address&)> raw_;
  std::vector<std::function<void()>> steps_;
  uint64_t pending_ = 0;
  uint64_t looks_ = 0;
};

}  // namespace

std::unique_ptr<Environment> MakeLoopEnvironment(NodeMaker maker,
                                                 std::function<std::unique_ptr<RawPeer>(const Address&)> raw) {
  auto loop = Loop::Create();
  EXPECT_TRUE(loop.ok()) << loop.status();
  return std::make_unique<LoopEnvironment>(*std::move(loop), std::move(maker), std::move(raw));
}

}  // namespace sluice::transport::conformance
