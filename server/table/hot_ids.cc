#include "server/table/hot_ids.h"

#include <algorithm>

#include "compression/row_payload.h"

namespace sluice::server {

HotIds::HotIds() { heap_.reserve(kCounters); }

size_t HotIds::PlaceOf(uint64_t id) const {
  size_t place = compression::MixId(id) % kPlaces;
  while (places_[place] != 0 && heap_[places_[place] - 1].id != id) place = (place + 1) % kPlaces;
  return place;
}

// Shifts later entries back, so that no probe ends early and nothing marks the place.
void HotIds::FreePlace(size_t place) {
  places_[place] = 0;
  for (size_t next = (place + 1) % kPlaces; places_[next] != 0; next = (next + 1) % kPlaces) {
    Counter& counter = heap_[places_[next] - 1];
    const size_t home = compression::MixId(counter.id) % kPlaces;
    if ((next - home) % kPlaces < (next - place) % kPlaces) continue;  // its probe does not pass the gap
    counter.place = static_cast<uint32_t>(place);
    places_[place] = std::exchange(places_[next], 0);
    place = next;
  }
}

void HotIds::Set(size_t at, const Counter& counter) {
  heap_[at] = counter;
  places_[counter.place] = static_cast<uint16_t>(at + 1);
}

void HotIds::SiftDown(size_t at) {
  const Counter moving = heap_[at];
  for (size_t child; (child = 2 * at + 1) < heap_.size(); at = child) {
    if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
    if (!(heap_[child] < moving)) break;
    Set(at, heap_[child]);
  }
  Set(at, moving);
}

void HotIds::SiftUp(size_t at) {
  const Counter moving = heap_[at];
  for (size_t parent; at > 0 && moving < heap_[parent = (at - 1) / 2]; at = parent) Set(at, heap_[parent]);
  Set(at, moving);
}

void HotIds::Sight(uint64_t id, uint64_t n) {
  n *= kOneIn;
  size_t place = PlaceOf(id);
  if (places_[place] != 0) {
    const size_t at = places_[place] - 1;
    heap_[at].count += n;
    SiftDown(at);
    return;
  }
  if (heap_.size() < kCounters) {
    heap_.push_back({n, id, static_cast<uint32_t>(place)});
    SiftUp(heap_.size() - 1);
    return;
  }
  FreePlace(heap_[0].place);
  place = PlaceOf(id);  // shifting may have moved the end of its probe
  heap_[0] = {heap_[0].count + n, id, static_cast<uint32_t>(place)};
  SiftDown(0);
}

void HotIds::Remove(uint64_t id) {
  const size_t place = PlaceOf(id);
  if (places_[place] == 0) return;
  const size_t at = places_[place] - 1;
  FreePlace(place);
  const Counter last = heap_.back();
  heap_.pop_back();
  if (at == heap_.size()) return;
  Set(at, last);
  SiftDown(at);
  SiftUp(at);
}

std::vector<std::pair<uint64_t, uint64_t>> HotIds::Top(size_t most) const {
  std::vector<Counter> sorted = heap_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Counter& a, const Counter& b) { return a.count != b.count ? a.count > b.count : a.id < b.id; });
  std::vector<std::pair<uint64_t, uint64_t>> top;
  for (size_t i = 0; i < std::min(most, sorted.size()); ++i) top.emplace_back(sorted[i].id, sorted[i].count);
  return top;
}

}  // namespace sluice::server
