// From segments through a core to heartbeats and metrics.
#include "server/table_stats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compression/row_payload.h"
#include "gmock/gmock.h"
#include "server/testing/core_harness.h"

namespace sluice::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TableStats Stats(uint32_t job, uint32_t tensor, uint64_t rows, std::vector<std::pair<uint64_t, uint64_t>> hot = {}) {
  TableStats stats;
  stats.job = job;
  stats.job_uid = job * 11;
  stats.job_name = absl::StrCat("job-", job);
  stats.tensor = tensor;
  stats.name = absl::StrCat("table-", tensor);
  stats.segments = 1;
  stats.sum.rows = rows;
  stats.hot = std::move(hot);
  return stats;
}

// Rows with a gradient of 1, all of one segment.
void Push(CoreHarness& lane, uint32_t tensor, uint32_t partition, uint64_t round, const std::vector<uint64_t>& ids) {
  std::vector<std::byte> bytes;
  ASSERT_TRUE(compression::PackIds(ids, &bytes).ok());
  const std::vector<float> gradients(ids.size(), 1.0f);
  const ConstBytes values = std::as_bytes(std::span<const float>(gradients));
  bytes.insert(bytes.end(), values.begin(), values.end());
  FrameHeader h = CoreHarness::HeaderOf({.partition = partition, .round = round, .tensor = tensor});
  h.elements = static_cast<uint32_t>(ids.size());
  h.total_bytes = h.payload_bytes = static_cast<uint32_t>(bytes.size());
  lane.Deliver(1, h, bytes);
}

void Pull(CoreHarness& lane, uint32_t tensor, uint32_t partition, uint64_t round, const std::vector<uint64_t>& ids) {
  FrameHeader h = CoreHarness::HeaderOf({.partition = partition, .round = round, .tensor = tensor});
  h.type = FrameType::kPull;
  h.codec = transport::kPlainIds;
  h.aux64 = 1;
  h.elements = static_cast<uint32_t>(ids.size());
  const ConstBytes bytes = std::as_bytes(std::span<const uint64_t>(ids));
  h.total_bytes = h.payload_bytes = static_cast<uint32_t>(bytes.size());
  lane.Deliver(1, h, bytes);
}

std::vector<uint64_t> IdsOfSegment(uint32_t segment, uint32_t segments, size_t most) {
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; ids.size() < most; ++id)
    if (compression::SegmentOf(id, segments) == segment) ids.push_back(id);
  return ids;
}

TEST(TableStats, ALaneSumsItsSegmentsByTable) {
  PlanBuilder builder("workers: 1 name: 'clicks'");
  builder.Server("s0").Tensor("bias", {4}).Table("users", 1, 2).Table("items", 1, 1);
  CoreHarness lane;
  EXPECT_THAT(lane.core->table_stats(), IsEmpty());
  lane.Start(builder.plan);
  const std::vector<uint64_t> first = IdsOfSegment(0, 2, 3), second = IdsOfSegment(1, 2, 5);
  Push(lane, 1, 1, 0, first);
  Push(lane, 1, 2, 0, second);
  Push(lane, 2, 3, 0, {7});
  Pull(lane, 1, 1, 1, {first[0], first[2], IdsOfSegment(0, 2, 4)[3]});

  const std::vector<TableStats> tables = lane.core->table_stats();
  ASSERT_THAT(tables, SizeIs(2));
  EXPECT_EQ(tables[0].job, 1u);
  EXPECT_EQ(tables[0].job_uid, 77u);
  EXPECT_EQ(tables[0].job_name, "clicks");
  EXPECT_EQ(tables[0].tensor, 1u);
  EXPECT_EQ(tables[0].name, "users");
  EXPECT_EQ(tables[0].segments, 2u);
  EXPECT_EQ(tables[0].sum.rows, 8u);
  EXPECT_EQ(tables[0].sum.created, 8u);
  EXPECT_EQ(tables[0].sum.updates, 8u);
  EXPECT_EQ(tables[0].sum.reads, 3u);
  EXPECT_EQ(tables[0].sum.hits, 2u);
  EXPECT_GT(tables[0].sum.bytes, 0u);
  EXPECT_EQ(tables[1].name, "items");
  EXPECT_EQ(tables[1].segments, 1u);
  EXPECT_EQ(tables[1].sum.rows, 1u);

  builder.plan.set_version(2);
  builder.plan.set_state(proto::JOB_FINISHED);
  lane.core->OnPlan(builder.plan);
  EXPECT_THAT(lane.core->table_stats(), IsEmpty());
}

TEST(TableStats, TheIdThatIsPushedMostIsHot) {
  CoreHarness lane;
  lane.Start(PlanBuilder("workers: 1").Server("s0").Table("users", 1, 1).plan);
  // Hot ids are sampled, so pushes go on until more of them are known than are told.
  uint64_t round = 0;
  for (; round < 200; ++round) Push(lane, 0, 0, round, {5, 1000 + round});
  const std::vector<TableStats> tables = lane.core->table_stats();
  ASSERT_THAT(tables, SizeIs(1));
  ASSERT_THAT(tables[0].hot, SizeIs(kHotIds));
  EXPECT_EQ(tables[0].hot[0].first, 5u);
  EXPECT_TRUE(std::ranges::is_sorted(tables[0].hot, [](const auto& a, const auto& b) { return a.second > b.second; }));
}

TEST(TableStats, LanesMergeByJobAndTensor) {
  std::vector<TableStats> all;
  MergeTables({Stats(1, 0, 3, {{8, 50}, {2, 9}}), Stats(2, 4, 1)}, &all);
  MergeTables({}, &all);
  MergeTables({Stats(1, 0, 4, {{7, 50}, {1, 60}}), Stats(1, 2, 5), Stats(3, 0, 6)}, &all);
  ASSERT_THAT(all, SizeIs(4));
  EXPECT_EQ(all[0].sum.rows, 7u);
  EXPECT_EQ(all[0].segments, 2u);
  EXPECT_THAT(all[0].hot, ElementsAre(Pair(1, 60), Pair(7, 50), Pair(8, 50), Pair(2, 9)));
  EXPECT_EQ(all[1].tensor, 2u);
  EXPECT_EQ(all[2].job, 2u);
  EXPECT_EQ(all[3].job, 3u);

  TableStats other = Stats(1, 0, 100);
  other.job_uid = 12;   // another job by this number: kept apart
  MergeTables({other}, &all);
  ASSERT_THAT(all, SizeIs(5));
  EXPECT_EQ(all[0].sum.rows, 7u);
}

TEST(TableStats, AHeartbeatCarriesABoundedPart) {
  TableStats full = Stats(1, 0, 1);
  full.sum = {.rows = 1, .bytes = 2, .reads = 3, .hits = 4, .updates = 5, .created = 6, .evicted_age = 7,
              .evicted_bound = 8, .dropped_zero = 9, .not_admitted = 10, .no_room = 11, .nonfinite = 12};
  TableStats more = Stats(1, 0, 0);
  for (uint64_t id = 0; id < 2 * kHotIds; ++id) more.hot.emplace_back(id, 100 - id);
  full.Add(more);
  std::vector<TableStats> tables = {full};
  for (uint32_t tensor = 1; tensor < 300; ++tensor) tables.push_back(Stats(1, tensor, tensor));
  proto::Heartbeat heartbeat;
  FillTables(tables, &heartbeat);
  ASSERT_EQ(heartbeat.tables_size(), static_cast<int>(kHeartbeatTables));
  const proto::TableState& first = heartbeat.tables(0);
  EXPECT_EQ(first.job(), 1u);
  EXPECT_EQ(first.job_uid(), 11u);
  EXPECT_EQ(first.segments(), 2u);
  const proto::TableCounts& c = first.counts();
  EXPECT_THAT((std::vector<uint64_t>{c.rows(), c.bytes(), c.reads(), c.hits(), c.updates(), c.created(), c.evicted_age(),
                                     c.evicted_bound(), c.dropped_zero(), c.not_admitted(), c.no_room(), c.nonfinite()}),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  ASSERT_EQ(first.hot_size(), static_cast<int>(kHotIds));
  EXPECT_EQ(first.hot(7).id(), 7u);
  EXPECT_EQ(first.hot(7).count(), 93u);
  EXPECT_EQ(heartbeat.tables(255).tensor(), 255u);
}

TEST(TableStats, MetricsHaveOneSampleForEachJobAndTable) {
  std::vector<TableStats> tables = {Stats(1, 0, 3), Stats(1, 1, 4), Stats(2, 0, 5)};
  tables[2].job_name = "job-1";
  tables[1].sum.not_admitted = 9;
  MetricSamples out;
  SampleTables(tables, &out);
  EXPECT_THAT(out.samples, SizeIs(2 * 12));
  const auto value = [&](const std::string& name, const std::string& table) {
    for (const MetricSample& sample : out.samples) {
      if (sample.info.name == name && sample.labels == MetricLabels{{"job", "job-1"}, {"table", table}}) return sample.value;
    }
    return -1.0;
  };
  EXPECT_EQ(value("sluice_server_table_rows", "table-0"), 8);
  EXPECT_EQ(value("sluice_server_table_rows", "table-1"), 4);
  EXPECT_EQ(value("sluice_server_table_not_admitted_total", "table-1"), 9);
}

}  // namespace
}  // namespace sluice::server
