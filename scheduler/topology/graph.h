// The network as one weighted graph: hosts, switches, and what is inside hosts.
//
// Names are what joins files: a host is named as its operators name it ("node17"), what is inside it by that name and its
// own ("node17/gpu0", "node17/mlx5_3"), a switch by its name in the file that knows it. A graph need not be connected:
// fabrics that no file joins stay apart.
//
// Not thread-safe; const calls may run side by side after Finish().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice::topology {

inline constexpr uint32_t kNone = ~uint32_t{0};
inline constexpr size_t kMaxVertices = size_t{1} << 22;
inline constexpr size_t kMaxLinks = size_t{1} << 24;
inline constexpr size_t kMaxVertexNameBytes = 255;

enum class VertexKind : uint8_t {
  kHost,     // its memory: where the bytes of a process begin and end
  kSwitch,   // of any network; also a rack, block or zone that a file names, which is treated as one
  kGpu,
  kNic,      // a port of a network card: a rail
  kCpu,      // a NUMA node
  kBridge,   // a PCIe switch or root port
};

enum class Medium : uint8_t {
  kUnknown,      // between hosts and switches: the file did not say
  kEthernet,
  kInfiniband,
  kNvlink,
  kXgmi,
  kPcie,
  kSocket,       // between the processors of one host
};

// Where a number comes from; a later one is better.
enum class Source : uint8_t { kAssumed, kFile, kMeasured };

struct Vertex {
  VertexKind kind = VertexKind::kHost;
  std::string name;
  std::string note;            // for people: a switch's description, a GPU's model
  uint32_t host = kNone;       // the host that it is inside of; a host: itself; kNone: a switch
  uint32_t slots = 0;          // host: ranks that may run there; 0 = not known (Complete makes it its GPUs, or 1)
};

// Full duplex: each direction carries bytes_per_second.
struct Link {
  uint32_t a = 0, b = 0;
  Medium medium = Medium::kUnknown;
  uint32_t cables = 1;
  double bytes_per_second = 0;   // of all cables together; 0 = not known yet
  double latency_s = 0;          // one way; 0 = not known yet
  Source source = Source::kAssumed;   // of bytes_per_second
};

class Graph {
 public:
  // The vertex of that name, new or there already. INVALID_ARGUMENT: an empty or too long name, or one of another kind or
  // host; RESOURCE_EXHAUSTED: too many. What is inside a host names its vertex.
  absl::StatusOr<uint32_t> Add(VertexKind kind, absl::string_view name, uint32_t host = kNone);
  uint32_t Find(absl::string_view name) const;   // kNone: there is none

  // Another cable of `medium` between a and b: a new link, or one more cable (and its bandwidth) of the one that is there.
  // 0 = not known. INVALID_ARGUMENT: a == b, or not finite or negative; RESOURCE_EXHAUSTED: too many.
  absl::StatusOr<uint32_t> Connect(uint32_t a, uint32_t b, Medium medium, double bytes_per_second = 0,
                                   double latency_s = 0, uint32_t cables = 1);
  uint32_t FindLink(uint32_t a, uint32_t b, Medium medium) const;   // in either direction; kNone: there is none

  // Takes over all of `other`, whose vertices of known names are the same as here. A link that both have keeps the better
  // source's numbers, of equals the larger number of cables and what belongs to it; numbers that one lacks come from the
  // other. An error leaves this graph unusable.
  absl::Status Merge(const Graph& other);

  // Builds the lists of Incident(). To be called again after changes of structure.
  void Finish();
  struct Half {
    uint32_t link = 0, to = 0;
  };
  std::span<const Half> Incident(uint32_t vertex) const;

  const std::vector<Vertex>& vertices() const { return vertices_; }
  const std::vector<Link>& links() const { return links_; }
  const Vertex& vertex(uint32_t v) const { return vertices_[v]; }
  Vertex& vertex(uint32_t v) { return vertices_[v]; }         // not its kind, name, host
  const Link& link(uint32_t l) const { return links_[l]; }
  Link& link(uint32_t l) { return links_[l]; }                // not its ends and medium
  std::vector<uint32_t> Hosts() const;                        // ascending

 private:
  struct Pair {
    uint32_t a, b;
    Medium medium;
    bool operator==(const Pair&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Pair& p) {
      return H::combine(std::move(h), p.a, p.b, p.medium);
    }
  };
  static Pair Key(uint32_t a, uint32_t b, Medium medium) { return {a < b ? a : b, a < b ? b : a, medium}; }

  std::vector<Vertex> vertices_;
  std::vector<Link> links_;
  absl::flat_hash_map<std::string, uint32_t> by_name_;
  absl::flat_hash_map<Pair, uint32_t> by_ends_;
  std::vector<uint32_t> first_;   // of each vertex in halves_; one more at the end
  std::vector<Half> halves_;
};

absl::string_view KindName(VertexKind kind);       // "host"
absl::string_view MediumName(Medium medium);       // "ethernet"
absl::string_view SourceName(Source source);       // "assumed"

}  // namespace sluice::topology
