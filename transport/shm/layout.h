// What two processes of one host share, byte by byte. Native (little-endian) order.
//
// Each end of a link owns one sealed memfd, its outbox, and maps its peer's. An outbox holds
//   offset 0      OutboxHeader   constant; read once when it is mapped
//   offset 64     ProducerLine   written by the owner: how far it has written
//   offset 128    ConsumerLine   written by the peer: how far it has read
//   offset 4096   ring           `ring_entries` descriptors of 192 bytes, one producer (the owner), one consumer
//   page-aligned  slots          `slots` entries of 64 bytes: memory of the OWNER that the PEER may write into
//   page-aligned  arena          `arena_bytes`: a ring of bytes for payloads that are copied
// and ends on a page. ring_entries and arena_bytes are powers of two. Positions (tail, head, arena) count up for ever;
// their place is the low bits.
//
// Trust. A peer's memory may change at any time. Descriptors are copied out before they are looked at, positions are
// loaded once, and everything is checked against sizes fixed at mapping time; a violation ends the link.
//
// Sleeping. A consumer that finds the ring empty sets `asleep` and looks once more; a producer that has published and
// then finds `asleep` clears it and sends a wake-up over the socket. A producer that waits for room stores the head
// that it waits for in `wake_at` and looks once more; a consumer whose head passes it clears it and sends a wake-up.
// All four are sequentially consistent, so one of the two always sees the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/shared_memory.h"
#include "transport/wire.h"

namespace sluice::transport {

inline constexpr uint64_t kOutboxMagic = 0x31584F424D485353;  // "SSHMBOX1"

struct OutboxShape {
  uint32_t ring_entries = 1024;
  uint32_t slots = 4096;
  uint64_t arena_bytes = 1 << 20;
};

// Bounds on what a peer may announce.
inline constexpr uint32_t kMaxRingEntries = 1 << 16;
inline constexpr uint32_t kMaxSlots = (1 << 16) - 1;
inline constexpr uint64_t kMaxArenaBytes = 1 << 30;

struct OutboxHeader {
  uint64_t magic;
  uint32_t ring_entries;
  uint32_t slots;
  uint64_t arena_bytes;
};

struct ProducerLine {
  std::atomic<uint64_t> tail;     // descriptors published
  std::atomic<uint64_t> wake_at;  // 0 = nobody waits for room
};

struct ConsumerLine {
  std::atomic<uint64_t> head;    // descriptors consumed
  std::atomic<uint32_t> asleep;  // 1 = wants a wake-up
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

enum class DescriptorKind : uint32_t {
  kFrame = 1,      // header; its payload, or the first chunk of it, lies in the arena
  kChunk = 2,      // the payload goes on in the arena
  kReference = 3,  // header; the payload lies in one of the sender's slabs until kRelease(token) comes back
  kPlaced = 4,     // header; the payload has been written into header.slot
  kRelease = 5,    // the receiver of the kReference with this token has dropped it
};

struct Descriptor {
  uint32_t kind = 0;
  uint32_t bytes = 0;     // kFrame, kChunk: of this chunk
  uint64_t position = 0;  // kFrame, kChunk: in the arena; kReference: offset in the slab
  uint64_t token = 0;     // kReference, kRelease
  uint32_t slab = 0;      // kReference
  uint32_t zero[9] = {};
  std::byte header[kHeaderBytes] = {};
};
static_assert(sizeof(Descriptor) == 192);

// A slot's state word: the slot's sequence number above two bits of state. The writer moves OPEN to BUSY before it
// touches the memory and back afterwards; the owner moves OPEN to CLOSED, or BUSY to CLOSING, upon which the writer,
// instead of going back to OPEN, moves to CLOSED.
enum class SlotState : uint64_t { kClosed = 0, kOpen = 1, kBusy = 2, kClosing = 3 };

struct SlotEntry {
  std::atomic<uint64_t> state;
  // Stable while the state is not CLOSED:
  uint64_t offset;  // in the owner's slab
  uint64_t bytes;
  uint32_t slab;
  uint32_t zero[9];
};
static_assert(sizeof(SlotEntry) == 64);

inline constexpr size_t kProducerOffset = 64;
inline constexpr size_t kConsumerOffset = 128;
inline constexpr size_t kRingOffset = kPageBytes;

constexpr size_t SlotsOffset(const OutboxShape& shape) {
  return kRingOffset + RoundUp(size_t{shape.ring_entries} * sizeof(Descriptor), kPageBytes);
}
constexpr size_t ArenaOffset(const OutboxShape& shape) {
  return SlotsOffset(shape) + RoundUp(size_t{shape.slots} * sizeof(SlotEntry), kPageBytes);
}
constexpr size_t OutboxBytes(const OutboxShape& shape) {
  return ArenaOffset(shape) + RoundUp(shape.arena_bytes, kPageBytes);
}

// Shared memory is packets of the socket beside it (SOCK_SEQPACKET): whole frames of docs/wire.md, or one byte, which
// is a wake-up. HELLO and WELCOME carry the sender's outbox as their one file. ERROR says why a link is refused or
// closed. TRANSPORT, by `aux`:
enum class SocketMessage : uint32_t {
  kSlab = 1,         // aux64 = id of a slab; its file comes along. Sent before anything that names the slab
  kSlabRetired = 2,  // aux64 = id of a slab that will not be named again
};

}  // namespace sluice::transport
