#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rdma/device.h"

namespace sluice::rdma {

const char* GidTypeName(GidType type) {
  switch (type) {
    case GidType::kInfiniBand: return "InfiniBand";
    case GidType::kRoceV1: return "RoCE v1";
    case GidType::kRoceV2: return "RoCE v2";
    case GidType::kUnknown: break;
  }
  return "unknown GID type";
}

std::string GidText(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  return inet_ntop(AF_INET6, gid.data(), text, sizeof(text)) != nullptr ? text : "?";
}

bool IsZero(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool IsIpv4Mapped(const Gid& gid) {
  constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.data(), kPrefix, sizeof(kPrefix)) == 0;
}

bool IsLinkLocal(const Gid& gid) {
  if (IsIpv4Mapped(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

std::string Rail::ToString() const {
  return absl::StrCat(device, " port ", port, ", ", GidTypeName(gid_type), ", GID ", gid_index, " ", GidText(gid),
                      netdev.empty() ? "" : ", ", netdev);
}

}  // namespace sluice::rdma
