// Leveled logging, one line an entry: "2024-05-01T12:00:00.123456Z W server-0] text".
//
// A Logger is a small value that its owner holds and hands on; it writes to a sink. The one sink of a process is
// stderr, whose level is set once at start (node.log_level); tests and embedded clusters bring sinks of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace sluice {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3 };

// "debug", "info", "warn", "error".
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

class LogSink {
 public:
  virtual ~LogSink() = default;
  // Thread-safe.
  virtual bool Wants(LogLevel level) const = 0;
  virtual void Write(LogLevel level, absl::string_view component, absl::string_view text) = 0;
};

// Each entry is one write(2) to stderr, so lines of threads and processes do not mix. Line breaks in the text become
// "\n", bytes below 32 "?": what a peer sent cannot forge a line.
class StderrLog final : public LogSink {
 public:
  static StderrLog* Get();
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  bool Wants(LogLevel level) const override { return level >= level_.load(std::memory_order_relaxed); }
  void Write(LogLevel level, absl::string_view component, absl::string_view text) override;

 private:
  std::atomic<LogLevel> level_{LogLevel::kInfo};
};

// The line without its end, for sinks: unix_ns is the wall clock.
std::string FormatLogLine(int64_t unix_ns, LogLevel level, absl::string_view component, absl::string_view text);

class Logger {
 public:
  explicit Logger(std::string component, LogSink* sink = StderrLog::Get())
      : component_(std::move(component)), sink_(sink) {}

  // Arguments as of absl::StrCat; nothing is formatted for a level that nobody wants.
  template <typename... Args>
  void Debug(const Args&... args) const {
    Log(LogLevel::kDebug, args...);
  }
  template <typename... Args>
  void Info(const Args&... args) const {
    Log(LogLevel::kInfo, args...);
  }
  template <typename... Args>
  void Warn(const Args&... args) const {
    Log(LogLevel::kWarn, args...);
  }
  template <typename... Args>
  void Error(const Args&... args) const {
    Log(LogLevel::kError, args...);
  }

 private:
  template <typename... Args>
  void Log(LogLevel level, const Args&... args) const {
    if (sink_->Wants(level)) sink_->Write(level, component_, absl::StrCat(args...));
  }

  std::string component_;
  LogSink* sink_;
};

// Lets one entry of a kind through per interval. Not thread-safe: keep one beside what it limits.
//   if (limit.Allow(now)) log.Warn("bad frame from ", peer, limit.Suffix());    // "… (and 37 like it)"
class LogLimit {
 public:
  explicit LogLimit(TimeNs interval = kSecond) : interval_(interval) {}
  bool Allow(TimeNs now);
  // How many were held back before the one that was just allowed, as text; "" for none.
  std::string Suffix() const { return held_back_ == 0 ? "" : absl::StrCat(" (and ", held_back_, " like it)"); }

 private:
  const TimeNs interval_;
  bool any_ = false;
  TimeNs last_ = 0;
  uint64_t pending_ = 0;    // held back since the last allowed one
  uint64_t held_back_ = 0;  // of the last allowed one
};

}  // namespace sluice
