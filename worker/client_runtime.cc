#include "worker/client_runtime.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/host.h"
#include "base/status_macros.h"
#include "base/writable.h"
#include "compression/policy.h"
#include "rdma/configure.h"
#include "transport/auto/auto_endpoint.h"
#include "transport/control/link_report.h"
#include "worker/calibration.h"
#include "worker/codec_speed.h"
#include "worker/codec_stats.h"
#include "worker/cuda_device.h"

namespace sluice::worker {
namespace {

constexpr TimeNs kTick = 20 * kMillisecond;
constexpr uint64_t kPathTicks = 25;

// Rises from life to life; the scheduler names another one in Welcome if it knows better.
uint32_t Incarnation() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

// It listens for the other workers of its job.
absl::StatusOr<transport::AutoOptions> EndpointOptions(const proto::NodeConfig& node, const proto::DataConfig& data) {
  transport::Hello self;
  self.role = transport::PeerRole::kWorker;
  self.name = HostAndPid();
  transport::AutoOptions options = transport::MakeAutoOptions(self, {});
  if (data.transport() == "tcp") {
    options.choice = transport::TransportChoice::kTcp;
  } else if (data.transport() == "shm") {
    options.choice = transport::TransportChoice::kShm;
  } else if (data.transport() == "rdma") {
    options.choice = transport::TransportChoice::kRdma;
  } else if (!data.transport().empty() && data.transport() != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("data.transport is \"", data.transport(), "\"; auto, rdma, tcp and shm are possible"));
  }
  if (!node.listen().empty()) options.tcp.bind_host = node.listen();
  options.tcp.hash = !data.no_hash();
  options.advertised_host = AdvertisedHost(node);
  return options;
}

}  // namespace

// Stages of a partition's way, as a trace: work on this thread nests, waits overlap.
class Runtime::Tracing : public WorkerObserver {
 public:
  explicit Tracing(TraceTrack* track) : track_(track) {}
  void OnStage(Stage stage, uint32_t tensor, uint32_t partition, uint64_t round, TimeNs begin, TimeNs end) override {
    const TraceArgs args{.tensor = tensor, .partition = partition, .round = round};
    switch (stage) {
      case Stage::kEncode: track_->Work("encode", begin, end, args); break;
      case Stage::kDecode: track_->Work("decode", begin, end, args); break;
      case Stage::kFuse: track_->Wait("fuse", begin, end, args); break;
      case Stage::kQueue: track_->Wait("queue", begin, end, args); break;
      case Stage::kSend: track_->Wait("send", begin, end, args); break;
      case Stage::kWait: track_->Wait("push to reply", begin, end, args); break;
    }
  }

 private:
  TraceTrack* const track_;
};

Runtime::Runtime(const proto::Config& config)
    : config_(config),
      log_(absl::StrCat("worker ", config.job().name())),
      registry_({{"role", "worker"}, {"job", config.job().name()}}),
      path_metrics_(&clock_) {}

absl::Status CheckMember(const proto::JobConfig& job, int rank) {
  SLUICE_RETURN_IF_ERROR(compression::CheckCodecConfig(job));
  if (rank >= 0 && job.workers() > 0 && static_cast<uint32_t>(rank) >= job.workers()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " does not fit job.workers ", job.workers(),
                                                   ": ranks go from 0 to ", job.workers() - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Start(const proto::Config& config, int rank,
                                                        const ControlStream::Factory& make_stream) {
  SLUICE_RETURN_IF_ERROR(CheckMember(config.job(), rank));
  if (!config.data().calibration_file().empty())
    SLUICE_RETURN_IF_ERROR(Calibration::Create(config.data(), config.job()).status());
  SLUICE_RETURN_IF_ERROR(CheckWritable("--node.trace", config.node().trace(), HowWritten::kReplaced));
  SLUICE_RETURN_IF_ERROR(
      CheckWritable("--data.calibration_file", config.data().calibration_file(), HowWritten::kReplaced));
  std::unique_ptr<Runtime> runtime(new Runtime(config));
  SLUICE_RETURN_IF_ERROR(runtime->Init(rank, make_stream));
  const absl::Status ready = runtime->Await<absl::Status>(
      [&](std::function<void(absl::Status)> done) { runtime->core().Start(std::move(done)); });
  SLUICE_RETURN_IF_ERROR(ready);
  runtime->Call([&] {
    const WorkerCore& core = runtime->core();
    runtime->log_.Info("job ", config.job().name(), " runs: this is rank ", core.rank(), " of ", core.world_size(),
                       ", with ", core.servers(), " servers");
    for (const std::string& warning : compression::CodecWarnings(runtime->config_.job())) runtime->log_.Warn(warning);
    return true;
  });
  return runtime;
}

absl::Status Runtime::Init(int rank, const ControlStream::Factory& make_stream) {
  if (!config_.node().trace().empty()) {
    tracer_ =
        std::make_unique<Tracer>(Tracer::Options{.process = absl::StrCat("worker ", HostAndPid()), .clock = &clock_});
    tracing_ = std::make_unique<Tracing>(tracer_->AddTrack("loop"));
  }
  SLUICE_RETURN_IF_ERROR(StartMetrics());
  SLUICE_ASSIGN_OR_RETURN(loop_, transport::Loop::Create());
  loop_->set_spin(config_.data().spin_us() * kMicrosecond);
  SLUICE_ASSIGN_OR_RETURN(transport::AutoOptions endpoint, EndpointOptions(config_.node(), config_.data()));
  endpoint.log = [this](const std::string& text) { log_.Info(text); };
  rdma::Configure(config_.rdma(), &endpoint);
  SLUICE_ASSIGN_OR_RETURN(endpoint_, transport::AutoEndpoint::Create(loop_.get(), &clock_, std::move(endpoint)));

  WorkerCoreOptions options;
  options.config = config_;
  options.rank = rank;
  options.id = HostAndPid();
  options.host = TopologyHost(config_.node());
  const transport::Address address = endpoint_->local_address();
  proto::Address* const listener = &options.listeners.emplace_back();
  listener->set_host(address.host);
  listener->set_port(address.port);
  listener->set_unix_socket(address.unix_socket);
  listener->set_host_id(address.host_id);
  options.incarnation = Incarnation();
  options.observer = tracing_.get();
  if (!config_.data().calibration_file().empty()) {
    SLUICE_ASSIGN_OR_RETURN(options.calibration, Calibration::Create(config_.data(), config_.job()));
  }
  if (compression::UsesAuto(config_.job())) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<std::string> codecs, compression::AutoCodecs(config_.job()));
    options.codec_speeds = MeasureCodecSpeeds(codecs);
  }
  options.add_to_heartbeat = [this](proto::Heartbeat* heartbeat) { AddLinks(heartbeat); };
  options.report = [this](const std::string& text) { log_.Warn(text); };
  control::MemberCore::Output output;
  output.send = [this](const proto::MemberMessage& message) { stream_->Send(message); };
  output.reconnect = [this](TimeNs delay) { stream_->Open(delay); };
  core_ = WorkerCore::Create(std::move(options), endpoint_.get(), &clock_, std::move(output));
  ControlStream::Callbacks callbacks;
  callbacks.up = [this] { core_->member().OnStreamUp(); };
  callbacks.down = [this](absl::Status status) { core_->member().OnStreamDown(status); };
  callbacks.message = [this](proto::SchedulerMessage message) { core_->member().OnMessage(message); };
  stream_ = make_stream(config_.node().scheduler(), loop_.get(), std::move(callbacks));
  loop_->AtTurnEnd([this] { TurnEnd(); });
  loop_->After(kTick, [this] { Tick(); });
  thread_ = std::thread([this] { loop_->Run(); });
  return absl::OkStatus();
}

Runtime::~Runtime() {
  if (thread_.joinable()) {
    // On the loop's thread, in this order: no callback of the stream or a link finds something that is gone.
    loop_->Post([this] {
      stream_.reset();
      endpoint_.reset();
    });
    loop_->Stop();
    thread_.join();
  }
  // Its completions go to the loop, which runs no more: none is left when the core goes.
  if (device_ != nullptr) (void)device_->Finish();
  metrics_http_.reset();
  core_.reset();  // what waits for an operation hears of it when its callbacks are destroyed
  if (absl::Status status = WriteTrace(); !status.ok()) log_.Error(status.ToString());
}

void Runtime::Tick() {
  if (endpoint_ == nullptr) return;
  core_->OnTick();
  published_.Set(core_->stats());
  if (ticks_++ % kPathTicks == 0) published_paths_.Set(endpoint_->Totals());
  if (const CodecStats& codecs = core_->codec_stats(); codecs.version() != published_codecs_version_) {
    published_codecs_version_ = codecs.version();
    std::vector<TensorCodec> tensors;
    for (const auto& [tensor, state] : codecs.latest()) tensors.push_back({core_->TensorName(tensor), state});
    published_codecs_.Set(std::move(tensors));
  }
  loop_->After(kTick, [this] { Tick(); });
}

void Runtime::AddLinks(proto::Heartbeat* heartbeat) {
  if (endpoint_ == nullptr || beats_++ % control::kBeatsPerReport != 0) return;
  for (const UpLink& up : core_->links())
    control::AddLink(up.peer, up.peer_id, endpoint_->Rows(up.link), heartbeat->mutable_links());
}

// The core does a bounded amount a turn, so that frames flow meanwhile: another turn at once if there is more, and one
// when a fused frame has waited long enough.
void Runtime::TurnEnd() {
  if (endpoint_ == nullptr) return;
  core_->OnTurnEnd();
  if (core_->HasWork()) {
    if (!std::exchange(turn_wanted_, true)) loop_->After(0, [this] { turn_wanted_ = false; });
    return;
  }
  const TimeNs next = core_->NextDeadline();
  if (next == INT64_MAX || next >= turn_at_) return;
  turn_at_ = next;
  loop_->After(std::max<TimeNs>(next - clock_.Now(), 1), [this] { turn_at_ = INT64_MAX; });
}

absl::StatusOr<std::shared_ptr<Device>> Runtime::DeviceOf(const void* memory) {
  SLUICE_ASSIGN_OR_RETURN(const int number, CudaDeviceOf(memory));
  std::lock_guard<std::mutex> lock(device_mutex_);
  if (device_ == nullptr) {
    SLUICE_ASSIGN_OR_RETURN(device_, OpenCudaDevice(memory, [this](std::function<void()> fn) { Post(std::move(fn)); }));
    device_number_ = number;
    log_.Info("tensors are encoded on ", device_->name());
  }
  if (number != device_number_) {
    return absl::FailedPreconditionError(absl::StrCat("memory of gpu ", number, ", but this worker pushes from ",
                                                      device_->name(), ": one worker has one GPU; start one for each"));
  }
  return device_;
}

absl::Status Runtime::StartMetrics() {
  if (config_.node().metrics_port() < 0) return absl::OkStatus();
  registry_.AddSampler([this](MetricSamples* out) {
    const WorkerStats stats = published_.Get();
    const auto counter = [&](const char* name, const char* help, const char* unit, uint64_t value) {
      out->Counter({name, help, unit}, static_cast<double>(value));
    };
    counter("sluice_worker_wire_bytes_out_total", "Sent by the transports: pushes and their headers", "bytes",
            stats.bytes_out_push);
    counter("sluice_worker_wire_bytes_in_total", "Received by the transports: replies and values", "bytes",
            stats.bytes_in_pull);
    counter("sluice_worker_raw_bytes_total", "fp32 bytes that the pushes stand for", "bytes", stats.raw_bytes);
    counter("sluice_worker_operations_total", "Operations that were submitted", "operations", stats.ops);
    counter("sluice_worker_replays_total", "Attempts of pushes beyond the first", "attempts", stats.replays);
    counter("sluice_worker_collectives_total", "Collectives and messages between workers that were called", "calls",
            stats.collectives);
    counter("sluice_worker_collectives_failed_total", "Of these, that failed", "calls", stats.collectives_failed);
    counter("sluice_worker_peer_bytes_out_total", "Sent to other workers by the transports", "bytes", stats.peer_bytes_out);
    counter("sluice_worker_peer_bytes_in_total", "Received from other workers by the transports", "bytes",
            stats.peer_bytes_in);
    counter("sluice_worker_reconnects_total", "Connections that were made again", "connections", stats.reconnects);
    counter("sluice_worker_refused_nonfinite_total", "Operations refused for NaN or infinity", "operations",
            stats.refused_nonfinite);
    for (const TensorCodec& tensor : published_codecs_.Get()) {
      const MetricLabels labels = {{"tensor", tensor.name}, {"codec", tensor.state.codec()}};
      const auto gauge = [&](const char* name, const char* help, double value) {
        out->Gauge({name, help, "ratio"}, value, labels);
      };
      gauge("sluice_worker_tensor_compression_ratio", "Payload over fp32 bytes, in the last round that was measured",
            tensor.state.raw_bytes() == 0 ? 1 : static_cast<double>(tensor.state.wire_bytes()) /
                                                    static_cast<double>(tensor.state.raw_bytes()));
      gauge("sluice_worker_tensor_relative_error", "Norm of what the codec lost over norm of what it was given",
            tensor.state.relative_error());
      gauge("sluice_worker_tensor_residual_ratio", "Norm of the residual over norm of the gradient",
            tensor.state.residual_ratio());
    }
    out->Gauge({"sluice_worker_round", "Largest round that was finished", "rounds"},
               static_cast<double>(stats.max_round));
  });
  registry_.AddSampler([this](MetricSamples* out) { path_metrics_.Sample(published_paths_.Get(), out); });
  SLUICE_ASSIGN_OR_RETURN(metrics_http_,
                          MetricsHttp::Start(config_.node().listen(), config_.node().metrics_port(), &registry_));
  log_.Info("metrics at http://", config_.node().listen(), ":", metrics_http_->port(), "/metrics");
  return absl::OkStatus();
}

absl::Status Runtime::WriteCalibration() {
  const std::string& path = config_.data().calibration_file();
  if (path.empty()) return absl::OkStatus();
  const auto [rank, rules] = Call([&] { return std::make_pair(core_->rank(), core_->CalibratedRules()); });
  if (rank != 0) return absl::OkStatus();
  std::ofstream file(path, std::ios::trunc);
  file << rules;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("--data.calibration_file=", path, ": it could not be written"));
  log_.Info("calibrated ranges are in ", path, ": --job.codec_rules=\"$(cat ", path, ")\" uses them");
  return absl::OkStatus();
}

absl::Status Runtime::WriteTrace() {
  return tracer_ == nullptr ? absl::OkStatus() : tracer_->Write(config_.node().trace());
}

}  // namespace sluice::worker
