// One partition at a server in forward mode: it adds up what its members push, sends the sum to its parent, and brings the answer
// back. Protocol: docs/wire.md, "A push through a tree"; the numbers in the code are its steps. What comes before a partition is
// asked (2a, 2b, sizes) is Forwarding's.
//
//   IDLE       nothing of an open round; the last answer may be there
//   GATHER     members contribute to one round (2, 3)
//   FORWARDED  all have: the sum is on its way to the parent, again and again until the answer comes (4, 5)
//   -> IDLE    by the answer (6), by DIRECT of the parent (7), or by another way (8)
// It is never the truth: what it has can be dropped at any time, since its members keep their bytes until the owner has answered.
//   t=0  ranks 0 and 1 have contributed to round 5, which is forwarded; the owner applies it; this server is lost
//   t=1  the plan has the tree without it: ranks 0 and 1 push round 5 to the owner, which has it: they get its answer
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/dense_partition.h"
#include "server/forward/forward_message.h"
#include "server/forward/members.h"
#include "server/replica_channel.h"
#include "server/round_reducer.h"
#include "transport/control/tree_way.h"
#include "transport/stream/reassembler.h"

namespace sluice::server {

class ForwardedPartition {
 public:
  using Admission = transport::StreamReceiver::Admission;
  using LinkId = transport::LinkId;
  using FrameHeader = transport::FrameHeader;
  using SlotId = transport::SlotId;

  struct Env {
    JobContext* job = nullptr;
    transport::Endpoint* endpoint = nullptr;
    uint32_t server = 0;             // this one's index in the plan
    uint32_t incarnation = 0;
    std::function<void()> request_plan;
    // A slot of an answer that somebody may be writing into: its memory is kept until it is quiet.
    std::function<void(LinkId link, SlotId slot, BlockPtr memory)> closing;
  };
  // largest_answer: bytes. Both outlive it.
  ForwardedPartition(PartitionShape shape, size_t largest_answer, const Env* env);

  // Where it stands now; channel: to the parent. True: it is another way, term or parent, and everything of the open round is
  // forgotten (8).
  bool SetWay(std::shared_ptr<const control::TreeWay> way, size_t node, uint32_t term, ReplicaChannel* channel);
  void Retire();   // before it goes

  const PartitionShape& shape() const { return shape_; }
  uint32_t term() const { return term_; }
  uint64_t stamp() const { return way_->stamp; }
  bool IsMember(uint32_t id) const { return FindMember(id) != nullptr; }
  ReplicaChannel* channel() const { return channel_; }

  Admission Admit(LinkId link, const FrameHeader& push);
  bool Urgent(const FrameHeader& push) const;
  absl::Status Contribute(LinkId link, const FrameHeader& push, transport::Payload payload);
  void MembershipChanged();   // JobContext::workers is another

  // REPLY, APPLIED, RETRY and ERROR of the parent. An error ends the link.
  absl::Status OnAnswer(const FrameHeader& header, const transport::Payload& payload);
  void ParentUp();            // the channel has another link: sends again what is forwarded
  void LinkDown(LinkId link);
  void OnTick();

  std::string WaitingFor() const;   // for people, or ""
  std::optional<uint64_t> open_round() const { return state_ == State::kIdle ? std::nullopt : std::optional(round_); }

 private:
  enum class State { kIdle, kGather, kForwarded };
  struct Seat {                    // of a member: where its answer goes
    LinkId link = 0;
    SlotId slot = 0;
    uint64_t round = 0;
    uint64_t contributed = 0;      // 1 + the last round
    uint64_t reply_key = 0;
    uint32_t incarnation = 0, attempt = 0, answers = 0;
    bool no_reply = false, asked = false;
    bool HasContributed(uint64_t to_round) const { return contributed == to_round + 1; }
  };
  struct Answer {
    FrameHeader header;            // as the owner sent it
    BlockPtr memory;               // null: no payload
    ConstBytes payload;
    bool bare = false;             // nobody wanted one
  };

  const ForwardMember* FindMember(uint32_t id) const;
  bool Counts(const ForwardMember& member) const;    // somebody below it has not finished
  uint32_t Floor() const;                            // key of the first member that is missing; UINT32_MAX: nobody is
  bool TakeSeat(LinkId link, const FrameHeader& push);
  FrameHeader AnswerHeader(uint32_t id, const Seat& seat, uint64_t round) const;
  void SendAnswer(uint32_t id);
  void TellDirect(uint32_t id, uint64_t round);
  void AnswerAgain(LinkId link, const FrameHeader& push);
  absl::Status CheckKind(const FrameHeader& push) const;
  absl::Status Add(const ForwardMember& member, const FrameHeader& push, const compression::Codec* codec,
                   transport::Payload payload);
  absl::Status AddForward(const ForwardMember& member, const FrameHeader& push, transport::Payload payload);
  void ForwardIfComplete();
  absl::Status Forward();
  void SendUp();                   // the first time, or again
  void OpenSlot();
  void CloseSlot();
  void Drop();                     // what is gathered or forwarded; back to IDLE
  void DropTellingDirect();
  absl::Status OnReply(const FrameHeader& header, const transport::Payload& payload);
  void Answered(const FrameHeader& header, size_t bytes);
  std::string Name() const;

  const PartitionShape shape_;
  const size_t largest_answer_;
  const Env* const env_;
  JobContext* const job_;

  std::shared_ptr<const control::TreeWay> way_;
  uint32_t term_ = 0;
  int64_t parent_ = -2;            // server; -1: the owner
  ReplicaChannel* channel_ = nullptr;
  std::vector<ForwardMember> members_;   // by key
  std::map<uint32_t, Seat> seats_;       // by member's id

  State state_ = State::kIdle;
  uint64_t round_ = 0;             // GATHER, FORWARDED
  bool broadcast_ = false;         // of the members' pushes so far,
  bool any_ = false;               // if there are any
  bool has_values_ = false, asked_to_skip_ = false;
  std::vector<uint32_t> ranks_;    // that the sum has
  BlockPtr assigned_;
  RoundReducer reducer_;

  FrameHeader up_;                 // FORWARDED: what was sent,
  BlockPtr sum_;                   // with this memory
  BlockPtr reply_;                 // where the answer lands
  SlotId slot_ = 0;
  LinkId slot_link_ = 0;
  std::optional<transport::Reassembler> reassembler_;
  std::pair<uint32_t, uint64_t> reassembling_{0, 0};   // attempt and round of the stripes that are counted
  TimeNs retry_at_ = 0;

  std::optional<Answer> last_;     // of the last round that was answered
};

}  // namespace sluice::server
