// Statistics of tables on their way out of a server: a lane sums its segments by job and tensor, the daemon sums its lanes,
// heartbeats and metrics carry the sums. Segments have no id in common, so neither have the hot ids of two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "proto/control.pb.h"
#include "server/table/segment.h"

namespace sluice::server {

inline constexpr size_t kHotIds = 8;              // of a table that are told
inline constexpr size_t kHeartbeatTables = 256;

struct TableStats {
  uint32_t job = 0;
  uint64_t job_uid = 0;
  std::string job_name;
  uint32_t tensor = 0;
  std::string name;
  uint32_t segments = 0;
  SegmentStats sum;
  std::vector<std::pair<uint64_t, uint64_t>> hot;   // id, count: most first, of equal ones the smaller id; at most kHotIds

  void AddSegment(const TableSegment& segment);
  void Add(const TableStats& other);                // of the same table: other segments
};

// Adds those of one more lane. Both are by job and tensor, none twice.
void MergeTables(const std::vector<TableStats>& lane, std::vector<TableStats>* all);

// The first kHeartbeatTables of them.
void FillTables(const std::vector<TableStats>& tables, proto::Heartbeat* heartbeat);

// sluice_server_table_…, labels job and table.
void SampleTables(const std::vector<TableStats>& tables, MetricSamples* out);

}  // namespace sluice::server
