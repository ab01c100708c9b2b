// Collectives and messages among workers.
#include <utility>

#include "worker/client.h"
#include "worker/client_impl.h"
#include "worker/client_status.h"

namespace sluice {
namespace {

using collective::Kind;
using collective::Request;

collective::Algorithm ToCore(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kRing: return collective::Algorithm::kRing;
    case CollectiveAlgorithm::kHalvingDoubling: return collective::Algorithm::kHalvingDoubling;
    case CollectiveAlgorithm::kDoubleTree: return collective::Algorithm::kDoubleTree;
    case CollectiveAlgorithm::kHierarchical: return collective::Algorithm::kHierarchical;
    case CollectiveAlgorithm::kChain: return collective::Algorithm::kChain;
    case CollectiveAlgorithm::kTree: return collective::Algorithm::kTree;
    case CollectiveAlgorithm::kAuto: break;
  }
  return collective::Algorithm::kAuto;
}

Request ToCore(Kind kind, std::span<const float> input, std::span<float> output, const CollectiveOptions& options) {
  Request request;
  request.kind = kind;
  request.group = options.group;
  request.input = input;
  request.output = output;
  request.reduction = options.reduction == CollectiveReduction::kMean ? collective::Reduction::kMean : collective::Reduction::kSum;
  request.algorithm = ToCore(options.algorithm);
  request.codec = options.codec;
  request.residual = options.residual;
  request.priority = options.priority;
  return request;
}

// Members are counted by unsigned numbers inside; a negative one is none.
uint32_t Member(int index) { return index < 0 ? UINT32_MAX : static_cast<uint32_t>(index); }

}  // namespace

Handle Client::Impl::SubmitCollective(Request request, const CollectiveOptions& options) {
  return Start({.timeout = options.timeout},
               [request = std::move(request)](worker::WorkerCore& core, TimeNs deadline, const std::shared_ptr<uint64_t>& number,
                                              DoneFn done, std::function<void()> released) mutable {
                 request.deadline = deadline;
                 *number = core.SubmitCollective(std::move(request), std::move(done), std::move(released));
               });
}

Result<Group> Client::FindGroup(const std::string& name) const {
  const absl::StatusOr<RankGroup> found = impl_->runtime->Call([&] { return impl_->runtime->core().FindGroup(name); });
  if (!found.ok()) return FromAbsl(found.status());
  return Group{.index = static_cast<int>(found->index),
               .size = static_cast<int>(found->size),
               .first_rank = static_cast<int>(found->first),
               .stride = static_cast<int>(found->stride)};
}

Handle Client::AllReduce(std::span<const float> values, std::span<float> out, const CollectiveOptions& options) {
  return impl_->SubmitCollective(ToCore(Kind::kAllReduce, values, out, options), options);
}

Handle Client::Reduce(std::span<const float> values, std::span<float> out, int root, const CollectiveOptions& options) {
  Request request = ToCore(Kind::kReduce, values, out, options);
  request.root = Member(root);
  return impl_->SubmitCollective(std::move(request), options);
}

Handle Client::Broadcast(std::span<float> values, int root, const CollectiveOptions& options) {
  Request request = ToCore(Kind::kBroadcast, {}, values, options);
  request.root = Member(root);
  return impl_->SubmitCollective(std::move(request), options);
}

Handle Client::AllGather(std::span<const float> values, std::span<float> out, const CollectiveOptions& options) {
  return impl_->SubmitCollective(ToCore(Kind::kAllGather, values, out, options), options);
}

Handle Client::ReduceScatter(std::span<const float> values, std::span<float> out, const CollectiveOptions& options) {
  return impl_->SubmitCollective(ToCore(Kind::kReduceScatter, values, out, options), options);
}

Handle Client::AllToAll(std::span<const float> values, std::span<float> out, const CollectiveOptions& options) {
  return impl_->SubmitCollective(ToCore(Kind::kAllToAll, values, out, options), options);
}

Handle Client::Send(std::span<const float> values, int to, uint32_t tag, const CollectiveOptions& options) {
  Request request = ToCore(Kind::kSend, values, {}, options);
  request.peer = Member(to);
  request.tag = tag;
  return impl_->SubmitCollective(std::move(request), options);
}

Handle Client::Receive(std::span<float> out, int from, uint32_t tag, const CollectiveOptions& options) {
  Request request = ToCore(Kind::kReceive, {}, out, options);
  request.peer = Member(from);
  request.tag = tag;
  return impl_->SubmitCollective(std::move(request), options);
}

Handle Client::GroupBarrier(const CollectiveOptions& options) {
  return impl_->SubmitCollective(ToCore(Kind::kBarrier, {}, {}, options), options);
}

}  // namespace sluice
