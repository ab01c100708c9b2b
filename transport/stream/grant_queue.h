// Announced pushes that wait for their grant, and which of them is next.
//
// A worker's link has little granted at a time (link_bytes), so that what it sends next is decided late, by the receiver,
// which sees the announcements of all workers. The order:
//   1. Rounds of which another rank was granted, or has sent, its part: a round closes when the last part is there, so parts
//      that workers send in different orders keep everybody waiting and the way back idle.
//   2. The sender's priority, smaller first (ANNOUNCE.aux).
//   3. The order of coming.
// Only links with room take part. No round of a job is begun while one of its links owes link_bytes or more: announced parts
// of rounds that others have begun. (Else a link that gets the larger share of the network runs ahead, of no use to anybody,
// at the expense of the others.) Who has announced nothing owes nothing, so nobody waits for a worker that still computes.
// Parts that close no round together (SSP, ASP: joint = false) neither go first nor owe nor wait.
//
// Pure bookkeeping, O(log n) a call; single-threaded.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "transport/transport.h"

namespace sluice::transport {

class GrantQueue {
 public:
  // The push of one (job, partition, rank): at most one is on record, so ranks of a partition lie together.
  using Key = std::tuple<uint32_t, uint32_t, uint32_t>;

  struct Push {
    LinkId link = 0;
    uint64_t round = 0;
    int32_t priority = 0;
    size_t bytes = 0;
    bool joint = true;   // the round needs the parts of all ranks
  };

  // A link has room while less than link_bytes of it are granted and unfinished.
  explicit GrantQueue(size_t link_bytes) : link_bytes_(link_bytes) {}

  // Waits from now on. Not on record yet. place: from Remove, to wait where it has waited before.
  void Add(const Key& key, const Push& push, std::optional<uint64_t> place = std::nullopt);
  // Waits no more; returns its place.
  uint64_t Remove(const Key& key);

  // The push to grant next, if there is one by the rules above.
  std::optional<Key> Next() const;
  // From waiting to granted, in any order; its link has less room until Finish.
  void Grant(const Key& key);
  void Finish(LinkId link, size_t bytes);   // a granted push has arrived or was given up

  // Some rank's part of this (joint) round has come without a grant.
  void NoteRound(uint32_t job, uint32_t partition, uint64_t round);
  void ForgetRounds(uint32_t job, uint32_t partition);   // job 0 = of any job

  bool waits(const Key& key) const { return waiting_.contains(key); }
  size_t size() const { return waiting_.size(); }
  // The first that waits at or after this key, in the order of keys.
  std::optional<Key> FirstFrom(const Key& key) const;

 private:
  struct Rank {
    bool begins = true;  // it is joint, and nobody has begun this round
    int32_t priority = 0;
    uint64_t place = 0;  // unique
    auto operator<=>(const Rank&) const = default;
  };
  struct Waiting {
    Push push;
    Rank rank;
  };
  struct Link {
    std::map<Rank, Key> waiting;
    size_t granted = 0;
  };

  bool HasRoom(const Link& link) const { return link.granted < link_bytes_; }
  static bool Owed(const Waiting& waiting) { return waiting.push.joint && !waiting.rank.begins; }
  bool Begun(const Key& key, uint64_t round) const;
  void Insert(const Key& key, const Waiting& waiting);   // into what is ordered by rank
  void Erase(const Key& key, const Waiting& waiting);
  // Around every change of a link: ready_ holds the first of each link that has room.
  void Hide(const Link& link);
  void Show(LinkId id, Link& link);   // forgets a link of which nothing is left
  void Owe(uint32_t job, LinkId link, size_t more, size_t less);

  const size_t link_bytes_;
  std::map<Key, Waiting> waiting_;
  std::unordered_map<LinkId, Link> links_;
  std::map<uint32_t, std::map<Rank, Key>> ready_;              // by job
  std::map<std::pair<uint32_t, LinkId>, size_t> owed_;         // job, link: bytes
  std::map<uint32_t, size_t> lagging_;                         // by job: links that owe link_bytes_ or more
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> rounds_;   // job, partition: the latest that somebody began
  uint64_t next_place_ = 1;
};

}  // namespace sluice::transport
