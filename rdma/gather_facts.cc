// Facts of devices from the verbs library, sysfs and the network interfaces. What cannot be read is left out.
#include <ifaddrs.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rdma/device.h"
#include "rdma/memory.h"

namespace sluice::rdma {
namespace {

constexpr int kMaxGids = 1024;  // tables are a few hundred long at most

// One line; empty if there is none (entries of empty GIDs give EINVAL).
std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

bool Exists(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0;
}

// The kernel does not hold the memlock limit against such a process.
bool MayLockMemory() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  return syscall(SYS_capget, &header, data) == 0 && (data[0].effective >> CAP_IPC_LOCK & 1) != 0;
}

std::vector<std::string> Entries(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::map<std::string, std::vector<Gid>> HostAddresses() {
  std::map<std::string, std::vector<Gid>> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    Gid gid{};
    if (entry->ifa_addr->sa_family == AF_INET) {
      gid[10] = gid[11] = 0xff;
      std::memcpy(gid.data() + 12, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, 4);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(gid.data(), &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    addresses[entry->ifa_name].push_back(gid);
  }
  freeifaddrs(list);
  return addresses;
}

// "IB/RoCE v1" is what the kernel says of InfiniBand and RoCE v1 alike.
GidType TypeOf(const std::string& text, uint8_t link_layer) {
  if (text == "RoCE v2") return GidType::kRoceV2;
  if (link_layer == IBV_LINK_LAYER_INFINIBAND) return GidType::kInfiniBand;
  return absl::StartsWith(text, "IB/RoCE") || text == "RoCE v1" ? GidType::kRoceV1 : GidType::kUnknown;
}

// "100 Gb/sec (4X EDR)"
uint32_t MegabitsOf(const std::string& text) {
  double gigabits = 0;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if (words.empty() || !absl::SimpleAtod(words[0], &gigabits) || !(gigabits >= 0 && gigabits < 1e6)) return 0;
  return static_cast<uint32_t>(gigabits * 1000);
}

PortFacts ReadPort(Verbs* verbs, ibv_context* context, uint8_t number, const std::string& folder) {
  PortFacts port;
  port.port = number;
  ibv_port_attr attributes{};
  if (verbs->QueryPort(context, number, &attributes) != 0) return port;
  port.queried = true;
  port.state = static_cast<uint8_t>(attributes.state);
  port.link_layer = attributes.link_layer;
  if (port.link_layer == IBV_LINK_LAYER_UNSPECIFIED) port.link_layer = IBV_LINK_LAYER_INFINIBAND;  // as libibverbs does
  port.active_mtu = static_cast<uint8_t>(attributes.active_mtu);
  port.max_mtu = static_cast<uint8_t>(attributes.max_mtu);
  port.lid = attributes.lid;
  port.megabits = MegabitsOf(ReadLine(folder + "/rate"));
  for (int i = 0; i < std::min(attributes.gid_tbl_len, kMaxGids); ++i) {
    ibv_gid raw{};
    if (verbs->QueryGid(context, number, i, &raw) != 0) continue;
    GidFacts gid;
    gid.index = i;
    std::memcpy(gid.gid.data(), raw.raw, gid.gid.size());
    if (IsZero(gid.gid)) continue;
    gid.type = TypeOf(ReadLine(absl::StrCat(folder, "/gid_attrs/types/", i)), port.link_layer);
    gid.netdev = ReadLine(absl::StrCat(folder, "/gid_attrs/ndevs/", i));
    port.gids.push_back(std::move(gid));
  }
  return port;
}

DeviceFacts ReadDevice(Verbs* verbs, ibv_device* device, const std::string& sysfs) {
  DeviceFacts facts;
  facts.name = verbs->GetDeviceName(device);
  ibv_context* context = verbs->OpenDevice(device);
  if (context == nullptr) {
    facts.open_errno = errno != 0 ? errno : EIO;
    return facts;
  }
  ibv_device_attr attributes{};
  if (int failed = verbs->QueryDevice(context, &attributes); failed != 0) {
    facts.open_errno = failed;
  } else {
    for (uint8_t port = 1; port <= attributes.phys_port_cnt && port != 0; ++port) {
      const std::string folder = absl::StrCat(sysfs, "/class/infiniband/", facts.name, "/ports/", port);
      facts.ports.push_back(ReadPort(verbs, context, port, folder));
    }
  }
  verbs->CloseDevice(context);
  return facts;
}

}  // namespace

HostFacts GatherFacts(Verbs* verbs, const absl::Status& library, const GatherOptions& options) {
  HostFacts facts;
  facts.library = library;
  if (!MayLockMemory()) facts.memlock = MemlockLimit();
  facts.device_files = Exists(options.dev + "/infiniband");
  facts.kernel_devices = Entries(options.sysfs + "/class/infiniband");

  if (verbs != nullptr) {
    int count = 0;
    errno = 0;
    ibv_device** list = verbs->GetDeviceList(&count);
    if (list == nullptr) {
      facts.list_errno = errno != 0 ? errno : EIO;
    } else {
      for (int i = 0; i < count; ++i) facts.devices.push_back(ReadDevice(verbs, list[i], options.sysfs));
      verbs->FreeDeviceList(list);
    }
    std::sort(facts.devices.begin(), facts.devices.end(), [](auto& a, auto& b) { return a.name < b.name; });
  }

  const auto addresses = options.addresses.has_value() ? *options.addresses : HostAddresses();
  std::set<std::string> names;
  for (const DeviceFacts& device : facts.devices) {
    for (const PortFacts& port : device.ports) {
      for (const GidFacts& gid : port.gids) {
        if (!gid.netdev.empty()) names.insert(gid.netdev);
      }
    }
  }
  for (const std::string& name : names) {
    const std::string folder = absl::StrCat(options.sysfs, "/class/net/", name);
    const auto found = addresses.find(name);
    if (found == addresses.end() && !Exists(folder)) continue;  // it lives in another network namespace
    NetdevFacts& netdev = facts.netdevs[name];
    if (found != addresses.end()) netdev.addresses = found->second;
    netdev.up = ReadLine(folder + "/operstate") != "down";
    if (!absl::SimpleAtoi(ReadLine(folder + "/mtu"), &netdev.mtu)) netdev.mtu = 0;
  }
  return facts;
}

}  // namespace sluice::rdma
