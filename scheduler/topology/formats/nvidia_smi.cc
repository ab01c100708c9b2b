// `nvidia-smi topo -m`: how each GPU and NIC of a host reaches each other one.
//
//         GPU0  GPU1  NIC0  CPU Affinity  NUMA Affinity
//   GPU0   X    NV12  PXB   0-103         0
//   NIC0  PXB   SYS    X
//   …
//   NIC Legend:
//     NIC0: mlx5_0
//
// NV# is so many NVLinks. The others say how far up the way over PCIe goes: PIX one bridge, PXB several, PHB the host
// bridge (the CPU), NODE between host bridges of a NUMA node, SYS between NUMA nodes. Each is a union of devices, wider
// and wider: a union by PIX hangs on a bridge, by PXB on a bridge above, by PHB and NODE on the CPU.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "scheduler/topology/formats/hostlist.h"
#include "scheduler/topology/formats/list.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxBytes = size_t{4} << 20;
constexpr size_t kMaxDevices = 256;
constexpr uint32_t kMostNvlinks = 18;  // of a GPU, up to now

// How far up a way over PCIe goes.
enum Reach { kPix, kPxb, kPhb, kNode, kSys, kNotSaid };
constexpr std::pair<absl::string_view, Reach> kReaches[] = {{"PIX", kPix},   {"PXB", kPxb}, {"PHB", kPhb},
                                                            {"NODE", kNode}, {"SYS", kSys}, {"SOC", kSys}};

// Without the terminal's escapes: "\033[4mGPU0\033[0m" is GPU0.
std::string Unstyled(absl::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\033' && i + 1 < line.size() && line[i + 1] == '[') {
      while (i < line.size() && !absl::ascii_isalpha(line[i])) ++i;
      continue;
    }
    out += line[i];
  }
  return out;
}

std::vector<std::string> Words(absl::string_view line) {
  return absl::StrSplit(Unstyled(line), absl::ByAnyChar(" \t"), absl::SkipEmpty());
}

bool IsGpu(absl::string_view word) {
  uint32_t number;
  return absl::StartsWith(word, "GPU") && absl::SimpleAtoi(word.substr(3), &number);
}

bool IsHeader(const std::vector<std::string>& words) {
  if (words.empty() || (!IsGpu(words[0]) && !absl::StartsWith(words[0], "NIC") && !absl::StartsWith(words[0], "mlx")))
    return false;
  return words.size() == 1 ? IsGpu(words[0])
                           : IsGpu(words[1]) || words[1] == "CPU" || absl::StartsWith(words[1], "NIC") ||
                                 absl::StartsWith(words[1], "mlx");
}

bool LooksLike(absl::string_view text) {
  Lines lines(text.substr(0, 65536));
  absl::string_view line;
  for (int i = 0; i < 20 && lines.Next(&line); ++i) {
    const std::vector<std::string> words = Words(line);
    if (words.empty()) continue;
    return IsHeader(words);
  }
  return false;
}

class Sets {
 public:
  explicit Sets(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }
  size_t Find(size_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void Join(size_t a, size_t b) {
    a = Find(a), b = Find(b);
    parent_[std::max(a, b)] = std::min(a, b);  // the first device stands for all
  }

 private:
  std::vector<size_t> parent_;
};

class Matrix {
 public:
  explicit Matrix(Reading* reading) : reading_(reading) {}

  absl::Status Read() {
    Lines lines(reading_->input.text);
    absl::string_view line;
    bool legend = false, nic_legend = false;
    while (lines.Next(&line)) {
      const std::vector<std::string> words = Words(line);
      if (words.empty()) continue;
      const size_t number = lines.number();
      if (columns_.empty())
        SLUICE_RETURN_IF_ERROR(Header(words, number));
      else if (words[0] == "Legend:")
        legend = true;
      else if (words[0] == "NIC" && words.size() > 1 && words[1] == "Legend:")
        nic_legend = true;
      else if (nic_legend)
        SLUICE_RETURN_IF_ERROR(NicName(words, number));
      else if (!legend)
        SLUICE_RETURN_IF_ERROR(Row(words, number));
    }
    if (rows_.size() != columns_.size())
      return reading_->Refuse(header_line_, absl::StrCat(columns_.size(), " devices and ", rows_.size(), " rows"),
                              "give the output of `nvidia-smi topo -m` as it is");
    return Build();
  }

 private:
  struct Device {
    std::string name;  // "gpu0", "mlx5_0"
    bool gpu = false;
    size_t line = 0;
    std::string numa;          // "" = not said
    std::vector<Reach> reach;  // by column
    std::vector<uint32_t> nvlinks;
    uint32_t vertex = kNone;
  };

  absl::Status Header(const std::vector<std::string>& words, size_t number) {
    header_line_ = number;
    for (const std::string& word : words) {
      if (word == "CPU" || word == "NUMA") break;
      if (!IsHostlistName(word) || absl::StrContains(word, "/"))
        return reading_->Refuse(number, absl::StrCat(Shown(word), " is no name of a device"));
      if (!columns_.emplace(word, columns_.size()).second)
        return reading_->Refuse(number, absl::StrCat("two columns are called ", word));
      if (columns_.size() > kMaxDevices)
        return reading_->Refuse(number, absl::StrCat("more than ", kMaxDevices, " devices"));
    }
    return columns_.empty() ? reading_->Refuse(number, "no device in the first line") : absl::OkStatus();
  }

  absl::Status Row(const std::vector<std::string>& words, size_t number) {
    const auto column = columns_.find(words[0]);
    if (column == columns_.end())
      return reading_->Refuse(number, absl::StrCat("row ", Shown(words[0]), " has no column of its name"));
    if (column->second != rows_.size())
      return reading_->Refuse(number, absl::StrCat("row ", Shown(words[0]), " is not in the order of the columns"));
    Device device{.name = IsGpu(words[0]) ? absl::StrCat("gpu", words[0].substr(3)) : words[0],
                  .gpu = IsGpu(words[0]),
                  .line = number};
    if (words.size() < 1 + columns_.size())
      return reading_->Refuse(number, absl::StrCat("row ", Shown(words[0]), " has ", words.size() - 1, " of ",
                                                   columns_.size(), " entries"));
    for (size_t c = 0; c < columns_.size(); ++c) {
      const std::string& word = words[1 + c];
      uint32_t nvlinks = 0;
      Reach reach = kNotSaid;
      bool known = word == "X" && c == rows_.size();
      for (const auto& [name, value] : kReaches)
        if (word == name) reach = value, known = true;
      if (absl::StartsWith(word, "NV") && absl::SimpleAtoi(absl::string_view(word).substr(2), &nvlinks))
        known = nvlinks > 0 && nvlinks <= 1024;
      if (!known || (reach != kNotSaid && c == rows_.size()))
        return reading_->Refuse(
            number, absl::StrCat(Shown(word), " between ", words[0], " and column ", c + 1, " is nothing known"),
            "known are X, NV#, PIX, PXB, PHB, NODE, SYS");
      device.reach.push_back(reach);
      device.nvlinks.push_back(nvlinks);
    }
    // Behind them stand the CPU affinity ("0-103", "0,2,4") and the NUMA affinity; of NICs, nothing.
    if (words.size() > 2 + columns_.size()) {
      uint32_t numa = 0;
      const std::string& word = words[2 + columns_.size()];
      if (absl::SimpleAtoi(absl::string_view(word).substr(0, word.find_first_of(",-")), &numa) && numa < 1024)
        device.numa = absl::StrCat(numa);
    }
    rows_.push_back(std::move(device));
    return absl::OkStatus();
  }

  absl::Status NicName(const std::vector<std::string>& words, size_t number) {
    std::string nic = words[0];
    if (words.size() != 2 || !absl::EndsWith(nic, ":") || !IsHostlistName(words[1]) || absl::StrContains(words[1], "/"))
      return reading_->Refuse(number, "no NICn: DEVICE below \"NIC Legend:\"");
    nic.pop_back();
    const auto column = columns_.find(nic);
    if (column == columns_.end() || column->second >= rows_.size())
      return reading_->Refuse(number, absl::StrCat("the legend names ", Shown(nic), ", which has no row"));
    rows_[column->second].name = words[1];
    return absl::OkStatus();
  }

  std::string Inside(absl::string_view name) const { return absl::StrCat(reading_->input.host, "/", name); }

  absl::Status Build() {
    SLUICE_ASSIGN_OR_RETURN(const uint32_t host, reading_->Add(0, VertexKind::kHost, reading_->input.host));
    // The unions of each reach; by NODE also those that say the same NUMA node, and all that say nothing.
    const size_t n = rows_.size();
    std::vector<Sets> sets(kNode + 1, Sets(n));
    std::map<std::string, size_t> first_of_numa;
    size_t differs = 0;
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        if (a < b && (rows_[a].reach[b] != rows_[b].reach[a] || rows_[a].nvlinks[b] != rows_[b].nvlinks[a])) ++differs;
        for (int r = rows_[a].reach[b]; r <= kNode; ++r) sets[r].Join(a, b);
      }
      if (rows_[a].numa.empty()) continue;
      const auto [first, is_new] = first_of_numa.emplace(rows_[a].numa, a);
      if (!is_new) sets[kNode].Join(first->second, a);
    }
    if (differs > 0)
      reading_->Warn(
          header_line_,
          absl::StrCat(differs, " pairs of devices say different things from their two sides: the nearer one counts"));
    // CPUs: one a union by NODE, with the NUMA node's number if a device says it.
    std::map<size_t, std::string> numa_of;
    for (size_t a = 0; a < n; ++a)
      if (!rows_[a].numa.empty()) numa_of.emplace(sets[kNode].Find(a), rows_[a].numa);
    std::map<size_t, uint32_t> cpu_of;
    for (size_t a = 0; a < n; ++a) {
      const size_t root = sets[kNode].Find(a);
      if (cpu_of.contains(root)) continue;
      const auto numa = numa_of.find(root);
      const std::string name =
          numa != numa_of.end() ? absl::StrCat("cpu", numa->second) : absl::StrCat("cpu-of-", rows_[root].name);
      SLUICE_ASSIGN_OR_RETURN(const uint32_t cpu, reading_->Add(header_line_, VertexKind::kCpu, Inside(name), host));
      SLUICE_RETURN_IF_ERROR(reading_->Connect(header_line_, cpu, host, Medium::kSocket));
      for (const auto& [other, vertex] : cpu_of)
        SLUICE_RETURN_IF_ERROR(reading_->Connect(header_line_, vertex, cpu, Medium::kSocket));
      cpu_of.emplace(root, cpu);
    }
    std::map<std::pair<int, size_t>, uint32_t> bridges;
    for (size_t a = 0; a < n; ++a) {
      uint32_t above = cpu_of[sets[kNode].Find(a)];
      for (const int reach : {kPxb, kPix}) {
        const size_t root = sets[reach].Find(a);
        bool alone = true;
        for (size_t b = 0; b < n && alone; ++b) alone = b == a || sets[reach].Find(b) != root;
        if (alone) continue;
        // A union that is the same at both reaches needs one bridge.
        bool same = reach == kPxb;
        for (size_t b = 0; b < n && same; ++b)
          same = (sets[kPxb].Find(b) == root) == (sets[kPix].Find(b) == sets[kPix].Find(a));
        if (same) continue;
        const auto [bridge, is_new] = bridges.emplace(std::pair(reach, root), kNone);
        if (is_new) {
          SLUICE_ASSIGN_OR_RETURN(
              bridge->second,
              reading_->Add(rows_[root].line, VertexKind::kBridge,
                            Inside(absl::StrCat(reach == kPix ? "pix-" : "pxb-", rows_[root].name)), host));
          SLUICE_RETURN_IF_ERROR(reading_->Connect(rows_[root].line, bridge->second, above, Medium::kPcie));
        }
        above = bridge->second;
      }
      Device& device = rows_[a];
      const std::string name = Inside(device.name);
      if (reading_->graph.Find(name) != kNone)
        return reading_->Refuse(device.line, absl::StrCat("two devices are called ", Shown(device.name)));
      SLUICE_ASSIGN_OR_RETURN(device.vertex,
                              reading_->Add(device.line, device.gpu ? VertexKind::kGpu : VertexKind::kNic, name, host));
      SLUICE_RETURN_IF_ERROR(reading_->Connect(device.line, device.vertex, above, Medium::kPcie));
    }
    return Nvlinks(host);
  }

  absl::Status Nvlinks(uint32_t host) {
    // GPUs that all say more links to each other than a GPU has are joined by switches.
    std::vector<const Device*> gpus;
    for (const Device& device : rows_)
      if (device.gpu) gpus.push_back(&device);
    uint32_t least = kNone, most = 0;
    for (size_t a = 0; a < rows_.size(); ++a)
      for (size_t b = 0; b < rows_.size(); ++b) {
        if (a == b || !rows_[a].gpu || !rows_[b].gpu) continue;
        least = std::min(least, rows_[a].nvlinks[b]);
        most = std::max(most, rows_[a].nvlinks[b]);
      }
    if (gpus.size() > 2 && least == most && most > 0 && uint64_t{most} * (gpus.size() - 1) > kMostNvlinks) {
      SLUICE_ASSIGN_OR_RETURN(const uint32_t nvswitch,
                              reading_->Add(header_line_, VertexKind::kBridge, Inside("nvswitch"), host));
      for (const Device* gpu : gpus)
        SLUICE_RETURN_IF_ERROR(reading_->Connect(gpu->line, gpu->vertex, nvswitch, Medium::kNvlink, 0, 0, most));
      return absl::OkStatus();
    }
    for (size_t a = 0; a < rows_.size(); ++a)
      for (size_t b = a + 1; b < rows_.size(); ++b) {
        const uint32_t count = std::max(rows_[a].nvlinks[b], rows_[b].nvlinks[a]);
        if (count > 0)
          SLUICE_RETURN_IF_ERROR(
              reading_->Connect(rows_[a].line, rows_[a].vertex, rows_[b].vertex, Medium::kNvlink, 0, 0, count));
      }
    return absl::OkStatus();
  }

  Reading* const reading_;
  size_t header_line_ = 0;
  absl::flat_hash_map<std::string, size_t> columns_;
  std::vector<Device> rows_;
};

absl::Status ReadMatrix(Reading* reading) { return Matrix(reading).Read(); }

}  // namespace

const Format& NvidiaSmiFormat() {
  static const Format format = {.name = "nvidia-smi",
                                .title = "nvidia-smi topo -m",
                                .inside_host = true,
                                .max_bytes = kMaxBytes,
                                .looks_like = LooksLike,
                                .read = ReadMatrix};
  return format;
}

}  // namespace sluice::topology
