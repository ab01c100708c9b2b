// Slurm's topology.conf: lines of KEY=VALUE that begin with SwitchName (topology/tree), BlockName or BlockSizes
// (topology/block), or RingName (topology/ring). Keys know no case; '#' begins a comment; a '\' at its end joins a line
// with the next.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/list.h"
#include "scheduler/topology/formats/slurm.h"

namespace sluice::topology {
namespace {

constexpr absl::string_view kFirstKeys[] = {"switchname", "blockname", "blocksizes", "ringname"};
constexpr size_t kMaxBlockSizes = 16;

// "Key=" at the beginning of `line`, in lower case; "" if there is none.
std::string KeyOf(absl::string_view line) {
  size_t end = 0;
  while (end < line.size() && absl::ascii_isalnum(line[end])) ++end;
  size_t equals = end;
  while (equals < line.size() && absl::ascii_isblank(line[equals])) ++equals;
  if (end == 0 || equals == line.size() || line[equals] != '=') return "";
  return absl::AsciiStrToLower(line.substr(0, end));
}

bool LooksLike(absl::string_view text) {
  Lines lines(text.substr(0, 65536));
  absl::string_view line;
  while (lines.Next(&line)) {
    line = absl::StripLeadingAsciiWhitespace(line);
    const std::string key = KeyOf(line);
    for (const absl::string_view known : kFirstKeys)
      if (key == known) return true;
  }
  return false;
}

struct Pair {
  std::string key, value;  // the key in lower case
};

// The pairs of a line without its comment. Blanks may stand around '='; a value may be quoted.
absl::StatusOr<std::vector<Pair>> ParsePairs(absl::string_view line, size_t number, const Reading& reading) {
  std::vector<Pair> pairs;
  line = absl::StripAsciiWhitespace(line);
  while (!line.empty()) {
    Pair pair{.key = KeyOf(line), .value = ""};
    if (pair.key.empty())
      return reading.Refuse(number, absl::StrCat("no KEY=VALUE at ", Shown(line)),
                            "write, for example, SwitchName=s0 Nodes=n[0-5]");
    line = absl::StripLeadingAsciiWhitespace(line.substr(line.find('=') + 1));
    size_t end = 0;
    if (!line.empty() && line[0] == '"') {
      end = line.find('"', 1);
      if (end == absl::string_view::npos)
        return reading.Refuse(number, absl::StrCat("a quote without its end at ", Shown(line)));
      pair.value = std::string(line.substr(1, end - 1));
      ++end;
    } else {
      while (end < line.size() && !absl::ascii_isspace(line[end])) ++end;
      pair.value = std::string(line.substr(0, end));
    }
    if (pair.value.empty()) return reading.Refuse(number, absl::StrCat(pair.key, " has no value"));
    for (const Pair& other : pairs)
      if (other.key == pair.key) return reading.Refuse(number, absl::StrCat(pair.key, " stands twice in a line"));
    pairs.push_back(std::move(pair));
    line = absl::StripLeadingAsciiWhitespace(line.substr(end));
  }
  return pairs;
}

class Conf {
 public:
  explicit Conf(Reading* reading) : reading_(reading) {}

  absl::Status Line(absl::string_view line, size_t number) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, ParsePairs(line, number, *reading_));
    if (pairs.empty()) return absl::OkStatus();
    const std::string& key = pairs[0].key;
    if (key == "blocksizes") return Sizes(pairs, number);
    slurm::Switch entry{.line = number, .name = pairs[0].value};
    const bool is_switch = key == "switchname";
    if (!is_switch && key != "blockname" && key != "ringname")
      return reading_->Refuse(number, absl::StrCat("a line cannot begin with ", key),
                              "lines begin with SwitchName, BlockName, BlockSizes or RingName");
    if (!IsHostlistName(entry.name))
      return reading_->Refuse(number, absl::StrCat(Shown(entry.name), " is no name of one switch, block or ring"));
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (pairs[i].key == "nodes")
        entry.nodes = pairs[i].value;
      else if (is_switch && pairs[i].key == "switches")
        entry.children = pairs[i].value;
      else if (is_switch && pairs[i].key == "linkspeed")
        ++link_speeds_;
      else
        return reading_->Refuse(number, absl::StrCat("unknown key ", pairs[i].key, " beside ", key),
                                is_switch ? "known are Nodes, Switches, LinkSpeed" : "known is Nodes");
    }
    if (is_switch)
      switches_.push_back(std::move(entry));
    else
      (key == "blockname" ? blocks_ : rings_).push_back({.line = number, .name = entry.name, .nodes = entry.nodes});
    return absl::OkStatus();
  }

  absl::Status Finish() {
    Report& report = reading_->report;
    if (link_speeds_ > 0)
      reading_->Warn(
          0, absl::StrCat("LinkSpeed stands in ", link_speeds_,
                          " lines and is not used: Slurm gives it no unit; say speeds in a second file (`tier`)"));
    if (!switches_.empty()) {
      absl::StrAppend(&report.title, " (tree)");
      if (!blocks_.empty() || !rings_.empty())
        reading_->Warn(0, absl::StrCat("it has a tree and also ", blocks_.empty() ? "rings" : "blocks",
                                       "; the tree is used, the others are not"));
      return slurm::AddTree(switches_, reading_);
    }
    if (!blocks_.empty()) {
      absl::StrAppend(&report.title, " (block)");
      if (!rings_.empty()) reading_->Warn(0, "it has blocks and also rings; the blocks are used, the rings are not");
      return slurm::AddBlocks(blocks_, sizes_, sizes_line_, reading_);
    }
    absl::StrAppend(&report.title, " (ring)");
    if (rings_.empty()) return reading_->Refuse(sizes_line_, "it has no line with SwitchName, BlockName or RingName");
    return slurm::AddRings(rings_, reading_);
  }

 private:
  absl::Status Sizes(const std::vector<Pair>& pairs, size_t number) {
    if (pairs.size() > 1)
      return reading_->Refuse(number, absl::StrCat("unknown key ", pairs[1].key, " beside blocksizes"));
    if (sizes_line_ != 0)
      return reading_->Refuse(number, absl::StrCat("BlockSizes is in line ", sizes_line_, " already"));
    sizes_line_ = number;
    for (const absl::string_view text : absl::StrSplit(pairs[0].value, ',')) {
      uint32_t size = 0;
      if (!absl::SimpleAtoi(text, &size) || sizes_.size() >= kMaxBlockSizes)
        return reading_->Refuse(
            number, absl::StrCat("BlockSizes: ", Shown(pairs[0].value), " is no list of numbers such as 30,120"));
      sizes_.push_back(size);
    }
    return absl::OkStatus();
  }

  Reading* const reading_;
  std::vector<slurm::Switch> switches_;
  std::vector<slurm::Group> blocks_, rings_;
  std::vector<uint32_t> sizes_;
  size_t sizes_line_ = 0;
  size_t link_speeds_ = 0;
};

absl::Status ReadConf(Reading* reading) {
  Conf conf(reading);
  Lines lines(reading->input.text);
  absl::string_view line;
  std::string joined;
  size_t begin = 0;  // the first line of `joined`
  while (lines.Next(&line)) {
    if (begin == 0) begin = lines.number();
    if (joined.size() + line.size() > kMaxLineBytes)
      return reading->Refuse(begin, absl::StrCat("a line of more than ", kMaxLineBytes, " bytes"));
    line = line.substr(0, line.find('#'));
    const absl::string_view ended = absl::StripTrailingAsciiWhitespace(line);
    if (absl::EndsWith(ended, "\\")) {
      absl::StrAppend(&joined, ended.substr(0, ended.size() - 1));
      continue;
    }
    absl::StrAppend(&joined, line);
    SLUICE_RETURN_IF_ERROR(conf.Line(joined, begin));
    joined.clear();
    begin = 0;
  }
  if (begin != 0) return reading->Refuse(begin, "a line that '\\' joins with the next is the last one");
  return conf.Finish();
}

}  // namespace

const Format& SlurmConfFormat() {
  static const Format format = {.name = "slurm-conf",
                                .title = "Slurm topology.conf",
                                .max_bytes = kMaxTextBytes,
                                .looks_like = LooksLike,
                                .read = ReadConf};
  return format;
}

}  // namespace sluice::topology
