#include "transport/stream/stream_receiver.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "transport/stream/buffer_pool.h"
#include "transport/stream/grant_queue.h"
#include "transport/stream/reassembler.h"

namespace sluice::transport {
namespace {

// Waiting pushes that one Pump asks the owner about (Owner::Urgent); the next one goes on from there.
constexpr size_t kUrgentChecks = 64;

using Key = GrantQueue::Key;

Key KeyOf(const FrameHeader& h) { return {h.job, h.partition, h.rank}; }

// Which of two tries is newer.
auto Age(const FrameHeader& h) { return std::make_tuple(h.incarnation, h.round, h.attempt); }

// Do two frames speak of one message?
bool SameMessage(const FrameHeader& a, const FrameHeader& b) {
  return a.total_bytes == b.total_bytes && a.elements == b.elements && a.codec == b.codec && a.tensor == b.tensor;
}

struct Entry {
  enum class State { kNew, kWaiting, kGranted, kClosing };  // kClosing: complete, but its slot is still being let go
  LinkId link = 0;
  FrameHeader header;  // as PUSH of the whole message, without slot
  State state = State::kNew;
  int32_t priority = 0;
  uint64_t place = 0;  // kWaiting, oversize: in the order of coming
  SlotId slot = 0;     // kGranted, kClosing; 0 for a message of no bytes
  std::shared_ptr<std::byte> buffer;
  Reassembler stripes{0};
  bool begun = false;  // a stripe has come
};

}  // namespace

struct StreamReceiver::Impl {
  Impl(Endpoint* endpoint, LinkQueue* replies, Owner* owner, StreamReceiverOptions options)
      : endpoint(endpoint),
        replies(replies),
        owner(owner),
        options(options),
        queue(options.granted_bytes),
        pool(BufferPool::Create(endpoint, options.pool_bytes, options.max_message_bytes)) {}

  // --- answers

  void Answer(LinkId link, const FrameHeader& about, FrameType type, uint32_t aux, SlotId slot = 0) {
    FrameHeader h;
    h.type = type;
    h.job = about.job, h.rank = about.rank, h.incarnation = about.incarnation;
    h.tensor = about.tensor, h.partition = about.partition, h.term = about.term;
    h.round = about.round, h.attempt = about.attempt;
    h.aux = aux, h.slot = slot;
    replies->SendSmall(link, h, {});
  }

  void AnswerError(LinkId link, const FrameHeader& about, const absl::Status& status) {
    FrameHeader h;
    h.type = FrameType::kError;
    h.job = about.job, h.rank = about.rank, h.incarnation = about.incarnation;
    h.tensor = about.tensor, h.partition = about.partition, h.term = about.term;
    h.round = about.round, h.attempt = about.attempt;
    h.status = static_cast<uint16_t>(status.code());
    const std::string text(status.message().substr(0, 1024));
    replies->SendSmall(link, h, std::as_bytes(std::span(text)));
  }

  // The peer breaks the protocol: it is told, and the link ends.
  void Refuse(LinkId link, const FrameHeader& about, std::string why) {
    ++stats.corrupt;
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("worker ", about.rank, ": ", why, ": ", DebugString(about)));
    AnswerError(link, about, status);
    replies->Flush();
    endpoint->Close(link, status);
  }

  // --- the entries and what hangs on them

  Entry& Put(const Key& key, LinkId link, const FrameHeader& header) {
    Entry& entry = entries[key];
    entry.link = link;
    entry.header = header;
    entry.header.type = FrameType::kPush;
    entry.header.slot = entry.header.stripe_offset = 0;
    entry.header.payload_bytes = static_cast<uint32_t>(header.total_bytes);
    by_link[link].insert(key);
    return entry;
  }

  bool Oversize(const FrameHeader& header) const { return header.total_bytes > options.max_message_bytes; }

  // False if it was refused.
  bool CheckSize(LinkId link, const FrameHeader& header) {
    const size_t most = std::max(options.max_message_bytes, options.max_oversize_bytes);
    if (header.total_bytes <= most) return true;
    Refuse(link, header, absl::StrCat("a push of more than the ", most, " bytes allowed"));
    return false;
  }

  void Wait(const Key& key, Entry& entry, std::optional<uint64_t> place = std::nullopt) {
    entry.state = Entry::State::kWaiting;
    if (Oversize(entry.header)) {
      entry.place = place.value_or(next_place++);
      oversize.insert(key);
      return;
    }
    queue.Add(key, {entry.link, entry.header.round, entry.priority, entry.header.total_bytes, owner->Joint(entry.header)},
              place);
  }

  // Returns its place, which counts among those of its kind.
  uint64_t StopWaiting(const Key& key, Entry& entry) {
    entry.state = Entry::State::kNew;
    return oversize.erase(key) > 0 ? entry.place : queue.Remove(key);
  }

  bool Waits(const Key& key) const { return queue.waits(key) || oversize.contains(key); }

  // Forgets a push; its memory goes back when nobody writes there any more. slots_closed: the link is down.
  void Drop(std::map<Key, Entry>::iterator it, bool slots_closed = false) {
    auto& [key, entry] = *it;
    if (entry.state == Entry::State::kWaiting) StopWaiting(key, entry);
    const bool granted = entry.state == Entry::State::kGranted || entry.state == Entry::State::kClosing;
    if (granted && !Oversize(entry.header))
      queue.Finish(entry.link, entry.header.total_bytes);
    if (entry.slot != 0) {
      slots.erase(entry.slot);
      const bool writing = !slots_closed && (entry.state == Entry::State::kClosing ||
                                             !endpoint->CloseSlot(entry.link, entry.slot));
      if (writing) closing[entry.slot] = {entry.link, std::move(entry.buffer)};
    }
    if (const auto keys = by_link.find(entry.link); keys != by_link.end()) {
      keys->second.erase(key);
      if (keys->second.empty()) by_link.erase(keys);
    }
    entries.erase(it);
  }

  // Step 2i for a push that waits: memory and a slot. False if there is none.
  bool Grant(const Key& key, Entry& entry, bool urgent) {
    const size_t bytes = entry.header.total_bytes;
    if (!pool->Fits(bytes, urgent)) return false;
    if (bytes > 0) {
      absl::StatusOr<std::shared_ptr<std::byte>> buffer = pool->Take(bytes);
      if (!buffer.ok()) return false;  // the machine is out of memory: as if the pool were
      entry.buffer = *std::move(buffer);
    }
    queue.Grant(key);
    TellGranted(key, entry);
    return true;
  }

  // The one oversize push, if its turn has come: the memory of the last one is gone.
  void GrantOversize() {
    if (oversize.empty() || !oversize_memory.expired()) return;
    Entry* next = nullptr;
    Key key;
    for (const Key& each : oversize) {
      Entry& entry = entries.at(each);
      if (owner->Joint(entry.header) && !owner->Urgent(entry.header)) continue;
      if (next != nullptr && std::tie(next->priority, next->place) < std::tie(entry.priority, entry.place)) continue;
      next = &entry;
      key = each;
    }
    if (next == nullptr) return;
    const size_t bytes = next->header.total_bytes;
    absl::StatusOr<std::shared_ptr<std::byte>> buffer = endpoint->Allocate(bytes);
    if (!buffer.ok()) return;  // the machine is out of memory: asked again at the next turn
    StopWaiting(key, *next);
    next->buffer = *std::move(buffer);
    oversize_memory = next->buffer;
    oversize_bytes = bytes;
    stats.oversize_peak = std::max(stats.oversize_peak, bytes);
    TellGranted(key, *next);
  }

  void TellGranted(const Key& key, Entry& entry) {
    const size_t bytes = entry.header.total_bytes;
    if (bytes > 0) {
      entry.slot = endpoint->OpenSlot(entry.link, {entry.buffer.get(), bytes});
      slots[entry.slot] = key;
    }
    entry.stripes = Reassembler(bytes);
    entry.state = Entry::State::kGranted;
    ++stats.grants;
    Answer(entry.link, entry.header, FrameType::kGrant, 0, entry.slot);
  }

  // --- frames

  void OnAnnounce(LinkId link, const FrameHeader& header) {
    if (owner->Admit(link, header) == Admission::kAnswered) {
      ++stats.duplicates;
      return;
    }
    if (!CheckSize(link, header)) return;
    const Key key = KeyOf(header);
    if (const auto it = entries.find(key); it != entries.end()) {
      Entry& entry = it->second;
      if (Age(header) < Age(entry.header)) {  // 2h
        ++stats.stale_attempts;
        return;
      }
      if (Age(header) == Age(entry.header) && link == entry.link && SameMessage(header, entry.header)) {  // step 5
        if (entry.state == Entry::State::kWaiting) TellQueued(entry);
        if (entry.state == Entry::State::kGranted) Answer(link, header, FrameType::kGrant, 0, entry.slot);
        return;
      }
      Drop(it);
    }
    Entry& entry = Put(key, link, header);
    entry.priority = static_cast<int32_t>(header.aux);
    entry.header.aux = 0;
    if (Full(key, entry)) return;
    Wait(key, entry);
    untold.push_back(key);  // at the end of this turn it is granted, or told that it waits
  }

  // Too many wait: one more is turned away.
  bool Full(const Key& key, const Entry& entry) {
    if (queue.size() + oversize.size() < options.max_waiting) return false;
    Answer(entry.link, entry.header, FrameType::kRetry, static_cast<uint32_t>(RetryReason::kBusy));
    Drop(entries.find(key));
    return true;
  }

  void TellQueued(const Entry& entry) {
    Answer(entry.link, entry.header, FrameType::kState, static_cast<uint32_t>(PushState::kQueued));
  }

  void OnWholePush(LinkId link, const FrameHeader& header, Payload payload) {
    if (owner->Admit(link, header) == Admission::kAnswered) {
      ++stats.duplicates;
      return;
    }
    if (header.stripe_offset != 0 || header.total_bytes != payload.size())
      return Refuse(link, header, "a stripe without a slot");
    if (!CheckSize(link, header)) return;
    const Key key = KeyOf(header);
    std::optional<uint64_t> place;  // among those that wait, if this very push does
    int32_t priority = 0;
    if (const auto it = entries.find(key); it != entries.end()) {
      Entry& entry = it->second;
      if (Age(header) < Age(entry.header)) {
        ++stats.stale_attempts;
        return;
      }
      priority = entry.priority;
      if (entry.state == Entry::State::kWaiting) {
        const uint64_t its_place = StopWaiting(key, entry);
        if (Oversize(entry.header) == Oversize(header)) place = its_place;
      }
      Drop(it);
    }
    const bool by_reference = payload.size() > endpoint->limits().max_slotless_bytes;
    if (!by_reference) {
      if (!pool->Fits(payload.size(), owner->Urgent(header))) {
        ++stats.dropped_eager;
        Entry& entry = Put(key, link, header);
        entry.priority = priority;
        if (!place.has_value() && Full(key, entry)) return;
        Wait(key, entry, place);
        TellQueued(entry);
        return;
      }
      payload = pool->Charge(std::move(payload));
    }
    HandOver(link, header, std::move(payload));
  }

  void OnStripe(LinkId link, const FrameHeader& header, const Payload& payload) {
    const auto slot = slots.find(header.slot);
    const auto it = slot == slots.end() ? entries.end() : entries.find(slot->second);
    if (it == entries.end() || it->second.link != link || it->second.state != Entry::State::kGranted ||
        KeyOf(header) != it->first || Age(header) != Age(it->second.header) ||
        !SameMessage(header, it->second.header)) {
      ++stats.stale_attempts;
      return;
    }
    Entry& entry = it->second;
    bool admitted_now = false;
    if (!std::exchange(entry.begun, true)) {
      if (owner->Admit(link, entry.header) == Admission::kAnswered) {
        ++stats.duplicates;
        Drop(it);
        return;
      }
      admitted_now = true;
    }
    if (const absl::Status status = entry.stripes.Add(header.stripe_offset, payload.size()); !status.ok()) {
      Drop(it);
      return Refuse(link, header, std::string(status.message()));
    }
    if (!entry.stripes.complete()) return;
    if (!endpoint->CloseSlot(entry.link, entry.slot)) {  // a repeat of a stripe is landing just now
      entry.state = Entry::State::kClosing;
      return;
    }
    Complete(it, admitted_now);
  }

  // Step 4. The slot is closed: the bytes no longer change.
  void Complete(std::map<Key, Entry>::iterator it, bool admitted) {
    const LinkId link = it->second.link;
    const FrameHeader header = it->second.header;
    const std::shared_ptr<std::byte> buffer = std::move(it->second.buffer);
    slots.erase(it->second.slot);
    it->second.slot = 0;
    Drop(it);
    if (!admitted && owner->Admit(link, header) == Admission::kAnswered) {
      ++stats.duplicates;
      return;
    }
    HandOver(link, header, Payload({buffer.get(), header.total_bytes}, buffer));
  }

  void HandOver(LinkId link, const FrameHeader& header, Payload payload) {
    if (owner->Joint(header)) queue.NoteRound(header.job, header.partition, header.round);
    const absl::Status status = owner->OnContribution(link, header, std::move(payload));
    recheck.insert({std::get<0>(KeyOf(header)), header.partition});
    if (status.ok()) return;
    ++stats.corrupt;
    AnswerError(link, header, status);
  }

  // --- memory

  bool GrantIfUrgent(const Key& key) {
    Entry& entry = entries.at(key);
    return owner->Urgent(entry.header) && Grant(key, entry, /*urgent=*/true);
  }

  void Pump() {
    GrantOversize();
    bool memory = true;
    while (const std::optional<Key> next = queue.Next()) {
      memory = Grant(*next, entries.at(*next), /*urgent=*/false) || GrantIfUrgent(*next);
      if (!memory) break;
    }
    if (queue.size() == 0) recheck.clear();
    if (!memory) UseReserve();
    for (const Key& key : std::exchange(untold, {})) {
      if (Waits(key)) TellQueued(entries.at(key));
    }
  }

  // Memory is short: urgent pushes may have the reserve, whatever their links have granted already.
  void UseReserve() {
    if (!pool->Fits(1, /*urgent=*/true)) return;
    for (const Key& key : untold) {
      if (queue.waits(key)) GrantIfUrgent(key);
    }
    // A contribution makes the partition's next rank urgent, so those partitions are asked about first.
    for (const auto& [job, partition] : std::exchange(recheck, {})) {
      std::optional<Key> key = queue.FirstFrom({job, partition, 0});
      for (size_t n = 0; n < kUrgentChecks && key.has_value(); ++n) {
        const auto [its_job, its_partition, rank] = *key;
        if (its_job != job || its_partition != partition) break;
        GrantIfUrgent(*key);
        key = queue.FirstFrom({job, partition, rank + 1});
      }
    }
    // Rounds also close by verdicts and by changes of the plan: the rest is asked about in turn.
    for (size_t n = std::min(kUrgentChecks, queue.size()); n > 0 && queue.size() > 0; --n) {
      const auto [job, partition, rank] = cursor;
      const std::optional<Key> after = queue.FirstFrom({job, partition, rank + 1});
      cursor = after.has_value() ? *after : queue.FirstFrom({}).value_or(Key{});
      GrantIfUrgent(cursor);
    }
  }

  template <typename Matches>
  void Forget(Matches matches) {
    for (auto it = entries.begin(); it != entries.end();) {
      const auto here = it++;
      if (matches(here->second.header)) Drop(here);
    }
  }

  Endpoint* const endpoint;
  LinkQueue* const replies;
  Owner* const owner;
  const StreamReceiverOptions options;
  GrantQueue queue;
  const std::shared_ptr<BufferPool> pool;
  StreamReceiverStats stats;

  std::set<Key> oversize;           // that wait
  std::weak_ptr<std::byte> oversize_memory;   // of the one that has its grant, until nobody uses it any more
  size_t oversize_bytes = 0;
  uint64_t next_place = 1;

  std::map<Key, Entry> entries;
  std::unordered_map<LinkId, std::set<Key>> by_link;
  std::unordered_map<SlotId, Key> slots;
  std::vector<Key> untold;          // announced in this turn
  std::unordered_map<SlotId, std::pair<LinkId, std::shared_ptr<std::byte>>> closing;  // of forgotten pushes
  std::set<std::pair<uint32_t, uint32_t>> recheck;  // job, partition: somebody may have become urgent
  Key cursor{};
};

StreamReceiver::StreamReceiver(Endpoint* endpoint, LinkQueue* replies, Owner* owner, StreamReceiverOptions options)
    : impl_(std::make_unique<Impl>(endpoint, replies, owner, options)) {}

StreamReceiver::~StreamReceiver() = default;

void StreamReceiver::LinkDown(LinkId link) {
  if (const auto it = impl_->by_link.find(link); it != impl_->by_link.end()) {
    const std::set<Key> keys = it->second;
    for (const Key& key : keys) impl_->Drop(impl_->entries.find(key), /*slots_closed=*/true);
  }
  std::erase_if(impl_->closing, [link](const auto& item) { return item.second.first == link; });
}

bool StreamReceiver::OnFrame(LinkId link, const FrameHeader& header, Payload payload) {
  if (header.type == FrameType::kAnnounce) {
    impl_->OnAnnounce(link, header);
  } else if (header.type != FrameType::kPush) {
    return false;
  } else if (header.slot == 0) {
    impl_->OnWholePush(link, header, std::move(payload));
  } else {
    impl_->OnStripe(link, header, payload);
  }
  return true;
}

void StreamReceiver::OnSlotClosed(LinkId link, SlotId slot) {
  (void)link;
  if (impl_->closing.erase(slot) > 0) return;
  const auto key = impl_->slots.find(slot);
  if (key == impl_->slots.end()) return;
  const auto it = impl_->entries.find(key->second);
  if (it != impl_->entries.end() && it->second.state == Entry::State::kClosing)
    impl_->Complete(it, /*admitted=*/false);
}

void StreamReceiver::Pump() { impl_->Pump(); }

void StreamReceiver::ForgetRank(uint32_t rank, uint32_t below_incarnation, uint32_t job) {
  impl_->Forget([=](const FrameHeader& h) {
    return h.rank == rank && h.incarnation < below_incarnation && (job == 0 || h.job == job);
  });
}

void StreamReceiver::ForgetPartition(uint32_t partition, uint32_t job) {
  impl_->queue.ForgetRounds(job, partition);
  impl_->Forget([=](const FrameHeader& h) { return h.partition == partition && (job == 0 || h.job == job); });
}

StreamReceiverStats StreamReceiver::stats() const {
  StreamReceiverStats stats = impl_->stats;
  stats.pool_used = impl_->pool->used();
  stats.pool_peak = impl_->pool->peak();
  stats.oversize_used = impl_->oversize_memory.expired() ? 0 : impl_->oversize_bytes;
  stats.waiting = impl_->queue.size() + impl_->oversize.size();
  stats.partial = impl_->slots.size();
  return stats;
}

}  // namespace sluice::transport
