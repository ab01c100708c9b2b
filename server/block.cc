#include "server/block.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice::server {

struct BlockPool::State {
  transport::Endpoint* endpoint = nullptr;
  std::map<size_t, std::vector<std::unique_ptr<Block>>> free;   // by elements
  uint64_t bytes = 0;
  bool open = true;   // false: the pool is gone, blocks are freed as they come back

  static void GiveBack(const std::shared_ptr<State>& state, Block* block) {
    std::unique_ptr<Block> owned(block);
    const size_t elements = owned->values().size();
    if (state->open) {
      state->free[elements].push_back(std::move(owned));
    } else {
      state->bytes -= elements * sizeof(float);
    }
  }
};

namespace {

constexpr size_t kPage = 4096;

std::shared_ptr<std::byte> FromHeap(size_t bytes) {
  void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (memory == nullptr) return nullptr;
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); });
}

}  // namespace

BlockPool::BlockPool(transport::Endpoint* endpoint) : state_(std::make_shared<State>()) { state_->endpoint = endpoint; }

BlockPool::~BlockPool() {
  state_->open = false;
  Trim();
}

absl::StatusOr<BlockPtr> BlockPool::Get(size_t elements) {
  std::unique_ptr<Block> block;
  if (auto it = state_->free.find(elements); it != state_->free.end() && !it->second.empty()) {
    block = std::move(it->second.back());
    it->second.pop_back();
  } else {
    const size_t bytes = std::max<size_t>(1, elements) * sizeof(float);
    std::shared_ptr<std::byte> memory;
    if (state_->endpoint != nullptr) {
      // Where the endpoint has no more of its own, the heap serves: replies are copied then, nothing else changes.
      if (auto lent = state_->endpoint->Allocate(bytes); lent.ok()) memory = *std::move(lent);
    }
    if (memory == nullptr) memory = FromHeap(bytes);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for a block of ", bytes, " bytes; this loop holds ",
                                                       state_->bytes, " bytes of values already"));
    }
    block = std::make_unique<Block>(std::move(memory), elements);
    state_->bytes += elements * sizeof(float);
  }
  return BlockPtr(block.release(), [state = state_](Block* b) { State::GiveBack(state, b); });
}

absl::StatusOr<BlockPtr> BlockPool::GetZeroed(size_t elements) {
  auto block = Get(elements);
  if (block.ok()) std::ranges::fill((*block)->values(), 0.0f);
  return block;
}

void BlockPool::Trim() {
  for (auto& [elements, blocks] : state_->free) state_->bytes -= blocks.size() * elements * sizeof(float);
  state_->free.clear();
}

uint64_t BlockPool::bytes() const { return state_->bytes; }

}  // namespace sluice::server
