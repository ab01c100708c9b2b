// A small emulator of a GPU's execution model, so that kernels are tested where there is no GPU.
//
// Each thread of a block is a fiber; 32 make a warp. Threads run one at a time, and change over at barriers, warp
// operations, atomics and (now and then) accesses to shared memory. Which thread goes on is drawn from the seed, among
// those of several blocks at once, so that another seed is another order of events.
//
//   1. Launch() starts the blocks in random order, a few of them resident at a time.
//   2. A thread that reaches a barrier or a warp operation waits until all threads that it names are there.
//   3. When no thread can go on, the launch has failed: the report says who waits where, for whom, and what those do.
//   4. SharedArray (shared_array.h) reports two accesses to one element that no barrier orders.
//
// After a failure the launch ends at once. Global memory is the host's, and nobody watches it: an access out of bounds
// shows in a test's margins, a race in results that differ by seed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "tests/simt/fiber.h"

namespace sluice::simt {

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kFullWarp = 0xFFFFFFFF;
inline constexpr uint32_t kMaxThreads = 1024;

struct Place {
  const char* file = "";
  int line = 0;
  bool operator==(const Place&) const = default;
};

struct Shape {
  const char* kernel = "";   // for reports
  uint32_t grid_x = 0, grid_y = 1;
  uint32_t threads = 0;      // of a block; a multiple of 32
};

enum class WarpOp : uint8_t { kSync, kShuffle, kBallot, kMax, kAdd };

class Machine;
struct Block;

// What a kernel sees of itself.
struct Thread {
  enum State : uint8_t { kRunnable, kAtBarrier, kAtWarpOp, kDone };

  Machine* machine = nullptr;
  Block* block = nullptr;
  uint32_t index = 0;    // in its block
  State state = kDone;
  Place place;           // where it waits
  WarpOp op{};
  uint32_t mask = 0;
  uint64_t value = 0;    // what it brings to a warp operation, then the result
  uint32_t source = 0;   // kShuffle: the lane it reads
  uint32_t warp_epoch = 0;   // WarpSync()s passed
  Fiber fiber;
};

// Memory of a block that lives across its threads; shared_array.h has the only kind.
class SharedObject {
 public:
  virtual ~SharedObject() = default;
  virtual void Reset() = 0;   // for the next block: content is garbage again
  Place place;
};

struct Block {
  uint32_t x = 0, y = 0;
  uint32_t live = 0, at_barrier = 0;
  uint32_t epoch = 0;   // barriers passed
  std::deque<Thread> threads;
  std::vector<std::unique_ptr<SharedObject>> shared;
};

class Machine {
 public:
  explicit Machine(uint64_t seed);
  ~Machine();

  // Runs kernel() once for each thread. False if it failed, with a report; a machine that has failed runs nothing more.
  bool Launch(const Shape& shape, const std::function<void()>& kernel);
  const std::string& report() const { return report_; }
  uint64_t switches() const { return switches_; }

  // For code inside a kernel.
  static Thread& Current();
  const Shape& shape() const { return shape_; }
  void Barrier(Place place);
  // The named lanes meet and exchange values. kShuffle: returns the value of lane `source`; kBallot: the lanes whose
  // value is not 0; kMax, kAdd: over the named lanes, modulo 2^32.
  uint64_t Warp(WarpOp op, uint32_t mask, uint64_t value, uint32_t source, Place place);
  void Yield();        // lets another thread go first
  void MaybeYield() {  // one time in eight
    if (random_.Below(8) == 0) Yield();
  }
  [[noreturn]] void Fail(const std::string& what);   // ends the launch

 private:
  static void RunThread(void* thread);
  void StartBlock(uint32_t number);
  void Wait(Thread& thread);
  void MakeRunnable(Thread& thread);
  bool Meet(Thread& last);
  void ReportDeadlock();
  std::string Where(const Thread& thread) const;
  std::string Waiting(const Thread& thread) const;

  PhiloxRandom random_;
  bool newest_first_;   // some seeds let one thread run far ahead, others mix evenly
  uint64_t switches_ = 0;
  std::string report_;

  // Of the launch that runs.
  Shape shape_;
  const std::function<void()>* kernel_ = nullptr;
  Thread* current_ = nullptr;
  std::vector<std::unique_ptr<Block>> resident_, idle_;
  std::vector<Thread*> runnable_;
};

}  // namespace sluice::simt
