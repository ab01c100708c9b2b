#include "transport/stream/stream_sender.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::transport {
namespace {

constexpr int kMaxBackoff = 8;  // step 5: at most this many times `resend`

enum class State {
  kWaiting,    // no link
  kReady,      // on its link's list, nothing of this attempt sent
  kAnnounced,  // step 1
  kQueued,     // 2i: the owner keeps the announcement
  kSending,    // step 3
  kSent,       // every byte was handed to the link, which says nothing about its arrival
  kReceived,   // 2g
};

struct Push {
  LinkId link = 0;
  FrameHeader header;  // as PUSH, without slot
  ConstBytes payload;
  int32_t priority = 0;
  uint64_t serial = 0;        // of the push, over all partitions
  State state = State::kWaiting;
  bool begun = false;         // something of this attempt was sent, so the next one needs a higher number
  bool in_window = false;     // counts towards max_announced of its link
  bool slotless = false;      // sent without a grant: QUEUED then means that it was dropped
  bool asked = false;         // announced again after everything was sent: a GRANT means loss
  uint64_t key = 0;           // LinkQueue key of this attempt; 0 = none
  uint32_t outstanding = 0;   // keys, of this and older attempts, that were not released yet
  TimeNs interval = 0;
  TimeNs deadline = 0;        // 0 = not on the timer list
};

using Order = std::tuple<int32_t, uint64_t, uint32_t>;  // priority, serial, partition

struct Link {
  std::set<Order> direct;    // ready: eager and by reference
  std::set<Order> announce;  // ready: to be announced
  std::set<uint32_t> partitions;
  size_t window = 0;
};

// A finished push whose bytes the transport still reads.
struct Draining {
  uint64_t serial = 0;
  uint32_t outstanding = 0;
};

}  // namespace

struct StreamSender::Impl {
  Impl(Endpoint* endpoint, LinkQueue* queue, const Clock* clock, StreamSenderOptions options,
       std::function<void(uint32_t)> released)
      : endpoint(endpoint), queue(queue), clock(clock), options(options), released(std::move(released)) {
    this->options.resend = std::max<TimeNs>(options.resend, 1);
  }

  bool Direct(const Push& push) const {
    return push.payload.size() <= options.eager_bytes || endpoint->ByReference(push.link, push.payload);
  }

  Order OrderOf(const Push& push) const { return {push.priority, push.serial, push.header.partition}; }

  void SetTimer(Push& push) {
    ClearTimer(push);
    push.deadline = clock->Now() + push.interval;
    timers.insert({push.deadline, push.header.partition});
  }

  void ClearTimer(Push& push) {
    if (push.deadline != 0) timers.erase({push.deadline, push.header.partition});
    push.deadline = 0;
  }

  void EnterWindow(Push& push) {
    if (!std::exchange(push.in_window, true)) ++links[push.link].window;
  }

  void LeaveWindow(Push& push) {
    if (std::exchange(push.in_window, false)) --links[push.link].window;
  }

  void MakeReady(Push& push) {
    push.state = State::kReady;
    Link& link = links[push.link];
    (Direct(push) ? link.direct : link.announce).insert(OrderOf(push));
  }

  // Takes a push off everything that concerns its present attempt.
  void Withdraw(Push& push) {
    ClearTimer(push);
    LeaveWindow(push);
    if (push.state == State::kReady) {
      Link& link = links[push.link];
      link.direct.erase(OrderOf(push));
      link.announce.erase(OrderOf(push));
    }
    push.state = State::kWaiting;
    push.asked = push.slotless = false;
    // The queue may release the key from inside Cancel, which only counts `outstanding` down.
    if (const uint64_t key = std::exchange(push.key, 0); key != 0) queue->Cancel(key);
  }

  void Detach(Push& push) {
    if (push.link == 0) return;
    links[push.link].partitions.erase(push.header.partition);
    push.link = 0;
  }

  void NextAttempt(Push& push) {
    push.interval = options.resend;
    if (!std::exchange(push.begun, false)) return;
    --begun;
    ++push.header.attempt;
    ++replays;
  }

  void Begin(Push& push) {
    if (!std::exchange(push.begun, true)) ++begun;
  }

  // Step 1 for what is ready, most urgent first.
  void Pump() {
    // Company is worth waiting for only while an answer is awaited anyway; a lone small push goes at once.
    if (begun == 0) queue->SendBatchesNow();
    for (auto& [id, link] : links) {
      while (!link.direct.empty() && endpoint->Writable(id)) {
        Push& push = pushes.at(std::get<2>(*link.direct.begin()));
        link.direct.erase(link.direct.begin());
        SendDirect(push);
      }
      while (!link.announce.empty() && link.window < options.max_announced) {
        Push& push = pushes.at(std::get<2>(*link.announce.begin()));
        link.announce.erase(link.announce.begin());
        EnterWindow(push);
        push.state = State::kAnnounced;
        Announce(push);
      }
    }
  }

  void Announce(Push& push) {
    Begin(push);
    FrameHeader header = push.header;
    header.type = FrameType::kAnnounce;
    header.aux = static_cast<uint32_t>(push.priority);
    queue->SendSmall(push.link, header, {});
    SetTimer(push);
  }

  void SendDirect(Push& push) {
    Begin(push);
    push.slotless = true;
    push.asked = false;
    if (push.payload.size() <= options.eager_bytes && !endpoint->ByReference(push.link, push.payload)) {
      queue->SendSmall(push.link, push.header, push.payload);  // copied: nothing to be released
      push.state = State::kSent;
    } else {
      Enqueue(push, push.header, /*by_reference=*/true);
    }
    SetTimer(push);
  }

  // Step 3.
  void SendIntoSlot(Push& push, SlotId slot) {
    EnterWindow(push);
    push.slotless = push.asked = false;
    FrameHeader header = push.header;
    header.slot = slot;
    Enqueue(push, header, /*by_reference=*/false);
    SetTimer(push);
  }

  void Enqueue(Push& push, const FrameHeader& header, bool by_reference) {
    push.state = State::kSending;
    push.key = key_base + next_key++;
    ++push.outstanding;
    keys[push.key] = {push.header.partition, push.serial};
    queue->SendLarge(push.link, header, push.payload, push.priority, push.key, by_reference);
  }

  // The queue has let go of one attempt's bytes.
  void OnReleased(uint64_t key) {
    const auto it = keys.find(key);
    if (it == keys.end()) return;
    const auto [partition, serial] = it->second;
    keys.erase(it);
    const auto active = pushes.find(partition);
    if (active != pushes.end() && active->second.serial == serial) {
      Push& push = active->second;
      --push.outstanding;
      if (push.key == key) {
        push.key = 0;
        if (push.state == State::kSending) {
          push.state = State::kSent;
          LeaveWindow(push);
        }
      }
      return;
    }
    const auto draining = this->draining.find(partition);
    if (draining == this->draining.end()) return;
    for (Draining& old : draining->second)
      if (old.serial == serial) --old.outstanding;
    ReportDrained(partition);
  }

  // Forgets a push; its release is reported when its bytes are free, and after those of the partition's earlier ones.
  void Remove(uint32_t partition) {
    const auto it = pushes.find(partition);
    Push push = std::move(it->second);
    if (push.begun) --begun;
    const uint64_t key = std::exchange(push.key, 0);
    Withdraw(push);
    Detach(push);
    pushes.erase(it);
    draining[partition].push_back({push.serial, push.outstanding});
    if (key != 0) queue->Cancel(key);  // may come back by OnReleased
    ReportDrained(partition);
  }

  void ReportDrained(uint32_t partition) {
    while (true) {  // looks afresh each time: the callback may start or end pushes
      const auto it = draining.find(partition);
      if (it == draining.end()) return;
      if (it->second.front().outstanding > 0) return;
      it->second.pop_front();
      if (it->second.empty()) draining.erase(it);
      released(partition);
    }
  }

  Push* FindAnswered(LinkId link, const FrameHeader& header) {
    const auto it = pushes.find(header.partition);
    if (it == pushes.end()) return nullptr;
    const FrameHeader& own = it->second.header;
    const bool same = it->second.link == link && own.job == header.job && own.rank == header.rank &&
                      own.incarnation == header.incarnation && own.round == header.round &&
                      own.attempt == header.attempt;
    return same ? &it->second : nullptr;
  }

  void OnGrant(Push& push, const FrameHeader& header) {
    switch (push.state) {
      case State::kAnnounced:
      case State::kQueued:
        if (header.slot != 0) {
          SendIntoSlot(push, header.slot);
        } else {  // a payload of no bytes needs no slot
          LeaveWindow(push);
          SendDirect(push);
        }
        return;
      case State::kSent:
      case State::kReceived:
        if (push.state == State::kSent && push.slotless && header.slot != 0 &&
            !endpoint->ByReference(push.link, push.payload)) {
          SendIntoSlot(push, header.slot);  // the owner dropped the eager payload; its QUEUED was lost or comes late
          return;
        }
        if (!push.asked) return;  // a repeat of an old grant; else step 5: the owner lacks something
        Withdraw(push);
        NextAttempt(push);
        MakeReady(push);
        return;
      case State::kWaiting:
      case State::kReady:
      case State::kSending:
        return;
    }
  }

  void OnState(Push& push, const FrameHeader& header) {
    if (header.aux == static_cast<uint32_t>(PushState::kReceived)) {
      if (push.state == State::kReady) return;  // cannot be about this attempt
      LeaveWindow(push);
      const uint64_t key = std::exchange(push.key, 0);
      push.state = State::kReceived;
      if (key != 0) queue->Cancel(key);
    } else if (header.aux == static_cast<uint32_t>(PushState::kQueued)) {
      if (push.state == State::kAnnounced || (push.state == State::kSent && push.slotless)) {
        LeaveWindow(push);
        push.state = State::kQueued;
        push.slotless = push.asked = false;
      }
    } else {
      return;
    }
    if (push.deadline != 0) SetTimer(push);
  }

  // Step 5.
  void AskAgain(Push& push) {
    push.interval = std::min(push.interval * 2, options.resend * kMaxBackoff);
    if (push.state == State::kSent || push.state == State::kReceived) push.asked = true;
    Announce(push);
  }

  Endpoint* const endpoint;
  LinkQueue* const queue;
  const Clock* const clock;
  StreamSenderOptions options;  // constant after construction
  const std::function<void(uint32_t)> released;

  std::unordered_map<uint32_t, Push> pushes;  // by partition
  std::map<LinkId, Link> links;
  std::set<std::pair<TimeNs, uint32_t>> timers;  // deadline, partition
  std::unordered_map<uint64_t, std::pair<uint32_t, uint64_t>> keys;  // LinkQueue key -> partition, serial
  std::unordered_map<uint32_t, std::deque<Draining>> draining;       // by partition, in order of their ends
  uint64_t key_base = 0;  // as LinkQueue::AttachSender gave it
  uint64_t next_key = 1;
  uint64_t next_serial = 1;
  uint64_t replays = 0;
  size_t begun = 0;  // pushes of which something was sent: answers that are awaited
};

StreamSender::StreamSender(Endpoint* endpoint, LinkQueue* queue, const Clock* clock, StreamSenderOptions options,
                           std::function<void(uint32_t partition)> released)
    : impl_(std::make_unique<Impl>(endpoint, queue, clock, options, std::move(released))) {
  impl_->key_base = queue->AttachSender([impl = impl_.get()](uint64_t key) { impl->OnReleased(key); },
                                        [impl = impl_.get()] { impl->Pump(); });
}

StreamSender::~StreamSender() { impl_->queue->DetachSender(impl_->key_base); }

absl::Status StreamSender::Start(LinkId link, const FrameHeader& header, ConstBytes payload, int32_t priority) {
  const auto [it, fresh] = impl_->pushes.try_emplace(header.partition);
  Push& push = it->second;
  if (!fresh)
    return absl::FailedPreconditionError(absl::StrCat("partition ", header.partition, ": round ", header.round,
                                                      " was to be pushed while round ", push.header.round,
                                                      " has no answer yet"));
  push.header = header;
  push.header.type = FrameType::kPush;
  push.header.total_bytes = payload.size();
  push.header.stripe_offset = push.header.slot = 0;
  push.header.attempt = 1;
  push.payload = payload;
  push.priority = priority;
  push.serial = impl_->next_serial++;
  push.interval = impl_->options.resend;
  if (link == 0) return absl::OkStatus();
  push.link = link;
  impl_->links[link].partitions.insert(header.partition);
  impl_->MakeReady(push);
  return absl::OkStatus();
}

void StreamSender::Route(uint32_t partition, LinkId link, uint32_t term, uint32_t incarnation, SlotId reply_slot,
                         std::optional<uint64_t> stamp) {
  const auto it = impl_->pushes.find(partition);
  if (it == impl_->pushes.end()) return;
  Push& push = it->second;
  impl_->Withdraw(push);
  impl_->Detach(push);
  impl_->NextAttempt(push);
  push.header.term = term;
  push.header.incarnation = incarnation;
  push.header.reply_slot = reply_slot;
  if (stamp.has_value()) push.header.aux64 = *stamp;
  if (link == 0) return;
  push.link = link;
  impl_->links[link].partitions.insert(partition);
  impl_->MakeReady(push);
}

void StreamSender::LinkDown(LinkId link) {
  const auto it = impl_->links.find(link);
  if (it == impl_->links.end()) return;
  const std::set<uint32_t> partitions = it->second.partitions;
  for (const uint32_t partition : partitions) {
    const auto push = impl_->pushes.find(partition);
    if (push == impl_->pushes.end() || push->second.link != link) continue;  // a callback has moved it
    impl_->Withdraw(push->second);
    impl_->Detach(push->second);
  }
  impl_->links.erase(link);
}

bool StreamSender::OnFrame(LinkId link, const FrameHeader& header) {
  if (header.type != FrameType::kGrant && header.type != FrameType::kState) return false;
  Push* push = impl_->FindAnswered(link, header);
  if (push == nullptr) return true;
  if (header.type == FrameType::kGrant) {
    impl_->OnGrant(*push, header);
  } else {
    impl_->OnState(*push, header);
  }
  return true;
}

bool StreamSender::Finish(uint32_t partition, uint64_t round) {
  const auto it = impl_->pushes.find(partition);
  if (it == impl_->pushes.end() || it->second.header.round != round) return false;
  impl_->Remove(partition);
  return true;
}

void StreamSender::Abandon(uint32_t partition) {
  if (impl_->pushes.contains(partition)) impl_->Remove(partition);
}

bool StreamSender::active(uint32_t partition) const { return impl_->pushes.contains(partition); }

size_t StreamSender::unfinished() const { return impl_->pushes.size(); }

uint64_t StreamSender::replays() const { return impl_->replays; }

void StreamSender::OnTick() {
  const TimeNs now = impl_->clock->Now();
  while (!impl_->timers.empty() && impl_->timers.begin()->first <= now) {
    const uint32_t partition = impl_->timers.begin()->second;
    impl_->AskAgain(impl_->pushes.at(partition));
  }
}

}  // namespace sluice::transport
