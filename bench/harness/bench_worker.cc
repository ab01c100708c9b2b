// A worker that does what a benchmark tells it on stdin, one line a command, and answers with one line of seconds:
//   step N      N steps: a push-pull of every tensor (see --backward_ms), all clients of this process together
//   memcpy N    N copies of one tensor's size
//   train       steps without end, each with a line of its own as it ends: begin and end by CLOCK_MONOTONIC, and the
//               longest time that a tensor took from one round to the next. One client only; killing it is the way out
//   stats       push and pull bytes on the wire, counted by the transport, of the first client
// Options: --tensors=1 --elements=16777216 (of each) --registered=1 --clients=1 --in_place=0, --backward_ms=0
// --forward_ms=0 (a pass to hide behind: see Step), and Sluice's own by their full names (--node.…, --job.…, --data.…).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "worker/client.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
double Since(Clock::time_point begin) { return Seconds(Clock::now() - begin); }

void Die(const Status& status) {
  std::fprintf(stderr, "bench_worker: %s\n", status.ToString().c_str());
  std::exit(1);
}

struct Options {
  size_t tensors = 1, elements = 16 << 20, clients = 1;
  bool registered = true, in_place = false;
  double backward_ms = 0, forward_ms = 0;
};

// Takes --name=value out of the command line.
double Take(int* argc, char** argv, const char* name, double fallback) {
  const std::string prefix = std::string("--") + name + "=";
  for (int i = 1; i < *argc; ++i) {
    if (std::strncmp(argv[i], prefix.c_str(), prefix.size()) != 0) continue;
    fallback = std::atof(argv[i] + prefix.size());
    std::rotate(argv + i, argv + i + 1, argv + *argc);
    --*argc;
    --i;
  }
  return fallback;
}

class Runner {
 public:
  Runner(const Options& options, int argc, char** argv, int rank) : options_(options) {
    ClientOptions client_options;
    client_options.rank = rank;
    auto client = Client::ConnectFromFlags(&argc, argv, client_options);
    if (!client.ok()) Die(client.status());
    if (argc > 1) Die(Status(Code::kInvalidArgument, std::string("no option ") + argv[1]));
    client_ = std::move(*client);
    std::vector<TensorSpec> specs;
    for (size_t i = 0; i < options.tensors; ++i) {
      TensorSpec spec;
      spec.name = "t" + std::to_string(i);
      spec.shape = {options.elements};
      specs.push_back(spec);
    }
    auto tensors = client_->RegisterTensors(specs);
    if (!tensors.ok()) Die(tensors.status());
    tensors_ = *tensors;
    applied_.resize(options.tensors);
    const size_t all = options.tensors * options.elements;
    in_ = Memory(all);
    out_ = options.in_place ? in_ : Memory(all);
    for (size_t i = 0; i < all; ++i) in_[i] = static_cast<float>(i % 1000) * 0.001f;
    if (!options.in_place) std::fill(out_.begin(), out_.end(), 0.0f);
  }

  // Without passes: all tensors at once, and the step ends with the last. With them: the backward pass brings the last
  // layer's gradient first, and the next forward pass takes the first layer first; each layer has an equal part of the
  // pass's time, in which this process sleeps (as it would while another device computes).
  void Step() {
    const auto part = [&](double ms) { return std::chrono::duration<double, std::milli>(ms / options_.tensors); };
    std::vector<Handle> handles(options_.tensors);
    for (size_t i = options_.tensors; i-- > 0;) {
      if (options_.backward_ms > 0) std::this_thread::sleep_for(part(options_.backward_ms));
      handles[i] = client_->PushPull(tensors_[i], Slice(in_, i), Slice(out_, i));
    }
    for (size_t i = 0; i < options_.tensors; ++i) {
      auto done = handles[i].Wait();
      if (!done.ok()) Die(done.status());
      const Clock::time_point now = Clock::now();
      if (applied_[i] != Clock::time_point()) longest_gap_ = std::max(longest_gap_, Seconds(now - applied_[i]));
      applied_[i] = now;
      if (options_.forward_ms > 0) std::this_thread::sleep_for(part(options_.forward_ms));
    }
  }

  [[noreturn]] void Train() {
    for (;;) {
      const auto begin = Clock::now();
      longest_gap_ = 0;
      Step();
      std::printf("%.6f %.6f %.6f\n", Seconds(begin.time_since_epoch()), Seconds(Clock::now().time_since_epoch()),
                  longest_gap_);
      std::fflush(stdout);
    }
  }

  double Memcpy() {
    const auto begin = Clock::now();
    std::memcpy(out_.data(), in_.data(), in_.size() * sizeof(float));
    return Since(begin);
  }

  ClientStats stats() const { return client_->stats(); }
  void Finish() {
    if (const Status status = client_->Finish(); !status.ok()) Die(status);
  }

 private:
  std::span<float> Memory(size_t elements) {
    if (options_.registered) {
      auto buffer = client_->AllocateBuffer(elements);
      if (!buffer.ok()) Die(buffer.status());
      buffers_.push_back(*buffer);
      return buffer->values();
    }
    plain_.push_back(std::make_unique<std::vector<float>>(elements));
    return *plain_.back();
  }
  std::span<float> Slice(std::span<float> all, size_t i) const {
    return all.subspan(i * options_.elements, options_.elements);
  }

  const Options options_;
  std::unique_ptr<Client> client_;
  std::vector<Tensor> tensors_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<std::vector<float>>> plain_;
  std::span<float> in_, out_;
  std::vector<Clock::time_point> applied_;  // each tensor's last round
  double longest_gap_ = 0;                  // of this step
};

void ForAll(std::vector<std::unique_ptr<Runner>>& runners, const std::function<void(Runner&)>& fn) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < runners.size(); ++i) threads.emplace_back([&, i] { fn(*runners[i]); });
  fn(*runners[0]);
  for (auto& thread : threads) thread.join();
}

int Main(int argc, char** argv) {
  Options options;
  options.tensors = static_cast<size_t>(Take(&argc, argv, "tensors", 1));
  options.elements = static_cast<size_t>(Take(&argc, argv, "elements", 16 << 20));
  options.clients = static_cast<size_t>(Take(&argc, argv, "clients", 1));
  options.registered = Take(&argc, argv, "registered", 1) != 0;
  options.in_place = Take(&argc, argv, "in_place", 0) != 0;
  options.backward_ms = Take(&argc, argv, "backward_ms", 0);
  options.forward_ms = Take(&argc, argv, "forward_ms", 0);
  const int rank = static_cast<int>(Take(&argc, argv, "first_rank", -1));

  std::vector<std::unique_ptr<Runner>> runners(options.clients);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < options.clients; ++i) {
    threads.emplace_back([&, i] {
      std::vector<char*> copy(argv, argv + argc + 1);  // flags are taken out of it
      runners[i] = std::make_unique<Runner>(options, argc, copy.data(), rank < 0 ? -1 : rank + static_cast<int>(i));
    });
  }
  for (auto& thread : threads) thread.join();
  std::printf("ready\n");
  std::fflush(stdout);

  std::string command;
  long count = 0;
  while (std::cin >> command) {
    if (command == "step" && std::cin >> count) {
      for (long i = 0; i < count; ++i) {
        const auto begin = Clock::now();
        ForAll(runners, [](Runner& runner) { runner.Step(); });
        std::printf("%.9f ", Since(begin));
      }
    } else if (command == "memcpy" && std::cin >> count) {
      for (long i = 0; i < count; ++i) std::printf("%.9f ", runners[0]->Memcpy());
    } else if (command == "train") {
      runners[0]->Train();
    } else if (command == "stats") {
      const ClientStats stats = runners[0]->stats();
      std::printf("%llu %llu", static_cast<unsigned long long>(stats.push_wire_bytes),
                  static_cast<unsigned long long>(stats.pull_wire_bytes));
    } else {
      std::fprintf(stderr, "bench_worker: unknown command %s\n", command.c_str());
      return 1;
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  ForAll(runners, [](Runner& runner) { runner.Finish(); });
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
