#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/slurm.h"

namespace sluice::topology::slurm {
namespace {

constexpr uint64_t kMaxPlaces = uint64_t{1} << 18;  // of one torus

uint64_t Volume(const Torus::Dims& dims) { return uint64_t{dims.x} * dims.y * dims.z; }

// Which node stands where; "" = none. A name that is given twice anywhere is refused.
class Places {
 public:
  explicit Places(Reading* reading) : reading_(reading) {}

  absl::Status Take(size_t line, const std::string& node, const std::string& where) {
    const auto [known, is_new] = where_.emplace(node, where);
    if (is_new) return absl::OkStatus();
    return reading_->Refuse(
        line, absl::StrCat("node \"", node, "\" stands in \"", known->second, "\" and in \"", where, "\""),
        "a node has one place");
  }

 private:
  Reading* const reading_;
  absl::flat_hash_map<std::string, std::string> where_;
};

absl::Status AddRing(const Group& ring, Places* places, Reading* reading) {
  if (ring.nodes.empty()) return reading->Refuse(ring.line, absl::StrCat("ring \"", ring.name, "\" has no nodes"));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, reading->Names(ring.line, ring.nodes));
  std::vector<uint32_t> switches;
  for (size_t i = 0; i < nodes.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(places->Take(ring.line, nodes[i], ring.name));
    SLUICE_ASSIGN_OR_RETURN(const uint32_t host, reading->Add(ring.line, VertexKind::kHost, nodes[i]));
    SLUICE_ASSIGN_OR_RETURN(const uint32_t own,
                            reading->Add(ring.line, VertexKind::kSwitch, absl::StrCat(ring.name, ".", i)));
    SLUICE_RETURN_IF_ERROR(reading->Connect(ring.line, host, own, Medium::kUnknown));
    switches.push_back(own);
  }
  const size_t n = switches.size();
  for (size_t i = 0; i < n; ++i) {
    if (i + 1 == n && n <= 2) break;  // of two, one link; of one, none
    SLUICE_RETURN_IF_ERROR(reading->Connect(ring.line, switches[i], switches[(i + 1) % n], Medium::kUnknown));
  }
  return absl::OkStatus();
}

// The nodes of a torus by place, counted along x, then y, then z.
absl::StatusOr<std::vector<std::string>> NodesOf(const Torus& torus, Reading* reading) {
  const auto refuse = [&](size_t line, absl::string_view what) {
    return reading->Refuse(line, absl::StrCat("torus \"", torus.name, "\": ", what));
  };
  if (torus.dims.x == 0 || torus.dims.y == 0 || torus.dims.z == 0)
    return refuse(torus.line, "dims must have x, y and z above 0");
  if (Volume(torus.dims) > kMaxPlaces) return refuse(torus.line, absl::StrCat("more than ", kMaxPlaces, " places"));
  if (torus.nodes.empty() == torus.regions.empty()) return refuse(torus.line, "it must have either nodes or regions");
  if (!torus.nodes.empty()) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<std::string> nodes, reading->Names(torus.line, torus.nodes));
    if (nodes.size() != Volume(torus.dims))
      return refuse(torus.line, absl::StrCat(nodes.size(), " nodes for ", torus.dims.x, " x ", torus.dims.y, " x ",
                                             torus.dims.z, " places"));
    return nodes;
  }
  std::vector<std::string> all(Volume(torus.dims));
  for (const Torus::Region& region : torus.regions) {
    const Torus::Dims &at = region.anchor, &size = region.dims;
    if (uint64_t{at.x} + size.x > torus.dims.x || uint64_t{at.y} + size.y > torus.dims.y ||
        uint64_t{at.z} + size.z > torus.dims.z)
      return refuse(region.line, "a region reaches out of it");
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, reading->Names(region.line, region.nodes));
    if (nodes.size() != Volume(size))
      return refuse(region.line, absl::StrCat(nodes.size(), " nodes for a region of ", Volume(size)));
    for (size_t i = 0; i < nodes.size(); ++i) {
      const uint64_t x = at.x + i % size.x, y = at.y + i / size.x % size.y, z = at.z + i / size.x / size.y;
      std::string& place = all[x + (y + z * torus.dims.y) * torus.dims.x];
      if (!place.empty()) return refuse(region.line, absl::StrCat("two regions hold place ", x, ", ", y, ", ", z));
      place = nodes[i];
    }
  }
  return all;
}

absl::Status AddTorus(const Torus& torus, Places* places, Reading* reading) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, NodesOf(torus, reading));
  std::vector<uint32_t> switches;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const size_t x = i % torus.dims.x, y = i / torus.dims.x % torus.dims.y, z = i / torus.dims.x / torus.dims.y;
    SLUICE_ASSIGN_OR_RETURN(const uint32_t own, reading->Add(torus.line, VertexKind::kSwitch,
                                                             absl::StrCat(torus.name, ".", x, ".", y, ".", z)));
    switches.push_back(own);
    if (nodes[i].empty()) continue;
    SLUICE_RETURN_IF_ERROR(places->Take(torus.line, nodes[i], torus.name));
    SLUICE_ASSIGN_OR_RETURN(const uint32_t host, reading->Add(torus.line, VertexKind::kHost, nodes[i]));
    SLUICE_RETURN_IF_ERROR(reading->Connect(torus.line, host, own, Medium::kUnknown));
  }
  size_t stride = 1;
  for (const size_t size : {size_t{torus.dims.x}, size_t{torus.dims.y}, size_t{torus.dims.z}}) {
    for (size_t i = 0; i < switches.size(); ++i) {
      const size_t at = i / stride % size;
      if (at + 1 == size && size <= 2) continue;  // of two, one link; of one, none
      const size_t next = at + 1 == size ? i - at * stride : i + stride;
      SLUICE_RETURN_IF_ERROR(reading->Connect(torus.line, switches[i], switches[next], Medium::kUnknown));
    }
    stride *= size;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddRings(const std::vector<Group>& rings, Reading* reading) {
  Places places(reading);
  absl::flat_hash_map<std::string, size_t> lines;
  for (const Group& ring : rings) {
    if (!lines.emplace(ring.name, ring.line).second)
      return reading->Refuse(ring.line,
                             absl::StrCat("ring \"", ring.name, "\" is in line ", lines[ring.name], " already"));
    SLUICE_RETURN_IF_ERROR(AddRing(ring, &places, reading));
  }
  return absl::OkStatus();
}

absl::Status AddToruses(const std::vector<Torus>& toruses, Reading* reading) {
  Places places(reading);
  absl::flat_hash_map<std::string, size_t> lines;
  for (const Torus& torus : toruses) {
    if (!lines.emplace(torus.name, torus.line).second)
      return reading->Refuse(torus.line,
                             absl::StrCat("torus \"", torus.name, "\" is in line ", lines[torus.name], " already"));
    SLUICE_RETURN_IF_ERROR(AddTorus(torus, &places, reading));
  }
  return absl::OkStatus();
}

}  // namespace sluice::topology::slurm
