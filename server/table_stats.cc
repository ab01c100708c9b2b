#include "server/table_stats.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace sluice::server {
namespace {

void AddCounts(const SegmentStats& from, SegmentStats* to) {
  to->rows += from.rows;
  to->bytes += from.bytes;
  to->reads += from.reads;
  to->hits += from.hits;
  to->updates += from.updates;
  to->created += from.created;
  to->evicted_age += from.evicted_age;
  to->evicted_bound += from.evicted_bound;
  to->dropped_zero += from.dropped_zero;
  to->not_admitted += from.not_admitted;
  to->no_room += from.no_room;
  to->nonfinite += from.nonfinite;
}

void AddHot(const std::vector<std::pair<uint64_t, uint64_t>>& from, std::vector<std::pair<uint64_t, uint64_t>>* to) {
  to->insert(to->end(), from.begin(), from.end());
  std::ranges::sort(*to, [](const auto& a, const auto& b) { return std::tie(b.second, a.first) < std::tie(a.second, b.first); });
  if (to->size() > kHotIds) to->resize(kHotIds);
}

}  // namespace

void TableStats::AddSegment(const TableSegment& segment) {
  ++segments;
  AddCounts(segment.stats(), &sum);
  AddHot(segment.HotIds(kHotIds), &hot);
}

void TableStats::Add(const TableStats& other) {
  segments += other.segments;
  AddCounts(other.sum, &sum);
  AddHot(other.hot, &hot);
}

void MergeTables(const std::vector<TableStats>& lane, std::vector<TableStats>* all) {
  // A lane that has not heard of a job's end, or of the next job by its number, tells of another uid for a moment.
  const auto key = [](const TableStats& t) { return std::tie(t.job, t.job_uid, t.tensor); };
  std::vector<TableStats> merged;
  merged.reserve(std::max(lane.size(), all->size()));
  auto mine = lane.begin();
  for (TableStats& table : *all) {
    for (; mine != lane.end() && key(*mine) < key(table); ++mine) merged.push_back(*mine);
    if (mine != lane.end() && key(*mine) == key(table)) table.Add(*mine++);
    merged.push_back(std::move(table));
  }
  merged.insert(merged.end(), mine, lane.end());
  *all = std::move(merged);
}

void FillTables(const std::vector<TableStats>& tables, proto::Heartbeat* heartbeat) {
  for (size_t i = 0; i < std::min(tables.size(), kHeartbeatTables); ++i) {
    const TableStats& table = tables[i];
    proto::TableState* state = heartbeat->add_tables();
    state->set_job(table.job);
    state->set_job_uid(table.job_uid);
    state->set_tensor(table.tensor);
    state->set_segments(table.segments);
    proto::TableCounts* counts = state->mutable_counts();
    counts->set_rows(table.sum.rows);
    counts->set_bytes(table.sum.bytes);
    counts->set_reads(table.sum.reads);
    counts->set_hits(table.sum.hits);
    counts->set_updates(table.sum.updates);
    counts->set_created(table.sum.created);
    counts->set_evicted_age(table.sum.evicted_age);
    counts->set_evicted_bound(table.sum.evicted_bound);
    counts->set_dropped_zero(table.sum.dropped_zero);
    counts->set_not_admitted(table.sum.not_admitted);
    counts->set_no_room(table.sum.no_room);
    counts->set_nonfinite(table.sum.nonfinite);
    for (const auto& [id, count] : table.hot) {
      proto::HotId* hot = state->add_hot();
      hot->set_id(id);
      hot->set_count(count);
    }
  }
}

void SampleTables(const std::vector<TableStats>& tables, MetricSamples* out) {
  // Under a scheduler that forgot its jobs a server may still hold one of the same name: Prometheus wants one sample of both.
  std::map<std::pair<std::string, std::string>, SegmentStats> by_name;
  for (const TableStats& table : tables) AddCounts(table.sum, &by_name[{table.job_name, table.name}]);
  for (const auto& [name, sum] : by_name) {
    const MetricLabels labels = {{"job", name.first}, {"table", name.second}};
    const auto counter = [&](const char* metric, const char* help, const char* unit, uint64_t value) {
      out->Counter({metric, help, unit}, static_cast<double>(value), labels);
    };
    out->Gauge({"sluice_server_table_rows", "Rows that are stored", "rows"}, static_cast<double>(sum.rows), labels);
    out->Gauge({"sluice_server_table_bytes", "Rows, optimizer state and index, as allocated", "bytes"},
               static_cast<double>(sum.bytes), labels);
    counter("sluice_server_table_reads_total", "Ids that were read", "ids", sum.reads);
    counter("sluice_server_table_hits_total", "Of these: stored", "ids", sum.hits);
    counter("sluice_server_table_updates_total", "Updates of rows", "updates", sum.updates);
    counter("sluice_server_table_created_total", "Rows that were created", "rows", sum.created);
    counter("sluice_server_table_evicted_age_total", "Rows evicted for max_age_rounds", "rows", sum.evicted_age);
    counter("sluice_server_table_evicted_bound_total", "Rows evicted for max_rows or max_bytes_per_server", "rows",
            sum.evicted_bound);
    counter("sluice_server_table_dropped_zero_total", "Rows dropped because all values were zero", "rows", sum.dropped_zero);
    counter("sluice_server_table_not_admitted_total", "Gradients that only counted as a sighting (admit_after)", "gradients",
            sum.not_admitted);
    counter("sluice_server_table_no_room_total", "Rows not created: bound reached, all rows of this round", "rows",
            sum.no_room);
    counter("sluice_server_table_nonfinite_total", "Gradients not applied: NaN or infinity", "gradients", sum.nonfinite);
  }
}

}  // namespace sluice::server
