#include "tests/simt/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifndef __x86_64__
#error "The switch below is written for x86-64, the only architecture that Sluice is built for (.bazelrc)."
#endif

// Saves the callee-saved registers and the stack pointer, and goes on where `to` was saved. swapcontext() would do, but
// for two system calls a switch.
extern "C" void sluice_simt_switch(void** save, void* to);
asm(R"(
.text
.globl sluice_simt_switch
.type sluice_simt_switch,@function
sluice_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sluice_simt_switch,.-sluice_simt_switch
)");

namespace sluice::simt {
namespace {

thread_local Fiber* starting = nullptr;   // hands the fiber over to Enter()

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::~Fiber() {
  if (mapping_ != nullptr) munmap(mapping_, PageBytes() + kStackBytes);
}

void Fiber::Reset(void (*run)(void*), void* argument) {
  if (mapping_ == nullptr) {
    mapping_ = mmap(nullptr, PageBytes() + kStackBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED || mprotect(mapping_, PageBytes(), PROT_NONE) != 0) {
      std::perror("simt: no memory for a fiber's stack");
      std::abort();
    }
  }
  run_ = run;
  argument_ = argument;
  // As a call leaves it: a return address on a multiple of 16, and six registers to pop below.
  auto* top = reinterpret_cast<uint64_t*>(static_cast<std::byte*>(mapping_) + PageBytes() + kStackBytes) - 2;
  top[1] = 0;
  top[0] = reinterpret_cast<uint64_t>(&Fiber::Enter);
  for (int i = 1; i <= 6; ++i) top[-i] = 0;
  fiber_stack_ = top - 6;
}

void Fiber::Enter() {
  Fiber* self = starting;
  self->run_(self->argument_);
  std::abort();   // run has suspended for good
}

void Fiber::Resume() {
  starting = this;
  sluice_simt_switch(&scheduler_stack_, fiber_stack_);
}

void Fiber::Suspend() { sluice_simt_switch(&fiber_stack_, scheduler_stack_); }

}  // namespace sluice::simt
