#include "transport/conformance/sim_environment.h"

#include "transport/sim/sim_endpoint.h"
#include "transport/sim/sim_network.h"

namespace sluice::transport::conformance {
namespace {

constexpr int kMaxEvents = 1000000;
constexpr TimeNs kIdle = kMillisecond;  // how time goes on when nothing is under way
constexpr int kMaxIdle = 20000;

class SimEnvironment final : public Environment {
 public:
  SimEnvironment(uint64_t seed, bool by_reference) : network_(seed, Faults(by_reference), &clock_) {}

  Node NewNode(const std::string& name, const Hello& self, EndpointLimits limits) override {
    auto endpoint = network_.CreateEndpoint(name, limits);
    endpoint->Listen(self);
    Node node;
    node.address = node.other = endpoint->address();
    node.endpoint = std::move(endpoint);
    return node;
  }

  bool StepUntil(const std::function<bool()>& done) override {
    int events = 0, idle = 0;
    while (!done()) {
      if (network_.Step()) {
        if (++events > kMaxEvents) return false;
      } else {
        if (++idle > kMaxIdle) return false;
        clock_.Advance(kIdle);
      }
      for (const auto& step : steps_) step();
    }
    return true;
  }

  void Settle() override {
    int quiet = 0;
    StepUntil([&] { return ++quiet > 200; });
  }

  void AtStep(std::function<void()> fn) override { steps_.push_back(std::move(fn)); }
  const Clock* clock() const override { return &clock_; }
  bool orderly_close() const override { return false; }

 private:
  static SimFaults Faults(bool by_reference) {
    SimFaults faults;
    faults.by_reference = by_reference;
    return faults;
  }

  ManualClock clock_;
  SimNetwork network_;
  std::vector<std::function<void()>> steps_;
};

}  // namespace

std::unique_ptr<Environment> MakeSimEnvironment(uint64_t seed, bool by_reference) {
  return std::make_unique<SimEnvironment>(seed, by_reference);
}

}  // namespace sluice::transport::conformance
