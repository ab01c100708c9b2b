#include "worker/collective/schedule.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::collective {
namespace {

struct Range {
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
};

Range Part(Range whole, uint32_t n, uint32_t i) {
  return {whole.begin + PartBegin(whole.size(), n, i), whole.begin + PartBegin(whole.size(), n, i + 1)};
}

// Appends the steps of one member. Members of a phase are given as a list of indices in the group, in which this member
// may be missing: then the phase does not concern it.
class Builder {
 public:
  Builder(uint32_t me, uint64_t piece) : me_(me), piece_(std::max<uint64_t>(piece, 1)) {}
  Steps Take() { return std::move(steps_); }

  void Send(uint32_t peer, Range range, bool from_input = false) { Add(Step::Kind::kSend, peer, range, from_input); }
  void Reduce(uint32_t peer, Range range) { Add(Step::Kind::kReduce, peer, range, false); }
  void Copy(uint32_t peer, Range range) { Add(Step::Kind::kCopy, peer, range, false); }

  // Of the members' n parts of the range, member i has the sum of part i at the end.
  void RingReduceScatter(const std::vector<uint32_t>& members, Range range) {
    const uint32_t n = static_cast<uint32_t>(members.size());
    const uint32_t i = Find(members);
    if (i == n) return;
    for (uint32_t s = 0; s + 1 < n; ++s) {
      Exchange(members[(i + 1) % n], Part(range, n, (i + 2 * n - 1 - s) % n), members[(i + n - 1) % n],
               Part(range, n, (i + 2 * n - 2 - s) % n), Step::Kind::kReduce);
    }
  }

  // Member i brings part i; all have the range at the end.
  void RingAllGather(const std::vector<uint32_t>& members, Range range) {
    const uint32_t n = static_cast<uint32_t>(members.size());
    const uint32_t i = Find(members);
    if (i == n) return;
    for (uint32_t s = 0; s + 1 < n; ++s) {
      Exchange(members[(i + 1) % n], Part(range, n, (i + n - s) % n), members[(i + n - 1) % n],
               Part(range, n, (i + 2 * n - 1 - s) % n), Step::Kind::kCopy);
    }
  }

  // All values to members[0], each adding its right neighbour's sum to its own; and back.
  void ChainReduce(const std::vector<uint32_t>& members, Range range) {
    const uint32_t n = static_cast<uint32_t>(members.size());
    const uint32_t i = Find(members);
    if (i == n) return;
    Pieces(range, [&](Range piece) {
      if (i + 1 < n) Reduce(members[i + 1], piece);
      if (i > 0) Send(members[i - 1], piece);
    });
  }
  void ChainBroadcast(const std::vector<uint32_t>& members, Range range) {
    const uint32_t n = static_cast<uint32_t>(members.size());
    const uint32_t i = Find(members);
    if (i == n) return;
    Pieces(range, [&](Range piece) {
      if (i > 0) Copy(members[i - 1], piece);
      if (i + 1 < n) Send(members[i + 1], piece);
    });
  }

  template <typename Fn>
  void Pieces(Range range, Fn fn) {
    for (uint64_t at = range.begin; at < range.end; at += piece_) fn(Range{at, std::min(range.end, at + piece_)});
  }

 private:
  uint32_t Find(const std::vector<uint32_t>& members) const {
    return static_cast<uint32_t>(std::find(members.begin(), members.end(), me_) - members.begin());
  }

  void Add(Step::Kind kind, uint32_t peer, Range range, bool from_input) {
    Pieces(range, [&](Range piece) { steps_.push_back({kind, from_input, peer, piece.begin, piece.size()}); });
  }

  // A piece out and a piece in by turns, so that the list's order is that in which a pipeline moves.
  void Exchange(uint32_t to, Range out, uint32_t from, Range in, Step::Kind kind) {
    uint64_t a = out.begin, b = in.begin;
    while (a < out.end || b < in.end) {
      if (a < out.end) {
        Add(Step::Kind::kSend, to, {a, std::min(out.end, a + piece_)}, false);
        a += piece_;
      }
      if (b < in.end) {
        Add(kind, from, {b, std::min(in.end, b + piece_)}, false);
        b += piece_;
      }
    }
  }

  const uint32_t me_;
  const uint64_t piece_;
  Steps steps_;
};

std::vector<uint32_t> All(uint32_t n) {
  std::vector<uint32_t> members(n);
  for (uint32_t i = 0; i < n; ++i) members[i] = i;
  return members;
}

void HalvingDoubling(Builder& builder, uint32_t n, uint32_t me, uint64_t elements) {
  const Range whole{0, elements};
  const uint32_t p = std::bit_floor(n), extra = n - p;
  if (me < 2 * extra && me % 2 == 1) {   // stands behind its even neighbour
    builder.Send(me - 1, whole);
    builder.Copy(me - 1, whole);
    return;
  }
  const bool doubled = me < 2 * extra;
  if (doubled) builder.Reduce(me + 1, whole);
  const uint32_t v = doubled ? me / 2 : me - extra;
  const auto real = [&](uint32_t v) { return v < extra ? 2 * v : v + extra; };
  std::vector<Range> kept = {whole};
  for (uint32_t d = p / 2; d > 0; d /= 2) {
    const Range range = kept.back();
    const uint64_t middle = range.begin + range.size() / 2;
    const Range low{range.begin, middle}, high{middle, range.end};
    const bool upper = (v & d) != 0;
    builder.Send(real(v ^ d), upper ? low : high);
    builder.Reduce(real(v ^ d), upper ? high : low);
    kept.push_back(upper ? high : low);
  }
  for (uint32_t d = 1; d < p; d *= 2) {
    const Range mine = kept.back();
    kept.pop_back();
    const Range whole_of_both = kept.back();
    const Range theirs = mine.begin == whole_of_both.begin ? Range{mine.end, whole_of_both.end}
                                                           : Range{whole_of_both.begin, mine.begin};
    builder.Send(real(v ^ d), mine);
    builder.Copy(real(v ^ d), theirs);
  }
  if (doubled) builder.Send(me + 1, whole);
}

struct Tree {
  bool has_parent = false;
  uint32_t parent = 0;
  std::vector<uint32_t> children;   // ascending
};

// The tree whose levels are the lowest set bits: leaves are the odd members, 0 is the root.
uint32_t BitParent(uint32_t v, uint32_t n) {
  const uint32_t bit = v & -v;
  const uint32_t up = (v ^ bit) | (bit << 1);
  return up >= n ? v ^ bit : up;
}

// other: the members in another order, so that those inside the one tree are leaves of the other.
Tree BitTree(uint32_t n, uint32_t me, bool other) {
  const auto place = [&](uint32_t member) { return !other ? member : n % 2 == 0 ? n - 1 - member : (member + n - 1) % n; };
  const auto member = [&](uint32_t place) { return !other ? place : n % 2 == 0 ? n - 1 - place : (place + 1) % n; };
  Tree tree;
  const uint32_t v = place(me);
  if (v != 0) {
    tree.has_parent = true;
    tree.parent = member(BitParent(v, n));
  }
  // Children differ from their parent in one bit at or below its lowest, and are at most one for each such bit.
  for (uint32_t child = 1; child < n; ++child)
    if (child != v && BitParent(child, n) == v) tree.children.push_back(member(child));
  std::sort(tree.children.begin(), tree.children.end());
  return tree;
}

// The binary tree over the members counted from the root on.
Tree RootedTree(Algorithm algorithm, uint32_t n, uint32_t me, uint32_t root) {
  const uint32_t v = (me + n - root) % n;
  const auto member = [&](uint64_t v) { return static_cast<uint32_t>((v + root) % n); };
  Tree tree;
  const uint32_t arity = algorithm == Algorithm::kChain ? 1 : 2;
  if (v != 0) {
    tree.has_parent = true;
    tree.parent = member((v - 1) / arity);
  }
  for (uint32_t c = 1; c <= arity; ++c) {
    const uint64_t child = uint64_t{arity} * v + c;
    if (child < n) tree.children.push_back(member(child));
  }
  std::sort(tree.children.begin(), tree.children.end());
  return tree;
}

void Up(Builder& builder, const Tree& tree, Range piece) {
  for (const uint32_t child : tree.children) builder.Reduce(child, piece);
  if (tree.has_parent) builder.Send(tree.parent, piece);
}

void Down(Builder& builder, const Tree& tree, Range piece) {
  if (tree.has_parent) builder.Copy(tree.parent, piece);
  for (const uint32_t child : tree.children) builder.Send(child, piece);
}

void DoubleTree(Builder& builder, uint32_t n, uint32_t me, uint64_t elements, uint64_t piece) {
  const Tree trees[] = {BitTree(n, me, false), BitTree(n, me, true)};
  const Range halves[] = {{0, elements - elements / 2}, {elements - elements / 2, elements}};
  piece = std::max<uint64_t>(piece, 1);
  for (const bool up : {true, false}) {
    for (uint64_t at = 0; at < halves[0].size(); at += piece) {
      for (int t = 0; t < 2; ++t) {
        const Range part{std::min(halves[t].begin + at, halves[t].end), std::min(halves[t].begin + at + piece, halves[t].end)};
        if (up) Up(builder, trees[t], part);
        else Down(builder, trees[t], part);
      }
    }
  }
}

// Members, of which this one is one, that are the same at `level` as it; and whether all such sets are of one size.
struct Domain {
  std::vector<uint32_t> members;
  bool even = true;
  uint32_t index = 0;   // of this member
};

Domain DomainOf(const std::vector<uint32_t>& members, const std::vector<uint32_t>& numbers, uint32_t me) {
  std::map<uint32_t, size_t> sizes;
  Domain domain;
  for (const uint32_t member : members) {
    ++sizes[numbers[member]];
    if (numbers[member] != numbers[me]) continue;
    if (member == me) domain.index = static_cast<uint32_t>(domain.members.size());
    domain.members.push_back(member);
  }
  for (const auto& [number, size] : sizes) domain.even &= size == domain.members.size();
  return domain;
}

void Hierarchical(Builder& builder, const Layout& layout, const std::vector<uint32_t>& members, size_t level, Range range) {
  if (members.size() == 1) return;
  if (level == layout.domains.size()) {
    builder.RingReduceScatter(members, range);
    builder.RingAllGather(members, range);
    return;
  }
  const std::vector<uint32_t>& numbers = layout.domains[level];
  const Domain domain = DomainOf(members, numbers, layout.me);
  // Those that go on at the next level with this member: of each domain the one with its index, or the first.
  std::map<uint32_t, uint32_t> seen;
  std::vector<uint32_t> next;
  for (const uint32_t member : members)
    if (seen[numbers[member]]++ == (domain.even ? domain.index : 0)) next.push_back(member);
  if (domain.even) {
    const uint32_t n = static_cast<uint32_t>(domain.members.size());
    builder.RingReduceScatter(domain.members, range);
    Hierarchical(builder, layout, next, level + 1, Part(range, n, domain.index));
    builder.RingAllGather(domain.members, range);
  } else {
    builder.ChainReduce(domain.members, range);
    if (domain.index == 0) Hierarchical(builder, layout, next, level + 1, range);
    builder.ChainBroadcast(domain.members, range);
  }
}

constexpr std::pair<Algorithm, absl::string_view> kNames[] = {
    {Algorithm::kAuto, "auto"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kHalvingDoubling, "halving_doubling"},
    {Algorithm::kDoubleTree, "double_tree"},
    {Algorithm::kHierarchical, "hierarchical"},
    {Algorithm::kChain, "chain"},
    {Algorithm::kTree, "tree"},
};

}  // namespace

absl::string_view AlgorithmName(Algorithm algorithm) {
  for (const auto& [known, name] : kNames)
    if (known == algorithm) return name;
  return "?";
}

absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name) {
  if (name.empty()) return Algorithm::kAuto;
  std::string all;
  for (const auto& [algorithm, known] : kNames) {
    if (known == name) return algorithm;
    absl::StrAppend(&all, all.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no algorithm \"", name.substr(0, 64), "\" for collectives; there are: ", all));
}

Steps AllReduceSteps(Algorithm algorithm, const Layout& layout, uint64_t elements, uint64_t piece) {
  Builder builder(layout.me, piece);
  const uint32_t n = layout.members;
  if (n < 2) return {};
  switch (algorithm) {
    case Algorithm::kHalvingDoubling: HalvingDoubling(builder, n, layout.me, elements); break;
    case Algorithm::kDoubleTree: DoubleTree(builder, n, layout.me, elements, piece); break;
    case Algorithm::kHierarchical: Hierarchical(builder, layout, All(n), 0, {0, elements}); break;
    default:
      builder.RingReduceScatter(All(n), {0, elements});
      builder.RingAllGather(All(n), {0, elements});
  }
  return builder.Take();
}

Steps ReduceSteps(Algorithm algorithm, const Layout& layout, uint32_t root, uint64_t elements, uint64_t piece) {
  Builder builder(layout.me, piece);
  const Tree tree = RootedTree(algorithm, layout.members, layout.me, root);
  builder.Pieces({0, elements}, [&](Range range) { Up(builder, tree, range); });
  return builder.Take();
}

Steps BroadcastSteps(Algorithm algorithm, const Layout& layout, uint32_t root, uint64_t elements, uint64_t piece) {
  Builder builder(layout.me, piece);
  const Tree tree = RootedTree(algorithm, layout.members, layout.me, root);
  builder.Pieces({0, elements}, [&](Range range) { Down(builder, tree, range); });
  return builder.Take();
}

Steps AllGatherSteps(const Layout& layout, uint64_t count, uint64_t piece) {
  Builder builder(layout.me, piece);
  builder.RingAllGather(All(layout.members), {0, count * layout.members});
  return builder.Take();
}

Steps ReduceScatterSteps(const Layout& layout, uint64_t count, uint64_t piece) {
  Builder builder(layout.me, piece);
  builder.RingReduceScatter(All(layout.members), {0, count * layout.members});
  return builder.Take();
}

Steps AllToAllSteps(const Layout& layout, uint64_t count, uint64_t piece) {
  Builder builder(layout.me, piece);
  const uint32_t n = layout.members;
  for (uint32_t s = 1; s < n; ++s) {   // in each turn everybody sends to one and takes from one
    const uint32_t to = (layout.me + s) % n, from = (layout.me + n - s) % n;
    builder.Send(to, {to * count, (to + 1) * count}, /*from_input=*/true);
    builder.Copy(from, {from * count, (from + 1) * count});
  }
  return builder.Take();
}

std::vector<std::vector<uint32_t>> Dependencies(const Steps& steps) {
  constexpr uint32_t kNobody = UINT32_MAX;
  // What was done last to the elements from the key up to `end`; all that was touched is in it, without overlaps.
  struct Touched {
    uint64_t end = 0;
    uint32_t writer = kNobody;
    std::vector<uint32_t> readers;   // since
  };
  std::map<uint64_t, Touched> touched;
  // So that a range may begin or end at `at`.
  const auto split = [&](uint64_t at) {
    auto it = touched.upper_bound(at);
    if (it == touched.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Touched upper = it->second;
    it->second.end = at;
    touched.emplace(at, std::move(upper));
  };
  std::vector<std::vector<uint32_t>> result(steps.size());
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (step.from_input) continue;
    const uint64_t begin = step.offset, end = step.offset + step.count;
    const bool writes = step.kind != Step::Kind::kSend;
    split(begin);
    split(end);
    std::vector<uint32_t>& before = result[i];
    uint64_t at = begin;
    for (auto it = touched.lower_bound(begin); at < end;) {
      if (it == touched.end() || it->first > at) {   // a gap that nobody has touched
        const uint64_t gap_end = it == touched.end() ? end : std::min(end, it->first);
        it = touched.emplace_hint(it, at, Touched{.end = gap_end, .writer = kNobody, .readers = {}});
      }
      Touched& piece = it->second;
      if (piece.writer != kNobody) before.push_back(piece.writer);
      if (writes) {
        before.insert(before.end(), piece.readers.begin(), piece.readers.end());
        piece.writer = i;
        piece.readers.clear();
      } else {
        piece.readers.push_back(i);
      }
      at = piece.end;
      ++it;
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
  }
  return result;
}

}  // namespace sluice::collective
