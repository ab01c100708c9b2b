#include "transport/stream/link_queue.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/stream/reassembler.h"

namespace sluice::transport {
namespace {

// Our cookies lie apart from those that an owner of the endpoint may use beside the queue.
constexpr uint64_t kFirstCookie = uint64_t{1} << 62;
constexpr size_t kSpareBuffers = 8;

size_t PaddedFrame(size_t payload) { return kHeaderBytes + ((payload + 7) & ~size_t{7}); }

}  // namespace

struct LinkQueue::Impl {
  using Order = std::pair<int32_t, uint64_t>;  // priority, then id of the message

  struct Message {
    LinkId link = 0;
    FrameHeader header;
    ConstBytes payload;
    uint64_t key = 0;
    int32_t priority = 0;
    size_t stripe = 0;
    size_t offset = 0;       // handed to the link up to here
    uint32_t in_flight = 0;  // stripes whose OnSent has not come
    bool queued = true;      // in its link's set
    SendTimes times;         // kept for an observer only
  };

  struct Link {
    BatchBuilder batch;
    FrameHeader first;         // the batch's only frame goes out by itself
    TimeNs first_at = 0;
    std::vector<std::pair<FrameHeader, SendTimes>> fused;  // with a payload, in `batch`; kept for an observer only
    bool has_control = false;  // something in the batch does not wait for the cycle
    bool dirty = false;        // on the list for Flush
    std::set<Order> large;
    uint64_t begun = 0;        // the message of which a part was handed to the link, 0 = none
  };

  // What was lent to the endpoint under a cookie: a stripe of a message, or a batch of our own.
  struct Lent {
    uint64_t message = 0;
    std::vector<std::byte> buffer;
    std::vector<std::pair<FrameHeader, SendTimes>> fused;  // of a batch; kept for an observer only
  };

  Impl(Endpoint* endpoint, const Clock* clock, LinkQueueOptions options, std::function<void(uint64_t)> released)
      : endpoint(endpoint), clock(clock), options(options), released(std::move(released)) {}

  void MarkDirty(LinkId id, Link& link) {
    if (link.dirty) return;
    link.dirty = true;
    dirty.push_back(id);
  }

  bool BatchDue(const Link& link, TimeNs now) const {
    return !link.batch.empty() &&
           (now_due || options.fusion_cycle == 0 || link.has_control || now >= link.first_at + options.fusion_cycle);
  }

  void SendBatch(LinkId id, Link& link) {
    if (link.batch.empty()) return;
    const bool alone = link.batch.count() == 1;
    auto [header, buffer] = link.batch.Take();
    link.has_control = false;
    ConstBytes payload = buffer;
    if (alone) {
      header = link.first;
      payload = payload.subspan(kHeaderBytes, header.payload_bytes);
    }
    if (payload.empty()) {
      endpoint->Send(id, header, {}, 0);
      link.batch.Recycle(std::move(buffer));
    } else {
      const uint64_t cookie = next_cookie++;
      Lent& batch = lent[cookie];
      batch.buffer = std::move(buffer);  // a moved vector keeps its memory, so `payload` stays right
      if (sent) {
        batch.fused = std::exchange(link.fused, {});
        for (auto& [of, times] : batch.fused) times.begun = clock->Now();
      }
      endpoint->Send(id, header, payload, cookie);
    }
    if (!spare.empty()) {
      link.batch.Recycle(std::move(spare.back()));
      spare.pop_back();
    }
  }

  static void Dequeue(Link& link, uint64_t id, Message& m) {
    m.queued = false;
    link.large.erase({m.priority, id});
    if (link.begun == id) link.begun = 0;
  }

  // Hands stripes to the link while it has room: what was begun first, then the most urgent message. (A message cut short by
  // each more urgent one that comes, as a backward pass brings them, would leave many half sent and none of use to anybody.)
  void Pump(LinkId id, Link& link) {
    while (!link.large.empty() && endpoint->Writable(id)) {
      const uint64_t message_id = link.begun != 0 ? link.begun : link.large.begin()->second;
      Message& m = messages.at(message_id);
      const size_t bytes = std::min(m.stripe, m.payload.size() - m.offset);
      FrameHeader header = m.header;
      header.stripe_offset = m.offset;
      header.payload_bytes = static_cast<uint32_t>(bytes);
      const ConstBytes stripe = m.payload.subspan(m.offset, bytes);
      const uint64_t cookie = next_cookie++;
      lent[cookie].message = message_id;
      if (sent && m.offset == 0) m.times.begun = clock->Now();
      ++m.in_flight;
      m.offset += bytes;
      link.begun = message_id;
      if (m.offset == m.payload.size()) Dequeue(link, message_id, m);
      endpoint->Send(id, header, stripe, cookie);
    }
  }

  void Tell(const FrameHeader& header, SendTimes times) {
    times.done = clock->Now();
    sent(header, times);
  }

  // Forgets a message that nothing touches any more; its key is released with its last message.
  void Settle(uint64_t message_id) {
    const auto it = messages.find(message_id);
    if (it->second.queued || it->second.in_flight > 0) return;
    if (sent && it->second.offset > 0) Tell(it->second.header, it->second.times);
    const uint64_t key = it->second.key;
    messages.erase(it);
    const auto ids = keys.find(key);
    std::erase(ids->second, message_id);
    if (!ids->second.empty()) return;
    keys.erase(ids);
    to_release.push_back(key);
  }

  // Last in every public method that may settle something: a callback may call the queue again.
  void Release() {
    while (!to_release.empty()) {
      const std::vector<uint64_t> now = std::exchange(to_release, {});
      for (const uint64_t key : now) {
        if ((key & kSenderKeyBit) == 0) {
          if (released) released(key);
        } else if (const auto sender = senders.find(key >> kSenderKeyShift << kSenderKeyShift); sender != senders.end()) {
          sender->second.released(key);
        }
      }
    }
  }

  Endpoint* const endpoint;
  const Clock* const clock;
  const LinkQueueOptions options;
  const std::function<void(uint64_t)> released;
  struct Sender {
    std::function<void(uint64_t)> released;
    std::function<void()> before_flush;
  };
  void BeforeFlush() {
    for (const auto& [base, sender] : senders) sender.before_flush();
  }
  std::map<uint64_t, Sender> senders;  // by the base of their keys
  uint64_t next_sender = 1;
  std::function<void(const FrameHeader&, const SendTimes&)> sent;

  std::unordered_map<LinkId, Link> links;
  std::vector<LinkId> dirty;  // in order of their first frame
  std::unordered_map<uint64_t, Message> messages;
  std::unordered_map<uint64_t, std::vector<uint64_t>> keys;  // key -> its messages, nearly always one
  std::unordered_map<uint64_t, Lent> lent;                   // by cookie
  std::vector<std::vector<std::byte>> spare;
  std::vector<uint64_t> to_release;
  bool now_due = false;  // SendBatchesNow
  uint64_t next_message = 1;
  uint64_t next_cookie = kFirstCookie;
};

LinkQueue::LinkQueue(Endpoint* endpoint, const Clock* clock, LinkQueueOptions options,
                     std::function<void(uint64_t key)> released)
    : impl_(std::make_unique<Impl>(endpoint, clock, options, std::move(released))) {}

LinkQueue::~LinkQueue() = default;

void LinkQueue::LinkUp(LinkId link) { impl_->links.try_emplace(link); }

void LinkQueue::LinkDown(LinkId link) {
  const auto it = impl_->links.find(link);
  if (it == impl_->links.end()) return;
  const std::set<Impl::Order> large = std::move(it->second.large);
  impl_->links.erase(it);
  for (const auto& [priority, id] : large) {
    impl_->messages.at(id).queued = false;
    impl_->Settle(id);
  }
  impl_->Release();
}

void LinkQueue::SendSmall(LinkId id, const FrameHeader& header, ConstBytes payload) {
  const auto it = impl_->links.find(id);
  if (it == impl_->links.end()) return;
  Impl::Link& link = it->second;
  FrameHeader sized = header;
  sized.payload_bytes = static_cast<uint32_t>(payload.size());
  if (sized.total_bytes == 0) sized.total_bytes = payload.size();
  if (impl_->options.fusion_bytes == 0 || payload.size() > impl_->options.fuse_below) {
    impl_->SendBatch(id, link);  // what came before goes before
    const TimeNs now = impl_->sent ? impl_->clock->Now() : 0;
    impl_->endpoint->Send(id, sized, payload, 0);
    if (impl_->sent && !payload.empty()) impl_->Tell(sized, {.queued = now, .begun = now});
    return;
  }
  const size_t limit = std::min(impl_->options.fusion_bytes, impl_->endpoint->limits().max_slotless_bytes);
  if (link.batch.bytes() + PaddedFrame(payload.size()) > limit) impl_->SendBatch(id, link);
  if (link.batch.empty()) {
    link.first = sized;
    link.first_at = impl_->clock->Now();
  }
  link.has_control |= payload.empty();
  link.batch.Add(sized, payload);
  if (impl_->sent && !payload.empty()) link.fused.push_back({sized, {.queued = impl_->clock->Now()}});
  if (link.batch.bytes() >= limit) impl_->SendBatch(id, link);
  impl_->MarkDirty(id, link);
}

void LinkQueue::SendLarge(LinkId id, const FrameHeader& header, ConstBytes payload, int32_t priority, uint64_t key,
                          bool by_reference) {
  const auto it = impl_->links.find(id);
  if (it == impl_->links.end()) {
    if (!impl_->keys.contains(key)) impl_->to_release.push_back(key);  // at the next Flush
    return;
  }
  const uint64_t message_id = impl_->next_message++;
  Impl::Message& m = impl_->messages[message_id];
  m.link = id;
  m.header = header;
  m.header.total_bytes = payload.size();
  m.payload = payload;
  if (impl_->sent) m.times.queued = impl_->clock->Now();
  m.key = key;
  m.priority = priority;
  m.stripe = by_reference || header.slot == 0 ? payload.size()
             : std::max<size_t>(impl_->options.stripe_bytes, payload.size() / (Reassembler::kMaxPieces / 2) + 1);
  impl_->keys[key].push_back(message_id);
  it->second.large.insert({priority, message_id});
  impl_->MarkDirty(id, it->second);
}

void LinkQueue::Cancel(uint64_t key) {
  const auto ids = impl_->keys.find(key);
  if (ids == impl_->keys.end()) return;
  const std::vector<uint64_t> messages = ids->second;
  for (const uint64_t id : messages) {
    Impl::Message& m = impl_->messages.at(id);
    if (!m.queued) continue;
    Impl::Dequeue(impl_->links.at(m.link), id, m);
    impl_->Settle(id);
  }
  impl_->Release();
}

void LinkQueue::Flush() {
  impl_->BeforeFlush();
  const TimeNs now = impl_->clock->Now();
  const std::vector<LinkId> dirty = std::exchange(impl_->dirty, {});
  for (const LinkId id : dirty) {
    const auto it = impl_->links.find(id);
    if (it == impl_->links.end()) continue;
    Impl::Link& link = it->second;
    link.dirty = false;
    if (impl_->BatchDue(link, now)) impl_->SendBatch(id, link);
    if (!link.batch.empty()) impl_->MarkDirty(id, link);  // waits for its cycle
    impl_->Pump(id, link);  // what does not fit goes on at OnWritable
  }
  impl_->now_due = false;
  impl_->Release();
}

void LinkQueue::OnWritable(LinkId link) {
  impl_->BeforeFlush();
  if (const auto it = impl_->links.find(link); it != impl_->links.end()) impl_->Pump(link, it->second);
}

bool LinkQueue::OnSent(LinkId link, uint64_t cookie) {
  (void)link;
  const auto it = impl_->lent.find(cookie);
  if (it == impl_->lent.end()) return false;
  Impl::Lent lent = std::move(it->second);
  impl_->lent.erase(it);
  if (lent.message == 0) {
    for (const auto& [header, times] : lent.fused) impl_->Tell(header, times);
    if (impl_->spare.size() < kSpareBuffers) impl_->spare.push_back(std::move(lent.buffer));
    return true;
  }
  --impl_->messages.at(lent.message).in_flight;
  impl_->Settle(lent.message);
  impl_->Release();
  return true;
}

uint64_t LinkQueue::AttachSender(std::function<void(uint64_t key)> released, std::function<void()> before_flush) {
  const uint64_t base = kSenderKeyBit | impl_->next_sender++ << kSenderKeyShift;
  impl_->senders[base] = {std::move(released), std::move(before_flush)};
  return base;
}

void LinkQueue::DetachSender(uint64_t base) { impl_->senders.erase(base); }

void LinkQueue::ObserveSends(std::function<void(const FrameHeader& header, const SendTimes& times)> sent) {
  impl_->sent = std::move(sent);
}

void LinkQueue::SendBatchesNow() { impl_->now_due = true; }

TimeNs LinkQueue::NextDeadline() const {
  TimeNs next = std::numeric_limits<TimeNs>::max();
  for (const LinkId id : impl_->dirty) {
    const auto it = impl_->links.find(id);
    if (it != impl_->links.end() && !it->second.batch.empty())
      next = std::min(next, it->second.first_at + (it->second.has_control ? 0 : impl_->options.fusion_cycle));
  }
  return next;
}

}  // namespace sluice::transport
