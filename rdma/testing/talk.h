// Two processes in one, on a fabric in memory, that talk over one link: numbered frames with and without slots, both ways.
//
//   World world({.rails = 2});
//   world.Begin(300);                     // messages each way
//   ASSERT_TRUE(world.Until([&] { return world.b().received() > 100; }));
//   world.fabric.CutPath(...);
//   ASSERT_TRUE(world.Finish());          // everything has arrived
//
// Checked all the time: frames come in order, once and whole; memory whose slot was closed, and memory that was lent and
// has come back, is poisoned and nobody's any more.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "rdma/fake/fabric.h"
#include "rdma/verbs_driver.h"
#include "transport/loop.h"
#include "transport/multipath/multipath_endpoint.h"

namespace sluice::rdma::testing {

struct WorldOptions {
  int rails = 1;
  DriverOptions driver;                // what SmallTimes() has not set
  fake::FabricOptions fabric;
  fake::DeviceOptions device;          // name and address are replaced
  bool register_memory = true;
  double revoked = 0;                  // share of large messages whose slot is closed before its bytes are there
  size_t most_bytes = 100'000;         // of a large message
  uint64_t seed = 1;
};

// Blocks of memory that are used once and then poisoned; the oldest are used again, after a look at the poison.
class Blocks {
 public:
  Blocks(size_t count, size_t bytes, std::byte poison);
  std::byte* Take();
  void Poison(std::byte* block);
  void ExpectPoisoned() const;         // all that are not in use
  MutableBytes all() { return memory_; }

 private:
  void ExpectPoisoned(const std::byte* block) const;
  const size_t bytes_;
  const std::byte poison_;
  std::vector<std::byte> memory_;
  std::deque<std::byte*> free_;
};

class World;

// One end. Its messages: small frames, and large ones that are announced, granted a slot, and sent in two stripes.
class End final : public transport::Handler {
 public:
  End(World* world, int number);
  ~End() override;

  transport::MultipathEndpoint& endpoint() { return *endpoint_; }
  VerbsDriver& driver() { return *driver_; }
  fake::Host& host() { return *host_; }
  fake::PortName port(int rail = 0) const;
  size_t paths() const;                // RDMA paths that are up
  uint64_t chunks() const;             // that went over them, as far as they are still up
  std::string log() const { return log_; }
  size_t Logged(const std::string& text) const;   // how often
  uint64_t received() const { return received_; }
  bool up() const { return link_ != 0 && !down_.has_value(); }
  const std::optional<absl::Status>& down() const { return down_; }
  bool idle() const;                   // nothing is lent, granted or under way
  // The process ends: no word to anybody. Its host stays.
  void Die();

 private:
  friend class World;
  struct Outgoing {                    // a large message
    size_t bytes = 0;
    std::byte* block = nullptr;
    int lent = 0;
  };
  struct Incoming {
    transport::SlotId slot = 0;
    size_t bytes = 0, landed = 0;
    std::byte* block = nullptr;
    bool closing = false;
  };

  absl::Status Start();
  void Pump();
  void Say(transport::FrameHeader header, ConstBytes payload, uint64_t message, uint64_t cookie = 0);
  void Granted(uint64_t message, transport::SlotId slot);
  void CloseIncoming(uint64_t message);
  bool WasRevoked(uint64_t serial) const;   // a frame of the peer's that finds no slot any more
  bool HasAll() const;                      // that the peer has sent

  void OnUp(transport::LinkId link, const transport::Hello& peer) override;
  void OnDown(transport::LinkId link, const absl::Status& reason) override;
  void OnFrame(transport::LinkId link, const transport::FrameHeader& header, transport::Payload payload) override;
  void OnSent(transport::LinkId link, uint64_t cookie) override;
  void OnSlotClosed(transport::LinkId link, transport::SlotId slot) override;
  void OnWritable(transport::LinkId) override {}

  World* const world_;
  const int number_;
  std::mt19937_64 random_;
  fake::Host* host_ = nullptr;
  VerbsDriver* driver_ = nullptr;
  std::unique_ptr<transport::MultipathEndpoint> endpoint_;
  std::vector<std::shared_ptr<void>> registered_;
  std::string log_;
  transport::LinkId link_ = 0;
  std::optional<absl::Status> down_;
  Blocks sources_, slots_;

  uint64_t goal_ = 0, messages_ = 0, serial_ = 0, cookie_ = 0;
  std::map<uint64_t, uint64_t> message_of_;        // by serial, of frames for a slot
  std::map<uint64_t, Outgoing> outgoing_;
  std::map<uint64_t, uint64_t> lent_;              // cookie -> message
  std::map<uint64_t, std::vector<std::byte>> small_;
  std::map<uint64_t, Incoming> incoming_;
  std::set<uint64_t> revoked_;                     // messages of the peer's that have no slot any more
  uint64_t last_serial_ = 0, received_ = 0;
};

class World {
 public:
  explicit World(const WorldOptions& options = {});
  ~World();

  End& a() { return *ends_[0]; }       // connects
  End& b() { return *ends_[1]; }
  // So many more messages each way.
  void Begin(uint64_t messages);
  // Runs the loop until it is so. False: it never is (bounded by much more time than it takes).
  bool Until(const std::function<bool()>& done);
  bool UntilPaths(size_t count);       // RDMA paths, at both ends
  bool Finish();                       // all that was begun has arrived
  // After its Die: a new life, to which (or from which) there is a new link; b's only.
  void Revive();
  // Both processes end. Nothing is left on any device, and nothing was done that real libraries do not bear.
  void Close();

  fake::Fabric fabric;
  std::function<void()> each_look;     // what else happens between turns of the loop
  std::mt19937_64 random;
  size_t most_steps = 0;               // of a fabric in kStepped mode, between turns

 private:
  friend class End;
  void Look();

  WorldOptions options_;
  std::string folder_;
  const SteadyClock clock_;
  std::unique_ptr<transport::Loop> loop_;
  std::unique_ptr<End> ends_[2];
  int lives_ = 0;
  uint64_t pending_ = 0, looks_ = 0;
};

// Watchdog, reconnecting: as short as a test needs.
DriverOptions SmallTimes();

}  // namespace sluice::rdma::testing
