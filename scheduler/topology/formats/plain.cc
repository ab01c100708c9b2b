// Our own format, for what no other file says. Lines of words; '#' begins a comment; NAMES is a list as in hostlist.h,
// or one name in quotes (with C's escapes).
//
//   sluice-topology 1                                first
//   host    NAMES [slots=N] [note="…"]
//   switch  NAMES [note="…"] [in=HOST]
//   gpu | nic | cpu | bridge NAMES [note="…"] [in=HOST]     of the host before the last '/', or of HOST
//   link    NAMES NAMES [MEDIUM] [BANDWIDTH] [LATENCY] [cables=N] [source=S]     every one with every one
//   pairs   NAMES NAMES …                            the first with the first, and so on
//   tier    N [BANDWIDTH] [LATENCY]                  what links of that tier have where no file says it (tier_speeds.h)
//   generate KIND [KEY=VALUE …]                      a fabric that no file describes (generated.cc)
//
// BANDWIDTH is that of all cables together, each way: 25Gb/s. LATENCY is one way: 5us. MEDIUM is network (default),
// ethernet, infiniband, nvlink, xgmi, pcie or socket. Names are described before links use them.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/generated.h"
#include "scheduler/topology/formats/list.h"
#include "scheduler/topology/formats/units.h"

namespace sluice::topology {
namespace {

constexpr absl::string_view kMagic = "sluice-topology";
constexpr size_t kMaxWords = 64;
constexpr size_t kMaxNoteBytes = 1024;
constexpr size_t kMaxLinksOfALine = size_t{1} << 22;
constexpr uint32_t kMaxTier = 64;

bool LooksLike(absl::string_view text) { return absl::StartsWith(FirstLine(text), kMagic); }

struct Word {
  std::string text;     // quotes taken away, escapes resolved
  bool quoted = false;  // it began with a quote
};

class Plain {
 public:
  explicit Plain(Reading* reading) : reading_(reading) {}

  absl::Status Line(absl::string_view line, size_t number) {
    line_ = number;
    SLUICE_ASSIGN_OR_RETURN(const std::vector<Word> words, Split(line));
    if (words.empty()) return absl::OkStatus();
    const std::string& key = words[0].text;
    if (!begun_) {
      begun_ = true;
      if (key == kMagic && words.size() == 2 && words[1].text == "1") return absl::OkStatus();
      return Refuse("it must begin with \"sluice-topology 1\"", "this program knows version 1 alone");
    }
    if (key == "host") return Vertices(words, VertexKind::kHost);
    if (key == "switch") return Vertices(words, VertexKind::kSwitch);
    if (key == "gpu") return Vertices(words, VertexKind::kGpu);
    if (key == "nic") return Vertices(words, VertexKind::kNic);
    if (key == "cpu") return Vertices(words, VertexKind::kCpu);
    if (key == "bridge") return Vertices(words, VertexKind::kBridge);
    if (key == "link") return Links(words, /*pairs=*/false);
    if (key == "pairs") return Links(words, /*pairs=*/true);
    if (key == "tier") return Tier(words);
    if (key == "generate") return Generated(words);
    return Refuse(absl::StrCat("unknown word ", Shown(key)),
                  "lines begin with host, switch, gpu, nic, cpu, bridge, link, pairs, tier or generate");
  }

 private:
  absl::Status Refuse(absl::string_view what, absl::string_view to_do = "") const {
    return reading_->Refuse(line_, what, to_do);
  }

  absl::StatusOr<std::vector<Word>> Split(absl::string_view line) const {
    std::vector<Word> words;
    while (!(line = absl::StripLeadingAsciiWhitespace(line)).empty() && line[0] != '#') {
      if (words.size() >= kMaxWords) return Refuse(absl::StrCat("more than ", kMaxWords, " words in a line"));
      Word word{.text = "", .quoted = line[0] == '"'};
      while (!line.empty() && !absl::ascii_isspace(line[0])) {
        if (line[0] != '"') {
          word.text += line[0];
          line.remove_prefix(1);
          continue;
        }
        size_t end = 1;
        while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
        std::string inside, error;
        if (end >= line.size()) return Refuse(absl::StrCat("a quote without its end at ", Shown(line)));
        if (!absl::CUnescape(line.substr(1, end - 1), &inside, &error))
          return Refuse(absl::StrCat("a '\\' that begins nothing known at ", Shown(line)));
        word.text += inside;
        line.remove_prefix(end + 1);
      }
      words.push_back(std::move(word));
    }
    return words;
  }

  absl::StatusOr<std::vector<std::string>> Names(const Word& word) const {
    if (word.quoted) return std::vector<std::string>{word.text};
    return reading_->Names(line_, word.text);
  }

  absl::Status Vertices(const std::vector<Word>& words, VertexKind kind) {
    std::string note, host_name;
    uint32_t slots = 0;
    if (words.size() < 2) return Refuse(absl::StrCat(words[0].text, " without a name"));
    for (size_t i = 2; i < words.size(); ++i) {
      const std::pair<std::string, std::string> value = absl::StrSplit(words[i].text, absl::MaxSplits('=', 1));
      if (value.first == "note") {
        if (value.second.size() > kMaxNoteBytes)
          return Refuse(absl::StrCat("a note of more than ", kMaxNoteBytes, " bytes"));
        note = value.second;
      } else if (value.first == "slots" && kind == VertexKind::kHost) {
        if (!absl::SimpleAtoi(value.second, &slots) || slots == 0)
          return Refuse(absl::StrCat("slots: ", Shown(value.second), " is no number above 0"));
      } else if (value.first == "in" && kind != VertexKind::kHost) {
        host_name = value.second;
      } else {
        return Refuse(absl::StrCat("unknown word ", Shown(words[i].text), " after ", words[0].text),
                      kind == VertexKind::kHost ? "known are slots=N, note=\"…\"" : "known are note=\"…\", in=HOST");
      }
    }
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(words[1]));
    for (const std::string& name : names) {
      if (reading_->graph.Find(name) != kNone)
        return Refuse(absl::StrCat("\"", name, "\" is described already"), "describe it once");
      SLUICE_ASSIGN_OR_RETURN(const uint32_t host, HostOf(name, kind, host_name));
      SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading_->Add(line_, kind, name, host));
      reading_->graph.vertex(vertex).note = note;
      if (kind == VertexKind::kHost) reading_->graph.vertex(vertex).slots = slots;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> HostOf(const std::string& name, VertexKind kind, const std::string& given) {
    if (kind == VertexKind::kHost || (kind == VertexKind::kSwitch && given.empty())) return kNone;
    const size_t slash = name.rfind('/');
    if (given.empty() && slash == std::string::npos)
      return Refuse(absl::StrCat("\"", name, "\" does not say in which host it is"), "write HOST/NAME, or in=HOST");
    const std::string host = given.empty() ? name.substr(0, slash) : given;
    const uint32_t vertex = reading_->graph.Find(host);
    if (vertex == kNone || reading_->graph.vertex(vertex).kind != VertexKind::kHost)
      return Refuse(absl::StrCat("\"", host, "\" of \"", name, "\" is no host"), "describe the host in a line before");
    return vertex;
  }

  // What stands behind the names of a link or behind a tier's number.
  struct Speed {
    Medium medium = Medium::kUnknown;
    double bytes_per_second = 0, latency_s = 0;
    uint32_t cables = 1;
    std::optional<Source> source;
  };
  absl::StatusOr<Speed> ParseSpeed(const std::vector<Word>& words, size_t from, bool link) const {
    Speed speed;
    for (size_t i = from; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      if (link && absl::StartsWith(word, "cables=")) {
        if (!absl::SimpleAtoi(word.substr(7), &speed.cables) || speed.cables == 0)
          return Refuse(absl::StrCat("cables: ", Shown(word.substr(7)), " is no number above 0"));
      } else if (link && absl::StartsWith(word, "source=")) {
        for (const Source source : {Source::kAssumed, Source::kFile, Source::kMeasured})
          if (word.substr(7) == SourceName(source)) speed.source = source;
        if (!speed.source)
          return Refuse(absl::StrCat(Shown(word), " is not source=assumed, source=file or source=measured"));
      } else if (!word.empty() && absl::ascii_isdigit(word[0])) {
        const absl::StatusOr<double> bandwidth = ParseBandwidth(word), latency = ParseLatency(word);
        if (bandwidth.ok())
          speed.bytes_per_second = *bandwidth;
        else if (latency.ok())
          speed.latency_s = *latency;
        else
          return Refuse(absl::StrCat(Shown(word), " is no bandwidth such as 25Gb/s and no latency such as 5us"));
      } else {
        bool known = false;
        for (int m = 0; link && m <= static_cast<int>(Medium::kSocket); ++m)
          if (word == MediumName(static_cast<Medium>(m))) {
            speed.medium = static_cast<Medium>(m);
            known = true;
          }
        if (!known)
          return Refuse(absl::StrCat("unknown word ", Shown(word), " after ", words[0].text),
                        link ? "known are a medium (ethernet, infiniband, nvlink, xgmi, pcie, socket), a bandwidth, a "
                               "latency, cables=N"
                             : "known are a bandwidth and a latency");
      }
    }
    return speed;
  }

  absl::StatusOr<std::vector<uint32_t>> Ends(const Word& word) const {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> names, Names(word));
    std::vector<uint32_t> vertices;
    for (const std::string& name : names) {
      const uint32_t vertex = reading_->graph.Find(name);
      if (vertex == kNone)
        return Refuse(absl::StrCat("\"", name, "\" is not described"), "describe it in a line before");
      vertices.push_back(vertex);
    }
    return vertices;
  }

  absl::Status Links(const std::vector<Word>& words, bool pairs) {
    if (words.size() < 3) return Refuse(absl::StrCat(words[0].text, " needs the names of both ends"));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<uint32_t> from, Ends(words[1]));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<uint32_t> to, Ends(words[2]));
    SLUICE_ASSIGN_OR_RETURN(const Speed speed, ParseSpeed(words, 3, /*link=*/true));
    if (pairs && from.size() != to.size())
      return Refuse(absl::StrCat("pairs of ", from.size(), " and ", to.size(), " names"), "give as many on each side");
    if (!pairs && from.size() > kMaxLinksOfALine / to.size())
      return Refuse(absl::StrCat("more than ", kMaxLinksOfALine, " links in a line"));
    for (size_t i = 0; i < from.size(); ++i)
      for (size_t k = pairs ? i : 0; k < (pairs ? i + 1 : to.size()); ++k) {
        SLUICE_RETURN_IF_ERROR(reading_->Connect(line_, from[i], to[k], speed.medium, speed.bytes_per_second,
                                                 speed.latency_s, speed.cables));
        if (speed.source)
          reading_->graph.link(reading_->graph.FindLink(from[i], to[k], speed.medium)).source = *speed.source;
      }
    return absl::OkStatus();
  }

  absl::Status Tier(const std::vector<Word>& words) {
    TierSpeed tier;
    if (words.size() < 3 || !absl::SimpleAtoi(words[1].text, &tier.tier) || tier.tier == 0 || tier.tier > kMaxTier)
      return Refuse("tier needs a number from 1 (between hosts and switches) on and a bandwidth or latency");
    SLUICE_ASSIGN_OR_RETURN(const Speed speed, ParseSpeed(words, 2, /*link=*/false));
    tier.bytes_per_second = speed.bytes_per_second;
    tier.latency_s = speed.latency_s;
    for (const TierSpeed& other : reading_->tiers)
      if (other.tier == tier.tier)
        return Refuse(absl::StrCat("tier ", tier.tier, " is described already"), "describe it once");
    reading_->tiers.push_back(tier);
    return absl::OkStatus();
  }

  absl::Status Generated(const std::vector<Word>& words) {
    if (generated_)
      return Refuse("a second generate line", "a file generates one fabric: give the other a file of its own");
    generated_ = true;
    std::vector<std::string> texts;
    for (size_t i = 1; i < words.size(); ++i) texts.push_back(words[i].text);
    const absl::StatusOr<Graph> graph = GenerateByWords(texts);
    if (!graph.ok()) return reading_->Refuse(line_, graph.status());
    const absl::Status merged = reading_->graph.Merge(*graph);
    return merged.ok() ? merged : reading_->Refuse(line_, merged);
  }

  Reading* const reading_;
  size_t line_ = 0;
  bool begun_ = false;
  bool generated_ = false;
};

absl::Status ReadPlain(Reading* reading) {
  Plain plain(reading);
  Lines lines(reading->input.text);
  absl::string_view line;
  while (lines.Next(&line)) {
    if (line.size() > kMaxLineBytes)
      return reading->Refuse(lines.number(), absl::StrCat("a line of more than ", kMaxLineBytes, " bytes"));
    SLUICE_RETURN_IF_ERROR(plain.Line(line, lines.number()));
  }
  return absl::OkStatus();
}

}  // namespace

const Format& PlainFormat() {
  static const Format format = {.name = "sluice",
                                .title = "Sluice's own",
                                .max_bytes = kMaxTextBytes,
                                .looks_like = LooksLike,
                                .read = ReadPlain};
  return format;
}

}  // namespace sluice::topology
