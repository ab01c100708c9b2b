// What the kernel knows of a TCP connection.
#pragma once

#include <cstdint>

namespace sluice::transport {

struct TcpMeasure {
  double rtt_s = 0;              // smoothed
  // Bytes a second that the peer acknowledged over about a round trip, when there was always something to send. It only
  // falls while that is so, so a connection that idles keeps its last one. 0 = not known.
  double delivery_rate = 0;
  uint64_t retransmits = 0;      // segments, since the connection began
  uint64_t congestion_marks = 0; // segments that came back marked (ECN)
};

// How often in a row the kernel has sent the same bytes again and heard nothing of it. A peer's machine answers, even if the
// peer's process does not read.
uint32_t UnansweredTimeouts(int fd);

// All zero where the kernel does not say.
TcpMeasure MeasureTcp(int fd);

}  // namespace sluice::transport
