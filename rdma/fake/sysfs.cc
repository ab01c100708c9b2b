// The files that Linux shows of such devices.
#include <filesystem>
#include <fstream>

#include "rdma/fake/objects.h"

namespace sluice::rdma::fake {
namespace {

void Write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text << "\n";
}

}  // namespace

void Host::WriteSysfs(const std::string& root) const {
  std::lock_guard lock(state_->mutex);
  const std::filesystem::path top(root);
  for (const auto& device : state_->devices) {
    if (device->host != this) continue;
    const DeviceOptions& options = device->options;
    const auto net = top / "class/net" / options.netdev;
    if (!options.infiniband) {
      Write(net / "mtu", std::to_string(options.netdev_mtu));
      Write(net / "operstate", "up");
    }
    for (const auto& port : device->port_list) {
      const auto folder = top / "class/infiniband" / options.name / "ports" / std::to_string(port->number);
      Write(folder / "rate", "100 Gb/sec (4X EDR)");
      for (size_t i = 0; i < port->gids.size(); ++i) {
        const bool version2 = port->types[i] == GidType::kRoceV2;
        Write(folder / "gid_attrs/types" / std::to_string(i), version2 ? "RoCE v2" : "IB/RoCE v1");
        if (!options.infiniband) Write(folder / "gid_attrs/ndevs" / std::to_string(i), options.netdev);
      }
      Write(folder / "counters/port_xmit_data", "0");
      Write(folder / "hw_counters/out_of_sequence", "0");
    }
  }
}

std::map<std::string, std::vector<Gid>> Host::Addresses() const {
  std::lock_guard lock(state_->mutex);
  std::map<std::string, std::vector<Gid>> addresses;
  for (const auto& device : state_->devices) {
    if (device->host != this || device->options.infiniband) continue;
    for (const auto& port : device->port_list) addresses[device->options.netdev].push_back(MappedGid(port->address));
  }
  return addresses;
}

}  // namespace sluice::rdma::fake
