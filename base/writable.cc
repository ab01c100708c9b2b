#include "base/writable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace sluice {

absl::Status CheckWritable(absl::string_view flag, const std::string& path, HowWritten how) {
  if (path.empty()) return absl::OkStatus();
  const auto bad = [&](const std::string& where, int error, absl::string_view todo) {
    return absl::FailedPreconditionError(
        absl::StrCat(flag, "=", path, " cannot be written: ", where, std::strerror(error), "; ", todo));
  };
  struct stat file {};
  const bool exists = stat(path.c_str(), &file) == 0;
  if (exists && S_ISDIR(file.st_mode)) return bad("", EISDIR, "name a file in it");
  if (exists && how == HowWritten::kInPlace) {
    if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0) return absl::OkStatus();
    return bad("", errno, "name another file, or let this user write it");
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(1, '.') : parent.string();
  const std::string where = absl::StrCat("folder ", folder, ": ");
  if (stat(folder.c_str(), &file) != 0) return bad(where, errno, "make it, or name another place");
  if (!S_ISDIR(file.st_mode)) return bad(where, ENOTDIR, "name another place");
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return bad(where, errno, "name another place, or let this user write there");
  }
  return absl::OkStatus();
}

}  // namespace sluice
