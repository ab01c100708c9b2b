#include "transport/wire.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "transport/hello.h"
#include "transport/transport.h"

namespace sluice::transport {
namespace {

std::vector<std::byte> FromHex(const std::string& hex) {
  const std::string raw = absl::HexStringToBytes(hex);
  const auto* p = reinterpret_cast<const std::byte*>(raw.data());
  return {p, p + raw.size()};
}

std::string Hex(ConstBytes bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

ConstBytes Text(const std::string& text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

std::string ToString(ConstBytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string EncodedHex(const FrameHeader& header) {
  std::byte out[kHeaderBytes];
  EncodeHeader(header, out);
  return Hex(out);
}

struct Golden {
  FrameHeader header;
  const char* hex;
};

// One header of each type, in the order of the table in docs/wire.md; written from that page by other code than
// EncodeHeader.
const Golden kGolden[] = {
    {{.type = FrameType::kHello, .job = 7, .total_bytes = 38, .payload_bytes = 38},
     "534c433101010000070000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000026000000000000000000000000000000"
     "2600000000000000000000000000000000000000000000000000000000000000"
     "00000000000000000000000000000000000000000000000099fdaba940c6be04"},
    {{.type = FrameType::kWelcome, .job = 7, .total_bytes = 38, .payload_bytes = 38},
     "534c433101020000070000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000026000000000000000000000000000000"
     "2600000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000005b6f2543ff461354"},
    {{.type = FrameType::kAnnounce, .flags = 0x2, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3,
      .partition = 12, .term = 5, .round = 40, .attempt = 1, .codec = 3, .total_bytes = 0x40000, .elements = 0x3d090,
      .reply_slot = 0x1122334455667788, .rate_bits = 0x3c23d70a, .plan_version = 9},
     "534c433101030200010000000200000004030201030000000c00000005000000"
     "2800000000000000010000000300000000000400000000000000000000000000"
     "0000000090d00300000000000000000088776655443322110ad7233c00000000"
     "0000000000000000090000000000000000000000000000000448fd6ca32a41a1"},
    {{.type = FrameType::kGrant, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3, .partition = 12, .term =
      5, .round = 40, .attempt = 1, .total_bytes = 0x40000, .slot = 7, .plan_version = 9},
     "534c433101040000010000000200000004030201030000000c00000005000000"
     "2800000000000000010000000000000000000400000000000000000000000000"
     "0000000000000000070000000000000000000000000000000000000000000000"
     "000000000000000009000000000000000000000000000000403ad61e699f6709"},
    {{.type = FrameType::kPush, .flags = 0x11, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3, .partition
      = 12, .term = 5, .round = 40, .attempt = 2, .codec = 3, .total_bytes = 0x40000, .stripe_offset = 0x10000,
      .payload_bytes = 0x10000, .elements = 0x3d090, .slot = 7, .reply_slot = 8, .rate_bits = 0x3c23d70a,
      .plan_version = 9, .payload_hash = 0xa1a2a3a4a5a6a7a8},
     "534c433101051100010000000200000004030201030000000c00000005000000"
     "2800000000000000020000000300000000000400000000000000010000000000"
     "0000010090d00300070000000000000008000000000000000ad7233c00000000"
     "00000000000000000900000000000000a8a7a6a5a4a3a2a1bf75c63ea2c3818f"},
    {{.type = FrameType::kState, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3, .partition = 12, .term =
      5, .round = 40, .attempt = 2, .aux = 2, .plan_version = 9},
     "534c433101060000010000000200000004030201030000000c00000005000000"
     "2800000000000000020000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000002000000"
     "0000000000000000090000000000000000000000000000004f0e8347476bdc7d"},
    {{.type = FrameType::kReply, .flags = 0x120, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3,
      .partition = 12, .term = 5, .round = 40, .codec = 1, .total_bytes = 0x7a120, .payload_bytes = 0x7a120, .elements
      = 0x3d090, .slot = 8, .rate_bits = 0x3c23d70a, .aux = 4, .plan_version = 9},
     "534c433101072001010000000200000004030201030000000c00000005000000"
     "2800000000000000000000000100000020a10700000000000000000000000000"
     "20a1070090d00300080000000000000000000000000000000ad7233c04000000"
     "000000000000000009000000000000000000000000000000f1477b134c5c531a"},
    {{.type = FrameType::kApplied, .flags = 0x40, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3,
      .partition = 12, .term = 5, .round = 40, .rate_bits = 0x3f800000, .aux = 4, .plan_version = 9},
     "534c433101084000010000000200000004030201030000000c00000005000000"
     "2800000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000803f04000000"
     "0000000000000000090000000000000000000000000000003289d25a8f19f534"},
    {{.type = FrameType::kPull, .flags = 0x80, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3, .partition
      = 12, .term = 5, .round = 41, .reply_slot = 16, .aux64 = 0x102030405060708, .plan_version = 9},
     "534c433101098000010000000200000004030201030000000c00000005000000"
     "2900000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000010000000000000000000000000000000"
     "080706050403020109000000000000000000000000000000b63a88054ae69993"},
    {{.type = FrameType::kValue, .flags = 0x200, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3,
      .partition = 12, .term = 5, .round = 41, .total_bytes = 0xf4240, .stripe_offset = 0xf423c, .payload_bytes = 4,
      .elements = 0x3d090, .slot = 16, .rate_bits = 0x3f800000, .aux64 = 0x102030405060708, .plan_version = 9},
     "534c4331010a0002010000000200000004030201030000000c00000005000000"
     "2900000000000000000000000000000040420f00000000003c420f0000000000"
     "0400000090d00300100000000000000000000000000000000000803f00000000"
     "0807060504030201090000000000000000000000000000005f244540a23bb3f8"},
    {{.type = FrameType::kRetry, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3, .partition = 12, .term =
      6, .round = 40, .attempt = 2, .aux = 1, .plan_version = 9},
     "534c4331010b0000010000000200000004030201030000000c00000006000000"
     "2800000000000000020000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000001000000"
     "000000000000000009000000000000000000000000000000b75e4a1d44c732cf"},
    {{.type = FrameType::kError, .job = 1, .rank = 2, .incarnation = 0x1020304, .tensor = 3, .partition = 12, .term =
      5, .round = 40, .status = 15, .total_bytes = 11, .payload_bytes = 11, .plan_version = 9},
     "534c4331010c0000010000000200000004030201030000000c00000005000000"
     "28000000000000000000000000000f000b000000000000000000000000000000"
     "0b00000000000000000000000000000000000000000000000000000000000000"
     "000000000000000009000000000000000000000000000000b8470a2001012cbc"},
    {{.type = FrameType::kPartial, .job = 1, .rank = 1, .incarnation = 0x1020304, .round = 40, .total_bytes = 56,
      .payload_bytes = 56, .aux = 1, .plan_version = 9},
     "534c4331010d0000010000000100000004030201000000000000000000000000"
     "2800000000000000000000000000000038000000000000000000000000000000"
     "3800000000000000000000000000000000000000000000000000000001000000"
     "000000000000000009000000000000000000000000000000d3c5aae4413f9c25"},
    {{.type = FrameType::kVerdict, .job = 1, .incarnation = 0x1020304, .round = 40, .total_bytes = 36, .payload_bytes
      = 36, .aux = 1, .plan_version = 9},
     "534c4331010e0000010000000000000004030201000000000000000000000000"
     "2800000000000000000000000000000024000000000000000000000000000000"
     "2400000000000000000000000000000000000000000000000000000001000000"
     "0000000000000000090000000000000000000000000000005d2ee13fb374b998"},
    {{.type = FrameType::kBatch, .total_bytes = 264, .payload_bytes = 264, .aux = 2},
     "534c4331010f0000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000008010000000000000000000000000000"
     "0801000000000000000000000000000000000000000000000000000002000000"
     "000000000000000000000000000000000000000000000000778558d8992f8861"},
    {{.type = FrameType::kPing, .aux64 = 0xffeeddccbbaa9988},
     "534c433101100000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000000000000"
     "8899aabbccddeeff00000000000000000000000000000000d3c2122420ce8685"},
    {{.type = FrameType::kPong, .aux64 = 0xffeeddccbbaa9988},
     "534c433101110000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000000000000000000000000000000000000"
     "8899aabbccddeeff00000000000000000000000000000000f2a0433547cf0b3e"},
    {{.type = FrameType::kTransport, .total_bytes = 8, .payload_bytes = 8, .aux = 3, .aux64 = 1},
     "534c433101120000000000000000000000000000000000000000000000000000"
     "0000000000000000000000000000000008000000000000000000000000000000"
     "0800000000000000000000000000000000000000000000000000000003000000"
     "01000000000000000000000000000000000000000000000054f5bd72c176a2a4"},
};

TEST(WireTest, EachTypeHasItsGoldenBytes) {
  for (const Golden& golden : kGolden) {
    SCOPED_TRACE(DebugString(golden.header));
    EXPECT_EQ(EncodedHex(golden.header), golden.hex);
    const absl::StatusOr<FrameHeader> decoded = DecodeHeader(FromHex(golden.hex).data());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->type, golden.header.type);
    EXPECT_EQ(EncodedHex(*decoded), golden.hex);
  }
}

TEST(WireTest, GoldenBytesCoverEveryType) {
  ASSERT_EQ(std::size(kGolden), size_t{kMaxFrameType});
  for (size_t i = 0; i < std::size(kGolden); ++i) {
    EXPECT_EQ(static_cast<size_t>(kGolden[i].header.type), i + 1);
    EXPECT_NE(FrameTypeName(kGolden[i].header.type), "UNKNOWN");
  }
}

TEST(WireTest, HelloHasItsGoldenBytes) {
  const Hello hello{.role = PeerRole::kWorker, .job = 7, .job_uid = 0x0807060504030201, .index = 3, .lane = 0,
                    .incarnation = 0x01020304, .connection = 1, .name = "ab"};
  const char* hex = "0100000007000000010203040506070803000000000000000403020101000000020000006162";
  EXPECT_EQ(Hex(EncodeHello(hello)), hex);
  const absl::StatusOr<Hello> decoded = DecodeHello(FromHex(hex));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Hex(EncodeHello(*decoded)), hex);
  EXPECT_EQ(DebugString(*decoded), "worker 3 (ab)");
}

TEST(WireTest, HelloRefusesWrongSizesAndRoles) {
  Hello hello{.role = PeerRole::kServer, .name = std::string(300, 'x')};
  std::vector<std::byte> bytes = EncodeHello(hello);
  EXPECT_EQ(bytes.size(), kMaxHelloBytes);
  ASSERT_TRUE(DecodeHello(bytes).ok());
  EXPECT_EQ(DecodeHello(bytes)->name.size(), kMaxHelloNameBytes);
  EXPECT_FALSE(DecodeHello(ConstBytes(bytes).first(bytes.size() - 1)).ok());
  EXPECT_FALSE(DecodeHello(ConstBytes(bytes).first(kHelloFixedBytes - 1)).ok());
  EXPECT_FALSE(DecodeHello({}).ok());
  StoreLe(bytes.data() + 32, uint32_t{0xFFFFFFFF});
  EXPECT_FALSE(DecodeHello(bytes).ok());
  hello.role = PeerRole::kUnknown;
  EXPECT_FALSE(DecodeHello(EncodeHello(hello)).ok());
}

TEST(WireTest, AnotherVersionIsNamedBeforeAnythingElseIsRead) {
  std::byte bytes[kHeaderBytes];
  EncodeHeader({}, bytes);
  bytes[4] = std::byte{9};
  const absl::Status status = DecodeHeader(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("version 9"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("version 1"), std::string::npos) << status;
}

TEST(WireTest, EveryFlippedBitIsRefused) {
  std::byte bytes[kHeaderBytes];
  EncodeHeader(kGolden[4].header, bytes);
  for (size_t bit = 0; bit < kHeaderBytes * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(DecodeHeader(bytes).ok()) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_TRUE(DecodeHeader(bytes).ok());
}

TEST(WireTest, StripeMustLieInsideItsMessage) {
  const auto decode = [](uint64_t total, uint64_t offset, uint32_t bytes) {
    std::byte out[kHeaderBytes];
    EncodeHeader({.type = FrameType::kPush, .total_bytes = total, .stripe_offset = offset, .payload_bytes = bytes}, out);
    return DecodeHeader(out).ok();
  };
  EXPECT_TRUE(decode(100, 0, 100));
  EXPECT_TRUE(decode(100, 90, 10));
  EXPECT_TRUE(decode(100, 100, 0));
  EXPECT_FALSE(decode(100, 91, 10));
  EXPECT_FALSE(decode(100, 0, 101));
  EXPECT_FALSE(decode(100, 101, 0));
  EXPECT_FALSE(decode(100, UINT64_MAX, 1));  // the sum wraps round
  EXPECT_FALSE(decode(0, 0, 1));
}

TEST(WireTest, RandomFieldsComeBack) {
  PhiloxRandom random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto u64 = [&] { return uint64_t{random()} << 32 | random(); };
    FrameHeader h;
    h.type = static_cast<FrameType>(1 + random.Below(kMaxFrameType));
    h.flags = static_cast<uint16_t>(random());
    h.job = random(), h.rank = random(), h.incarnation = random(), h.tensor = random(), h.partition = random();
    h.term = random(), h.round = u64(), h.attempt = random(), h.codec = static_cast<uint16_t>(random());
    h.status = static_cast<uint16_t>(random());
    h.payload_bytes = random(), h.stripe_offset = u64() >> 1, h.total_bytes = h.stripe_offset + h.payload_bytes;
    h.elements = random(), h.slot = u64(), h.reply_slot = u64(), h.rate_bits = random(), h.aux = random();
    h.aux64 = u64(), h.plan_version = u64(), h.payload_hash = u64();
    std::byte bytes[kHeaderBytes];
    EncodeHeader(h, bytes);
    const absl::StatusOr<FrameHeader> decoded = DecodeHeader(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(EncodedHex(*decoded), Hex(bytes));
    EXPECT_EQ(decoded->round, h.round);
    EXPECT_EQ(decoded->slot, h.slot);
  }
}

TEST(WireTest, RandomBytesAreRefusedWithoutHarm) {
  PhiloxRandom random(2);
  for (int i = 0; i < 5000; ++i) {
    std::vector<std::byte> bytes(kHeaderBytes + random.Below(600));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (i % 2 == 0) {  // past the first checks
      StoreLe(bytes.data(), kMagic);
      bytes[4] = std::byte{kWireVersion};
    }
    EXPECT_FALSE(DecodeHeader(bytes.data()).ok());
    EXPECT_FALSE(ForEachInBatch({.type = FrameType::kBatch, .total_bytes = bytes.size(), .aux = 1}, bytes,
                                [](const FrameHeader&, ConstBytes) { ADD_FAILURE(); })
                     .ok());
    (void)DecodeHello(bytes).ok();
  }
}

TEST(WireTest, BatchKeepsFramesInOrder) {
  BatchBuilder builder;
  EXPECT_TRUE(builder.empty());
  PhiloxRandom random(3);
  std::vector<std::string> payloads;
  for (uint32_t i = 0; i < 50; ++i) {
    payloads.push_back(std::string(random.Below(40), static_cast<char>('a' + i % 26)));
    builder.Add({.type = FrameType::kPush, .flags = kFlagHash, .partition = i}, Text(payloads.back()));
  }
  EXPECT_EQ(builder.count(), 50u);
  auto [header, payload] = builder.Take();
  EXPECT_TRUE(builder.empty());
  EXPECT_EQ(builder.bytes(), 0u);
  EXPECT_EQ(header.type, FrameType::kBatch);
  EXPECT_EQ(header.payload_bytes, payload.size());
  EXPECT_EQ(payload.size() % 8, 0u);
  uint32_t next = 0;
  ASSERT_TRUE(ForEachInBatch(header, payload, [&](const FrameHeader& inner, ConstBytes bytes) {
                EXPECT_EQ(inner.partition, next);
                EXPECT_FALSE(inner.has(kFlagHash));
                EXPECT_EQ(inner.total_bytes, payloads[next].size());
                EXPECT_EQ(ToString(bytes), payloads[next]);
                ++next;
              }).ok());
  EXPECT_EQ(next, 50u);
}

TEST(WireTest, BatchHasItsGoldenBytes) {
  BatchBuilder builder;
  builder.Add(kGolden[3].header, {});
  builder.Add(kGolden[11].header, Text("bad payload"));
  auto [header, payload] = builder.Take();
  EXPECT_EQ(header.aux, 2u);
  EXPECT_EQ(Hex(payload), std::string(kGolden[3].hex) + kGolden[11].hex + "626164207061796c6f61640000000000");
}

TEST(WireTest, AnnounceInBatchKeepsItsTotal) {
  BatchBuilder builder;
  builder.Add({.type = FrameType::kAnnounce, .total_bytes = 262144}, {});
  auto [header, payload] = builder.Take();
  uint64_t total = 0;
  ASSERT_TRUE(ForEachInBatch(header, payload, [&](const FrameHeader& inner, ConstBytes) {
                total = inner.total_bytes;
              }).ok());
  EXPECT_EQ(total, 262144u);
}

TEST(WireTest, BadBatchesAreRefusedAndEarlierFramesStand) {
  BatchBuilder builder;
  builder.Add({.type = FrameType::kState, .partition = 1}, {});
  builder.Add({.type = FrameType::kPush, .partition = 2}, Text("abc"));
  auto [header, payload] = builder.Take();
  int delivered = 0;
  const auto run = [&](FrameHeader outer, std::vector<std::byte> bytes) {
    delivered = 0;
    return ForEachInBatch(outer, bytes, [&](const FrameHeader&, ConstBytes) { ++delivered; });
  };
  EXPECT_TRUE(run(header, payload).ok());
  EXPECT_EQ(delivered, 2);

  FrameHeader outer = header;
  outer.aux = 1;
  EXPECT_FALSE(run(outer, payload).ok());
  EXPECT_EQ(delivered, 1);
  outer.aux = 3;
  EXPECT_FALSE(run(outer, payload).ok());
  EXPECT_EQ(delivered, 2);
  outer = header;
  outer.slot = 4;
  EXPECT_FALSE(run(outer, payload).ok());
  EXPECT_EQ(delivered, 0);

  outer = header;
  std::vector<std::byte> cut(payload.begin(), payload.end() - 8);
  outer.total_bytes = cut.size();
  EXPECT_FALSE(run(outer, cut).ok());
  EXPECT_EQ(delivered, 1);

  std::vector<std::byte> dirty = payload;
  ASSERT_FALSE(dirty.empty());
  dirty[dirty.size() - 1] = std::byte{1};
  EXPECT_FALSE(run(header, dirty).ok());
  EXPECT_EQ(delivered, 1);

  for (const FrameType type : {FrameType::kBatch, FrameType::kHello, FrameType::kPing, FrameType::kTransport}) {
    std::vector<std::byte> nested = payload;
    EncodeHeader({.type = type}, nested.data() + kHeaderBytes);
    EXPECT_FALSE(run(header, nested).ok());
    EXPECT_EQ(delivered, 1);
  }
}

TEST(WireTest, DebugStringIsForPeople) {
  EXPECT_EQ(DebugString(FrameHeader{.type = FrameType::kPush, .job = 1, .rank = 0, .tensor = 3, .partition = 12,
                                    .round = 40, .attempt = 1, .total_bytes = 262144, .payload_bytes = 65536}),
            "PUSH job 1 rank 0 tensor 3 partition 12 round 40 attempt 1 bytes 0+65536/262144");
}

TEST(AddressTest, ToStringNamesWhatThereIs) {
  EXPECT_EQ((Address{"10.0.0.1", 7000, "", ""}).ToString(), "10.0.0.1:7000");
  EXPECT_EQ((Address{"::1", 7000, "", ""}).ToString(), "[::1]:7000");
  EXPECT_EQ((Address{"", 0, "name", ""}).ToString(), "shm:@name");
  EXPECT_EQ((Address{"h", 1, "name", ""}).ToString(), "h:1 or shm:@name");
  EXPECT_EQ(Address{}.ToString(), "(no address)");
}

}  // namespace
}  // namespace sluice::transport
