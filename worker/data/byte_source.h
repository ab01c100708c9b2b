// Where a reader's bytes come from: a file, plain or gzipped, or memory (tests, fuzzing).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice::worker {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `bytes` bytes; 0 = the end. DATA_LOSS: truncated or damaged gzip data.
  virtual absl::StatusOr<size_t> Read(char* out, size_t bytes) = 0;
  // For errors.
  virtual const std::string& name() const = 0;
};

// OK if there is a file of that name which this process may read; the error says what to do. The file is not opened: it
// may be a pipe.
absl::Status CheckReadable(const std::string& path);
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path);
// text must outlive the source.
std::unique_ptr<ByteSource> OpenMemory(std::string_view text, std::string name);

// Exactly `bytes` bytes, or DATA_LOSS that names file and offset.
class ExactReader {
 public:
  explicit ExactReader(ByteSource* source) : source_(source) {}
  absl::Status Read(char* out, size_t bytes);
  // DATA_LOSS unless the source is at its end.
  absl::Status ExpectEnd();
  uint64_t offset() const { return offset_; }

 private:
  ByteSource* const source_;
  uint64_t offset_ = 0;
};

// Lines without their ends (\n or \r\n; the last may have none).
class LineReader {
 public:
  LineReader(ByteSource* source, size_t max_line_bytes) : source_(source), max_line_bytes_(max_line_bytes) {}
  // True: *line is the next line, valid until the next call. False: the end.
  absl::StatusOr<bool> Next(std::string_view* line);
  // "file:12": the line of the last Next.
  std::string Where() const;
  // INVALID_ARGUMENT "file:12: what"
  absl::Status Error(std::string_view what) const;

 private:
  ByteSource* const source_;
  const size_t max_line_bytes_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
  uint64_t line_ = 0;
};

}  // namespace sluice::worker
