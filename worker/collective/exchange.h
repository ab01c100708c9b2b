// The hybrid's choice (job.exchange; PushPull does not ask for it yet, see base/exchange_rules.h): which tensors travel to the servers and back, and which are summed up among the workers. Pure;
// every worker decides the same from the plan alone.
//
//   servers, pipelined by partition    2 a + max(M / B_worker, w M / (s B_server))
//   all-reduce                         the least of worker/collective/choose.h
// M: bytes of the tensor as its codec sends them, a and B of the widest tier, w workers, s servers.
#pragma once

#include <cstdint>

#include "proto/config.pb.h"
#include "worker/collective/choose.h"

namespace sluice::collective {

enum class Exchange : uint8_t { kServers, kAllReduce };

struct ExchangePrediction {
  double servers_s = 0, all_reduce_s = 0;
};

ExchangePrediction PredictExchange(const Network& network, uint32_t servers, double bytes);

// By job.exchange: "servers", "allreduce", or "auto", which is "servers" where CheckAllReduceJob (base/exchange_rules.h) says no, and else the
// quicker one for a tensor of so many bytes.
Exchange ChooseExchange(const proto::JobConfig& job, const Network& network, uint32_t servers, double bytes);

}  // namespace sluice::collective
