#include "base/host.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace sluice {

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

std::string HostAndPid() { return absl::StrCat(HostName(), ":", getpid()); }

std::string TopologyHost(const proto::NodeConfig& node) { return node.host().empty() ? HostName() : node.host(); }

std::string AdvertisedHost(const proto::NodeConfig& node) {
  if (!node.advertise().empty()) return node.advertise();
  if (node.listen() == "0.0.0.0" || node.listen() == "::" || node.listen() == "[::]") return HostName();
  return node.listen().empty() ? "127.0.0.1" : node.listen();
}

}  // namespace sluice
