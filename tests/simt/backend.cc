#include "tests/simt/backend.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "tests/simt/machine.h"

namespace sluice::simt {

void* AllocateShared(size_t bytes) { return ::operator new(bytes); }
void FreeShared(void* memory) { ::operator delete(memory); }

std::string RunOnDevice(uint64_t schedule, const std::function<int(void* stream)>& enqueue) {
  Machine machine(schedule);
  const int error = enqueue(&machine);
  return error != 0 && machine.report().empty() ? absl::StrCat("error ", error) : machine.report();
}

}  // namespace sluice::simt
