#include "scheduler/topology/formats/files.h"

#include <errno.h>
#include <string.h>

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::topology {
namespace {

absl::StatusOr<std::string> ReadText(const std::string& path, size_t most) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path == "-" ? "/dev/stdin" : path.c_str(), "rb"), std::fclose);
  const int error = errno;
  if (file == nullptr) {
    const std::string text = absl::StrCat(path, ": cannot be opened: ", strerror(error));
    return error == ENOENT ? absl::NotFoundError(text) : absl::PermissionDeniedError(text);
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t bytes = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    if (text.size() + bytes > most)
      return absl::ResourceExhaustedError(absl::StrCat(path, ": topology files have more than ", kMaxTextBytes >> 20, " MiB in all"));
    text.append(buffer, bytes);
  }
  if (std::ferror(file.get())) return absl::UnavailableError(absl::StrCat(path, ": cannot be read: ", strerror(errno)));
  return text;
}

}  // namespace

absl::StatusOr<Graph> ReadFiles(const std::vector<std::string>& specs, const ReadOptions& options, std::vector<Report>* reports) {
  std::vector<std::string> texts;
  std::vector<FileSpec> files;
  size_t left = kMaxTextBytes;
  for (const std::string& spec : specs) {
    SLUICE_ASSIGN_OR_RETURN(FileSpec file, ParseFileSpec(spec));
    SLUICE_ASSIGN_OR_RETURN(std::string text, ReadText(file.file, left));
    left -= text.size();
    files.push_back(std::move(file));
    texts.push_back(std::move(text));
  }
  std::vector<Input> inputs;
  for (size_t i = 0; i < files.size(); ++i)
    inputs.push_back({.file = files[i].file, .text = texts[i], .host = files[i].hosts, .choice = files[i].choice});
  return ReadAll(inputs, options, reports);
}

}  // namespace sluice::topology
