#include "server/replication.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/partition.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::RetryReason;

namespace {

constexpr TimeNs kRetryDelay = 100 * kMillisecond;
constexpr TimeNs kErrorDelay = kSecond;
constexpr double kCreditSeconds = 0.1;   // of the fill's pace, that may be saved up

}  // namespace

// --- who follows what

Replication::Target& Replication::TargetOf(const proto::Plan& plan, Place place) {
  Target& target = targets_[place];
  const proto::ServerInfo* info = nullptr;
  for (const proto::ServerInfo& server : plan.servers()) {
    if (server.server() == place.first) info = &server;
  }
  if (target.channel == nullptr) target.channel = env_.make_channel();
  if (info != nullptr && static_cast<int>(place.second) < info->lanes_size()) {
    target.address = info->lanes(static_cast<int>(place.second));
    target.name = absl::StrCat("server ", info->id(), " lane ", place.second);
    Connect(target);
  }
  return target;
}

void Replication::Connect(Target& target) {
  const LinkId link = env_.link(target.address);
  if (link != 0 && link != target.channel->link()) target.channel->LinkUp(link);
}

void Replication::Update(uint32_t self, const proto::Plan& plan, const std::vector<Owned>& shards) {
  self_ = self;
  plan_version_ = plan.version();
  shards_.clear();
  std::map<uint32_t, Log> before = std::move(logs_);
  logs_.clear();
  std::map<CopyKey, Copy> copies;
  std::set<Place> used;
  for (const Owned& owned : shards) {
    shards_.push_back(*owned.info);
    for (const proto::BackupInfo& backup : owned.info->backups()) {
      const Place place{backup.server(), backup.lane()};
      used.insert(place);
      const CopyKey key{owned.info->shard(), place, backup.since()};
      Copy& copy = copies[key] = copies_[key];
      copy.synced |= backup.in_sync();
      for (Partition* partition : owned.partitions) {
        const uint32_t index = partition->shape().partition;
        Log& log = logs_[index];
        Log& old = before[index];
        const auto same = std::ranges::find_if(old.followers, [&](const Follower& f) {
          return old.term == owned.info->term() && f.place == place && f.since == backup.since();
        });
        Follower follower;
        if (same != old.followers.end()) {
          follower = std::move(*same);
          old.followers.erase(same);
        } else {
          follower.place = place;
          follower.since = backup.since();
          follower.channel = TargetOf(plan, place).channel.get();
        }
        if (copy.synced && !follower.counts) follower.counts = follower.synced = true;
        log.followers.push_back(std::move(follower));
      }
    }
    for (Partition* partition : owned.partitions) {
      Log& log = logs_[partition->shape().partition];
      log.partition = partition;
      log.shard = owned.info->shard();
      log.term = owned.info->term();
    }
  }
  for (auto& [index, log] : before) {
    for (Follower& follower : log.followers) DropFollower(log, follower);
  }
  copies_ = std::move(copies);
  for (auto it = targets_.begin(); it != targets_.end();) {
    if (used.contains(it->first)) {
      TargetOf(plan, it->first);   // its address may be another
      ++it;
      continue;
    }
    it->second.channel->Close();
    env_.bury(std::move(it->second.channel));
    it = targets_.erase(it);
  }
  fill_due_ = true;   // only now: a channel has forgotten what it was sending for those that are gone
  for (const auto& [index, log] : logs_) settled_.push_back(log.partition);
}

void Replication::DropFollower(Log& log, Follower& follower) {
  for (const Piece& piece : follower.queue) {
    if (piece.state) state_bytes_ -= piece.bytes.size();
  }
  queued_bytes_ -= follower.bytes;
  if (follower.sending) follower.channel->Abandon(log.partition->shape().partition);
}

// The copy is of no use any more (it differs, or cannot be brought up to date): its stream goes on with a state. Until then what
// it counts for waits.
void Replication::BeginAnew(Log& log, Follower& follower) {
  DropFollower(log, follower);
  follower.queue.clear();
  follower.bytes = 0;
  follower.sending = follower.started = follower.synced = false;
  if (follower.counts) follower.queue.push_back({});
}

void Replication::Forget(uint32_t partition) {
  const auto it = logs_.find(partition);
  if (it == logs_.end()) return;
  for (Follower& follower : it->second.followers) DropFollower(it->second, follower);
  std::erase(settled_, it->second.partition);
  logs_.erase(it);
}

void Replication::Retire() {
  for (auto& [place, target] : targets_) {
    target.channel->Close();
    env_.bury(std::move(target.channel));
  }
  targets_.clear();
  logs_.clear();
  settled_.clear();
}

bool Replication::Follows(uint32_t partition) const {
  const auto it = logs_.find(partition);
  return it != logs_.end() && !it->second.followers.empty();
}

bool Replication::LogSettled(const Log& log) const {
  return std::ranges::all_of(log.followers, [](const Follower& f) { return !f.counts || f.queue.empty(); });
}

bool Replication::Settled(uint32_t partition) const {
  const auto it = logs_.find(partition);
  return it == logs_.end() || LogSettled(it->second);
}

// --- what they are sent

void Replication::Queue(Log& log, Follower& follower, const ReplicaMessage& message, bool state) {
  ConstBytes rest = message.bytes;
  do {
    const ConstBytes piece = rest.first(std::min(rest.size(), env_.piece_bytes));
    rest = rest.subspan(piece.size());
    follower.queue.push_back({message.owner, piece, !rest.empty(), state});
  } while (!rest.empty());
  follower.bytes += message.bytes.size();
  queued_bytes_ += message.bytes.size();
  if (state) state_bytes_ += message.bytes.size();
  if (follower.bytes > kBehindBytes && follower.started) follower.counts = true;
  SendNext(log, follower);
}

void Replication::QueueState(Log& log, Follower& follower) {
  follower.queue.clear();   // what a try that failed has left
  auto message = log.partition->Save();
  if (message.ok()) {
    follower.started = true;
    Queue(log, follower, *message, /*state=*/true);
    return;
  }
  follower.trouble = std::string(message.status().message());
  follower.retry_at = env_.clock->Now() + kErrorDelay;
  // If it counts nothing may be answered that it has not got: an empty message keeps the partition waiting.
  if (follower.counts) follower.queue.push_back({});
}

void Replication::Append(Partition* partition, const ReplicaMessage& message) {
  Log& log = logs_.at(partition->shape().partition);
  for (Follower& follower : log.followers) {
    if (follower.started) {
      Queue(log, follower, message, /*state=*/false);
    } else if (follower.counts) {
      QueueState(log, follower);
    }
  }
}

void Replication::SendNext(Log& log, Follower& follower) {
  if (follower.sending || follower.queue.empty() || !follower.started) return;
  const PartitionShape& shape = log.partition->shape();
  const Piece& piece = follower.queue.front();
  FrameHeader header;
  header.job = env_.job;
  header.rank = kReplicaRank | self_;
  header.incarnation = env_.incarnation;
  header.tensor = shape.tensor;
  header.partition = shape.partition;
  header.term = log.term;
  header.round = follower.next;
  header.flags = static_cast<uint16_t>(transport::kFlagReplica | (piece.more ? transport::kFlagMore : 0));
  header.plan_version = plan_version_;
  header.aux64 = follower.since;
  follower.sending = true;
  follower.since_when = env_.clock->Now();
  follower.channel->Send(header, piece.bytes, piece.owner, shape.priority);
}

// The first message of the queue.
void Replication::Acknowledged(Log& log, Follower& follower) {
  const Piece piece = std::move(follower.queue.front());
  follower.queue.pop_front();
  follower.sending = false;
  follower.trouble.clear();
  follower.retry_at = 0;
  ++follower.next;
  follower.bytes -= piece.bytes.size();
  queued_bytes_ -= piece.bytes.size();
  *env_.acknowledged_bytes += piece.bytes.size();
  if (piece.state) {
    state_bytes_ -= piece.bytes.size();
    copies_[{log.shard, follower.place, follower.since}].sent += piece.bytes.size();
    if (!piece.more) follower.counts = true;
    fill_due_ = true;
  }
  if (follower.counts && follower.queue.empty()) follower.synced = true;
  SendNext(log, follower);
  if (LogSettled(log)) settled_.push_back(log.partition);
}

std::vector<Partition*> Replication::TakeSettled() {
  if (std::exchange(fill_due_, false)) Fill();
  return std::exchange(settled_, {});
}

// A state begins while there is credit, and may overdraw it: a partition is not cut for the pace's sake. What a partition needs
// to close a round does not come here (Append).
void Replication::Fill() {
  if (env_.fill_bytes_per_s > 0) {
    const TimeNs now = env_.clock->Now();
    const double rate = static_cast<double>(env_.fill_bytes_per_s);
    if (fill_paced_ != 0) fill_credit_ += rate * static_cast<double>(now - fill_paced_) / kSecond;
    fill_credit_ = std::min(fill_credit_, rate * kCreditSeconds);
    fill_paced_ = now;
  }
  for (auto& [index, log] : logs_) {
    for (Follower& follower : log.followers) {
      if (follower.started || state_bytes_ >= kFillBytes) continue;
      if (env_.fill_bytes_per_s > 0 && fill_credit_ < 0) return;
      if (follower.retry_at != 0 && env_.clock->Now() < follower.retry_at) continue;
      // A copy that is in sync and of a partition in which nothing has happened is as it should be.
      if (follower.counts && follower.queue.empty() && log.partition->pristine()) continue;
      follower.retry_at = 0;
      const size_t before = state_bytes_;
      QueueState(log, follower);
      fill_credit_ -= static_cast<double>(state_bytes_ - before);
    }
  }
}

// --- what comes back

bool Replication::OnFrame(LinkId link, const FrameHeader& header, const std::string& text) {
  const auto it = logs_.find(header.partition);
  if (it == logs_.end()) return false;
  Log& log = it->second;
  const auto follower = std::ranges::find_if(
      log.followers, [&](const Follower& f) { return f.channel->link() == link && f.sending && f.next == header.round; });
  if (follower == log.followers.end() || header.rank != (kReplicaRank | self_)) return false;
  switch (header.type) {
    case FrameType::kApplied:
      if (header.term != log.term || header.aux64 != follower->since) return false;
      if (follower->channel->Finish(header.partition, header.round)) Acknowledged(log, *follower);
      return true;
    case FrameType::kRetry:
      if (static_cast<RetryReason>(header.aux) == RetryReason::kTerm) env_.request_plan();
      follower->retry_at = env_.clock->Now() + kRetryDelay;
      return true;
    case FrameType::kError:
      follower->trouble = text;
      follower->retry_at = env_.clock->Now() + kErrorDelay;
      if (static_cast<absl::StatusCode>(header.status) == absl::StatusCode::kDataLoss) BeginAnew(log, *follower);
      return true;
    default: return follower->channel->OnFrame(link, header);
  }
}

void Replication::OnPeerUp() {
  for (auto& [place, target] : targets_) Connect(target);
}

void Replication::LinkDown(LinkId link) {
  for (auto& [place, target] : targets_) target.channel->LinkDown(link);
}

void Replication::OnTick() {
  const TimeNs now = env_.clock->Now();
  for (auto& [place, target] : targets_) {
    if (target.channel->link() == 0) Connect(target);
    target.channel->OnTick();
  }
  for (auto& [index, log] : logs_) {
    for (Follower& follower : log.followers) {
      if (!follower.sending || follower.retry_at == 0 || now < follower.retry_at) continue;
      follower.retry_at = 0;
      follower.channel->Again(index);
    }
  }
  Fill();
}

// --- for the scheduler and for people

void Replication::Report(std::vector<proto::ReplicaState>* states) {
  struct Filling {
    const proto::ShardInfo* shard = nullptr;
    bool synced = true;         // all partitions of the shard
    uint64_t left = 0;          // bytes
  };
  std::map<CopyKey, Filling> filling;
  for (const proto::ShardInfo& shard : shards_) {
    for (const proto::BackupInfo& backup : shard.backups()) {
      if (backup.in_sync()) continue;
      filling[{shard.shard(), Place{backup.server(), backup.lane()}, backup.since()}].shard = &shard;
    }
  }
  if (filling.empty()) return;
  for (const auto& [index, log] : logs_) {
    for (const Follower& follower : log.followers) {
      const auto it = filling.find({log.shard, follower.place, follower.since});
      if (it == filling.end()) continue;
      it->second.synced &= follower.synced;
      it->second.left += follower.bytes + (follower.started ? 0 : log.partition->copy_bytes());
    }
  }
  for (const auto& [key, one] : filling) {
    Copy& copy = copies_[key];
    copy.synced |= one.synced;
    proto::ReplicaState& state = states->emplace_back();
    state.set_job(env_.job);
    state.set_job_uid(env_.uid);
    state.set_shard(one.shard->shard());
    state.set_term(one.shard->term());
    state.set_server(std::get<1>(key).first);
    state.set_since(std::get<2>(key));
    state.set_in_sync(copy.synced);
    state.set_bytes_sent(copy.sent);
    state.set_bytes_left(one.left);
  }
}

std::string Replication::WaitingFor() const {
  const Follower* oldest = nullptr;
  const Log* its = nullptr;
  for (const auto& [index, log] : logs_) {
    for (const Follower& follower : log.followers) {
      if (!follower.counts || follower.queue.empty()) continue;
      if (oldest != nullptr && oldest->since_when <= follower.since_when) continue;
      oldest = &follower;
      its = &log;
    }
  }
  if (oldest == nullptr) return "";
  const auto target = targets_.find(oldest->place);
  return absl::StrFormat("partition %d waits for its copy on %s for %d ms%s%s", its->partition->shape().partition,
                         target == targets_.end() ? "?" : target->second.name,
                         (env_.clock->Now() - oldest->since_when) / kMillisecond,
                         oldest->channel->link() == 0 ? ", to which there is no connection" : "",
                         oldest->trouble.empty() ? "" : absl::StrCat(", which says: ", oldest->trouble));
}

}  // namespace sluice::server
