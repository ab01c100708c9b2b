#include "tests/simt/machine.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::simt {
namespace {

constexpr size_t kResidentBlocks = 3;

thread_local Thread* running = nullptr;

const char* Name(WarpOp op) {
  switch (op) {
    case WarpOp::kSync: return "warp barrier";
    case WarpOp::kShuffle: return "shuffle";
    case WarpOp::kBallot: return "ballot";
    case WarpOp::kMax: return "warp maximum";
    case WarpOp::kAdd: return "warp sum";
  }
  return "warp operation";
}

std::string At(Place place) { return absl::StrCat(place.file, ":", place.line); }

}  // namespace

Machine::Machine(uint64_t seed) : random_(seed, 0x51A7), newest_first_(seed % 3 == 2) {}
Machine::~Machine() = default;

Thread& Machine::Current() { return *running; }

std::string Machine::Where(const Thread& t) const {
  return absl::StrCat("kernel ", shape_.kernel, ", block (", t.block->x, ", ", t.block->y, "), thread ", t.index);
}

std::string Machine::Waiting(const Thread& t) const {
  switch (t.state) {
    case Thread::kDone: return "has ended";
    case Thread::kRunnable: return "runs";
    case Thread::kAtBarrier: return absl::StrCat("waits at the barrier ", At(t.place));
    case Thread::kAtWarpOp:
      return absl::StrCat("waits at the ", Name(t.op), " ", At(t.place), ", lanes ",
                          absl::Hex(t.mask, absl::kZeroPad8));
  }
  return "";
}

bool Machine::Launch(const Shape& shape, const std::function<void()>& kernel) {
  if (!report_.empty()) return false;
  shape_ = shape;
  if (shape.threads == 0 || shape.threads % kWarp != 0 || shape.threads > kMaxThreads) {
    report_ = absl::StrCat("kernel ", shape.kernel, ": ", shape.threads,
                           " threads a block; it must be a multiple of 32, at most ", kMaxThreads);
    return false;
  }
  kernel_ = &kernel;
  std::vector<uint32_t> order(size_t{shape.grid_x} * shape.grid_y);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.Below(static_cast<uint32_t>(i))]);

  for (size_t next = 0; report_.empty();) {
    while (next < order.size() && resident_.size() < kResidentBlocks) StartBlock(order[next++]);
    if (resident_.empty()) break;
    if (runnable_.empty()) {
      ReportDeadlock();
      break;
    }
    const size_t pick = newest_first_ && random_.Below(4) != 0 ? runnable_.size() - 1
                                                               : random_.Below(static_cast<uint32_t>(runnable_.size()));
    Thread* thread = std::exchange(runnable_[pick], runnable_.back());
    runnable_.pop_back();
    ++switches_;
    running = thread;
    thread->fiber.Resume();
    running = nullptr;
    if (thread->state != Thread::kDone || --thread->block->live > 0) continue;
    const auto at = std::find_if(resident_.begin(), resident_.end(),
                                 [&](const auto& block) { return block.get() == thread->block; });
    idle_.push_back(std::move(*at));
    resident_.erase(at);
  }
  for (auto& block : resident_) idle_.push_back(std::move(block));   // after a failure: abandoned where they stood
  resident_.clear();
  runnable_.clear();
  kernel_ = nullptr;
  return report_.empty();
}

void Machine::StartBlock(uint32_t number) {
  if (idle_.empty()) idle_.push_back(std::make_unique<Block>());
  std::unique_ptr<Block> block = std::move(idle_.back());
  idle_.pop_back();
  block->x = number % shape_.grid_x;
  block->y = number / shape_.grid_x;
  block->live = shape_.threads;
  block->at_barrier = 0;
  block->epoch = 0;
  for (auto& object : block->shared) object->Reset();
  while (block->threads.size() < shape_.threads) block->threads.emplace_back();
  for (uint32_t i = 0; i < shape_.threads; ++i) {
    Thread& thread = block->threads[i];
    thread.machine = this;
    thread.block = block.get();
    thread.index = i;
    thread.warp_epoch = 0;
    thread.fiber.Reset(&Machine::RunThread, &thread);
    MakeRunnable(thread);
  }
  resident_.push_back(std::move(block));
}

void Machine::RunThread(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  (*thread.machine->kernel_)();
  thread.state = Thread::kDone;
  thread.fiber.Suspend();
}

void Machine::MakeRunnable(Thread& thread) {
  thread.state = Thread::kRunnable;
  runnable_.push_back(&thread);
}

void Machine::Yield() {
  Thread& self = Current();
  MakeRunnable(self);
  self.fiber.Suspend();
}

void Machine::Fail(const std::string& what) {
  Thread& self = Current();
  report_ = absl::StrCat(Where(self), ": ", what);
  for (;;) self.fiber.Suspend();
}

void Machine::Barrier(Place place) {
  Thread& self = Current();
  Block& block = *self.block;
  self.state = Thread::kAtBarrier;
  self.place = place;
  if (++block.at_barrier == shape_.threads) {
    for (uint32_t i = 0; i < shape_.threads; ++i)
      if (const Thread& other = block.threads[i]; !(other.place == place))
        Fail(absl::StrCat("divergent barrier: it waits at ", At(place), ", thread ", other.index, " at ",
                          At(other.place)));
    block.at_barrier = 0;
    ++block.epoch;
    for (uint32_t i = 0; i < shape_.threads; ++i) MakeRunnable(block.threads[i]);
  }
  self.fiber.Suspend();
}

// If all lanes that `last` names are there, they exchange values and may go on.
bool Machine::Meet(Thread& last) {
  Thread* lanes[kWarp];
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    Thread& t = *(lanes[lane] = &last.block->threads[last.index / kWarp * kWarp + lane]);
    if ((last.mask >> lane & 1) == 0) continue;
    if (t.state != Thread::kAtWarpOp || t.op != last.op || t.mask != last.mask || !(t.place == last.place))
      return false;
  }
  uint64_t values[kWarp], ballot = 0;
  uint32_t largest = 0, sum = 0;
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    values[lane] = lanes[lane]->value;
    if ((last.mask >> lane & 1) == 0) continue;
    ballot |= uint64_t{values[lane] != 0} << lane;
    largest = std::max(largest, static_cast<uint32_t>(values[lane]));
    sum += static_cast<uint32_t>(values[lane]);
  }
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if ((last.mask >> lane & 1) == 0) continue;
    Thread& t = *lanes[lane];
    switch (t.op) {
      case WarpOp::kSync: ++t.warp_epoch; break;
      case WarpOp::kShuffle:
        if ((last.mask >> t.source & 1) == 0)
          Fail(absl::StrCat("the shuffle ", At(last.place), " of lane ", lane, " reads lane ", t.source,
                            ", which is not among lanes ", absl::Hex(last.mask, absl::kZeroPad8)));
        t.value = values[t.source];
        break;
      case WarpOp::kBallot: t.value = ballot; break;
      case WarpOp::kMax: t.value = largest; break;
      case WarpOp::kAdd: t.value = sum; break;
    }
    MakeRunnable(t);
  }
  return true;
}

uint64_t Machine::Warp(WarpOp op, uint32_t mask, uint64_t value, uint32_t source, Place place) {
  Thread& self = Current();
  self.state = Thread::kAtWarpOp;
  self.op = op;
  self.mask = mask;
  self.value = value;
  self.source = source % kWarp;
  self.place = place;
  if ((mask >> (self.index % kWarp) & 1) == 0)
    Fail(absl::StrCat("the ", Name(op), " ", At(place), " does not name its own lane: ",
                      absl::Hex(mask, absl::kZeroPad8)));
  Meet(self);
  self.fiber.Suspend();
  return self.value;
}

void Machine::ReportDeadlock() {
  for (const auto& block : resident_) {
    const Thread* waits = nullptr;
    for (uint32_t i = 0; i < shape_.threads && waits == nullptr; ++i)
      if (block->threads[i].state != Thread::kDone) waits = &block->threads[i];
    if (waits == nullptr) continue;
    // The first thread that it waits for in vain.
    const Thread* missing = nullptr;
    for (uint32_t i = 0; i < shape_.threads && missing == nullptr; ++i) {
      const Thread& other = block->threads[i];
      const bool same = other.state == waits->state && other.place == waits->place;
      if (waits->state == Thread::kAtBarrier) {
        if (!same) missing = &other;
      } else if (i / kWarp == waits->index / kWarp && (waits->mask >> (i % kWarp) & 1) != 0) {
        if (!same || other.op != waits->op || other.mask != waits->mask) missing = &other;
      }
    }
    report_ = absl::StrCat(Where(*waits), ": ",
                           waits->state == Thread::kAtBarrier ? "divergent barrier" : "divergent warp operation",
                           ": it ", Waiting(*waits));
    if (missing != nullptr) absl::StrAppend(&report_, "; thread ", missing->index, " ", Waiting(*missing));
    return;
  }
}

}  // namespace sluice::simt
