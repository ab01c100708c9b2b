#include "worker/client.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/client_impl.h"
#include "worker/client_status.h"

namespace sluice {
namespace {

constexpr size_t kMaxBufferElements = std::numeric_limits<ptrdiff_t>::max() / sizeof(float);

// Of an operation, in nanoseconds; 0 = none. Whoever says milliseconds::max() means no limit.
TimeNs Timeout(const OpOptions& options, uint32_t default_ms) {
  const int64_t ms = options.timeout.has_value() ? options.timeout->count() : int64_t{default_ms};
  constexpr TimeNs kMost = std::numeric_limits<TimeNs>::max() / 2;
  return ms > kMost / kMillisecond ? 0 : std::max<int64_t>(ms, 0) * kMillisecond;
}

Status Misuse(std::string text) { return Status(Code::kFailedPrecondition, std::move(text)); }

proto::TensorSpec ToProto(const TensorSpec& spec, int priority) {
  proto::TensorSpec out;
  out.set_name(spec.name);
  for (uint64_t extent : spec.shape) out.add_shape(extent);
  out.set_dtype("fp32");
  out.set_kind(spec.kind == TensorKind::kBias   ? proto::TENSOR_BIAS
               : spec.kind == TensorKind::kNorm ? proto::TENSOR_NORM
                                                : proto::TENSOR_WEIGHT);
  out.set_priority(spec.priority.value_or(priority));
  out.set_occasional(!spec.every_step);
  return out;
}

const char* CodeName(Code code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const int i = static_cast<int>(code);
  return i >= 0 && i <= 16 ? kNames[i] : "UNKNOWN";
}

}  // namespace

std::string Status::ToString() const { return ok() ? "OK" : absl::StrCat(CodeName(code_), ": ", message_); }

Result<OpInfo> Handle::Wait() {
  if (state_ == nullptr) return Misuse("an empty handle");
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
  if (!state_->status.ok()) return state_->status;
  return state_->info;
}

bool Handle::Done() const {
  if (state_ == nullptr) return true;
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->done;
}

void Handle::Cancel() {
  if (state_ != nullptr && state_->cancel) state_->cancel();
}

void Handle::WaitReleased() {
  if (state_ == nullptr) return;
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->released; });
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  std::lock_guard<std::mutex> lock(impl_->shared->mutex);
  impl_->shared->runtime = nullptr;
}

std::unique_ptr<Client> ClientAccess::Make(std::unique_ptr<worker::Runtime> runtime) {
  auto impl = std::make_unique<Client::Impl>();
  impl->runtime = std::move(runtime);
  impl->shared->runtime = impl->runtime.get();
  impl->runtime->Call([&] {
    worker::WorkerCore& core = impl->runtime->core();
    impl->rank = static_cast<int>(core.rank());
    impl->world_size = static_cast<int>(core.world_size());
    impl->job_uid = core.job_uid();
    return true;
  });
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

int Client::rank() const { return impl_->rank; }
int Client::world_size() const { return impl_->world_size; }
float Client::rate() const { return impl_->shared->rate.load(); }

Result<Tensor> Client::RegisterTensor(const TensorSpec& spec) {
  Result<std::vector<Tensor>> tensors = RegisterTensors({spec});
  if (!tensors.ok()) return tensors.status();
  return tensors->front();
}

Result<std::vector<Tensor>> Client::RegisterTensors(const std::vector<TensorSpec>& specs) {
  std::vector<proto::TensorSpec> out;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    for (const TensorSpec& spec : specs) out.push_back(ToProto(spec, impl_->next_priority++));
  }
  using Ids = absl::StatusOr<std::vector<uint32_t>>;
  worker::WorkerCore& core = impl_->runtime->core();
  const Ids ids = impl_->runtime->Await<Ids>([&](std::function<void(Ids)> done) {
    core.RegisterTensors(std::move(out), [&core, shared = impl_->shared, done = std::move(done)](Ids ids) {
      shared->rate.store(core.rate());
      done(std::move(ids));
    });
  });
  if (!ids.ok()) return FromAbsl(ids.status());
  std::vector<Tensor> tensors;
  for (uint32_t id : *ids) tensors.push_back(Tensor{id});
  return tensors;
}

Result<Buffer> Client::AllocateBuffer(size_t elements) {
  if (elements > kMaxBufferElements) {
    return Status(Code::kInvalidArgument, absl::StrCat("a buffer of ", elements, " elements: at most ",
                                                       kMaxBufferElements, " can be addressed"));
  }
  absl::StatusOr<std::shared_ptr<std::byte>> memory =
      impl_->runtime->endpoint().Allocate(std::max<size_t>(elements, 1) * sizeof(float));
  if (!memory.ok()) return FromAbsl(memory.status());
  return Buffer(*std::move(memory), elements);
}

uint64_t Client::NextRound(Tensor tensor) const {
  return impl_->runtime->Call([&] { return impl_->runtime->core().NextRound(tensor.id); });
}

Handle Client::Impl::Start(const OpOptions& options, StartFn start) {
  auto state = std::make_shared<Handle::State>();
  const TimeNs timeout = Timeout(options, runtime->config().data().op_timeout_ms());
  const TimeNs deadline = timeout > 0 ? runtime->clock().Now() + timeout : 0;
  // The operation's number is known on the loop only; whoever cancels asks there.
  auto number = std::make_shared<uint64_t>(0);
  state->cancel = [shared = shared, number] {
    std::lock_guard<std::mutex> lock(shared->mutex);
    worker::Runtime* runtime = shared->runtime;
    if (runtime != nullptr) runtime->Post([runtime, number] { runtime->core().Cancel(*number); });
  };
  {
    std::lock_guard<std::mutex> lock(shared->mutex);
    ++shared->unfinished;
  }
  auto end = std::make_shared<OpEnd>(state, [shared = shared] {
    {
      std::lock_guard<std::mutex> lock(shared->mutex);
      --shared->unfinished;
    }
    shared->changed.notify_all();
  });
  runtime->Post([this, start = std::move(start), deadline, number, end = std::move(end)]() mutable {
    auto released = [end]() mutable { end.reset(); };  // the last of the two: gives the buffers back
    auto done = [end, shared = shared](const worker::OpResult& result) mutable {
      OpInfo info;
      info.round = result.round;
      info.skipped = result.skipped;
      info.rejected = result.rejected;
      info.contributors = result.contributors;
      info.next_rate = result.next_rate;
      if (result.status.ok()) shared->rate.store(result.next_rate);
      end->state().Finish(FromAbsl(result.status), info);
      end.reset();
    };
    start(runtime->core(), deadline, number, std::move(done), std::move(released));
  });
  return Handle(std::move(state));
}

Handle Client::Impl::Submit(worker::OpRequest request, const OpOptions& options) {
  if (options.priority.has_value()) request.priority = *options.priority;
  return Start(options, [request = std::move(request)](worker::WorkerCore& core, TimeNs deadline,
                                                       const std::shared_ptr<uint64_t>& number, DoneFn done,
                                                       std::function<void()> released) mutable {
    request.deadline = deadline;
    *number = core.Submit(request, std::move(done), std::move(released));
  });
}

Handle Client::Push(Tensor tensor, std::span<const float> gradient, const OpOptions& options) {
  return impl_->Submit({.kind = worker::OpKind::kPush, .tensor = tensor.id, .input = gradient}, options);
}

Handle Client::Pull(Tensor tensor, std::span<float> out, const OpOptions& options) {
  return impl_->Submit({.kind = worker::OpKind::kPull, .tensor = tensor.id, .output = out}, options);
}

Handle Client::PushPull(Tensor tensor, std::span<const float> gradient, std::span<float> out,
                        const OpOptions& options) {
  return impl_->Submit({.kind = worker::OpKind::kPushPull, .tensor = tensor.id, .input = gradient, .output = out},
                       options);
}

Handle Client::Broadcast(Tensor tensor, std::span<float> values, int root, const OpOptions& options) {
  worker::OpRequest request{.kind = worker::OpKind::kBroadcast,
                            .tensor = tensor.id,
                            .input = values,
                            .output = values,
                            .root = static_cast<uint32_t>(root)};
  if (options.priority.has_value()) request.priority = *options.priority;
  return impl_->Start(options, [request = std::move(request)](worker::WorkerCore& core, TimeNs deadline,
                                                              const std::shared_ptr<uint64_t>& number, Impl::DoneFn done,
                                                              std::function<void()> released) mutable {
    request.deadline = deadline;
    auto check = [done = std::move(done), root = request.root](const worker::OpResult& result) mutable {
      if (!result.status.ok() || !result.skipped || result.rejected) return done(result);
      worker::OpResult lost = result;
      lost.status = absl::AbortedError(absl::StrCat(
          "rank ", root, ", the root of a broadcast, was lost before its values came (job.on_worker_loss=rescale): the "
          "servers' parameters are what they were; all ranks may broadcast again from another root"));
      done(lost);
    };
    *number = core.Submit(request, std::move(check), std::move(released));
  });
}

Status Client::Barrier(const std::string& name) {
  return FromAbsl(impl_->runtime->Await<absl::Status>(
      [&](std::function<void(absl::Status)> done) { impl_->runtime->core().Barrier(name, std::move(done)); }));
}

std::string Client::Impl::SnapshotName() const {
  return absl::StrFormat("%s-%016x-rank%d.snapshot", runtime->config().job().name(), job_uid, rank);
}

std::string Client::snapshot_path() const {
  const std::string& directory = impl_->runtime->config().data().snapshot_dir();
  return directory.empty() ? "" : absl::StrCat(directory, "/", impl_->SnapshotName());
}

Result<worker::SnapshotFile*> Client::Impl::SnapshotOnDisk() {
  if (!snapshot.has_value()) {
    const proto::Config& config = runtime->config();
    if (config.data().snapshot_dir().empty()) {
      return Misuse("data.snapshot_dir is not set: there is no place for snapshots");
    }
    absl::StatusOr<worker::SnapshotFile> file =
        worker::SnapshotFile::Open(config.data().snapshot_dir(), SnapshotName());
    if (!file.ok()) return FromAbsl(file.status());
    snapshot.emplace(*std::move(file));
  }
  return &*snapshot;
}

Status Client::SaveSnapshot(std::span<const std::byte> user_state) {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  Result<worker::SnapshotFile*> file = impl_->SnapshotOnDisk();
  if (!file.ok()) return file.status();
  absl::StatusOr<std::vector<std::byte>> core = impl_->runtime->Call([&] { return impl_->runtime->core().Snapshot(); });
  if (!core.ok()) return FromAbsl(core.status());
  return FromAbsl((*file)->Write(*core, user_state));
}

Result<std::optional<std::vector<std::byte>>> Client::RestoreSnapshot() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->runtime->config().data().snapshot_dir().empty()) return std::optional<std::vector<std::byte>>();
  Result<worker::SnapshotFile*> file = impl_->SnapshotOnDisk();
  if (!file.ok()) return file.status();
  absl::StatusOr<std::optional<worker::SnapshotFile::Content>> content = (*file)->ReadNewest();
  if (!content.ok()) return FromAbsl(content.status());
  if (!content->has_value()) return std::optional<std::vector<std::byte>>();
  worker::WorkerCore& core = impl_->runtime->core();
  const absl::Status restored = impl_->runtime->Call([&] {
    absl::Status status = core.Restore((*content)->core);
    impl_->shared->rate.store(core.rate());
    return status;
  });
  if (!restored.ok()) {
    return Status(static_cast<Code>(restored.code()), absl::StrCat((*file)->path(), ": ", restored.message()));
  }
  return std::optional<std::vector<std::byte>>(std::move((*content)->user));
}

void Client::ReportLoss(double loss) {
  impl_->runtime->Post([runtime = impl_->runtime.get(), loss] { runtime->core().ReportLoss(loss); });
}

ClientStats Client::stats() const {
  const worker::WorkerStats stats = impl_->runtime->Call([&] { return impl_->runtime->core().stats(); });
  ClientStats out;
  out.push_wire_bytes = stats.bytes_out_push;
  out.pull_wire_bytes = stats.bytes_in_pull;
  out.push_raw_bytes = stats.raw_bytes;
  out.replays = stats.replays;
  out.reconnects = stats.reconnects;
  out.peer_bytes_out = stats.peer_bytes_out;
  out.peer_bytes_in = stats.peer_bytes_in;
  out.transport = stats.transport;
  return out;
}

Status Client::Finish() {
  {
    std::unique_lock<std::mutex> lock(impl_->shared->mutex);
    impl_->shared->changed.wait(lock, [&] { return impl_->shared->unfinished == 0; });
  }
  if (const absl::Status written = impl_->runtime->WriteCalibration(); !written.ok()) return FromAbsl(written);
  const absl::Status left = impl_->runtime->Await<absl::Status>([&](std::function<void(absl::Status)> done) {
    impl_->runtime->core().Leave(/*failed=*/false, "finished", std::move(done));
  });
  if (!left.ok()) return FromAbsl(left);
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->snapshot.has_value()) impl_->snapshot->Remove();  // nobody goes on with a job that has ended
  return FromAbsl(impl_->runtime->WriteTrace());
}

Status Client::Abort(const std::string& why) {
  return FromAbsl(impl_->runtime->Await<absl::Status>([&](std::function<void(absl::Status)> done) {
    impl_->runtime->core().Leave(/*failed=*/true, why, std::move(done));
  }));
}

}  // namespace sluice
