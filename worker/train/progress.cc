#include "worker/train/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace sluice::worker {
namespace {

absl::Status Errno(const char* what, const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

absl::Status WriteAll(int fd, const std::string& text, const std::string& path) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Errno("writing", path);
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

nlohmann::ordered_json OrNull(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string ToJson(const ProgressLine& line) {
  nlohmann::ordered_json json = {{"epoch", line.epoch},
                                 {"step", line.step},
                                 {"steps", line.steps},
                                 {"loss", line.loss},
                                 {"accuracy", line.accuracy},
                                 {"test_accuracy", nullptr},
                                 {"step_ms", line.step_ms},
                                 {"rate", line.rate},
                                 {"push_wire_bytes", line.push_wire_bytes},
                                 {"push_raw_bytes", line.push_raw_bytes},
                                 {"pull_wire_bytes", line.pull_wire_bytes}};
  if (line.test_accuracy.has_value()) json["test_accuracy"] = *line.test_accuracy;
  return json.dump();
}

std::string ToJson(const TrainResult& result) {
  const nlohmann::ordered_json json = {{"rank", result.rank},
                                       {"test_accuracy", result.test_accuracy},
                                       {"test_loss", result.test_loss},
                                       {"seconds", result.seconds},
                                       {"steps", result.steps},
                                       {"wire_bytes_push", result.wire_bytes_push},
                                       {"wire_bytes_pull", result.wire_bytes_pull},
                                       {"transport", result.transport},
                                       {"skipped_steps", result.skipped_steps},
                                       {"params_hash", absl::StrFormat("%016x", result.params_hash)}};
  return json.dump();
}

std::string ToJson(const SparseProgressLine& line) {
  return nlohmann::ordered_json{{"epoch", line.epoch},
                                {"step", line.step},
                                {"steps", line.steps},
                                {"loss", line.loss},
                                {"test_auc", OrNull(line.test_auc)},
                                {"test_loss", OrNull(line.test_loss)},
                                {"step_ms", line.step_ms},
                                {"examples_per_s", line.examples_per_s},
                                {"rate", line.rate},
                                {"push_wire_bytes", line.push_wire_bytes},
                                {"push_raw_bytes", line.push_raw_bytes},
                                {"pull_wire_bytes", line.pull_wire_bytes}}
      .dump();
}

std::string ToJson(const SparseTrainResult& result) {
  return nlohmann::ordered_json{{"rank", result.rank},
                                {"auc", OrNull(result.auc)},
                                {"auc_error", result.auc_error},
                                {"logloss", result.logloss},
                                {"test_examples", result.test_examples},
                                {"seconds", result.seconds},
                                {"steps", result.steps},
                                {"examples", result.examples},
                                {"examples_per_s", result.examples_per_s},
                                {"ids", result.ids},
                                {"malformed", result.malformed},
                                {"wire_bytes_push", result.wire_bytes_push},
                                {"wire_bytes_pull", result.wire_bytes_pull},
                                {"transport", result.transport},
                                {"params_hash", absl::StrFormat("%016x", result.params_hash)}}
      .dump();
}

absl::StatusOr<ProgressWriter> ProgressWriter::Open(const std::string& path) {
  if (path.empty()) return ProgressWriter(path, -1);
  if (path == "-") return ProgressWriter("standard output", dup(STDOUT_FILENO));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("opening", path);
  return ProgressWriter(path, fd);
}

ProgressWriter::ProgressWriter(ProgressWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

ProgressWriter::~ProgressWriter() {
  if (fd_ >= 0) close(fd_);
}

absl::Status ProgressWriter::Write(const std::string& line) {
  return fd_ < 0 ? absl::OkStatus() : WriteAll(fd_, line + "\n", path_);
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  const std::string temporary = absl::StrCat(path, ".new");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("opening", temporary);
  absl::Status written = WriteAll(fd, content, temporary);
  close(fd);
  SLUICE_RETURN_IF_ERROR(written);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return Errno("renaming to", path);
  return absl::OkStatus();
}

}  // namespace sluice::worker
