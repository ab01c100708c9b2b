// libFuzzer's entry: configuration files.
#include <cstddef>
#include <cstdint>

#include "base/config_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parsed = sluice::ParseConfigText({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!parsed.ok()) return 0;
  sluice::proto::Config config;
  for (const sluice::ConfigAssignment& assignment : *parsed) {
    // What the parser let through must be settable.
    if (!sluice::SetConfigValue(*assignment.key, assignment.text, &config).ok()) __builtin_trap();
  }
  return 0;
}
