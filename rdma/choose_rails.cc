// Which ports to use, and what stands in the way of the others, from facts alone.
//
// For each device, in this order: can it be opened; is the port up; which GID (PickGid); is the MTU what it could be.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rdma/device.h"
#include "rdma/memory.h"

namespace sluice::rdma {
namespace {

// What RoCE's headers take of a frame of the interface, as Linux counts them.
constexpr uint32_t kRoceHeaders = 96;

uint32_t MtuBytes(uint8_t mtu) { return mtu == 0 || mtu > IBV_MTU_4096 ? 0 : 128u << mtu; }

uint8_t LargestMtu(uint32_t netdev_mtu) {
  uint8_t mtu = 0;
  while (mtu < IBV_MTU_4096 && MtuBytes(static_cast<uint8_t>(mtu + 1)) + kRoceHeaders <= netdev_mtu) ++mtu;
  return mtu;
}

bool ValidType(GidType type, uint8_t link_layer) {
  return link_layer == IBV_LINK_LAYER_INFINIBAND ? type == GidType::kInfiniBand
                                                 : type == GidType::kRoceV1 || type == GidType::kRoceV2;
}

class Chooser {
 public:
  Chooser(const HostFacts& facts, const RailOptions& options) : facts_(facts), options_(options) {}

  RailChoice Run() {
    if (!CheckHost()) return std::move(choice_);
    if (options_.devices.empty()) {
      for (const DeviceFacts& device : facts_.devices) UseDevice(device, 0);
    } else {
      std::set<std::string> seen;
      for (const std::string& name : options_.devices) {
        if (seen.insert(name).second) UseNamed(name);
      }
    }
    if (!choice_.rails.empty()) CheckMemlock();
    return std::move(choice_);
  }

 private:
  void Find(Severity severity, const std::string& device, std::string what, std::string mend) {
    choice_.findings.push_back({severity, device, std::move(what), std::move(mend)});
  }

  // False: there is nothing to choose from.
  bool CheckHost() {
    const std::string kernel = absl::StrJoin(facts_.kernel_devices, ", ");
    if (!facts_.library.ok()) {
      Find(facts_.kernel_devices.empty() ? Severity::kInfo : Severity::kError, "",
           std::string(facts_.library.message()),
           facts_.kernel_devices.empty()
               ? "install libibverbs1 and ibverbs-providers if this host has an RDMA device"
               : absl::StrCat("install libibverbs1 and ibverbs-providers: the kernel has ", kernel));
      return false;
    }
    if (!facts_.devices.empty()) return true;
    if (facts_.kernel_devices.empty()) {
      Find(Severity::kInfo, "",
           absl::StrCat("the kernel knows no RDMA device",
                        facts_.list_errno != 0 ? absl::StrCat(" (", std::strerror(facts_.list_errno), ")") : ""),
           "load the driver of the device (mlx5_ib, bnxt_re, irdma, efa, ...); to try Sluice without one: "
           "`modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`");
    } else if (!facts_.device_files) {
      Find(Severity::kError, "", absl::StrCat("the kernel has ", kernel, ", but /dev/infiniband is missing"),
           "hand it into the container (docker: --device=/dev/infiniband; Kubernetes: the RDMA device plugin), or load "
           "ib_uverbs on a host");
    } else {
      Find(Severity::kError, "",
           absl::StrCat("the kernel has ", kernel, ", but libibverbs lists no device",
                        facts_.list_errno != 0 ? absl::StrCat(" (", std::strerror(facts_.list_errno), ")") : ""),
           "install ibverbs-providers and load ib_uverbs; `ibv_devices` must list it");
    }
    return false;
  }

  // "mlx5_0" or "mlx5_0:2"
  void UseNamed(const std::string& name) {
    const size_t colon = name.find(':');
    uint32_t port = 0;
    const bool sound =
        colon == std::string::npos || (absl::SimpleAtoi(name.substr(colon + 1), &port) && port >= 1 && port <= 255);
    const std::string device_name = name.substr(0, colon);
    const auto found = std::find_if(facts_.devices.begin(), facts_.devices.end(),
                                    [&](const DeviceFacts& device) { return device.name == device_name; });
    if (!sound || found == facts_.devices.end()) {
      Find(Severity::kError, name, "is named in the configuration, but there is no such device",
           absl::StrCat(
               "name one of ",
               absl::StrJoin(facts_.devices, ", ",
                             [](std::string* out, const DeviceFacts& device) { absl::StrAppend(out, device.name); }),
               ", with :PORT if it has several"));
      return;
    }
    UseDevice(*found, static_cast<uint8_t>(port));
  }

  // only: one port; 0 = all.
  void UseDevice(const DeviceFacts& device, uint8_t only) {
    if (device.open_errno != 0) {
      const std::string why = absl::StrCat("cannot be opened: ", std::strerror(device.open_errno));
      if (device.open_errno == EACCES || device.open_errno == EPERM) {
        Find(Severity::kError, device.name, why,
             "let this user open /dev/infiniband/uverbs*: mode 0666 or its group (often rdma), and in a container the "
             "device cgroup (--device=/dev/infiniband)");
      } else if (!facts_.device_files) {
        Find(Severity::kError, device.name, absl::StrCat(why, "; /dev/infiniband is missing"),
             "hand it into the container (docker: --device=/dev/infiniband; Kubernetes: the RDMA device plugin), or "
             "load ib_uverbs on a host");
      } else {
        Find(Severity::kError, device.name, why, "see dmesg for the device; `ibv_devinfo -d` must open it");
      }
      return;
    }
    bool met = false;
    for (const PortFacts& port : device.ports) {
      if (only != 0 && port.port != only) continue;
      met = true;
      UsePort(device, port);
    }
    if (!met) {
      Find(Severity::kError, device.name, only == 0 ? "has no port" : absl::StrCat("has no port ", only),
           "name another port");
    }
  }

  void UsePort(const DeviceFacts& device, const PortFacts& port) {
    const std::string name = device.ports.size() > 1 ? absl::StrCat(device.name, ":", port.port) : device.name;
    if (!port.queried) {
      return Find(Severity::kError, name, "its port cannot be queried", "see dmesg for the device");
    }
    if (port.state != IBV_PORT_ACTIVE) {
      return Find(Severity::kWarning, name, absl::StrCat("port ", port.port, " is not active (state ", port.state, ")"),
                  port.link_layer == IBV_LINK_LAYER_INFINIBAND
                      ? "check cable and switch; in state 2 (INIT) the subnet manager is missing"
                      : "check cable and switch, and `ip link set dev ... up` for its interface");
    }
    const GidFacts* gid = options_.gid_index >= 0 ? NamedGid(name, port) : PickGid(name, port);
    if (gid == nullptr) return;
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND && port.lid == 0) {
      return Find(Severity::kWarning, name, "has no LID", "start a subnet manager (opensm) on the fabric");
    }
    Rail rail;
    rail.device = device.name;
    rail.port = port.port;
    rail.link_layer = port.link_layer;
    rail.gid_index = gid->index;
    rail.gid = gid->gid;
    rail.gid_type = gid->type;
    rail.lid = port.lid;
    rail.netdev = gid->netdev;
    rail.megabits = port.megabits;
    choice_.rails.push_back(rail);
    if (port.link_layer != IBV_LINK_LAYER_INFINIBAND) CheckMtu(name, port, *gid);
  }

  const GidFacts* NamedGid(const std::string& name, const PortFacts& port) {
    for (const GidFacts& gid : port.gids) {
      if (gid.index != options_.gid_index) continue;
      if (!ValidType(gid.type, port.link_layer)) break;
      if (port.link_layer != IBV_LINK_LAYER_INFINIBAND && IsLinkLocal(gid.gid)) {
        Find(Severity::kWarning, name, absl::StrCat("GID ", gid.index, " (", GidText(gid.gid), ") is link-local"),
             "peers behind a router will not be reached; leave rdma.gid_index at -1 to have one chosen");
      }
      return &gid;
    }
    std::string there;
    for (const GidFacts& gid : port.gids) {
      absl::StrAppend(&there, there.empty() ? "" : "; ", gid.index, " ", GidText(gid.gid), " (", GidTypeName(gid.type),
                      ")");
    }
    Find(Severity::kError, name, absl::StrCat("has no usable GID at index ", options_.gid_index),
         absl::StrCat("leave rdma.gid_index at -1 to have one chosen by its address, or name one of: ",
                      there.empty() ? "none" : there));
    return nullptr;
  }

  // Lower is better; -1: never.
  int Rank(const GidFacts& gid) const {
    if (IsLinkLocal(gid.gid)) return -1;
    const int family = IsIpv4Mapped(gid.gid) ? 0 : 1;
    const auto netdev = facts_.netdevs.find(gid.netdev);
    // An interface in another network namespace: its addresses are not to be seen, so the GID is taken at its word.
    if (netdev == facts_.netdevs.end()) return 2 + family;
    const auto& addresses = netdev->second.addresses;
    return std::find(addresses.begin(), addresses.end(), gid.gid) != addresses.end() ? family : -1;
  }

  const GidFacts* PickGid(const std::string& name, const PortFacts& port) {
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
      if (!port.gids.empty()) return &port.gids.front();
      Find(Severity::kError, name, "has no GID", "see dmesg for the device");
      return nullptr;
    }
    const GidType wanted = options_.roce_v1 ? GidType::kRoceV1 : GidType::kRoceV2;
    const GidFacts* best = nullptr;
    int best_rank = 0;
    bool of_type = false, routable = false;
    for (const GidFacts& gid : port.gids) {
      if (gid.type != wanted) continue;
      of_type = true;
      routable = routable || !IsLinkLocal(gid.gid);
      const int rank = Rank(gid);
      if (rank < 0 || (best != nullptr && rank >= best_rank)) continue;
      best = &gid;
      best_rank = rank;
    }
    if (best != nullptr) {
      if (best_rank >= 2) {
        Find(Severity::kWarning, name,
             absl::StrCat("interface ", best->netdev.empty() ? "of the GID" : best->netdev,
                          " cannot be seen from here; taking GID ", best->index, " ", GidText(best->gid),
                          " at its word"),
             "if peers are not reached, run in the network namespace of the interface (host networking), or move the "
             "device into this one: `rdma dev set ... netns`");
      }
      return best;
    }
    const std::string netdev = port.gids.empty() ? "the interface" : port.gids.front().netdev;
    if (!of_type && options_.roce_v1) {
      Find(Severity::kError, name, "has no RoCE v1 GID", "use RoCE v2, which is the default");
    } else if (!of_type && !port.gids.empty()) {
      Find(Severity::kError, name, "has RoCE v1 GIDs only, which are not routable",
           "switch it to RoCE v2 (`cma_roce_mode`, or the vendor's tool), or name such a GID in rdma.gid_index on all "
           "members");
    } else if (!of_type || !routable) {
      Find(Severity::kError, name, of_type ? "has only link-local GIDs" : "has no GID",
           absl::StrCat("give ", netdev, " an IPv4 address: `ip address add 10.0.0.1/24 dev ", netdev,
                        "`; its GID then appears by itself"));
    } else {
      Find(Severity::kError, name, absl::StrCat("no GID belongs to an address that ", netdev, " has now"),
           absl::StrCat("check `ip address show ", netdev, "` against `rdma link` and show_gids"));
    }
    return nullptr;
  }

  void CheckMtu(const std::string& name, const PortFacts& port, const GidFacts& gid) {
    const auto netdev = facts_.netdevs.find(gid.netdev);
    if (netdev == facts_.netdevs.end() || netdev->second.mtu == 0) return;
    const uint8_t possible = std::min(port.max_mtu, LargestMtu(netdev->second.mtu));
    if (port.active_mtu < possible) {
      Find(Severity::kWarning, name,
           absl::StrCat("active MTU is ", MtuBytes(port.active_mtu), " though ", gid.netdev, " with MTU ",
                        netdev->second.mtu, " could carry ", MtuBytes(possible)),
           absl::StrCat("set ", gid.netdev, " down and up, or its MTU again, so that the device takes it over"));
    } else if (port.active_mtu < port.max_mtu) {
      Find(Severity::kInfo, name,
           absl::StrCat("active MTU is ", MtuBytes(port.active_mtu), " of ", MtuBytes(port.max_mtu), ", as ",
                        gid.netdev, " has MTU ", netdev->second.mtu),
           absl::StrCat("for more throughput: `ip link set dev ", gid.netdev, " mtu ",
                        MtuBytes(port.max_mtu) >= 4096 ? 4200 : MtuBytes(port.max_mtu) + kRoceHeaders,
                        "` or more, here, on the peers and the switches between"));
    }
  }

  void CheckMemlock() {
    if (!facts_.memlock.has_value()) return;
    const uint64_t limit = *facts_.memlock;
    const uint64_t each = options_.register_bytes;
    // Every device pins the same memory once more.
    const uint64_t all = each > UINT64_MAX / choice_.rails.size() ? UINT64_MAX : each * choice_.rails.size();
    if (each == 0 ? limit >= (uint64_t{1} << 30) : limit >= all) return;
    Find(each == 0 ? Severity::kWarning : Severity::kError, "",
         absl::StrCat("the memlock limit is ", limit, " bytes",
                      each == 0 ? "" : absl::StrCat(", and ", all, " will be registered")),
         MemlockMend());
  }

  const HostFacts& facts_;
  const RailOptions& options_;
  RailChoice choice_;
};

}  // namespace

RailChoice ChooseRails(const HostFacts& facts, const RailOptions& options) { return Chooser(facts, options).Run(); }

}  // namespace sluice::rdma
