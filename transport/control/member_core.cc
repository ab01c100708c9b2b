#include "transport/control/member_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice::control {
namespace {

constexpr TimeNs kFirstBackoff = 50 * kMillisecond;
constexpr TimeNs kLongestBackoff = 2 * kSecond;
constexpr TimeNs kDefaultConnectTimeout = 60 * kSecond;
// Register was sent but nothing came back, or heartbeats go unanswered: after so many leases the stream counts as dead.
constexpr int kSilentLeases = 3;
constexpr TimeNs kMinSilence = 5 * kSecond;
// A request that waits longer than this is worth a word to people.
constexpr TimeNs kSlowRequest = kSecond;

// Codes that no repetition cures; everything else may pass by itself.
bool IsPermanent(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return true;
    default:
      return false;
  }
}

std::string Seconds(TimeNs t) { return absl::StrFormat("%.1f s", static_cast<double>(t) / kSecond); }

std::string Because(const absl::Status& status) {
  return status.ok() ? "" : absl::StrCat("; last error: ", status.ToString());
}

std::string Describe(const proto::MemberMessage& message) {
  switch (message.kind_case()) {
    case proto::MemberMessage::kTensors:
      return absl::StrCat("the registration of ", message.tensors().tensors_size(), " tensors");
    case proto::MemberMessage::kBarrier:
      return absl::StrCat("barrier \"", message.barrier().name(), "\" number ", message.barrier().sequence());
    case proto::MemberMessage::kLeave:
      return "leaving the job";
    default:
      return "a request";
  }
}

}  // namespace

MemberCore::MemberCore(proto::Register identity, std::string scheduler_address, TimeNs connect_timeout,
                       const Clock* clock, Output output, Listener* listener)
    : identity_(std::move(identity)),
      scheduler_address_(std::move(scheduler_address)),
      connect_timeout_(connect_timeout > 0 ? connect_timeout : kDefaultConnectTimeout),
      clock_(clock),
      output_(std::move(output)),
      listener_(listener) {
  if (identity_.protocol() == 0) identity_.set_protocol(kProtocolVersion);
  if (identity_.version().empty()) identity_.set_version(kReleaseVersion);
}

void MemberCore::Start() {
  down_since_ = clock_->Now();
  output_.reconnect(0);
}

void MemberCore::OnStreamUp() {
  if (refused_) return;
  stream_up_ = true;
  last_heard_ = clock_->Now();
  SendRegister();
}

void MemberCore::OnStreamDown(const absl::Status& status) {
  if (refused_) return;
  const TimeNs now = clock_->Now();
  if (welcomed_) down_since_ = now;
  stream_up_ = false;
  welcomed_ = false;
  reports_.clear();  // the scheduler asks again if it still wants them
  last_error_ = status.ok() ? absl::UnavailableError("the scheduler ended the stream") : status;
  if (IsPermanent(status)) {
    Refuse(status);
    return;
  }
  if (GaveUp(now)) return;
  // 50 ms, 100 ms, … 2 s. No jitter: a run must replay; and a few thousand members at most share one scheduler.
  backoff_ = backoff_ == 0 ? kFirstBackoff : std::min(2 * backoff_, kLongestBackoff);
  output_.reconnect(backoff_);
}

void MemberCore::OnMessage(const proto::SchedulerMessage& message) {
  if (refused_ || !stream_up_) return;
  last_heard_ = clock_->Now();
  switch (message.kind_case()) {
    case proto::SchedulerMessage::kWelcome:
      OnWelcome(message.welcome());
      return;
    case proto::SchedulerMessage::kPlan:
      OnPlan(message.plan());
      return;
    case proto::SchedulerMessage::kDone: {
      auto it = pending_.find(message.done().request());
      if (it == pending_.end()) return;  // the answer to a repetition
      Done done = std::move(it->second.done);
      pending_.erase(it);
      if (done) done(message.done());
      return;
    }
    case proto::SchedulerMessage::kReport:
      reports_.push_back(message.report());
      if (reports_.size() > 1) return;  // one at a time: the listener has the first one in hand
      listener_->OnReport(message.report());
      SendHeartbeat();
      return;
    case proto::SchedulerMessage::kShutdown:
      listener_->OnShutdown(message.shutdown().why());
      return;
    case proto::SchedulerMessage::kProbe:
      listener_->OnProbe(message.probe());
      return;
    case proto::SchedulerMessage::kHeartbeatAck:
    case proto::SchedulerMessage::KIND_NOT_SET:  // of a newer scheduler
      return;
  }
}

void MemberCore::OnTick() {
  if (refused_) return;
  const TimeNs now = clock_->Now();
  if (!welcomed_ && GaveUp(now)) return;
  if (stream_up_ && now - last_heard_ >= silence_limit_) {
    // The stream looks alive but nobody talks on it (a frozen scheduler, a half-open connection). Open another.
    OnStreamDown(absl::UnavailableError(absl::StrCat("the stream is open but the scheduler said nothing for ",
                                                     Seconds(now - last_heard_))));
    return;
  }
  if (welcomed_ && now - last_heartbeat_ >= heartbeat_every_) SendHeartbeat();
}

void MemberCore::RegisterTensors(std::vector<proto::TensorSpec> tensors, Done done) {
  const uint64_t id = next_request_++;
  proto::MemberMessage message;
  message.mutable_tensors()->set_request(id);
  for (proto::TensorSpec& tensor : tensors) *message.mutable_tensors()->add_tensors() = std::move(tensor);
  Request(id, std::move(message), std::move(done));
}

void MemberCore::Barrier(std::string name, uint64_t sequence, Done done) {
  const uint64_t id = next_request_++;
  proto::MemberMessage message;
  message.mutable_barrier()->set_request(id);
  message.mutable_barrier()->set_name(std::move(name));
  message.mutable_barrier()->set_sequence(sequence);
  Request(id, std::move(message), std::move(done));
}

void MemberCore::Leave(bool failed, std::string why, Done done) {
  if (welcomed_) SendHeartbeat();   // the last word on its round and bytes: nobody would hear of them later
  const uint64_t id = next_request_++;
  proto::MemberMessage message;
  message.mutable_leave()->set_request(id);
  message.mutable_leave()->set_failed(failed);
  message.mutable_leave()->set_why(std::move(why));
  Request(id, std::move(message), std::move(done));
}

void MemberCore::RequestPlan() {
  if (welcomed_) SendHeartbeat();
}

std::string MemberCore::Waiting() const {
  if (refused_) return "";
  const TimeNs now = clock_->Now();
  if (!welcomed_) {
    const std::string elapsed = Seconds(now - down_since_);
    if (ever_welcomed_) {
      return absl::StrCat(
          "scheduler ", scheduler_address_, ": connection lost ", elapsed,
          " ago, trying again (the data plane goes on meanwhile); start sluice-scheduler there again with "
          "the same state file",
          Because(last_error_));
    }
    if (stream_up_) {
      return absl::StrCat("scheduler ", scheduler_address_, ": connected, but not admitted yet for ", elapsed, " of ",
                          Seconds(connect_timeout_), "; `sluicectl status` shows what it waits for");
    }
    return absl::StrCat("scheduler ", scheduler_address_, ": no answer for ", elapsed, " of ",
                        Seconds(connect_timeout_), "; is sluice-scheduler running there?", Because(last_error_));
  }
  const Pending* oldest = nullptr;
  for (const auto& [id, pending] : pending_)
    if (oldest == nullptr || pending.since < oldest->since) oldest = &pending;
  if (oldest == nullptr || now - oldest->since < kSlowRequest) return "";
  return absl::StrCat("scheduler ", scheduler_address_, ": ", Describe(oldest->message), " unanswered for ",
                      Seconds(now - oldest->since), "; `sluicectl status` shows which member is missing");
}

void MemberCore::OnWelcome(const proto::Welcome& welcome) {
  welcomed_ = true;
  ever_welcomed_ = true;
  backoff_ = 0;
  last_error_ = absl::OkStatus();
  identity_.set_incarnation(welcome.incarnation());
  if (identity_.role() == proto::ROLE_WORKER) identity_.set_rank(static_cast<int32_t>(welcome.rank()));
  if (welcome.heartbeat_ms() > 0) heartbeat_every_ = welcome.heartbeat_ms() * kMillisecond;
  silence_limit_ = std::max(kMinSilence, kSilentLeases * TimeNs{welcome.lease_ms()} * kMillisecond);
  last_heartbeat_ = clock_->Now();
  listener_->OnWelcome(welcome);
  // By number, so in the order in which they were first made. The listener may have added some just now; a copy of the
  // numbers keeps each from going out twice, and survives a send that ends in a refusal.
  std::vector<uint64_t> unanswered;
  for (const auto& [id, pending] : pending_)
    if (!pending.sent_on_this_stream) unanswered.push_back(id);
  for (uint64_t id : unanswered) {
    auto it = pending_.find(id);
    if (it == pending_.end() || it->second.sent_on_this_stream) continue;
    it->second.sent_on_this_stream = true;
    output_.send(it->second.message);
  }
}

void MemberCore::OnPlan(const proto::Plan& plan) {
  uint64_t& newest = plan_versions_[plan.job()];
  if (plan.version() > newest) {
    newest = plan.version();
    identity_.set_plan_version(std::max(identity_.plan_version(), plan.version()));
    for (const proto::ShardInfo& shard : plan.shards())
      identity_.set_max_term(std::max(identity_.max_term(), shard.term()));
    listener_->OnPlan(plan);
  }
  if (!welcomed_) return;
  proto::MemberMessage message;
  message.mutable_plan_ack()->set_job(plan.job());
  message.mutable_plan_ack()->set_version(plan.version());
  output_.send(message);
}

void MemberCore::SendRegister() {
  for (auto& [id, pending] : pending_) pending.sent_on_this_stream = false;
  proto::MemberMessage message;
  *message.mutable_register_() = identity_;
  output_.send(message);
}

void MemberCore::SendHeartbeat() {
  last_heartbeat_ = clock_->Now();
  proto::MemberMessage message;
  proto::Heartbeat* heartbeat = message.mutable_heartbeat();
  heartbeat->set_sequence(++heartbeat_sequence_);
  heartbeat->set_plan_version(identity_.plan_version());
  if (!reports_.empty()) heartbeat->set_report_request(reports_.front().request());
  listener_->FillHeartbeat(heartbeat);
  const bool answered = !reports_.empty() && heartbeat->report_request() == reports_.front().request();
  if (!answered) heartbeat->set_report_request(0);
  output_.send(message);
  if (!answered) return;
  reports_.pop_front();
  if (!reports_.empty()) {
    listener_->OnReport(reports_.front());
    SendHeartbeat();
  }
}

void MemberCore::Request(uint64_t id, proto::MemberMessage message, Done done) {
  if (refused_) {
    proto::RequestDone answer;
    answer.set_request(id);
    answer.set_code(static_cast<int32_t>(last_error_.code()));
    answer.set_message(std::string(last_error_.message()));
    if (done) done(answer);
    return;
  }
  Pending& pending = pending_[id];
  pending.message = std::move(message);
  pending.done = std::move(done);
  pending.since = clock_->Now();
  if (!welcomed_) return;
  pending.sent_on_this_stream = true;
  output_.send(pending.message);
}

bool MemberCore::GaveUp(TimeNs now) {
  if (ever_welcomed_ || now - down_since_ < connect_timeout_) return false;
  Refuse(absl::DeadlineExceededError(
      absl::StrCat("scheduler ", scheduler_address_, ": ", stream_up_ ? "connected, but not admitted" : "no answer",
                   " for ", Seconds(now - down_since_), " (node.connect_timeout_ms allows ", Seconds(connect_timeout_),
                   "); check that sluice-scheduler runs there, that node.scheduler names it, and that no firewall is "
                   "between (`sluicectl "
                   "doctor --scheduler ",
                   scheduler_address_, "` tests each)", Because(last_error_))));
  return true;
}

void MemberCore::Refuse(absl::Status status) {
  refused_ = true;
  stream_up_ = false;
  welcomed_ = false;
  last_error_ = status;
  std::map<uint64_t, Pending> pending = std::move(pending_);
  pending_.clear();
  listener_->OnRefused(status);
  for (auto& [id, request] : pending) {
    proto::RequestDone answer;
    answer.set_request(id);
    answer.set_code(static_cast<int32_t>(status.code()));
    answer.set_message(std::string(status.message()));
    if (request.done) request.done(answer);
  }
}

}  // namespace sluice::control
