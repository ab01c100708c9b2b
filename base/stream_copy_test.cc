#include "base/stream_copy.h"

#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

// Every size around the two ways of copying, at odd alignments of both sides; nothing beside the target is touched.
TEST(StreamCopy, CopiesExactlyTheBytes) {
  constexpr size_t kEdge = 256 << 10;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, kEdge - 1, kEdge, kEdge + 1, kEdge + 63, kEdge + 64, 3 * kEdge + 7}) {
    for (const size_t shift : {0, 1, 4, 31, 63}) {
      std::vector<std::byte> from(size + 128), to(size + 256, std::byte{0xA5});
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 131 >> 3);
      const size_t begin = 64 + shift;
      StreamCopy(ConstBytes(from).subspan(shift / 2, size), MutableBytes(to).subspan(begin, size));
      for (size_t i = 0; i < to.size(); ++i) {
        const bool inside = i >= begin && i < begin + size;
        ASSERT_EQ(to[i], inside ? from[shift / 2 + i - begin] : std::byte{0xA5}) << "size " << size << " shift " << shift << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
