// Bandwidth and latency of the data plane between two machines, the transport alone: no hashing, no adding, no scheduler.
//
//   sluice-rdma-bench --listen=10.0.0.1:7800                                   on one
//   sluice-rdma-bench --connect=10.0.0.1:7800 --test=bandwidth --bytes=1048576 --seconds=5
//   sluice-rdma-bench --connect=10.0.0.1:7800 --test=latency --bytes=4096 --count=1000
//
// Bandwidth: messages of --bytes from registered memory into slots that the listener grants, --in-flight at a time; each
// slot is granted anew when its message has arrived. Latency: half of the time from sending a message of --bytes until one
// of the same size is back. Prints one line of JSON. run.py sets perftest's numbers beside it.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/clock.h"
#include "rdma/configure.h"
#include "transport/auto/auto_endpoint.h"
#include "transport/loop.h"

namespace sluice::bench {
namespace {

using namespace transport;

constexpr uint32_t kBandwidth = 1, kLatency = 2, kEnd = 3;   // aux of ANNOUNCE

std::string Flag(int argc, char** argv, const std::string& name, const std::string& fallback) {
  const std::string prefix = "--" + name + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], prefix.c_str(), prefix.size()) == 0) return argv[i] + prefix.size();
  }
  return fallback;
}

uint64_t Number(int argc, char** argv, const std::string& name, uint64_t fallback) {
  const std::string text = Flag(argc, argv, name, "");
  uint64_t value = fallback;
  if (!text.empty() && !absl::SimpleAtoi(text, &value)) {
    std::fprintf(stderr, "--%s=%s is no number\n", name.c_str(), text.c_str());
    std::exit(2);
  }
  return value;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Options {
  bool listen = false;
  std::string host;
  uint32_t port = 7800;
  uint32_t test = kBandwidth;
  size_t bytes = 1 << 20;
  uint64_t in_flight = 8;
  uint64_t count = 1000;
  TimeNs seconds = 5;
  size_t paths = 0;   // wait until the link has so many
};

class Bench final : public Handler {
 public:
  Bench(Loop* loop, const Clock* clock, AutoEndpoint* endpoint, const Options& options)
      : loop_(loop), clock_(clock), endpoint_(endpoint), options_(options) {
    endpoint_->SetHandler(this);
  }

  void Connect() {
    link_ = endpoint_->Connect({.host = options_.host, .port = options_.port, .unix_socket = {}, .host_id = {}},
                               {.role = PeerRole::kWorker, .name = "bench"});
  }

  void OnUp(LinkId link, const Hello&) override {
    link_ = link;
    if (!options_.listen) WaitForPaths(clock_->Now());
  }
  void OnDown(LinkId, const absl::Status& reason) override {
    if (!options_.listen && !finished_) {
      std::fprintf(stderr, "%s\n", reason.ToString().c_str());
      failed_ = true;
    }
    loop_->Stop();
  }
  void OnSent(LinkId, uint64_t) override {}
  void OnSlotClosed(LinkId, SlotId) override {}
  void OnWritable(LinkId) override {}

  void OnFrame(LinkId link, const FrameHeader& header, Payload payload) override {
    if (options_.listen) {
      Serve(link, header, payload);
    } else if (options_.test == kLatency) {
      OnEcho();
    } else if (header.type == FrameType::kGrant) {
      OnGrant(header.slot);
    }
  }

  bool failed() const { return failed_; }

 private:
  // ---- the listener ----

  void Serve(LinkId link, const FrameHeader& header, const Payload& payload) {
    if (header.type == FrameType::kAnnounce && header.aux == kBandwidth) {
      for (uint64_t i = 0; i < header.aux64; ++i) {
        auto memory = endpoint_->Allocate(header.elements);
        if (!memory.ok()) {
          endpoint_->Close(link, memory.status());
          return;
        }
        memory_.push_back(*std::move(memory));
        Grant(link, memory_.back().get(), header.elements);
      }
    } else if (header.type == FrameType::kPush && header.slot != 0) {
      const auto slot = slots_.find(header.slot);
      if (slot == slots_.end()) return;
      std::byte* const memory = slot->second;
      slots_.erase(slot);
      endpoint_->CloseSlot(link, header.slot);
      Grant(link, memory, header.payload_bytes);
    } else if (header.type == FrameType::kPush) {
      FrameHeader reply = header;
      reply.type = FrameType::kReply;
      endpoint_->Send(link, reply, payload.bytes(), 0);
    }
  }

  void Grant(LinkId link, std::byte* memory, size_t bytes) {
    FrameHeader grant;
    grant.type = FrameType::kGrant;
    grant.slot = endpoint_->OpenSlot(link, {memory, bytes});
    slots_[grant.slot] = memory;
    endpoint_->Send(link, grant, {}, 0);
  }

  // ---- the client ----

  void WaitForPaths(TimeNs since) {
    size_t paths = 0;
    for (const PathReport& path : endpoint_->Paths()) paths += path.kind == "rdma" ? 1 : 0;
    if (paths < options_.paths && clock_->Now() - since < 10 * kSecond) {
      loop_->After(20 * kMillisecond, [this, since] { WaitForPaths(since); });
      return;
    }
    if (paths < options_.paths) std::fprintf(stderr, "%zu of %zu RDMA paths came up\n", paths, options_.paths);
    Begin();
  }

  void Begin() {
    auto memory = endpoint_->Allocate(options_.bytes * options_.in_flight);
    if (!memory.ok()) {
      std::fprintf(stderr, "%s\n", memory.status().ToString().c_str());
      std::exit(1);
    }
    source_ = *std::move(memory);
    std::memset(source_.get(), 7, options_.bytes * options_.in_flight);
    if (options_.test == kLatency) return Ping();
    FrameHeader announce;
    announce.type = FrameType::kAnnounce;
    announce.aux = kBandwidth;
    announce.aux64 = options_.in_flight;
    announce.elements = static_cast<uint32_t>(options_.bytes);
    endpoint_->Send(link_, announce, {}, 0);
  }

  // The first messages warm memory and measured goodputs, and are not counted.
  void OnGrant(SlotId slot) {
    const TimeNs now = clock_->Now();
    ++granted_;
    if (granted_ > options_.in_flight) ++arrived_;
    if (arrived_ == 4 * options_.in_flight) Start(now);
    if (begun_ != 0 && now - begun_ >= options_.seconds * kSecond) return Finish(now);
    FrameHeader push;
    push.type = FrameType::kPush;
    push.slot = slot;
    push.payload_bytes = static_cast<uint32_t>(options_.bytes);
    push.total_bytes = options_.bytes;
    const size_t piece = granted_ % options_.in_flight;
    endpoint_->Send(link_, push, {source_.get() + piece * options_.bytes, options_.bytes}, granted_);
  }

  void Ping() {
    FrameHeader push;
    push.type = FrameType::kPush;
    push.payload_bytes = static_cast<uint32_t>(options_.bytes);
    push.total_bytes = options_.bytes;
    sent_ = clock_->Now();
    endpoint_->Send(link_, push, {source_.get(), options_.bytes}, ++granted_);
  }

  void OnEcho() {
    const TimeNs now = clock_->Now();
    if (++arrived_ == 100) Start(now);
    if (arrived_ > 100) times_.push_back(static_cast<double>(now - sent_) / 2e3);
    if (times_.size() >= options_.count) return Finish(now);
    Ping();
  }

  void Start(TimeNs now) {
    begun_ = now;
    counted_from_ = arrived_;
    cpu_ = CpuSeconds();
  }

  void Finish(TimeNs now) {
    if (finished_) return;
    finished_ = true;
    const double seconds = static_cast<double>(now - begun_) / 1e9;
    const double gigabytes = static_cast<double>((arrived_ - counted_from_) * options_.bytes) / 1e9;
    const double cpu = CpuSeconds() - cpu_;
    size_t rdma = 0;
    for (const PathReport& path : endpoint_->Paths()) rdma += path.kind == "rdma" ? 1 : 0;
    std::printf("{\"test\":\"%s\",\"transport\":\"%s\",\"rdma_paths\":%zu,\"bytes\":%zu,\"seconds\":%.3f,\"cpu_seconds\":%.3f",
                options_.test == kLatency ? "latency" : "bandwidth", endpoint_->Stats(link_).kind.c_str(), rdma,
                options_.bytes, seconds, cpu);
    if (options_.test == kLatency) {
      std::sort(times_.begin(), times_.end());
      double sum = 0;
      for (const double time : times_) sum += time;
      std::printf(",\"mean_us\":%.2f,\"median_us\":%.2f,\"p99_us\":%.2f}\n", sum / static_cast<double>(times_.size()),
                  times_[times_.size() / 2], times_[times_.size() * 99 / 100]);
    } else {
      // all_gigabytes: with those that came before the measurement.
      std::printf(",\"gigabytes\":%.3f,\"all_gigabytes\":%.3f,\"gb_per_second\":%.4f,\"cpu_seconds_per_gb\":%.3f}\n",
                  gigabytes, static_cast<double>(arrived_ * options_.bytes) / 1e9, gigabytes / seconds, cpu / gigabytes);
    }
    std::fflush(stdout);
    endpoint_->Close(link_, absl::CancelledError("the benchmark is over"));
  }

  Loop* const loop_;
  const Clock* const clock_;
  AutoEndpoint* const endpoint_;
  const Options options_;
  LinkId link_ = 0;
  bool failed_ = false, finished_ = false;
  std::vector<std::shared_ptr<std::byte>> memory_;
  std::map<SlotId, std::byte*> slots_;
  std::shared_ptr<std::byte> source_;
  uint64_t granted_ = 0, arrived_ = 0, counted_from_ = 0;
  TimeNs begun_ = 0, sent_ = 0;
  double cpu_ = 0;
  std::vector<double> times_;
};

int Main(int argc, char** argv) {
  Options options;
  options.listen = !Flag(argc, argv, "listen", "").empty();
  const std::string where = Flag(argc, argv, options.listen ? "listen" : "connect", "");
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(where.substr(colon + 1), &options.port)) {
    std::fprintf(stderr, "--listen=ADDRESS:PORT on one machine, --connect=ADDRESS:PORT on the other; see the head of main.cc\n");
    return 2;
  }
  options.host = where.substr(0, colon);
  options.test = Flag(argc, argv, "test", "bandwidth") == "latency" ? kLatency : kBandwidth;
  options.bytes = Number(argc, argv, "bytes", options.test == kLatency ? 4096 : 1 << 20);
  options.in_flight = std::max<uint64_t>(1, Number(argc, argv, "in-flight", 8));
  options.count = Number(argc, argv, "count", 1000);
  options.seconds = static_cast<TimeNs>(Number(argc, argv, "seconds", 5));
  options.paths = Number(argc, argv, "paths", 1);

  proto::RdmaConfig config;
  config.set_gid_index(-1);
  config.set_queue_pairs(static_cast<uint32_t>(Number(argc, argv, "queue-pairs", 2)));
  config.set_fabric(Flag(argc, argv, "fabric", "lossy"));
  config.set_timeout(static_cast<uint32_t>(Number(argc, argv, "timeout", 0)));
  config.set_min_rnr_timer(12);
  config.set_chunk_bytes(static_cast<uint32_t>(Number(argc, argv, "chunk-bytes", 256 << 10)));
  config.set_watchdog_ms(3000);
  config.set_spin_us(static_cast<uint32_t>(Number(argc, argv, "spin-us", 20)));
  config.set_reconnect_ms(500);
  config.set_devices(Flag(argc, argv, "devices", ""));

  auto loop = Loop::Create();
  if (!loop.ok()) return 1;
  const SteadyClock clock;
  AutoOptions endpoint_options = MakeAutoOptions({.role = options.listen ? PeerRole::kServer : PeerRole::kWorker, .name = "bench"}, {});
  endpoint_options.choice = Flag(argc, argv, "transport", "rdma") == "tcp" ? TransportChoice::kTcp : TransportChoice::kRdma;
  endpoint_options.tcp.listen = options.listen;
  endpoint_options.tcp.bind_host = options.host;
  endpoint_options.tcp.port = options.port;
  endpoint_options.tcp.hash = false;
  endpoint_options.log = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  rdma::Configure(config, &endpoint_options);
  auto endpoint = AutoEndpoint::Create(loop->get(), &clock, std::move(endpoint_options));
  if (!endpoint.ok()) {
    std::fprintf(stderr, "%s\n", endpoint.status().ToString().c_str());
    return 1;
  }
  Bench bench(loop->get(), &clock, endpoint->get(), options);
  if (!options.listen) bench.Connect();
  (*loop)->Run();
  return bench.failed() ? 1 : 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
