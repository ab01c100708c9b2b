// ibnetdiscover (infiniband-diags) without options: nodes as paragraphs, with a line a cabled port.
//
//   Switch 36 "S-0002c9…"   # "MF0;leaf1:MSB7700/U1" enhanced port 0 lid 3 lmc 0
//   [1]  "H-0002c9…"[1](2c9…)   # "node01 mlx5_0" lid 4 4xEDR
//   Ca 1 "H-0002c9…"        # "node01 mlx5_0"
//   [1](2c9…)  "S-0002c9…"[1]   # lid 4 lmc 0 "MF0;leaf1:MSB7700/U1" lid 3 4xEDR
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/infiniband.h"
#include "scheduler/topology/formats/list.h"

namespace sluice::topology {
namespace {

using infiniband::End;
using infiniband::Kind;

constexpr absl::string_view kIgnored[] = {
    "vendid=",           "devid=",       "sysimgguid=", "switchguid=", "caguid=", "hcaguid=", "rtguid=", "Chassis",
    "DisconnectedNodes", "Disconnected", "Non-Chassis", "Spine",       "Line",    "#"};

std::optional<Kind> NodeKind(absl::string_view word) {
  if (word == "Switch") return Kind::kSwitch;
  if (word == "Ca" || word == "Hca") return Kind::kAdapter;
  if (word == "Rt") return Kind::kRouter;
  return std::nullopt;
}

absl::string_view FirstWord(absl::string_view line) {
  size_t end = 0;
  while (end < line.size() && !absl::ascii_isspace(line[end])) ++end;
  return line.substr(0, end);
}

bool LooksLike(absl::string_view text) {
  Lines lines(text.substr(0, 65536));
  absl::string_view line;
  while (lines.Next(&line)) {
    if (absl::StartsWith(line, "# Topology file: generated") || absl::StartsWith(line, "vendid=0x")) return true;
    const absl::string_view word = FirstWord(line);
    const absl::string_view after = absl::StripLeadingAsciiWhitespace(line.substr(word.size()));
    if (NodeKind(word) && !after.empty() && absl::ascii_isdigit(after[0]) && absl::StrContains(after, "\""))
      return true;
    if (!line.empty() && line[0] != '#') return false;
  }
  return false;
}

// Takes what is between the next two quotes off *rest.
bool TakeQuoted(absl::string_view* rest, std::string* out) {
  const size_t begin = rest->find('"');
  const size_t end = begin == absl::string_view::npos ? begin : rest->find('"', begin + 1);
  if (end == absl::string_view::npos) return false;
  *out = std::string(rest->substr(begin + 1, end - begin - 1));
  rest->remove_prefix(end + 1);
  return true;
}

// Takes "[12]" off the front, and "(guid)" behind it if there is one.
bool TakePort(absl::string_view* rest, uint32_t* port) {
  if (!absl::ConsumePrefix(rest, "[")) return false;
  const size_t end = rest->find(']');
  if (end == absl::string_view::npos || !absl::SimpleAtoi(rest->substr(0, end), port)) return false;
  rest->remove_prefix(end + 1);
  if (!rest->empty() && (*rest)[0] == '(') {
    const size_t closed = rest->find(')');
    if (closed == absl::string_view::npos) return false;
    rest->remove_prefix(closed + 1);
  }
  return true;
}

std::optional<Kind> KindOfId(absl::string_view id) {
  if (absl::StartsWith(id, "S-")) return Kind::kSwitch;
  if (absl::StartsWith(id, "H-")) return Kind::kAdapter;
  if (absl::StartsWith(id, "R-")) return Kind::kRouter;
  return std::nullopt;
}

class Discover {
 public:
  explicit Discover(Reading* reading) : reading_(reading), fabric_(reading) {}

  absl::Status Line(absl::string_view line, size_t number) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) return absl::OkStatus();
    if (line[0] == '[') return PortLine(line, number);
    for (const absl::string_view ignored : kIgnored)
      if (absl::StartsWith(line, ignored)) return absl::OkStatus();
    const absl::string_view word = FirstWord(line);
    const std::optional<Kind> kind = NodeKind(word);
    if (!kind)
      return reading_->Refuse(number, absl::StrCat("no line of ibnetdiscover: ", Shown(line)),
                              "give its output as it is, `ibnetdiscover > FILE`");
    absl::string_view rest = line.substr(word.size());
    node_ = End{.kind = *kind};
    if (!TakeQuoted(&rest, &node_->id) || KindOfId(node_->id) != *kind)
      return reading_->Refuse(number, absl::StrCat("no name such as \"S-0002c9…\" in ", Shown(line)));
    TakeQuoted(&rest, &node_->description);  // none: the description is empty
    return fabric_.AddNode(number, *node_);
  }

  absl::Status Finish() { return fabric_.Finish(); }

 private:
  absl::Status PortLine(absl::string_view line, size_t number) {
    const auto refuse = [&](absl::string_view what) {
      return reading_->Refuse(number, absl::StrCat(what, " in ", Shown(line)),
                              "a port's line is [1] \"H-…\"[1](…) # \"NODE DEVICE\" lid 4 4xEDR");
    };
    if (!node_) return refuse("a port of no node");
    End from = *node_, to;
    absl::string_view rest = line;
    if (!TakePort(&rest, &from.port)) return refuse("no port number");
    rest = absl::StripLeadingAsciiWhitespace(rest);
    if (!absl::StartsWith(rest, "\"")) {  // nothing is cabled with it
      if (!absl::StrContains(rest, "???")) return refuse("no other end");
      fabric_.CountDownPort();
      return absl::OkStatus();
    }
    if (!TakeQuoted(&rest, &to.id)) return refuse("no other end");
    const std::optional<Kind> kind = KindOfId(to.id);
    if (!kind || !TakePort(&rest, &to.port)) return refuse("no port of the other end");
    to.kind = *kind;
    const size_t begin = rest.find('"'), end = rest.rfind('"');
    if (begin == absl::string_view::npos || begin == end) return refuse("no description of the other end");
    to.description = std::string(rest.substr(begin + 1, end - begin - 1));
    const absl::string_view after = absl::StripTrailingAsciiWhitespace(rest.substr(end + 1));
    const absl::string_view speed = after.substr(after.find_last_of(" \t") + 1);
    const size_t x = speed.find('x');
    if (x == absl::string_view::npos) return refuse("no width and speed");
    return fabric_.AddCable(number, from, to, infiniband::BytesPerSecond(speed.substr(0, x + 1), speed.substr(x + 1)));
  }

  Reading* const reading_;
  infiniband::Fabric fabric_;
  std::optional<End> node_;  // whose ports are being listed
};

absl::Status ReadDiscover(Reading* reading) {
  Discover discover(reading);
  Lines lines(reading->input.text);
  absl::string_view line;
  while (lines.Next(&line)) SLUICE_RETURN_IF_ERROR(discover.Line(line, lines.number()));
  return discover.Finish();
}

}  // namespace

const Format& IbnetdiscoverFormat() {
  static const Format format = {.name = "ibnetdiscover",
                                .title = "ibnetdiscover",
                                .max_bytes = kMaxTextBytes,
                                .looks_like = LooksLike,
                                .read = ReadDiscover};
  return format;
}

}  // namespace sluice::topology
