// The copies of a plan's shards: who gets them, who owns a shard after a loss, when a move is done. Pure functions on a
// plan: no clock, no store, no stream. Protocol: docs/replication.md; servers.cc calls them and commits the outcome.
//
// What holds after each of them, if it held before:
//   - owner and copies of a shard lie on different servers; no two copies on one;
//   - a copy is in sync because it was so from the start of the job, because its owner said so, or because it has been the
//     owner until this plan: what was answered it has, and the next owner answers nothing without it;
//   - the owner of a shard changes only to a copy that is in sync, and always with a larger term;
//   - `since` of a copy on some server is larger than that of any earlier copy of this shard there: it is the version of
//     the plan that names the copy first, and one plan names a copy once.
//
// All is deterministic: the same plan and rules give the same plan.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "proto/plan.pb.h"

namespace sluice::scheduler {

// A shard weighs its bytes and this: rows of tables, which no plan knows, lie on shards too, and an empty shard may grow.
inline constexpr uint64_t kShardWeight = 64 << 10;

struct CopyRules {
  uint32_t replicas = 0;            // copies of each shard that are wanted
  uint64_t since = 0;               // of copies that are named now: the version of the plan to come
  uint32_t term = 0;                // of shards whose owner changes now: NextTerm
  std::set<uint32_t> avoid;         // servers that get no copies now (not alive ones never do): no stream, draining
  std::set<uint32_t> draining;      // their copies are given to others and dropped then
  // Of each server the failure domains that it is in (its host, its rack, …), as numbers; none = not known. Copies are named
  // where they share the fewest with the owner and the other copies.
  std::map<uint32_t, std::vector<uint32_t>> domains;
};

// Larger than the term of every shard, and than `floor`.
uint32_t NextTerm(const proto::Plan& plan, uint32_t floor);

uint64_t ShardWeight(const proto::ShardInfo& shard);

// The copy of a shard on a server, or null.
const proto::BackupInfo* FindCopy(const proto::ShardInfo& shard, uint32_t server);

// What a loss did.
struct Loss {
  std::vector<uint32_t> orphans;            // shards that the lost owned and that have no copy in sync elsewhere
  std::map<uint32_t, uint32_t> promoted;    // new owner: how many shards it got
  uint32_t copies = 0;                      // that lay on the lost and are struck out
  bool coordinator = false;                 // another server takes step-wide decisions now
};

// These servers are gone with all that they held: they are no longer alive; each shard of theirs goes to a copy in sync
// (of several to that whose server would own least then; one on a server of rules.avoid only if there is no other);
// copies of theirs are struck out; moves from or to them are off. If there are orphans the plan is of no use any more: the
// job must end. New copies are Tend's business.
Loss LoseServers(const std::set<uint32_t>& lost, const CopyRules& rules, proto::Plan* plan);

struct Tended {
  std::vector<uint32_t> moved;      // shards that have the owner now that they were moved to
  uint32_t named = 0;               // copies
  uint32_t dropped = 0;             // copies that are not needed any more
};

// Brings the copies to what the rules want, in this order:
//   1. Where a shard has fewer than rules.replicas copies and there are servers for them, copies are named: never in the
//      owner's failure domain where there is a choice (rules.domains), and spread so that
//      the shards of one owner have their copies all over (a loss is then shared by all), and on each server on the lane
//      that carries least. in_sync: at the start of a job only, when everything is zeros.
//   2. Copies beyond the number wanted are dropped, those not in sync and the latest first; copies on draining servers as
//      soon as enough others are in sync. The copy that is to become the owner counts neither here nor in 1.
//   3. A move whose copy is in sync is done: that server owns the shard, and the former owner is a copy in sync if one is
//      wanted, so that no moment is without protection. If other copies are still being filled it waits
//      for them: they would have to begin anew, and the shard would be without protection meanwhile.
//   4. 2 and 1 again, for what 3 has changed.
Tended Tend(const CopyRules& rules, bool in_sync, proto::Plan* plan);
// Whether Tend would change anything. Cheap: asked often.
bool NeedsTending(const CopyRules& rules, const proto::Plan& plan);

// How well the shards are protected.
struct Protection {
  uint32_t wanted = 0;              // copies of each shard: replicas, or as many as there are other servers alive
  uint32_t bare = 0;                // shards without a copy in sync: the loss of their owner ends the job
  uint32_t lacking = 0;             // shards with fewer copies in sync than wanted
  uint32_t filling = 0;             // copies that are not in sync yet
  bool Full() const { return wanted > 0 && lacking == 0; }
};
Protection ProtectionOf(const proto::Plan& plan, uint32_t replicas);

// Whether a shard has another owner or term in `b`, or a server is alive in one only.
bool OwnersDiffer(const proto::Plan& a, const proto::Plan& b);

// Shards that `server` owns, and copies on it.
struct Held {
  uint32_t shards = 0;
  uint32_t copies = 0;
};
Held HeldBy(const proto::Plan& plan, uint32_t server);

}  // namespace sluice::scheduler
