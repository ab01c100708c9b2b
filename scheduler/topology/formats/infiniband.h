// What both outputs of ibnetdiscover say: ports, what they are cabled with, and the description that each node carries.
//
// 1. Every cable is listed from both of its ends: it counts once, and the two must agree.
// 2. "Aggregation Node" is the inside of a switch that sums (SHARP), no host: dropped, and counted.
// 3. A host's adapter is described as "HOST DEVICE": NIC "HOST/DEVICE" in host HOST, whose other ports are ":2" and so
// on. One
//    that has its vendor's name instead is a host of its own, named by its GUID, with a warning.
// 4. A switch is named as its operators do where that name is one switch's only, else by its GUID.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/topology/formats/reading.h"

namespace sluice::topology::infiniband {

enum class Kind : uint8_t { kSwitch, kAdapter, kRouter };

struct End {
  Kind kind = Kind::kSwitch;
  std::string id;           // "S-2c5eab0300b87b40": the same wherever the node or port is named
  std::string description;  // "" = not said here
  uint32_t port = 0;
};

// "4x" and "NDR" to bytes/s of payload bits, each way. 0: the port is down ("???"); negative: no such width or speed.
double BytesPerSecond(absl::string_view width, absl::string_view speed);

class Fabric {
 public:
  explicit Fabric(Reading* reading) : reading_(reading) {}

  // A node that the text describes, whether anything is cabled with it or not.
  absl::Status AddNode(size_t line, const End& end);
  // `from` is the node whose ports are listed.
  absl::Status AddCable(size_t line, const End& from, const End& to, double bytes_per_second);
  void CountDownPort() { ++down_ports_; }

  // Adds all to the graph.
  absl::Status Finish();

 private:
  struct Node {
    size_t line = 0;
    Kind kind = Kind::kSwitch;
    std::string id, description;
    bool aggregation = false;
    uint32_t vertex = kNone;  // a switch
    uint32_t host = kNone;    // an adapter's
    std::string nic;          // an adapter's name in its host
  };
  struct Port {
    uint64_t peer = 0;  // key
    size_t line = 0;
    double bytes_per_second = 0;
    bool listed = false;  // from this side
  };

  absl::StatusOr<uint32_t> NodeOf(size_t line, const End& end);
  absl::Status NameSwitches();
  absl::Status NameAdapters();
  absl::StatusOr<uint32_t> VertexOf(const Node& node, uint32_t port);
  std::string Text(uint64_t key) const;  // "port 3 of S-2c…"
  static uint64_t Key(uint32_t node, uint32_t port) { return (uint64_t{node} << 32) | port; }

  Reading* const reading_;
  std::vector<Node> nodes_;
  absl::flat_hash_map<std::string, uint32_t> by_id_;
  absl::flat_hash_map<uint64_t, Port> ports_;
  std::vector<std::pair<uint64_t, uint64_t>> cables_;  // once each, in order of the text
  size_t down_ports_ = 0;
};

}  // namespace sluice::topology::infiniband
