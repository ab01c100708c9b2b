// Which devices and ports of this host can carry RDMA, and why the others cannot.
//
//   1. GatherFacts asks the verbs library, sysfs and the network interfaces; it judges nothing and fails on nothing.
//   2. ChooseRails judges: pure, so that each trap has a test with made-up facts. It is also what `doctor` prints.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rdma/verbs.h"

namespace sluice::rdma {

enum class GidType : uint8_t { kInfiniBand = 0, kRoceV1 = 1, kRoceV2 = 2, kUnknown = 255 };
const char* GidTypeName(GidType type);  // "RoCE v2"

using Gid = std::array<uint8_t, 16>;
std::string GidText(const Gid& gid);  // "::ffff:10.0.0.1", "fe80::1"
bool IsZero(const Gid& gid);
bool IsIpv4Mapped(const Gid& gid);
bool IsLinkLocal(const Gid& gid);

// A port that QPs are made on.
struct Rail {
  std::string device;  // "mlx5_0"
  uint8_t port = 1;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  int gid_index = 0;
  Gid gid{};  // what was there when it was chosen: a link that flaps may move it
  GidType gid_type = GidType::kRoceV2;
  uint16_t lid = 0;
  std::string netdev;     // empty on InfiniBand, or in another network namespace
  uint32_t megabits = 0;  // link rate; 0 = unknown

  std::string ToString() const;  // "mlx5_0 port 1, RoCE v2, GID 3 ::ffff:10.0.0.1, eth0"
};

struct GidFacts {
  int index = 0;
  Gid gid{};
  GidType type = GidType::kUnknown;
  std::string netdev;  // empty: not to be seen from here
};

struct PortFacts {
  uint8_t port = 1;
  bool queried = false;  // the following four are known
  uint8_t state = IBV_PORT_NOP;
  uint8_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  uint8_t active_mtu = 0, max_mtu = 0;  // ibv_mtu
  uint16_t lid = 0;
  uint32_t megabits = 0;
  std::vector<GidFacts> gids;  // without the empty ones
};

struct DeviceFacts {
  std::string name;
  int open_errno = 0;  // 0: it could be opened
  std::vector<PortFacts> ports;
};

struct NetdevFacts {
  uint32_t mtu = 0;
  bool up = false;
  std::vector<Gid> addresses;  // IPv4 as ::ffff:a.b.c.d
};

struct HostFacts {
  absl::Status library;  // of LoadVerbs
  int list_errno = 0;    // why the library listed no devices; 0: it listed them
  std::vector<DeviceFacts> devices;
  std::vector<std::string> kernel_devices;  // as sysfs has them; the library lists fewer if a provider is missing
  bool device_files = false;                // /dev/infiniband is there
  std::map<std::string, NetdevFacts> netdevs;
  std::optional<uint64_t> memlock;  // bytes; nullopt = no limit for this process
};

struct GatherOptions {
  std::string sysfs = "/sys";
  std::string dev = "/dev";
  std::optional<std::map<std::string, std::vector<Gid>>> addresses;  // of interfaces; nullopt = this host's own
};

// library: the status of LoadVerbs; verbs may be null if it is bad.
HostFacts GatherFacts(Verbs* verbs, const absl::Status& library, const GatherOptions& options = {});

struct RailOptions {
  std::vector<std::string> devices;  // "mlx5_0" or "mlx5_0:2" (a port); empty = all that can be used
  int gid_index = -1;                // -1 = choose
  bool roce_v1 = false;              // take RoCE v1 GIDs: not routable, and peers must do the same
  uint64_t register_bytes = 0;       // how much will be registered, as far as that is known
};

enum class Severity : uint8_t { kInfo, kWarning, kError };

struct Finding {
  Severity severity = Severity::kInfo;
  std::string device;  // empty: the host
  std::string what;
  std::string mend;  // what to do
};

struct RailChoice {
  std::vector<Rail> rails;  // in the order of options.devices, else by name
  std::vector<Finding> findings;
};

RailChoice ChooseRails(const HostFacts& facts, const RailOptions& options);

}  // namespace sluice::rdma
