#include "transport/tcp/tcp_info.h"

#include <linux/tcp.h>   // newer than the C library's: it has the delivery rate
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace sluice::transport {

TcpMeasure MeasureTcp(int fd) {
  tcp_info info{};   // an older kernel fills less of it
  socklen_t bytes = sizeof(info);
  if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  TcpMeasure measure;
  measure.rtt_s = 1e-6 * info.tcpi_rtt;
  measure.retransmits = info.tcpi_total_retrans;
  if (bytes >= offsetof(tcp_info, tcpi_delivery_rate) + sizeof(info.tcpi_delivery_rate))
    measure.delivery_rate = static_cast<double>(info.tcpi_delivery_rate);
  if (bytes >= offsetof(tcp_info, tcpi_delivered_ce) + sizeof(info.tcpi_delivered_ce))
    measure.congestion_marks = info.tcpi_delivered_ce;
  return measure;
}

uint32_t UnansweredTimeouts(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  return info.tcpi_retransmits;
}

}  // namespace sluice::transport
