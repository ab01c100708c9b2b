// libFuzzer's entry: row payloads from a stranger. The first two bytes say how many rows are expected at most.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compression/row_payload.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::compression::PackIds;
  using sluice::compression::ParseRows;
  if (size < 2) return 0;
  const size_t most = data[0] | size_t{data[1]} << 8;
  // A copy of its own, so that the address sanitizer sees every byte read beyond the end.
  const std::vector<std::byte> payload(reinterpret_cast<const std::byte*>(data) + 2,
                                       reinterpret_cast<const std::byte*>(data) + size);
  const auto parsed = ParseRows(payload, most);
  if (!parsed.ok()) return 0;
  if (parsed->ids.size() > most || parsed->values.size() > payload.size()) __builtin_trap();
  // What parses ascends, so it packs, in no more bytes than it came in, and parses to the same again.
  std::vector<std::byte> packed;
  if (!PackIds(parsed->ids, &packed).ok() || packed.size() + parsed->values.size() > payload.size()) __builtin_trap();
  const auto again = ParseRows(packed, most);
  if (!again.ok() || again->ids != parsed->ids || !again->values.empty()) __builtin_trap();
  return 0;
}
