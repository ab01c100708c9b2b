// The backup's half of replication (docs/replication.md): takes the messages of an owner's stream in their order, once each.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/job.h"

namespace sluice::server {

using transport::FrameHeader;
using transport::FrameType;
using transport::LinkId;
using transport::RetryReason;
using Admission = transport::StreamReceiver::Admission;

Admission Job::AdmitReplica(LinkId link, const FrameHeader& message) {
  if (!error_.ok()) {
    env_.replier->SendError(link, message, error_);
    return Admission::kAnswered;
  }
  const auto it = incoming_.find(message.partition);
  const bool older = it != incoming_.end() &&
                     std::pair(message.term, message.aux64) < std::pair(it->second.term, it->second.since);
  if (it == incoming_.end() || older || message.term != it->second.term || message.aux64 != it->second.since) {
    if (!older) env_.host->RequestPlan(number_);
    env_.replier->SendRetry(link, message, older ? RetryReason::kTerm : RetryReason::kPlan,
                            it == incoming_.end() ? 0 : it->second.term);
    return Admission::kAnswered;
  }
  const Incoming& incoming = it->second;
  if (message.rank != (kReplicaRank | incoming.owner)) {
    env_.host->EndLink(link, message,
                       absl::InvalidArgumentError(absl::StrCat("server ", message.rank & ~kReplicaRank,
                                                               " is not the owner of partition ", message.partition,
                                                               " in term ", message.term, "; server ", incoming.owner, " is")));
    return Admission::kAnswered;
  }
  if (message.round < incoming.next) {
    Acknowledge(link, message);
    return Admission::kAnswered;
  }
  if (message.round > incoming.next) {
    env_.replier->SendRetry(link, message, RetryReason::kBusy, incoming.term);
    return Admission::kAnswered;
  }
  return Admission::kAccept;
}

void Job::Acknowledge(LinkId link, const FrameHeader& message) {
  env_.replier->Send(link, AnswerTo(message, FrameType::kApplied));
}

absl::Status Job::TakeReplica(LinkId link, const FrameHeader& message, ConstBytes payload) {
  if (AdmitReplica(link, message) == Admission::kAnswered) return absl::OkStatus();
  Incoming& incoming = incoming_.at(message.partition);
  if (message.has(transport::kFlagMore)) {
    incoming.gathered.insert(incoming.gathered.end(), payload.begin(), payload.end());
  } else if (incoming.gathered.empty()) {
    SLUICE_RETURN_IF_ERROR(ApplyReplica(message.partition, payload));
  } else {
    incoming.gathered.insert(incoming.gathered.end(), payload.begin(), payload.end());
    const std::vector<std::byte> whole = std::exchange(incoming.gathered, {});
    SLUICE_RETURN_IF_ERROR(ApplyReplica(message.partition, whole));
  }
  ++incoming.next;
  Acknowledge(link, message);
  return absl::OkStatus();
}

absl::Status Job::ApplyReplica(uint32_t index, ConstBytes bytes) {
  SLUICE_ASSIGN_OR_RETURN(const ReplicaParts parts, ParseReplicaMessage(bytes));
  if (parts.head.has_round() || parts.head.has_rows()) return partitions_[index]->Replay(parts.head, parts.bulk);
  // A state. Until it is whole, the copy that there is may still be needed.
  for (const proto::TensorInfo& tensor : plan_->tensors()) {
    if (index < tensor.first_partition() ||
        index - tensor.first_partition() >= static_cast<uint32_t>(tensor.partition_elements_size())) {
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Partition> fresh,
                            MakePartition(tensor, static_cast<int>(index - tensor.first_partition())));
    fresh->set_owner(false);
    fresh->set_term(partitions_[index]->term());
    SLUICE_RETURN_IF_ERROR(fresh->Load(parts.head, parts.bulk));
    fresh->MembershipChanged();
    partitions_[index] = std::move(fresh);
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("partition ", index, " is in no tensor of the plan"));
}

}  // namespace sluice::server
