// Sluice's client library: the only header that a trainer includes. Link with -lsluice (pkg-config sluice).
//
//   auto client = sluice::Client::Connect(options);            // or ConnectFromFlags(&argc, argv)
//   auto w = (*client)->RegisterTensor({.name = "w", .shape = {784, 10}});
//   (*client)->Broadcast(*w, weights, /*root=*/0).Wait();      // same start everywhere
//   for (...) {
//     ...                                                      // gradient of this worker's batch
//     auto result = (*client)->PushPull(*w, gradient, weights).Wait();   // in weights: new parameters
//   }
//   (*client)->Finish();
//
// What a round means (who sums, which optimizer, what comes back, which codec) is the job's configuration, equal on all
// workers: docs/configuration.md, section job. With job.exchange a tensor's rounds go among the workers instead of over servers:
// the calls are the same, but a worker that is lost ends those of all others for good (kUnavailable, kAborted), and all start
// again from the trainer's own checkpoint. docs/topology/collectives.md, "The hybrid".
//
// Threads: every method may be called from any thread. Operations on one tensor take effect in the order of their
// calls; operations on different tensors overlap. All sizes are in elements unless the name says bytes.
// Ownership: input and output memory belongs to Sluice until Handle::Wait returned with OK or an error other than
// kDeadlineExceeded and kCancelled; after those two, until Handle::WaitReleased returned.
// Errors: no exceptions. A Status says who, where, how long and what to do next.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace sluice {

// The usual codes of gRPC and Abseil, by the same numbers.
enum class Code : int {
  kOk = 0, kCancelled = 1, kUnknown = 2, kInvalidArgument = 3, kDeadlineExceeded = 4, kNotFound = 5,
  kAlreadyExists = 6, kPermissionDenied = 7, kResourceExhausted = 8, kFailedPrecondition = 9, kAborted = 10,
  kOutOfRange = 11, kUnimplemented = 12, kInternal = 13, kUnavailable = 14, kDataLoss = 15, kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;   // "UNAVAILABLE: …"

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}             // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}     // NOLINT
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

enum class TensorKind { kWeight, kBias, kNorm };   // biases and norms go uncompressed and without weight decay

struct TensorSpec {
  std::string name = {};               // unique in the job
  std::vector<uint64_t> shape = {};    // row-major; the product is the number of fp32 elements
  TensorKind kind = TensorKind::kWeight;
  std::optional<int> priority = std::nullopt;  // smaller goes first; default: order of registration (first layers)
  // Every worker pushes it once in every step. False: now and then; then no rank that was lost can come back to the job under
  // job.on_worker_loss=rescale (docs/workers.md), and it goes over servers, whatever job.exchange=auto makes of the others.
  bool every_step = true;
};

struct Tensor {
  uint32_t id = 0;
};

// --- tables: rows by 64-bit id (docs/tables.md)

// How pushed gradients change rows, one row at a time.
struct TableOptimizer {
  std::string kind = "sgd";            // sgd, adagrad, rowwise_adagrad, adam (lazy), ftrl
  double rate = 0.01;                  // follows the schedule of job.optimizer, as a factor; ftrl: alpha
  double epsilon = 1e-8, beta1 = 0.9, beta2 = 0.999;
  double initial_accumulator = 0;      // adagrad, rowwise_adagrad, ftrl
  double l1 = 0, l2 = 0, beta = 1;     // ftrl; l2 of the others: decay of pushed rows
};

struct TableSpec {
  std::string name = {};               // unique in the job, tensors included
  uint32_t dim = 0;                    // fp32 values of a row
  std::string dtype = "fp32";          // at rest: fp32 or bf16
  std::string initializer = "zero";    // zero, uniform in [-init_scale, init_scale), normal with that deviation
  double init_scale = 0.01;
  uint64_t seed = 0;                   // initial values are a function of seed, id and position alone
  TableOptimizer optimizer = {};
  uint32_t admit_after = 1;            // a row is created by its n-th sighting in pushes
  uint64_t max_age_rounds = 0;         // evict rows that were not pushed for so long; 0 = never
  uint64_t max_rows = 0;               // of the whole table; 0 = no bound. The longest not pushed go first
  uint64_t max_bytes_per_server = 0;
  uint64_t vocabulary = 0;             // ids are below it; 0 = any 64-bit id
  bool unknown_as_zero = false;        // ids beyond the vocabulary: read as zeros and not pushed, instead of refused
  bool drop_zero_rows = false;         // remove rows that an update has made all zeros (ftrl with l1)
  uint32_t segments = 0;               // 0 = 4 for each loop of each server
  std::string codec = "none";          // of the gradients that are pushed: none, fp16, bf16, mxfp8, int8, int4
  uint64_t residual_rows = 0;          // rows whose encoding error this worker keeps and adds to their next push; 0 = none
  // This worker's own cache of rows (workers may differ): how many rows, and for how many rounds of its own a pulled row may
  // serve. 0 rounds: within the round alone, which is exact under BSP.
  size_t cache_rows = 0;
  uint64_t cache_staleness = 0;
};

struct Table {
  uint32_t id = 0;
  uint32_t dim = 0;
};

enum class Pooling { kSum, kMean };

// Values in the memory of a GPU.
struct DeviceGradient {
  const float* data = nullptr;
  size_t size = 0;
};
struct DeviceOutput {
  float* data = nullptr;
  size_t size = 0;
};

struct OpOptions {
  std::optional<int> priority = std::nullopt;  // of this call alone
  // Default: data.op_timeout_ms; ends the wait, not the push.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

struct OpInfo {
  uint64_t round = 0;            // the round that was applied
  bool skipped = false;          // the step was skipped (non-finite gradient under policy "skip"), or the push came too late
  bool rejected = false;         // it came too late in some partition (docs/workers.md): the output is what others have made since
  uint32_t contributors = 0;
  float next_rate = 0;           // learning rate of the next round; 0 without an optimizer
};

// --- collectives among workers (docs/topology/collectives.md)

enum class CollectiveAlgorithm { kAuto, kRing, kHalvingDoubling, kDoubleTree, kHierarchical, kChain, kTree };
enum class CollectiveReduction { kSum, kMean };

// Equal on all members of the group, but for residual, priority and timeout.
struct CollectiveOptions {
  std::string group = "world";         // an axis of job.groups
  CollectiveReduction reduction = CollectiveReduction::kSum;   // AllReduce, Reduce, ReduceScatter
  std::string codec = "none";          // of the values on the wire, such as fp16 or int8; not for Reduce and Broadcast
  // With a codec: as many values as the input has, zeros at first, which take what the encoding loses and add it to the next
  // call's input. Empty: no error feedback. AllReduce, ReduceScatter, AllGather.
  std::span<float> residual = {};
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;
  int priority = 0;                    // smaller goes first, among what this worker sends
  // Default: data.op_timeout_ms. It fails the call at all members, as Handle::Cancel does.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

// This worker's group along an axis of job.groups.
struct Group {
  int index = 0;                       // of this worker
  int size = 1;
  int first_rank = 0, stride = 1;      // member i is rank first_rank + i * stride
};

// One asynchronous operation. Copies share it. Dropping the last one does not cancel it.
class Handle {
 public:
  Handle() = default;
  Result<OpInfo> Wait();         // blocks until done
  bool Done() const;             // never blocks
  void Cancel();                 // stops waiting: Wait returns kCancelled; what was pushed stays pushed
  void WaitReleased();           // blocks until Sluice no longer touches the buffers

  struct State;
  explicit Handle(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// Memory that transports can reach without a copy (page-aligned; shared memory between processes of one host).
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<std::byte> memory, size_t elements) : memory_(std::move(memory)), elements_(elements) {}
  std::span<float> values() const { return {reinterpret_cast<float*>(memory_.get()), elements_}; }
  float* data() const { return reinterpret_cast<float*>(memory_.get()); }
  size_t size() const { return elements_; }

 private:
  std::shared_ptr<std::byte> memory_;
  size_t elements_ = 0;
};

struct ClientOptions {
  // key=value pairs as on the command line of the daemons, without dashes: "node.scheduler=10.0.0.1:7700",
  // "job.name=mnist", "job.workers=4", "job.optimizer.kind=adam", "job.codec=int8". `sluice-worker --help` lists all.
  std::vector<std::string> settings = {};
  std::string config_file = {};          // text format; settings win over it
  bool use_environment = true;           // SLUICE_…, RANK, WORLD_SIZE, DMLC_…, SLURM_… (docs/configuration.md)
  int rank = -1;                         // -1: from the environment, or the scheduler gives one
};

struct ClientStats {
  uint64_t push_wire_bytes = 0;          // counted in the transport: payloads and headers
  uint64_t pull_wire_bytes = 0;
  uint64_t push_raw_bytes = 0;           // fp32 bytes that the pushes stand for
  uint64_t replays = 0, reconnects = 0;
  uint64_t peer_bytes_out = 0, peer_bytes_in = 0;   // of links between workers: payloads and headers
  // What the links to the servers go over now: "rdma", "tcp", "shm", joined by "+" where several; "" without a link.
  std::string transport;
};

class Client {
 public:
  // Blocks until the job runs (all its workers and servers are there) or node.connect_timeout_ms passed.
  static Result<std::unique_ptr<Client>> Connect(const ClientOptions& options = {});
  // Takes the flags that are Sluice's out of a trainer's command line: --node.…, --job.…, --data.… (as --job.codec=int8
  // or --job.codec int8), --config=FILE and --print-config. They win over options. Everything else stays in argv for the
  // trainer, untouched and in its order, and so does all that follows "--"; the short forms of Sluice's own programs
  // (--trace, --workers) are the trainer's here. A misspelled one (--job.codce) is kInvalidArgument with the nearest
  // name, and leaves argv as it was. --print-config prints all settings with their sources to standard output, and the
  // call returns kCancelled without connecting.
  static Result<std::unique_ptr<Client>> ConnectFromFlags(int* argc, char** argv, ClientOptions options = {});
  ~Client();                             // without Finish: the job counts this worker as lost
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int rank() const;
  int world_size() const;
  float rate() const;                    // learning rate of the next round, from the job's schedule

  // Every worker registers the same tensors; all in one call is quicker. Blocks until the servers have them.
  Result<Tensor> RegisterTensor(const TensorSpec& spec);
  Result<std::vector<Tensor>> RegisterTensors(const std::vector<TensorSpec>& specs);
  Result<Buffer> AllocateBuffer(size_t elements);

  // The round that the tensor's next operation takes. Not 0 at first: the job has begun without this process (a former
  // life of this worker, without a snapshot): Pull then, where a first life would Broadcast.
  uint64_t NextRound(Tensor tensor) const;

  Handle Push(Tensor tensor, std::span<const float> gradient, const OpOptions& options = {});
  Handle Pull(Tensor tensor, std::span<float> out, const OpOptions& options = {});
  // out: what the job's reply is (parameters, or the reduced gradient). May be the gradient's own memory.
  Handle PushPull(Tensor tensor, std::span<const float> gradient, std::span<float> out, const OpOptions& options = {});
  // The same for tensors in GPU memory: encoded there, so that the compressed bytes alone come to the host. The gradient is
  // ready, and `out` may be written, when what is enqueued on `stream` (a cudaStream_t of that GPU) before the call is done;
  // the call does not wait for it. The new parameters are in `out` when the handle is done, for any stream. All tensors on
  // one GPU; docs/gpu.md has the codecs and limits. kUnimplemented: no CUDA in this build, no driver, no GPU, a codec that is not
  // encoded there, or a tensor that is exchanged among the workers (job.exchange).
  Handle Push(Tensor tensor, DeviceGradient gradient, void* stream, const OpOptions& options = {});
  Handle PushPull(Tensor tensor, DeviceGradient gradient, DeviceOutput out, void* stream,
                  const OpOptions& options = {});
  // The root's values become the parameters (of the servers, or of all workers) and arrive in everybody's `values`. kAborted, at all ranks alike:
  // the root was lost before (job.on_worker_loss=rescale); the servers' parameters, which are in `values` then, have not
  // changed; another rank may be the root of another.
  Handle Broadcast(Tensor tensor, std::span<float> values, int root = 0, const OpOptions& options = {});

  // Every worker registers the same tables. Blocks until the servers have it.
  Result<Table> RegisterTable(const TableSpec& spec);
  // Rows of a table. ids: any order, duplicates allowed, as many as you like; row i of `out` (ids x dim) is that of ids[i].
  // ids and gradients are read before the call returns; `out` belongs to Sluice as other outputs do. A pull shows what
  // this worker has pushed to the table before it; pulls run beside each other and beside pushes. Rows that nobody has
  // pushed read as their initial values, and are not created by it.
  Handle PullRows(Table table, std::span<const uint64_t> ids, std::span<float> out, const OpOptions& options = {});
  // One round of the table, whatever the ids (none is fine): under BSP every worker pushes once a step. Gradients of
  // duplicate ids are summed in order of their occurrence.
  Handle PushRows(Table table, std::span<const uint64_t> ids, std::span<const float> gradients,
                  const OpOptions& options = {});
  // A push, and the rows as they are when its round has been applied.
  Handle PushPullRows(Table table, std::span<const uint64_t> ids, std::span<const float> gradients,
                      std::span<float> out, const OpOptions& options = {});
  // Pools rows into bags: bag b is the sum or mean of the rows ids[offsets[b]] … ids[offsets[b + 1] - 1] (the last bag ends
  // with ids; an empty bag is zeros); out: offsets.size() x dim.
  Handle LookupRows(Table table, std::span<const uint64_t> ids, std::span<const uint32_t> offsets, Pooling pooling,
                    std::span<float> out, const OpOptions& options = {});
  // Pulls what the table's cache (cache_rows) lacks of these rows into it, for the pulls of the next batch.
  Handle PrefetchRows(Table table, std::span<const uint64_t> ids, const OpOptions& options = {});
  // Rounds of this table that this worker has pushed or will have when what was submitted is done.
  uint64_t NextRound(Table table) const { return NextRound(Tensor{table.id}); }

  Status Barrier(const std::string& name = "default");

  // Collectives and messages among the members of a group, without servers. All members call the same, in the same order.
  // Buffers belong to Sluice until Handle::WaitReleased, as above. root, to and from count in the group. A call that fails at
  // one member fails at the others too, but for those that had finished it.
  Result<Group> FindGroup(const std::string& name) const;   // "world", or an axis of job.groups
  Handle AllReduce(std::span<const float> values, std::span<float> out, const CollectiveOptions& options = {});
  Handle Reduce(std::span<const float> values, std::span<float> out, int root, const CollectiveOptions& options = {});
  Handle Broadcast(std::span<float> values, int root, const CollectiveOptions& options = {});
  // out: the members' values, in their order.
  Handle AllGather(std::span<const float> values, std::span<float> out, const CollectiveOptions& options = {});
  // out: this member's block of the sums; values: blocks of that size for all members.
  Handle ReduceScatter(std::span<const float> values, std::span<float> out, const CollectiveOptions& options = {});
  // Block j of values goes to member j, block i of out comes from member i.
  Handle AllToAll(std::span<const float> values, std::span<float> out, const CollectiveOptions& options = {});
  // The n-th message with this tag to a member is the n-th that it receives with it from here; sizes and codecs are equal.
  Handle Send(std::span<const float> values, int to, uint32_t tag = 0, const CollectiveOptions& options = {});
  Handle Receive(std::span<float> out, int from, uint32_t tag = 0, const CollectiveOptions& options = {});
  Handle GroupBarrier(const CollectiveOptions& options = {});

  // Snapshots, so that a worker that was killed continues to the same bits (data.snapshot_dir; docs/snapshots.md).
  // Call SaveSnapshot between steps with what the trainer needs to go on (cursor, random state, its parameters).
  Status SaveSnapshot(std::span<const std::byte> user_state);
  // After RegisterTensors: the newest snapshot of this job and rank, restored; nullopt if there is none.
  Result<std::optional<std::vector<std::byte>>> RestoreSnapshot();
  // Where this worker's snapshots lie, for messages: PATH.0 and PATH.1. "" without data.snapshot_dir.
  std::string snapshot_path() const;

  // The loss of this worker's step. Only job.codec=auto needs it: it falls back to milder codecs when the loss departs.
  void ReportLoss(double loss);

  ClientStats stats() const;
  // Leaves in order, when every operation is done. After an error that ended this client (every operation returns it)
  // the worker leaves as failed instead, as Abort does, and Finish returns that error.
  Status Finish();
  // This worker cannot go on, and nor can the job: it fails, and the other workers are told why. (A worker that just
  // ends is lost instead, and may be started again.)
  Status Abort(const std::string& why);

  struct Impl;

 private:
  friend struct ClientAccess;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
