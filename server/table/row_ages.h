// Which row was not pushed for longest: oldest last round first, then smaller id, without a scan of all rows.
//
// Each row is in one list, linked through its header, by the round that it had when it was put there; a push only
// changes the row's last round, so a list's round is a lower bound for its rows. The oldest list is opened when
// somebody asks: rows that were pushed since move to the list of their round, those of the oldest round are sorted by
// id and given out one by one. A row is looked at once for each time that its list is opened, however often it was
// pushed in between.
//
//   round 1   rows a, b come: list 1 = {b, a}
//   round 2   a is pushed: its last round becomes 2, the lists stay; c comes: list 2 = {c}
//   round 3   oldest row, please: list 1 is opened, a moves to list 2, b is given out
//
// An erased row stays in its list until that is opened. If its slot is used again meanwhile, the old place serves the
// new row: the bound still holds. Lists are of one round, or of 2^k neighbouring ones where rounds are many and rows
// few, so that they take at most 3 bytes a row; the order that is given out is exact all the same.
#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "server/table/row_store.h"

namespace sluice::server {

class RowAges {
 public:
  static constexpr uint32_t kNone = RowSlabs::kNone;
  static constexpr uint32_t kMostRound = UINT32_MAX - 2;

  explicit RowAges(RowStore* store) : store_(store) {}

  // A new row, with its last round set. Rounds of new rows and of pushes never fall, and are above those asked for.
  void Add(uint32_t slot);

  // Takes the oldest row out of the lists, if its last round is below `round`; kNone else. The caller erases it.
  uint32_t PopOlderThan(uint32_t round);

  size_t bytes() const { return lists_.size() * kListBytes; }
  static size_t MostBytes(uint64_t rows) { return (kLeastLists + 1) * kListBytes + rows * kListBytes / kRowsAList; }

 private:
  // Values of RowHeader::next that are no slot. kInNoList is what RowSlabs gives to a slot that is new.
  static constexpr uint32_t kInNoList = RowSlabs::kNone;
  static constexpr uint32_t kEnd = RowSlabs::kNone - 1;
  static constexpr size_t kListBytes = 24;   // with a node of the tree at least half full
  static constexpr size_t kLeastLists = 64;  // that are never joined
  static constexpr size_t kRowsAList = 8;

  struct List {
    uint32_t head = kEnd, tail = kEnd;
  };

  void Push(uint32_t slot);
  void JoinNeighbours();
  bool OpenOldest(uint32_t below);

  RowStore* const store_;
  absl::btree_map<uint32_t, List> lists_;  // by last round >> shift_
  unsigned shift_ = 0;
  uint32_t open_ = kEnd;     // rows of open_round_, sorted by id
  uint32_t open_round_ = 0;  // below every round in lists_ whose rows were not pushed since
  uint32_t none_below_ = 0;  // no row has a last round below
};

}  // namespace sluice::server
