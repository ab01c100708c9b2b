#include "transport/conformance/suite.h"

namespace sluice::transport::conformance {

void ConformanceTest::SetUp() {
  env_ = GetParam().create();
  hello_a_ = HelloOf(PeerRole::kWorker, 3);
  hello_b_ = HelloOf(PeerRole::kServer, 7);
  UseLimits({});
}

void ConformanceTest::UseLimits(EndpointLimits limits) {
  a_ = {};
  b_ = {};
  a_ = env_->NewNode("a", hello_a_, limits);
  b_ = env_->NewNode("b", hello_b_, limits);
  a_.endpoint->SetHandler(&rec_a_);
  b_.endpoint->SetHandler(&rec_b_);
}

void ConformanceTest::Connect() {
  const Link link = ConnectOneMore(0);
  link_a_ = link.a;
  link_b_ = link.b;
}

ConformanceTest::Link ConformanceTest::ConnectOneMore(uint32_t connection) {
  Link link;
  const size_t before = rec_b_.order.size();
  Hello hello = hello_a_;
  hello.connection = connection;
  {
    const Recorder::Call call(&rec_a_);
    link.a = a_.endpoint->Connect(b_.address, hello);
  }
  EXPECT_TRUE(StepUntil([&] { return rec_a_.up.contains(link.a) && rec_b_.order.size() > before; }));
  link.b = rec_b_.order.empty() ? 0 : rec_b_.order.back();
  EXPECT_TRUE(StepUntil([&] {
    return (a_.grown == nullptr || a_.grown(link.a)) && (b_.grown == nullptr || b_.grown(link.b));
  })) << "the link did not get all its paths";
  return link;
}

std::vector<std::byte> ConformanceTest::Pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> out(bytes);
  uint32_t state = seed * 2654435761u + 1;
  for (std::byte& b : out) {
    state = state * 1664525 + 1013904223;
    b = static_cast<std::byte>(state >> 24);
  }
  return out;
}

FrameHeader ConformanceTest::Header(FrameType type, size_t payload_bytes, uint64_t round, SlotId slot) {
  FrameHeader header;
  header.type = type;
  header.round = round;
  header.total_bytes = payload_bytes;
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  header.slot = slot;
  return header;
}

Hello ConformanceTest::HelloOf(PeerRole role, uint32_t index, uint32_t connection) {
  Hello hello;
  hello.role = role;
  hello.job = 5;
  hello.job_uid = 0x1122334455667788;
  hello.index = index;
  hello.lane = 2;
  hello.incarnation = 9;
  hello.connection = connection;
  hello.name = "conformance:" + std::to_string(index);
  return hello;
}

}  // namespace sluice::transport::conformance
