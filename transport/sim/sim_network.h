// A network on a simulated, seeded event queue: endpoints for the data plane, in-order channels for the control plane.
//
// One thread, no real time: the clock moves from event to event. Everything that is left to chance comes from the seed,
// so a run repeats to the bit. Faults are drawn for each frame; a cut or a crash is an event that a test calls for.
// Names: an endpoint or a channel's end is called "node" or "node/part"; cuts and crashes are of nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/philox.h"
#include "transport/transport.h"

namespace sluice::transport {

class SimEndpoint;

struct SimFaults {
  TimeNs min_delay = 20 * kMicrosecond;   // one way, for each frame
  TimeNs max_delay = 200 * kMicrosecond;
  // Probabilities. HELLO and WELCOME are never lost: the connect fails instead.
  double drop = 0;             // of a frame
  double duplicate = 0;        // of a frame: it comes twice
  double reorder = 0;          // of a frame: it may overtake and be overtaken
  double reset = 0;            // that a frame takes its link down
  double connect_failure = 0;  // of a connect
  double slow_write = 0;       // that a frame lands in its slot in two steps, so that CloseSlot finds it in the middle
  bool by_reference = false;   // all nodes share memory: payloads from Allocate arrive by reference
};

struct SimStats {
  uint64_t events = 0, frames = 0, dropped = 0, duplicated = 0, resets = 0, connects = 0, refused = 0;
  uint64_t closed_slot_drops = 0, messages = 0;
  // Payloads that were not the same at OnSent as when they were read: the sender wrote to lent memory (or an answer
  // landed in it, where a caller gave one piece of memory for both).
  uint64_t changed_while_lent = 0;
};

// One end of a control channel.
using ChannelEnd = uint64_t;  // never reused; 0 = none

class ChannelHandler {
 public:
  virtual ~ChannelHandler() = default;
  // At the server: somebody has dialled; at the client: the channel stands.
  virtual void OnChannelUp(ChannelEnd end, const std::string& peer) = 0;
  // Also the outcome of a Dial that failed. No later callback names the end.
  virtual void OnChannelDown(ChannelEnd end, const absl::Status& status) = 0;
  virtual void OnChannelMessage(ChannelEnd end, std::string message) = 0;
};

class SimNetwork {
 public:
  SimNetwork(uint64_t seed, SimFaults faults, ManualClock* clock);
  ~SimNetwork();  // after its endpoints
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // Reached by Address{.host = name}. A name is free again after a crash.
  std::unique_ptr<SimEndpoint> CreateEndpoint(const std::string& name, EndpointLimits limits = {});

  // --- time
  void Schedule(TimeNs delay, std::function<void()> fn);
  bool Step();                  // runs the next event; false if there is none
  void RunUntil(TimeNs time);   // events up to then, and sets the clock there
  void RunFor(TimeNs time) { RunUntil(clock_->Now() + time); }
  TimeNs Now() const { return clock_->Now(); }

  // --- faults
  void set_faults(const SimFaults& faults) { faults_ = faults; }
  const SimFaults& faults() const { return faults_; }
  // Links and channels between two nodes break, and none comes up between them for this long.
  void Cut(const std::string& a, const std::string& b, TimeNs duration);
  bool IsCut(const std::string& a, const std::string& b) const;
  // What `from` sends to `to` over links is lost for this long, and no link comes up between them; the other direction works.
  // After kDeafAfter of that the links break, as pings without an answer break them. (Channels are not touched.)
  void CutOneWay(const std::string& from, const std::string& to, TimeNs duration);
  bool IsCutOneWay(const std::string& from, const std::string& to) const;
  static constexpr TimeNs kDeafAfter = 300 * kMillisecond;
  // Breaks the links between two nodes once.
  void ResetLinks(const std::string& a, const std::string& b);
  // The node's endpoints and channel ends die without a further callback; peers hear of it a little later. What it lent
  // is not read any more after the call, so the memory may be freed then.
  void Crash(const std::string& node);

  // --- control channels: reliable and in order, until they break
  void Serve(const std::string& name, ChannelHandler* handler);  // null: stops
  ChannelEnd Dial(const std::string& from, const std::string& to, ChannelHandler* handler);
  void SendMessage(ChannelEnd end, std::string message);         // dropped if the channel is down
  // In order: the peer gets what was sent before, then OnChannelDown with this status; this end hears nothing more but its
  // own OnChannelDown.
  void CloseChannel(ChannelEnd end, const absl::Status& status);

  PhiloxRandom& random() { return random_; }
  TimeNs RandomDelay();
  SimStats& stats() { return stats_; }
  // Lines for a readable trace; null = none.
  void set_trace(std::function<void(const std::string&)> trace) { trace_ = std::move(trace); }
  bool tracing() const { return trace_ != nullptr; }
  void Trace(const std::string& line);

  static std::string NodeOf(const std::string& name) { return name.substr(0, name.find('/')); }

 private:
  friend class SimEndpoint;
  struct Channel;
  struct Event {
    TimeNs time;
    uint64_t order;
    std::function<void()> fn;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  // Memory from Allocate, for ByReference. Outlives the network in the deleters of that memory.
  struct Memory {
    std::map<const std::byte*, std::pair<size_t, std::weak_ptr<std::byte>>> pieces;
  };

  void BreakChannel(const std::shared_ptr<Channel>& channel, const absl::Status& status);
  std::shared_ptr<Channel> FindChannel(ChannelEnd end) const;

  PhiloxRandom random_;
  SimFaults faults_;
  ManualClock* const clock_;
  SimStats stats_;
  std::function<void(const std::string&)> trace_;
  std::vector<Event> events_;  // a heap
  uint64_t next_order_ = 0;
  std::map<std::string, SimEndpoint*> endpoints_;
  std::map<std::pair<std::string, std::string>, TimeNs> cuts_;  // nodes in order -> until
  std::map<std::pair<std::string, std::string>, TimeNs> one_way_;   // nodes: from, to -> until
  std::map<std::string, ChannelHandler*> servers_;
  std::map<uint64_t, std::shared_ptr<Channel>> channels_;       // by end / 2
  uint64_t next_channel_ = 1;
  std::shared_ptr<Memory> memory_;
  const std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // for payloads that outlive the network
};

}  // namespace sluice::transport
