#include "transport/stream/grant_queue.h"

#include <utility>

namespace sluice::transport {
namespace {

uint32_t JobOf(const GrantQueue::Key& key) { return std::get<0>(key); }

}  // namespace

void GrantQueue::Hide(const Link& link) {
  if (link.waiting.empty()) return;
  const auto& [rank, key] = *link.waiting.begin();
  const auto ready = ready_.find(JobOf(key));
  if (ready == ready_.end()) return;
  ready->second.erase(rank);
  if (ready->second.empty()) ready_.erase(ready);
}

void GrantQueue::Show(LinkId id, Link& link) {
  if (!link.waiting.empty()) {
    const auto& [rank, key] = *link.waiting.begin();
    if (HasRoom(link)) ready_[JobOf(key)].emplace(rank, key);
  } else if (link.granted == 0) {
    links_.erase(id);
  }
}

void GrantQueue::Owe(uint32_t job, LinkId link, size_t more, size_t less) {
  size_t& bytes = owed_[{job, link}];
  const bool before = bytes >= link_bytes_;
  bytes += more;
  bytes -= less;
  const bool after = bytes >= link_bytes_;
  if (bytes == 0) owed_.erase({job, link});
  if (before == after) return;
  size_t& links = lagging_[job];
  after ? ++links : --links;
  if (links == 0) lagging_.erase(job);
}

void GrantQueue::Insert(const Key& key, const Waiting& waiting) {
  Link& link = links_[waiting.push.link];
  Hide(link);
  link.waiting.emplace(waiting.rank, key);
  if (Owed(waiting)) Owe(JobOf(key), waiting.push.link, waiting.push.bytes, 0);
  Show(waiting.push.link, link);
}

void GrantQueue::Erase(const Key& key, const Waiting& waiting) {
  Link& link = links_.at(waiting.push.link);
  Hide(link);
  link.waiting.erase(waiting.rank);
  if (Owed(waiting)) Owe(JobOf(key), waiting.push.link, 0, waiting.push.bytes);
  Show(waiting.push.link, link);
}

bool GrantQueue::Begun(const Key& key, uint64_t round) const {
  const auto it = rounds_.find({JobOf(key), std::get<1>(key)});
  return it != rounds_.end() && it->second == round;
}

void GrantQueue::Add(const Key& key, const Push& push, std::optional<uint64_t> place) {
  const Rank rank{push.joint && !Begun(key, push.round), push.priority, place.has_value() ? *place : next_place_++};
  Insert(key, waiting_[key] = {push, rank});
}

uint64_t GrantQueue::Remove(const Key& key) {
  const auto it = waiting_.find(key);
  const Waiting waiting = it->second;
  waiting_.erase(it);
  Erase(key, waiting);
  return waiting.rank.place;
}

std::optional<GrantQueue::Key> GrantQueue::Next() const {
  const std::pair<const Rank, Key>* best = nullptr;
  for (const auto& [job, ready] : ready_) {
    const auto& first = *ready.begin();
    if (first.first.begins && lagging_.contains(job)) continue;
    if (best == nullptr || first.first < best->first) best = &first;
  }
  if (best == nullptr) return std::nullopt;
  return best->second;
}

void GrantQueue::Grant(const Key& key) {
  const Push push = waiting_.at(key).push;
  links_.at(push.link).granted += push.bytes;   // before Remove, which forgets links of which nothing is left
  Remove(key);
  if (push.joint) NoteRound(JobOf(key), std::get<1>(key), push.round);
}

void GrantQueue::Finish(LinkId id, size_t bytes) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;   // it had granted a message of no bytes
  Hide(it->second);
  it->second.granted -= bytes;
  Show(id, it->second);
}

void GrantQueue::NoteRound(uint32_t job, uint32_t partition, uint64_t round) {
  const auto [known, fresh] = rounds_.try_emplace({job, partition}, round);
  if (!fresh && std::exchange(known->second, round) == round) return;
  for (auto it = waiting_.lower_bound({job, partition, 0}); it != waiting_.end(); ++it) {
    auto& [key, waiting] = *it;
    if (JobOf(key) != job || std::get<1>(key) != partition) break;
    if (waiting.push.round != round || !waiting.rank.begins) continue;
    Erase(key, waiting);
    waiting.rank.begins = false;
    Insert(key, waiting);
  }
}

void GrantQueue::ForgetRounds(uint32_t job, uint32_t partition) {
  if (job != 0) {
    rounds_.erase({job, partition});
    return;
  }
  std::erase_if(rounds_, [=](const auto& item) { return item.first.second == partition; });
}

std::optional<GrantQueue::Key> GrantQueue::FirstFrom(const Key& key) const {
  const auto it = waiting_.lower_bound(key);
  if (it == waiting_.end()) return std::nullopt;
  return it->first;
}

}  // namespace sluice::transport
