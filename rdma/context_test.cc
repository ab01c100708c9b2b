#include "rdma/context.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "rdma/fake/fabric.h"

namespace sluice::rdma {
namespace {

bool Readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

class ContextTest : public testing::Test {
 protected:
  ContextTest() : host_(fabric_.AddHost("a")), memory_(4096) { host_.AddDevice({}); }
  std::unique_ptr<Context> Open(ContextOptions options = {}) {
    options.memory = &registry_;
    options.refused = [this](const absl::Status& why) { refused_.push_back(why); };
    auto context = Context::Open(&host_, host_.RailOf("fake0"), options);
    EXPECT_TRUE(context.ok()) << context.status();
    return std::move(context).value();
  }
  ConstBytes At(size_t offset, size_t bytes) const { return ConstBytes(memory_.data() + offset, bytes); }

  fake::Fabric fabric_;
  fake::Host& host_;
  std::vector<std::byte> memory_;
  MemoryRegistry registry_;
  std::vector<absl::Status> refused_;
};

TEST_F(ContextTest, LeavesNothingBehind) {
  auto region = registry_.Add(memory_.data(), memory_.size());
  {
    auto context = Open();
    ASSERT_TRUE((*context->DomainOf(1))->Find(At(0, 1)).has_value());
    ASSERT_TRUE((*context->DomainOf(2))->Find(At(0, 1)).has_value());
    EXPECT_EQ(fabric_.live(), (fake::Live{1, 2, 2, 1, 1, 0}));
  }
  EXPECT_EQ(fabric_.live(), fake::Live{});
  EXPECT_TRUE(fabric_.misuses().empty());
  region.Reset();
}

TEST_F(ContextTest, ErrorsSayWhatToDo) {
  Rail rail = host_.RailOf("fake0");
  host_.FailOpen("fake0", EACCES);
  auto denied = Context::Open(&host_, rail, {});
  EXPECT_EQ(denied.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(denied.status().message().find("/dev/infiniband"), std::string::npos);
  host_.FailOpen("fake0", ENOENT);
  EXPECT_NE(Context::Open(&host_, rail, {}).status().message().find("container"), std::string::npos);
  host_.FailOpen("fake0", 0);
  rail.device = "fake7";
  EXPECT_EQ(Context::Open(&host_, rail, {}).status().code(), absl::StatusCode::kNotFound);
  rail = host_.RailOf("fake0");
  fabric_.PortDown({&host_});
  EXPECT_EQ(Context::Open(&host_, rail, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(fabric_.live(), fake::Live{});
}

TEST_F(ContextTest, AGidThatMovedIsFoundOut) {
  auto context = Open();
  fabric_.PortDown({&host_});
  EXPECT_EQ(context->Refresh().code(), absl::StatusCode::kUnavailable);
  fabric_.PortUp({&host_});
  EXPECT_TRUE(context->Refresh().ok());
  fabric_.PortUp({&host_}, "10.0.0.9");
  EXPECT_EQ(context->Refresh().code(), absl::StatusCode::kFailedPrecondition);
  context->UseRail(host_.RailOf("fake0"));
  EXPECT_TRUE(context->Refresh().ok());
  std::vector<ibv_event_type> events;
  EXPECT_TRUE(Readable(context->async_fd()));
  EXPECT_EQ(context->OnAsyncEvents([&](const ibv_async_event& event) { events.push_back(event.event_type); }), 3);
  EXPECT_EQ(events, (std::vector{IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE}));
  EXPECT_FALSE(Readable(context->async_fd()));
}

TEST_F(ContextTest, ADomainAJob) {
  auto context = Open();
  Domain* first = *context->DomainOf(1);
  EXPECT_EQ(*context->DomainOf(1), first);
  EXPECT_NE(*context->DomainOf(2), first);
}

TEST_F(ContextTest, MemoryIsRegisteredAtItsFirstUseAndOnce) {
  auto context = Open();
  Domain* domain = *context->DomainOf(1);
  EXPECT_FALSE(domain->Find(At(0, 1)).has_value());
  auto region = registry_.Add(memory_.data(), memory_.size());
  EXPECT_EQ(fabric_.live().regions, 0u);
  const auto keys = domain->Find(At(0, 1));
  ASSERT_TRUE(keys.has_value());
  EXPECT_NE(keys->lkey, keys->rkey);
  EXPECT_EQ(domain->Find(At(4000, 96))->rkey, keys->rkey);
  EXPECT_FALSE(domain->Find(At(4000, 97)).has_value());
  EXPECT_EQ(fabric_.live().regions, 1u);
  EXPECT_EQ(domain->stats().registered_bytes, 4096u);
  region.Reset();
  EXPECT_EQ(fabric_.live().regions, 0u);
  EXPECT_EQ(domain->stats().registered_bytes, 0u);
  EXPECT_FALSE(domain->Find(At(0, 1)).has_value());
}

TEST_F(ContextTest, MemoryThatIsOnlySentFromHasNoUseForPeers) {
  auto context = Open();
  Domain* domain = *context->DomainOf(1);
  auto region = registry_.Add(memory_.data(), memory_.size(), Access::kSend);
  EXPECT_TRUE(domain->Find(At(0, 1)).has_value());
  EXPECT_FALSE(domain->Find(At(0, 1), Access::kSendAndReceive).has_value());
}

TEST_F(ContextTest, RefusedMemoryGoesWithoutAndIsToldOnce) {
  auto context = Open();
  Domain* domain = *context->DomainOf(1);
  auto first = registry_.Add(memory_.data(), 1000);
  auto second = registry_.Add(memory_.data() + 1000, 1000);
  auto third = registry_.Add(memory_.data() + 2000, 1000);
  host_.LimitRegistrations(1);
  EXPECT_TRUE(domain->Find(At(0, 1)).has_value());
  EXPECT_FALSE(domain->Find(At(1000, 1)).has_value());
  EXPECT_FALSE(domain->Find(At(2000, 1)).has_value());
  ASSERT_EQ(refused_.size(), 1u);
  EXPECT_EQ(refused_[0].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused_[0].message().find("memlock"), std::string::npos) << refused_[0];
  EXPECT_EQ(domain->stats().refused, 2u);
  host_.LimitRegistrations(std::nullopt);
  EXPECT_FALSE(domain->Find(At(1000, 1)).has_value());
  second = registry_.Add(memory_.data() + 1000, 1000);
  EXPECT_TRUE(domain->Find(At(1000, 1)).has_value());
  EXPECT_EQ(domain->stats().refused, 1u);
}

TEST_F(ContextTest, DmabufsAreFoundByTheirIova) {
  auto context = Open();
  Domain* domain = *context->DomainOf(1);
  const int fd = memfd_create("gpu", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  constexpr uintptr_t kIova = 0x7f00'0000'0000;
  auto number = domain->RegisterDmabuf(fd, 0, 8192, kIova);
  ASSERT_TRUE(number.ok()) << number.status();
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(kIova + 100), 200);
  EXPECT_TRUE(domain->Find(bytes, Access::kSendAndReceive).has_value());
  EXPECT_EQ(domain->stats().registered_bytes, 8192u);
  domain->DeregisterDmabuf(*number);
  EXPECT_FALSE(domain->Find(bytes).has_value());
  host_.FailDmabuf(true);
  EXPECT_EQ(domain->RegisterDmabuf(fd, 0, 8192, kIova).status().code(), absl::StatusCode::kUnimplemented);
  close(fd);
}

TEST_F(ContextTest, CompletionsAreReservedSoThatNoQueueOverruns) {
  auto context = Open({.cq_entries = 100});
  EXPECT_TRUE(context->ReserveCompletions(60).ok());
  const absl::Status full = context->ReserveCompletions(41);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(context->ReserveCompletions(40).ok());
  context->ReleaseCompletions(60);
  EXPECT_EQ(context->reserved_completions(), 40u);
}

TEST_F(ContextTest, AnArmingThatFailsSaysToPoll) {
  auto context = Open();
  EXPECT_TRUE(context->Arm().ok());
  host_.FailReqNotify(true);
  EXPECT_NE(context->Arm().message().find("timer"), std::string::npos);
}

TEST_F(ContextTest, TheSeedMakesPacketSequences) {
  auto first = Open({.seed = 5});
  auto second = Open({.seed = 5});
  auto third = Open({.seed = 6});
  const uint32_t sequence = first->RandomPacketSequence();
  EXPECT_LT(sequence, 1u << 24);
  EXPECT_EQ(second->RandomPacketSequence(), sequence);
  EXPECT_NE(third->RandomPacketSequence(), sequence);
}

// Memory comes and goes on other threads while loops look it up: never a key of memory that is gone.
TEST_F(ContextTest, RegionsComeAndGoWhileTheyAreLookedUp) {
  auto context = Open();
  Domain* domain = *context->DomainOf(1);
  std::thread owner([&] {
    for (int i = 0; i < 500; ++i) {
      auto region = registry_.Add(memory_.data(), memory_.size());
      std::this_thread::yield();
    }
  });
  std::thread dying([&] {
    for (uint32_t i = 0; i < 50; ++i) {
      auto other = Context::Open(&host_, host_.RailOf("fake0"), {.memory = &registry_});
      (*(*other)->DomainOf(i))->Find(At(0, 10));
    }
  });
  for (int i = 0; i < 500; ++i) domain->Find(At(10, 10));
  owner.join();
  dying.join();
  EXPECT_EQ(fabric_.live().regions, 0u);
  EXPECT_EQ(domain->stats().registered_bytes, 0u);
  EXPECT_TRUE(fabric_.misuses().empty());
}

}  // namespace
}  // namespace sluice::rdma
