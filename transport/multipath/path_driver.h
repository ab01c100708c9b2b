// What makes paths of another kind than TCP: the verbs in rdma/, made-up ones in tests. The endpoint carries its messages
// between the two ends (proto/rails.proto) and asks it to send; it tells what came.
//
// On the endpoint's loop, like everything here. Calls of the owner come from the loop's events only, never from inside a
// call of the driver's, Tick and Flush excepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "transport/multipath/link.h"
#include "transport/multipath/packet.h"
#include "transport/multipath/path_totals.h"
#include "transport/transport.h"

namespace sluice::transport::multipath {

class PathDriver {
 public:
  struct NewPath {
    PathId path = 0;
    PathInfo info;
    std::string rail;   // of this host: "mlx5_0:1"
    std::string what;   // for people
    bool lost = false;  // it broke here before the peer said that it was up: it is lost at once
  };
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void PathPacket(LinkId link, PathId path, ConstBytes packet) = 0;
    virtual void PathChunk(LinkId link, PathId path, uint32_t tag) = 0;
    virtual void PathDone(LinkId link, PathId path, uint64_t token) = 0;
    // A path of an exchange that has ended is up at this end. The peer may have sent over it before.
    virtual void PathUp(LinkId link, const NewPath& path) = 0;
    // It has been destroyed, perhaps before it was up here; everything that came over it before has been told.
    virtual void PathBroken(LinkId link, PathId path, const absl::Status& why) = 0;
    // It has been destroyed, and what came over it last is not known: the link must end, and its streams begin again.
    virtual void PathDoubtful(LinkId link, PathId path, const absl::Status& why) = 0;
    // A rail came, or came back: worth another offer.
    virtual void PathsPossible() = 0;
    // The burst of events is over: time to send.
    virtual void PathsRead() = 0;
  };
  // A path, for people and metrics.
  struct Report {
    PathId path = 0;
    std::string rail;             // "mlx5_0:1"
    std::string peer;             // its address
    uint64_t packets_out = 0, packets_in = 0, writes = 0, bytes_out = 0, notices_in = 0;
    TimeNs oldest_wait = 0;
  };

  virtual ~PathDriver() = default;
  virtual void SetOwner(Owner* owner) = 0;

  // Is there a rail to make paths on?
  virtual bool Usable() const = 0;
  // The exchange, steps 1 to 4 of proto/rails.proto. A message that cannot be read is an error, which ends the link.
  virtual std::string Offer(LinkId link, uint32_t attempt) = 0;
  virtual absl::StatusOr<std::string> Propose(LinkId link, uint32_t job, ConstBytes offer,
                                              const std::function<PathId()>& next_path) = 0;
  virtual absl::StatusOr<std::string> Accept(LinkId link, uint32_t job, ConstBytes proposal) = 0;
  virtual absl::StatusOr<std::string> Conclude(LinkId link, ConstBytes acceptance) = 0;
  virtual absl::StatusOr<std::vector<NewPath>> Ready(LinkId link, ConstBytes ready) = 0;
  // Fewer paths are up on this link than there could be.
  virtual bool Wanting(LinkId link) const = 0;

  virtual std::vector<SlotTarget> Targets(LinkId link, uint32_t job, MutableBytes memory) = 0;
  virtual bool CanSendFrom(LinkId link, PathId path, ConstBytes payload) = 0;
  virtual size_t Room(LinkId link, PathId path) = 0;
  virtual uint32_t ReceivesPosted(LinkId link, PathId path) = 0;
  virtual void SendPacket(LinkId link, PathId path, ConstBytes packet, uint64_t token) = 0;
  virtual void SendChunk(LinkId link, PathId path, const Chunk& chunk, uint64_t token) = 0;
  // Hands over what was collected since the last one.
  virtual void Flush() = 0;
  // Gives the path up; PathBroken follows.
  virtual void Break(LinkId link, PathId path, const absl::Status& why) = 0;
  // Destroys all paths of this link, at once: nothing touches lent memory any more, nothing of the link's is told.
  virtual void DropLink(LinkId link) = 0;

  // Memory that may be sent from and written to over its paths, until the handle is dropped (on any thread).
  virtual std::shared_ptr<void> Register(MutableBytes memory) = 0;

  virtual std::vector<Report> Reports(LinkId link) const = 0;
  // Of all its paths that there are and were; the rails are the endpoint's to count.
  virtual PathTotals Counters() const { return {}; }
  // Why the last exchange made fewer paths than there could be; "" if it did not.
  virtual std::string Trouble() const { return ""; }
};

}  // namespace sluice::transport::multipath
