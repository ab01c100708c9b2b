#include "base/trace.h"

#include <fstream>
#include <sstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

nlohmann::json Events(const Tracer& tracer, const std::string& phase) {
  nlohmann::json result = nlohmann::json::array();
  const nlohmann::json trace = nlohmann::json::parse(tracer.ToJson());
  for (const auto& event : trace["traceEvents"])
    if (event["ph"] == phase) result.push_back(event);
  return result;
}

TEST(Trace, EventsCarryWallClockTimesNamesAndArguments) {
  ManualClock clock(5 * kSecond);
  Tracer tracer({.process = "server \"0\"", .clock = &clock, .unix_ns = 1000 * kSecond, .pid = 77});
  TraceTrack* track = tracer.AddTrack("loop 0");
  track->Work("encode", 5 * kSecond + 1500, 5 * kSecond + 4500, {.tensor = 1, .partition = 2, .round = 3});
  track->Wait("queue", 6 * kSecond, 7 * kSecond, {.partition = 9, .round = 4, .rank = 1});

  const auto work = Events(tracer, "X");
  ASSERT_EQ(work.size(), 1u);
  EXPECT_EQ(work[0]["name"], "encode");
  EXPECT_EQ(work[0]["ts"], 1000e6 + 1.5);
  EXPECT_EQ(work[0]["dur"], 3.0);
  EXPECT_EQ(work[0]["args"], nlohmann::json::parse(R"({"tensor":1,"partition":2,"round":3})"));
  const auto begin = Events(tracer, "b"), end = Events(tracer, "e");
  ASSERT_EQ(begin.size(), 1u);
  ASSERT_EQ(end.size(), 1u);
  EXPECT_EQ(begin[0]["id2"], end[0]["id2"]);
  EXPECT_EQ(end[0]["ts"], 1002e6);
  const auto names = Events(tracer, "M");
  EXPECT_EQ(names[0]["args"]["name"], "server \"0\"");
  EXPECT_EQ(names[1]["args"]["name"], "loop 0");
  EXPECT_EQ(names[1]["pid"], 77);
}

TEST(Trace, TheRingKeepsTheNewestEvents) {
  ManualClock clock;
  Tracer tracer({.process = "p", .clock = &clock, .events_per_track = 4});
  TraceTrack* track = tracer.AddTrack("t");
  for (uint64_t i = 0; i < 10; ++i) track->Work("w", 0, 0, {.partition = 0, .round = i});
  const auto events = Events(tracer, "X");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["args"]["round"], 6);
  EXPECT_EQ(events[3]["args"]["round"], 9);
}

TEST(Trace, ScopesCostNothingWithoutATrack) {
  ManualClock clock;
  { TraceScope scope(nullptr, nullptr, "never"); }
  TraceWait(nullptr, "never", 0, 1);
  Tracer tracer({.process = "p", .clock = &clock});
  TraceTrack* track = tracer.AddTrack("t");
  {
    TraceScope scope(track, &clock, "work");
    clock.Advance(2 * kMicrosecond);
  }
  EXPECT_EQ(Events(tracer, "X")[0]["dur"], 2.0);
}

TEST(Trace, MayBeWrittenWhileThreadsTrace) {
  SteadyClock clock;
  Tracer tracer({.process = "p", .clock = &clock, .events_per_track = 8});
  TraceTrack* track = tracer.AddTrack("t");
  // Every event has equal numbers in all places, so a torn one would show.
  std::thread owner([&] {
    for (uint32_t i = 0; i < 20000; ++i) track->Work("w", i, i, {.tensor = i, .partition = i, .round = i, .rank = i});
  });
  for (int i = 0; i < 50; ++i) {
    const nlohmann::json events = Events(tracer, "X");
    for (const auto& event : events) {
      EXPECT_EQ(event["args"]["tensor"], event["args"]["round"]);
      EXPECT_EQ(event["args"]["rank"], event["args"]["partition"]);
      EXPECT_EQ(event["args"]["rank"], event["args"]["tensor"]);
    }
  }
  owner.join();
  const nlohmann::json events = Events(tracer, "X");
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[7]["args"]["round"], 19999);
}

TEST(Trace, WritesAFileOrSaysWhyNot) {
  ManualClock clock;
  Tracer tracer({.process = "p", .clock = &clock});
  const std::string path = ::testing::TempDir() + "trace.json";
  ASSERT_TRUE(tracer.Write(path).ok());
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), tracer.ToJson());
  const absl::Status status = tracer.Write("/nowhere/trace.json");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("/nowhere/trace.json: No such file"));
}

}  // namespace
}  // namespace sluice
