// The ids that come most often, approximately, by a fixed number of counters: space-saving (Metwally, Agrawal & El
// Abbadi, ICDT 2005).
//
// An id that has a counter adds to it. One that has none takes a free counter, or the one with the least count (of
// equal ones: the smallest id) and adds to what stands there. A count is too high by at most the least one, hence by at
// most sightings / 128, and every id with more than that is there. The counters are a heap, so an id costs O(log 128).
//
// A segment shows it one update in eight, by the hash of the update's number (MixId(number) % 8 == 0, the first is 1),
// because the counters would cost as much as the updates. What counts once here stands for eight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sluice::server {

class HotIds {
  struct Counter {
    uint64_t count, id;
    uint32_t place;  // where places_ names it
    bool operator<(const Counter& other) const { return count != other.count ? count < other.count : id < other.id; }
  };
  static constexpr size_t kPlaces = 512;  // open addressing, linear

 public:
  static constexpr size_t kCounters = 128;
  static constexpr uint64_t kOneIn = 8;
  static constexpr size_t kBytes = kCounters * sizeof(Counter) + kPlaces * sizeof(uint16_t);

  HotIds();
  void Sight(uint64_t id, uint64_t n);  // adds n kOneIn
  void Remove(uint64_t id);             // it has no row any more; nothing if it has no counter
  std::vector<std::pair<uint64_t, uint64_t>> Top(
      size_t most) const;  // id, count; most first, of equal ones the smaller id

 private:
  size_t PlaceOf(uint64_t id) const;  // its own or the free one
  void FreePlace(size_t place);
  void Set(size_t at, const Counter& counter);
  void SiftDown(size_t at);
  void SiftUp(size_t at);

  std::vector<Counter> heap_;      // the least first
  uint16_t places_[kPlaces] = {};  // 1 + position in heap_, 0 = free
};

}  // namespace sluice::server
