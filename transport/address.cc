#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "transport/transport.h"

namespace sluice::transport {

std::string Address::ToString() const {
  const std::string tcp = host.empty()                     ? ""
                          : absl::StrContains(host, ':')   ? absl::StrCat("[", host, "]:", port)  // IPv6
                                                           : absl::StrCat(host, ":", port);
  if (unix_socket.empty()) return tcp.empty() ? "(no address)" : tcp;
  return tcp.empty() ? absl::StrCat("shm:@", unix_socket) : absl::StrCat(tcp, " or shm:@", unix_socket);
}

}  // namespace sluice::transport
