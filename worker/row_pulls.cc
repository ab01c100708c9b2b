#include "worker/row_pulls.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace sluice::worker {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::Payload;

namespace {

constexpr TimeNs kRetryDelay = 100 * kMillisecond;
constexpr int kMaxBackoff = 8;
constexpr size_t kKeptPerSize = 64;

}  // namespace

uint64_t RowPulls::Submit(const RowPullRequest& request, std::function<void(const OpResult&)> done,
                          std::function<void()> released) {
  const uint64_t id = next_id_++;
  Running& running = pulls_[id];
  running.request = request;
  running.done = std::move(done);
  running.released = std::move(released);
  running.submitted = env_.partitions->clock->Now();
  running.unfinished = request.pull->parts.size();
  running.result.round = request.round;
  for (const uint32_t at : request.pull->unknown) {
    std::fill_n(request.output.begin() + static_cast<std::ptrdiff_t>(size_t{at} * request.pull->dim), request.pull->dim, 0.0f);
  }
  if (request.deadline != 0) deadlines_.insert({request.deadline, id});
  for (size_t part = 0; part < request.pull->parts.size(); ++part) {
    Wait({id, part, 0, env_.partitions->resend});
  }
  if (running.unfinished == 0) End(id, absl::OkStatus());
  return id;
}

uint64_t RowPulls::Refuse(absl::Status why, std::function<void(const OpResult&)> done, std::function<void()> released) {
  const uint64_t id = next_id_++;
  Running& running = pulls_[id];
  running.done = std::move(done);
  running.released = std::move(released);
  End(id, std::move(why));
  return id;
}

void RowPulls::CallDone(Running& running, OpResult result) {
  if (!running.done) return;
  deferred_.push_back([done = std::move(running.done), result = std::move(result)] { done(result); });
  running.done = nullptr;
}

// Nothing of this pull is asked for any more.
void RowPulls::End(uint64_t id, absl::Status status) {
  const auto it = pulls_.find(id);
  Running& running = it->second;
  running.result.status = std::move(status);
  if (running.request.deadline != 0) deadlines_.erase({running.request.deadline, id});
  CallDone(running, running.result);
  if (running.released) deferred_.push_back(std::move(running.released));
  pulls_.erase(it);
}

bool RowPulls::Cancel(uint64_t id) {
  const auto it = pulls_.find(id);
  if (it == pulls_.end()) return false;
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    const auto here = ask++;
    if (here->second.pull == id) Forget(here);
  }
  End(id, absl::CancelledError("cancelled"));
  return true;
}

void RowPulls::RunDeferred() {
  while (!deferred_.empty()) {
    const std::function<void()> fn = std::move(deferred_.front());
    deferred_.pop_front();
    fn();
  }
}

// --- asking

std::shared_ptr<std::byte> RowPulls::Memory(size_t bytes) {
  const size_t size = std::bit_ceil(bytes);
  if (std::vector<std::shared_ptr<std::byte>>& kept = free_[size]; !kept.empty()) {
    std::shared_ptr<std::byte> memory = std::move(kept.back());
    kept.pop_back();
    return memory;
  }
  auto memory = env_.partitions->slab->Allocate(size);
  return memory.ok() ? *std::move(memory) : nullptr;
}

bool RowPulls::Send(const Part& waiting) {
  const Running& running = pulls_.at(waiting.pull);
  const RowPull::Part& part = running.request.pull->parts[waiting.part];
  Partition* partition = env_.find(running.request.table)->partitions[part.segment].get();
  const LinkId link = env_.link(*partition);
  if (link == 0) return false;
  PartitionEnv& env = *env_.partitions;
  Ask ask;
  ask.pull = waiting.pull;
  ask.part = waiting.part;
  ask.partition = partition;
  ask.lane = partition->lane();
  ask.link = link;
  ask.bytes = size_t{part.rows} * running.request.pull->dim * sizeof(float);
  ask.heard = env.clock->Now();
  ask.interval = waiting.interval;
  if (ask.bytes > env.eager_bytes) {
    ask.memory = Memory(ask.bytes);
    if (ask.memory == nullptr) return false;   // out of memory: later
    ask.slot = env.endpoint->OpenSlot(link, {ask.memory.get(), ask.bytes});
  }
  const uint64_t request = env.next_request++;
  FrameHeader header;
  header.type = FrameType::kPull;
  header.job = env.job;
  header.rank = env.rank;
  header.incarnation = env.incarnation;
  header.tensor = running.request.table;
  header.partition = partition->shape().index;
  header.term = partition->term();
  header.round = running.request.round;
  header.elements = part.rows;
  header.codec = running.request.pull->packed ? transport::kPackedIds : transport::kPlainIds;
  header.plan_version = env.plan_version;
  header.reply_slot = ask.slot;
  header.aux64 = request;
  env.queue->SendSmall(link, header, running.request.pull->Payload(part));
  ++asked_[ask.lane];
  asks_.emplace(request, std::move(ask));
  return true;
}

void RowPulls::Pump() {
  TimeNs now = 0;
  bool sent = false;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto& [lane, parts] = *it;
    // Each is looked at once: what cannot be sent now waits behind the others of its lane.
    for (size_t left = parts.size(); left > 0 && asked_[lane] < kPartsPerLane; --left) {
      const Part part = parts.front();
      parts.pop_front();
      const auto running = pulls_.find(part.pull);
      if (running == pulls_.end()) continue;   // cancelled
      if (const LaneKey owner = LaneOf(running->second, part.part); owner != lane) {   // it has moved
        moved_.push_back(part);
        continue;
      }
      if (part.not_before != 0 && now == 0) now = env_.partitions->clock->Now();
      if (part.not_before > now) {
        parts.push_back(part);
      } else if (!Send(part)) {
        parts.push_front(part);   // as good as any other of this lane
        break;
      } else {
        sent = true;
      }
    }
    it = parts.empty() ? waiting_.erase(it) : std::next(it);
  }
  for (const Part& part : moved_) Wait(part);   // for the next time
  moved_.clear();
  // The trainer waits, or will soon: an answer later by the fusion's cycle would be the larger part of a small pull's time.
  if (sent) env_.partitions->queue->SendBatchesNow();
}

LaneKey RowPulls::LaneOf(const Running& running, size_t part) const {
  const uint32_t segment = running.request.pull->parts[part].segment;
  return env_.find(running.request.table)->partitions[segment]->lane();
}

void RowPulls::Wait(const Part& part) { waiting_[LaneOf(pulls_.at(part.pull), part.part)].push_back(part); }

void RowPulls::CloseSlot(Ask& ask) {
  if (ask.slot == 0) return;
  if (env_.partitions->endpoint->CloseSlot(ask.link, ask.slot)) {
    std::vector<std::shared_ptr<std::byte>>& kept = free_[std::bit_ceil(ask.bytes)];
    if (kept.size() < kKeptPerSize) kept.push_back(std::move(ask.memory));
  } else {
    closing_[ask.slot] = std::move(ask.memory);
  }
  ask.slot = 0;
}

void RowPulls::Forget(std::map<uint64_t, Ask>::iterator it) {
  CloseSlot(it->second);
  --asked_[it->second.lane];
  asks_.erase(it);
}

void RowPulls::Withdraw(std::map<uint64_t, Ask>::iterator it, TimeNs not_before) {
  const Ask& ask = it->second;
  Wait({ask.pull, ask.part, not_before, std::min(ask.interval * 2, env_.partitions->resend * kMaxBackoff)});
  Forget(it);
}

void RowPulls::OnTick() {
  const TimeNs now = env_.partitions->clock->Now();
  for (auto it = asks_.begin(); it != asks_.end();) {
    const auto here = it++;
    if (now - here->second.heard >= here->second.interval) Withdraw(here, 0);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    const Running& running = pulls_.at(id);
    const absl::Status late = absl::DeadlineExceededError(
        absl::StrFormat("%s: not done %.1f s after it was submitted", Describe(running, id),
                        static_cast<double>(now - running.submitted) / kSecond));
    for (auto ask = asks_.begin(); ask != asks_.end();) {
      const auto here = ask++;
      if (here->second.pull == id) Forget(here);
    }
    End(id, late);
  }
  Pump();
}

void RowPulls::LinkDown(LinkId link) {
  for (auto it = asks_.begin(); it != asks_.end();) {
    const auto here = it++;
    if (here->second.link != link) continue;
    here->second.slot = 0;   // it died with the link
    here->second.interval = env_.partitions->resend / 2;
    Withdraw(here, 0);
  }
}

// --- answers

absl::StatusOr<bool> RowPulls::OnValue(const FrameHeader& header, const Payload& payload) {
  const auto it = asks_.find(header.aux64);
  if (it == asks_.end()) return false;
  Ask& ask = it->second;
  if (header.partition != ask.partition->shape().index) return false;
  ask.heard = env_.partitions->clock->Now();
  if (header.total_bytes != ask.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", header.total_bytes, " bytes, ", ask.bytes, " were asked for: ", transport::DebugString(header)));
  }
  ConstBytes bytes = payload.bytes();
  if (payload.size() != header.total_bytes) {
    if (header.slot == 0) {
      return absl::InvalidArgumentError(absl::StrCat("a stripe without a slot: ", transport::DebugString(header)));
    }
    if (header.slot != ask.slot) return true;
    if (!ask.stripes.has_value() || ask.attempt != header.attempt) {
      ask.stripes.emplace(header.total_bytes);
      ask.attempt = header.attempt;
    }
    SLUICE_RETURN_IF_ERROR(ask.stripes->Add(header.stripe_offset, header.payload_bytes));
    std::byte* place = ask.memory.get() + header.stripe_offset;
    if (payload.data() != place) std::memcpy(place, payload.data(), payload.size());
    if (!ask.stripes->complete()) return true;
    bytes = {ask.memory.get(), ask.bytes};
  }
  const Running& running = pulls_.at(ask.pull);
  PlaceRows(*running.request.pull, running.request.pull->parts[ask.part], bytes, running.request.output);
  PartDone(it, header.round, header.rate_bits);
  return true;
}

void RowPulls::PartDone(std::map<uint64_t, Ask>::iterator it, uint64_t round, uint32_t rate_bits) {
  const uint64_t id = it->second.pull;
  Forget(it);
  Running& running = pulls_.at(id);
  running.result.next_rate = std::bit_cast<float>(rate_bits);
  running.result.round = std::max(running.result.round, round);
  if (--running.unfinished == 0) End(id, absl::OkStatus());
  Pump();
}

bool RowPulls::OnRetry(const FrameHeader& header) {
  const auto it = asks_.find(header.aux64);
  if (it == asks_.end()) return false;
  it->second.interval = env_.partitions->resend / 2;
  Withdraw(it, env_.partitions->clock->Now() + kRetryDelay);
  return true;
}

bool RowPulls::OnError(const FrameHeader& header, const absl::Status& status, bool permanent) {
  const auto it = asks_.find(header.aux64);
  if (it == asks_.end() || header.aux64 == 0) return false;
  if (!permanent) {
    Withdraw(it, env_.partitions->clock->Now() + kRetryDelay);
    return true;
  }
  const uint64_t id = it->second.pull;
  for (auto ask = asks_.begin(); ask != asks_.end();) {
    const auto here = ask++;
    if (here->second.pull == id) Forget(here);
  }
  End(id, status);
  return true;
}

void RowPulls::Fail(const absl::Status& why) {
  while (!asks_.empty()) Forget(asks_.begin());
  waiting_.clear();
  while (!pulls_.empty()) End(pulls_.begin()->first, why);
}

// --- for people

std::optional<TimeNs> RowPulls::oldest() const {
  if (pulls_.empty()) return std::nullopt;
  return pulls_.begin()->second.submitted;
}

std::string RowPulls::Describe(const Running& running, uint64_t id) const {
  const TensorState* table = env_.find(running.request.table);
  std::string text = absl::StrCat("pull of ", running.request.pull->places.size(), " rows of table ", table->spec.name(),
                                  " at round ", running.request.round);
  for (const auto& [request, ask] : asks_) {
    if (ask.pull != id) continue;
    return absl::StrCat(text, ": segment ", running.request.pull->parts[ask.part].segment, " on ",
                        env_.describe(*ask.partition), " has not answered");
  }
  return absl::StrCat(text, ": waits for a connection");
}

std::string RowPulls::Waiting() const {
  if (pulls_.empty()) return "";
  const auto& [id, running] = *pulls_.begin();
  return absl::StrFormat("%s, %.1f s", Describe(running, id),
                         static_cast<double>(env_.partitions->clock->Now() - running.submitted) / kSecond);
}

}  // namespace sluice::worker
