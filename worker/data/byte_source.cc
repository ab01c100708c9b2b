#include "worker/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::worker {
namespace {

constexpr size_t kChunk = 256 << 10;

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

class GzFile final : public ByteSource {
 public:
  GzFile(gzFile file, std::string path) : file_(file), path_(std::move(path)) { gzbuffer(file_, kChunk); }
  ~GzFile() override { gzclose(file_); }

  absl::StatusOr<size_t> Read(char* out, size_t bytes) override {
    const int got = gzread(file_, out, static_cast<unsigned>(std::min<size_t>(bytes, 1 << 30)));
    int error = Z_OK;
    const char* const text = gzerror(file_, &error);
    // Z_BUF_ERROR: the compressed data stops in its middle; what could be read is lost with it.
    if (got < 0 || (got == 0 && error == Z_BUF_ERROR)) {
      if (error == Z_ERRNO) return absl::ErrnoToStatus(errno, absl::StrCat("reading ", path_));
      return absl::DataLossError(absl::StrCat(path_, ": the gzip data is damaged or truncated after ", gztell(file_),
                                              " uncompressed bytes (", error == Z_BUF_ERROR ? "unexpected end" : text,
                                              "); get the file again"));
    }
    return static_cast<size_t>(got);
  }
  const std::string& name() const override { return path_; }

 private:
  gzFile file_;
  const std::string path_;
};

class Memory final : public ByteSource {
 public:
  Memory(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}
  absl::StatusOr<size_t> Read(char* out, size_t bytes) override {
    const size_t n = std::min(bytes, text_.size());
    if (n > 0) std::memcpy(out, text_.data(), n);
    text_.remove_prefix(n);
    return n;
  }
  const std::string& name() const override { return name_; }

 private:
  std::string_view text_;
  const std::string name_;
};

}  // namespace

absl::Status CheckReadable(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) {
    const int error = errno;
    if (error == ENOENT) {
      return absl::NotFoundError(
          absl::StrCat(path, ": there is no such file or folder; check the name, and that this host has it"));
    }
    return absl::Status(absl::ErrnoToStatusCode(error),
                        absl::StrCat(path, ": cannot be found: ", std::generic_category().message(error),
                                     "; check each folder on the way there"));
  }
  if (S_ISDIR(status.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is a folder; name a file in it"));
  if (::faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0) {
    const int error = errno;
    return absl::Status(absl::ErrnoToStatusCode(error),
                        absl::StrCat(path, ": cannot be read: ", std::generic_category().message(error),
                                     "; let the user of this process (id ", ::geteuid(), ") read it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  SLUICE_RETURN_IF_ERROR(CheckReadable(path));
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rbe");  // reads plain files, too
  if (file == nullptr) return absl::ErrnoToStatus(errno == 0 ? ENOMEM : errno, absl::StrCat("opening ", path));
  return std::make_unique<GzFile>(file, path);
}

std::unique_ptr<ByteSource> OpenMemory(std::string_view text, std::string name) {
  return std::make_unique<Memory>(text, std::move(name));
}

absl::Status ExactReader::Read(char* out, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    SLUICE_ASSIGN_OR_RETURN(const size_t got, source_->Read(out + done, bytes - done));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(source_->name(), ": the file ends at offset ", offset_, ", ",
                                              bytes - done, " bytes short; is it a whole download?"));
    }
    done += got;
    offset_ += got;
  }
  return absl::OkStatus();
}

absl::Status ExactReader::ExpectEnd() {
  char byte;
  SLUICE_ASSIGN_OR_RETURN(const size_t got, source_->Read(&byte, 1));
  if (got == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(source_->name(), ": there is more data at offset ", offset_, " than the header says"));
}

absl::StatusOr<bool> LineReader::Next(std::string_view* line) {
  size_t searched = begin_;
  for (;;) {
    const char* const newline =
        searched == end_ ? nullptr
                         : static_cast<const char*>(std::memchr(buffer_.data() + searched, '\n', end_ - searched));
    if (newline != nullptr || (at_end_ && begin_ < end_)) {
      const size_t stop = newline != nullptr ? newline - buffer_.data() : end_;
      *line = std::string_view(buffer_.data() + begin_, stop - begin_);
      if (!line->empty() && line->back() == '\r') line->remove_suffix(1);
      begin_ = newline != nullptr ? stop + 1 : end_;
      ++line_;
      return true;
    }
    if (at_end_) return false;
    searched = end_;
    if (begin_ > 0) {
      std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_), buffer_.begin() + static_cast<ptrdiff_t>(end_),
                buffer_.begin());
      end_ -= begin_;
      searched -= begin_;
      begin_ = 0;
    }
    if (end_ > max_line_bytes_) {
      ++line_;
      return absl::ResourceExhaustedError(
          absl::StrCat(Where(), ": the line is longer than ", max_line_bytes_, " bytes; is this a text file?"));
    }
    if (buffer_.size() < end_ + kChunk / 2) buffer_.resize(std::max(kChunk, 2 * buffer_.size()));
    SLUICE_ASSIGN_OR_RETURN(const size_t got, source_->Read(buffer_.data() + end_, buffer_.size() - end_));
    at_end_ = got == 0;
    end_ += got;
  }
}

std::string LineReader::Where() const { return absl::StrCat(source_->name(), ":", line_); }

absl::Status LineReader::Error(std::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Where(), ": ", View(what)));
}

}  // namespace sluice::worker
