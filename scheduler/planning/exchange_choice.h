// How the tensors of a job are exchanged (job.exchange): over its servers, or among its workers (docs/topology/collectives.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/plan.pb.h"
#include "proto/topology.pb.h"
#include "scheduler/network/network.h"

namespace sluice::planning {

// What job.exchange says of all its dense tensors; auto: that of servers.
proto::Exchange ForcedExchange(const proto::JobConfig& job);

struct ExchangeChoice {
  std::vector<proto::Exchange> exchanges;   // of the plan's tensors from `first` on
  proto::Choice choice;                     // for people: "exchange of tensors", its alternatives with predicted steps
  std::string note;                         // for the job's events; "": it is of servers, as nothing else was asked for
};

// Of the plan's tensors from `first` on, which it has on servers, beside those before, as they are. With job.exchange=auto by the
// predicted time of a step: scheduler/fabric/steps.h, or the closed forms of scheduler/fabric/costs.h with topology.link_bytes
// where it is not known where all members are. auto is of servers where CheckAllReduceJob (base/exchange_rules.h) says no, and
// for tables and tensors that are not pushed in every step.
ExchangeChoice ChooseExchanges(const proto::Plan& plan, int first, const network::Network& network);

}  // namespace sluice::planning
