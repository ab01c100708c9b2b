// `lldpcli show neighbors -f json` (lldpd) on one host: which switch each of its interfaces is cabled with.
//
//   {"lldp": {"interface": [{"eth0": {"chassis": {"leaf1": {…}}, "port": {"id": {…}, "descr": "swp3"}}}, …]}}
//
// With one interface, lldpcli prints an object in place of the list. A neighbour that is no bridge (another host) is
// skipped.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/json_text.h"
#include "scheduler/topology/formats/list.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;

bool LooksLike(absl::string_view text) {
  return absl::StartsWith(FirstLine(text), "{") && absl::StrContains(text.substr(0, 4096), "\"lldp\"");
}

// Whether the neighbour says that it is no bridge.
bool IsNoBridge(const nlohmann::json& chassis) {
  const nlohmann::json& list = Member(chassis, "capability");
  bool any = false;
  const auto look = [&](const nlohmann::json& capability) {
    if (TextOf(Member(capability, "type")) != "Bridge" && TextOf(Member(capability, "type")) != "Router") return false;
    any = true;
    const nlohmann::json& enabled = Member(capability, "enabled");
    return !enabled.is_boolean() || enabled.get<bool>();
  };
  if (list.is_object()) return !look(list) && any;
  if (!list.is_array()) return false;
  for (const nlohmann::json& capability : list)
    if (look(capability)) return false;
  return any;
}

class Neighbours {
 public:
  explicit Neighbours(Reading* reading) : reading_(reading) {}

  absl::Status Read() {
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(*reading_, {}));
    const nlohmann::json& interfaces = Member(Member(json, "lldp"), "interface");
    SLUICE_ASSIGN_OR_RETURN(host_, reading_->Add(0, VertexKind::kHost, reading_->input.host));
    if (interfaces.is_array()) {
      for (const nlohmann::json& item : interfaces) SLUICE_RETURN_IF_ERROR(Interfaces(item));
    } else {
      SLUICE_RETURN_IF_ERROR(Interfaces(interfaces));
    }
    if (!linked_)
      return reading_->Refuse(0, "no interface has a switch as its neighbour",
                              "wait until lldpd has heard of one (30 s)");
    return absl::OkStatus();
  }

 private:
  absl::Status Interfaces(const nlohmann::json& object) {
    if (!object.is_object()) return reading_->Refuse(0, "lldp.interface is no list of interfaces");
    for (const auto& [name, interface] : object.items()) {
      const nlohmann::json& chassis = Member(interface, "chassis");
      if (!IsHostlistName(name) || absl::StrContains(name, "/") || !chassis.is_object() || chassis.empty())
        return reading_->Refuse(0, absl::StrCat("interface ", Shown(name), " has no chassis"));
      // {"leaf1": {…}}; of a nameless switch, its fields themselves.
      const bool named = chassis.begin()->is_object() && chassis.begin().key() != "id";
      const nlohmann::json& fields = named ? *chassis.begin() : chassis;
      const std::string id = TextOf(Member(Member(fields, "id"), "value"));
      const std::string neighbour = named ? chassis.begin().key() : id;
      if (neighbour.empty())
        return reading_->Refuse(0, absl::StrCat("the neighbour of ", Shown(name), " has neither name nor id"));
      if (IsNoBridge(fields)) {
        reading_->Warn(0, absl::StrCat("the neighbour of ", name, ", ", Shown(neighbour), ", is no switch: left out"));
        continue;
      }
      SLUICE_ASSIGN_OR_RETURN(const uint32_t nic,
                              reading_->Add(0, VertexKind::kNic, absl::StrCat(reading_->input.host, "/", name), host_));
      SLUICE_ASSIGN_OR_RETURN(const uint32_t leaf, reading_->Add(0, VertexKind::kSwitch, neighbour));
      if (reading_->graph.FindLink(nic, leaf, Medium::kEthernet) != kNone)
        continue;  // several announcements of one cable
      if (reading_->graph.FindLink(nic, host_, Medium::kPcie) == kNone)
        SLUICE_RETURN_IF_ERROR(reading_->Connect(0, nic, host_, Medium::kPcie));
      SLUICE_RETURN_IF_ERROR(reading_->Connect(0, nic, leaf, Medium::kEthernet));
      linked_ = true;
    }
    return absl::OkStatus();
  }

  Reading* const reading_;
  uint32_t host_ = kNone;
  bool linked_ = false;
};

absl::Status ReadLldp(Reading* reading) { return Neighbours(reading).Read(); }

}  // namespace

const Format& LldpFormat() {
  static const Format format = {.name = "lldp",
                                .title = "LLDP neighbours",
                                .inside_host = true,
                                .max_bytes = kMaxBytes,
                                .looks_like = LooksLike,
                                .read = ReadLldp};
  return format;
}

}  // namespace sluice::topology
