#include "transport/hello.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sluice::transport {

std::vector<std::byte> EncodeHello(const Hello& hello) {
  const size_t name_bytes = std::min(hello.name.size(), kMaxHelloNameBytes);
  std::vector<std::byte> out(kHelloFixedBytes + name_bytes);
  std::byte* p = out.data();
  StoreLe(p + 0, static_cast<uint32_t>(hello.role));
  StoreLe(p + 4, hello.job);
  StoreLe(p + 8, hello.job_uid);
  StoreLe(p + 16, hello.index);
  StoreLe(p + 20, hello.lane);
  StoreLe(p + 24, hello.incarnation);
  StoreLe(p + 28, hello.connection);
  StoreLe(p + 32, static_cast<uint32_t>(name_bytes));
  std::memcpy(p + kHelloFixedBytes, hello.name.data(), name_bytes);
  return out;
}

absl::StatusOr<Hello> DecodeHello(ConstBytes payload) {
  if (payload.size() < kHelloFixedBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("a hello of ", payload.size(), " bytes; at least ", kHelloFixedBytes, " are needed"));
  const std::byte* p = payload.data();
  const auto role = LoadLe<uint32_t>(p + 0);
  if (role != static_cast<uint32_t>(PeerRole::kWorker) && role != static_cast<uint32_t>(PeerRole::kServer))
    return absl::InvalidArgumentError(absl::StrCat("a hello from an unknown role ", role));
  Hello hello;
  hello.role = static_cast<PeerRole>(role);
  hello.job = LoadLe<uint32_t>(p + 4);
  hello.job_uid = LoadLe<uint64_t>(p + 8);
  hello.index = LoadLe<uint32_t>(p + 16);
  hello.lane = LoadLe<uint32_t>(p + 20);
  hello.incarnation = LoadLe<uint32_t>(p + 24);
  hello.connection = LoadLe<uint32_t>(p + 28);
  const auto name_bytes = LoadLe<uint32_t>(p + 32);
  if (name_bytes > kMaxHelloNameBytes || payload.size() != kHelloFixedBytes + name_bytes)
    return absl::InvalidArgumentError(absl::StrCat("a hello of ", payload.size(), " bytes whose name is said to have ",
                                                   name_bytes, " (at most ", kMaxHelloNameBytes, ")"));
  hello.name.assign(reinterpret_cast<const char*>(p) + kHelloFixedBytes, name_bytes);
  return hello;
}

std::string DebugString(const Hello& hello) {
  const char* role = hello.role == PeerRole::kWorker ? "worker" : hello.role == PeerRole::kServer ? "server" : "peer";
  std::string text = absl::StrCat(role, " ", hello.index);
  if (hello.role == PeerRole::kServer) absl::StrAppend(&text, " lane ", hello.lane);
  if (!hello.name.empty()) absl::StrAppend(&text, " (", absl::CHexEscape(hello.name), ")");
  return text;
}

}  // namespace sluice::transport
