#include "scheduler/topology/formats/affinity.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"

namespace sluice::topology {
namespace {

constexpr size_t kMaxExact = 12;       // GPUs: beyond, the ring is found step by step
constexpr double kNvlinkGuess = 20e9;  // of a link whose speed is not known

// How far a way is; the smaller, the nearer.
struct Distance {
  uint32_t sockets = kNone, links = kNone;
  double width = 0;
  bool operator<(const Distance& other) const {
    return std::tuple(sockets, links, -width) < std::tuple(other.sockets, other.links, -other.width);
  }
  bool operator==(const Distance&) const = default;
};

bool NaturalLess(absl::string_view a, absl::string_view b) {
  for (;;) {
    if (a.empty() || b.empty()) return a.size() < b.size();
    if (absl::ascii_isdigit(a[0]) && absl::ascii_isdigit(b[0])) {
      const auto number = [](absl::string_view* text) {
        size_t end = 0;
        while (end < text->size() && absl::ascii_isdigit((*text)[end])) ++end;
        absl::string_view digits = text->substr(0, end);
        text->remove_prefix(end);
        while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
        return digits;
      };
      const absl::string_view x = number(&a), y = number(&b);
      if (x != y) return std::pair(x.size(), x) < std::pair(y.size(), y);
      continue;
    }
    if (a[0] != b[0]) return a[0] < b[0];
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
}

// From `from` to everything in the host over PCIe and sockets. A way through the host itself (its memory) crosses
// sockets.
absl::flat_hash_map<uint32_t, Distance> Distances(const Graph& graph, uint32_t host, uint32_t from) {
  absl::flat_hash_map<uint32_t, Distance> best;
  using Entry = std::pair<Distance, uint32_t>;
  const auto later = [](const Entry& a, const Entry& b) { return b.first < a.first; };
  std::priority_queue<Entry, std::vector<Entry>, decltype(later)> open(later);
  open.push({{0, 0, std::numeric_limits<double>::infinity()}, from});
  while (!open.empty()) {
    const auto [distance, v] = open.top();
    open.pop();
    if (!best.emplace(v, distance).second) continue;
    if (v != from && (graph.vertex(v).kind == VertexKind::kGpu || graph.vertex(v).kind == VertexKind::kNic)) continue;
    for (const Graph::Half& half : graph.Incident(v)) {
      const Link& link = graph.link(half.link);
      if (graph.vertex(half.to).host != host || best.contains(half.to)) continue;
      if (link.medium != Medium::kPcie && link.medium != Medium::kSocket) continue;
      Distance next = distance;
      next.sockets += link.medium == Medium::kSocket || half.to == host || v == host;
      next.links += 1;
      if (link.bytes_per_second > 0) next.width = std::min(next.width, link.bytes_per_second);
      open.push({next, half.to});
    }
  }
  return best;
}

// NVLink or xGMI bandwidth between two GPUs: a link, or the narrower of two links to a switch of the host.
double Nvlink(const Graph& graph, uint32_t a, uint32_t b) {
  double direct = 0, switched = 0;
  const auto speed = [&](uint32_t l) {
    const Link& link = graph.link(l);
    if (link.medium != Medium::kNvlink && link.medium != Medium::kXgmi) return 0.0;
    return link.bytes_per_second > 0 ? link.bytes_per_second : kNvlinkGuess * link.cables;
  };
  for (const Graph::Half& half : graph.Incident(a)) {
    if (half.to == b)
      direct += speed(half.link);
    else if (graph.vertex(half.to).kind == VertexKind::kBridge)
      for (const Graph::Half& other : graph.Incident(half.to))
        if (other.to == b) switched += std::min(speed(half.link), speed(other.link));
  }
  return direct + switched;
}

// What two neighbours in the ring are worth: more NVLink first, then less PCIe.
struct Worth {
  double nvlink = 0;
  double far = 0;
  Worth operator+(const Worth& other) const { return {nvlink + other.nvlink, far + other.far}; }
  bool operator<(const Worth& other) const { return nvlink != other.nvlink ? nvlink < other.nvlink : far > other.far; }
};

using Matrix = std::vector<std::vector<Worth>>;

// The best ring through all, by trying all subsets (Held and Karp); equal ones in order of numbers.
std::vector<size_t> BestRing(const Matrix& worth) {
  const size_t n = worth.size();
  struct Cell {
    bool known = false;
    Worth worth;
    size_t next = 0;
  };
  // rest[set][v]: from v through all of `set` (without v and 0) and back to 0.
  std::vector<std::vector<Cell>> rest(size_t{1} << n, std::vector<Cell>(n));
  for (size_t set = 0; set < rest.size(); ++set)
    for (size_t v = 0; v < n; ++v) {
      if ((set & 1) != 0 || (set >> v & 1) != 0) continue;
      Cell& cell = rest[set][v];
      if (set == 0) {
        cell = {true, v == 0 ? Worth{} : worth[v][0], 0};
        continue;
      }
      for (size_t next = 1; next < n; ++next) {
        if ((set >> next & 1) == 0) continue;
        const Worth here = worth[v][next] + rest[set & ~(size_t{1} << next)][next].worth;
        if (!cell.known || cell.worth < here) cell = {true, here, next};
      }
    }
  std::vector<size_t> order = {0};
  for (size_t set = (size_t{1} << n) - 2; set != 0;) {
    const size_t next = rest[set][order.back()].next;
    order.push_back(next);
    set &= ~(size_t{1} << next);
  }
  return order;
}

std::vector<size_t> GreedyRing(const Matrix& worth) {
  std::vector<size_t> order = {0};
  std::vector<bool> taken(worth.size());
  taken[0] = true;
  while (order.size() < worth.size()) {
    size_t best = worth.size();
    for (size_t v = 0; v < worth.size(); ++v)
      if (!taken[v] && (best == worth.size() || worth[order.back()][best] < worth[order.back()][v])) best = v;
    taken[best] = true;
    order.push_back(best);
  }
  return order;
}

}  // namespace

std::vector<uint32_t> DevicesOf(const Graph& graph, uint32_t host, VertexKind kind) {
  // Devices hang on the host or on what is inside it, so they are found from there.
  std::vector<uint32_t> found, open = {host};
  absl::flat_hash_map<uint32_t, bool> seen = {{host, true}};
  while (!open.empty()) {
    const uint32_t v = open.back();
    open.pop_back();
    if (graph.vertex(v).kind == kind && v != host) found.push_back(v);
    for (const Graph::Half& half : graph.Incident(v))
      if (graph.vertex(half.to).host == host && seen.emplace(half.to, true).second) open.push_back(half.to);
  }
  std::sort(found.begin(), found.end(),
            [&](uint32_t a, uint32_t b) { return NaturalLess(graph.vertex(a).name, graph.vertex(b).name); });
  return found;
}

HostDevices OrderDevices(const Graph& graph, uint32_t host) {
  const std::vector<uint32_t> gpus = DevicesOf(graph, host, VertexKind::kGpu),
                              nics = DevicesOf(graph, host, VertexKind::kNic);
  HostDevices out;
  if (gpus.empty()) return out;
  std::vector<absl::flat_hash_map<uint32_t, Distance>> distances;
  for (const uint32_t gpu : gpus) distances.push_back(Distances(graph, host, gpu));
  const auto distance = [&](size_t gpu, uint32_t to) {
    const auto it = distances[gpu].find(to);
    return it == distances[gpu].end() ? Distance() : it->second;
  };
  std::vector<size_t> users(nics.size());
  std::vector<uint32_t> nic_of(gpus.size(), kNone);
  for (size_t g = 0; g < gpus.size(); ++g) {
    size_t best = nics.size();
    for (size_t n = 0; n < nics.size(); ++n) {
      const Distance here = distance(g, nics[n]);
      if (best == nics.size() || here < distance(g, nics[best]) ||
          (here == distance(g, nics[best]) && users[n] < users[best]))
        best = n;
    }
    if (best == nics.size()) continue;
    ++users[best];
    nic_of[g] = nics[best];
  }
  Matrix worth(gpus.size(), std::vector<Worth>(gpus.size()));
  for (size_t a = 0; a < gpus.size(); ++a)
    for (size_t b = 0; b < gpus.size(); ++b) {
      if (a == b) continue;
      const Distance way = distance(a, gpus[b]);
      worth[a][b] = {Nvlink(graph, gpus[a], gpus[b]), way.links == kNone ? 1e6 : 1000.0 * way.sockets + way.links};
    }
  for (const size_t g : gpus.size() <= kMaxExact ? BestRing(worth) : GreedyRing(worth)) {
    out.gpus.push_back(gpus[g]);
    out.nics.push_back(nic_of[g]);
  }
  return out;
}

}  // namespace sluice::topology
