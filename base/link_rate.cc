#include "base/link_rate.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

bool SameAddress(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 && std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                                                 &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr,
                                                 sizeof(in6_addr)) == 0;
}

}  // namespace

std::optional<uint64_t> LinkRateOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> free_found(found, &freeaddrinfo);
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> free_interfaces(interfaces, &freeifaddrs);
  for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      if (!SameAddress(each->ifa_addr, address->ai_addr)) continue;
      std::ifstream file(absl::StrCat("/sys/class/net/", each->ifa_name, "/speed"));
      int64_t megabits = 0;
      if (file >> megabits && megabits > 0) return static_cast<uint64_t>(megabits) * 1000000 / 8;
    }
  }
  return std::nullopt;
}

}  // namespace sluice
