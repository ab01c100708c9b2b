#include "server/table/row_index.h"

#include <algorithm>
#include <bit>

namespace sluice::server {
namespace {

constexpr size_t kAhead = 16;     // rows whose headers are fetched ahead of their moving
constexpr size_t kGrowth = 145;   // per cent: two steps bring a page to the double, when it is split, and 5 % of chance
constexpr size_t kSmallPage = 4;  // blocks

}  // namespace

RowIndex::RowIndex(const RowSlabs* slabs, bool huge_pages) : slabs_(slabs), pages_(1), blocks_(huge_pages) {
  Rebuild(&pages_[0], {});
}

uint32_t RowIndex::Find(uint64_t id) const {
  const Hash hash(id);
  const Page& page = pages_[PageOf(hash)];
  uint32_t at = hash.Home(page.group_count);
  for (uint32_t probes = 0; probes < page.group_count; ++probes) {
    const IndexGroup& group = GroupAt(page, at);
    for (unsigned matches = group.Matches(hash.tag()); matches != 0; matches &= matches - 1) {
      const uint32_t slot = group.slots[std::countr_zero(matches)];
      if (slabs_->Header(slot)->id() == id) return slot;
    }
    if (group.passed == 0) break;
    at = Next(page, at);
  }
  return page.spilled ? FindSpilled(id) : kNone;
}

void RowIndex::Put(Page& page, const Hash& hash, uint32_t slot) {
  uint32_t at = hash.Home(page.group_count);
  for (;;) {
    IndexGroup& group = GroupAt(page, at);
    if (const unsigned free = group.Matches(0); free != 0) {
      const int entry = std::countr_zero(free);
      group.tags[entry] = hash.tag();
      group.slots[entry] = slot;
      ++page.rows;
      return;
    }
    ++group.passed;
    at = Next(page, at);
  }
}

void RowIndex::Insert(uint64_t id, uint32_t slot) {
  const Hash hash(id);
  Page& page = pages_[PageOf(hash)];
  if (page.rows >= page.grow_at && page.block_count < kMostBlocks) Rebuild(&page, Slots(page));
  if (page.rows >= page.grow_at) {
    page.spilled = true;
    spilled_[id] = slot;
  } else {
    Put(page, hash, slot);
  }
  if (++rows_ > pages_.size() * kPageRows) SplitNext();
}

void RowIndex::Erase(uint64_t id, uint32_t slot) {
  const Hash hash(id);
  Page& page = pages_[PageOf(hash)];
  if (page.spilled && spilled_.erase(id) != 0) {
    --rows_;
    return;
  }
  uint32_t at = hash.Home(page.group_count);
  for (uint32_t probes = 0; probes < page.group_count; ++probes) {
    IndexGroup& group = GroupAt(page, at);
    for (unsigned matches = group.Matches(hash.tag()); matches != 0; matches &= matches - 1) {
      const int entry = std::countr_zero(matches);
      if (group.slots[entry] != slot) continue;
      group.tags[entry] = 0;
      --page.rows;
      --rows_;
      return;
    }
    --group.passed;  // the row passed here when it came
    at = Next(page, at);
  }
}

std::vector<uint32_t> RowIndex::Slots(const Page& page) const {
  std::vector<uint32_t> slots;
  slots.reserve(page.rows);
  for (uint32_t at = 0; at < page.group_count; ++at) {
    const IndexGroup& group = GroupAt(page, at);
    for (unsigned taken = ~group.Matches(0) & 0xFFF; taken != 0; taken &= taken - 1)
      slots.push_back(group.slots[std::countr_zero(taken)]);
  }
  return slots;
}

void RowIndex::Rebuild(Page* page, const std::vector<uint32_t>& slots) {
  while (page->block_count > 0) blocks_.Give(page->blocks[--page->block_count]);
  page->rows = 0;
  moved_ += slots.size();
  // The only page grows by a block while it is small, so that it is not much too big then. Many pages must not: those
  // that began with different numbers of rows would be full together.
  const size_t next = slots.size() / kBlockRows + 1;  // blocks
  const bool small = pages_.size() == 1 && next < kSmallPage;
  const size_t room = small ? next * kBlockRows : slots.size() * kGrowth / 100;
  const size_t wanted = std::min<size_t>(kMostBlocks, (room + kBlockRows - 1) / kBlockRows);
  while (page->block_count < wanted) page->blocks[page->block_count++] = blocks_.Take();
  page->group_count = page->block_count * kBlockGroups;
  page->grow_at = static_cast<uint16_t>(wanted == kMostBlocks ? kMostBlocks * kBlockRows : room);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) __builtin_prefetch(slabs_->Header(slots[i + kAhead]));
    Put(*page, Hash(slabs_->Header(slots[i])->id()), slots[i]);
  }
}

// Pages 0 to mask_ / 2 are split in turn, page p into p and p + mask_ / 2 + 1, which is the next one: bit by bit of the
// hash.
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
  fresh.spilled = old.spilled;  // spilled entries stay where they are
  Rebuild(&fresh, leave);
  pages_.push_back(fresh);
}

}  // namespace sluice::server
