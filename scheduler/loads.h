// What servers and their shards cost, measured: CPU time and bytes, from the counters of heartbeats (ServerCost).
//
// A server's load is the largest of the shares that it uses of what it has: CPU seconds a second of its event loops,
// bytes a second of its link in, and out. Its CPU time is shared out to its shards by their bytes of payload, in and
// out; a copy costs too. The link counts in payload as well: what it would carry at the proportion of payload to bytes
// on the network that was measured (payload in shared memory takes no link). What is not known (event loops that spin,
// a link whose rate nobody names) bounds nothing.
//
// Rates are smoothed exponentially. No clock: times are handed in.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/clock.h"
#include "proto/control.pb.h"

namespace sluice::scheduler {

inline constexpr double kIdleLoad = 0.05;         // if no server has more, there is no load to speak of
inline constexpr int kMaxReportedCosts = 65536;   // of a heartbeat

struct Cost {
  double cpu = 0;                // seconds a second
  double in = 0, out = 0;        // bytes of payload a second

  Cost& operator+=(const Cost& other);
  Cost& operator-=(const Cost& other);   // not below 0
};

struct Capacity {
  double cpu = 0, in = 0, out = 0;   // as in Cost; 0: not known
};

double LoadOf(const Cost& cost, const Capacity& capacity);
// "82 % (CPU 82 %, 120.0 MiB/s)"
std::string LoadText(const Cost& cost, const Capacity& capacity);
std::string SizeText(uint64_t bytes);

// Of one job.
struct Loads {
  struct Server {
    Capacity capacity;
    Cost base;                   // what no move of this job changes
  };
  std::map<uint32_t, Server> servers;                          // by index in the plan
  std::map<std::pair<uint32_t, uint32_t>, Cost> shards;        // by shard, server: as owned there, or as a copy

  Cost Of(uint32_t shard, uint32_t server) const;
};

// Of one server.
class LoadMeter {
 public:
  // Samples that follow each other too closely are left out. smoothing: the time constant.
  void Take(const proto::ServerCost& cost, TimeNs now, TimeNs smoothing);

  // It has been measured for `smoothing`, and not longer ago than `fresh`.
  bool Knows(TimeNs now, TimeNs smoothing, TimeNs fresh) const;
  Cost total() const { return {cpu_.rate, in_, out_}; }
  Capacity capacity() const;
  Cost Of(uint32_t job, uint32_t shard) const;

 private:
  struct Rate {
    uint64_t last = 0;
    double rate = 0;
    bool begun = false, known = false;
    void Take(uint64_t value, double seconds, double weight);
  };
  struct Traffic {
    Rate in, out;
    uint64_t seen = 0;           // number of the last sample that had it
  };

  TimeNs first_ = 0, at_ = 0;    // 0: none yet
  uint64_t samples_ = 0;
  double loops_ = 0, link_ = 0;
  double in_ = 0, out_ = 0;      // of all shards
  Rate cpu_, net_in_, net_out_;
  std::map<std::pair<uint32_t, uint32_t>, Traffic> shards_;    // by job, shard
};

}  // namespace sluice::scheduler
