#include "tests/sim/history.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/table/segment.h"
#include "transport/wire.h"

namespace sluice::sim {
namespace {

Bytes Copy(ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

std::string Digest(ConstBytes bytes) {
  return absl::StrCat(bytes.size(), " bytes #", absl::Hex(transport::HashBytes(bytes) & 0xFFFFFF, absl::kZeroPad6));
}

}  // namespace

std::vector<PartitionLayout> LayoutOf(const proto::Plan& plan) {
  std::vector<PartitionLayout> layout;
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    uint64_t offset = 0, columns = 1;
    for (int i = 1; i < tensor.spec().shape_size(); ++i) columns *= tensor.spec().shape(i);
    for (int i = 0; i < tensor.partition_elements_size(); ++i) {
      const proto::ShardInfo& shard = plan.shards(static_cast<int>(tensor.partition_shard(i)));
      layout.push_back({.table = tensor.spec().has_table(),
                        .segments = static_cast<uint32_t>(tensor.partition_shard_size()),
                        .tensor = tensor.tensor(), .position = static_cast<uint32_t>(i), .server = shard.server(),
                        .lane = shard.lane(), .term = shard.term(), .offset = offset,
                        .elements = tensor.partition_elements(i), .columns = columns});
      offset += tensor.partition_elements(i);
    }
  }
  return layout;
}

std::string Describe(const Event& event) {
  struct Visitor {
    std::string operator()(const Encoded& e) const {
      return absl::StrCat("worker ", e.rank, ".", e.incarnation, " pushes partition ", e.partition, " round ", e.round,
                          " codec ", e.codec, " ", Digest(e.payload));
    }
    std::string operator()(const Contribution& c) const {
      return absl::StrCat("server ", c.server, "/", c.lane, " takes partition ", c.partition, " round ", c.round,
                          " of rank ", c.rank, ".", c.incarnation, " flags ", c.flags, " ", Digest(c.payload));
    }
    std::string operator()(const Round& r) const {
      return absl::StrCat("server ", r.server, "/", r.lane, r.backup ? " copies partition " : " applies partition ", r.partition, " round ", r.round,
                          " of ranks ", absl::StrJoin(r.contributors, ","), " term ", r.term, r.nesting.empty() ? "" : " by a tree",
                          r.skipped ? " SKIPPED" : "", r.assigned ? " ASSIGNED" : "", " scale ", r.scale, " value ",
                          Digest(AsBytes(r.value)));
    }
    std::string operator()(const Result& r) const {
      return absl::StrCat("worker ", r.rank, ".", r.incarnation, " has partition ", r.partition, " round ", r.round,
                          (r.flags & transport::kFlagRejected) != 0 ? " REJECTED" : "", " value ", Digest(AsBytes(r.value)));
    }
    std::string operator()(const Pulled& p) const {
      return absl::StrCat("worker ", p.rank, " has pulled tensor ", p.tensor, " after ", p.round, " rounds, value ",
                          Digest(AsBytes(p.value)));
    }
    std::string operator()(const PulledRows& p) const {
      return absl::StrCat("worker ", p.rank, " has pulled ", p.ids.size(), " rows of table ", p.tensor, " after ",
                          p.round, " rounds, values ", Digest(AsBytes(p.values)));
    }
    std::string operator()(const PushedRows& p) const {
      return absl::StrCat("worker ", p.rank, " hands over ", p.ids.size(), " rows of table ", p.tensor, " round ",
                          p.round, " gradients ", Digest(AsBytes(p.gradients)));
    }
    std::string operator()(const Joined& j) const {
      return absl::StrCat("worker ", j.rank, ".", j.incarnation, " joins tensor ", j.tensor, " at round ", j.round);
    }
  };
  return std::visit(Visitor(), event);
}

void ServerRecorder::OnContribution(const server::ContributionRecord& r) {
  history_->events.push_back(Contribution{server_, lane_, r.rank, r.incarnation, r.tensor, r.partition, r.round,
                                          r.codec, r.flags, r.elements, Copy(r.payload)});
}

void ServerRecorder::OnRound(const server::RoundRecord& r) {
  std::vector<float> value = Copy(r.value);
  if (r.segment != nullptr) {
    value.resize(r.rows.size() * r.segment->dim());
    r.segment->Read(r.rows, value);
  }
  history_->events.push_back(Round{server_, lane_, r.tensor, r.partition, r.term, r.round, r.contributors, r.skipped,
                                   r.assigned, r.backup, r.scale, r.trust, r.rate_bits, std::move(value), Copy(r.reply), r.nesting});
}

void WorkerRecorder::OnEncoded(uint32_t partition, uint64_t round, uint16_t codec, std::span<const float> gradient,
                               ConstBytes payload) {
  history_->events.push_back(
      Encoded{rank_, incarnation_, partition, round, codec, Copy(gradient), Copy(payload)});
}

void WorkerRecorder::OnResult(uint32_t partition, uint64_t round, uint16_t flags, std::span<const float> value) {
  history_->events.push_back(Result{rank_, incarnation_, partition, round, Copy(value), flags});
}

}  // namespace sluice::sim
