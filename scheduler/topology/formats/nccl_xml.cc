// The topology that NCCL and RCCL write (NCCL_TOPO_DUMP_FILE) and read (NCCL_TOPO_FILE), of one host:
//
//   <system version="1">
//     <cpu numaid="0" …>
//       <pci busid="0000:07:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">       a bridge
//         <pci busid="…" class="0x030200" …><gpu dev="0" sm="90" …><nvlink target="…" count="4"
//         tclass="0x068000"/></gpu></pci> <pci busid="…" class="0x020000" …><nic><net name="mlx5_0" dev="0" port="1"
//         speed="400000" …/></nic></pci>
//
// The graph: host - cpuN (NUMA nodes, each linked with each) - PCI bridges - gpuN and NICs; GPUs linked with each other
// (NVLink, xGMI) or with "nvswitch". RCCL's files have version 2, <xgmi> and other classes.
//
// - A file of a cloud may have <pci> alone, without <gpu> and <net>: what is what is told by the class, GPUs are
// counted in
//   order of bus ids, NICs named by theirs.
// - Virtual machines show PCI links of 0.2 GB/s that do not exist: speeds below 1 GB/s are taken as not known.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "pugixml.hpp"
#include "scheduler/topology/formats/list.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr int kMaxDepth = 32;
constexpr size_t kMaxCpus = 64;
constexpr size_t kMaxGpus = 1024;
constexpr double kLeastPci = 1e9;  // bytes/s

bool LooksLike(absl::string_view text) {
  const absl::string_view head = text.substr(0, 65536);
  for (size_t at = head.find("<system"); at != absl::string_view::npos; at = head.find("<system", at + 1)) {
    const absl::string_view after = head.substr(at + 7);
    if (!after.empty() && (absl::ascii_isspace(after[0]) || after[0] == '>' || after[0] == '/'))
      return absl::StartsWith(absl::StripLeadingAsciiWhitespace(head), "<");
  }
  return false;
}

// Of one NVLink, each way: what NCCL counts on (src/graph/topo.h). 0: not known.
double NvlinkBytesPerSecond(int sm) {
  if (sm >= 100) return 40.1e9;
  if (sm >= 90) return 20.6e9;
  if (sm == 86) return 12e9;
  if (sm >= 70) return 20e9;
  return sm >= 60 ? 18e9 : 0;
}

// The same for RCCL.
double XgmiBytesPerSecond(absl::string_view gcn) {
  if (absl::StartsWith(gcn, "gfx94") || absl::StartsWith(gcn, "gfx95")) return 48e9;
  if (absl::StartsWith(gcn, "gfx90a")) return 36e9;
  return absl::StartsWith(gcn, "gfx90") ? 24e9 : 0;
}

class Nccl {
 public:
  explicit Nccl(Reading* reading) : reading_(reading), lines_(reading->input.text) {}

  absl::Status Read() {
    const absl::string_view text = reading_->input.text;
    const pugi::xml_parse_result parsed =
        document_.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!parsed)
      return reading_->Refuse(lines_.At(static_cast<size_t>(std::max<ptrdiff_t>(parsed.offset, 0))),
                              absl::StrCat("no XML: ", parsed.description()));
    const pugi::xml_node root = document_.document_element();
    if (absl::string_view(root.name()) != "system" || root.next_sibling("system"))
      return Refuse(root, absl::StrCat("the root is <", root.name(), ">, not one <system>"));
    SLUICE_ASSIGN_OR_RETURN(host_, reading_->Add(LineOf(root), VertexKind::kHost, reading_->input.host));
    for (const pugi::xml_node child : root.children()) {
      const absl::string_view name = child.name();
      if (name == "cpu")
        SLUICE_RETURN_IF_ERROR(Cpu(child));
      else if (name != "pci" && name != "nic" && child.type() == pugi::node_element)
        return Refuse(child, absl::StrCat("unknown element <", name, "> in <system>"));
      else if (child.type() == pugi::node_element)
        SLUICE_RETURN_IF_ERROR(Device(child, host_, 0));
    }
    SLUICE_RETURN_IF_ERROR(NameGpus());
    SLUICE_RETURN_IF_ERROR(LinkGpus());
    for (size_t i = 0; i < cpus_.size(); ++i)
      for (size_t k = i + 1; k < cpus_.size(); ++k)
        SLUICE_RETURN_IF_ERROR(reading_->Connect(0, cpus_[i], cpus_[k], Medium::kSocket));
    const absl::string_view version = root.attribute("version").value();
    if (version != "" && version != "1" && version != "2")
      reading_->Warn(LineOf(root), absl::StrCat("version ", Shown(version), " is not known, 1 and 2 are: it is read as these"));
    if (unread_ > 0)
      reading_->Warn(first_unread_, absl::StrCat(unread_, " PCI links have a link_speed or link_width that is none (", unread_text_,
                                                 "): taken as not known"));
    if (slow_ > 0)
      reading_->Warn(
          0, absl::StrCat(slow_, " PCI links say less than 1 GB/s, as virtual machines do: taken as not known"));
    if (unnamed_nics_ > 0)
      reading_->Warn(
          0, absl::StrCat(unnamed_nics_, " NICs have no <net>: they are named by bus id, not as devices (mlx5_0)"));
    if (gpus_.empty()) reading_->Warn(0, "it has no GPU");
    if (nics_ == 0) reading_->Warn(0, "it has no NIC");
    return absl::OkStatus();
  }

 private:
  struct Gpu {
    pugi::xml_node pci, gpu;  // gpu: may be none
    std::string busid;
    uint32_t parent = kNone;
    double bytes_per_second = 0;
    uint32_t vertex = kNone;
  };

  size_t LineOf(const pugi::xml_node& node) const {
    const ptrdiff_t offset = node.offset_debug();
    return offset < 0 ? 0 : lines_.At(static_cast<size_t>(offset));
  }
  absl::Status Refuse(const pugi::xml_node& node, absl::string_view what) const {
    return reading_->Refuse(LineOf(node), what);
  }

  std::string Inside(absl::string_view name) const { return absl::StrCat(reading_->input.host, "/", name); }

  // A name of the file as part of one of ours.
  static std::string Part(absl::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 64))
      out += absl::ascii_isalnum(c) || c == ':' || c == '.' || c == '-' || c == '_' ? c : '_';
    return out;
  }

  absl::Status Cpu(const pugi::xml_node& cpu) {
    if (cpus_.size() == kMaxCpus) return Refuse(cpu, absl::StrCat("more than ", kMaxCpus, " <cpu>"));
    const std::string numa = Part(cpu.attribute("numaid").value());
    if (numa.empty()) return Refuse(cpu, "<cpu> has no numaid");
    const std::string name = Inside(absl::StrCat("cpu", numa == "-1" ? "0" : numa));
    if (reading_->graph.Find(name) != kNone) return Refuse(cpu, absl::StrCat("two <cpu> have the numaid ", numa));
    SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading_->Add(LineOf(cpu), VertexKind::kCpu, name, host_));
    SLUICE_RETURN_IF_ERROR(reading_->Connect(LineOf(cpu), vertex, host_, Medium::kSocket));
    cpus_.push_back(vertex);
    for (const pugi::xml_node child : cpu.children())
      if (child.type() == pugi::node_element) SLUICE_RETURN_IF_ERROR(Device(child, vertex, 0));
    return absl::OkStatus();
  }

  // A <pci> or a <nic> below `parent`.
  absl::Status Device(const pugi::xml_node& node, uint32_t parent, int depth) {
    if (depth > kMaxDepth) return Refuse(node, absl::StrCat("more than ", kMaxDepth, " <pci> inside each other"));
    const absl::string_view element = node.name();
    if (element == "nic") return Nic(node, parent, 0);
    if (element != "pci")
      return Refuse(node, absl::StrCat("unknown element <", element, "> where a <pci> or <nic> would stand"));
    const std::string busid = absl::AsciiStrToLower(Part(node.attribute("busid").value()));
    if (busid.empty()) return Refuse(node, "<pci> has no busid");
    if (!busids_.insert(busid).second) return Refuse(node, absl::StrCat("two <pci> have the busid ", busid));
    const double speed = PciSpeed(node);
    const absl::string_view cls = node.attribute("class").value();
    const pugi::xml_node gpu = node.child("gpu"), nic = node.child("nic");
    if (gpu || (!nic && (absl::StartsWith(cls, "0x03") || absl::StartsWith(cls, "0x12")))) {
      if (gpus_.size() == kMaxGpus) return Refuse(node, absl::StrCat("more than ", kMaxGpus, " GPUs"));
      gpus_.push_back({.pci = node, .gpu = gpu, .busid = busid, .parent = parent, .bytes_per_second = speed});
      if (gpu && gpu.next_sibling("gpu")) return Refuse(node, "<pci> has two <gpu>");
      return absl::OkStatus();
    }
    if (nic) return Nic(nic, parent, speed);
    if (absl::StartsWith(cls, "0x02")) {
      ++unnamed_nics_;
      ++nics_;
      SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading_->Add(LineOf(node), VertexKind::kNic,
                                                                   Inside(absl::StrCat("nic-", busid)), host_));
      return reading_->Connect(LineOf(node), vertex, parent, Medium::kPcie, speed);
    }
    bool children = false;
    for (const pugi::xml_node child : node.children()) children = children || child.type() == pugi::node_element;
    if (!children) return absl::OkStatus();  // a disk or the like
    SLUICE_ASSIGN_OR_RETURN(const uint32_t bridge, reading_->Add(LineOf(node), VertexKind::kBridge,
                                                                 Inside(absl::StrCat("pci-", busid)), host_));
    SLUICE_RETURN_IF_ERROR(reading_->Connect(LineOf(node), bridge, parent, Medium::kPcie, speed));
    for (const pugi::xml_node child : node.children()) {
      if (child.type() != pugi::node_element || absl::string_view(child.name()) == "pcilink") continue;
      SLUICE_RETURN_IF_ERROR(Device(child, bridge, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status Nic(const pugi::xml_node& nic, uint32_t parent, double speed) {
    for (const pugi::xml_node net : nic.children()) {
      if (net.type() != pugi::node_element) continue;
      if (absl::string_view(net.name()) != "net")
        return Refuse(net, absl::StrCat("unknown element <", net.name(), "> in <nic>"));
      const std::string name = Part(net.attribute("name").value());
      if (name.empty()) return Refuse(net, "<net> has no name");
      const int port = net.attribute("port").as_int(1);
      const std::string full = Inside(port > 1 ? absl::StrCat(name, ":", port) : name);
      if (reading_->graph.Find(full) != kNone) return Refuse(net, absl::StrCat("two <net> are called ", full));
      SLUICE_ASSIGN_OR_RETURN(const uint32_t vertex, reading_->Add(LineOf(net), VertexKind::kNic, full, host_));
      SLUICE_RETURN_IF_ERROR(reading_->Connect(LineOf(net), vertex, parent, Medium::kPcie, speed));
      ++nics_;
      const double megabits = net.attribute("speed").as_double(0);
      if (megabits > 0 && megabits < 1e8) reading_->graph.vertex(vertex).note = absl::StrCat(megabits / 1000, " Gb/s");
    }
    return absl::OkStatus();
  }

  // bytes/s each way after the lanes' code; 0: not said, or not to be believed.
  double PciSpeed(const pugi::xml_node& node) {
    const absl::string_view text = node.attribute("link_speed").value();  // "16.0 GT/s PCIe"
    const int width = node.attribute("link_width").as_int(0);
    double transfers = 0;
    if (!absl::SimpleAtod(text.substr(0, text.find(' ')), &transfers) || !(transfers > 0) || transfers > 1024 ||
        width <= 0 || width > 64) {
      // "" and "Unknown" say that nothing is known, widths of 0 and 255 too.
      if (!text.empty() && !absl::StartsWith(text, "Unknown") && width != 0 && width != 255 && unread_++ == 0) {
        first_unread_ = LineOf(node);
        unread_text_ = Shown(absl::StrCat(text, " x", node.attribute("link_width").value()));
      }
      return 0;
    }
    const double code = transfers < 8 ? 8.0 / 10 : transfers < 64 ? 128.0 / 130 : 242.0 / 256;
    const double speed = transfers * 1e9 / 8 * code * width;
    if (speed >= kLeastPci) return speed;
    ++slow_;
    return 0;
  }

  // Numbers as NCCL gives them (dev), else in order of bus ids among those that are free.
  absl::Status NameGpus() {
    absl::flat_hash_set<int> taken;
    std::vector<size_t> unnumbered;
    std::vector<int> number(gpus_.size(), -1);
    for (size_t i = 0; i < gpus_.size(); ++i) {
      const int dev = gpus_[i].gpu.attribute("dev").as_int(-1);
      if (dev < 0) {
        unnumbered.push_back(i);
      } else {
        if (dev >= static_cast<int>(kMaxGpus) || !taken.insert(dev).second)
          return Refuse(gpus_[i].gpu, absl::StrCat("dev ", dev, " is too large, or of two <gpu>"));
        number[i] = dev;
      }
    }
    std::sort(unnumbered.begin(), unnumbered.end(),
              [&](size_t a, size_t b) { return gpus_[a].busid < gpus_[b].busid; });
    int next = 0;
    for (const size_t i : unnumbered) {
      while (taken.contains(next)) ++next;
      number[i] = next++;
    }
    if (!unnumbered.empty())
      reading_->Warn(0,
                     absl::StrCat(unnumbered.size(), " GPUs have no <gpu dev>: they are counted in order of bus ids"));
    for (size_t i = 0; i < gpus_.size(); ++i) {
      Gpu& gpu = gpus_[i];
      SLUICE_ASSIGN_OR_RETURN(
          gpu.vertex, reading_->Add(LineOf(gpu.pci), VertexKind::kGpu, Inside(absl::StrCat("gpu", number[i])), host_));
      reading_->graph.vertex(gpu.vertex).note = gpu.busid;
      by_busid_[gpu.busid] = i;
      SLUICE_RETURN_IF_ERROR(
          reading_->Connect(LineOf(gpu.pci), gpu.vertex, gpu.parent, Medium::kPcie, gpu.bytes_per_second));
    }
    return absl::OkStatus();
  }

  // NVLink and xGMI; a link between GPUs may be listed from both sides and counts once.
  absl::Status LinkGpus() {
    struct Lines {
      uint32_t count = 0;
      double each = 0;
      Medium medium = Medium::kNvlink;
      size_t line = 0;
    };
    std::vector<std::pair<std::pair<uint32_t, uint32_t>, Lines>> links;  // in order
    absl::flat_hash_map<std::pair<uint32_t, uint32_t>, size_t> known;
    for (const Gpu& gpu : gpus_) {
      absl::flat_hash_map<uint32_t, uint32_t> from_here;  // counts: several entries to one target add up
      for (const pugi::xml_node link : gpu.gpu.children()) {
        if (link.type() != pugi::node_element) continue;
        const absl::string_view element = link.name();
        if (element != "nvlink" && element != "xgmi" && element != "c2c")
          return Refuse(link, absl::StrCat("unknown element <", element, "> in <gpu>"));
        if (element == "c2c") continue;  // to its own CPU (Grace): the way by <pci> stands for it
        Lines entry{.medium = element == "xgmi" ? Medium::kXgmi : Medium::kNvlink, .line = LineOf(link)};
        entry.each = element == "xgmi" ? XgmiBytesPerSecond(gpu.gpu.attribute("gcn").value())
                                       : NvlinkBytesPerSecond(gpu.gpu.attribute("sm").as_int(0));
        const int count = link.attribute("count").as_int(0);
        if (count <= 0 || count > 1024) return Refuse(link, absl::StrCat("<", element, "> without a count above 0"));
        const absl::string_view cls = link.attribute("tclass").value();
        const std::string target = absl::AsciiStrToLower(Part(link.attribute("target").value()));
        uint32_t to = kNone;
        if (absl::StartsWith(cls, "0x068001")) continue;  // a CPU (POWER): the way by <pci> stands for it
        if (absl::StartsWith(cls, "0x0680")) {
          SLUICE_ASSIGN_OR_RETURN(to, reading_->Add(LineOf(link), VertexKind::kBridge, Inside("nvswitch"), host_));
        } else if (const auto other = by_busid_.find(target); other != by_busid_.end()) {
          to = gpus_[other->second].vertex;
        } else {
          reading_->Warn(LineOf(link),
                         absl::StrCat("<", element, "> leads to ", Shown(target),
                                      ", which is no GPU here (a container sees some of them): left out"));
          continue;
        }
        if (to == gpu.vertex) return Refuse(link, "a GPU is linked with itself");
        const std::pair<uint32_t, uint32_t> ends = std::minmax(gpu.vertex, to);
        const uint32_t here = from_here[to] += static_cast<uint32_t>(count);
        const auto [it, is_new] = known.emplace(ends, links.size());
        if (is_new) links.push_back({ends, entry});
        Lines& all = links[it->second].second;
        all.count = std::max(all.count, here);
        all.each = std::max(all.each, entry.each);
      }
    }
    for (const auto& [ends, lines] : links)
      SLUICE_RETURN_IF_ERROR(reading_->Connect(lines.line, ends.first, ends.second, lines.medium,
                                               lines.each * lines.count, 0, lines.count));
    return absl::OkStatus();
  }

  Reading* const reading_;
  const LineIndex lines_;
  pugi::xml_document document_;
  uint32_t host_ = kNone;
  std::vector<uint32_t> cpus_;
  std::vector<Gpu> gpus_;
  absl::flat_hash_set<std::string> busids_;
  absl::flat_hash_map<std::string, size_t> by_busid_;
  size_t slow_ = 0, unread_ = 0, unnamed_nics_ = 0, nics_ = 0;
  size_t first_unread_ = 0;          // line
  std::string unread_text_;
};

absl::Status ReadNccl(Reading* reading) { return Nccl(reading).Read(); }

}  // namespace

const Format& NcclXmlFormat() {
  static const Format format = {.name = "nccl-xml",
                                .title = "NCCL or RCCL topology XML",
                                .inside_host = true,
                                .max_bytes = kMaxBytes,
                                .looks_like = LooksLike,
                                .read = ReadNccl};
  return format;
}

}  // namespace sluice::topology
