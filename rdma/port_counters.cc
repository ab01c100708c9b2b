#include "rdma/port_counters.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sluice::rdma {
namespace {

void ReadFolder(const std::filesystem::path& folder, std::map<std::string, uint64_t>* counters) {
  constexpr size_t kMost = 1000;  // some devices have about 200
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::ifstream file(it->path());
    std::string line;
    uint64_t value = 0;
    if (!std::getline(file, line) || !absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &value)) continue;
    if (counters->size() >= kMost) return;
    (*counters)[it->path().filename().string()] = value;
  }
}

struct Meaning {
  const char* name;
  uint64_t PortTrouble::*sum;
};

// mlx5, bnxt_re, irdma and rxe, in that order where they differ. Each event under one name of a vendor only.
constexpr Meaning kMeanings[] = {
    {"out_of_sequence", &PortTrouble::out_of_sequence},
    {"packet_seq_err", &PortTrouble::out_of_sequence},
    {"oos_drop_count", &PortTrouble::out_of_sequence},
    {"out_of_seq_request", &PortTrouble::out_of_sequence},
    {"rcvd_seq_err", &PortTrouble::out_of_sequence},
    {"local_ack_timeout_err", &PortTrouble::timeouts},
    {"retry_exceeded_err", &PortTrouble::timeouts},
    {"retry_rnr_exceeded_err", &PortTrouble::not_ready},
    {"rnr_nak_retry_err", &PortTrouble::not_ready},
    {"rnr_naks_rcvd", &PortTrouble::not_ready},
    {"rcvd_rnr_err", &PortTrouble::not_ready},
    {"roce_adp_retrans", &PortTrouble::retries},
    {"to_retransmits", &PortTrouble::retries},
    {"RetransSegs", &PortTrouble::retries},
    {"completer_retry_err", &PortTrouble::retries},
    {"np_ecn_marked_roce_packets", &PortTrouble::ecn_marked},
    {"rx_ecn_marked_pkts", &PortTrouble::ecn_marked},
    {"RxECNMrkd", &PortTrouble::ecn_marked},
    {"np_cnp_sent", &PortTrouble::cnp_sent},
    {"tx_cnp_pkts", &PortTrouble::cnp_sent},
    {"cnpSent", &PortTrouble::cnp_sent},
    {"rp_cnp_handled", &PortTrouble::cnp_handled},
    {"rx_cnp_pkts", &PortTrouble::cnp_handled},
    {"cnpHandled", &PortTrouble::cnp_handled},
    {"symbol_error", &PortTrouble::link_errors},
    {"link_downed", &PortTrouble::link_errors},
    {"link_error_recovery", &PortTrouble::link_errors},
    {"port_rcv_errors", &PortTrouble::link_errors},
    {"port_xmit_discards", &PortTrouble::link_errors},
};

}  // namespace

std::map<std::string, uint64_t> ReadPortCounters(const std::string& device, uint8_t port, const std::string& sysfs) {
  std::map<std::string, uint64_t> counters;
  const std::filesystem::path folder = absl::StrCat(sysfs, "/class/infiniband/", device, "/ports/", port);
  ReadFolder(folder / "counters", &counters);
  for (const char* words : {"port_xmit_data", "port_rcv_data"}) {
    if (auto found = counters.find(words); found != counters.end()) found->second *= 4;
  }
  std::map<std::string, uint64_t> hardware;
  ReadFolder(folder / "hw_counters", &hardware);
  hardware.erase("lifespan");  // how long the kernel keeps the values, in milliseconds
  for (const auto& [name, value] : hardware) counters[name] = value;
  return counters;
}

PortTrouble Summarize(const std::map<std::string, uint64_t>& counters) {
  PortTrouble trouble;
  for (const Meaning& meaning : kMeanings) {
    if (auto found = counters.find(meaning.name); found != counters.end()) trouble.*meaning.sum += found->second;
  }
  return trouble;
}

}  // namespace sluice::rdma
