#include "transport/shm/slab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "base/philox.h"
#include "gtest/gtest.h"
#include "transport/shm/peer_memory.h"

namespace sluice::transport {
namespace {

bool IsZero(const std::byte* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; });
}

TEST(SharedMemoryTest, SealedMemoryCannotShrink) {
  auto fd = CreateSealedMemory("test", 8192);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(*CheckSealedMemory(fd->get()), 8192);
  EXPECT_NE(::ftruncate(fd->get(), 4096), 0);
  EXPECT_NE(::ftruncate(fd->get(), 16384), 0);
  EXPECT_NE(::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemoryTest, RefusesWhatCouldRaiseSigbus) {
  UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(CheckSealedMemory(unsealed.get()).status().code(), absl::StatusCode::kInvalidArgument);
  UniqueFd odd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(odd.get(), 5000), 0);
  ASSERT_EQ(::fcntl(odd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(CheckSealedMemory(odd.get()).status().code(), absl::StatusCode::kInvalidArgument);
  UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(CheckSealedMemory(file.get()).status().code(), absl::StatusCode::kInvalidArgument);
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  UniqueFd in(pipes[0]), out(pipes[1]);
  EXPECT_EQ(CheckSealedMemory(in.get()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedMemoryTest, DetachedPagesKeepTheirBytesAndNoLongerFollowTheFile) {
  auto fd = CreateSealedMemory("test", 4 * kPageBytes);
  ASSERT_TRUE(fd.ok());
  auto writer = *Mapping::Map(fd->get(), 4 * kPageBytes);
  auto reader = *Mapping::Map(fd->get(), 4 * kPageBytes);
  std::memset(writer->data(), 1, writer->size());
  ASSERT_TRUE(reader->Detach(kPageBytes + 10, kPageBytes).ok());  // pages 1 and 2
  std::memset(writer->data(), 2, writer->size());
  EXPECT_EQ(reader->data()[0], std::byte{2});
  EXPECT_EQ(reader->data()[kPageBytes], std::byte{1});
  EXPECT_EQ(reader->data()[3 * kPageBytes - 1], std::byte{1});
  EXPECT_EQ(reader->data()[3 * kPageBytes], std::byte{2});
  EXPECT_FALSE(reader->Detach(3 * kPageBytes, 2 * kPageBytes).ok());
}

TEST(SlabTest, MemoryIsZeroedPageAlignedAndFound) {
  auto slabs = SlabAllocator::Create(1 << 20);
  auto a = *slabs->Allocate(100);
  auto b = *slabs->Allocate(5 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.get()) % kPageBytes, 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.get()) % kHugePageBytes, 0);
  EXPECT_TRUE(IsZero(b.get(), 5 << 20));
  const auto found = slabs->Find({b.get() + 7, 100});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->offset, 7);
  EXPECT_FALSE(slabs->Find({b.get() + (5 << 20), 2 << 20}).has_value());
  std::byte on_stack[10];
  EXPECT_FALSE(slabs->Find(on_stack).has_value());
  EXPECT_FALSE(slabs->Allocate(0).ok());
  EXPECT_FALSE(slabs->Allocate(SIZE_MAX).ok());
}

TEST(SlabTest, FreedMemoryIsZeroWhenUsedAgain) {
  auto slabs = SlabAllocator::Create(1 << 20);
  auto keep = *slabs->Allocate(4096);
  auto a = *slabs->Allocate(8192);
  std::byte* const where = a.get();
  std::memset(where, 5, 8192);
  a.reset();
  auto b = *slabs->Allocate(8192);
  EXPECT_EQ(b.get(), where);
  EXPECT_TRUE(IsZero(where, 8192));
}

TEST(SlabTest, ListenersHearOfFreedSlabs) {
  auto slabs = SlabAllocator::Create(1 << 20);
  std::vector<uint32_t> retired;
  const uint64_t listener = slabs->AddListener([&](uint32_t slab) { retired.push_back(slab); });
  auto a = *slabs->Allocate(4096);
  auto b = *slabs->Allocate(4096);
  const uint32_t id = slabs->Find({a.get(), 1})->slab;
  EXPECT_TRUE(slabs->File(id).ok());
  a.reset();
  EXPECT_TRUE(retired.empty());
  b.reset();
  EXPECT_EQ(retired, std::vector<uint32_t>{id});
  EXPECT_EQ(slabs->File(id).status().code(), absl::StatusCode::kNotFound);
  slabs->RemoveListener(listener);
  slabs->Allocate(4096)->reset();
  EXPECT_EQ(retired.size(), 1);
}

TEST(SlabTest, RandomAllocationsNeverOverlap) {
  auto slabs = SlabAllocator::Create(1 << 20);
  PhiloxRandom random(1);
  struct Piece {
    std::shared_ptr<std::byte> memory;
    size_t bytes;
    std::byte mark;
  };
  std::vector<Piece> pieces;
  for (int step = 0; step < 2000; ++step) {
    if (pieces.size() > 40 || (!pieces.empty() && random.Chance(0.45))) {
      std::swap(pieces[random.Below(pieces.size())], pieces.back());
      const Piece& piece = pieces.back();
      for (size_t i = 0; i < piece.bytes; i += 512) ASSERT_EQ(piece.memory.get()[i], piece.mark);
      pieces.pop_back();
    } else {
      const size_t bytes = 1 + random.Below(random.Chance(0.1) ? 900000 : 60000);
      auto memory = slabs->Allocate(bytes);
      ASSERT_TRUE(memory.ok());
      for (size_t i = 0; i < bytes; i += 512) ASSERT_EQ(memory->get()[i], std::byte{0});
      const auto mark = static_cast<std::byte>(1 + random.Below(255));
      std::memset(memory->get(), static_cast<int>(mark), bytes);
      pieces.push_back({*std::move(memory), bytes, mark});
    }
  }
}

TEST(SlabTest, ThreadsAllocateAndFreeAtOnce) {
  auto slabs = SlabAllocator::Create(1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&slabs, t] {
      PhiloxRandom random(t);
      std::vector<std::shared_ptr<std::byte>> mine;
      for (int i = 0; i < 300; ++i) {
        mine.push_back(*slabs->Allocate(1 + random.Below(50000)));
        *mine.back() = std::byte{1};
        if (mine.size() > 10) mine.erase(mine.begin() + random.Below(10));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(SlabTest, MemoryOutlivesItsAllocator) {
  auto slabs = SlabAllocator::Create(1 << 20);
  auto memory = *slabs->Allocate(4096);
  slabs.reset();
  std::memset(memory.get(), 1, 4096);
}

TEST(PeerMemoryTest, ChecksRangesAndRepeats) {
  auto fd = CreateSealedMemory("test", 8192);
  PeerMemory memory;
  ASSERT_TRUE(memory.Add(3, *fd).ok());
  EXPECT_FALSE(memory.Add(3, *fd).ok());
  EXPECT_FALSE(memory.Add(0, *fd).ok());
  EXPECT_TRUE(memory.Find({3, 0, 8192}).ok());
  EXPECT_TRUE(memory.Find({3, 8192, 0}).ok());
  EXPECT_FALSE(memory.Find({3, 1, 8192}).ok());
  EXPECT_FALSE(memory.Find({3, UINT64_MAX, 2}).ok());
  EXPECT_FALSE(memory.Find({3, 2, UINT64_MAX}).ok());
  EXPECT_EQ(memory.Find({4, 0, 1}).status().code(), absl::StatusCode::kNotFound);
  memory.Remove(3);
  EXPECT_EQ(memory.Find({3, 0, 1}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice::transport
