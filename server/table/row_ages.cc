#include "server/table/row_ages.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sluice::server {

void RowAges::Push(uint32_t slot) {
  RowHeader* const header = store_->header(slot);
  List& list = lists_[header->last_round >> shift_];
  if (list.head == kEnd) list.tail = slot;
  header->next = std::exchange(list.head, slot);
}

void RowAges::Add(uint32_t slot) {
  if (store_->header(slot)->next != kInNoList) return;  // a place from its last life, in an older list
  Push(slot);
  if (lists_.size() > std::max<size_t>(kLeastLists, store_->rows() / kRowsAList)) JoinNeighbours();
}

void RowAges::JoinNeighbours() {
  ++shift_;
  absl::btree_map<uint32_t, List> joined;
  for (const auto& [key, list] : lists_) {
    List& into = joined[key >> 1];
    if (into.head == kEnd) {
      into = list;
    } else {
      store_->header(into.tail)->next = list.head;
      into.tail = list.tail;
    }
  }
  lists_ = std::move(joined);
}

// The oldest list with a row below `below`, cut into rows of its oldest round (open_) and the rest, which goes back.
bool RowAges::OpenOldest(uint32_t below) {
  std::vector<std::pair<uint64_t, uint32_t>> oldest;  // id, slot
  std::vector<uint32_t> rest;
  while (!lists_.empty()) {
    const auto [key, list] = *lists_.begin();
    if (uint64_t{key} << shift_ >= below) return false;
    lists_.erase(lists_.begin());
    open_round_ = kMostRound + 1;
    oldest.clear();
    rest.clear();
    for (uint32_t slot = list.head; slot != kEnd;) {
      RowHeader* const header = store_->header(slot);
      const uint32_t next = std::exchange(header->next, kInNoList);
      const uint32_t round = header->last_round;
      if (round == RowSlabs::kErased) {
        // It is out of the lists now.
      } else if (round >> shift_ > key || round > open_round_) {  // of a later list, or of this one and younger
        rest.push_back(slot);
      } else {
        if (round < open_round_) {
          for (const auto& [id, other] : oldest) rest.push_back(other);
          oldest.clear();
          open_round_ = round;
        }
        oldest.emplace_back(header->id(), slot);
      }
      slot = next;
    }
    const bool found = !oldest.empty() && open_round_ < below;
    if (!found)
      for (const auto& [id, slot] : oldest) rest.push_back(slot);
    for (const uint32_t slot : rest) Push(slot);
    if (lists_.empty()) shift_ = 0;
    if (found) break;
    // Nothing here. The rest may be in this list again, where rounds are joined: then nothing older is anywhere.
    if (!lists_.empty() && lists_.begin()->first == key) return false;
    oldest.clear();
  }
  std::sort(oldest.begin(), oldest.end());
  for (size_t i = oldest.size(); i-- > 0;)
    store_->header(oldest[i].second)->next = std::exchange(open_, oldest[i].second);
  return !oldest.empty();
}

uint32_t RowAges::PopOlderThan(uint32_t round) {
  if (round <= none_below_) return kNone;
  do {
    while (open_ != kEnd) {
      const uint32_t slot = open_;
      RowHeader* const header = store_->header(slot);
      const bool live = header->last_round != RowSlabs::kErased;
      if (live && header->last_round == open_round_ && open_round_ >= round) return kNone;
      open_ = std::exchange(header->next, kInNoList);
      if (!live) continue;
      if (header->last_round == open_round_) return slot;
      Push(slot);  // pushed, or another row, since the list was opened
    }
  } while (OpenOldest(round));
  none_below_ = round;
  return kNone;
}

}  // namespace sluice::server
