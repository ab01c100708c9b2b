#include "scheduler/topology/generate.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/topology/complete.h"

namespace sluice::topology {
namespace {

using Row = std::vector<uint32_t>;   // vertices

class Builder {
 public:
  explicit Builder(const HostSpec& host) : host_(host) {}

  // `size` hosts or switches: more than a graph holds are refused before any is made.
  static absl::Status CheckSize(double vertices, double links) {
    if (!(vertices >= 1) || !(links >= 0)) return absl::InvalidArgumentError("a fabric without hosts");
    if (vertices > static_cast<double>(kMaxVertices) || links > static_cast<double>(kMaxLinks))
      return absl::ResourceExhaustedError(absl::StrCat("a fabric of ", vertices, " hosts and switches and ", links,
                                                       " links; at most ", kMaxVertices, " and ", kMaxLinks));
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Switch(const std::string& name) { return graph_.Add(VertexKind::kSwitch, name); }

  // The next host, linked with none yet.
  absl::StatusOr<uint32_t> Host() {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t host, graph_.Add(VertexKind::kHost, absl::StrCat("n", hosts_++)));
    graph_.vertex(host).slots = host_.slots;
    return host;
  }

  absl::Status HostsOn(uint32_t leaf, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t host, Host());
      SLUICE_RETURN_IF_ERROR(Link(host, leaf, host_.link_bytes_per_second));
    }
    return absl::OkStatus();
  }

  absl::Status Link(uint32_t a, uint32_t b, double bytes_per_second, Medium medium = Medium::kEthernet) {
    if (!(bytes_per_second > 0)) return absl::InvalidArgumentError("a link without bandwidth");
    return graph_.Connect(a, b, medium, bytes_per_second, host_.link_latency_s).status();
  }

  absl::StatusOr<uint32_t> Card(uint32_t host, uint32_t rail) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t card,
                            graph_.Add(VertexKind::kNic, absl::StrCat(graph_.vertex(host).name, "/nic", rail), host));
    SLUICE_RETURN_IF_ERROR(Link(host, card, host_.link_bytes_per_second, Medium::kPcie));
    return card;
  }

  absl::StatusOr<Row> Switches(const std::string& prefix, uint32_t count) {
    Row row;
    for (uint32_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, Switch(absl::StrCat(prefix, i)));
      row.push_back(vertex);
    }
    return row;
  }

  Graph Take() {
    Complete(&graph_, {.host_link_bytes_per_second = host_.link_bytes_per_second, .oversubscription = 1});
    return std::move(graph_);
  }

 private:
  const HostSpec host_;
  Graph graph_;
  uint32_t hosts_ = 0;
};

absl::Status CheckRatio(double ratio) {
  if (ratio > 0 && std::isfinite(ratio)) return absl::OkStatus();
  return absl::InvalidArgumentError("a ratio of bandwidths must be above 0");
}

}  // namespace

absl::StatusOr<Graph> FatTree(const FatTreeSpec& spec) {
  const uint32_t half = spec.k / 2;
  if (spec.k < 2 || spec.k % 2 != 0) return absl::InvalidArgumentError("a fat tree's k must be even, and 2 or more");
  const double cube = std::pow(spec.k, 3.0);
  SLUICE_RETURN_IF_ERROR(Builder::CheckSize(cube / 4 + 1.25 * spec.k * spec.k, 0.75 * cube));
  Builder build(spec.host);
  SLUICE_ASSIGN_OR_RETURN(const Row cores, build.Switches("c", half * half));
  for (uint32_t pod = 0; pod < spec.k; ++pod) {
    SLUICE_ASSIGN_OR_RETURN(const Row upper, build.Switches(absl::StrCat("p", pod, "a"), half));
    for (uint32_t a = 0; a < half; ++a)
      for (uint32_t c = 0; c < half; ++c)
        SLUICE_RETURN_IF_ERROR(build.Link(upper[a], cores[a * half + c], spec.host.link_bytes_per_second));
    SLUICE_ASSIGN_OR_RETURN(const Row edges, build.Switches(absl::StrCat("p", pod, "e"), half));
    for (const uint32_t edge : edges) {
      for (const uint32_t a : upper) SLUICE_RETURN_IF_ERROR(build.Link(edge, a, spec.host.link_bytes_per_second));
      SLUICE_RETURN_IF_ERROR(build.HostsOn(edge, half));
    }
  }
  return build.Take();
}

absl::StatusOr<Graph> SpineLeaf(const SpineLeafSpec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckRatio(spec.ratio));
  const double hosts = double{1} * spec.leaves * spec.hosts_per_leaf;
  SLUICE_RETURN_IF_ERROR(Builder::CheckSize(hosts + spec.leaves + spec.spines, hosts + double{1} * spec.leaves * spec.spines));
  if (hosts == 0 || spec.spines == 0) return absl::InvalidArgumentError("a fabric without hosts or spines");
  Builder build(spec.host);
  const double up = spec.hosts_per_leaf * spec.host.link_bytes_per_second / spec.ratio / spec.spines;
  SLUICE_ASSIGN_OR_RETURN(const Row spines, build.Switches("spine", spec.spines));
  for (uint32_t l = 0; l < spec.leaves; ++l) {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t leaf, build.Switch(absl::StrCat("leaf", l)));
    for (const uint32_t spine : spines) SLUICE_RETURN_IF_ERROR(build.Link(leaf, spine, up));
    SLUICE_RETURN_IF_ERROR(build.HostsOn(leaf, spec.hosts_per_leaf));
  }
  return build.Take();
}

absl::StatusOr<Graph> Rails(const RailsSpec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckRatio(spec.ratio));
  const double hosts = double{1} * spec.groups * spec.hosts_per_group, leaves = double{1} * spec.groups * spec.rails;
  SLUICE_RETURN_IF_ERROR(Builder::CheckSize(hosts * (1 + spec.rails) + leaves + spec.spines,
                                            2 * hosts * spec.rails + leaves * spec.spines));
  if (hosts == 0 || spec.rails == 0 || (spec.spines == 0 && spec.groups > 1))
    return absl::InvalidArgumentError("a fabric without hosts or rails, or groups that nothing joins");
  Builder build(spec.host);
  SLUICE_ASSIGN_OR_RETURN(const Row spines, build.Switches("spine", spec.spines));
  for (uint32_t g = 0; g < spec.groups; ++g) {
    SLUICE_ASSIGN_OR_RETURN(const Row rails, build.Switches(absl::StrCat("g", g, "r"), spec.rails));
    for (const uint32_t leaf : rails)
      for (const uint32_t spine : spines)
        SLUICE_RETURN_IF_ERROR(build.Link(
            leaf, spine, spec.hosts_per_group * spec.host.link_bytes_per_second / spec.ratio / spec.spines));
    for (uint32_t i = 0; i < spec.hosts_per_group; ++i) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t host, build.Host());
      for (uint32_t r = 0; r < spec.rails; ++r) {
        SLUICE_ASSIGN_OR_RETURN(const uint32_t card, build.Card(host, r));
        SLUICE_RETURN_IF_ERROR(build.Link(card, rails[r], spec.host.link_bytes_per_second));
      }
    }
  }
  return build.Take();
}

absl::StatusOr<Graph> Zones(const ZonesSpec& spec) {
  SLUICE_RETURN_IF_ERROR(CheckRatio(spec.leaf_ratio));
  SLUICE_RETURN_IF_ERROR(CheckRatio(spec.zone_ratio));
  const double leaves = double{1} * spec.zones * spec.leaves_per_zone, hosts = leaves * spec.hosts_per_leaf;
  const double spines = double{1} * spec.zones * spec.spines_per_zone;
  SLUICE_RETURN_IF_ERROR(Builder::CheckSize(hosts + leaves + spines + spec.cores,
                                            hosts + leaves * spec.spines_per_zone + spines * spec.cores));
  if (hosts == 0 || spines == 0 || spec.cores == 0) return absl::InvalidArgumentError("a fabric without hosts, spines or cores");
  Builder build(spec.host);
  const double to_spine = spec.hosts_per_leaf * spec.host.link_bytes_per_second / spec.leaf_ratio / spec.spines_per_zone;
  const double to_core = to_spine * spec.leaves_per_zone / spec.zone_ratio / spec.cores;
  SLUICE_ASSIGN_OR_RETURN(const Row cores, build.Switches("c", spec.cores));
  for (uint32_t z = 0; z < spec.zones; ++z) {
    SLUICE_ASSIGN_OR_RETURN(const Row upper, build.Switches(absl::StrCat("z", z, "s"), spec.spines_per_zone));
    for (const uint32_t spine : upper)
      for (const uint32_t core : cores) SLUICE_RETURN_IF_ERROR(build.Link(spine, core, to_core));
    for (uint32_t l = 0; l < spec.leaves_per_zone; ++l) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t leaf, build.Switch(absl::StrCat("z", z, "l", l)));
      for (const uint32_t spine : upper) SLUICE_RETURN_IF_ERROR(build.Link(leaf, spine, to_spine));
      SLUICE_RETURN_IF_ERROR(build.HostsOn(leaf, spec.hosts_per_leaf));
    }
  }
  return build.Take();
}

absl::StatusOr<Graph> Torus(const TorusSpec& spec) {
  double points = 1;
  for (const uint32_t dim : spec.dims) points *= dim;
  const double hosts = points * spec.hosts_per_switch;
  SLUICE_RETURN_IF_ERROR(Builder::CheckSize(points + hosts, hosts + points * static_cast<double>(spec.dims.size())));
  if (hosts == 0) return absl::InvalidArgumentError("a torus without hosts");
  Builder build(spec.host);
  const double ring = spec.ring_bytes_per_second > 0 ? spec.ring_bytes_per_second : spec.host.link_bytes_per_second;
  Row at;
  for (uint32_t p = 0; p < points; ++p) {
    std::string name = "t";
    uint32_t rest = p;
    for (const uint32_t dim : spec.dims) {
      absl::StrAppend(&name, name.size() > 1 ? "-" : "", rest % dim);
      rest /= dim;
    }
    SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, build.Switch(name));
    SLUICE_RETURN_IF_ERROR(build.HostsOn(vertex, spec.hosts_per_switch));
    at.push_back(vertex);
  }
  uint32_t stride = 1;
  for (const uint32_t dim : spec.dims) {
    for (uint32_t p = 0; p < points; ++p) {
      const uint32_t x = p / stride % dim, next = x + 1 == dim ? p - x * stride : p + stride;
      if (dim > 2 || (dim == 2 && x == 0)) SLUICE_RETURN_IF_ERROR(build.Link(at[p], at[next], ring));
    }
    stride *= dim;
  }
  return build.Take();
}

absl::StatusOr<Graph> Hypercube(uint32_t dims, uint32_t hosts_per_switch, const HostSpec& host) {
  if (dims > 22) return absl::ResourceExhaustedError(absl::StrCat("a hypercube of ", dims, " dimensions; at most 22"));
  return Torus({.dims = std::vector<uint32_t>(dims, 2), .hosts_per_switch = hosts_per_switch, .host = host});
}

absl::StatusOr<Graph> Dragonfly(const DragonflySpec& spec) {
  const double ports = double{1} * spec.routers * spec.global, groups = ports + 1, routers = groups * spec.routers;
  SLUICE_RETURN_IF_ERROR(Builder::CheckSize(routers * (1 + spec.hosts_per_router),
                                            routers * (spec.hosts_per_router + spec.routers / 2.0 + spec.global / 2.0)));
  if (spec.routers == 0 || spec.hosts_per_router == 0 || spec.global == 0)
    return absl::InvalidArgumentError("a dragonfly without routers, hosts or global links");
  Builder build(spec.host);
  const auto speed = [&](double told) { return told > 0 ? told : spec.host.link_bytes_per_second; };
  std::vector<Row> at;
  for (uint32_t g = 0; g < groups; ++g) {
    SLUICE_ASSIGN_OR_RETURN(Row row, build.Switches(absl::StrCat("g", g, "r"), spec.routers));
    for (uint32_t r = 0; r < spec.routers; ++r) {
      for (uint32_t other = 0; other < r; ++other)
        SLUICE_RETURN_IF_ERROR(build.Link(row[other], row[r], speed(spec.group_bytes_per_second)));
      SLUICE_RETURN_IF_ERROR(build.HostsOn(row[r], spec.hosts_per_router));
    }
    at.push_back(std::move(row));
  }
  // Port p of group g goes to the group p + 1 further on, whose port ports - 1 - p comes back.
  for (uint32_t g = 0; g < groups; ++g)
    for (uint32_t p = 0; p < ports; ++p) {
      const uint32_t to = (g + p + 1) % static_cast<uint32_t>(groups), back = static_cast<uint32_t>(ports) - 1 - p;
      if (g < to)
        SLUICE_RETURN_IF_ERROR(
            build.Link(at[g][p / spec.global], at[to][back / spec.global], speed(spec.global_bytes_per_second)));
    }
  return build.Take();
}

}  // namespace sluice::topology
