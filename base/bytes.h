// Views of memory that travel between layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace sluice {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// Little-endian loads and stores at any alignment (Sluice runs on little-endian machines only).
template <typename T>
T LoadLe(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void StoreLe(std::byte* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

inline ConstBytes AsBytes(std::span<const float> values) { return std::as_bytes(values); }
inline MutableBytes AsWritableBytes(std::span<float> values) { return std::as_writable_bytes(values); }

}  // namespace sluice
