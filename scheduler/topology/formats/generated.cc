#include "scheduler/topology/formats/generated.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/topology/formats/units.h"
#include "scheduler/topology/generate.h"

namespace sluice::topology {
namespace {

constexpr uint32_t kMaxNumber = uint32_t{1} << 20;  // of hosts, switches and the like; generators bound their products

// Takes the words one by one; what is left at the end is unknown.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) {
    for (size_t i = 1; i < words.size(); ++i) {
      std::pair<std::string, std::string> pair = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
      if (!values_.emplace(pair).second) Fail(absl::StrCat(pair.first, " stands twice"));
    }
  }

  Words& Number(absl::string_view key, uint32_t* value) {
    Take(key, [&](const std::string& text) {
      if (!absl::SimpleAtoi(text, value) || *value > kMaxNumber)
        Fail(absl::StrCat(key, ": \"", text, "\" is no number from 0 to ", kMaxNumber));
    });
    return *this;
  }
  Words& Ratio(absl::string_view key, double* value) {
    Take(key, [&](const std::string& text) { Set(ParsePositive(text), key, value); });
    return *this;
  }
  Words& Bandwidth(absl::string_view key, double* value) {
    Take(key, [&](const std::string& text) { Set(ParseBandwidth(text), key, value); });
    return *this;
  }
  Words& Dims(absl::string_view key, std::vector<uint32_t>* dims) {
    Take(key, [&](const std::string& text) {
      dims->clear();
      for (const absl::string_view size : absl::StrSplit(text, 'x')) {
        uint32_t value = 0;
        if (!absl::SimpleAtoi(size, &value) || value == 0 || value > kMaxNumber || dims->size() == 8) {
          Fail(absl::StrCat(key, ": \"", text, "\" is no list of at most 8 sizes such as 8x8x4"));
          return;
        }
        dims->push_back(value);
      }
    });
    return *this;
  }
  Words& Host(HostSpec* host) {
    Take("latency", [&](const std::string& text) { Set(ParseLatency(text), "latency", &host->link_latency_s); });
    return Number("slots", &host->slots).Bandwidth("link", &host->link_bytes_per_second);
  }

  absl::Status Done(absl::string_view kind) const {
    if (!status_.ok() || values_.empty()) return status_;
    return absl::InvalidArgumentError(absl::StrCat("generate ", kind, ": unknown word ", values_.begin()->first));
  }

 private:
  template <typename Use>
  void Take(absl::string_view key, Use use) {
    const auto it = values_.find(key);
    if (it == values_.end()) return;
    use(it->second);
    values_.erase(it);
  }
  void Set(const absl::StatusOr<double>& parsed, absl::string_view key, double* value) {
    if (parsed.ok())
      *value = *parsed;
    else
      Fail(absl::StrCat(key, ": ", parsed.status().message()));
  }
  void Fail(absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("generate: ", what));
  }

  absl::flat_hash_map<std::string, std::string> values_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<Graph> GenerateByWords(const std::vector<std::string>& texts) {
  const std::string kind = texts.empty() ? "" : texts[0];
  Words words(texts);
  const auto made = [&](const auto& spec, auto generate) -> absl::StatusOr<Graph> {
    if (absl::Status status = words.Done(kind); !status.ok()) return status;
    return generate(spec);
  };
  if (kind == "fat-tree") {
    FatTreeSpec spec;
    words.Number("k", &spec.k).Host(&spec.host);
    return made(spec, FatTree);
  }
  if (kind == "spine-leaf") {
    SpineLeafSpec spec;
    words.Number("leaves", &spec.leaves).Number("spines", &spec.spines).Number("hosts", &spec.hosts_per_leaf);
    words.Ratio("ratio", &spec.ratio).Host(&spec.host);
    return made(spec, SpineLeaf);
  }
  if (kind == "rails") {
    RailsSpec spec;
    words.Number("groups", &spec.groups).Number("hosts", &spec.hosts_per_group).Number("rails", &spec.rails);
    words.Number("spines", &spec.spines).Ratio("ratio", &spec.ratio).Host(&spec.host);
    return made(spec, Rails);
  }
  if (kind == "zones") {
    ZonesSpec spec;
    words.Number("zones", &spec.zones).Number("spines", &spec.spines_per_zone).Number("cores", &spec.cores);
    words.Number("leaves", &spec.leaves_per_zone).Number("hosts", &spec.hosts_per_leaf);
    words.Ratio("leaf_ratio", &spec.leaf_ratio).Ratio("ratio", &spec.zone_ratio).Host(&spec.host);
    return made(spec, Zones);
  }
  if (kind == "torus") {
    TorusSpec spec;
    words.Dims("dims", &spec.dims)
        .Number("hosts", &spec.hosts_per_switch)
        .Bandwidth("ring", &spec.ring_bytes_per_second);
    words.Host(&spec.host);
    return made(spec, Torus);
  }
  if (kind == "hypercube") {
    uint32_t dims = 4, hosts = 1;
    HostSpec host;
    words.Number("dims", &dims).Number("hosts", &hosts).Host(&host);
    return made(host, [&](const HostSpec& h) { return Hypercube(dims, hosts, h); });
  }
  if (kind == "dragonfly") {
    DragonflySpec spec;
    words.Number("routers", &spec.routers).Number("global", &spec.global).Number("hosts", &spec.hosts_per_router);
    words.Bandwidth("group", &spec.group_bytes_per_second)
        .Bandwidth("far", &spec.global_bytes_per_second)
        .Host(&spec.host);
    return made(spec, Dragonfly);
  }
  return absl::InvalidArgumentError(absl::StrCat("generate: \"", kind,
                                                 "\" is none of fat-tree, spine-leaf, rails, zones, torus, "
                                                 "hypercube, dragonfly"));
}

}  // namespace sluice::topology
