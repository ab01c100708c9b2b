// Links, order, back-pressure, cookies, and their ends.
#include <algorithm>
#include <cstring>
#include <string>

#include "transport/conformance/suite.h"

namespace sluice::transport::conformance {

TEST_P(ConformanceTest, BothSidesLearnWhoThePeerIs) {
  Connect();
  const Hello& at_b = rec_b_.up.at(link_b_);
  EXPECT_EQ(at_b.role, hello_a_.role);
  EXPECT_EQ(at_b.job, hello_a_.job);
  EXPECT_EQ(at_b.job_uid, hello_a_.job_uid);
  EXPECT_EQ(at_b.index, hello_a_.index);
  EXPECT_EQ(at_b.lane, hello_a_.lane);
  EXPECT_EQ(at_b.incarnation, hello_a_.incarnation);
  EXPECT_EQ(at_b.name, hello_a_.name);
  EXPECT_EQ(rec_a_.up.at(link_a_).index, hello_b_.index);
  EXPECT_EQ(rec_a_.up.at(link_a_).role, hello_b_.role);
}

TEST_P(ConformanceTest, LinksAreToldApartByTheirConnection) {
  Connect();
  const Link second = ConnectOneMore(1);
  EXPECT_NE(second.a, link_a_);
  EXPECT_NE(second.b, link_b_);
  EXPECT_EQ(rec_b_.up.at(second.b).connection, 1u);
  a_.endpoint->Send(second.a, Header(FrameType::kPull, 0, 4), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty(); }));
  EXPECT_EQ(rec_b_.frames[0].link, second.b);
}

TEST_P(ConformanceTest, ConnectToNobodyEndsInOnDownThatNamesTheAddress) {
  const Address address = b_.address;
  b_.endpoint.reset();
  env_->Settle();
  LinkId link;
  {
    const Recorder::Call call(&rec_a_);
    link = a_.endpoint->Connect(address, hello_a_);
  }
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link); }));
  EXPECT_FALSE(rec_a_.up.contains(link));
  const std::string text(rec_a_.down.at(link).message());
  EXPECT_TRUE((!address.host.empty() && text.find(address.host) != std::string::npos) ||
              (!address.unix_socket.empty() && text.find(address.unix_socket) != std::string::npos))
      << text;
}

TEST_P(ConformanceTest, EveryHeaderFieldArrives) {
  Connect();
  FrameHeader sent;
  sent.type = FrameType::kReply;
  sent.flags = kFlagChange | kFlagSkipped;
  sent.job = 1, sent.rank = 2, sent.incarnation = 3, sent.tensor = 4, sent.partition = 5, sent.term = 6;
  sent.round = uint64_t{7} << 40;
  sent.attempt = 8, sent.codec = 9, sent.status = 10;
  sent.total_bytes = 1000, sent.stripe_offset = 100, sent.payload_bytes = 16, sent.elements = 11;
  sent.reply_slot = uint64_t{13} << 40, sent.rate_bits = 14, sent.aux = 15, sent.aux64 = uint64_t{16} << 40;
  sent.plan_version = uint64_t{17} << 40;
  const auto payload = Pattern(16, 1);
  a_.endpoint->Send(link_a_, sent, payload, 0);
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty(); }));
  FrameHeader got = rec_b_.frames[0].header;
  got.payload_hash = 0;  // the transport's business
  got.flags &= static_cast<uint16_t>(~kFlagHash);
  std::byte x[kHeaderBytes], y[kHeaderBytes];
  EncodeHeader(sent, x);
  EncodeHeader(got, y);
  EXPECT_EQ(std::memcmp(x, y, kHeaderBytes), 0) << DebugString(got);
  EXPECT_EQ(rec_b_.frames[0].bytes, payload);
}

TEST_P(ConformanceTest, AFrameWithoutPayloadMayNameASlotOfItsSender) {
  // GRANT tells the peer of a slot; it does not go into one.
  Connect();
  a_.endpoint->Send(link_a_, Header(FrameType::kGrant, 0, 1, /*slot=*/987654321), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty(); }));
  EXPECT_EQ(rec_b_.frames[0].header.slot, 987654321u);
}

TEST_P(ConformanceTest, FramesArriveInOrderOnceAndWhole) {
  Connect();
  constexpr uint64_t kFrames = 400;
  const size_t sizes[] = {0, 1, 7, 120, 128, 4096, 65535, 65536, 65537, 200000};
  std::vector<std::vector<std::byte>> payloads;
  std::vector<uint64_t> cookies;
  for (uint64_t i = 0; i < kFrames; ++i) payloads.push_back(Pattern(sizes[(i * i + i / 3) % 10], i));
  for (uint64_t i = 0; i < kFrames; ++i) {
    const FrameHeader header = Header(FrameType::kValue, payloads[i].size(), i);
    if (i % 3 == 0) {
      std::vector<std::byte> copy = payloads[i];
      a_.endpoint->Send(link_a_, header, copy, 0);
      std::fill(copy.begin(), copy.end(), std::byte{0xEE});  // copied at once: ours to change
    } else {
      rec_a_.Lend(a_.endpoint.get(), link_a_, header, payloads[i], 1000 + i);
      cookies.push_back(1000 + i);
    }
    b_.endpoint->Send(link_b_, Header(FrameType::kApplied, 0, i), {}, 0);  // the other way at the same time
  }
  ASSERT_TRUE(StepUntil([&] {
    return rec_b_.frames.size() == kFrames && rec_a_.frames.size() == kFrames && rec_a_.sent.size() == cookies.size();
  }));
  for (uint64_t i = 0; i < kFrames; ++i) {
    EXPECT_EQ(rec_b_.frames[i].header.round, i);
    EXPECT_TRUE(rec_b_.frames[i].bytes == payloads[i]) << "frame " << i;
    EXPECT_EQ(rec_a_.frames[i].header.round, i);
  }
  std::vector<uint64_t> sent = rec_a_.sent;
  std::sort(sent.begin(), sent.end());
  EXPECT_EQ(sent, cookies);
  EXPECT_TRUE(rec_a_.down.empty());
  EXPECT_TRUE(rec_b_.down.empty());
}

TEST_P(ConformanceTest, APayloadThatIsHeldStaysAsItWas) {
  Connect();
  rec_b_.keep_payloads = true;
  const auto first = Pattern(30000, 1), rest = Pattern(30000, 2);
  a_.endpoint->Send(link_a_, Header(FrameType::kValue, first.size(), 0), first, 0);
  for (uint64_t i = 1; i < 100; ++i) a_.endpoint->Send(link_a_, Header(FrameType::kValue, rest.size(), i), rest, 0);
  ASSERT_TRUE(StepUntil([&] {
    if (rec_b_.frames.size() > 1) rec_b_.frames.back().payload = Payload();  // the others come and go
    return rec_b_.frames.size() == 100;
  }));
  ASSERT_EQ(rec_b_.frames[0].payload.size(), first.size());
  EXPECT_EQ(std::memcmp(rec_b_.frames[0].payload.data(), first.data(), first.size()), 0);
}

TEST_P(ConformanceTest, AFullQueueIsNotWritableAndSaysWhenItIsAgain) {
  EndpointLimits limits;
  limits.max_queued_bytes = 256 << 10;
  UseLimits(limits);
  Connect();
  EXPECT_TRUE(a_.endpoint->Writable(link_a_));
  const auto payload = Pattern(64 << 10, 1);
  uint64_t count = 0;
  bool filled = false;
  // The queue may drain while it fills only if the loop turns, so it fills.
  for (; count < 20000 && !filled; ++count) {
    rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, payload.size(), count), payload, count + 1);
    filled = !a_.endpoint->Writable(link_a_);
  }
  ASSERT_TRUE(filled);
  EXPECT_GE(count * payload.size(), limits.max_queued_bytes / 2);
  EXPECT_EQ(rec_a_.writable[link_a_], 0);
  ASSERT_TRUE(StepUntil([&] { return rec_a_.writable[link_a_] > 0; }));
  EXPECT_TRUE(a_.endpoint->Writable(link_a_));
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() == count && rec_a_.sent.size() == count; }));
  EXPECT_EQ(rec_a_.writable[link_a_], 1);
}

TEST_P(ConformanceTest, ASenderThatHeedsWritableNeverQueuesMuchMore) {
  EndpointLimits limits;
  limits.max_queued_bytes = 256 << 10;
  UseLimits(limits);
  Connect();
  const auto payload = Pattern(64 << 10, 1);
  constexpr uint64_t kFrames = 300;
  uint64_t next = 0;
  size_t lent = 0, most = 0;
  const auto fill = [&] {
    while (next < kFrames && a_.endpoint->Writable(link_a_)) {
      ++next;
      most = std::max(most, ++lent);
      rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, payload.size(), next), payload, next);
    }
  };
  rec_a_.on_writable = [&](LinkId) { fill(); };
  rec_a_.on_sent = [&](LinkId, uint64_t) { --lent; };
  fill();
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() == kFrames && rec_a_.sent.size() == kFrames; }));
  EXPECT_GT(rec_a_.writable[link_a_], 0);
  EXPECT_LT(most, kFrames / 2);
}

TEST_P(ConformanceTest, EveryCookieComesBackOnceWhenThePeerDies) {
  Connect();
  std::vector<uint64_t> expected;
  const auto payload = Pattern(200 << 10, 1);
  for (uint64_t cookie = 1; cookie <= 100; ++cookie) {
    rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, payload.size()), payload, cookie);
    expected.push_back(cookie);
  }
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty(); }));
  b_.endpoint.reset();
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_); }));
  std::sort(rec_a_.sent.begin(), rec_a_.sent.end());
  EXPECT_EQ(rec_a_.sent, expected);
  env_->Settle();
  EXPECT_EQ(rec_a_.sent.size(), expected.size());
}

TEST_P(ConformanceTest, WhatIsSentOnADeadOrUnknownLinkIsDroppedAndItsCookieReturned) {
  Connect();
  b_.endpoint.reset();
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_); }));
  const absl::Status why = rec_a_.down.at(link_a_);
  rec_a_.down.clear();  // callbacks for what is sent now are right
  const auto payload = Pattern(100, 1);
  rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, payload.size()), payload, 5);
  rec_a_.Lend(a_.endpoint.get(), 999999, Header(FrameType::kValue, payload.size()), payload, 6);
  a_.endpoint->Send(999999, Header(FrameType::kValue, payload.size()), payload, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_a_.sent.size() == 2; }));
  EXPECT_EQ(rec_a_.sent, (std::vector<uint64_t>{5, 6}));
  EXPECT_FALSE(why.ok());
}

TEST_P(ConformanceTest, AHandlerMaySendToALinkThatIsJustDying) {
  Connect();
  const auto payload = Pattern(300 << 10, 1);
  bool again = false;
  rec_a_.on_sent = [&](LinkId link, uint64_t cookie) {
    if (cookie == 1 && link == link_a_ && b_.endpoint == nullptr) {
      again = true;
      rec_a_.lent[link].insert(77);
      a_.endpoint->Send(link, Header(FrameType::kValue, payload.size()), payload, 77);
    }
  };
  b_.endpoint.reset();
  rec_a_.Lend(a_.endpoint.get(), link_a_, Header(FrameType::kValue, payload.size()), payload, 1);
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_); }));
  EXPECT_TRUE(again);
  EXPECT_EQ(std::count(rec_a_.sent.begin(), rec_a_.sent.end(), 77u), 1);
}

TEST_P(ConformanceTest, CloseIsHeardOnBothSidesWithItsReason) {
  Connect();
  const absl::Status reason = absl::FailedPreconditionError("the moon is in the wrong house");
  {
    const Recorder::Call call(&rec_b_);
    b_.endpoint->Close(link_b_, reason);
  }
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_) && rec_b_.down.contains(link_b_); }));
  EXPECT_EQ(rec_b_.down.at(link_b_), reason);
  EXPECT_NE(rec_a_.down.at(link_a_).message().find("the moon is in the wrong house"), absl::string_view::npos)
      << rec_a_.down.at(link_a_);
}

TEST_P(ConformanceTest, WhatWasSentBeforeCloseStillArrives) {
  if (!env_->orderly_close()) GTEST_SKIP() << "a close of this transport may overtake frames";
  Connect();
  const auto payload = Pattern(1000, 1);
  b_.endpoint->Send(link_b_, Header(FrameType::kError, payload.size()), payload, 0);
  b_.endpoint->Close(link_b_, absl::AbortedError("enough"));
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_); }));
  ASSERT_EQ(rec_a_.frames.size(), 1u);
  EXPECT_EQ(rec_a_.frames[0].bytes, payload);
}

TEST_P(ConformanceTest, CloseFromInsideAFrameEndsTheLinkForBoth) {
  Connect();
  constexpr uint64_t kFrames = 2000;
  rec_b_.on_frame = [&](Recorder::Frame& frame) { b_.endpoint->Close(frame.link, absl::AbortedError("enough")); };
  const auto payload = Pattern(1000, 1);
  for (uint64_t i = 0; i < kFrames; ++i)
    a_.endpoint->Send(link_a_, Header(FrameType::kValue, payload.size(), i), payload, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_) && rec_b_.down.contains(link_b_); }));
  EXPECT_LT(rec_b_.frames.size(), kFrames);
  EXPECT_EQ(rec_b_.down.at(link_b_).code(), absl::StatusCode::kAborted);
}

TEST_P(ConformanceTest, ADeadPeerIsNoticedAndALaterOneIsReachedAgain) {
  Connect();
  b_.endpoint.reset();
  ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link_a_); }));
  EXPECT_FALSE(rec_a_.down.at(link_a_).message().empty());
  b_ = env_->NewNode("b", hello_b_, {});
  Recorder reborn;
  b_.endpoint->SetHandler(&reborn);
  const LinkId link = a_.endpoint->Connect(b_.address, hello_a_);
  EXPECT_NE(link, link_a_);
  ASSERT_TRUE(StepUntil([&] { return rec_a_.up.contains(link) && !reborn.up.empty(); }));
  a_.endpoint->Send(link, Header(FrameType::kPull, 0, 9), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return !reborn.frames.empty(); }));
  b_.endpoint.reset();  // before its handler
}

TEST_P(ConformanceTest, OnePeerTooManyIsRefusedAndToldWhy) {
  EndpointLimits limits;
  limits.max_links = 2;
  b_ = {};
  b_ = env_->NewNode("b", hello_b_, limits);
  b_.endpoint->SetHandler(&rec_b_);
  Connect();
  ConnectOneMore(1);
  // An endpoint with two transports has the limit on each.
  LinkId refused = 0;
  for (int i = 0; i < 3 && refused == 0; ++i) {
    const LinkId link = a_.endpoint->Connect(b_.address, hello_a_);
    ASSERT_TRUE(StepUntil([&] { return rec_a_.down.contains(link) || rec_a_.up.contains(link); }));
    if (rec_a_.down.contains(link)) refused = link;
  }
  ASSERT_NE(refused, 0u);
  EXPECT_EQ(rec_a_.down.at(refused).code(), absl::StatusCode::kResourceExhausted) << rec_a_.down.at(refused);
  EXPECT_FALSE(rec_a_.up.contains(refused));
  EXPECT_EQ(rec_b_.up.size(), rec_a_.up.size());
  b_.endpoint->Send(link_b_, Header(FrameType::kApplied, 0, 1), {}, 0);  // the others live on
  ASSERT_TRUE(StepUntil([&] { return !rec_a_.frames.empty(); }));
}

TEST_P(ConformanceTest, TrafficIsCounted) {
  Connect();
  const auto payload = Pattern(10000, 1);
  for (int i = 0; i < 5; ++i) a_.endpoint->Send(link_a_, Header(FrameType::kValue, payload.size()), payload, 0);
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() == 5; }));
  env_->Settle();
  const LinkStats out = a_.endpoint->Stats(link_a_), in = b_.endpoint->Stats(link_b_);
  EXPECT_GE(out.payload_out, 50000u);
  EXPECT_GE(in.payload_in, 50000u);
  EXPECT_GE(out.bytes_out, 5 * (kHeaderBytes + 10000));
  EXPECT_GE(in.bytes_in, 5 * (kHeaderBytes + 10000));
  EXPECT_GE(out.frames_out, 5u);
  EXPECT_FALSE(out.kind.empty());
  EXPECT_FALSE(out.peer.empty());
}

}  // namespace sluice::transport::conformance
