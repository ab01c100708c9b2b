#include "server/table/row_index.h"

#include <algorithm>
#include <bit>

namespace sluice::server {
namespace {

constexpr size_t kAhead = 16;   // rows whose headers are fetched ahead of their moving

}  // namespace

RowIndex::RowIndex(const RowSlabs* slabs) : slabs_(slabs), pages_(1) { Rebuild(&pages_[0], {}); }

uint32_t RowIndex::Find(uint64_t id) const {
  const Hash hash(id);
  const Page& page = pages_[PageOf(hash)];
  uint32_t at = hash.Home(page.group_count);
  for (uint32_t probes = 0; probes < page.group_count; ++probes) {
    const Group& group = page.groups[at];
    for (unsigned matches = group.Matches(hash.tag()); matches != 0; matches &= matches - 1) {
      const uint32_t slot = group.slots[std::countr_zero(matches)];
      if (slabs_->Header(slot)->id() == id) return slot;
    }
    if (group.passed == 0) return kNone;
    if (++at == page.group_count) at = 0;
  }
  return kNone;
}

void RowIndex::Put(Page& page, const Hash& hash, uint32_t slot) {
  uint32_t at = hash.Home(page.group_count);
  for (;;) {
    Group& group = page.groups[at];
    if (const unsigned free = group.Matches(0); free != 0) {
      const int entry = std::countr_zero(free);
      group.tags[entry] = hash.tag();
      group.slots[entry] = slot;
      ++page.rows;
      return;
    }
    ++group.passed;
    if (++at == page.group_count) at = 0;
  }
}

void RowIndex::Insert(uint64_t id, uint32_t slot) {
  const Hash hash(id);
  Page& page = pages_[PageOf(hash)];
  if (page.rows >= RowsOf(page.group_count)) Rebuild(&page, Slots(page));
  Put(page, hash, slot);
  if (++rows_ > pages_.size() * kPageRows) SplitNext();
}

void RowIndex::Erase(uint64_t id, uint32_t slot) {
  const Hash hash(id);
  Page& page = pages_[PageOf(hash)];
  uint32_t at = hash.Home(page.group_count);
  for (uint32_t probes = 0; probes < page.group_count; ++probes) {
    Group& group = page.groups[at];
    for (unsigned matches = group.Matches(hash.tag()); matches != 0; matches &= matches - 1) {
      const int entry = std::countr_zero(matches);
      if (group.slots[entry] != slot) continue;
      group.tags[entry] = 0;
      --page.rows;
      --rows_;
      return;
    }
    --group.passed;   // the row passed here when it came
    if (++at == page.group_count) at = 0;
  }
}

std::vector<uint32_t> RowIndex::Slots(const Page& page) const {
  std::vector<uint32_t> slots;
  slots.reserve(page.rows);
  for (uint32_t g = 0; g < page.group_count; ++g)
    for (unsigned taken = ~page.groups[g].Matches(0) & 0xFFF; taken != 0; taken &= taken - 1)
      slots.push_back(page.groups[g].slots[std::countr_zero(taken)]);
  return slots;
}

void RowIndex::Rebuild(Page* page, const std::vector<uint32_t>& slots) {
  bytes_ -= page->group_count * sizeof(Group);
  page->rows = 0;
  page->group_count = GroupsFor(slots.size() + 1);
  page->groups = std::make_unique<Group[]>(page->group_count);   // all free
  bytes_ += page->group_count * sizeof(Group);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) __builtin_prefetch(slabs_->Header(slots[i + kAhead]));
    Put(*page, Hash(slabs_->Header(slots[i])->id()), slots[i]);
  }
}

// Pages 0 to mask_ / 2 are split in turn, page p into p and p + mask_ / 2 + 1, which is the next one: bit by bit of the hash.
void RowIndex::SplitNext() {
  if (pages_.size() == mask_ + 1) mask_ = 2 * mask_ + 1;
  const size_t bit = (mask_ >> 1) + 1;
  Page& old = pages_[pages_.size() - bit];
  const std::vector<uint32_t> slots = Slots(old);
  std::vector<uint32_t> stay, leave;
  stay.reserve(slots.size());
  leave.reserve(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) __builtin_prefetch(slabs_->Header(slots[i + kAhead]));
    const Hash hash(slabs_->Header(slots[i])->id());
    (hash.low & bit ? leave : stay).push_back(slots[i]);
  }
  Rebuild(&old, stay);
  Page fresh;
  Rebuild(&fresh, leave);
  pages_.push_back(std::move(fresh));
}

}  // namespace sluice::server
