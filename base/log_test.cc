#include "base/log.h"

#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

class Lines : public LogSink {
 public:
  explicit Lines(LogLevel level) : level_(level) {}
  bool Wants(LogLevel level) const override { return level >= level_; }
  void Write(LogLevel level, absl::string_view component, absl::string_view text) override {
    lines.push_back(FormatLogLine(0, level, component, text));
  }
  std::vector<std::string> lines;

 private:
  const LogLevel level_;
};

TEST(Log, LinesCarryTimeLevelAndComponent) {
  EXPECT_EQ(FormatLogLine(1714564800123456789, LogLevel::kWarn, "server-0", "3 of 4"),
            "2024-05-01T12:00:00.123456Z W server-0] 3 of 4");
}

TEST(Log, TextOfAPeerCannotForgeALine) {
  EXPECT_EQ(FormatLogLine(0, LogLevel::kInfo, "x", "a\nb\x1b[0m\tc"), "1970-01-01T00:00:00.000000Z I x] a\\nb?[0m\tc");
}

TEST(Log, LevelsBelowTheSinksAreDropped) {
  Lines sink(LogLevel::kWarn);
  const Logger log("w", &sink);
  log.Debug("a");
  log.Info("b");
  log.Warn("c", 1);
  log.Error("d", 2.5);
  ASSERT_EQ(sink.lines.size(), 2u);
  EXPECT_EQ(sink.lines[0], "1970-01-01T00:00:00.000000Z W w] c1");
  EXPECT_EQ(sink.lines[1], "1970-01-01T00:00:00.000000Z E w] d2.5");
}

TEST(Log, NamesOfLevels) {
  for (const char* name : {"debug", "info", "warn", "error"}) EXPECT_TRUE(ParseLogLevel(name).ok()) << name;
  EXPECT_FALSE(ParseLogLevel("warning").ok());
}

TEST(LogLimit, LetsOneThroughPerIntervalAndCountsTheRest) {
  LogLimit limit(kSecond);
  EXPECT_TRUE(limit.Allow(0));
  EXPECT_EQ(limit.Suffix(), "");
  EXPECT_FALSE(limit.Allow(1));
  EXPECT_FALSE(limit.Allow(kSecond - 1));
  EXPECT_TRUE(limit.Allow(kSecond));
  EXPECT_EQ(limit.Suffix(), " (and 2 like it)");
  EXPECT_TRUE(limit.Allow(2 * kSecond));
  EXPECT_EQ(limit.Suffix(), "");
}

}  // namespace
}  // namespace sluice
