// What stands behind Client's methods, in whichever file they are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "worker/client.h"
#include "worker/client_internal.h"
#include "worker/client_runtime.h"
#include "worker/client_status.h"
#include "worker/handle_state.h"
#include "worker/row_cache.h"
#include "worker/row_pulls.h"
#include "worker/rows.h"
#include "worker/snapshot_file.h"

namespace sluice {

// Tells the handle's holder the end, also when the core goes down without having called back.
class OpEnd {
 public:
  explicit OpEnd(std::shared_ptr<Handle::State> state, std::function<void()> gone)
      : state_(std::move(state)), gone_(std::move(gone)) {}
  OpEnd(const OpEnd&) = delete;
  OpEnd& operator=(const OpEnd&) = delete;
  ~OpEnd() {
    state_->Finish(Status(Code::kCancelled, "the client was destroyed"), {});
    state_->Release();
    gone_();
  }
  Handle::State& state() { return *state_; }

 private:
  const std::shared_ptr<Handle::State> state_;
  const std::function<void()> gone_;
};

// An operation that has failed before it began.
inline Handle Ended(const absl::Status& status) {
  auto state = std::make_shared<Handle::State>();
  state->Finish(FromAbsl(status), {});
  state->Release();
  return Handle(std::move(state));
}

// Held by the operations' ends and by handles too, which may outlive their client.
struct Shared {
  std::mutex mutex;
  std::condition_variable changed;
  size_t unfinished = 0;               // guarded by mutex: operations whose buffers are not released yet
  worker::Runtime* runtime = nullptr;  // guarded by mutex; null once the client is gone
  std::atomic<float> rate{0};
};

struct Client::Impl {
  std::unique_ptr<worker::Runtime> runtime;
  int rank = 0, world_size = 0;
  uint64_t job_uid = 0;
  const std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::mutex mutex;
  int next_priority = 0;  // guarded by mutex, as the rest
  std::optional<worker::SnapshotFile> snapshot;
  struct KnownTable {
    worker::TableShape shape;
    std::shared_ptr<worker::RowCache> cache;         // null: none
    uint64_t pushed = 0;                             // rounds, as the cache counts them
  };
  std::map<uint32_t, KnownTable> tables;             // that were registered
  std::vector<std::unique_ptr<worker::RowPullScratch>> scratch;   // that no thread uses at the moment

  using DoneFn = std::function<void(const worker::OpResult&)>;
  // Runs on the loop: begins the operation, stores its number, and calls done and released as WorkerCore::Submit does.
  using StartFn = std::function<void(worker::WorkerCore& core, TimeNs deadline, const std::shared_ptr<uint64_t>& number,
                                     DoneFn done, std::function<void()> released)>;
  Handle Start(const OpOptions& options, StartFn start);
  Handle Submit(worker::OpRequest request, const OpOptions& options);
  Handle SubmitCollective(collective::Request request, const CollectiveOptions& options);
  Handle SubmitFromDevice(worker::OpRequest request, DeviceGradient gradient, DeviceOutput out, void* stream,
                          const OpOptions& options);
  Result<worker::SnapshotFile*> SnapshotOnDisk();  // with mutex held
  std::string SnapshotName() const;
  absl::StatusOr<KnownTable> Known(Table table);
  void CountPush(Table table);                       // after it is on its way
  absl::StatusOr<std::shared_ptr<const worker::RowPull>> PreparePull(const worker::TableShape& shape,
                                                                     std::span<const uint64_t> ids);
  // Through the cache, if there is one; out empty: into the cache alone.
  Handle PullCached(Table table, const KnownTable& known, std::span<const uint64_t> ids, std::span<float> out,
                    const OpOptions& options);
  absl::StatusOr<worker::OpRequest> Prepare(Table table, std::span<const uint64_t> ids, std::span<const float> gradients,
                                            const OpOptions& options);
};

}  // namespace sluice
