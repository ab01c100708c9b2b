// `ibnetdiscover -p`: a line a port.
//
//   CA   134  1 0x7cfe… 4x EDR - SW  1719 10 0x7cfe… ( 'node01 HCA-1' - 'leaf1' )
//   SW  1719 11 0x7cfe… 4x ???                                        'leaf1'        nothing is cabled with it
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/infiniband.h"
#include "scheduler/topology/formats/list.h"

namespace sluice::topology {
namespace {

using infiniband::End;
using infiniband::Kind;

using Words = std::vector<absl::string_view>;

// TYPE LID PORT GUID, from words[at] on. A GUID is a port's for an adapter and the switch's for a switch.
std::optional<End> ParseEnd(const Words& words, size_t at) {
  if (at + 4 > words.size()) return std::nullopt;
  End end;
  const char* prefix = "S-";
  if (words[at] == "CA" || words[at] == "HCA" || words[at] == "Hca" || words[at] == "Ca") {
    end.kind = Kind::kAdapter;
    prefix = "H-";
  } else if (words[at] == "RT") {
    end.kind = Kind::kRouter;
    prefix = "R-";
  } else if (words[at] != "SW") {
    return std::nullopt;
  }
  uint32_t lid = 0;
  uint64_t guid = 0;
  if (!absl::SimpleAtoi(words[at + 1], &lid) || !absl::SimpleAtoi(words[at + 2], &end.port) ||
      !absl::StartsWith(words[at + 3], "0x") || !absl::SimpleHexAtoi(words[at + 3], &guid))
    return std::nullopt;
  end.id = absl::StrCat(prefix, absl::Hex(guid, absl::kZeroPad16));
  return end;
}

Words Split(absl::string_view text) { return absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty()); }

bool LooksLike(absl::string_view text) { return ParseEnd(Split(FirstLine(text)), 0).has_value(); }

absl::Status Line(absl::string_view line, size_t number, const Reading& reading, infiniband::Fabric* fabric) {
  const auto refuse = [&](absl::string_view what) {
    return reading.Refuse(number, absl::StrCat(what, " in ", Shown(line)),
                          "give the output of `ibnetdiscover -p` as it is");
  };
  const size_t quote = line.find('\'');
  if (quote == absl::string_view::npos || line.rfind('\'') == quote) return refuse("no description in quotes");
  const absl::string_view described = line.substr(quote + 1, line.rfind('\'') - quote - 1);
  const Words words = Split(line.substr(0, quote));
  std::optional<End> from = ParseEnd(words, 0);
  if (!from) return refuse("no TYPE LID PORT GUID");
  if (words.size() < 6) return refuse("no width and speed");
  if (words.size() == 6) {
    from->description = std::string(described);
    if (infiniband::BytesPerSecond(words[4], words[5]) < 0) return refuse("no such width and speed");
    fabric->CountDownPort();
    return fabric->AddNode(number, *from);
  }
  std::optional<End> to = words[6] == "-" ? ParseEnd(words, 7) : std::nullopt;
  if (!to || words.size() != 12 || words[11] != "(") return refuse("no other end");
  const size_t middle = described.find("' - '");
  if (middle == absl::string_view::npos) return refuse("no description of the other end");
  from->description = std::string(described.substr(0, middle));
  to->description = std::string(described.substr(middle + 5));
  return fabric->AddCable(number, *from, *to, infiniband::BytesPerSecond(words[4], words[5]));
}

absl::Status ReadPorts(Reading* reading) {
  infiniband::Fabric fabric(reading);
  Lines lines(reading->input.text);
  absl::string_view line;
  while (lines.Next(&line)) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    SLUICE_RETURN_IF_ERROR(Line(line, lines.number(), *reading, &fabric));
  }
  return fabric.Finish();
}

}  // namespace

const Format& IbnetdiscoverPortsFormat() {
  static const Format format = {.name = "ibnetdiscover-p",
                                .title = "ibnetdiscover -p",
                                .max_bytes = kMaxTextBytes,
                                .looks_like = LooksLike,
                                .read = ReadPorts};
  return format;
}

}  // namespace sluice::topology
