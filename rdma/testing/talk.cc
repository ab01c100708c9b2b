#include "rdma/testing/talk.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"

namespace sluice::rdma::testing {
namespace {

using transport::FrameHeader;
using transport::FrameType;
using transport::Hello;
using transport::LinkId;
using transport::Payload;
using transport::PeerRole;
using transport::SlotId;

constexpr TimeNs kGiveUp = 60 * kSecond;
constexpr size_t kBlock = 128 << 10, kBlocks = 64;
constexpr size_t kLargeAtATime = 6, kSmallAtATime = 24;

// The n-th byte of what this end sends under this number.
std::byte ByteOf(int end, uint64_t number, size_t n) {
  return static_cast<std::byte>((number * 131 + n * 7 + (n >> 8) * 13 + static_cast<uint64_t>(end)) & 0x7f);
}

void Fill(MutableBytes bytes, int end, uint64_t number) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = ByteOf(end, number, i);
}

bool Holds(ConstBytes bytes, int end, uint64_t number, size_t offset) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != ByteOf(end, number, offset + i)) return false;
  }
  return true;
}

Hello HelloOf(int end) {
  return {.role = end == 0 ? PeerRole::kWorker : PeerRole::kServer, .job = 1, .incarnation = 1,
          .name = end == 0 ? "a" : "b"};
}

}  // namespace

DriverOptions SmallTimes() {
  DriverOptions options;
  options.watchdog = 50 * kMillisecond;
  options.spin = 0;
  options.queue_pair.sends = options.queue_pair.receives = 64;
  return options;
}

// ---- Blocks: no test's byte has its highest bit set, poison has ----

Blocks::Blocks(size_t count, size_t bytes, std::byte poison) : bytes_(bytes), poison_(poison), memory_(count * bytes, poison) {
  for (size_t i = 0; i < count; ++i) free_.push_back(memory_.data() + i * bytes);
}

std::byte* Blocks::Take() {
  if (free_.empty()) {
    ADD_FAILURE() << "more memory is in use than a test should need";
    return memory_.data();
  }
  std::byte* const block = free_.front();
  free_.pop_front();
  ExpectPoisoned(block);
  return block;
}

void Blocks::Poison(std::byte* block) {
  std::fill_n(block, bytes_, poison_);
  free_.push_back(block);
}

void Blocks::ExpectPoisoned(const std::byte* block) const {
  EXPECT_TRUE(std::all_of(block, block + bytes_, [&](std::byte b) { return b == poison_; }))
      << "memory was written that was nobody's any more";
}

void Blocks::ExpectPoisoned() const {
  for (const std::byte* block : free_) ExpectPoisoned(block);
}

// ---- End ----

End::End(World* world, int number)
    : world_(world), number_(number), random_(world->options_.seed * 2 + static_cast<uint64_t>(number)),
      sources_(kBlocks, kBlock, std::byte{0xdd}), slots_(kBlocks, kBlock, std::byte{0xee}) {}

End::~End() { Die(); }

void End::Die() {
  registered_.clear();
  endpoint_.reset();
  driver_ = nullptr;
}

fake::PortName End::port(int rail) const { return {host_, absl::StrCat("fake", rail), 1}; }

absl::Status End::Start() {
  const WorldOptions& options = world_->options_;
  const int life = ++world_->lives_;
  if (host_ == nullptr) {
    host_ = &world_->fabric.AddHost(absl::StrCat("host", life));
    for (int i = 0; i < options.rails; ++i) {
      fake::DeviceOptions device = options.device;
      device.name = absl::StrCat("fake", i);
      device.address = absl::StrCat("10.0.", i, ".", life);
      host_->AddDevice(device);
    }
  }
  DriverOptions driver_options = options.driver;
  driver_options.gather.sysfs = absl::StrCat(world_->folder_, "/", life);
  driver_options.gather.dev = absl::StrCat(world_->folder_, "/dev");
  std::filesystem::create_directories(driver_options.gather.sysfs);
  std::filesystem::create_directories(driver_options.gather.dev + "/infiniband");
  host_->WriteSysfs(driver_options.gather.sysfs);
  driver_options.gather.addresses = host_->Addresses();
  // Where ports go when they come back elsewhere.
  for (auto& [netdev, addresses] : *driver_options.gather.addresses) {
    Gid moved = addresses.front();
    moved[15] = static_cast<uint8_t>(moved[15] + 100);
    addresses.push_back(moved);
  }
  const auto log = [this](const std::string& text) { absl::StrAppend(&log_, text, "\n"); };
  driver_options.log = log;
  SLUICE_ASSIGN_OR_RETURN(auto driver,
                          VerbsDriver::Create(world_->loop_.get(), &world_->clock_,
                                              std::shared_ptr<Verbs>(std::shared_ptr<void>(), host_), driver_options));
  driver_ = driver.get();
  transport::MultipathOptions endpoint;
  endpoint.tcp.self = HelloOf(number_);
  endpoint.driver = std::move(driver);
  endpoint.chunk_bytes = 16 << 10;
  endpoint.reconnect = 5 * kMillisecond;
  endpoint.log = log;
  SLUICE_ASSIGN_OR_RETURN(endpoint_, transport::MultipathEndpoint::Create(world_->loop_.get(), &world_->clock_, std::move(endpoint)));
  endpoint_->SetHandler(this);
  if (options.register_memory) {
    registered_.push_back(endpoint_->Register(sources_.all()));
    registered_.push_back(endpoint_->Register(slots_.all()));
  }
  return absl::OkStatus();
}

size_t End::paths() const {
  size_t found = 0;
  if (endpoint_ == nullptr) return found;
  for (const transport::PathReport& path : endpoint_->Paths()) found += path.link == link_ && path.kind == "rdma" ? 1 : 0;
  return found;
}

uint64_t End::chunks() const {
  uint64_t chunks = 0;
  for (const transport::PathReport& path : endpoint_->Paths()) chunks += path.kind == "rdma" ? path.state.chunks : 0;
  return chunks;
}

size_t End::Logged(const std::string& text) const {
  size_t count = 0;
  for (size_t at = log_.find(text); at != std::string::npos; at = log_.find(text, at + 1)) ++count;
  return count;
}

bool End::idle() const { return messages_ == goal_ && outgoing_.empty() && lent_.empty() && incoming_.empty(); }

void End::Say(FrameHeader header, ConstBytes payload, uint64_t message, uint64_t cookie) {
  header.job = 1;
  header.aux64 = ++serial_;
  header.round = message;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  if (header.total_bytes == 0) header.total_bytes = payload.size();
  if (header.type == FrameType::kPush) message_of_[serial_] = message;
  if (cookie != 0) lent_[cookie] = message;
  endpoint_->Send(link_, header, payload, cookie);
}

void End::Pump() {
  if (!up() || endpoint_ == nullptr) return;
  while (messages_ < goal_ && endpoint_->Writable(link_) && outgoing_.size() < kLargeAtATime && small_.size() < kSmallAtATime) {
    const uint64_t message = ++messages_;
    FrameHeader header;
    if (random_() % 3 == 0) {
      Outgoing& large = outgoing_[message];
      large.bytes = 1 + random_() % world_->options_.most_bytes;
      header.type = FrameType::kAnnounce;
      header.total_bytes = large.bytes;
      Say(header, {}, message);
      continue;
    }
    header.type = FrameType::kState;
    std::vector<std::byte> payload(random_() % (random_() % 8 == 0 ? 20'000 : 600));
    Fill(payload, number_, message);
    if (random_() % 2 == 0) {
      Say(header, payload, message);
    } else {
      const std::vector<std::byte>& kept = small_[++cookie_] = std::move(payload);
      Say(header, kept, message, cookie_);
    }
  }
  // Slots that are taken away while their bytes are on their way.
  for (auto& [message, in] : incoming_) {
    if (in.closing || in.landed == in.bytes || world_->options_.revoked == 0) continue;
    if (std::uniform_real_distribution<double>()(random_) >= world_->options_.revoked) continue;
    revoked_.insert(message);
    CloseIncoming(message);
    break;
  }
}

void End::Granted(uint64_t message, SlotId slot) {
  Outgoing& large = outgoing_.at(message);
  large.block = sources_.Take();
  Fill({large.block, large.bytes}, number_, message);
  const size_t half = large.bytes / 2;
  for (const auto& [offset, bytes] : {std::pair{size_t{0}, half}, {half, large.bytes - half}}) {
    if (bytes == 0) continue;
    FrameHeader header;
    header.type = FrameType::kPush;
    header.slot = slot;
    header.stripe_offset = offset;
    header.total_bytes = large.bytes;
    ++large.lent;
    Say(header, {large.block + offset, bytes}, message, ++cookie_);
  }
}

void End::CloseIncoming(uint64_t message) {
  Incoming& in = incoming_.at(message);
  in.closing = true;
  if (!endpoint_->CloseSlot(link_, in.slot)) return;
  slots_.Poison(in.block);
  incoming_.erase(message);
}

bool End::WasRevoked(uint64_t serial) const {
  const End& peer = *world_->ends_[1 - number_];
  const auto of = peer.message_of_.find(serial);
  return of != peer.message_of_.end() && revoked_.contains(of->second);
}

bool End::HasAll() const {
  const uint64_t sent = world_->ends_[1 - number_]->serial_;
  for (uint64_t serial = last_serial_ + 1; serial <= sent; ++serial) {
    if (!WasRevoked(serial)) return false;
  }
  return true;
}

void End::OnUp(LinkId link, const Hello&) {
  link_ = link;
  down_.reset();
}

void End::OnDown(LinkId link, const absl::Status& reason) {
  EXPECT_EQ(link, link_);
  EXPECT_TRUE(lent_.empty()) << "the link is down before all that was lent has come back";
  down_ = reason;
  for (auto& [message, in] : incoming_) slots_.Poison(in.block);
  for (auto& [message, out] : outgoing_) {
    if (out.block != nullptr) sources_.Poison(out.block);
  }
  incoming_.clear();
  outgoing_.clear();
}

void End::OnFrame(LinkId, const FrameHeader& header, Payload payload) {
  EXPECT_GT(header.aux64, last_serial_) << "a frame came twice, or late";
  for (uint64_t serial = last_serial_ + 1; serial < header.aux64; ++serial)
    EXPECT_TRUE(WasRevoked(serial)) << "frame " << serial << " is missing";
  last_serial_ = header.aux64;
  ++received_;
  const uint64_t message = header.round;
  switch (header.type) {
    case FrameType::kState:
      EXPECT_TRUE(Holds(payload.bytes(), 1 - number_, message, 0)) << "message " << message;
      return;
    case FrameType::kAnnounce: {
      Incoming& in = incoming_[message];
      in.bytes = header.total_bytes;
      in.block = slots_.Take();
      in.slot = endpoint_->OpenSlot(link_, {in.block, in.bytes});
      FrameHeader grant;
      grant.type = FrameType::kGrant;
      grant.reply_slot = in.slot;
      Say(grant, {}, message);
      return;
    }
    case FrameType::kGrant: return Granted(message, header.reply_slot);
    case FrameType::kPush: {
      const auto in = incoming_.find(message);
      if (in == incoming_.end() || in->second.closing) {
        ADD_FAILURE() << "a frame for a slot that was closed";
        return;
      }
      EXPECT_TRUE(Holds(payload.bytes(), 1 - number_, message, header.stripe_offset)) << "message " << message;
      EXPECT_EQ(payload.data(), in->second.block + header.stripe_offset);
      in->second.landed += payload.size();
      if (in->second.landed == in->second.bytes) CloseIncoming(message);
      return;
    }
    default: ADD_FAILURE() << "a frame that nobody sent";
  }
}

void End::OnSent(LinkId, uint64_t cookie) {
  const auto lent = lent_.find(cookie);
  if (lent == lent_.end()) {
    ADD_FAILURE() << "a payload came back that was not lent";
    return;
  }
  const auto out = outgoing_.find(lent->second);
  lent_.erase(lent);
  if (small_.erase(cookie) > 0 || out == outgoing_.end()) return;
  if (--out->second.lent > 0) return;
  sources_.Poison(out->second.block);
  outgoing_.erase(out);
}

void End::OnSlotClosed(LinkId, SlotId slot) {
  for (auto& [message, in] : incoming_) {
    if (in.slot != slot) continue;
    EXPECT_TRUE(in.closing);
    slots_.Poison(in.block);
    incoming_.erase(message);
    return;
  }
  ADD_FAILURE() << "a slot is closed that was not being closed";
}

// ---- World ----

World::World(const WorldOptions& options) : fabric(options.fabric), random(options.seed), options_(options) {
  char folder[] = "/tmp/sluice-rdma-XXXXXX";
  folder_ = mkdtemp(folder);
  auto loop = transport::Loop::Create();
  EXPECT_TRUE(loop.ok()) << loop.status();
  loop_ = *std::move(loop);
  for (int number : {0, 1}) {
    ends_[number] = std::unique_ptr<End>(new End(this, number));
    const absl::Status status = ends_[number]->Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  a().endpoint().Connect({.host = "127.0.0.1", .port = b().endpoint().port(), .unix_socket = {}, .host_id = {}}, HelloOf(0));
}

World::~World() {
  ends_[0].reset();
  ends_[1].reset();
  std::filesystem::remove_all(folder_);
}

void World::Begin(uint64_t messages) {
  for (auto& end : ends_) end->goal_ += messages;
}

void World::Look() {
  if (most_steps > 0) fabric.Step(random() % (most_steps + 1));
  for (auto& end : ends_) end->Pump();
  if (each_look) each_look();
}

bool World::Until(const std::function<bool()>& done) {
  const TimeNs begin = clock_.Now();
  bool reached = done();
  std::function<void()> poll = [&] {
    Look();
    reached = done();
    if (reached || ::testing::Test::HasFailure() || clock_.Now() - begin > kGiveUp) {
      loop_->Stop();
      return;
    }
    pending_ = loop_->After(++looks_ % 8 == 0 ? 50 * kMicrosecond : 0, poll);
  };
  if (reached) return true;
  pending_ = loop_->After(0, poll);
  loop_->Run();
  loop_->CancelTimer(pending_);
  return reached;
}

bool World::UntilPaths(size_t count) {
  return Until([this, count] { return a().paths() == count && b().paths() == count; });
}

bool World::Finish() {
  const bool done = Until([this] { return a().idle() && b().idle() && a().HasAll() && b().HasAll(); });
  for (auto& end : ends_) {
    end->sources_.ExpectPoisoned();
    end->slots_.ExpectPoisoned();
    if (done) continue;
    ADD_FAILURE() << "end " << end->number_ << ": " << end->messages_ << " of " << end->goal_ << " messages, " << end->outgoing_.size()
                  << " large ones out, " << end->incoming_.size() << " in, " << end->lent_.size() << " lent, serial "
                  << end->serial_ << ", last received " << end->last_serial_ << ", down: " << end->down_.value_or(absl::OkStatus())
                  << ", its log:\n" << end->log_.substr(end->log_.size() - std::min<size_t>(end->log_.size(), 3000));
  }
  return done;
}

void World::Revive() {
  fake::Host* const host = b().host_;
  ends_[1] = std::unique_ptr<End>(new End(this, 1));
  b().host_ = host;
  const absl::Status status = b().Start();
  ASSERT_TRUE(status.ok()) << status;
  End& other = a();
  other.link_ = 0;
  other.goal_ = other.messages_ = other.serial_ = other.last_serial_ = 0;
  other.message_of_.clear();
  other.small_.clear();
  other.revoked_.clear();
  other.endpoint().Connect({.host = "127.0.0.1", .port = b().endpoint().port(), .unix_socket = {}, .host_id = {}}, HelloOf(0));
}

void World::Close() {
  for (auto& end : ends_) end->Die();
  EXPECT_EQ(fabric.live(), fake::Live{}) << fabric.live().queue_pairs << " queue pairs, " << fabric.live().regions
                                         << " regions are left";
  for (const std::string& misuse : fabric.misuses()) ADD_FAILURE() << misuse;
}

}  // namespace sluice::rdma::testing
