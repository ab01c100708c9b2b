#include "tests/sim/reference.h"

#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "compression/codec.h"
#include "server/table/testing/slow_segment.h"
#include "transport/wire.h"

namespace sluice::sim {
namespace {

bool Has(const Contribution& c, uint16_t flag) { return (c.flags & flag) != 0; }
bool IsBroadcast(const Contribution& c) {
  return Has(c, transport::kFlagAssign) || (Has(c, transport::kFlagEmpty) && !Has(c, transport::kFlagNonfinite));
}

uint64_t Elements(const proto::TensorSpec& spec) {
  uint64_t elements = 1;
  for (const uint64_t extent : spec.shape()) elements *= extent;
  return elements;
}

// Biases, norms and small tensors are exempt from compression.
std::string ReplyCodec(const proto::JobConfig& config, const proto::TensorSpec& spec) {
  const uint64_t least = config.codec_min_elements() == 0 ? 1024 : config.codec_min_elements();
  if (spec.kind() != proto::TENSOR_WEIGHT || Elements(spec) < least) return "none";
  return config.reply_codec().empty() ? "fp16" : config.reply_codec();
}

Bytes ToBytes(const std::vector<float>& values) {
  const ConstBytes bytes = AsBytes(values);
  return {bytes.begin(), bytes.end()};
}

// One level of RoundRecord::nesting from `at` on: the values and sums that are added there, in their order.
std::vector<std::vector<float>> SumsOf(const std::vector<int32_t>& nesting, const std::map<uint32_t, std::vector<float>>& of_rank,
                                       size_t n, size_t* at) {
  std::vector<std::vector<float>> parts;
  while (*at < nesting.size()) {
    const int32_t token = nesting[(*at)++];
    if (token == server::kNestingEnd) break;
    if (token >= 0) {
      if (const auto it = of_rank.find(static_cast<uint32_t>(token)); it != of_rank.end()) parts.push_back(it->second);
      continue;
    }
    const std::vector<std::vector<float>> below = SumsOf(nesting, of_rank, n, at);
    if (!below.empty()) parts.push_back(SlowReduce(proto::ORDER_RANK, proto::REDUCTION_SUM, below, below.size(), n));
  }
  return parts;
}

std::vector<std::vector<float>> SumsOf(const std::vector<int32_t>& nesting, const std::map<uint32_t, std::vector<float>>& of_rank,
                                       size_t n) {
  size_t at = 0;
  return SumsOf(nesting, of_rank, n, &at);
}

}  // namespace

Reference::Reference(const proto::Plan& plan) : config_(plan.config()), layout_(LayoutOf(plan)) {
  for (const PartitionLayout& partition : layout_) {
    const proto::TensorSpec& spec = plan.tensors(static_cast<int>(partition.tensor)).spec();
    State state{.optimizer = SlowOptimizer(config_.optimizer(), spec.kind(), partition.elements),
                .replica = std::nullopt,
                .reply_codec = ReplyCodec(config_, spec),
                .steps = 0,
                .of_rank = {}};
    if (config_.reply() == proto::REPLY_CHANGE && state.reply_codec != "none")
      state.replica = std::vector<float>(partition.elements, 0.0f);
    states_.push_back(std::move(state));
    if (partition.table) AddTable(spec.table(), partition, static_cast<uint32_t>(states_.size() - 1), plan.servers_size());
  }
}

void Reference::AddTable(const proto::TableSpec& spec, const PartitionLayout& layout, uint32_t partition, int servers) {
  Table& table = tables_[partition];
  server::SegmentLimits limits;
  if (spec.max_rows() != 0) limits.max_rows = std::max<uint64_t>(1, spec.max_rows() / layout.segments);
  if (spec.max_bytes_per_server() != 0)
    limits.max_bytes = std::max<uint64_t>(1, spec.max_bytes_per_server() * static_cast<uint64_t>(servers) / layout.segments);
  table.rows = server::MakeSlowSegment(spec, limits);
  // docs/tables.md: the table's rate follows the schedule of the job's optimizer, as a factor.
  table.schedule = config_.optimizer();
  const double rate = spec.optimizer().rate() == 0 ? 0.01 : spec.optimizer().rate();
  const double job_rate = config_.optimizer().rate() == 0 ? 0.01 : config_.optimizer().rate();
  table.schedule.set_kind("sgd");
  table.schedule.set_rate(rate);
  table.schedule.set_final_rate(config_.optimizer().final_rate() / job_rate * rate);
}

std::vector<float> Reference::VisibleRows(uint32_t tensor, const std::vector<uint64_t>& ids) const {
  std::vector<float> values;
  for (const uint64_t id : ids) {
    for (const auto& [partition, table] : tables_) {
      const PartitionLayout& layout = layout_[partition];
      if (layout.tensor != tensor || SlowSegmentOf(id, layout.segments) != layout.position) continue;
      std::vector<float> row(table.rows->dim());
      table.rows->Read(std::span(&id, 1), row);
      values.insert(values.end(), row.begin(), row.end());
    }
  }
  return values;
}

absl::StatusOr<Expected> Reference::CloseTable(uint32_t partition,
                                               const std::vector<const Contribution*>& contributions, uint64_t step) {
  Table& table = tables_.at(partition);
  const size_t dim = table.rows->dim();
  std::vector<uint64_t> order;
  std::map<uint64_t, std::pair<std::vector<float>, uint32_t>> sums;
  for (const Contribution* c : contributions) {
    if (Has(*c, transport::kFlagEmpty)) continue;
    SLUICE_ASSIGN_OR_RETURN(const SlowRows rows, SlowParseRows(c->payload));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> values, SlowDecode(c->codec, rows.values, rows.ids.size() * dim));
    for (size_t r = 0; r < rows.ids.size(); ++r) {
      if (SlowSegmentOf(rows.ids[r], layout_[partition].segments) != layout_[partition].position)
        return absl::InternalError(absl::StrCat("row ", rows.ids[r], " was taken by partition ", partition));
      auto& [sum, sightings] = sums[rows.ids[r]];
      if (sum.empty()) {
        order.push_back(rows.ids[r]);
        sum.assign(values.begin() + static_cast<std::ptrdiff_t>(r * dim),
                   values.begin() + static_cast<std::ptrdiff_t>((r + 1) * dim));
      } else {
        for (size_t i = 0; i < dim; ++i) sum[i] = sum[i] + values[r * dim + i];
      }
      ++sightings;
    }
  }
  std::vector<float> gradients;
  std::vector<uint32_t> sightings;
  for (const uint64_t id : order) {
    for (float v : sums[id].first) {
      if (config_.reduction() == proto::REDUCTION_MEAN && contributions.size() > 1)
        v = v / static_cast<float>(contributions.size());
      gradients.push_back(v);
    }
    sightings.push_back(sums[id].second);
  }
  Expected expected;
  const float rate = SlowRate(table.schedule, step);
  expected.rate_bits = std::bit_cast<uint32_t>(rate);
  table.rows->Apply(order, gradients, sightings, rate, table.rounds);
  table.rows->EndRound(table.rounds);
  ++table.rounds;
  expected.value.resize(order.size() * dim);
  table.rows->Read(order, expected.value);
  return expected;
}

const std::vector<float>& Reference::Visible(uint32_t partition) const {
  const State& state = states_[partition];
  return state.replica.has_value() ? *state.replica : state.optimizer.x();
}

absl::StatusOr<Reference::Sum> Reference::Reduce(uint32_t partition,
                                                 const std::vector<const Contribution*>& contributions,
                                                 const std::vector<int32_t>& nesting) const {
  const size_t n = layout_[partition].elements;
  Sum sum;
  std::vector<std::vector<float>> vectors;
  std::map<uint32_t, std::vector<float>> of_rank;
  size_t broadcasts = 0;
  for (const Contribution* c : contributions) {
    broadcasts += IsBroadcast(*c);
    sum.asked_to_skip |= Has(*c, transport::kFlagNonfinite);
    if (Has(*c, transport::kFlagEmpty) || Has(*c, transport::kFlagNonfinite)) continue;
    absl::StatusOr<std::vector<float>> decoded = SlowDecode(c->codec, c->payload, n);
    if (!decoded.ok())
      return absl::DataLossError(absl::StrCat("rank ", c->rank, " partition ", partition, " round ", c->round, ": ",
                                              decoded.status().message()));
    if (Has(*c, transport::kFlagAssign)) {
      if (sum.root.has_value()) return absl::InternalError("two roots in one broadcast");
      sum.root = *std::move(decoded);
    } else {
      of_rank[c->rank] = *decoded;
      vectors.push_back(*std::move(decoded));
    }
  }
  sum.broadcast = broadcasts > 0;
  if (sum.broadcast && broadcasts != contributions.size())
    return absl::InternalError(absl::StrCat("partition ", partition, ": a round that is half a broadcast"));
  // Bins do not know how they were put together.
  if (!nesting.empty() && config_.order() != proto::ORDER_EXACT) vectors = SumsOf(nesting, of_rank, n);
  const bool async = config_.mode() != proto::MODE_BSP;
  sum.gradient = SlowReduce(async ? proto::ORDER_FAST : config_.order(), config_.reduction(), vectors,
                            contributions.size(), n);
  sum.finite = AllFinite(sum.gradient);
  return sum;
}

Expected Reference::Broadcast(State& state, const Sum& sum) const {
  Expected expected;
  expected.assigned = sum.root.has_value();
  expected.skipped = !expected.assigned;
  if (expected.assigned) {
    state.optimizer.Assign(*sum.root);
    if (state.replica.has_value()) state.replica = *sum.root;
    expected.answer = *sum.root;
  }
  expected.value = state.optimizer.x();
  if (expected.skipped && state.replica.has_value()) expected.reply = ToBytes(*state.replica);
  return expected;
}

absl::StatusOr<Expected> Reference::Apply(State& state, Sum sum, Expected expected) const {
  ++state.steps;
  const proto::Reply reply = config_.reply();
  if (!expected.skipped) {
    const float rate = std::bit_cast<float>(expected.rate_bits);
    state.optimizer.Apply(sum.gradient, rate, expected.scale, expected.trust);
  }
  expected.value = state.optimizer.x();
  if (reply == proto::REPLY_AGGREGATE) {
    if (expected.skipped) return expected;
    for (float& v : sum.gradient) v = v * static_cast<float>(expected.scale);
    if (!state.optimizer.none()) expected.reply = ToBytes(sum.gradient);
    expected.answer = std::move(sum.gradient);
    return expected;
  }
  if (reply == proto::REPLY_CHANGE && state.replica.has_value() && !expected.skipped) {
    std::vector<float>& y = *state.replica;
    std::vector<float> change(y.size());
    for (size_t i = 0; i < y.size(); ++i) change[i] = expected.value[i] - y[i];
    if (AllFinite(change)) {
      SLUICE_ASSIGN_OR_RETURN(const auto codec, compression::MakeCodec(state.reply_codec));
      expected.reply.resize(codec->MaxEncodedBytes(y.size()));
      SLUICE_ASSIGN_OR_RETURN(
          const size_t bytes,
          codec->Encode({.gradient = change, .residual = {}, .residual_scale = 1.0f, .residual_out = {}},
                        expected.reply));
      expected.reply.resize(bytes);
      SLUICE_ASSIGN_OR_RETURN(const std::vector<float> decoded,
                              SlowDecode(static_cast<uint16_t>(codec->id()), expected.reply, y.size()));
      for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] + decoded[i];
    } else {
      y = expected.value;
    }
  }
  if (state.replica.has_value()) {
    expected.answer = *state.replica;
  } else if (!expected.skipped || reply == proto::REPLY_PARAMETERS) {
    expected.answer = expected.value;
  }
  return expected;
}

absl::StatusOr<std::vector<Expected>> Reference::CloseStep(
    const std::vector<std::vector<const Contribution*>>& contributions, const std::vector<std::vector<int32_t>>& nesting) {
  std::vector<Sum> sums;
  bool broadcast = false;
  std::vector<Expected> expected(layout_.size());
  for (uint32_t p = 0; p < layout_.size(); ++p) {
    if (layout_[p].table) {
      SLUICE_ASSIGN_OR_RETURN(expected[p], CloseTable(p, contributions[p], tables_.at(p).rounds));
      sums.emplace_back();
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(Sum sum, Reduce(p, contributions[p], nesting.empty() ? std::vector<int32_t>() : nesting[p]));
    broadcast |= sum.broadcast;
    sums.push_back(std::move(sum));
  }
  if (broadcast) {
    for (uint32_t p = 0; p < layout_.size(); ++p) {
      if (layout_[p].table) continue;
      if (!sums[p].broadcast) return absl::InternalError("a step of which only some partitions are broadcast");
      expected[p] = Broadcast(states_[p], sums[p]);
    }
    return expected;
  }
  // One verdict for all partitions, or one for each where no step-wide decision is configured.
  const proto::OptimizerConfig& optimizer = config_.optimizer();
  const bool layerwise = optimizer.kind() == "lamb";
  const bool together =
      optimizer.clip_norm() > 0 || config_.on_nonfinite() == proto::NONFINITE_SKIP || layerwise;
  bool skip_all = false;
  double squares = 0;
  for (uint32_t p = 0; p < layout_.size(); ++p) {
    const Sum& sum = sums[p];
    if (layout_[p].table) continue;   // verdicts do not look at tables
    skip_all |= sum.asked_to_skip || !sum.finite;
    squares += sum.finite ? SlowSumOfSquares(sum.gradient) : 0.0;
  }
  skip_all |= !std::isfinite(squares);
  const double norm = std::sqrt(squares);
  const double scale = optimizer.clip_norm() > 0 && norm > optimizer.clip_norm() ? optimizer.clip_norm() / norm : 1.0;
  std::map<uint32_t, std::pair<double, double>> layers;  // tensor -> sums of squares of parameters and update
  for (uint32_t p = 0; p < layout_.size(); ++p) {
    if (layout_[p].table) continue;
    expected[p].skipped = together ? skip_all : sums[p].asked_to_skip || !sums[p].finite;
    expected[p].scale = together && !skip_all ? scale : 1.0;
    expected[p].rate_bits = std::bit_cast<uint32_t>(SlowRate(optimizer, states_[p].steps));
    if (!layerwise || skip_all) continue;
    auto& [parameters, update] = layers[layout_[p].tensor];
    parameters += SlowSumOfSquares(states_[p].optimizer.x());
    update += SlowSumOfSquares(states_[p].optimizer.Update(sums[p].gradient, scale));
  }
  for (uint32_t p = 0; p < layout_.size(); ++p) {
    if (layout_[p].table) continue;
    if (const auto it = layers.find(layout_[p].tensor); it != layers.end())
      expected[p].trust = states_[p].optimizer.Trust(it->second.first, it->second.second);
    SLUICE_ASSIGN_OR_RETURN(expected[p], Apply(states_[p], std::move(sums[p]), std::move(expected[p])));
  }
  return expected;
}

absl::StatusOr<Expected> Reference::CloseOne(uint32_t partition,
                                             const std::vector<const Contribution*>& contributions) {
  if (layout_[partition].table) {
    if (contributions.size() != 1) return absl::InternalError("an asynchronous round of several contributions");
    return CloseTable(partition, contributions, tables_.at(partition).of_rank[contributions[0]->rank]++);
  }
  State& state = states_[partition];
  SLUICE_ASSIGN_OR_RETURN(Sum sum, Reduce(partition, contributions));
  if (sum.broadcast) return Broadcast(state, sum);
  if (contributions.size() != 1) return absl::InternalError("an asynchronous round of several contributions");
  uint64_t& step = state.of_rank[contributions[0]->rank];
  Expected expected;
  expected.skipped = sum.asked_to_skip || !sum.finite;
  expected.rate_bits = std::bit_cast<uint32_t>(SlowRate(config_.optimizer(), step++));
  return Apply(state, std::move(sum), std::move(expected));
}

}  // namespace sluice::sim
