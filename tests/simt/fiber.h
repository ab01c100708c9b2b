// Stackful coroutines of one OS thread, for the SIMT emulator: a fiber runs until it switches back to its scheduler.
//
// A fiber that is dropped in mid-run is just forgotten: its locals are not destroyed. Kernels own nothing, so nothing
// leaks.
#pragma once

#include <cstddef>

namespace sluice::simt {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 64 * 1024;   // pages that are never touched cost nothing

  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume() calls run(argument) on this fiber's stack, from the start. run must end in a Suspend().
  void Reset(void (*run)(void*), void* argument);

  void Resume();    // by the scheduler: runs the fiber until it suspends
  void Suspend();   // by the fiber: back to the scheduler

 private:
  static void Enter();

  void (*run_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* mapping_ = nullptr;     // a guard page, then the stack
  void* fiber_stack_ = nullptr;      // the stack pointers of whichever side is not running
  void* scheduler_stack_ = nullptr;
};

}  // namespace sluice::simt
