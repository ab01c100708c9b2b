#include "transport/control/link_report.h"

#include <algorithm>
#include <limits>

namespace sluice::control {
namespace {

uint32_t NextLink(const proto::LinkReport& report) {
  return report.paths().empty() ? 0 : report.paths(report.paths_size() - 1).link() + 1;
}

void LeaveOut(uint64_t paths, proto::LinkReport* report) {
  const uint64_t most = std::numeric_limits<uint32_t>::max();
  report->set_left_out(static_cast<uint32_t>(std::min(most, report->left_out() + paths)));
}

// Names that the peer chose: printable bytes alone, since they are shown in terminals and sent on as UTF-8.
std::string Clipped(const std::string& text, size_t most) {
  std::string out = text.substr(0, most);
  std::replace_if(out.begin(), out.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return out;
}

}  // namespace

void AddLink(const std::string& peer, const std::string& peer_id, std::span<const transport::PathRow> rows, proto::LinkReport* report) {
  const uint32_t link = NextLink(*report);
  for (const transport::PathRow& row : rows) {
    if (report->paths_size() >= kMaxReportedPaths) {
      LeaveOut(1, report);
      continue;
    }
    proto::LinkPath* path = report->add_paths();
    path->set_link(link);
    path->set_peer(Clipped(peer, kMaxPeerBytes));
    path->set_kind(Clipped(row.kind, kMaxKindBytes));
    path->set_rail(Clipped(row.rail, kMaxRailBytes));
    path->set_address(Clipped(row.address, kMaxAddressBytes));
    path->set_goodput(row.goodput);
    path->set_bytes_out(row.bytes_out);
    path->set_bytes_in(row.bytes_in);
    path->set_chunks(row.chunks);
    path->set_resent(row.resent);
    path->set_note(Clipped(row.note, kMaxNoteBytes));
    path->set_peer_id(Clipped(peer_id, kMaxPeerBytes));
    path->set_rtt_us(1e6 * row.rtt_s);
    path->set_retransmits(row.retransmits);
    path->set_congestion_marks(row.congestion_marks);
  }
}

void AddReport(const proto::LinkReport& from, proto::LinkReport* to) {
  LeaveOut(from.left_out(), to);
  uint32_t link = NextLink(*to);
  for (int i = 0; i < from.paths_size(); ++i) {
    if (to->paths_size() >= kMaxReportedPaths) {
      LeaveOut(static_cast<uint64_t>(from.paths_size() - i), to);
      return;
    }
    // Field by field: what this release does not know is not kept either.
    const proto::LinkPath& said = from.paths(i);
    if (i > 0 && said.link() != from.paths(i - 1).link()) ++link;
    proto::LinkPath* path = to->add_paths();
    path->set_link(link);
    path->set_peer(Clipped(said.peer(), kMaxPeerBytes));
    path->set_kind(Clipped(said.kind(), kMaxKindBytes));
    path->set_rail(Clipped(said.rail(), kMaxRailBytes));
    path->set_address(Clipped(said.address(), kMaxAddressBytes));
    path->set_goodput(said.goodput() >= 0 && said.goodput() < 1e18 ? said.goodput() : 0);
    path->set_peer_id(Clipped(said.peer_id(), kMaxPeerBytes));
    path->set_rtt_us(said.rtt_us() >= 0 && said.rtt_us() < 1e12 ? said.rtt_us() : 0);
    path->set_retransmits(said.retransmits());
    path->set_congestion_marks(said.congestion_marks());
    path->set_bytes_out(said.bytes_out());
    path->set_bytes_in(said.bytes_in());
    path->set_chunks(said.chunks());
    path->set_resent(said.resent());
    path->set_note(Clipped(said.note(), kMaxNoteBytes));
  }
}

}  // namespace sluice::control
