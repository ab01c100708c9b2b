#include "tests/sim/scenario.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/philox.h"
#include "compression/codec.h"
#include "compression/codec_schedule.h"

namespace sluice::sim {
namespace {

template <typename T>
T OneOf(PhiloxRandom& random, std::initializer_list<T> values) {
  return values.begin()[random.Below(static_cast<uint32_t>(values.size()))];
}

void ChooseOptimizer(PhiloxRandom& random, proto::OptimizerConfig* o) {
  o->set_kind(OneOf<const char*>(
      random, {"none", "none", "sgd", "sgd", "momentum", "nesterov", "adagrad", "adam", "adamw", "lamb"}));
  if (o->kind() == "none") {
    if (random.Chance(0.3)) o->set_clip_norm(OneOf(random, {0.5, 3.0}));
    return;
  }
  o->set_rate(OneOf(random, {0.01, 0.1, 0.5}));
  o->set_schedule(OneOf<const char*>(random, {"constant", "constant", "step", "cosine", "linear"}));
  if (random.Chance(0.3)) o->set_warmup_rounds(1 + random.Below(3));
  if (o->schedule() == "step") o->set_step_rounds(1 + random.Below(3));
  o->set_total_rounds(o->warmup_rounds() + 1 + random.Below(8));
  if (random.Chance(0.3)) o->set_final_rate(0.001);
  if (random.Chance(0.4)) o->set_weight_decay(0.01);
  if (random.Chance(0.3)) o->set_decay_all(true);
  if (random.Chance(0.3)) o->set_clip_norm(OneOf(random, {0.5, 3.0}));
}

void ChooseJob(PhiloxRandom& random, proto::JobConfig* job) {
  job->set_name("sim");
  job->set_workers(1 + random.Below(4));
  job->set_mode(OneOf(random, {proto::MODE_BSP, proto::MODE_BSP, proto::MODE_BSP, proto::MODE_BSP, proto::MODE_SSP,
                               proto::MODE_ASP}));
  ChooseOptimizer(random, job->mutable_optimizer());
  job->set_reduction(OneOf(random, {proto::REDUCTION_MEAN, proto::REDUCTION_SUM}));
  job->set_codec(OneOf<const char*>(
      random, {"none", "none", "fp16", "bf16", "int8", "int8", "topk:0.1", "topk:0.4", "int8:stochastic", "int4", "mxfp8",
               "onebit", "qsgd:7", "terngrad", "randk:0.2", "topk:0.2+int8", "threshold:auto:0.1", "threshold:0.05+int4",
               "lowrank:1", "lowrank:2+fp16", "nvfp4"}));
  job->set_codec_min_elements(OneOf(random, {1u, 1u, 200u}));
  if (!compression::MakeCodec(job->codec()).value()->biased() && random.Chance(0.2)) job->set_no_error_feedback(true);
  if (compression::RatioOf(job->codec()).has_value() && random.Chance(0.3)) job->set_codec_warmup_rounds(1 + random.Below(12));
  if (random.Chance(0.2)) job->set_codec_rules(OneOf<const char*>(random, {"*0=int4", "*1,kind=weight=fp16;*=mxfp8",
                                                                              job->no_error_feedback() ? "*,max=500=bf16"
                                                                                                       : "*,max=500=topk:0.3"}));
  if (random.Chance(0.2)) job->set_codec_stats_rounds(1 + random.Below(4));
  job->set_partition_bytes(OneOf(random, {1024u, 1200u, 4096u}));
  proto::OptimizerConfig* optimizer = job->mutable_optimizer();
  if (optimizer->kind() == "sgd" && !job->no_error_feedback() && random.Chance(0.3)) job->set_momentum_correction(0.9);
  if (job->mode() != proto::MODE_BSP) {
    optimizer->clear_clip_norm();
    if (optimizer->kind() == "none" || optimizer->kind() == "lamb") {
      optimizer->set_kind("sgd");
      optimizer->set_schedule("constant");
    }
    if (job->mode() == proto::MODE_SSP) job->set_staleness(1 + random.Below(3));
    return;
  }
  job->set_order(OneOf(random, {proto::ORDER_RANK, proto::ORDER_RANK, proto::ORDER_EXACT, proto::ORDER_FAST}));
  if (random.Chance(0.2)) job->set_on_nonfinite(proto::NONFINITE_SKIP);
  if (optimizer->kind() == "none") return;
  job->set_reply(OneOf(random, {proto::REPLY_PARAMETERS, proto::REPLY_PARAMETERS, proto::REPLY_CHANGE,
                                proto::REPLY_CHANGE, proto::REPLY_AGGREGATE}));
  job->set_reply_codec(OneOf<const char*>(random, {"fp16", "int8", "topk:0.2", "none", "int4", "mxfp8", "onebit", "topk:0.2+int4"}));
}

void ChooseModel(PhiloxRandom& random, Scenario* s) {
  const uint32_t tensors = 1 + random.Below(3);
  for (uint32_t i = 0; i < tensors; ++i) {
    proto::TensorSpec spec;
    spec.set_name(absl::StrCat("t", i));
    spec.set_dtype("fp32");
    spec.set_priority(static_cast<int32_t>(random.Below(3)));
    spec.set_kind(OneOf(random, {proto::TENSOR_WEIGHT, proto::TENSOR_WEIGHT, proto::TENSOR_BIAS}));
    const uint64_t elements = 1 + random.Below(random.Chance(0.3) ? 8 : 700);
    // Half of them have rows, some longer than a partition.
    const uint64_t columns = random.Chance(0.5) ? 1 : OneOf<uint64_t>(random, {3, 20, 20, 300});
    if (columns > 1) spec.add_shape(1 + elements / columns);
    spec.add_shape(columns > 1 ? columns : elements);
    s->tensors.push_back(spec);
  }
}

// Small ids from a small range, so that ranks meet in rows, rows come back, and bounds are reached.
void ChooseTables(PhiloxRandom& random, Scenario* s) {
  if (!random.Chance(0.4)) return;
  const uint32_t tables = 1 + random.Below(2);
  for (uint32_t i = 0; i < tables; ++i) {
    proto::TensorSpec spec;
    spec.set_name(absl::StrCat("rows", i));
    spec.set_priority(static_cast<int32_t>(random.Below(3)));
    proto::TableSpec* table = spec.mutable_table();
    table->set_dim(OneOf(random, {1u, 2u, 5u, 40u}));
    table->set_dtype(OneOf(random, {"fp32", "fp32", "bf16"}));
    table->set_initializer(OneOf(random, {"zero", "uniform", "normal"}));
    table->set_init_scale(0.1);
    table->set_seed(random());
    proto::TableOptimizer* optimizer = table->mutable_optimizer();
    optimizer->set_kind(OneOf(random, {"sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"}));
    optimizer->set_rate(0.1);
    if (optimizer->kind() == "ftrl") optimizer->set_l1(0.02);
    if (random.Chance(0.3)) optimizer->set_l2(0.01);
    if (random.Chance(0.3)) table->set_admit_after(2 + random.Below(2));
    if (random.Chance(0.3)) table->set_max_age_rounds(1 + random.Below(3));
    if (random.Chance(0.3)) table->set_max_rows(3 + random.Below(12));
    if (random.Chance(0.3)) table->set_drop_zero_rows(true);
    table->set_segments(1 + random.Below(4));
    table->set_codec(OneOf(random, {"none", "none", "fp16", "bf16", "int8", "mxfp8", "int4"}));
    table->set_residual_rows(OneOf(random, {0u, 3u, 100u}));
    s->tables.push_back(spec);
  }
}

void ChooseData(PhiloxRandom& random, Scenario* s) {
  proto::DataConfig data;
  data.set_eager_bytes(OneOf(random, {16u, 200u, 16384u}));
  data.set_stripe_bytes(OneOf(random, {64u, 300u, 100000u}));
  data.set_fusion_bytes(OneOf(random, {0u, 600u, 65536u}));
  data.set_resend_ms(OneOf(random, {5u, 20u}));
  s->worker_data = s->server_data = data;
  s->worker_data.set_fusion_cycle_us(OneOf(random, {0u, 0u, 200u}));
  s->worker_data.set_connections(1 + random.Below(2));
  // A quarter of it must hold the largest message.
  uint64_t largest = uint64_t{s->job.partition_bytes()} + 128;
  // But what tables need beyond that goes beside the pool, up to as much again.
  if (!s->tables.empty() && random.Chance(0.5)) largest = std::max<uint64_t>(largest, 2600);   // 12 rows of 40 values, and their ids
  const uint64_t least = 4 * largest;
  s->server_data.set_pool_bytes(least + random.Below(3) * least);
  s->server_data.set_granted_bytes(OneOf(random, {1u, 500u, 3000u, 100000u}));
  if (random.Chance(0.3)) s->limits.max_queued_bytes = 2000;
  s->server_data.set_fill_rate_bytes(OneOf(random, {0u, 20000u, 2000000u}));
}

void ChooseFaults(PhiloxRandom& random, Faults* faults) {
  transport::SimFaults& network = faults->network;
  network.max_delay = OneOf(random, {100, 500, 500, 5000}) * kMicrosecond;
  network.min_delay = network.max_delay / 10;
  if (random.Chance(0.6)) network.drop = OneOf(random, {0.01, 0.05});
  if (random.Chance(0.6)) network.duplicate = OneOf(random, {0.02, 0.1});
  if (random.Chance(0.6)) network.reorder = OneOf(random, {0.05, 0.3});
  if (random.Chance(0.4)) network.reset = 0.01;
  if (random.Chance(0.4)) network.connect_failure = 0.3;
  if (random.Chance(0.5)) network.slow_write = 0.2;
  network.by_reference = random.Chance(0.25);
  if (random.Chance(0.5)) faults->cuts = 1 + random.Below(3);
  if (random.Chance(0.6)) faults->worker_crashes = 1 + random.Below(3);
  if (random.Chance(0.4)) faults->scheduler_crashes = 1 + random.Below(2);
}

// Where an operator moves shards the scheduler may as well. Random numbers of its own: other choices stay what they were.
void ChooseRebalancing(Scenario* s) {
  PhiloxRandom random(s->seed, /*stream=*/0x726562);
  if (s->faults.orders == 0 || random.Chance(0.3)) return;
  s->node.set_heartbeat_ms(100);   // most runs are over after some hundred ms
  s->node.set_rebalance_after_ms(OneOf(random, {1u, 50u}));
  s->node.set_rebalance_over_percent(OneOf(random, {10u, 30u}));
  s->node.set_rebalance_cooldown_ms(OneOf(random, {1u, 100u, 500u}));
}

// Workers that come back, and rounds that leave some out.
void ChooseElastic(PhiloxRandom& random, Scenario* s) {
  s->two_calls = !s->tables.empty() && random.Chance(0.3);
  // Who comes late needs parameters to go on from.
  if (s->job.workers() == 1 || !s->has_optimizer() || s->job.reply() == proto::REPLY_AGGREGATE) return;
  s->faults.returns = s->faults.losses > 0 && random.Chance(0.8);
  if (s->job.mode() == proto::MODE_BSP && random.Chance(0.12)) s->job.set_backup_workers(1 + random.Below(s->job.workers() - 1));
  if (s->job.mode() == proto::MODE_BSP && random.Chance(0.08)) s->job.set_round_deadline_ms(OneOf(random, {20u, 60u, 300u}));
  if (s->faults.returns) {
    s->steps = 8 + random.Below(12);   // so that they come while there is something to be done
    s->max_compute = OneOf(random, {3, 20}) * kMillisecond;
  }
  if (s->leaves_out()) {
    s->overflow.reset();
    s->faults.worker_crashes = 0;      // the others go on without who is away: its snapshot is of no use
    // A round that is closed again after its owner was lost may have others in it, and the step's verdict stands.
    if (s->job.optimizer().clip_norm() > 0 || s->job.optimizer().kind() == "lamb" ||
        s->job.on_nonfinite() == proto::NONFINITE_SKIP)
      s->faults.server_crashes = s->faults.orders = 0;
    // Rows beside the pool there are none then (docs/workers.md); and nobody waits at the start for who has not come.
    s->server_data.set_pool_bytes(std::max<uint64_t>(s->server_data.pool_bytes(), 4 * 2700));
    if (s->broadcast) s->tables.clear();
  }
  if (s->faults.returns || s->leaves_out()) {
    // A rank that was rejected keeps its residual at the rate of the round that is open then, which nobody records.
    s->job.mutable_optimizer()->set_schedule("constant");
    s->job.mutable_optimizer()->set_warmup_rounds(0);
  }
}

// Aggregation trees: on each host, and now and then others, of one level or two. Random numbers of its own, as above.
void ChooseTrees(Scenario* s) {
  PhiloxRandom random(s->seed, /*stream=*/0x74726565);
  if (!random.Chance(0.3) || s->job.mode() != proto::MODE_BSP || s->leaves_out()) return;
  s->hosts = 1 + random.Below(3);
  s->job.set_workers(std::max(s->job.workers(), 2 + random.Below(5)));
  s->servers = std::max(s->servers, 2 + random.Below(3));
  s->node.set_servers(s->servers);
  if (random.Chance(0.6)) s->faults.trees = 1 + random.Below(4);
  // A round's sum may be made again in another order after its step's verdict was decided on the first one.
  const bool step_wide = s->job.optimizer().clip_norm() > 0 || s->job.optimizer().kind() == "lamb" ||
                         s->job.on_nonfinite() == proto::NONFINITE_SKIP;
  if (step_wide && s->job.order() != proto::ORDER_EXACT) {
    s->faults.server_crashes = s->faults.orders = 0;
    s->node.set_rebalance_after_ms(0);
  }
  const uint64_t bytes = uint64_t{s->job.partition_bytes()} * (s->job.order() == proto::ORDER_EXACT ? 5 : 1);
  s->server_data.set_pool_bytes(std::max<uint64_t>(s->server_data.pool_bytes(), 4 * (bytes + 128)));
}

}  // namespace

Scenario MakeScenario(uint64_t seed) {
  PhiloxRandom random(seed, /*stream=*/0x736365);
  Scenario s;
  s.seed = seed;
  s.node.set_lease_ms(5000);
  s.node.set_heartbeat_ms(500);
  s.servers = 1 + random.Below(3);
  s.lanes = 1 + random.Below(2);
  s.node.set_servers(s.servers);
  s.node.set_shards(1 + random.Below(8));
  ChooseJob(random, &s.job);
  ChooseModel(random, &s);
  ChooseTables(random, &s);
  ChooseData(random, &s);
  s.steps = 3 + random.Below(5);
  s.broadcast = random.Chance(0.5);
  s.style = OneOf(random, {OpStyle::kPushPull, OpStyle::kPushPull, OpStyle::kInPlace, OpStyle::kPushThenPull});
  if (s.job.on_nonfinite() == proto::NONFINITE_SKIP && random.Chance(0.7))
    s.nonfinite = {random.Below(s.job.workers()), random.Below(static_cast<uint32_t>(s.steps))};
  // Each gradient is finite and their sum is not.
  if (s.job.codec() == "none" && s.job.mode() == proto::MODE_BSP && s.job.workers() > 1 && random.Chance(0.15))
    s.overflow = random.Below(static_cast<uint32_t>(s.steps));
  s.max_compute = OneOf(random, {0, 300, 3000}) * kMicrosecond;
  ChooseFaults(random, &s.faults);
  if (s.servers > 1 && random.Chance(0.6)) {
    s.job.set_replicas(1 + random.Below(2));
    // A state is several times a push: in stripes of 64 bytes, of which every twentieth is lost, it would never come whole.
    s.server_data.set_stripe_bytes(std::max(s.server_data.stripe_bytes(), 300u));
    if (random.Chance(0.7)) s.faults.server_crashes = 1 + random.Below(3);
    if (random.Chance(0.5)) s.faults.orders = 1 + random.Below(5);
    // A verdict stands for a round that is closed again after its owner was lost; if the order of summation is free, it was
    // decided on a sum that differs in its last bits, and the reference cannot know it.
    const bool step_wide = s.job.optimizer().clip_norm() > 0 || s.job.optimizer().kind() == "lamb" ||
                           s.job.on_nonfinite() == proto::NONFINITE_SKIP;
    if (s.job.order() == proto::ORDER_FAST && step_wide) s.faults.server_crashes = s.faults.orders = 0;
  }
  if (s.job.workers() > 1 && random.Chance(0.1)) {
    s.job.set_on_worker_loss(proto::LOSS_RESCALE);
    s.faults.losses = 1 + random.Below(s.job.workers() - 1);  // somebody is left
    s.faults.worker_crashes = 0;                              // they are what this is about
    s.faults.server_crashes = s.faults.orders = 0;            // which of two tears comes first is nobody's to say
    s.overflow.reset();   // of one rank alone such a gradient is a finite sum, and the model is lost
  }
  ChooseElastic(random, &s);
  ChooseRebalancing(&s);
  ChooseTrees(&s);
  return s;
}

Scenario WithoutFaults(Scenario scenario) {
  scenario.faults = {};
  scenario.node.set_rebalance_after_ms(0);
  return scenario;
}

std::string Scenario::ToString() const {
  std::string text = absl::StrCat("seed ", seed, ": ", job.workers(), " workers, ", servers, " servers of ", lanes,
                                  " lanes, ", steps, " steps", broadcast ? " after a broadcast" : "",
                  two_calls ? ", tables registered by a second call" : "", "\n  tensors");
  for (const proto::TensorSpec& tensor : tensors)
    absl::StrAppend(&text, " ", tensor.name(), "[", absl::StrJoin(tensor.shape(), "x"), "]",
                    tensor.kind() == proto::TENSOR_BIAS ? " (bias)" : "");
  absl::StrAppend(&text, "\n  job ", job.ShortDebugString(), "\n  worker data ", worker_data.ShortDebugString(),
                  "\n  server data ", server_data.ShortDebugString(), "\n  operations ",
                  style == OpStyle::kPushPull ? "push_pull" : style == OpStyle::kInPlace ? "in place" : "push, pull");
  const transport::SimFaults& n = faults.network;
  absl::StrAppend(&text, "\n  network delay ", n.min_delay / kMicrosecond, " to ", n.max_delay / kMicrosecond,
                  " us, drop ", n.drop, " duplicate ", n.duplicate, " reorder ", n.reorder, " reset ", n.reset,
                  " connect failure ", n.connect_failure, " slow write ", n.slow_write,
                  n.by_reference ? " by reference" : "", "\n  ", faults.cuts, " cuts, ", faults.worker_crashes,
                  " worker crashes, ", faults.scheduler_crashes, " scheduler crashes, ", faults.losses,
                  faults.returns ? " losses that return, " : " losses, ", faults.server_crashes, " server crashes, ",
                  faults.orders, " operator's orders");
  if (node.rebalance_after_ms() > 0)
    absl::StrAppend(&text, ", rebalances after ", node.rebalance_after_ms(), " ms of ", node.rebalance_over_percent(),
                    " % too much, then rests for ", node.rebalance_cooldown_ms(), " ms");
  if (hosts > 0) absl::StrAppend(&text, "\n  aggregators on ", hosts, " hosts, ", faults.trees, " changes of the trees");
  if (nonfinite) absl::StrAppend(&text, ", NaN of rank ", nonfinite->rank, " in step ", nonfinite->step);
  if (overflow) absl::StrAppend(&text, ", overflow in step ", *overflow);
  return text;
}

}  // namespace sluice::sim
