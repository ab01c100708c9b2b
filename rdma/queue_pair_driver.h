// The driver behind verbs_driver.h; nobody else includes this. verbs_driver.cc: rails, sending, completions and ends;
// verbs_exchange.cc: how the two ends make a queue pair.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/context.h"
#include "rdma/verbs_driver.h"

namespace sluice::proto {
class RdmaQueuePair;
class RdmaRail;
}  // namespace sluice::proto

namespace sluice::rdma {

using transport::LinkId;
using transport::multipath::Chunk;
using transport::multipath::PathId;
using transport::multipath::PathInfo;
using transport::multipath::SlotTarget;

inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kTier = 1;
inline constexpr size_t kMostQueuePairs = 128;          // of one link
inline constexpr TimeNs kTick = 50 * kMillisecond;
inline constexpr TimeNs kDrain = 500 * kMillisecond;    // what has not completed by then is not waited for
inline constexpr int kMostBursts = 64;                  // in one turn of the loop: then others have theirs

// Of the packet that a path begins with; no token of a link is like it.
inline constexpr uint64_t kProbe = ~uint64_t{0};

inline std::string RailName(const Rail& rail) { return absl::StrCat(rail.device, ":", rail.port); }

class QueuePairDriver final : public VerbsDriver {
 public:
  QueuePairDriver(transport::Loop* loop, const Clock* clock, std::shared_ptr<Verbs> verbs, DriverOptions options)
      : loop_(loop), clock_(clock), verbs_(std::move(verbs)), options_(std::move(options)) {}

  ~QueuePairDriver() override {
    for (uint64_t* timer : {&tick_timer_, &reap_timer_, &poll_timer_}) {
      if (*timer != 0) loop_->CancelTimer(*timer);
    }
    graveyard_.clear();
    links_.clear();
    for (RailState& rail : rails_) {
      loop_->Unwatch(rail.context->completion_fd());
      loop_->Unwatch(rail.context->async_fd());
    }
  }

  absl::Status Start();

  // ---- PathDriver ----

  void SetOwner(Owner* owner) override { owner_ = owner; }

  bool Usable() const override;

  std::string Offer(LinkId link, uint32_t attempt) override;

  absl::StatusOr<std::string> Propose(LinkId link, uint32_t job, ConstBytes message,
                                      const std::function<PathId()>& next_path) override;

  absl::StatusOr<std::string> Accept(LinkId link, uint32_t job, ConstBytes message) override;

  absl::StatusOr<std::string> Conclude(LinkId link, ConstBytes message) override;

  absl::StatusOr<std::vector<NewPath>> Ready(LinkId link, ConstBytes message) override;

  bool Wanting(LinkId link) const override;

  std::vector<SlotTarget> Targets(LinkId link, uint32_t, MutableBytes memory) override;

  bool CanSendFrom(LinkId link, PathId path, ConstBytes payload) override;

  size_t Room(LinkId link, PathId path) override;

  uint32_t ReceivesPosted(LinkId link, PathId path) override;

  void SendPacket(LinkId link, PathId path, ConstBytes packet, uint64_t token) override;

  void SendChunk(LinkId link, PathId path, const Chunk& chunk, uint64_t token) override;

  void Flush() override;

  void Break(LinkId link, PathId path, const absl::Status& why) override;

  void DropLink(LinkId link) override;

  std::shared_ptr<void> Register(MutableBytes memory) override;

  std::vector<Report> Reports(LinkId link) const override;

  transport::PathTotals Counters() const override;

  std::string Trouble() const override { return last_refusal_; }

  // ---- VerbsDriver ----

  std::vector<Rail> rails() const override;
  QpCounters Totals() const override;
  uint64_t queue_pairs_broken() const override { return broken_; }
  uint64_t registered_bytes() const override;

 private:
  struct Qp final : public QueuePair::Owner {
    QueuePairDriver* driver = nullptr;
    LinkId link = 0;
    PathId path = 0;
    size_t rail = 0;
    Domain* domain = nullptr;
    std::unique_ptr<QueuePair> qp;
    bool probing = false;     // RTS at both ends, and not known yet whether anything gets through
    bool connected = false;   // RTS
    bool up = false;          // something has got through: the owner knows it
    bool touched = false;
    bool dropped = false;     // its link is gone
    uint32_t peer_group = 0, peer_receives = 0;
    std::string peer;
    std::optional<TimeNs> breaking;

    void QpDone(QueuePair&, uint64_t cookie) override {
      if (dropped) return;
      if (probing && cookie == kProbe) return driver->ProbeDone(*this);
      if (up) driver->owner_->PathDone(link, path, cookie);
    }
    void QpPacket(QueuePair&, ConstBytes packet) override {
      driver->Touch(*this);
      if (!dropped) driver->owner_->PathPacket(link, path, packet);
    }
    void QpNotice(QueuePair&, uint32_t tag) override {
      driver->Touch(*this);
      if (!dropped) driver->owner_->PathChunk(link, path, tag);
    }
  };
  struct LinkState {
    std::map<PathId, std::unique_ptr<Qp>> qps;
    PathId last_path = 0;   // connector: the largest that the peer has proposed
  };
  struct RailState {
    Rail rail;
    std::unique_ptr<Context> context;
    bool down = false, lost = false;   // lost: for good
    std::map<uint32_t, Qp*> by_number;
    std::vector<Domain*> domains;
  };

  void Log(const std::string& text) const;

  Qp* Find(LinkId link, PathId path);

  uint32_t Count(LinkId link, size_t rail) const;

  void Touch(Qp& qp);

  // The rail of ours for one of the peer's: of the same kind, the most alike first.
  std::optional<size_t> PairFor(const proto::RdmaRail& theirs, size_t index, uint32_t attempt) const;

  absl::StatusOr<Qp*> MakeQp(LinkId link, PathId path, size_t rail, uint32_t job);

  absl::Status AcceptOne(LinkId link, uint32_t job, const proto::RdmaQueuePair& theirs, proto::RdmaQueuePair* out);

  absl::Status Connect(Qp& qp, const proto::RdmaQueuePair& theirs);

  NewPath Up(Qp& qp);
  void Probe(Qp& qp);
  void ProbeDone(Qp& qp);

  // Of an exchange that came to nothing.
  void DropUnfinished(LinkId link);

  void Destroy(LinkId link, PathId path);

  // Destroyed now, or where its own callback is on the stack, as soon as that is over.
  void Bury(std::unique_ptr<Qp> qp);

  void Dig();

  // ---- completions ----

  void OnCompletions(size_t index);

  // Takes what is there, posts receives again, and lets the owner send. Returns how many completions there were.
  size_t PollOnce(size_t index);

  // ---- ends ----

  void BreakQp(Qp& qp, const absl::Status& why);

  void Breaking(Qp& qp);

  void ReapSoon();

  // Destroys those that are broken and have nothing more to say, and tells of them. late: also those that have not said all
  // within kDrain; the completion queues are empty.
  void Reap(bool late = false);

  // The device's completion queue is of no use any more.
  void Lose(size_t index, const absl::Status& status);

  void BreakRail(size_t index, const absl::Status& why);

  void OnEvents(size_t index);

  // Is a port that was down fit for use again, or one that is up still where it was? Its GID may have gone elsewhere.
  void LookAgain(size_t index);

  void ArmTick();

  transport::Loop* const loop_;
  const Clock* const clock_;
  const std::shared_ptr<Verbs> verbs_;
  const DriverOptions options_;
  Owner* owner_ = nullptr;
  MemoryRegistry memory_;
  std::vector<RailState> rails_;   // fixed after Start
  std::map<LinkId, LinkState> links_;
  std::vector<Qp*> touched_;
  std::vector<std::unique_ptr<Qp>> graveyard_;
  bool polling_ = false;
  QpCounters gone_;
  uint64_t broken_ = 0;
  std::string last_refused_, last_refusal_;   // by this end, by a peer: told once
  uint64_t tick_timer_ = 0, reap_timer_ = 0, poll_timer_ = 0;
};

}  // namespace sluice::rdma
