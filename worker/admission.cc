#include "worker/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "compression/matrix_shape.h"
#include "compression/policy.h"

namespace sluice::worker {
namespace {

// Values in flight to a worker that is being admitted.
constexpr size_t kWindowBytes = 32 << 20;
constexpr uint64_t kMaxPartitionElements = uint64_t{1}
                                           << 30;  // FrameHeader::elements and sizes in fp32 bytes stay in bounds

}  // namespace

absl::Status CheckPlan(const proto::Plan& plan) {
  const auto bad = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat("plan ", plan.version(), " of job ", plan.job(), ": ", what...));
  };
  std::map<uint32_t, int> lanes;
  for (const proto::ServerInfo& server : plan.servers()) lanes[server.server()] = server.lanes_size();
  for (int i = 0; i < plan.shards_size(); ++i) {
    const proto::ShardInfo& shard = plan.shards(i);
    auto it = lanes.find(shard.server());
    if (shard.shard() != static_cast<uint32_t>(i) || it == lanes.end() ||
        shard.lane() >= static_cast<uint32_t>(it->second)) {
      return bad("shard ", i, " lies on server ", shard.server(), " lane ", shard.lane(),
                 ", which the plan does not name");
    }
  }
  uint64_t partitions = 0;
  uint32_t tensors = 0;
  for (const proto::TensorInfo& tensor : plan.tensors()) {
    if (tensor.tensor() != tensors++) return bad("tensors are not numbered in order");
    uint64_t elements = 0, product = 1;
    for (uint64_t elements_of_one : tensor.partition_elements()) {
      if (elements_of_one == 0 || elements_of_one > kMaxPartitionElements)
        return bad("tensor ", tensor.spec().name(), " has a partition of ", elements_of_one, " elements");
      elements += elements_of_one;
    }
    for (uint64_t extent : tensor.spec().shape()) {
      if (extent == 0 || product > (uint64_t{1} << 48) / extent)
        return bad("tensor ", tensor.spec().name(), " has no sane shape");
      product *= extent;
    }
    if (tensor.spec().has_table()) {
      const uint32_t dim = tensor.spec().table().dim();
      if (dim == 0 || std::ranges::any_of(tensor.partition_elements(), [&](uint64_t n) { return n != dim; }))
        return bad("the segments of table ", tensor.spec().name(), " are not of its ", dim, " values a row");
      product = elements;
    }
    const bool partitioned = tensor.exchange() == proto::EXCHANGE_SERVERS;
    if (!partitioned && (tensor.spec().has_table() || product > kMaxPartitionElements))
      return bad("tensor ", tensor.spec().name(), " of ", product, " elements cannot be exchanged among workers");
    if (elements != (partitioned ? product : 0) || tensor.partition_elements_size() != tensor.partition_shard_size()) {
      return bad("the partitions of tensor ", tensor.spec().name(), " do not add up to its shape");
    }
    for (uint32_t shard : tensor.partition_shard()) {
      if (shard >= static_cast<uint32_t>(plan.shards_size()))
        return bad("tensor ", tensor.spec().name(), " lies on shard ", shard, ", which the plan does not name");
    }
    if (tensor.first_partition() != partitions)
      return bad("the partitions of tensor ", tensor.spec().name(), " are not numbered in order");
    partitions += tensor.partition_elements_size();
  }
  return absl::OkStatus();
}

void Admission::Register(std::vector<proto::TensorSpec> specs, Done done) {
  Request request;
  request.number = next_number_++;
  request.done = std::move(done);
  request.since = env_.clock->Now();
  request.specs = specs;
  const uint64_t number = request.number;
  requests_.push_back(std::move(request));
  env_.member->RegisterTensors(std::move(specs),
                               [this, number](const proto::RequestDone& answer) { OnAnswer(number, answer); });
}

std::list<Admission::Request>::iterator Admission::FindRequest(uint64_t number) {
  return std::find_if(requests_.begin(), requests_.end(), [&](const Request& r) { return r.number == number; });
}

void Admission::OnAnswer(uint64_t number, const proto::RequestDone& answer) {
  auto it = FindRequest(number);
  if (it == requests_.end()) return;  // timed out meanwhile
  if (answer.code() != 0) {
    Complete(it, absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()));
    return;
  }
  if (static_cast<size_t>(answer.tensors_size()) != it->specs.size()) {
    Complete(it, absl::InternalError(absl::StrCat("the scheduler answered ", answer.tensors_size(), " ids for ",
                                                  it->specs.size(), " tensors")));
    return;
  }
  it->answered = true;
  it->ids.assign(answer.tensors().begin(), answer.tensors().end());
  TryMake(*it);
}

void Admission::OnPlan(const proto::Plan& plan) {
  plan_ = plan;
  for (auto it = requests_.begin(); it != requests_.end();) {
    Request& request = *it++;  // TryMake may complete it
    if (request.answered && !request.made) TryMake(request);
  }
  Pump();
}

void Admission::TryMake(Request& request) {
  std::vector<const proto::TensorInfo*> infos;
  for (uint32_t id : request.ids) {
    // Ids are dense and in order.
    if (id >= static_cast<uint32_t>(plan_.tensors_size())) return;  // a newer plan is on its way
    infos.push_back(&plan_.tensors(static_cast<int>(id)));
  }
  request.made = true;
  for (const proto::TensorInfo* info : infos) {
    if (absl::Status status = Make(*info, request); !status.ok()) {
      Complete(FindRequest(request.number), std::move(status));
      return;
    }
  }
  if (request.unfinished == 0) Answered(FindRequest(request.number));
  Pump();
}

absl::Status Admission::Make(const proto::TensorInfo& info, Request& request) {
  if (info.exchange() != proto::EXCHANGE_SERVERS) return env_.exchanged(info);
  if (TensorState* known = env_.ops->Find(info.tensor()); known != nullptr) {
    if (!known->admitted) Adopt(*known, request);
    return absl::OkStatus();  // registered before
  }
  auto tensor = std::make_unique<TensorState>();
  tensor->id = info.tensor();
  tensor->spec = info.spec();
  const bool table = info.spec().has_table();   // its payloads are made elsewhere (worker/rows.h)
  bool residual = false;
  if (!table) {
    const proto::JobConfig& job = plan_.config();
    SLUICE_ASSIGN_OR_RETURN(const std::string codec, compression::CodecFor(job, info.spec()));
    SLUICE_ASSIGN_OR_RETURN(residual, compression::NeedsResidual(job, codec));
    SLUICE_ASSIGN_OR_RETURN(compression::CodecSchedule codecs,
                            compression::CodecSchedule::Make(codec, {.columns = compression::ColumnsOf(info.spec()),
                                                                     .warmup_rounds = job.codec_warmup_rounds(),
                                                                     .momentum = job.momentum_correction()}));
    tensor->codecs = std::make_unique<compression::CodecSchedule>(std::move(codecs));
    SLUICE_RETURN_IF_ERROR(tensor->TakeChoices(plan_));
  }
  if (!table && plan_.config().reply() == proto::REPLY_CHANGE) {
    SLUICE_ASSIGN_OR_RETURN(const std::string reply, compression::ReplyCodecFor(plan_.config(), info.spec()));
    if (reply != "none") {
      SLUICE_ASSIGN_OR_RETURN(tensor->reply_codec, compression::MakeCodec(reply));
    }
  }
  if (table) {
    const proto::TableSpec& rows = info.spec().table();
    SLUICE_ASSIGN_OR_RETURN(tensor->row_codec, compression::MakeRowCodec(rows.codec()));
    if (rows.residual_rows() > 0 && !tensor->row_codec->lossless()) {
      tensor->row_residual = std::make_shared<RowResidual>(rows.dim(), rows.residual_rows());
    }
  }
  std::map<uint32_t, std::shared_ptr<const control::TreeWay>> ways;   // by shard
  for (int i = 0; i < info.partition_elements_size(); ++i) {
    Partition::Shape shape;
    shape.tensor = info.tensor();
    shape.index = info.first_partition() + static_cast<uint32_t>(i);
    shape.offset = tensor->elements;
    shape.elements = info.partition_elements(i);
    shape.siblings = static_cast<size_t>(info.partition_elements_size());
    tensor->elements += shape.elements;
    tensor->partitions.push_back(
        std::make_unique<Partition>(shape, tensor->codecs.get(), residual, tensor->reply_codec.get(), env_.partitions));
    const uint32_t shard = info.partition_shard(i);
    if (!table && !ways.contains(shard)) ways[shard] = control::WayOf(plan_, plan_.shards(static_cast<int>(shard)));
    tensor->partitions.back()->SetRoute(RouteOf(plan_.shards(static_cast<int>(shard)), ways[shard].get(), env_.partitions->rank));
    queue_.emplace_back(tensor->partitions.back().get(), request.number);
    ++request.unfinished;
  }
  env_.made(*env_.ops->AddTensor(std::move(tensor)));
  return absl::OkStatus();
}

// The tensor was made by a request that ended early (timed out, say): this one waits for what is still missing.
void Admission::Adopt(TensorState& tensor, Request& request) {
  for (const auto& partition : tensor.partitions) {
    if (open_rounds_.contains(partition->shape().index)) continue;
    ++request.unfinished;
    if (auto asked = asked_.find(partition.get()); asked != asked_.end()) {
      asked->second.request = request.number;
      continue;
    }
    const auto queued =
        std::find_if(queue_.begin(), queue_.end(), [&](const auto& q) { return q.first == partition.get(); });
    if (queued != queue_.end()) {
      queued->second = request.number;
    } else {
      queue_.emplace_back(partition.get(), request.number);
    }
  }
}

void Admission::Pump() {
  while (!queue_.empty() && asked_bytes_ < kWindowBytes) {
    const auto [partition, number] = queue_.front();
    queue_.pop_front();
    const auto it = FindRequest(number);
    const Request::Step step = it == requests_.end() ? Request::Step::kAsking : it->step;
    Partition::Pull pull;
    pull.admit = step != Request::Step::kWaiting;
    if (step != Request::Step::kAsking) pull.round = it->round;
    // The value is that of the round that it waits for, and where the trainer pulls it not even that is needed.
    pull.bare = Joins(*partition) && (pull.admit || plan_.config().reply() != proto::REPLY_CHANGE);
    const size_t bytes = pull.bare ? 0 : partition->shape().elements * sizeof(float);
    asked_[partition] = {number, bytes};
    asked_bytes_ += bytes;
    if (absl::Status status = partition->StartPull(pull, env_.link(*partition)); !status.ok()) {
      partition->Abandon(std::move(status));
    }
  }
}

bool Admission::OnPartitionIdle(Partition* partition) {
  auto asked = asked_.find(partition);
  if (asked == asked_.end()) return false;
  auto it = FindRequest(asked->second.request);
  asked_bytes_ -= asked->second.bytes;
  asked_.erase(asked);
  if (partition->answer().status.ok()) open_rounds_[partition->shape().index] = partition->answer().round;
  if (it != requests_.end()) {
    if (!partition->answer().status.ok()) {
      Complete(it, partition->answer().status);
    } else {
      it->most = std::max(it->most, partition->answer().round);
      it->least = std::min(it->least, partition->answer().round);
      if (--it->unfinished == 0) Answered(it);
    }
  }
  Pump();
  return true;
}

bool Admission::Joins(const Partition& partition) const {
  const uint32_t rank = env_.partitions->rank;
  if (rank >= static_cast<uint32_t>(plan_.workers_size())) return false;
  const proto::WorkerInfo& self = plan_.workers(static_cast<int>(rank));
  // Of a tensor that came after it had joined it is a worker like any other.
  return self.joining() != 0 && self.joining() == env_.partitions->incarnation &&
         partition.shape().index < static_cast<uint32_t>(self.out_from_round_size());
}

void Admission::Ask(Request& request, Request::Step step) {
  request.step = step;
  request.most = 0;
  request.least = UINT64_MAX;
  for (TensorState* tensor : request.joins) {
    for (const auto& partition : tensor->partitions) {
      queue_.emplace_back(partition.get(), request.number);
      ++request.unfinished;
    }
  }
}

void Admission::Answered(std::list<Request>::iterator it) {
  using Step = Request::Step;
  const bool bsp = plan_.config().mode() == proto::MODE_BSP;
  Request& request = *it;
  if (request.step == Step::kAsking) {
    for (const uint32_t id : request.ids) {
      TensorState* tensor = env_.ops->Find(id);
      if (tensor != nullptr && !tensor->admitted && Joins(*tensor->partitions.back())) request.joins.push_back(tensor);
    }
    if (request.joins.empty()) return Complete(it, absl::OkStatus());
  }
  if (request.step == Step::kAsking || request.step == Step::kHeld) {
    if (!joined_at_.has_value() && naming_ != 0) {
      request.step = Step::kHeld;
      return;
    }
    if (!joined_at_.has_value()) naming_ = request.number;
    // Round 0 would say that nothing is named.
    request.round = joined_at_.value_or(bsp ? request.most + ahead_ : std::max<uint64_t>(request.most, 1));
    return Ask(request, Step::kNaming);
  }
  if (request.step == Step::kNaming) {
    if (!joined_at_.has_value()) {
      if (bsp ? request.most >= request.round : request.most > request.round) {
        ahead_ = std::min<uint64_t>(2 * ahead_, 64);
        request.round = bsp ? request.most + ahead_ : request.most;
        return Ask(request, Step::kNaming);
      }
      joined_at_ = request.round;
    }
    if (bsp) return Ask(request, Step::kWaiting);
  } else {
    joined_at_ = std::min(*joined_at_, request.least);   // lower: the others have left
    request.round = *joined_at_;
  }
  Complete(it, absl::OkStatus());
}

void Admission::LetHeldGo() {
  for (auto it = requests_.begin(); it != requests_.end();) {
    const auto held = it++;   // Answered may complete it
    if (held->step == Request::Step::kHeld) Answered(held);
  }
  Pump();
}

uint64_t Admission::open_round(uint32_t partition) const {
  auto it = open_rounds_.find(partition);
  return it == open_rounds_.end() ? 0 : it->second;
}

void Admission::Complete(std::list<Request>::iterator it, absl::Status status) {
  Request request = std::move(*it);
  requests_.erase(it);
  if (naming_ == request.number) {
    naming_ = 0;
    LetHeldGo();
  }
  if (!status.ok()) {
    request.done(std::move(status));
    return;
  }
  uint64_t least = UINT64_MAX, most = 0;
  std::vector<TensorState*> fresh;
  for (uint32_t id : request.ids) {
    TensorState* tensor = env_.ops->Find(id);
    if (tensor == nullptr || tensor->admitted) continue;
    tensor->next_round = UINT64_MAX;
    for (const auto& partition : tensor->partitions) {
      tensor->next_round = std::min(tensor->next_round, open_round(partition->shape().index));
      env_.ops->set_next_rate(partition->next_rate());
    }
    if (std::ranges::find(request.joins, tensor) != request.joins.end()) tensor->next_round = request.round;
    tensor->admitted = true;
    least = std::min(least, tensor->next_round);
    most = std::max(most, tensor->next_round);
    fresh.push_back(tensor);
  }
  if (plan_.config().mode() == proto::MODE_BSP && most - least == 1 && request.joins.empty()) {
    for (TensorState* tensor : fresh) tensor->next_round = least;
  }
  request.done(std::move(request.ids));
}

void Admission::OnTick() {
  for (auto it = requests_.begin(); it != requests_.end();) {
    auto next = std::next(it);
    if (env_.clock->Now() - it->since >= env_.timeout) {
      Complete(it, absl::DeadlineExceededError(absl::StrCat(Describe(*it), "; gave up (node.connect_timeout_ms)")));
    }
    it = next;
  }
}

void Admission::Fail(const absl::Status& why) {
  queue_.clear();
  naming_ = 0;
  for (const auto& [partition, asked] : std::map<Partition*, Asked>(asked_)) partition->Abandon(why);
  while (!requests_.empty()) Complete(requests_.begin(), why);
}

std::string Admission::Describe(const Request& request) const {
  const std::string names =
      absl::StrCat(request.specs.empty() ? "" : request.specs.front().name(),
                   request.specs.size() > 1 ? absl::StrCat(" and ", request.specs.size() - 1, " more") : "");
  std::string what = absl::StrFormat("registration of tensor %s, %.1f s of %.1f s: ", names,
                                     static_cast<double>(env_.clock->Now() - request.since) / kSecond,
                                     static_cast<double>(env_.timeout) / kSecond);
  if (!request.answered) {
    absl::StrAppend(&what, "the scheduler has not answered (all workers and servers must be there: sluicectl status)");
  } else if (!request.made) {
    absl::StrAppend(&what, "no plan with it has come from the scheduler yet");
  } else {
    for (const auto& [partition, asked] : asked_) {
      if (asked.request != request.number) continue;
      return absl::StrCat(what, request.unfinished, " partitions are not admitted yet; partition ",
                          partition->shape().index, " on ", env_.describe(*partition), ": ", partition->Progress());
    }
    absl::StrAppend(&what, request.unfinished, " partitions are not admitted yet");
  }
  return what;
}

std::string Admission::Waiting() const { return requests_.empty() ? "" : Describe(requests_.front()); }

}  // namespace sluice::worker
