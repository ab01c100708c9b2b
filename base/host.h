// What this process is called when it speaks of itself to others.
#pragma once

#include <string>

#include "proto/config.pb.h"

namespace sluice {

std::string HostName();

// "host:pid", for messages to people and as a member's id.
std::string HostAndPid();

// node.host, or the system's name: where this process runs, by the name that the topology has for it.
std::string TopologyHost(const proto::NodeConfig& node);

// node.advertise; without it the address that is listened on, or the host's name if that is a wildcard.
std::string AdvertisedHost(const proto::NodeConfig& node);

}  // namespace sluice
