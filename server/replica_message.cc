#include "server/replica_message.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/stream_copy.h"

namespace sluice::server {
namespace {

size_t Padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// A few sizes for all messages, as the pool keeps blocks by their size: at most an eighth too large.
size_t BlockElements(size_t bytes) {
  const size_t elements = std::max<size_t>(1024, (bytes + sizeof(float) - 1) / sizeof(float));
  const size_t step = std::bit_floor(elements) / 8;
  return (elements + step - 1) / step * step;
}

// Room for a message, with its head written.
struct Room {
  std::shared_ptr<const void> owner;
  MutableBytes all, bulk;
};

absl::StatusOr<Room> MakeRoom(const proto::ReplicaHead& head, size_t bulk_bytes, BlockPool* blocks) {
  const size_t head_bytes = head.ByteSizeLong();
  const size_t begin = Padded(sizeof(uint32_t) + head_bytes);
  const size_t total = begin + bulk_bytes;
  Room room;
  std::byte* out = nullptr;
  if (blocks != nullptr) {
    SLUICE_ASSIGN_OR_RETURN(BlockPtr block, blocks->Get(BlockElements(total)));
    out = block->bytes().data();
    room.owner = std::move(block);
  } else {
    std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[total]);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a copy of ", total, " bytes"));
    }
    out = memory.get();
    room.owner = std::move(memory);
  }
  StoreLe(out, static_cast<uint32_t>(head_bytes));
  head.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(out + sizeof(uint32_t)));
  std::memset(out + sizeof(uint32_t) + head_bytes, 0, begin - sizeof(uint32_t) - head_bytes);
  room.all = {out, total};
  room.bulk = room.all.subspan(begin);
  return room;
}

}  // namespace

absl::StatusOr<ReplicaMessage> MakeReplicaMessage(const proto::ReplicaHead& head, std::initializer_list<ConstBytes> bulk,
                                                  BlockPool* blocks) {
  size_t bytes = 0;
  for (const ConstBytes part : bulk) bytes += part.size();
  SLUICE_ASSIGN_OR_RETURN(Room room, MakeRoom(head, bytes, blocks));
  std::byte* at = room.bulk.data();
  for (const ConstBytes part : bulk) {
    StreamCopy(part, {at, part.size()});   // the backup reads it next, not this core
    at += part.size();
  }
  return ReplicaMessage{std::move(room.owner), room.all};
}

absl::StatusOr<ReplicaMessage> MakeReplicaMessage(const proto::ReplicaHead& head, size_t bulk_bytes,
                                                  const std::function<void(MutableBytes)>& write, BlockPool* blocks) {
  SLUICE_ASSIGN_OR_RETURN(Room room, MakeRoom(head, bulk_bytes, blocks));
  write(room.bulk);
  return ReplicaMessage{std::move(room.owner), room.all};
}

absl::StatusOr<ReplicaParts> ParseReplicaMessage(ConstBytes bytes) {
  if (bytes.size() < sizeof(uint32_t)) {
    return absl::DataLossError(absl::StrCat("a replica's message of ", bytes.size(), " bytes"));
  }
  const size_t head_bytes = LoadLe<uint32_t>(bytes.data());
  if (head_bytes > bytes.size() - sizeof(uint32_t) || Padded(sizeof(uint32_t) + head_bytes) > bytes.size()) {
    return absl::DataLossError(
        absl::StrCat("a replica's message with a head of ", head_bytes, " bytes in ", bytes.size()));
  }
  ReplicaParts parts;
  // A copy: the bytes may lie in memory that the sender shares with us.
  const std::string head(reinterpret_cast<const char*>(bytes.data() + sizeof(uint32_t)), head_bytes);
  if (!parts.head.ParseFromString(head)) {
    return absl::DataLossError("the head of a replica's message cannot be parsed");
  }
  parts.bulk = bytes.subspan(Padded(sizeof(uint32_t) + head_bytes));
  return parts;
}

}  // namespace sluice::server
