// What a port counts, as the kernel shows it: ports/P/counters (bytes, errors of the link) and ports/P/hw_counters
// (what the transport met: out_of_sequence, packet_seq_err, local_ack_timeout_err, rnr_nak_retry_err, np_cnp_sent,
// np_ecn_marked_roce_packets, rp_cnp_handled, roce_adp_retrans; Soft-RoCE has names of its own: retry_exceeded_err,
// ...).
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sluice::rdma {

// All of them by name, in the units of the kernel but for port_xmit_data and port_rcv_data, which are in bytes here
// (the kernel counts four at a time). A name in both folders is hw_counters'. Missing files, and those that hold no
// number, are left out: an empty map is no error.
std::map<std::string, uint64_t> ReadPortCounters(const std::string& device, uint8_t port,
                                                 const std::string& sysfs = "/sys");

// Those that tell of congestion or loss, added up by what they mean, whatever the vendor calls them.
struct PortTrouble {
  uint64_t out_of_sequence = 0;  // arrived or noticed out of order: loss, or several paths
  uint64_t timeouts = 0;         // no acknowledgement in time
  uint64_t not_ready = 0;        // the receiver had no receive
  uint64_t retries = 0;          // sent again, where that is counted
  uint64_t ecn_marked = 0;       // arrived with a mark of congestion
  uint64_t cnp_sent = 0;         // congestion notifications to senders
  uint64_t cnp_handled = 0;      // and from receivers
  uint64_t link_errors = 0;      // symbols, discards, recoveries, downs
};

PortTrouble Summarize(const std::map<std::string, uint64_t>& counters);

}  // namespace sluice::rdma
