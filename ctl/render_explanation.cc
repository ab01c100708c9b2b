#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ctl/render.h"
#include "ctl/table.h"

namespace sluice::ctl {
namespace {

constexpr int kRanksShown = 64, kTreesShown = 16, kServersShown = 32, kRoutesShown = 32;

std::string Ms(double ms) { return std::isinf(ms) ? "never" : ms < 10 ? absl::StrFormat("%.2f ms", ms) : absl::StrFormat("%.1f ms", ms); }

std::string Rate(double bytes_per_second) { return absl::StrCat(Bytes(static_cast<uint64_t>(std::max(0.0, bytes_per_second))), "/s"); }

// As operators name links: "200 Mb/s", "25 Gb/s".
std::string BitRate(double bytes_per_second) {
  double bits = 8 * std::max(0.0, bytes_per_second);
  int unit = 0;
  for (; bits >= 1000 && unit < 4; ++unit) bits /= 1000;
  return absl::StrFormat("%.4g %sb/s", bits, std::vector<const char*>{"", "k", "M", "G", "T"}[static_cast<size_t>(unit)]);
}

// "0-3,8": ranks ascending.
std::string RankRanges(const google::protobuf::RepeatedField<uint32_t>& ranks) {
  std::string text;
  for (int i = 0; i < ranks.size();) {
    int until = i + 1;
    while (until < ranks.size() && ranks[until] == ranks[until - 1] + 1) ++until;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[i], until - i > 1 ? absl::StrCat("-", ranks[until - 1]) : "");
    i = until;
  }
  return text.empty() ? "-" : text;
}

// Hosts with runs of ranks, so that a thousand ranks are readable: "node7: 0-7".
std::string RanksText(const proto::Explanation& e) {
  Table table({">RANKS", "HOST", "DEVICES"});
  int rows = 0, left_out = 0;
  for (int i = 0; i < e.ranks_size();) {
    int until = i + 1;
    std::vector<std::string> devices(e.ranks(i).devices().begin(), e.ranks(i).devices().end());
    while (until < e.ranks_size() && e.ranks(until).host() == e.ranks(i).host() && e.ranks(until).rank() == e.ranks(until - 1).rank() + 1) {
      devices.insert(devices.end(), e.ranks(until).devices().begin(), e.ranks(until).devices().end());
      ++until;
    }
    if (rows < kRanksShown) {
      table.Add({until - i > 1 ? absl::StrCat(e.ranks(i).rank(), "-", e.ranks(until - 1).rank()) : absl::StrCat(e.ranks(i).rank()),
                 e.ranks(i).host(), absl::StrJoin(devices, ", ")});
      ++rows;
    } else {
      left_out += until - i;
    }
    i = until;
  }
  return absl::StrCat(table.Text(), left_out > 0 ? absl::StrCat(left_out, " more ranks (--json or --output=hostlist has all)\n") : "");
}

std::string ChoiceText(const proto::Choice& choice) {
  std::string text = absl::StrCat(Clean(choice.what()), ": ", Clean(choice.chosen()), "\n",
                                  choice.why().empty() ? "" : absl::StrCat("  why: ", Clean(choice.why()), "\n"));
  if (choice.options().empty()) return text;
  Table table({"  OPTION", ">STEP", ">AGAINST CHOSEN", "NOTE"});
  double chosen = -1;
  for (const proto::Option& option : choice.options())
    if (option.name() == choice.chosen()) chosen = option.step_ms();
  for (const proto::Option& option : choice.options())
    table.Add({absl::StrCat(option.name() == choice.chosen() ? "* " : "  ", option.name()), Ms(option.step_ms()),
               option.name() == choice.chosen() || chosen <= 0 || std::isinf(option.step_ms())
                   ? "-" : absl::StrFormat("%+.0f %%", 100 * (option.step_ms() / chosen - 1)),
               option.note()});
  return absl::StrCat(text, table.Text());
}

std::string TreesText(const proto::Explanation& e) {
  if (e.trees().empty()) return "";
  Table table({">TREE", ">NODE", ">SERVER", "FORWARDS TO", "RANKS"});
  for (int t = 0; t < std::min(kTreesShown, e.trees_size()); ++t) {
    const proto::Tree& tree = e.trees(t);
    for (int n = 0; n < tree.nodes_size(); ++n)
      table.Add({absl::StrCat(tree.tree()), absl::StrCat(n), absl::StrCat(tree.nodes(n).server()),
                 tree.nodes(n).parent() < 0 ? "owner" : absl::StrCat("node ", tree.nodes(n).parent()), RankRanges(tree.nodes(n).ranks())});
  }
  return absl::StrCat("\n", table.Text(), e.trees_size() > kTreesShown ? absl::StrCat(e.trees_size() - kTreesShown, " more trees (--json)\n") : "");
}

std::string RoutesText(const proto::Explanation& e, bool all) {
  if (e.routes().empty()) return "";
  Table table({"ROUTES", "VIA", ">BYTES A STEP", "NARROWEST", ">CARRIES", "WHAT"});
  const int shown = all ? e.routes_size() : std::min(kRoutesShown, e.routes_size());
  for (int i = 0; i < shown; ++i) {
    const proto::RouteLoad& route = e.routes(i);
    // What is inside of a host goes by its own name: "mlx5_0", not "node7/mlx5_0".
    const std::string via = absl::StrJoin(route.via(), " ", [&](std::string* out, const std::string& name) {
      for (const std::string& end : {route.from(), route.to()})
        if (const std::string host = absl::StrCat(end.substr(0, end.find(' ')), "/"); absl::StartsWith(name, host))
          return absl::StrAppend(out, name.substr(host.size()));
      absl::StrAppend(out, name);
    });
    table.Add({absl::StrCat(route.from(), " -> ", route.to()), via.empty() ? "-" : absl::StrCat("via ", via),
               Bytes(static_cast<uint64_t>(std::max(0.0, route.bytes()))), route.narrowest(), BitRate(route.bytes_per_second()), route.what()});
  }
  const uint64_t more = static_cast<uint64_t>(e.routes_size() - shown) + e.routes_left_out();
  std::string rest;
  if (more > 0) rest = absl::StrCat(more, " more routes", shown < e.routes_size() ? absl::StrCat("; --all shows ", e.routes_size() - shown, " of them") : "", "\n");
  return absl::StrCat("\n", table.Text(), rest);
}

}  // namespace

std::string Render(const proto::Explanation& e, bool all) {
  std::string text = absl::StrCat("job \"", Clean(e.job()), "\", ", e.plan_version() == 0 ? "dry run" : absl::StrCat("plan version ", e.plan_version()), "\n",
                                  "topology: ", Clean(e.topology()), "\n",
                                  "predicted step: ", Ms(e.step_ms()), " = ", Ms(e.compute_ms()), " of computing, ", Ms(e.communication_ms()),
                                  " of communication");
  if (e.bound_ms() > 0) absl::StrAppend(&text, " (no placement could do it in less than ", Ms(e.bound_ms()), ")");
  if (e.measured_step_ms() > 0)
    absl::StrAppend(&text, "; measured: ", Ms(e.measured_step_ms()), absl::StrFormat(" (%+.0f %%)", 100 * (e.measured_step_ms() / std::max(1e-9, e.step_ms()) - 1)));
  absl::StrAppend(&text, "\n");
  for (const proto::Choice& choice : e.choices()) absl::StrAppend(&text, "\n", ChoiceText(choice));
  if (!e.busiest().empty()) {
    Table links({"BUSIEST LINKS", "TO", ">BYTES A STEP", ">CARRIES", ">BUSY", "BANDWIDTH"});
    for (const proto::LinkLoad& load : e.busiest())
      links.Add({load.from(), load.to(), Bytes(static_cast<uint64_t>(std::max(0.0, load.bytes()))), Rate(load.bytes_per_second()), Ms(load.busy_ms()), load.source()});
    absl::StrAppend(&text, "\n", links.Text());
  }
  absl::StrAppend(&text, RoutesText(e, all), TreesText(e));
  if (!e.servers().empty()) {
    absl::StrAppend(&text, "\n");
    for (int i = 0; i < std::min(kServersShown, e.servers_size()); ++i) absl::StrAppend(&text, Clean(e.servers(i)), "\n");
    if (e.servers_size() > kServersShown) absl::StrAppend(&text, e.servers_size() - kServersShown, " more servers (--json)\n");
  }
  if (!e.ranks().empty()) absl::StrAppend(&text, "\n", RanksText(e));
  if (!e.notes().empty()) absl::StrAppend(&text, "\n");
  for (const std::string& note : e.notes()) absl::StrAppend(&text, "note: ", Clean(note), "\n");
  return text;
}

std::string RenderForLauncher(const proto::Explanation& e, const std::string& format) {
  std::vector<const proto::PlacedRank*> ranks;
  for (const proto::PlacedRank& rank : e.ranks()) ranks.push_back(&rank);
  std::stable_sort(ranks.begin(), ranks.end(), [](const auto* a, const auto* b) { return a->rank() < b->rank(); });
  std::string text;
  if (format == "slurm") {   // srun --nodelist=… --distribution=arbitrary: a task on each, in this order
    return absl::StrCat(absl::StrJoin(ranks, ",", [](std::string* out, const auto* rank) { absl::StrAppend(out, Clean(rank->host())); }), "\n");
  }
  for (const auto* rank : ranks) {
    // Which core does not matter here: "slot=*" leaves it to the launcher.
    if (format == "rankfile") absl::StrAppend(&text, "rank ", rank->rank(), "=", Clean(rank->host()), " slot=*\n");
    else absl::StrAppend(&text, Clean(rank->host()), "\n");
  }
  return text;
}

}  // namespace sluice::ctl
