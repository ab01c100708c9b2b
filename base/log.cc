#include "base/log.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace sluice {

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no log level: debug, info, warn, error"));
}

std::string FormatLogLine(int64_t unix_ns, LogLevel level, absl::string_view component, absl::string_view text) {
  const time_t seconds = unix_ns / kSecond;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char when[40];
  const size_t length = std::strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(when + length, sizeof(when) - length, ".%06dZ", static_cast<int>(unix_ns % kSecond / kMicrosecond));
  std::string line = absl::StrCat(when, " ", std::string(1, "DIWE"[static_cast<int>(level)]), " ", component, "] ");
  line.reserve(line.size() + text.size());
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += static_cast<unsigned char>(c) < 32 && c != '\t' ? '?' : c;
    }
  }
  return line;
}

StderrLog* StderrLog::Get() {
  static StderrLog* const log = new StderrLog;
  return log;
}

void StderrLog::Write(LogLevel level, absl::string_view component, absl::string_view text) {
  const int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string line = FormatLogLine(now, level, component, text) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nowhere to complain
    done += static_cast<size_t>(n);
  }
}

bool LogLimit::Allow(TimeNs now) {
  if (any_ && now - last_ < interval_) {
    ++pending_;
    return false;
  }
  any_ = true;
  last_ = now;
  held_back_ = pending_;
  pending_ = 0;
  return true;
}

}  // namespace sluice
