// What strangers and broken peers can send on a byte stream: nothing of it may be delivered, stop others, or go unexplained.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/philox.h"
#include "transport/conformance/suite.h"
#include "transport/hello.h"

namespace sluice::transport::conformance {
namespace {

std::vector<std::byte> Encode(FrameHeader header, ConstBytes payload, bool hash) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (header.total_bytes == 0) header.total_bytes = payload.size();
  if (hash) {
    header.flags |= kFlagHash;
    header.payload_hash = HashBytes(payload);
  }
  std::vector<std::byte> out(kHeaderBytes + payload.size());
  EncodeHeader(header, out.data());
  std::copy(payload.begin(), payload.end(), out.begin() + kHeaderBytes);
  return out;
}

std::string Text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ConstBytes Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

std::unique_ptr<RawPeer> ByteStreamTest::ConnectStranger() {
  auto peer = env_->ConnectRaw(b_.address);
  const size_t before = rec_b_.order.size();
  FrameHeader hello;
  hello.type = FrameType::kHello;
  peer->Write(Encode(hello, EncodeHello(hello_a_), true));
  EXPECT_TRUE(StepUntil([&] { return rec_b_.order.size() > before; }));
  link_b_ = rec_b_.order.empty() ? 0 : rec_b_.order.back();
  std::vector<std::byte> welcome;
  EXPECT_TRUE(StepUntil([&] {
    const auto more = peer->Read();
    welcome.insert(welcome.end(), more.begin(), more.end());
    return welcome.size() >= kHeaderBytes + kHelloFixedBytes + hello_b_.name.size();
  }));
  EXPECT_EQ(DecodeHeader(welcome.data())->type, FrameType::kWelcome);
  return peer;
}

std::vector<std::byte> ByteStreamTest::ReadToTheEnd(RawPeer& peer) {
  std::vector<std::byte> all;
  EXPECT_TRUE(StepUntil([&] {
    const auto more = peer.Read();
    all.insert(all.end(), more.begin(), more.end());
    return peer.Closed();
  })) << "the node keeps the connection";
  return all;
}

TEST_P(ByteStreamTest, AStrangerOfAnotherProtocolIsToldAndDropped) {
  for (const std::string line : {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "\x16\x03\x01\x02"}) {
    auto peer = env_->ConnectRaw(b_.address);
    peer->Write(Bytes(line));
    const std::string answer = Text(ReadToTheEnd(*peer));
    EXPECT_NE(answer.find("not a Sluice frame"), std::string::npos) << answer;
  }
  EXPECT_TRUE(rec_b_.up.empty());
}

TEST_P(ByteStreamTest, AnotherVersionIsRefusedNamingBoth) {
  auto peer = env_->ConnectRaw(b_.address);
  auto hello = Encode(Header(FrameType::kHello, 0), EncodeHello(hello_a_), true);
  hello[4] = std::byte{9};
  peer->Write(ConstBytes(hello).first(5));  // as little as decides it
  const auto answer = ReadToTheEnd(*peer);
  ASSERT_GE(answer.size(), kHeaderBytes);
  const auto header = DecodeHeader(answer.data());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->type, FrameType::kError);
  EXPECT_EQ(header->status, static_cast<uint16_t>(absl::StatusCode::kFailedPrecondition));
  const std::string text = Text(answer).substr(kHeaderBytes);
  EXPECT_NE(text.find("version 9"), std::string::npos) << text;
  EXPECT_NE(text.find("version 1"), std::string::npos) << text;
  EXPECT_TRUE(rec_b_.up.empty());
}

TEST_P(ByteStreamTest, OnlyAHelloOpensTheDoor) {
  FrameHeader push = Header(FrameType::kPush, 0, 1);
  FrameHeader huge = Header(FrameType::kHello, 0);
  huge.payload_bytes = 1 << 30;
  huge.total_bytes = 1 << 30;
  std::vector<std::byte> absurd(kHeaderBytes);
  EncodeHeader(huge, absurd.data());
  Hello nobody = hello_a_;
  nobody.role = PeerRole::kUnknown;
  const std::vector<std::vector<std::byte>> openings = {
      Encode(push, Pattern(100, 1), true), absurd,
      Encode(Header(FrameType::kHello, 0), EncodeHello(nobody), true),
      Encode(Header(FrameType::kHello, 0), Pattern(20, 1), true),
      Encode(Header(FrameType::kWelcome, 0), EncodeHello(hello_a_), true)};
  for (const auto& opening : openings) {
    auto peer = env_->ConnectRaw(b_.address);
    peer->Write(opening);
    const auto answer = ReadToTheEnd(*peer);
    ASSERT_GE(answer.size(), kHeaderBytes);
    EXPECT_EQ(DecodeHeader(answer.data())->type, FrameType::kError);
  }
  EXPECT_TRUE(rec_b_.up.empty());
}

TEST_P(ImpatientByteStreamTest, APeerThatSaysNothingIsDropped) {
  auto silent = env_->ConnectRaw(b_.address);
  auto slow = env_->ConnectRaw(b_.address);
  slow->Write(ConstBytes(Encode(Header(FrameType::kHello, 0), EncodeHello(hello_a_), true)).first(100));
  ReadToTheEnd(*silent);
  const std::string answer = Text(ReadToTheEnd(*slow));
  EXPECT_NE(answer.find("no HELLO within"), std::string::npos) << answer;
  EXPECT_TRUE(rec_b_.up.empty());
}

TEST_P(ByteStreamTest, FramesArriveWhateverThePiecesTheyComeIn) {
  auto peer = ConnectStranger();
  std::vector<std::byte> stream;
  std::vector<std::vector<std::byte>> payloads;
  for (uint64_t i = 0; i < 20; ++i) {
    payloads.push_back(Pattern(i * i * 37 % 3000, i));
    const auto frame = Encode(Header(FrameType::kValue, 0, i), payloads.back(), i % 2 == 0);
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  PhiloxRandom random(1);
  for (size_t at = 0; at < stream.size();) {
    const size_t bytes = std::min<size_t>(1 + random.Below(random.Below(8) == 0 ? 5000 : 60), stream.size() - at);
    peer->Write(ConstBytes(stream).subspan(at, bytes));
    at += bytes;
    StepUntil([&] { return true; });
    if (random.Below(20) == 0) env_->Settle();
  }
  ASSERT_TRUE(StepUntil([&] { return rec_b_.frames.size() == payloads.size(); }));
  for (size_t i = 0; i < payloads.size(); ++i) EXPECT_EQ(rec_b_.frames[i].bytes, payloads[i]);
}

TEST_P(ByteStreamTest, AFlippedBitOfAPayloadEndsTheLinkAndDeliversNothing) {
  for (const bool slotted : {false, true}) {
    auto peer = ConnectStranger();
    std::vector<std::byte> memory(600000);
    FrameHeader header = Header(FrameType::kPush, 0, 1);
    if (slotted) header.slot = b_.endpoint->OpenSlot(link_b_, memory);
    auto frame = Encode(header, Pattern(600000, 1), true);
    frame[kHeaderBytes + 345678] ^= std::byte{0x10};
    peer->Write(frame);
    peer->Write(Encode(Header(FrameType::kPull, 0, 2), {}, false));
    ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_); }));
    EXPECT_EQ(rec_b_.down.at(link_b_).code(), absl::StatusCode::kDataLoss) << rec_b_.down.at(link_b_);
    EXPECT_TRUE(rec_b_.frames.empty());
  }
}

TEST_P(ByteStreamTest, AFlippedBitOfAHeaderEndsTheLinkAndDeliversNothing) {
  // Any bit of the header: its check covers all of it.
  PhiloxRandom random(2);
  for (int i = 0; i < 12; ++i) {
    auto peer = ConnectStranger();
    auto frame = Encode(Header(FrameType::kPull, 0, 1), {}, false);
    frame[random.Below(kHeaderBytes)] ^= std::byte{1} << random.Below(8);
    peer->Write(frame);
    ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_); }));
    EXPECT_TRUE(rec_b_.frames.empty());
  }
}

TEST_P(ByteStreamTest, AStreamThatEndsInTheMiddleOfAFrameDeliversOnlyWhatWasWhole) {
  for (const size_t cut : {size_t{1}, kHeaderBytes - 1, kHeaderBytes, kHeaderBytes + 50}) {
    auto peer = ConnectStranger();
    rec_b_.frames.clear();
    const auto frame = Encode(Header(FrameType::kValue, 0, 1), Pattern(100, 1), true);
    peer->Write(frame);
    peer->Write(ConstBytes(frame).first(cut));
    peer.reset();
    ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_); }));
    EXPECT_EQ(rec_b_.frames.size(), 1u);
    EXPECT_NE(rec_b_.down.at(link_b_).message().find("in the middle of a frame"), absl::string_view::npos)
        << rec_b_.down.at(link_b_);
  }
}

TEST_P(ByteStreamTest, ASecondHelloEndsTheLink) {
  auto peer = ConnectStranger();
  peer->Write(Encode(Header(FrameType::kHello, 0), EncodeHello(hello_a_), true));
  ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_); }));
}

TEST_P(ByteStreamTest, PingIsAnsweredWithItsNumber) {
  auto peer = ConnectStranger();
  FrameHeader ping = Header(FrameType::kPing, 0);
  ping.aux64 = 0x1234567890;
  peer->Write(Encode(ping, {}, false));
  std::vector<std::byte> answer;
  ASSERT_TRUE(StepUntil([&] {
    const auto more = peer->Read();
    answer.insert(answer.end(), more.begin(), more.end());
    return answer.size() >= kHeaderBytes;
  }));
  const auto header = DecodeHeader(answer.data());
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->type, FrameType::kPong);
  EXPECT_EQ(header->aux64, ping.aux64);
  EXPECT_TRUE(rec_b_.frames.empty());
}

TEST_P(ImpatientByteStreamTest, APeerThatDoesNotAnswerPingsIsDown) {
  auto peer = ConnectStranger();
  ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link_b_); }));
  EXPECT_NE(rec_b_.down.at(link_b_).message().find("silent"), absl::string_view::npos) << rec_b_.down.at(link_b_);
  EXPECT_FALSE(peer->Read().empty());  // it was pinged before
}

TEST_P(ByteStreamTest, RandomBytesAreRefusedAndOthersGoOn) {
  Connect();
  const LinkId good = link_b_;
  PhiloxRandom random(3);
  for (int i = 0; i < 60; ++i) {
    const bool handshaken = i % 2 == 1;
    auto peer = handshaken ? ConnectStranger() : env_->ConnectRaw(b_.address);
    const LinkId link = handshaken ? link_b_ : 0;
    // Pure noise, or a right frame in which some bytes are noise.
    std::vector<std::byte> bytes = i % 4 < 2 ? Pattern(5 + random.Below(3000), i)
                                             : Encode(Header(FrameType::kValue, 0, i), Pattern(300, i), true);
    for (int flips = i % 4 < 2 ? 0 : 3; flips > 0; --flips)
      bytes[random.Below(static_cast<uint32_t>(bytes.size()))] ^= std::byte(1 + random.Below(255));
    peer->Write(bytes);
    if (handshaken) {
      // Flips that undo each other, or less than a header of noise, leave nothing to refuse until the end.
      peer.reset();
      ASSERT_TRUE(StepUntil([&] { return rec_b_.down.contains(link); }));
    } else if (i % 4 < 2) {
      ReadToTheEnd(*peer);
    }
  }
  EXPECT_FALSE(rec_b_.down.contains(good));
  rec_b_.frames.clear();
  a_.endpoint->Send(link_a_, Header(FrameType::kPull, 0, 1), {}, 0);
  ASSERT_TRUE(StepUntil([&] { return !rec_b_.frames.empty(); }));
}

}  // namespace sluice::transport::conformance
