// Two processes that do nothing but send and recv, both ways at once over one loopback connection.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace sluice::bench {

class RawDuplex {
 public:
  explicit RawDuplex(size_t bytes);  // forks the other side
  ~RawDuplex();
  double Exchange();                 // seconds for `bytes` each way

  pid_t child() const { return child_; }

 private:
  static void Run(int fd, std::vector<char>& out, std::vector<char>& in);

  std::vector<char> out_, in_;
  int fd_ = -1;
  pid_t child_ = 0;
};

}  // namespace sluice::bench
