#include "scheduler/planning/exchange_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/exchange_rules.h"
#include "compression/policy.h"
#include "scheduler/fabric/costs.h"
#include "scheduler/fabric/steps.h"
#include "scheduler/planning/plan_step.h"

namespace sluice::planning {
namespace {

constexpr double kAlpha = 50e-6;   // of a message, where the network is not known

// Seconds of a step by the bytes of fp32 that go over servers and among workers.
class Predictor {
 public:
  Predictor(const proto::Plan& plan, const network::Network& network) {
    PlanStep step = StepOfPlan(plan, network);
    collective_bytes_ = step.spec.collective_bytes;
    for (const fabric::StepSpec::Shard& shard : step.spec.shards) server_bytes_ += shard.bytes;
    ratio_ = step.spec.push_ratio;
    link_ = static_cast<double>(network.config().link_bytes());
    if (!(link_ > 0)) link_ = 12.5e9;
    link_ *= kTcpEfficiency;
    workers_ = static_cast<uint32_t>(plan.workers_size());
    servers_ = static_cast<uint32_t>(std::ranges::count_if(plan.servers(), [](const auto& server) { return server.alive(); }));
    if (!step.complete) return;
    // Both halves of an all-reduce travel in the codec; parameters that are gathered do not.
    step.spec.reduce_ratio = step.spec.gather_ratio = ratio_;
    auto all_reduce = fabric::StepModel::Create(&network.routes(), step.spec);
    step.spec.gather_ratio = 1;
    auto sharded = fabric::StepModel::Create(&network.routes(), step.spec);
    if (!all_reduce.ok() || !sharded.ok() || !all_reduce->Predict(0).complete) return;
    all_reduce_ = *std::move(all_reduce);
    sharded_ = *std::move(sharded);
  }

  const std::optional<fabric::StepModel>& model() const { return all_reduce_; }
  double server_bytes() const { return server_bytes_; }           // of the plan as it is
  double collective_bytes() const { return collective_bytes_; }

  double Servers(double bytes) const {
    if (all_reduce_.has_value()) return all_reduce_->PredictWith(bytes, collective_bytes_, 0).step_s;
    return fabric::ParameterServers({.workers = workers_, .servers = std::max(1u, servers_), .worker_bytes_per_second = link_,
                             .server_bytes_per_second = link_, .alpha = kAlpha},
                            bytes * ratio_, /*pipelined=*/true);
  }
  // moved: bytes of those that the plan has on servers.
  double AllReduce(double moved) const {
    if (all_reduce_.has_value()) return all_reduce_->PredictWith(server_bytes_ - moved, collective_bytes_ + moved, 0).step_s;
    return fabric::RingAllReduce(workers_, moved * ratio_, {.alpha = kAlpha, .beta = 1 / link_});
  }
  double Sharded(double moved) const {
    if (sharded_.has_value()) return sharded_->PredictWith(server_bytes_ - moved, collective_bytes_ + moved, 0).step_s;
    const fabric::LinkCost link{.alpha = kAlpha, .beta = 1 / link_};
    return fabric::RingReduceScatter(workers_, moved * ratio_, link) + fabric::RingAllGather(workers_, moved, link);
  }

 private:
  std::optional<fabric::StepModel> all_reduce_, sharded_;
  double server_bytes_ = 0, collective_bytes_ = 0, ratio_ = 1, link_ = 0;
  uint32_t workers_ = 1, servers_ = 1;
};

std::string Ms(double seconds) { return absl::StrFormat("%.3g ms", 1e3 * seconds); }

}  // namespace

proto::Exchange ForcedExchange(const proto::JobConfig& job) {
  return job.exchange() == "allreduce" ? proto::EXCHANGE_ALLREDUCE
         : job.exchange() == "sharded" ? proto::EXCHANGE_SHARDED
                                       : proto::EXCHANGE_SERVERS;
}

ExchangeChoice ChooseExchanges(const proto::Plan& plan, int first, const network::Network& network) {
  const proto::JobConfig& job = plan.config();
  ExchangeChoice out;
  out.choice.set_what("exchange of tensors");
  std::vector<double> bytes;     // of those that may go either way
  std::vector<size_t> movable;   // where they are in out.exchanges
  double total = 0;
  size_t dense = 0;
  for (int t = first; t < plan.tensors_size(); ++t) {
    const proto::TensorSpec& spec = plan.tensors(t).spec();
    out.exchanges.push_back(spec.has_table() ? proto::EXCHANGE_SERVERS : ForcedExchange(job));
    dense += !spec.has_table();
    if (spec.has_table() || spec.occasional()) continue;
    movable.push_back(out.exchanges.size() - 1);
    bytes.push_back(4.0 * static_cast<double>(compression::ElementsOf(spec)));
    total += bytes.back();
  }
  if (dense == 0) {
    out.choice.Clear();
    return out;
  }
  const Predictor predictor(plan, network);
  const absl::Status allowed = CheckAllReduceJob(job);
  struct Row {
    std::string name;
    double seconds;
    std::string note;
  };
  const double by_servers = predictor.Servers(predictor.server_bytes()), by_all_reduce = predictor.AllReduce(total);
  const std::string no(allowed.message());
  std::vector<Row> rows = {{"servers", by_servers, ""},
                           {"allreduce", by_all_reduce, no},
                           {"sharded", predictor.Sharded(total), no.empty() ? "each worker keeps its share of the optimizer's state alone" : no}};
  const bool automatic = job.exchange() == "auto";
  out.choice.set_chosen(automatic ? "servers" : job.exchange().empty() ? "servers" : job.exchange());
  out.choice.set_why(absl::StrCat("job.exchange is ", out.choice.chosen()));
  if (automatic && !allowed.ok()) {
    out.choice.set_why(absl::StrCat("auto means servers here: ", no));
    out.note = absl::StrCat("servers: ", out.choice.why());
  } else if (automatic && !movable.empty()) {
    std::vector<bool> servers(bytes.size());
    double seconds = 0;
    if (predictor.model().has_value()) {
      const fabric::Hybrid hybrid =
          ChooseHybrid(*predictor.model(), bytes, predictor.server_bytes() - total, predictor.collective_bytes());
      servers = hybrid.by_servers;
      seconds = hybrid.prediction.step_s;
    } else {
      double there = 0;
      for (size_t i = 0; i < bytes.size(); ++i) {
        servers[i] = predictor.Servers(bytes[i]) <= predictor.AllReduce(bytes[i]);
        if (servers[i]) there += bytes[i];
      }
      seconds = std::max(predictor.Servers(there), predictor.AllReduce(total - there));
    }
    const size_t kept = static_cast<size_t>(std::ranges::count(servers, true));
    for (size_t i = 0; i < servers.size(); ++i)
      if (!servers[i]) out.exchanges[movable[i]] = proto::EXCHANGE_ALLREDUCE;
    if (kept == 0) {
      out.choice.set_chosen("allreduce");
    } else if (kept < servers.size()) {
      out.choice.set_chosen("both");
      rows.push_back({"both", seconds, absl::StrCat(kept, " tensors over servers, ", servers.size() - kept, " by all-reduce")});
    }
    out.choice.set_why(predictor.model().has_value() ? "the shortest predicted step"
                                                     : "the shorter time by the numbers of workers and servers: it is not known where all members are");
    out.note = absl::StrCat("auto: ", kept, " of ", servers.size(), " tensors over servers, the others by all-reduce; predicted step ", Ms(seconds),
                            ", all over servers ", Ms(by_servers), ", all by all-reduce ", Ms(by_all_reduce));
  } else if (ForcedExchange(job) != proto::EXCHANGE_SERVERS) {
    out.note = absl::StrCat(job.exchange(), " among the workers; predicted step ",
                            Ms(job.exchange() == "sharded" ? rows[2].seconds : by_all_reduce), ", over servers ", Ms(by_servers));
  }
  std::ranges::stable_sort(rows, {}, &Row::seconds);
  for (const Row& row : rows) {
    proto::Option* option = out.choice.add_options();
    option->set_name(row.name);
    option->set_step_ms(1e3 * row.seconds);
    option->set_note(row.note);
  }
  return out;
}

}  // namespace sluice::planning
