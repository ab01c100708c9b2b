// The newest plan of each job, for whoever asks this server for it over gRPC. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/plan.pb.h"

namespace sluice::server {

class PlanStore {
 public:
  void Set(std::shared_ptr<const proto::Plan> plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    plans_[plan->job()] = std::move(plan);
  }

  absl::StatusOr<std::shared_ptr<const proto::Plan>> Get(uint32_t job, uint64_t newer_than) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = plans_.find(job);
    if (it == plans_.end()) return absl::NotFoundError(absl::StrCat("this server has no plan of job ", job));
    if (it->second->version() <= newer_than) {
      return absl::NotFoundError(absl::StrCat("this server's plan of job ", job, " is version ", it->second->version(),
                                              ", not newer than ", newer_than));
    }
    return it->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<const proto::Plan>> plans_;   // guarded by mutex_
};

}  // namespace sluice::server
