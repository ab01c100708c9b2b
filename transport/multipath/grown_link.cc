#include "transport/multipath/grown_link.h"

#include <utility>

namespace sluice::transport::multipath {
namespace {

constexpr char kBaseRail[] = "base", kFurtherRail[] = "further";   // of TCP

// Kind and rail of a path that is not the base.
std::pair<std::string, std::string> RailOf(const GrownLink& link, const PathState& state) {
  if (state.tier == 0) return {"tcp", kFurtherRail};
  const auto rail = link.rails.find(state.path);
  return {"rdma", rail == link.rails.end() ? "" : rail->second};
}

void CountState(const PathState& state, RailTotals* rail) {
  rail->bytes_out += state.bytes + state.packet_bytes;
  rail->bytes_in += state.bytes_in;
  rail->messages_out += state.chunks + state.packets;
  rail->messages_in += state.messages_in;
}

}  // namespace

std::vector<PathRow> Rows(const GrownLink& link, const LinkStats& base, const std::vector<PathDriver::Report>& driven,
                          const std::string& why_tcp) {
  std::vector<PathRow> rows;
  rows.push_back({.kind = "tcp", .rail = kBaseRail, .address = base.peer, .goodput = base.delivery_rate,
                  .bytes_out = base.bytes_out, .bytes_in = base.bytes_in, .rtt_s = base.rtt_s, .retransmits = base.retransmits,
                  .congestion_marks = base.congestion_marks, .note = why_tcp});
  if (link.core == nullptr || !link.up) return rows;
  rows.front().resent = link.core->resent_chunks();
  for (const PathState& state : link.core->States()) {
    if (state.path == kBasePath) {
      if (state.goodput > 0) rows.front().goodput = state.goodput;
      rows.front().chunks = state.chunks;
      continue;
    }
    const auto [kind, rail] = RailOf(link, state);
    PathRow row{.kind = kind, .rail = rail, .address = base.peer, .goodput = state.goodput,
                .bytes_out = state.bytes + state.packet_bytes, .bytes_in = state.bytes_in, .chunks = state.chunks, .note = ""};
    if (const auto host = link.hosts.find(state.path); host != link.hosts.end()) row.address = host->second;
    for (const PathDriver::Report& one : driven) {
      if (one.path == state.path) row.address = one.peer;
    }
    if (state.tier > 0) rows.front().note.clear();
    rows.push_back(std::move(row));
  }
  return rows;
}

void Count(const GrownLink& link, const LinkStats& base, PathTotals* totals) {
  RailTotals& rail = totals->rails[{"tcp", kBaseRail}];
  rail.bytes_out += base.bytes_out;
  rail.bytes_in += base.bytes_in;
  rail.messages_out += base.frames_out;
  rail.messages_in += base.frames_in;
  rail.up += link.up ? 1 : 0;
  if (link.core == nullptr) return;
  for (const PathState& state : link.core->States()) {
    RailTotals& its = state.path == kBasePath ? rail : totals->rails[RailOf(link, state)];
    if (link.up) its.goodput += state.goodput;
    if (state.path == kBasePath) continue;
    its.up += link.up ? 1 : 0;
    CountState(state, &its);
  }
  totals->chunks_resent += link.core->resent_chunks();
  totals->duplicates += link.core->duplicates();
  totals->credit_stall += link.core->credit_stall();
}

void CountPath(const GrownLink& link, PathId path, PathTotals* totals) {
  for (const PathState& state : link.core->States()) {
    if (state.path == path) CountState(state, &totals->rails[RailOf(link, state)]);
  }
}

}  // namespace sluice::transport::multipath
