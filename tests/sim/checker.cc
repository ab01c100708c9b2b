#include "tests/sim/checker.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tests/sim/error_feedback.h"
#include "tests/sim/reference.h"
#include "tests/sim/slow_math.h"
#include "transport/wire.h"

namespace sluice::sim {
namespace {

using PushKey = std::tuple<uint32_t, uint64_t, uint32_t>;  // partition, round, rank
using RoundKey = std::pair<uint32_t, uint64_t>;            // partition, round
// By partition, term, round, first contributor (BSP: 0).
using TermRounds = std::map<std::tuple<uint32_t, uint32_t, uint64_t, uint32_t>, const Round*>;

template <typename... Parts>
absl::Status Found(const Parts&... parts) {
  return absl::InternalError(absl::StrCat(parts...));
}

std::string Where(uint32_t partition, uint64_t round) { return absl::StrCat("partition ", partition, " round ", round); }

std::string Where(const PushKey& key) {
  return absl::StrCat(Where(std::get<0>(key), std::get<1>(key)), " of rank ", std::get<2>(key));
}

// "" if the bits are the same.
std::string FirstDifference(std::span<const float> expected, std::span<const float> actual) {
  if (expected.size() != actual.size())
    return absl::StrCat("there are ", actual.size(), " elements, not ", expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    if (std::bit_cast<uint32_t>(expected[i]) != std::bit_cast<uint32_t>(actual[i]))
      return absl::StrCat("element ", i, " is ", actual[i], " (", absl::Hex(std::bit_cast<uint32_t>(actual[i])),
                          "), not ", expected[i], " (", absl::Hex(std::bit_cast<uint32_t>(expected[i])), ")");
  return "";
}

class Checker {
 public:
  Checker(const History& history, uint64_t steps)
      : history_(history), steps_(steps), config_(history.plan.config()), layout_(LayoutOf(history.plan)) {}

  absl::Status Check() {
    SLUICE_RETURN_IF_ERROR(Collect());
    SLUICE_RETURN_IF_ERROR(CheckOnce());
    SLUICE_RETURN_IF_ERROR(CheckComplete());
    if (bsp()) SLUICE_RETURN_IF_ERROR(CheckWhole());
    SLUICE_RETURN_IF_ERROR(CheckPushedRows());
    SLUICE_RETURN_IF_ERROR(bsp() ? ReplayBsp() : ReplayAsync());
    return CheckFeedback();
  }

 private:
  bool bsp() const { return config_.mode() == proto::MODE_BSP; }
  // Rule "rescale": the plan says from which round on a lost rank is out of a partition.
  // Under SSP and ASP nobody waits, so the others may be through before the plan says so.
  bool Lost(uint32_t rank) const {
    return config_.on_worker_loss() == proto::LOSS_RESCALE &&
           !history_.plan.workers(static_cast<int>(rank)).finished();
  }
  // One that came back counts again from its first contribution on; what it pushes to earlier rounds is rejected.
  bool Counts(uint32_t rank, uint32_t partition, uint64_t round) const {
    const proto::WorkerInfo& info = history_.plan.workers(static_cast<int>(rank));
    if (static_cast<int>(partition) >= info.out_from_round_size() ||
        round < info.out_from_round(static_cast<int>(partition)))
      return true;
    if (JoinedAt(rank, partition) == nullptr) return false;
    const auto first = applied_.lower_bound({partition, info.out_from_round(static_cast<int>(partition)), 0});
    for (auto it = first; it != applied_.end() && std::get<0>(*it) == partition && std::get<1>(*it) <= round; ++it)
      if (std::get<2>(*it) == rank) return true;
    return false;
  }
  const Joined* JoinedAt(uint32_t rank, uint32_t partition) const {
    const auto it = joined_.find({rank, layout_[partition].tensor});
    return it == joined_.end() ? nullptr : it->second;
  }
  // Some ranks may be behind others.
  bool Elastic() const { return LeavesOut() || !joined_.empty(); }
  // Rounds may close without some of those that count: so many.
  bool LeavesOut() const { return MayMiss() > 0; }
  uint32_t MayMiss() const {
    return config_.round_deadline_ms() > 0 ? config_.workers() - 1 : config_.backup_workers();
  }

  // A server that is lost may have taken pushes and closed rounds that no copy has. Nobody has seen them, and the next owner
  // takes and closes them again: of each push and round the last one counts.
  absl::Status Collect() {
    if (layout_.empty()) return Found("the history has no partitions");
    std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> newest;  // server, lane, rank -> incarnation
    std::map<std::tuple<uint32_t, uint64_t, uint32_t>, const Round*> last;   // partition, round, first contributor
    TermRounds by_term;
    std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>> owners;   // partition, term
    std::map<std::tuple<uint32_t, uint64_t, uint32_t, uint32_t>, const Contribution*> taken_by;   // partition, round, rank, server
    for (const Event& event : history_.events) {
      if (const auto* c = std::get_if<Contribution>(&event)) {
        if (c->partition >= layout_.size() || c->rank >= config_.workers())
          return Found("a contribution that the plan does not know: ", Describe(event));
        uint32_t& life = newest[{c->server, c->lane, c->rank}];
        if (c->incarnation < life)
          return Found(Where(c->partition, c->round), ": a push of rank ", c->rank, "'s life ", c->incarnation,
                       " was taken after one of life ", life);
        life = c->incarnation;
        taken_by[{c->partition, c->round, c->rank, c->server}] = c;
        const Contribution*& known = contributions_[PushKey{c->partition, c->round, c->rank}];
        if (known != nullptr && !Moved())
          return Found(Where(c->partition, c->round), " of rank ", c->rank, ": the push was taken twice");
        known = c;
      } else if (const auto* r = std::get_if<Round>(&event)) {
        if (r->partition >= layout_.size()) return Found("a round that the plan does not know: ", Describe(event));
        SLUICE_RETURN_IF_ERROR(r->backup ? CheckCopy(*r, by_term) : CheckOwner(*r, &owners));
        if (r->backup) continue;
        const Round*& known = last[{r->partition, r->round, bsp() ? 0 : r->contributors.front()}];
        if (known != nullptr && known->term > r->term && Moved()) {
          void_.insert(r);   // a former owner that has not heard of its end closes what it has: its copies refuse that
          continue;
        }
        if (known != nullptr) {
          if (known->term >= r->term)
            return Found(Where(r->partition, r->round), " was applied twice, under terms ", known->term, " and ", r->term);
          void_.insert(known);
        }
        known = by_term[{r->partition, r->term, r->round, bsp() ? 0 : r->contributors.front()}] = r;
        if (Trees()) SLUICE_RETURN_IF_ERROR(TakeWays(*r, taken_by));
      } else if (const auto* j = std::get_if<Joined>(&event)) {
        const Joined*& last = joined_[{j->rank, j->tensor}];   // the first life may have come late, and the next one joined
        if (last != nullptr && last->incarnation >= j->incarnation) return Found("joined twice: ", Describe(event));
        last = j;
      } else if (const auto* result = std::get_if<Result>(&event);
                 result != nullptr && (result->flags & transport::kFlagRejected) != 0) {
        rejected_[{result->partition, result->round, result->rank}] = result;
      }
    }
    for (const Event& event : history_.events) {
      const auto* r = std::get_if<Round>(&event);
      if (r == nullptr || r->backup || void_.contains(r)) continue;
      rounds_.push_back(r);
      if (const auto it = used_.find(r); it != used_.end())
        for (const Contribution* c : it->second) contributions_[{c->partition, c->round, c->rank}] = c;
    }
    return absl::OkStatus();
  }

  // The same push may be taken again by another owner: another server, or another process of the same one; or after a change of the
  // tree, by another node or the same one.
  bool Moved() const { return config_.replicas() > 0 || Trees(); }
  bool Trees() const { return history_.plan.trees_size() > 0; }
  // Rule "rescale": what a lost rank had sent last may have lain at a node of the tree, or at an owner when the tree changed (as it
  // does when the rank is declared out). Nobody sends it again.
  bool LostInTree(uint32_t rank, uint32_t partition, uint64_t round) const {
    const proto::WorkerInfo& info = history_.plan.workers(static_cast<int>(rank));
    if (!Trees() || static_cast<int>(partition) >= info.out_from_round_size()) return false;
    const Joined* joined = JoinedAt(rank, partition);
    return round + 1 >= info.out_from_round(static_cast<int>(partition)) && (joined == nullptr || round < joined->round);
  }

  // Which of the contributions it is that the round has: those that its own nodes, or the owner, had taken last by then.
  absl::Status TakeWays(const Round& r,
                        const std::map<std::tuple<uint32_t, uint64_t, uint32_t, uint32_t>, const Contribution*>& taken_by) {
    std::vector<uint32_t> servers = {r.server}, ranks;
    const auto take = [&](uint32_t rank) {
      const auto it = taken_by.find({r.partition, r.round, rank, servers.back()});
      if (it == taken_by.end()) return false;
      used_[&r].push_back(it->second);
      ranks.push_back(rank);
      return true;
    };
    for (const int32_t token : r.nesting) {
      if (token == server::kNestingEnd) {
        if (servers.size() == 1) return Found(Where(r.partition, r.round), ": the sum's nesting does not hold together");
        servers.pop_back();
      } else if (token < 0) {
        servers.push_back(static_cast<uint32_t>(-1 - token));
      } else if (!take(static_cast<uint32_t>(token))) {
        return Found(Where(r.partition, r.round), " of rank ", token, ": applied, but server ", servers.back(), " took no such push");
      }
    }
    if (r.nesting.empty()) {
      for (const uint32_t rank : r.contributors)
        if (!take(rank)) return Found(Where(r.partition, r.round), " of rank ", rank, ": applied, but its owner took no such push");
    }
    std::vector<uint32_t> contributors = r.contributors;
    std::ranges::sort(contributors);
    std::ranges::sort(ranks);
    if (servers.size() != 1 || ranks != contributors)
      return Found(Where(r.partition, r.round), ": the sum's nesting has other ranks than its contributors");
    return absl::OkStatus();
  }

  // One owner a term; the plan's at the end.
  absl::Status CheckOwner(const Round& r, std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, uint32_t>>* owners) {
    const auto [it, fresh] = owners->try_emplace({r.partition, r.term}, r.server, r.lane);
    if (it->second != std::pair(r.server, r.lane))
      return Found(Where(r.partition, r.round), " was applied by server ", r.server, " lane ", r.lane, " under term ",
                   r.term, ", in which server ", it->second.first, " lane ", it->second.second, " owns it");
    const PartitionLayout& owner = layout_[r.partition];
    if (r.term > owner.term || (r.term == owner.term && (r.server != owner.server || r.lane != owner.lane)))
      return Found(Where(r.partition, r.round), " was applied by server ", r.server, " lane ", r.lane, " under term ",
                   r.term, ", but server ", owner.server, " lane ", owner.lane, " owns it under term ", owner.term);
    if (r.term != owner.term && config_.replicas() == 0)
      return Found(Where(r.partition, r.round), " was applied under term ", r.term, "; the plan's is ", owner.term);
    return absl::OkStatus();
  }

  // A copy has the bits of its owner, which came before.
  absl::Status CheckCopy(const Round& r, const TermRounds& rounds) {
    const auto it = rounds.find({r.partition, r.term, r.round, bsp() ? 0 : r.contributors.front()});
    const std::string where = absl::StrCat(Where(r.partition, r.round), " at the copy on server ", r.server);
    if (it == rounds.end())
      return Found(where, " under term ", r.term, ": no owner of that term has closed it");
    const Round& owner = *it->second;
    if (owner.contributors != r.contributors || owner.skipped != r.skipped || owner.assigned != r.assigned ||
        owner.scale != r.scale || owner.trust != r.trust || (!r.assigned && owner.rate_bits != r.rate_bits))
      return Found(where, ": contributors, verdict or rate differ from its owner's");
    if (const std::string difference = FirstDifference(owner.value, r.value); !difference.empty())
      return Found(where, ": the value differs from its owner's: ", difference);
    if (owner.reply != r.reply) return Found(where, ": the reply's bytes differ from its owner's");
    return absl::OkStatus();
  }

  // The rounds' contributors are what was taken before, each once.
  absl::Status CheckOnce() {
    std::set<PushKey> applied;
    for (const Round* round : rounds_) {
      for (const uint32_t rank : round->contributors) {
        // A broadcast under SSP and ASP gathers ranks by their own rounds; trainers broadcast first, all at the same.
        const PushKey key{round->partition, round->round, rank};
        if (!contributions_.contains(key)) return Found(Where(key), ": applied, but no such push was taken");
        if (!applied.insert(key).second) return Found(Where(key), ": the push was applied twice");
        if (rejected_.contains(key)) return Found(Where(key), ": the push was applied, and the worker was told it was rejected");
      }
      if (bsp() && !closed_.emplace(RoundKey{round->partition, round->round}, round).second)
        return Found(Where(round->partition, round->round), " was applied twice");
    }
    for (const auto& [key, contribution] : contributions_) {
      // What was taken for a round that has not closed is not lost; all rounds below `steps` have (CheckComplete).
      // (An owner that was lost may have taken what the next one has rejected.)
      if (std::get<1>(key) < steps_ && !applied.contains(key) && !(Moved() && rejected_.contains(key)) &&
          !LostInTree(std::get<2>(key), std::get<0>(key), std::get<1>(key)))
        return Found(Where(key), ": the push was taken, but never applied: it is lost");
    }
    applied_ = std::move(applied);
    return absl::OkStatus();
  }

  absl::Status CheckComplete() {
    std::map<PushKey, const Encoded*> encoded;
    for (const Event& event : history_.events) {
      const auto* e = std::get_if<Encoded>(&event);
      if (e == nullptr) continue;
      const PushKey key{e->partition, e->round, e->rank};
      const auto [first, fresh] = encoded.emplace(key, e);
      // Another life encodes the same push again, from its snapshot; where that must give the same bits, it must.
      if (!fresh && Replayable() && first->second->payload != e->payload)
        return Found(Where(key), ": life ", e->incarnation, " pushes other bytes than life ",
                     first->second->incarnation);
      if (!fresh) encoded_again_.insert(key);
    }
    for (const auto& [key, push] : encoded) {
      if (std::get<1>(key) >= steps_) return Found(Where(key), ": a push beyond the last step");
      if (rejected_.contains(key)) {
        if (!Elastic()) return Found(Where(key), ": the push was rejected, and nobody was behind");
        continue;
      }
      // Of a lost rank under SSP and ASP it does not matter how far it came.
      const Joined* joined = JoinedAt(push->rank, push->partition);
      const bool free = joined != nullptr ? push->incarnation < joined->incarnation
                        : bsp()           ? !Counts(push->rank, push->partition, push->round) ||
                                               (LeavesOut() && Lost(push->rank))   // nobody needed it
                                          : Lost(push->rank);
      if ((free || LostInTree(push->rank, push->partition, push->round)) && !applied_.contains(key)) continue;
      if (!applied_.contains(key)) return Found(Where(key), ": the push was sent, but never applied: it is lost");
      const Contribution& taken = *contributions_.at(key);
      if (encoded_again_.contains(key) && !Replayable()) continue;
      if (taken.payload != push->payload || taken.codec != push->codec)
        return Found(Where(key), ": the server took other bytes than the worker sent");
    }
    for (const auto& [key, contribution] : contributions_)
      if (!encoded.contains(key)) return Found(Where(key), ": taken, but nobody pushed it");
    for (uint32_t p = 0; p < layout_.size(); ++p)
      for (uint64_t round = 0; round < steps_; ++round)
        for (uint32_t rank = 0; rank < config_.workers(); ++rank)
          if (!applied_.contains({p, round, rank}) && MustHave(rank, p, round))
            return Found(Where(p, round), " has nothing of rank ", rank);
    return absl::OkStatus();
  }

  bool MustHave(uint32_t rank, uint32_t partition, uint64_t round) const {
    if (bsp()) return !LeavesOut() && Counts(rank, partition, round) && !LostInTree(rank, partition, round);   // else CheckWhole counts
    const Joined* joined = JoinedAt(rank, partition);
    return !Lost(rank) && !(joined != nullptr && round < joined->round) && !rejected_.contains({partition, round, rank});
  }

  absl::Status CheckFeedback() {
    std::map<PushKey, bool> skipped;
    for (const Round* round : rounds_)
      for (const uint32_t rank : round->contributors)
        skipped[{round->partition, round->round, rank}] = round->skipped;
    ErrorFeedback feedback(history_.plan);
    for (const Event& event : history_.events) {
      if (const auto* j = std::get_if<Joined>(&event)) {
        for (uint32_t p = 0; p < layout_.size(); ++p)
          if (layout_[p].tensor == j->tensor) feedback.Join(j->rank, p, j->round);
      }
      const auto* e = std::get_if<Encoded>(&event);
      if (e == nullptr || layout_[e->partition].table) continue;   // rows have no residual
      const PushKey key{e->partition, e->round, e->rank};
      if (const auto rejected = rejected_.find(key); rejected != rejected_.end()) {
        const bool skipped_too = (rejected->second->flags & transport::kFlagSkipped) != 0;
        if (const absl::Status status = feedback.Check(*e, false, skipped_too, true); !status.ok())
          return Found(Where(key), ", which was rejected: ", std::string(status.message()));
        continue;
      }
      if (!applied_.contains(key)) continue;  // of a lost rank: its last
      const Contribution& taken = *contributions_.at(key);
      const bool broadcast = (taken.flags & transport::kFlagAssign) != 0 ||
                             ((taken.flags & transport::kFlagEmpty) != 0 &&
                              (taken.flags & transport::kFlagNonfinite) == 0);
      if (const absl::Status status = feedback.Check(*e, broadcast, skipped.at(key), false); !status.ok())
        return Found(Where(key), ", life ", e->incarnation, ": ", std::string(status.message()));
    }
    return absl::OkStatus();
  }

  // A worker that starts again from its snapshot computes the same gradients: under BSP, if sums have a fixed order.
  bool Replayable() const { return bsp() && config_.order() != proto::ORDER_FAST; }

  absl::Status CheckWhole() {
    for (uint64_t round = 0; round < steps_; ++round) {
      const Round* first = nullptr;
      for (uint32_t p = 0; p < layout_.size(); ++p) {
        const auto it = closed_.find({p, round});
        if (it == closed_.end()) return Found(Where(p, round), " was never applied");
        const Round& r = *it->second;
        uint32_t missing = 0;
        const bool needs_all = !LeavesOut() || r.assigned;
        for (uint32_t rank = 0; rank < config_.workers(); ++rank) {
          const Joined* joined = JoinedAt(rank, p);
          const auto has = std::ranges::count(r.contributors, rank);
          if (has == 0 && LostInTree(rank, p, round)) continue;
          if (has > 0 && joined != nullptr && round < joined->round && !CountsAtFirst(rank, p, round))
            return Found(Where(p, round), " has a push of rank ", rank, ", which joined at round ", joined->round);
          missing += has == 0 && Counts(rank, p, round);
          if (has != (Counts(rank, p, round) ? 1 : 0) && (needs_all || has > 0))
            return Found(Where(p, round), " is torn: it was closed with the ranks ",
                         absl::StrJoin(r.contributors, ","), ", and rank ", rank,
                         Counts(rank, p, round) ? " counts" : " is out");
        }
        if (missing > MayMiss())
          return Found(Where(p, round), " was closed with the ranks ", absl::StrJoin(r.contributors, ","), ": ", missing,
                       " are missing, and ", MayMiss(), " may be");
        if (config_.order() != proto::ORDER_FAST && r.nesting.empty() && !std::is_sorted(r.contributors.begin(), r.contributors.end()))
          return Found(Where(p, round), ": summed in the order ", absl::StrJoin(r.contributors, ","));
        if (layout_[p].table) continue;   // no verdict looks at it
        if (first == nullptr) first = &r;
        const bool torn_by_rule = config_.on_worker_loss() == proto::LOSS_RESCALE;  // a lost root of a broadcast
        const bool other_verdict = r.skipped != first->skipped || r.scale != first->scale;
        if ((r.assigned != first->assigned && !torn_by_rule) ||
            (StepWide() && !r.assigned && !first->assigned && other_verdict))
          return Found("step ", round, " is torn: partition ", p, r.skipped ? " skipped" : " applied", " at scale ",
                       r.scale, ", partition 0", first->skipped ? " skipped" : " applied", " at scale ",
                       first->scale);
      }
    }
    return absl::OkStatus();
  }
  // Before it was declared out.
  bool CountsAtFirst(uint32_t rank, uint32_t partition, uint64_t round) const {
    const proto::WorkerInfo& info = history_.plan.workers(static_cast<int>(rank));
    return static_cast<int>(partition) >= info.out_from_round_size() ||
           round < info.out_from_round(static_cast<int>(partition));
  }
  bool StepWide() const {
    return config_.optimizer().clip_norm() > 0 || config_.on_nonfinite() == proto::NONFINITE_SKIP ||
           config_.optimizer().kind() == "lamb";
  }

  absl::Status Compare(const Expected& expected, const Round& round) {
    const std::string where = Where(round.partition, round.round);
    if (round.skipped != expected.skipped || round.assigned != expected.assigned)
      return Found(where, ": skipped ", round.skipped, ", assigned ", round.assigned, "; the reference has ",
                   expected.skipped, " and ", expected.assigned);
    if (round.scale != expected.scale || round.trust != expected.trust)
      return Found(where, ": scale ", round.scale, ", trust ", round.trust, "; the reference has ", expected.scale,
                   " and ", expected.trust);
    if (!round.assigned && round.rate_bits != expected.rate_bits)
      return Found(where, ": rate ", std::bit_cast<float>(round.rate_bits), "; the reference has ",
                   std::bit_cast<float>(expected.rate_bits));
    if (const std::string difference = FirstDifference(expected.value, round.value); !difference.empty())
      return Found(where, ": the server's value differs from the reference: ", difference);
    if (round.reply != expected.reply) return Found(where, ": the reply's bytes differ from the reference");
    return absl::OkStatus();
  }

  absl::Status ReplayBsp() {
    Reference reference(history_.plan);
    std::map<RoundKey, std::optional<std::vector<float>>> answers;
    std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> pulls;  // partition, rounds applied
    SLUICE_RETURN_IF_ERROR(CheckPulledRows(reference, 0));
    for (uint64_t round = 0; round < steps_; ++round) {
      std::vector<std::vector<const Contribution*>> contributions(layout_.size());
      std::vector<std::vector<int32_t>> nesting;
      for (uint32_t p = 0; p < layout_.size(); ++p) nesting.push_back(closed_.at({p, round})->nesting);
      for (uint32_t p = 0; p < layout_.size(); ++p)
        for (const uint32_t rank : closed_.at({p, round})->contributors)
          contributions[p].push_back(contributions_.at({p, round, rank}));
      SLUICE_ASSIGN_OR_RETURN(const std::vector<Expected> expected, reference.CloseStep(contributions, nesting));
      for (uint32_t p = 0; p < layout_.size(); ++p) {
        SLUICE_RETURN_IF_ERROR(Compare(expected[p], *closed_.at({p, round})));
        answers[{p, round}] = expected[p].answer;
        pulls[{p, round + 1}] = reference.Visible(p);
      }
      SLUICE_RETURN_IF_ERROR(CheckPulledRows(reference, round + 1));
    }
    SLUICE_RETURN_IF_ERROR(CheckRowsSeen());
    for (const Event& event : history_.events) {
      if (const auto* result = std::get_if<Result>(&event)) {
        const auto it = answers.find({result->partition, result->round});
        if (it == answers.end()) return Found("a result of a round that was not applied: ", Describe(event));
        if (!it->second.has_value() || result->value.empty()) continue;
        // Where rounds leave workers out the others may have gone on before a lost answer is given again.
        if (LeavesOut() && SeenLater(pulls, result->partition, result->round + 1, result->value)) continue;
        if ((result->flags & transport::kFlagRejected) != 0) {
          if (!SeenLater(pulls, result->partition, result->round + 1, result->value))
            return Found(Where(result->partition, result->round), ": what rank ", result->rank,
                         " got with its rejection is no value that came after");
          continue;
        }
        if (const std::string difference = FirstDifference(*it->second, result->value); !difference.empty())
          return Found(Where(result->partition, result->round), ": what rank ", result->rank,
                       " got differs from the reference: ", difference);
      } else if (const auto* pulled = std::get_if<Pulled>(&event)) {
        for (uint32_t p = 0; p < layout_.size(); ++p) {
          if (layout_[p].tensor != pulled->tensor) continue;
          const std::span<const float> part =
              std::span(pulled->value).subspan(layout_[p].offset, layout_[p].elements);
          if (Elastic() && SeenLater(pulls, p, pulled->round, part)) continue;   // others were ahead of it
          if (const std::string difference = FirstDifference(pulls.at({p, pulled->round}), part); !difference.empty())
            return Found("rank ", pulled->rank, " pulled partition ", p, " after ", pulled->round,
                         " rounds: ", difference);
        }
      }
    }
    return absl::OkStatus();
  }

  // The partition had this value after so many rounds, or more.
  static bool SeenLater(const std::map<std::pair<uint32_t, uint64_t>, std::vector<float>>& pulls, uint32_t partition,
                        uint64_t rounds, std::span<const float> value) {
    for (auto it = pulls.lower_bound({partition, rounds}); it != pulls.end() && it->first.first == partition; ++it)
      if (FirstDifference(it->second, value).empty()) return true;
    return false;
  }

  bool Encodes(uint32_t table) const {
    const std::string& codec = history_.plan.tensors(static_cast<int>(table)).spec().table().codec();
    return !codec.empty() && codec != "none";
  }

  // Each part of a push has all rows of its segment that the trainer handed over, summed in order of occurrence, and no
  // others.
  absl::Status CheckPushedRows() {
    std::map<std::tuple<uint32_t, uint32_t, uint64_t>, const PushedRows*> newest;  // rank, table, round
    for (const Event& event : history_.events) {
      if (const auto* pushed = std::get_if<PushedRows>(&event))
        newest[{pushed->rank, pushed->tensor, pushed->round}] = pushed;
      const auto* e = std::get_if<Encoded>(&event);
      if (e == nullptr || !layout_[e->partition].table) continue;
      const PartitionLayout& part = layout_[e->partition];
      const std::string where = Where({e->partition, e->round, e->rank});
      const auto found = newest.find({e->rank, part.tensor, e->round});
      if (found == newest.end()) return Found(where, ": rows that the trainer has not pushed");
      const PushedRows& pushed = *found->second;
      const size_t dim = pushed.ids.empty() ? 1 : pushed.gradients.size() / pushed.ids.size();
      std::map<uint64_t, std::vector<float>> sums;
      for (size_t i = 0; i < pushed.ids.size(); ++i) {
        if (SlowSegmentOf(pushed.ids[i], part.segments) != part.position) continue;
        const auto row = std::span(pushed.gradients).subspan(i * dim, dim);
        const auto [sum, fresh] = sums.try_emplace(pushed.ids[i], row.begin(), row.end());
        for (size_t d = 0; d < dim && !fresh; ++d) sum->second[d] += row[d];
      }
      SlowRows rows;
      if (!e->payload.empty()) {
        SLUICE_ASSIGN_OR_RETURN(rows, SlowParseRows(e->payload));
      }
      for (const auto& [id, sum] : sums)
        if (std::ranges::count(rows.ids, id) != 1) return Found(where, ": row ", id, " was pushed, and is not in it");
      if (rows.ids.size() != sums.size()) return Found(where, " has rows that were not pushed");
      if (Encodes(part.tensor)) continue;  // values are rounded, and carry what earlier roundings have left
      SLUICE_ASSIGN_OR_RETURN(const std::vector<float> values, SlowDecode(e->codec, rows.values, sums.size() * dim));
      for (size_t i = 0; i < rows.ids.size(); ++i)
        if (const std::string difference =
                FirstDifference(sums.at(rows.ids[i]), std::span(values).subspan(i * dim, dim));
            !difference.empty())
          return Found(where, ": row ", rows.ids[i], " has another gradient than was pushed: ", difference);
    }
    return absl::OkStatus();
  }

  // Under BSP a worker sees exactly the rounds that it has pushed: nobody can be ahead of it.
  absl::Status CheckPulledRows(const Reference& reference, uint64_t round) {
    for (const Event& event : history_.events) {
      const auto* pulled = std::get_if<PulledRows>(&event);
      if (pulled == nullptr || (Elastic() ? pulled->round > round : pulled->round != round)) continue;
      if (Elastic()) {   // but then each row is of this round, or of a later one
        TakeSeenRows(reference, round, *pulled);
        continue;
      }
      if (const std::string difference =
              FirstDifference(reference.VisibleRows(pulled->tensor, pulled->ids), pulled->values);
          !difference.empty())
        return Found("rank ", pulled->rank, " pulled rows of table ", pulled->tensor, " after ", round, " rounds: ",
                     difference);
    }
    return absl::OkStatus();
  }

  void TakeSeenRows(const Reference& reference, uint64_t round, const PulledRows& pulled) {
    auto [unseen, fresh] = unseen_rows_.try_emplace(&pulled);
    const size_t dim = pulled.ids.empty() ? 1 : pulled.values.size() / pulled.ids.size();
    if (fresh || round == pulled.round)
      for (size_t i = 0; i < pulled.ids.size(); ++i) unseen->second.insert(i);
    std::erase_if(unseen->second, [&](size_t i) {
      return FirstDifference(reference.VisibleRows(pulled.tensor, {pulled.ids[i]}),
                             std::span(pulled.values).subspan(i * dim, dim)).empty();
    });
  }

  absl::Status CheckRowsSeen() const {
    for (const auto& [pulled, unseen] : unseen_rows_)
      if (!unseen.empty())
        return Found("rank ", pulled->rank, " pulled row ", pulled->ids[*unseen.begin()], " of table ", pulled->tensor, " after ",
                     pulled->round, " rounds: it had this value at no time from then on");
    return absl::OkStatus();
  }

  absl::Status ReplayAsync() {
    Reference reference(history_.plan);
    std::vector<std::vector<std::vector<float>>> values(layout_.size());  // by partition, in order
    std::map<PushKey, size_t> applied_as;                                 // -> index in values
    std::map<RoundKey, uint64_t> next;                                    // partition, rank -> rounds applied so far
    size_t at = 0;
    for (const Event& event : history_.events) {
      if (const auto* r = std::get_if<Round>(&event)) {
        if (r->backup || void_.contains(r)) continue;
        const Round& round = *rounds_[at++];
        std::vector<const Contribution*> contributions;
        for (const uint32_t rank : round.contributors) {
          contributions.push_back(contributions_.at({round.partition, round.round, rank}));
          uint64_t& rounds = next[{round.partition, rank}];
          const Joined* joined = JoinedAt(rank, round.partition);
          // One that came back has left out what was before its round, and was rejected where the slowest was beyond it.
          while (joined != nullptr && rounds < round.round &&
                 (rounds < joined->round || rejected_.contains({round.partition, rounds, rank})))
            ++rounds;
          if (round.round != rounds)
            return Found(Where(round.partition, round.round), " of rank ", rank, " was applied after ", rounds,
                         " rounds of it");
          ++rounds;
          applied_as[{round.partition, round.round, rank}] = values[round.partition].size();
        }
        SLUICE_ASSIGN_OR_RETURN(const Expected expected, reference.CloseOne(round.partition, contributions));
        SLUICE_RETURN_IF_ERROR(Compare(expected, round));
        values[round.partition].push_back(round.value);
      } else if (const auto* result = std::get_if<Result>(&event)) {
        SLUICE_RETURN_IF_ERROR(CheckAsyncResult(*result, values[result->partition], applied_as, next));
      }
    }
    return absl::OkStatus();
  }

  // The parameters as they were at some time after the worker's own push; not before the bound allows.
  absl::Status CheckAsyncResult(const Result& result, const std::vector<std::vector<float>>& values,
                                const std::map<PushKey, size_t>& applied_as,
                                const std::map<RoundKey, uint64_t>& next) {
    if ((result.flags & transport::kFlagRejected) != 0) return absl::OkStatus();
    const auto own = applied_as.find({result.partition, result.round, result.rank});
    if (own == applied_as.end())
      return Found(Where(result.partition, result.round), ": rank ", result.rank,
                   " has an answer to a push that was not applied");
    bool found = result.value.empty();
    for (size_t i = own->second; i < values.size() && !found; ++i)
      found = FirstDifference(values[i], result.value).empty();
    if (!found)
      return Found(Where(result.partition, result.round), ": what rank ", result.rank,
                   " got is no value that the partition has had since its push");
    if (config_.mode() != proto::MODE_SSP) return absl::OkStatus();
    for (uint32_t rank = 0; rank < config_.workers(); ++rank) {
      if (Lost(rank) || JoinedAt(rank, result.partition) != nullptr) continue;   // for some time nobody waited for it
      const auto it = next.find({result.partition, rank});
      const uint64_t rounds = it == next.end() ? 0 : it->second;
      if (result.round + 1 > rounds + config_.staleness())
        return Found(Where(result.partition, result.round), ": rank ", result.rank, " was answered while rank ", rank,
                     " had ", rounds, " rounds; the bound is ", config_.staleness());
    }
    return absl::OkStatus();
  }

  const History& history_;
  const uint64_t steps_;
  const proto::JobConfig& config_;
  const std::vector<PartitionLayout> layout_;
  std::map<PushKey, const Contribution*> contributions_;
  std::map<const Round*, std::vector<const Contribution*>> used_;   // where trees are
  std::set<const Round*> void_;                          // closed by an owner that was lost, and again by the next
  std::vector<const Round*> rounds_;                     // in order
  std::map<RoundKey, const Round*> closed_;              // BSP
  std::set<PushKey> applied_;
  std::set<PushKey> encoded_again_;
  std::map<std::pair<uint32_t, uint32_t>, const Joined*> joined_;   // by rank, tensor
  std::map<PushKey, const Result*> rejected_;
  std::map<const PulledRows*, std::set<size_t>> unseen_rows_;       // positions
};

}  // namespace

absl::Status CheckHistory(const History& history, uint64_t steps) { return Checker(history, steps).Check(); }

absl::Status CompareHistories(const History& expected, const History& actual) {
  std::map<PushKey, const Contribution*> pushes;
  std::map<RoundKey, const Round*> rounds;
  for (const Event& event : expected.events) {
    if (const auto* c = std::get_if<Contribution>(&event)) pushes[{c->partition, c->round, c->rank}] = c;
    if (const auto* r = std::get_if<Round>(&event); r != nullptr && !r->backup) rounds[{r->partition, r->round}] = r;
  }
  std::set<RoundKey> seen;
  for (const Event& event : actual.events) {
    if (const auto* c = std::get_if<Contribution>(&event)) {
      const auto it = pushes.find({c->partition, c->round, c->rank});
      if (it == pushes.end() || it->second->payload != c->payload || it->second->flags != c->flags)
        return Found(Where(c->partition, c->round), " of rank ", c->rank,
                     ": the push differs from that of the run without faults");
    } else if (const auto* r = std::get_if<Round>(&event)) {
      const auto it = rounds.find({r->partition, r->round});
      if (it == rounds.end()) return Found(Where(r->partition, r->round), ": the run without faults has no such round");
      if (const std::string difference = FirstDifference(it->second->value, r->value); !difference.empty())
        return Found(Where(r->partition, r->round), ": the value differs from that of the run without faults: ",
                     difference);
      seen.insert({r->partition, r->round});
    }
  }
  if (seen.size() != rounds.size())
    return Found("the run without faults has ", rounds.size(), " rounds, this one ", seen.size());
  return absl::OkStatus();
}

}  // namespace sluice::sim
