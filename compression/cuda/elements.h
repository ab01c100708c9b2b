// Four elements of a lane, as their bytes lie in an encoding.
#pragma once

#include <cstdint>

#include "compression/cuda/device.h"

namespace sluice::compression::cuda {

// Elements of `Element` bits, four in a `Four`.
template <typename Element, typename Four>
SLUICE_DEVICE void StoreElements(uint8_t* to, const Element (&elements)[4], uint32_t count, bool aligned) {
  if (count == 4 && aligned) {
    Four four = 0;
    for (uint32_t j = 0; j < 4; ++j) four |= static_cast<Four>(elements[j]) << (8 * sizeof(Element) * j);
    return device::StoreAligned<Four>(to, four);
  }
  for (uint32_t j = 0; j < 4; ++j)
    if (j < count) device::StoreBytes<Element>(to + j * sizeof(Element), elements[j], false);
}

template <typename Element, typename Four>
SLUICE_DEVICE void LoadElements(const uint8_t* from, Element (&elements)[4], uint32_t count, bool aligned) {
  if (count == 4 && aligned) {
    const Four four = device::LoadAligned<Four>(from);
    for (uint32_t j = 0; j < 4; ++j) elements[j] = static_cast<Element>(four >> (8 * sizeof(Element) * j));
    return;
  }
  for (uint32_t j = 0; j < 4; ++j) {
    elements[j] = 0;
    if (j < count) elements[j] = device::LoadBytes<Element>(from + j * sizeof(Element), false);
  }
}

}  // namespace sluice::compression::cuda
