// One link of a MultipathEndpoint: the base's bookkeeping, and once it has grown, its core with the paths around it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/multipath/link.h"
#include "transport/multipath/path_driver.h"
#include "transport/multipath/path_totals.h"
#include "transport/transport.h"

namespace sluice::transport::multipath {

struct GrownLink {
  LinkId id = 0;
  bool connector = false;
  bool up = false, was_up = false;
  Address address;              // connector: of the peer
  Hello hello;                  // connector: its own; acceptor: the peer's
  std::map<SlotId, MutableBytes> slots;
  bool plain_full = false;      // the handler waits for the base's queue
  uint64_t plain_cookies = 0;   // of frames that went before the first packet; the base returns cookies in order
  std::unique_ptr<MultipathLink::Owner> owner;
  std::unique_ptr<MultipathLink> core;   // null: it has not grown
  LinkStats before;             // of the base when it grew
  bool dirty = false;
  bool wants_writable = false;
  std::vector<uint64_t> cookies_at_down;

  // Further TCP connections, by path: connected ones and those under way.
  std::map<PathId, LinkId> connections;
  std::map<PathId, std::string> hosts;
  std::set<std::string> failed_hosts;   // that people know of
  TimeNs last_further_up = 0;
  std::optional<TimeNs> given_up;   // the peer has ended a further connection, since it ends the link
  PathId last_connection = 0;   // acceptor: numbers rise
  std::map<PathId, std::string> rails;   // of queue pairs
  uint64_t lost = 0;            // paths, not made again yet
  std::string why_tcp;          // what stands in the way of RDMA, or has broken it; for people
  uint64_t token = 0;           // acceptor: what they must say
  PathId next_path = 1;         // acceptor: queue pairs, odd; connector: connections, even

  // RDMA, connector: when the next offer goes out.
  bool peer_has_rdma = false;
  std::optional<TimeNs> offered;   // no answer yet
  TimeNs next_offer = 0;
  TimeNs backoff = 0;
  TimeNs last_up = 0;
  uint32_t attempt = 0;
  uint32_t paths_missed = 0;             // that broke here before the peer said that they were up
  std::vector<std::string> tcp_hosts;   // connector: those of PATHS, to be connected (again)
  uint32_t tcp_port = 0;

  uint32_t job() const { return hello.job; }
};

// What people see. base: the stats of its first connection; driven: the driver's paths of this link; why_tcp: why it uses no
// RDMA, in case it does not.
std::vector<PathRow> Rows(const GrownLink& link, const LinkStats& base, const std::vector<PathDriver::Report>& driven,
                          const std::string& why_tcp);
// Adds what the link has carried over the paths that it has; these count as up only while the link is.
void Count(const GrownLink& link, const LinkStats& base, PathTotals* totals);
// The same of one path, before it is lost.
void CountPath(const GrownLink& link, PathId path, PathTotals* totals);

}  // namespace sluice::transport::multipath
