// CPU time that the calling thread has used.
#pragma once

#include <time.h>

#include "base/clock.h"

namespace sluice {

// 0 where the system does not say.
inline TimeNs ThreadCpuTime() {
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return time.tv_sec * kSecond + time.tv_nsec;
}

}  // namespace sluice
