#include "server/drain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::server {
namespace {

// For how long it has been so.
TimeNs Lasts(bool so, TimeNs now, TimeNs* since) {
  if (!so) *since = 0;
  else if (*since == 0) *since = now;
  return so ? now - *since : 0;
}

}  // namespace

void Drain::OnPlan(const proto::Plan& plan, uint32_t incarnation) {
  held_.erase(plan.job());
  if (plan.state() != proto::JOB_RUNNING) return;
  Held held;
  bool here = false;
  uint32_t self = 0;
  for (const proto::ServerInfo& server : plan.servers()) {
    if (server.id() == env_.id && server.incarnation() == incarnation) {
      here = server.alive();
      self = server.server();
    } else {
      held.others |= server.alive();
    }
  }
  if (!here) return;
  for (const proto::ShardInfo& shard : plan.shards()) {
    held.shards += shard.server() == self;
    held.copies += static_cast<uint64_t>(std::ranges::count(shard.backups(), self, &proto::BackupInfo::server));
  }
  if (held.shards + held.copies > 0) held_[plan.job()] = held;
}

Drain::Held Drain::All() const {
  Held all{.shards = 0, .copies = 0, .others = true};
  for (const auto& [job, held] : held_) {
    all.shards += held.shards;
    all.copies += held.copies;
    all.others &= held.others;
  }
  return all;
}

std::string Drain::Text(const Held& held) { return absl::StrCat(held.shards, " shards and ", held.copies, " copies"); }

bool Drain::Begin(bool connected, std::string* why) {
  const Held held = All();
  if (held_.empty()) return false;
  if (env_.limit == 0) *why = absl::StrCat("not drained, node.drain_ms is 0: ", Text(held), " are here");
  else if (!connected) *why = absl::StrCat("not drained, there is no stream to the scheduler: ", Text(held), " are here");
  else if (!held.others) *why = absl::StrCat("not drained, there is no other server: ", Text(held), " are here");
  if (!why->empty()) return false;
  begun_ = true;
  since_ = env_.clock->Now();
  env_.log->Info("gives ", Text(held), " to other servers first, for ", env_.limit / kMillisecond,
                 " ms at most (node.drain_ms); another signal ends it at once");
  call_ = env_.ask(env_.limit, [this](const absl::Status& status) {
    if (!status.ok()) env_.end(absl::StrCat("not drained: ", status.message()));
  });
  return true;
}

void Drain::OnTick(bool connected) {
  if (!begun_) return;
  const TimeNs now = env_.clock->Now();
  const Held held = All();
  if (Lasts(held_.empty(), now, &empty_since_) >= kDrainGrace) return env_.end("drained: it holds nothing any more");
  if (held_.empty()) return;
  if (!held.others) return env_.end(absl::StrCat("not drained, no other server is left: ", Text(held), " are here"));
  if (Lasts(!connected, now, &alone_since_) >= kDrainAlone)
    return env_.end(absl::StrCat("not drained, there is no stream to the scheduler: ", Text(held), " are here"));
  if (now - since_ >= env_.limit)
    env_.end(absl::StrCat("not drained in ", env_.limit / kMillisecond, " ms (node.drain_ms): ", Text(held),
                          " are left (sluicectl moves shows what waits, and whether moves are paused); what has copies elsewhere goes on there"));
}

}  // namespace sluice::server
