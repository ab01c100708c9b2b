// Tests of the checker plant bugs into the history of a good run.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>

#include "gtest/gtest.h"
#include "tests/sim/checker.h"
#include "tests/sim/cluster.h"
#include "tests/sim/scenario.h"

namespace sluice::sim {

// Two workers, two servers, three partitions, a step-wide verdict, parameters back; no faults.
inline Scenario Plain() {
  Scenario s;
  s.seed = 1;
  s.node.set_servers(2);
  s.node.set_shards(3);
  s.servers = 2;
  s.job.set_name("sim");
  s.job.set_workers(2);
  s.job.set_codec("int8");
  s.job.set_codec_min_elements(1);
  s.job.set_partition_bytes(1024);
  s.job.mutable_optimizer()->set_kind("momentum");
  s.job.mutable_optimizer()->set_clip_norm(0.5);
  for (const uint64_t elements : {400, 30}) {
    proto::TensorSpec spec;
    spec.set_name("t" + std::to_string(elements));
    spec.set_dtype("fp32");
    spec.add_shape(elements);
    s.tensors.push_back(spec);
  }
  s.worker_data.set_resend_ms(20);
  s.server_data.set_resend_ms(20);
  s.server_data.set_pool_bytes(1 << 20);
  s.steps = 4;
  return s;
}

class CheckerTest : public testing::Test {
 protected:
  void Run(const Scenario& scenario) {
    rounds_ = scenario.rounds();
    Outcome outcome = RunScenario(scenario);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    history_ = std::move(outcome.history);
    ASSERT_TRUE(CheckHistory(history_, rounds_).ok()) << CheckHistory(history_, rounds_);
  }
  void SetUp() override { Run(Plain()); }

  // The n-th event of its type that the condition picks.
  template <typename T>
  size_t Find(std::function<bool(const T&)> picks) {
    for (size_t i = 0; i < history_.events.size(); ++i)
      if (const T* event = std::get_if<T>(&history_.events[i]); event != nullptr && picks(*event)) return i;
    ADD_FAILURE() << "no such event";
    return 0;
  }
  size_t TheContribution() {
    return Find<Contribution>([](const Contribution& c) { return c.partition == 1 && c.round == 2 && c.rank == 1; });
  }
  size_t TheRound() {
    return Find<Round>([](const Round& r) { return r.partition == 1 && r.round == 2; });
  }
  template <typename T>
  T& At(size_t i) {
    return std::get<T>(history_.events[i]);
  }
  void Erase(size_t i) { history_.events.erase(history_.events.begin() + static_cast<ptrdiff_t>(i)); }
  void Insert(size_t i, Event event) {
    history_.events.insert(history_.events.begin() + static_cast<ptrdiff_t>(i), std::move(event));
  }
  void Finds(const std::string& what) {
    const absl::Status status = CheckHistory(history_, rounds_);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << status;
  }

  History history_;
  uint64_t rounds_ = 0;
};

}  // namespace sluice::sim
