// Slots: delivery in place, any order, revocation; and the limits of frames.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/conformance/suite.h"

namespace sluice::transport::conformance {
namespace {

FrameHeader Stripe(size_t total, size_t offset, size_t bytes, SlotId slot) {
  FrameHeader header;
  header.type = FrameType::kPush;
  header.total_bytes = total;
  header.stripe_offset = offset;
  header.payload_bytes = static_cast<uint32_t>(bytes);
  header.slot = slot;
  return header;
}

}  // namespace

TEST_P(ConformanceTest, StripesInAnyOrderFillTheSlotInPlace) {
  Connect();
  constexpr size_t kTotal = (1 << 20) + 13, kStripe = 100000;
  const auto payload = Pattern(kTotal, 1);
  // Once in memory of the transport's own, once in plain memory.
  for (const bool registered : {true, false}) {
    rec_b_.frames.clear();
    std::vector<std::byte> plain(kTotal);
    auto allocated = b_.endpoint->Allocate(kTotal);
    ASSERT_TRUE(allocated.ok());
    std::byte* memory = registered ? allocated->get() : plain.data();
    SlotId slot;
    {
      const Recorder::Call call(&rec_b_);
      slot = b_.endpoint->OpenSlot(link_b_, {memory, kTotal});
    }
    std::vector<size_t> offsets;
    for (size_t offset = 0; offset < kTotal; offset += kStripe) offsets.push_back(offset);
    for (size_t i = 0; i < offsets.size(); ++i) std::swap(offsets[i], offsets[(i * 7 + 3) % offsets.size()]);
    uint64_t cookie = registered ? 100 : 200;
    for (const size_t offset : offsets) {
      const size_t bytes = std::min(kStripe, kTotal - offset);
      rec_a_.Lend(a_.endpoint.get(), link_a_, Stripe(kTotal, offset, bytes, slot),
                  ConstBytes(payload).subspan(offset, bytes), ++cookie);
    }
    rec_b_.on_frame = [&](Recorder::Frame& frame) {
      // The payload is a view of the slot itself.
      EXPECT_EQ(std::memcmp(memory + frame.header.stripe_offset, frame.bytes.data(), frame.bytes.size()), 0);
    };
    ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() == offsets.size(); }));
    for (size_t i = 0; i < offsets.size(); ++i) EXPECT_EQ(rec_b_.frames[i].header.stripe_offset, offsets[i]);
    EXPECT_EQ(std::memcmp(memory, payload.data(), kTotal), 0);
    const bool closed = b_.endpoint->CloseSlot(link_b_, slot);
    ASSERT_TRUE(StepUntil([&] { return closed || rec_b_.closed_slots.contains(slot); }));
    rec_b_.on_frame = nullptr;
  }
}

TEST_P(ConformanceTest, FramesForAClosedSlotAreDroppedAndTheLinkGoesOn) {
  Connect();
  const auto payload = Pattern(300000, 1);
  std::vector<std::byte> memory(payload.size());
  const SlotId slot = b_.endpoint->OpenSlot(link_b_, memory);
  const bool closed = b_.endpoint->CloseSlot(link_b_, slot);  // at once, or when the peer knows
  ASSERT_TRUE(StepUntil([&] { return closed || rec_b_.closed_slots.contains(slot); }));
  EXPECT_TRUE(b_.endpoint->CloseSlot(link_b_, slot));      // again
  EXPECT_TRUE(b_.endpoint->CloseSlot(link_b_, 99999999));  // never was
  rec_a_.Lend(a_.endpoint.get(), link_a_, Stripe(payload.size(), 0, payload.size(), slot), payload, 1);
  rec_a_.Lend(a_.endpoint.get(), link_a_, Stripe(payload.size(), 0, payload.size(), 99999999), payload, 2);
  a_.endpoint->Send(link_a_, Header(FrameType::kPull, 0, 7), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty() && rec_a_.sent.size() == 2; }));
  EXPECT_EQ(rec_b_.frames[0].header.type, FrameType::kPull);
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_TRUE(rec_b_.down.empty());
}

TEST_P(ConformanceTest, ASlotBelongsToItsLink) {
  Connect();
  const Link second = ConnectOneMore(1);
  std::vector<std::byte> memory(1000);
  const SlotId slot = b_.endpoint->OpenSlot(link_b_, memory);
  const auto payload = Pattern(1000, 1);
  a_.endpoint->Send(second.a, Stripe(1000, 0, 1000, slot), payload, 0);
  a_.endpoint->Send(second.a, Header(FrameType::kPull, 0, 1), {}, 0);
  // Whether the transport drops the frame or the link: nothing may be written.
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty() || rec_b_.down.contains(second.b); }));
  env_->Settle();
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0}; }));
  for (const auto& frame : rec_b_.frames) EXPECT_NE(frame.header.type, FrameType::kPush);
}

TEST_P(ConformanceTest, ARevokedSlotIsNotWrittenAnyMore) {
  Connect();
  constexpr size_t kTotal = 8 << 20, kStripe = 512 << 10;
  const auto payload = Pattern(kTotal, 1);
  std::vector<std::byte> memory(kTotal);
  const SlotId slot = b_.endpoint->OpenSlot(link_b_, memory);
  for (size_t offset = 0; offset < kTotal; offset += kStripe) {
    rec_a_.Lend(a_.endpoint.get(), link_a_, Stripe(kTotal, offset, kStripe, slot),
                ConstBytes(payload).subspan(offset, kStripe), 1 + offset);
  }
  // In the middle of the transfer, from inside a callback.
  bool revoked = false, closed = false;
  rec_b_.on_slot_closed = [&](LinkId, SlotId id) { closed |= id == slot; };
  rec_b_.on_frame = [&](Recorder::Frame&) {
    if (std::exchange(revoked, true)) return;
    const Recorder::Call call(&rec_b_);
    closed |= b_.endpoint->CloseSlot(link_b_, slot);
  };
  ASSERT_TRUE(StepUntil([&] { return revoked && closed; }));
  const size_t frames = rec_b_.frames.size();
  const std::vector<std::byte> then = memory;
  a_.endpoint->Send(link_a_, Header(FrameType::kPull, 0, 5), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() > frames && rec_a_.sent.size() == kTotal / kStripe; }));
  EXPECT_EQ(rec_b_.frames.size(), frames + 1);
  EXPECT_EQ(rec_b_.frames.back().header.type, FrameType::kPull);
  EXPECT_TRUE(memory == then) << "written after the slot was closed";
  EXPECT_TRUE(rec_b_.down.empty());
}

TEST_P(ConformanceTest, ASlotCanBeRevokedInTheMiddleOfAFrame) {
  Connect();
  constexpr size_t kTotal = 8 << 20;
  const auto payload = Pattern(kTotal, 1);
  std::vector<std::byte> memory(kTotal);
  const SlotId slot = b_.endpoint->OpenSlot(link_b_, memory);
  rec_a_.Lend(a_.endpoint.get(), link_a_, Stripe(kTotal, 0, kTotal, slot), payload, 1);
  ASSERT_TRUE(StepUntil([&] { return memory[0] == payload[0] && memory[100] == payload[100]; }));
  const bool arrived = !rec_b_.frames.empty();  // a transport that writes a frame in one go
  const bool closed = b_.endpoint->CloseSlot(link_b_, slot);
  ASSERT_TRUE(StepUntil([&] { return closed || rec_b_.closed_slots.contains(slot); }));
  const size_t frames = rec_b_.frames.size();
  const std::vector<std::byte> then = memory;
  a_.endpoint->Send(link_a_, Header(FrameType::kPull, 0, 5), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() > frames && rec_a_.sent.size() == 1; }));
  EXPECT_EQ(rec_b_.frames.back().header.type, FrameType::kPull);
  EXPECT_EQ(rec_b_.frames.size(), arrived ? 2u : 1u);
  EXPECT_TRUE(memory == then) << "written after the slot was closed";
  EXPECT_TRUE(rec_b_.down.empty());
}

TEST_P(ConformanceTest, AStripeOutsideItsSlotEndsTheLink) {
  Connect();
  std::vector<std::byte> memory(3000);
  const SlotId slot = b_.endpoint->OpenSlot(link_b_, MutableBytes(memory).subspan(1000, 1000));
  const auto payload = Pattern(800, 1);
  a_.endpoint->Send(link_a_, Stripe(2000, 400, 800, slot), payload, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_) && rec_a_.down.contains(link_a_); }));
  EXPECT_TRUE(rec_b_.frames.empty());
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(ConformanceTest, AFrameWithoutSlotMayBeAsLargeAsTheLimitAndNoLarger) {
  EndpointLimits limits;
  limits.max_slotless_bytes = 10000;
  UseLimits(limits);
  Connect();
  const auto most = Pattern(10000, 1), more = Pattern(10001, 1);
  a_.endpoint->Send(link_a_, Header(FrameType::kValue, most.size()), most, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() == 1; }));
  EXPECT_EQ(rec_b_.frames[0].bytes, most);
  rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, more.size()), more, 1);
  ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_) && rec_a_.down.contains(link_a_); }));
  EXPECT_EQ(rec_b_.frames.size(), 1u);
  EXPECT_EQ(rec_a_.sent, std::vector<uint64_t>{1});
}

TEST_P(ConformanceTest, AFrameThatWasCutByADyingPeerIsNotDelivered) {
  Connect();
  constexpr size_t kTotal = 8 << 20;
  const auto payload = Pattern(kTotal, 1);
  std::vector<std::byte> memory(kTotal);
  const SlotId slot = b_.endpoint->OpenSlot(link_b_, memory);
  a_.endpoint->Send(link_a_, Stripe(kTotal, 0, kTotal, slot), payload, 0);
  ASSERT_TRUE(StepUntil([&] { return memory[0] == payload[0] && memory[100] == payload[100]; }));
  const bool arrived = !rec_b_.frames.empty();
  a_.endpoint.reset();
  ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_); }));
  EXPECT_EQ(rec_b_.frames.size(), arrived ? 1u : 0u);
  const std::vector<std::byte> then = memory;
  env_->Settle();
  EXPECT_TRUE(memory == then) << "slots are closed when the link goes down";
}

TEST_P(ConformanceTest, AllocatedMemoryIsAlignedZeroedAndOutlivesItsEndpoint) {
  auto memory = a_.endpoint->Allocate(100001);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->get()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(memory->get(), memory->get() + 100001, [](std::byte b) { return b == std::byte{0}; }));
  a_.endpoint.reset();
  std::memset(memory->get(), 1, 100001);
  EXPECT_EQ(memory->get()[100000], std::byte{1});
}

TEST_P(ConformanceTest, PayloadsInAllocatedMemoryArriveAndAreReleased) {
  Connect();
  auto memory = a_.endpoint->Allocate(500000);
  ASSERT_TRUE(memory.ok());
  const auto pattern = Pattern(500000, 3);
  std::memcpy(memory->get(), pattern.data(), pattern.size());
  const ConstBytes payload{memory->get(), 500000};
  rec_b_.keep_payloads = true;
  rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, payload.size()), payload, 1);
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty(); }));
  if (a_.endpoint->ByReference(link_a_, payload)) {
    // The receiver looks into the sender's memory, so the sender hears nothing while it does.
    env_->Settle();
    EXPECT_TRUE(rec_a_.sent.empty());
  }
  EXPECT_EQ(std::memcmp(rec_b_.frames[0].payload.data(), pattern.data(), pattern.size()), 0);
  rec_b_.frames.clear();
  ASSERT_TRUE(StepUntil([&] { return rec_a_.sent.size() == 1; }));
}

}  // namespace sluice::transport::conformance
