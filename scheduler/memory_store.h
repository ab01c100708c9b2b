// A Store that forgets with its process; can be told to fail, for tests of what happens when the disk is full.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/core.h"

namespace sluice::scheduler {

class MemoryStore final : public Store {
 public:
  absl::Status Write(const std::vector<std::pair<std::string, std::string>>& changes) override {
    if (!failure_.ok()) return failure_;
    ++writes_;
    for (const auto& [key, value] : changes) {
      if (value.empty()) records_.erase(key);
      else records_[key] = value;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::map<std::string, std::string>> ReadAll() override { return records_; }

  // Every Write fails with this, until it is OK again.
  void set_failure(absl::Status failure) { failure_ = std::move(failure); }
  int writes() const { return writes_; }
  std::map<std::string, std::string>& records() { return records_; }

 private:
  std::map<std::string, std::string> records_;
  absl::Status failure_;
  int writes_ = 0;
};

}  // namespace sluice::scheduler
