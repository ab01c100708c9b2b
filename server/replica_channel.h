// One lane of another server as the place of copies, or as the parent in an aggregation tree: brings it one message at a time for each partition, over whatever
// link there is, until it is acknowledged (transport/stream). Keeps the messages' memory until the transport has let go of it,
// so a channel that is closed must live until idle().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>

#include "base/clock.h"
#include "transport/stream/stream_sender.h"

namespace sluice::server {

class ReplicaChannel {
 public:
  ReplicaChannel(transport::Endpoint* endpoint, transport::LinkQueue* queue, const Clock* clock,
                 transport::StreamSenderOptions options)
      : sender_(endpoint, queue, clock, options, [this](uint32_t partition) { Released(partition); }) {}

  transport::LinkId link() const { return link_; }

  // header: everything but sizes and attempt. One message of a partition at a time.
  void Send(const transport::FrameHeader& header, ConstBytes payload, std::shared_ptr<const void> owner, int32_t priority) {
    if (!sender_.Start(link_, header, payload, priority).ok()) return;   // one is under way: a mistake of the caller's
    memory_[header.partition].push_back(std::move(owner));
    headers_[header.partition] = header;
  }
  bool Finish(uint32_t partition, uint64_t number) { return sender_.Finish(partition, number); }
  void Abandon(uint32_t partition) { sender_.Abandon(partition); }
  // Sends it again, now: after RETRY. slot: for the answer (forwards alone have answers with a payload).
  void Again(uint32_t partition, transport::SlotId slot = 0) {
    if (!sender_.active(partition)) return;
    const transport::FrameHeader& header = headers_[partition];
    sender_.Route(partition, link_, header.term, header.incarnation, slot);
  }
  // Another link from now on. What is under way goes there by Again.
  void SetLink(transport::LinkId link) { link_ = link; }

  void LinkUp(transport::LinkId link) {
    link_ = link;
    for (const auto& [partition, header] : headers_) Again(partition);
  }
  void LinkDown(transport::LinkId link) {
    if (link != link_) return;
    sender_.LinkDown(link);
    link_ = 0;
  }
  bool OnFrame(transport::LinkId link, const transport::FrameHeader& header) { return sender_.OnFrame(link, header); }
  void OnTick() { sender_.OnTick(); }

  void Close() {
    for (const auto& [partition, header] : headers_) sender_.Abandon(partition);
  }
  bool idle() const { return memory_.empty(); }

 private:
  void Released(uint32_t partition) {
    const auto it = memory_.find(partition);
    it->second.pop_front();
    if (it->second.empty()) memory_.erase(it);
  }

  transport::LinkId link_ = 0;
  std::unordered_map<uint32_t, std::deque<std::shared_ptr<const void>>> memory_;   // by partition, in order
  std::unordered_map<uint32_t, transport::FrameHeader> headers_;                   // of the last message
  transport::StreamSender sender_;   // last: it calls back into memory_
};

}  // namespace sluice::server
