#include "server/verdict_client.h"

#include "absl/strings/str_cat.h"

namespace sluice::server {

void VerdictClient::Add(uint64_t step, uint32_t phase, const StepRecord& record) {
  Gather& gather = open_[{step, phase}];
  if (gather.since == 0) gather.since = clock_->Now();
  gather.records[record.partition] = record;
  gather.added.push_back(record.partition);
}

void VerdictClient::Flush() {
  for (auto& [key, gather] : open_) {
    if (gather.added.empty()) continue;
    std::vector<StepRecord> records;
    for (const uint32_t partition : std::exchange(gather.added, {})) records.push_back(gather.records.at(partition));
    gather.sent = clock_->Now();
    send_(key.first, key.second, records);   // it only sends, or puts it into a queue
  }
}

void VerdictClient::SendAll(const std::pair<uint64_t, uint32_t>& key, Gather& gather) {
  gather.sent = clock_->Now();
  gather.added.clear();
  std::vector<StepRecord> records;
  for (const auto& [partition, record] : gather.records) records.push_back(record);
  send_(key.first, key.second, records);
}

bool VerdictClient::OnVerdict(uint64_t step, uint32_t phase) {
  open_.erase(open_.begin(), open_.lower_bound({step, 0}));
  return open_.erase({step, phase}) > 0;
}

void VerdictClient::OnTick() {
  const TimeNs now = clock_->Now();
  for (auto& [key, gather] : open_) {
    if (gather.sent != 0 && now - gather.sent >= resend_) SendAll(key, gather);
  }
}

void VerdictClient::OnCoordinatorUp() {
  for (auto& [key, gather] : open_) SendAll(key, gather);
}

std::string VerdictClient::WaitingFor() const {
  if (open_.empty()) return "";
  const auto& [key, gather] = *open_.begin();
  return absl::StrCat("step ", key.first, " phase ", key.second, ": no verdict from the coordinator for ",
                      (clock_->Now() - gather.since) / kMillisecond, " ms, after ", gather.records.size(),
                      " records of this loop");
}

}  // namespace sluice::server
