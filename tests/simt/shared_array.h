// Shared memory of a block, with a detector of races: of two accesses to one element by different threads, one of them
// a plain write (or a plain access beside an atomic one), a barrier must lie between; between threads of one warp a
// WarpSync() is enough. Found at the second access, whatever the schedule: the order of the two does not matter.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tests/simt/machine.h"

namespace sluice::simt {

template <typename T, uint32_t N>
class SharedArray final : public SharedObject {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  SharedArray() : marks_(new Marks[N]) { Reset(); }

  void Reset() override {
    std::memset(static_cast<void*>(values_), 0xA5, sizeof(values_));
    for (uint32_t i = 0; i < N; ++i) marks_[i] = Marks{};
  }

  T Load(uint32_t i, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
    Touch(i, kRead, {file, line});
    return values_[i];
  }
  void Store(uint32_t i, T value, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
    Touch(i, kWrite, {file, line});
    values_[i] = value;
  }
  T AtomicAdd(uint32_t i, T value, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
    Touch(i, kAtomic, {file, line});
    const T before = values_[i];
    values_[i] = static_cast<T>(before + value);
    return before;
  }

 private:
  enum Kind : uint8_t { kRead, kWrite, kAtomic };
  static constexpr uint32_t kNobody = UINT32_MAX, kSeveral = UINT32_MAX - 1;

  struct Mark {   // the last accesses of one kind: by whom, in which stretch between barriers
    uint32_t thread = kNobody, warp = kNobody, epoch = 0, warp_epoch = 0;
    Place place;
  };
  struct Marks {
    Mark of[3];
  };

  void Touch(uint32_t i, Kind kind, Place place) {
    Thread& self = Machine::Current();
    self.machine->MaybeYield();
    if (i >= N)
      self.machine->Fail(absl::StrCat("shared memory at ", place.file, ":", place.line, ": index ", i, " of ", N));
    for (const Kind other : {kRead, kWrite, kAtomic}) {
      if (kind == other && kind != kWrite) continue;   // reads beside reads, atomics beside atomics
      const Mark& mark = marks_[i].of[other];
      if (mark.thread == self.index || !Concurrent(mark, self)) continue;
      self.machine->Fail(absl::StrCat("race in shared memory: element ", i, " is ", Verb(kind), " at ", place.file, ":",
                                      place.line, " and ", Verb(other), " at ", mark.place.file, ":", mark.place.line,
                                      mark.thread == kSeveral ? std::string(" by several threads")
                                                              : absl::StrCat(" by thread ", mark.thread),
                                      ", with no barrier between"));
    }
    Mark& mark = marks_[i].of[kind];
    const uint32_t warp = self.index / kWarp;
    if (!Concurrent(mark, self)) {
      mark = {self.index, warp, self.block->epoch, self.warp_epoch, place};
    } else {
      if (mark.thread != self.index) mark.thread = kSeveral;
      if (mark.warp != warp) mark.warp = kSeveral;
      mark.warp_epoch = self.warp_epoch;
    }
  }

  static bool Concurrent(const Mark& mark, const Thread& self) {
    if (mark.thread == kNobody || mark.epoch != self.block->epoch) return false;
    return mark.warp != self.index / kWarp || mark.warp_epoch == self.warp_epoch;
  }

  static const char* Verb(Kind kind) {
    return kind == kRead ? "read" : kind == kWrite ? "written" : "changed atomically";
  }

  T values_[N];
  std::unique_ptr<Marks[]> marks_;
};

// The calling block's array that is declared at `place`.
template <typename T, uint32_t N>
SharedArray<T, N>& Shared(Place place) {
  Block& block = *Machine::Current().block;
  for (auto& object : block.shared)
    if (object->place == place)
      if (auto* array = dynamic_cast<SharedArray<T, N>*>(object.get())) return *array;
  block.shared.push_back(std::make_unique<SharedArray<T, N>>());
  block.shared.back()->place = place;
  return static_cast<SharedArray<T, N>&>(*block.shared.back());
}

}  // namespace sluice::simt
