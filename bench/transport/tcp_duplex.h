// Two processes with a TcpEndpoint each, which fill each other's slot at the same time over one link.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>

namespace sluice::bench {

class TcpDuplex {
 public:
  TcpDuplex(size_t bytes, size_t stripe, bool hash, size_t socket_buffer);  // forks the other side
  ~TcpDuplex();
  double Exchange();                                  // seconds for `bytes` each way

  pid_t child() const { return child_; }

 private:
  class Side;
  std::unique_ptr<Side> side_;
  pid_t child_ = 0;
};

}  // namespace sluice::bench
