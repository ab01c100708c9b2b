#include "server/table/row_index.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sluice::server {
namespace {

constexpr size_t kAhead = 16;   // rows whose headers are fetched ahead of their moving

}  // namespace

RowIndex::RowIndex(const RowSlabs* slabs, bool huge_pages) : slabs_(slabs), pages_(1), blocks_(huge_pages) {
  pages_[0].block_rows = BlockRows(0);
  Rebuild(&pages_[0], {});
}

uint32_t RowIndex::Find(uint64_t id) const {
  const Hash hash(id);
  const Page& page = pages_[PageOf(hash)];
  uint32_t at = hash.Home(page.group_count());
  for (uint32_t probes = 0; probes < page.group_count(); ++probes) {
    const IndexGroup& group = page.group(at);
    for (unsigned matches = group.Matches(hash.tag()); matches != 0; matches &= matches - 1) {
      const uint32_t slot = group.slots[std::countr_zero(matches)];
      if (slabs_->Header(slot)->id() == id) return slot;
    }
    if (group.passed == 0) return kNone;
    at = page.Next(at);
  }
  return kNone;
}

void RowIndex::Put(Page& page, const Hash& hash, uint32_t slot) {
  uint32_t at = hash.Home(page.group_count());
  for (;;) {
    IndexGroup& group = page.group(at);
    if (const unsigned free = group.Matches(0); free != 0) {
      const int entry = std::countr_zero(free);
      group.tags[entry] = hash.tag();
      group.slots[entry] = slot;
      ++page.rows;
      return;
    }
    ++group.passed;
    at = page.Next(at);
  }
}

void RowIndex::Insert(uint64_t id, uint32_t slot) {
  const Hash hash(id);
  Page& page = pages_[PageOf(hash)];
  if (page.rows >= page.blocks.size() * page.block_rows) Rebuild(&page, Slots(page));
  Put(page, hash, slot);
  if (++rows_ > pages_.size() * kPageRows) SplitNext();
}

void RowIndex::Erase(uint64_t id, uint32_t slot) {
  const Hash hash(id);
  Page& page = pages_[PageOf(hash)];
  uint32_t at = hash.Home(page.group_count());
  for (uint32_t probes = 0; probes < page.group_count(); ++probes) {
    IndexGroup& group = page.group(at);
    for (unsigned matches = group.Matches(hash.tag()); matches != 0; matches &= matches - 1) {
      const int entry = std::countr_zero(matches);
      if (group.slots[entry] != slot) continue;
      group.tags[entry] = 0;
      --page.rows;
      --rows_;
      return;
    }
    --group.passed;   // the row passed here when it came
    at = page.Next(at);
  }
}

std::vector<uint32_t> RowIndex::Slots(const Page& page) const {
  std::vector<uint32_t> slots;
  slots.reserve(page.rows);
  for (const IndexGroup* block : page.blocks)
    for (const IndexGroup* group = block; group < block + kBlockGroups; ++group)
      for (unsigned taken = ~group->Matches(0) & 0xFFF; taken != 0; taken &= taken - 1)
        slots.push_back(group->slots[std::countr_zero(taken)]);
  return slots;
}

void RowIndex::Rebuild(Page* page, const std::vector<uint32_t>& slots) {
  for (IndexGroup* block : page->blocks) blocks_.Give(block);
  page->blocks.clear();
  page->rows = 0;
  const size_t full = slots.size() / page->block_rows;   // blocks
  while (page->blocks.size() < full + 1 + full / 8) page->blocks.push_back(blocks_.Take());
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
  fresh.block_rows = BlockRows(pages_.size());
  Rebuild(&fresh, leave);
  pages_.push_back(std::move(fresh));
}

}  // namespace sluice::server
