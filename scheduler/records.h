// Keys of the records in scheduler/state.proto, and reading them back.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "scheduler/core.h"
#include "scheduler/state.pb.h"

namespace sluice::scheduler {

inline constexpr uint32_t kStateFormat = 1;
inline constexpr const char* kMetaKey = "meta";

std::string JobKey(uint32_t number);
std::string ServerKey(const std::string& id);
std::string EventKey(uint64_t number);
std::string BarrierKey(uint32_t job, const std::string& name);

struct SavedState {
  proto::MetaRecord meta;
  std::map<uint32_t, proto::JobRecord> jobs;
  std::map<std::string, proto::ServerRecord> servers;
  std::deque<proto::Event> events;
  std::vector<proto::BarrierRecord> barriers;   // of jobs that are there
};

// DATA_LOSS names the key that cannot be read; FAILED_PRECONDITION: the file was written by a newer release.
absl::StatusOr<SavedState> ReadState(Store* store);

}  // namespace sluice::scheduler
