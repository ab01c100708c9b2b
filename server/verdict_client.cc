#include "server/verdict_client.h"

#include "absl/strings/str_cat.h"

namespace sluice::server {

void VerdictClient::Add(uint64_t step, uint32_t phase, const StepRecord& record) {
  const std::pair key{step, phase};
  Gather& gather = open_[key];
  if (gather.since == 0) gather.since = clock_->Now();
  gather.records.push_back(record);
  if (gather.records.size() >= owned_) SendNow(key, gather);
}

void VerdictClient::SendNow(const std::pair<uint64_t, uint32_t>& key, Gather& gather) {
  gather.sent = clock_->Now();
  // A copy: a coordinator of this very lane may answer from inside the call, which ends the gather.
  const std::vector<StepRecord> records = gather.records;
  send_(key.first, key.second, records);
}

bool VerdictClient::OnVerdict(uint64_t step, uint32_t phase) { return open_.erase({step, phase}) > 0; }

void VerdictClient::OnTick() {
  const TimeNs now = clock_->Now();
  std::vector<std::pair<uint64_t, uint32_t>> due;
  for (const auto& [key, gather] : open_) {
    if (gather.sent != 0 && now - gather.sent >= resend_) due.push_back(key);
  }
  for (const auto& key : due) {
    if (auto it = open_.find(key); it != open_.end()) SendNow(key, it->second);
  }
}

void VerdictClient::OnCoordinatorUp() {
  std::vector<std::pair<uint64_t, uint32_t>> due;
  for (const auto& [key, gather] : open_) {
    if (gather.sent != 0) due.push_back(key);
  }
  for (const auto& key : due) {
    if (auto it = open_.find(key); it != open_.end()) SendNow(key, it->second);
  }
}

std::string VerdictClient::WaitingFor() const {
  if (open_.empty()) return "";
  const auto& [key, gather] = *open_.begin();
  if (gather.sent == 0) {
    return absl::StrCat("step ", key.first, ": ", gather.records.size(), " of ", owned_,
                        " partitions of this loop are summed");
  }
  return absl::StrCat("step ", key.first, " phase ", key.second, ": no verdict from the coordinator for ",
                      (clock_->Now() - gather.since) / kMillisecond, " ms");
}

}  // namespace sluice::server
