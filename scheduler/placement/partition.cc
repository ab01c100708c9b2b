#include "scheduler/placement/partition.h"

#include <metis.h>

#include <algorithm>
#include <tuple>

namespace sluice::placement {
namespace {

constexpr double kHeaviest = 1000;   // METIS wants integers: the heaviest edge, so that sums stay below 2^31

// By size alone, in order: what is left if METIS refuses.
std::vector<uint32_t> InOrder(const std::vector<uint32_t>& sizes) {
  std::vector<uint32_t> part;
  for (uint32_t p = 0; p < sizes.size(); ++p) part.insert(part.end(), sizes[p], p);
  return part;
}

// Moves vertices out of parts that are too large, those first that lose least by it.
void MakeExact(const WeightedGraph& graph, const std::vector<uint32_t>& sizes, std::vector<uint32_t>* part) {
  std::vector<int64_t> over(sizes.size());
  for (size_t p = 0; p < sizes.size(); ++p) over[p] = -static_cast<int64_t>(sizes[p]);
  for (const uint32_t p : *part) ++over[p];
  std::vector<double> near(sizes.size());
  using Offer = std::tuple<double, uint32_t, uint32_t>;   // loss, vertex, where to
  for (bool any = true; any;) {   // each turn moves at least one vertex, or none is over
    std::vector<Offer> offers;
    for (uint32_t v = 0; v < part->size(); ++v) {
      if (over[(*part)[v]] <= 0) continue;
      std::fill(near.begin(), near.end(), 0.0);
      for (uint32_t e = graph.first[v]; e < graph.first[v + 1]; ++e) near[(*part)[graph.to[e]]] += graph.weight[e];
      uint32_t best = static_cast<uint32_t>(sizes.size());
      for (uint32_t p = 0; p < sizes.size(); ++p)
        if (over[p] < 0 && (best == sizes.size() || near[p] > near[best])) best = p;
      if (best < sizes.size()) offers.emplace_back(near[(*part)[v]] - near[best], v, best);
    }
    std::sort(offers.begin(), offers.end());
    any = false;
    for (const auto& [loss, v, p] : offers) {
      if (over[(*part)[v]] <= 0 || over[p] >= 0) continue;
      --over[(*part)[v]];
      ++over[p];
      (*part)[v] = p;
      any = true;
    }
  }
}

}  // namespace

std::vector<uint32_t> CutIntoParts(const WeightedGraph& graph, const std::vector<uint32_t>& sizes, uint64_t seed) {
  const size_t vertices = graph.first.size() - 1;
  std::vector<uint32_t> parts_used;   // METIS does not like empty parts
  for (uint32_t p = 0; p < sizes.size(); ++p)
    if (sizes[p] > 0) parts_used.push_back(p);
  if (parts_used.size() <= 1 || graph.to.empty()) return InOrder(sizes);

  double heaviest = 0;
  for (const double weight : graph.weight) heaviest = std::max(heaviest, weight);
  std::vector<idx_t> first(graph.first.begin(), graph.first.end()), to(graph.to.begin(), graph.to.end()), weight;
  weight.reserve(graph.weight.size());
  for (const double w : graph.weight) weight.push_back(std::max<idx_t>(1, static_cast<idx_t>(w / heaviest * kHeaviest)));
  std::vector<real_t> shares;
  for (const uint32_t p : parts_used) shares.push_back(static_cast<real_t>(sizes[p]) / static_cast<real_t>(vertices));

  idx_t options[METIS_NOPTIONS];
  METIS_SetDefaultOptions(options);
  options[METIS_OPTION_SEED] = static_cast<idx_t>(seed & 0x7fffffff);
  options[METIS_OPTION_NUMBERING] = 0;
  options[METIS_OPTION_UFACTOR] = 1;
  idx_t n = static_cast<idx_t>(vertices), constraints = 1, parts = static_cast<idx_t>(parts_used.size()), cut = 0;
  std::vector<idx_t> found(vertices);
  const int outcome = METIS_PartGraphRecursive(&n, &constraints, first.data(), to.data(), nullptr, nullptr, weight.data(), &parts,
                                               shares.data(), nullptr, options, &cut, found.data());
  if (outcome != METIS_OK) return InOrder(sizes);
  std::vector<uint32_t> part(vertices);
  for (size_t v = 0; v < vertices; ++v) part[v] = parts_used[static_cast<size_t>(found[v])];
  MakeExact(graph, sizes, &part);
  return part;
}

}  // namespace sluice::placement
