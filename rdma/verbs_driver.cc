#include "rdma/verbs_driver.h"

#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rdma/completion_text.h"
#include "rdma/queue_pair_driver.h"

namespace sluice::rdma {
absl::Status QueuePairDriver::Start() {
  const HostFacts facts = GatherFacts(verbs_.get(), absl::OkStatus(), options_.gather);
  if (facts.devices.empty() && facts.kernel_devices.empty()) return absl::NotFoundError("this host has no RDMA device");
  const RailChoice choice = ChooseRails(facts, options_.rails);
  absl::Status last;
  for (const Rail& rail : choice.rails) {
    ContextOptions options;
    options.cq_entries = options_.cq_entries;
    options.memory = &memory_;
    options.refused = [this](const absl::Status& why) { Log(absl::StrCat("RDMA without this memory: ", why.message())); };
    auto context = Context::Open(verbs_.get(), rail, options);
    if (!context.ok()) {
      last = context.status();
      Log(absl::StrCat(rail.ToString(), " is not used: ", last.message()));
      continue;
    }
    rails_.push_back({.rail = rail, .context = *std::move(context)});
  }
  if (rails_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no RDMA device can be used: ", FindingsText(choice.findings),
                                                      last.ok() ? "" : absl::StrCat("; ", last.message())));
  }
  for (size_t i = 0; i < rails_.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(loop_->Watch(rails_[i].context->completion_fd(), EPOLLIN, [this, i](uint32_t) { OnCompletions(i); }));
    SLUICE_RETURN_IF_ERROR(loop_->Watch(rails_[i].context->async_fd(), EPOLLIN, [this, i](uint32_t) { OnEvents(i); }));
    SLUICE_RETURN_IF_ERROR(rails_[i].context->Arm());
  }
  return absl::OkStatus();
}

bool QueuePairDriver::Usable() const {
  return std::any_of(rails_.begin(), rails_.end(), [](const RailState& rail) { return !rail.down; });
}

bool QueuePairDriver::Wanting(LinkId link) const {
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (!rails_[i].down && Count(link, i) < options_.queue_pairs) return true;
  }
  return false;
}

std::vector<SlotTarget> QueuePairDriver::Targets(LinkId link, uint32_t, MutableBytes memory) {
  std::vector<SlotTarget> targets;
  const auto it = links_.find(link);
  if (it == links_.end()) return targets;
  std::vector<bool> seen(rails_.size());
  for (auto& [path, qp] : it->second.qps) {
    if (seen[qp->rail]) continue;
    seen[qp->rail] = true;
    if (const auto keys = qp->domain->Find(memory, Access::kSendAndReceive)) {
      targets.push_back({static_cast<uint32_t>(qp->rail), reinterpret_cast<uint64_t>(memory.data()), keys->rkey});
    }
  }
  return targets;
}

bool QueuePairDriver::CanSendFrom(LinkId link, PathId path, ConstBytes payload) {
  Qp* qp = Find(link, path);
  return qp != nullptr && qp->domain->Find(payload).has_value();
}

size_t QueuePairDriver::Room(LinkId link, PathId path) {
  Qp* qp = Find(link, path);
  return qp == nullptr ? 0 : qp->qp->room();
}

uint32_t QueuePairDriver::ReceivesPosted(LinkId link, PathId path) {
  Qp* qp = Find(link, path);
  return qp == nullptr ? 0 : qp->qp->receives_posted();
}

void QueuePairDriver::SendPacket(LinkId link, PathId path, ConstBytes packet, uint64_t token) {
  Qp* qp = Find(link, path);
  if (qp == nullptr) return;   // breaking: the owner hears of it
  qp->qp->Packet(packet, token);
  Touch(*qp);
}

void QueuePairDriver::SendChunk(LinkId link, PathId path, const Chunk& chunk, uint64_t token) {
  Qp* qp = Find(link, path);
  if (qp == nullptr) return;
  const auto keys = qp->domain->Find(chunk.payload);
  if (!keys.has_value() || chunk.payload.size() > qp->qp->max_write_bytes()) {
    BreakQp(*qp, absl::InternalError("a payload that this device cannot send: its memory is not registered, or it is too long"));
    return;
  }
  qp->qp->Write(chunk.payload, keys->lkey, chunk.target.address + chunk.offset, static_cast<uint32_t>(chunk.target.key),
                chunk.tag, token);
  Touch(*qp);
}

void QueuePairDriver::Flush() {
  const TimeNs now = clock_->Now();
  for (Qp* qp : std::exchange(touched_, {})) {
    qp->touched = false;
    if (!qp->qp->broken().ok() || !qp->connected) continue;
    (void)qp->qp->Flush(now);   // an error breaks it
    if (!qp->qp->broken().ok()) ReapSoon();
  }
}

void QueuePairDriver::Break(LinkId link, PathId path, const absl::Status& why) {
  if (Qp* qp = Find(link, path)) BreakQp(*qp, why);
}

void QueuePairDriver::DropLink(LinkId link) {
  const auto it = links_.find(link);
  if (it == links_.end()) return;
  for (auto& [path, qp] : it->second.qps) Bury(std::move(qp));
  links_.erase(it);
}

std::shared_ptr<void> QueuePairDriver::Register(MutableBytes memory) {
  return std::make_shared<MemoryRegistry::Handle>(memory_.Add(memory.data(), memory.size()));
}

std::vector<QueuePairDriver::Report> QueuePairDriver::Reports(LinkId link) const {
  std::vector<Report> reports;
  const auto it = links_.find(link);
  if (it == links_.end()) return reports;
  for (const auto& [path, qp] : it->second.qps) {
    if (!qp->up) continue;
    const QpCounters& counters = qp->qp->counters();
    const Rail& rail = rails_[qp->rail].rail;
    reports.push_back({.path = path,
                       .rail = RailName(rail),
                       .peer = qp->peer,
                       .packets_out = counters.packets_out,
                       .packets_in = counters.packets_in,
                       .writes = counters.writes_out,
                       .bytes_out = counters.packet_bytes_out + counters.write_bytes_out,
                       .notices_in = counters.notices_in,
                       .oldest_wait = qp->qp->oldest_wait(clock_->Now())});
  }
  return reports;
}

transport::PathTotals QueuePairDriver::Counters() const {
  const QpCounters sum = Totals();
  transport::PathTotals totals;
  totals.broken = broken_;
  for (const RailState& rail : rails_) {
    totals.ports.emplace_back(rail.rail.device, rail.rail.port);
    for (const Domain* domain : rail.domains) {
      totals.registered_bytes += domain->stats().registered_bytes;
      totals.refused_regions += domain->stats().refused;
    }
  }
  for (unsigned status = 0; status < sum.completions.size(); ++status) {
    if (sum.completions[status] > 0) totals.completions[CompletionName(status)] += sum.completions[status];
  }
  totals.latency.assign(sum.latency.begin(), sum.latency.end());
  totals.latency_seconds = static_cast<double>(sum.latency_microseconds) / 1e6;
  return totals;
}

std::vector<Rail> QueuePairDriver::rails() const {
  std::vector<Rail> rails;
  for (const RailState& rail : rails_) rails.push_back(rail.rail);
  return rails;
}

QpCounters QueuePairDriver::Totals() const {
  QpCounters totals = gone_;
  for (const auto& [id, link] : links_) {
    for (const auto& [path, qp] : link.qps) totals.Add(qp->qp->counters());
  }
  return totals;
}

uint64_t QueuePairDriver::registered_bytes() const {
  uint64_t bytes = 0;
  for (const RailState& rail : rails_) {
    for (const Domain* domain : rail.domains) bytes += domain->stats().registered_bytes;
  }
  return bytes;
}

void QueuePairDriver::Log(const std::string& text) const {
  if (options_.log) options_.log(text);
}

QueuePairDriver::Qp* QueuePairDriver::Find(LinkId link, PathId path) {
  const auto it = links_.find(link);
  if (it == links_.end()) return nullptr;
  const auto qp = it->second.qps.find(path);
  return qp == it->second.qps.end() ? nullptr : qp->second.get();
}

uint32_t QueuePairDriver::Count(LinkId link, size_t rail) const {
  const auto it = links_.find(link);
  if (it == links_.end()) return 0;
  uint32_t count = 0;
  for (const auto& [path, qp] : it->second.qps) count += qp->rail == rail && !qp->breaking.has_value() ? 1 : 0;
  return count;
}

void QueuePairDriver::Touch(Qp& qp) {
  if (std::exchange(qp.touched, true)) return;
  touched_.push_back(&qp);
}

void QueuePairDriver::Destroy(LinkId link, PathId path) {
  const auto it = links_.find(link);
  if (it == links_.end()) return;
  auto node = it->second.qps.extract(path);
  if (!node.empty()) Bury(std::move(node.mapped()));
}

void QueuePairDriver::Bury(std::unique_ptr<Qp> qp) {
  qp->dropped = true;
  rails_[qp->rail].by_number.erase(qp->qp->number());
  if (qp->touched) std::erase(touched_, qp.get());
  if (polling_) {
    qp->qp->Break(absl::CancelledError("its link is gone"));
    graveyard_.push_back(std::move(qp));
    return;
  }
  gone_.Add(qp->qp->counters());
}

void QueuePairDriver::Dig() {
  for (const auto& qp : graveyard_) gone_.Add(qp->qp->counters());
  graveyard_.clear();
}

void QueuePairDriver::OnCompletions(size_t index) {
  Context& context = *rails_[index].context;
  const TimeNs begun = clock_->Now();
  TimeNs last = begun;
  for (int burst = 0; burst < kMostBursts; ++burst) {
    const size_t found = PollOnce(index);
    if (found > 0) {
      last = clock_->Now();
      continue;
    }
    if (clock_->Now() - last < options_.spin) {
      --burst;   // bounded by time
      continue;
    }
    if (const absl::Status status = context.Arm(); !status.ok()) return Lose(index, status);
    if (PollOnce(index) == 0) return;
    last = clock_->Now();
  }
  // Still busy. What comes from now on raises no event until the queue is armed.
  if (poll_timer_ == 0) {
    poll_timer_ = loop_->After(0, [this] {
      poll_timer_ = 0;
      for (size_t i = 0; i < rails_.size(); ++i) OnCompletions(i);
    });
  }
}

size_t QueuePairDriver::PollOnce(size_t index) {
  RailState& rail = rails_[index];
  const TimeNs now = clock_->Now();
  size_t count = 0;
  bool more = false;
  polling_ = true;
  const absl::Status status = rail.context->Poll([&](const ibv_wc& wc) {
    ++count;
    const auto it = rail.by_number.find(wc.qp_num);
    if (it == rail.by_number.end()) return;   // of one that was destroyed
    Qp& qp = *it->second;
    qp.qp->OnCompletion(wc, now);
    if (!qp.qp->broken().ok() && !qp.dropped) Breaking(qp);
  }, &more);
  polling_ = false;
  Dig();
  if (!status.ok()) {
    Lose(index, status);
    return 0;
  }
  if (count == 0) return 0;
  Reap();
  Flush();   // receives: the peer may be waiting for credits
  owner_->PathsRead();
  return count;
}

void QueuePairDriver::BreakQp(Qp& qp, const absl::Status& why) {
  qp.qp->Break(why);
  Breaking(qp);
}

void QueuePairDriver::Breaking(Qp& qp) {
  if (qp.breaking.has_value()) return;
  qp.breaking = clock_->Now();
  ++broken_;
  ReapSoon();
}

void QueuePairDriver::ReapSoon() {
  if (reap_timer_ != 0) return;
  reap_timer_ = loop_->After(0, [this] {
    reap_timer_ = 0;
    for (size_t i = 0; i < rails_.size(); ++i) OnCompletions(i);
    Reap();
  });
}

void QueuePairDriver::Reap(bool late) {
  const TimeNs now = clock_->Now();
  struct Dead {
    LinkId link;
    PathId path;
    bool up, certain;
    absl::Status why;
  };
  std::vector<Dead> dead;
  for (auto& [id, link] : links_) {
    for (auto& [path, qp] : link.qps) {
      if (qp->qp->broken().ok()) continue;
      Breaking(*qp);
      if (qp->qp->drained() || (late && now - *qp->breaking >= kDrain))
        dead.push_back({id, path, qp->up || qp->probing, qp->qp->receives_drained(), qp->qp->broken()});
    }
  }
  for (const Dead& one : dead) {
    Destroy(one.link, one.path);
    if (one.up && one.certain) owner_->PathBroken(one.link, one.path, one.why);
    if (one.up && !one.certain) owner_->PathDoubtful(one.link, one.path, one.why);
  }
  if (!dead.empty()) owner_->PathsRead();
}

void QueuePairDriver::Lose(size_t index, const absl::Status& status) {
  RailState& rail = rails_[index];
  if (rail.lost) return;
  rail.down = rail.lost = true;
  loop_->Unwatch(rail.context->completion_fd());   // an event that is never taken would wake the loop for ever
  Log(absl::StrCat(rail.rail.ToString(), " is given up until this process starts again: ", status.message()));
  BreakRail(index, status);
}

void QueuePairDriver::BreakRail(size_t index, const absl::Status& why) {
  for (auto& [id, link] : links_) {
    for (auto& [path, qp] : link.qps) {
      if (qp->rail == index && qp->qp->broken().ok()) BreakQp(*qp, why);
    }
  }
}

void QueuePairDriver::OnEvents(size_t index) {
  RailState& rail = rails_[index];
  bool look = false;
  rail.context->OnAsyncEvents([&](const ibv_async_event& event) {
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        if (event.element.port_num != rail.rail.port || rail.down) return;
        rail.down = true;
        Log(absl::StrCat(rail.rail.ToString(), ": the port is down"));
        BreakRail(index, absl::UnavailableError(absl::StrCat(rail.rail.ToString(), ": the port went down")));
        return;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_LID_CHANGE:
        look = true;
        return;
      case IBV_EVENT_DEVICE_FATAL:
        Lose(index, absl::UnavailableError("the device reports a fatal error; see the kernel's log (dmesg)"));
        return;
      default: return;
    }
  });
  if (look) LookAgain(index);
}

void QueuePairDriver::LookAgain(size_t index) {
  RailState& rail = rails_[index];
  if (rail.lost) return;
  absl::Status status = rail.context->Refresh();
  if (!rail.down) {
    if (!absl::IsFailedPrecondition(status)) return;
    rail.down = true;
    Log(std::string(status.message()));
    BreakRail(index, status);
  }
  if (absl::IsFailedPrecondition(status)) {
    RailOptions options = options_.rails;
    options.devices = {absl::StrCat(rail.rail.device, ":", rail.rail.port)};
    const RailChoice choice = ChooseRails(GatherFacts(verbs_.get(), absl::OkStatus(), options_.gather), options);
    if (choice.rails.empty()) return ArmTick();   // looked at again
    rail.rail = choice.rails.front();
    rail.context->UseRail(rail.rail);
    status = rail.context->Refresh();
  }
  if (!status.ok()) return ArmTick();
  rail.down = false;
  Log(absl::StrCat(rail.rail.ToString(), " can be used again"));
  owner_->PathsPossible();
}

void QueuePairDriver::ArmTick() {
  if (tick_timer_ != 0) return;
  tick_timer_ = loop_->After(kTick, [this] {
    tick_timer_ = 0;
    const TimeNs now = clock_->Now();
    bool any = false;
    for (auto& [id, link] : links_) {
      for (auto& [path, qp] : link.qps) {
        any = true;
        const TimeNs waited = qp->qp->oldest_wait(now);
        if (qp->breaking.has_value() || waited <= options_.watchdog) continue;
        BreakQp(*qp, absl::DeadlineExceededError(absl::StrCat(
            "a work request on ", rails_[qp->rail].rail.ToString(), " has not completed within ", waited / kMillisecond,
            " ms, with or without an error (rdma.watchdog_ms)")));
      }
    }
    for (size_t i = 0; i < rails_.size(); ++i) {
      any |= rails_[i].down && !rails_[i].lost;
      if (rails_[i].down) LookAgain(i);
      for (int burst = 0; burst < kMostBursts && PollOnce(i) > 0; ++burst) {}
    }
    Reap(/*late=*/true);
    if (any) ArmTick();
  });
}

std::string FindingsText(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (finding.severity == Severity::kInfo) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", finding.device, finding.device.empty() ? "" : ": ", finding.what,
                    finding.mend.empty() ? "" : absl::StrCat(" (", finding.mend, ")"));
  }
  return text.empty() ? "none was found" : text;
}

absl::StatusOr<std::unique_ptr<VerbsDriver>> VerbsDriver::Create(transport::Loop* loop, const Clock* clock,
                                                                std::shared_ptr<Verbs> verbs, DriverOptions options) {
  auto driver = std::make_unique<QueuePairDriver>(loop, clock, std::move(verbs), std::move(options));
  SLUICE_RETURN_IF_ERROR(driver->Start());
  return driver;
}

}  // namespace sluice::rdma
