#include "transport/auto/host_id.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace sluice::transport {

std::string HostId() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat net;
  if (boot_id.empty() || ::stat("/proc/self/ns/net", &net) != 0) return "";
  return absl::StrCat(boot_id, "/net:", net.st_ino, "/uid:", ::geteuid());
}

}  // namespace sluice::transport
