// The tests that every transport must pass. Instantiate with
//   INSTANTIATE_TEST_SUITE_P(Tcp, ConformanceTest, testing::Values(transport), [](auto& info) { return info.param.name; });
// and link :suite (and :byte_stream_suite, for ByteStreamTest and ImpatientByteStreamTest, where ConnectRaw works).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "transport/conformance/environment.h"
#include "transport/conformance/recorder.h"

namespace sluice::transport::conformance {

// Two nodes, a (worker 3) and b (server 7), not yet connected.
class ConformanceTest : public ::testing::TestWithParam<Transport> {
 protected:
  void SetUp() override;

  // Replaces both nodes by ones with these limits.
  void UseLimits(EndpointLimits limits);
  // a connects to b; link_a and link_b name the two ends.
  void Connect();
  // One more link between them.
  struct Link {
    LinkId a = 0, b = 0;
  };
  Link ConnectOneMore(uint32_t connection);
  bool StepUntil(const std::function<bool()>& done) { return env_->StepUntil(done); }

  static std::vector<std::byte> Pattern(size_t bytes, uint32_t seed);
  static FrameHeader Header(FrameType type, size_t payload_bytes, uint64_t round = 0, SlotId slot = 0);
  static Hello HelloOf(PeerRole role, uint32_t index, uint32_t connection = 0);

  std::unique_ptr<Environment> env_;
  Recorder rec_a_, rec_b_;
  Node a_, b_;
  Hello hello_a_, hello_b_;
  LinkId link_a_ = 0, link_b_ = 0;
};

// The same, for transports that are byte streams.
class ByteStreamTest : public ConformanceTest {
 protected:
  // A stranger that has said a right HELLO and got its WELCOME.
  std::unique_ptr<RawPeer> ConnectStranger();
  // Everything that the node says until it closes.
  std::vector<std::byte> ReadToTheEnd(RawPeer& peer);
};

// The same, where the node waits for strangers and silent peers for fractions of a second only.
class ImpatientByteStreamTest : public ByteStreamTest {};

}  // namespace sluice::transport::conformance
