#include "scheduler/topology/formats/load.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::topology {
namespace {

// At most `left` bytes of a file.
absl::StatusOr<std::string> ReadFile(const std::string& name, size_t left) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(name == "-" ? "/dev/stdin" : name.c_str(), "rb"), std::fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("topology file ", name));
  std::string text;
  char block[65536];
  for (;;) {
    const size_t bytes = std::fread(block, 1, sizeof block, file.get());
    if (bytes == 0) break;
    if (bytes > left - text.size())
      return absl::ResourceExhaustedError(absl::StrCat("topology file ", name, ": the files together have more than ", kMaxTextBytes, " bytes"));
    text.append(block, bytes);
  }
  if (std::ferror(file.get()) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("topology file ", name));
  return text;
}

bool Exists(const std::string& name) {
  std::FILE* const file = std::fopen(name.c_str(), "rb");
  if (file != nullptr) std::fclose(file);
  return file != nullptr;
}

}  // namespace

absl::StatusOr<LoadedTopology> LoadTopology(const std::vector<std::string>& specs, const ReadOptions& options) {
  std::vector<std::string> texts;
  std::vector<Input> inputs;
  texts.reserve(specs.size());    // inputs point into them
  size_t left = kMaxTextBytes;
  for (const std::string& text : specs) {
    SLUICE_ASSIGN_OR_RETURN(FileSpec spec, ParseFileSpec(text));
    if (!spec.choice.empty() && Exists(absl::StrCat(spec.file, "#", spec.choice))) {   // its name has a '#'
      absl::StrAppend(&spec.file, "#", spec.choice);
      spec.choice.clear();
    }
    SLUICE_ASSIGN_OR_RETURN(std::string content, ReadFile(spec.file, left));
    left -= content.size();
    texts.push_back(std::move(content));
    inputs.push_back({.file = spec.file, .text = texts.back(), .host = spec.hosts, .choice = spec.choice});
  }
  LoadedTopology loaded;
  SLUICE_ASSIGN_OR_RETURN(loaded.graph, ReadAll(inputs, options, &loaded.reports));
  return loaded;
}

}  // namespace sluice::topology
