// A worker of the table benchmark: obeys lines on stdin, answers each with one line of numbers.
//   fill N           rows 0 … N-1 of the table exist (this worker's share of them: every clients-th)
//   pull B K N       N batches of B Zipf ids, K in flight; seconds in all
//   push B K N       the same, pushes of gradients
//   latency B N      N pulls of B ids, one after the other: seconds of each
//   gather B N       N batches of B ids copied from one flat array of as many rows, by index: seconds in all
// Options: --dim=16 --share=0 --shares=1, and all of Sluice's own.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "worker/client.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void Die(const Status& status) {
  std::fprintf(stderr, "table_worker: %s\n", status.ToString().c_str());
  std::exit(1);
}

// Popularity has nothing to do with the place: rank k of the Zipf law is the row of this number.
uint64_t RowOf(uint64_t rank, uint64_t rows) { return rank * 2654435761u % rows; }   // 2654435761 is prime
uint64_t IdOf(uint64_t row) { return row * 0x9E3779B97F4A7C15u; }

// Ranks by the rejection-inversion method (Hörmann and Derflinger 1996), exponent s > 1.
class Zipf {
 public:
  Zipf(uint64_t n, double s) : n_(static_cast<double>(n)), s_(s), h_x1_(H(1.5) - 1), h_n_(H(n_ + 0.5)) {}
  uint64_t Next(PhiloxRandom& random) const {
    while (true) {
      const double u = h_n_ + (static_cast<double>(random()) + 0.5) / 4294967296.0 * (h_x1_ - h_n_);
      const double x = Inverse(u);
      double k = std::floor(x + 0.5);
      k = std::min(std::max(k, 1.0), n_);
      if (u >= H(k + 0.5) - std::pow(k, -s_)) return static_cast<uint64_t>(k) - 1;
    }
  }

 private:
  double H(double x) const { return (std::pow(x, 1 - s_) - 1) / (1 - s_); }
  double Inverse(double u) const { return std::pow(1 + u * (1 - s_), 1 / (1 - s_)); }
  const double n_, s_, h_x1_, h_n_;
};

class Runner {
 public:
  Runner(std::unique_ptr<Client> client, uint32_t dim, uint64_t share, uint64_t shares)
      : client_(std::move(client)), dim_(dim), share_(share), shares_(shares), random_(share + 1) {
    TableSpec spec;
    spec.name = "rows";
    spec.dim = dim;
    spec.optimizer.rate = 0.01;
    auto table = client_->RegisterTable(spec);
    if (!table.ok()) Die(table.status());
    table_ = *table;
  }

  void Fill(uint64_t rows) {
    rows_ = rows;
    zipf_ = std::make_unique<Zipf>(rows, 1.05);
    constexpr uint64_t kBatch = 65536;
    for (uint64_t begin = 0; begin < rows; begin += kBatch) {
      std::vector<uint64_t> ids;
      for (uint64_t row = begin; row < std::min(rows, begin + kBatch); ++row)
        if (row % shares_ == share_) ids.push_back(IdOf(row));
      std::vector<float> gradients(ids.size() * dim_, 0.5f);
      Check(client_->PushRows(table_, ids, gradients));
    }
  }

  double Pull(size_t batch, size_t in_flight, size_t count) {
    MakeBatches(batch);
    std::vector<std::vector<float>> out(in_flight, std::vector<float>(batch * dim_));
    return Run(in_flight, count, [&](size_t i) { return client_->PullRows(table_, Ids(i), out[i % in_flight]); });
  }
  double Push(size_t batch, size_t in_flight, size_t count) {
    MakeBatches(batch);
    const std::vector<float> gradients(batch * dim_, 0.001f);
    return Run(in_flight, count, [&](size_t i) { return client_->PushRows(table_, Ids(i), gradients); });
  }
  void Latency(size_t batch, size_t count) {
    MakeBatches(batch);
    std::vector<float> out(batch * dim_);
    for (size_t i = 0; i < count; ++i) {
      const auto begin = Clock::now();
      Check(client_->PullRows(table_, Ids(i), out));
      std::printf("%.9f ", Since(begin));
    }
  }
  double Gather(size_t batch, size_t count) {
    MakeBatches(batch);
    if (flat_.size() != rows_ * dim_) flat_.assign(rows_ * dim_, 1.0f);
    std::vector<float> out(batch * dim_);
    const auto begin = Clock::now();
    for (size_t i = 0; i < count; ++i) {
      const std::vector<uint64_t>& rows = rows_of_[i % kBatches];
      for (size_t k = 0; k < batch; ++k)
        std::memcpy(out.data() + k * dim_, flat_.data() + rows[k] * dim_, dim_ * sizeof(float));
    }
    return Since(begin);
  }
  void Finish() {
    if (const Status status = client_->Finish(); !status.ok()) Die(status);
  }

 private:
  static constexpr size_t kBatches = 64;

  static void Check(Handle handle) {
    if (auto done = handle.Wait(); !done.ok()) Die(done.status());
  }
  std::span<const uint64_t> Ids(size_t i) const { return ids_[i % kBatches]; }
  void MakeBatches(size_t batch) {
    if (!ids_.empty() && ids_[0].size() == batch) return;
    ids_.assign(kBatches, {});
    rows_of_.assign(kBatches, {});
    for (size_t i = 0; i < kBatches; ++i) {
      for (size_t k = 0; k < batch; ++k) {
        const uint64_t row = RowOf(zipf_->Next(random_), rows_);
        rows_of_[i].push_back(row);
        ids_[i].push_back(IdOf(row));
      }
    }
  }
  template <typename Start>
  double Run(size_t in_flight, size_t count, Start start) {
    const auto begin = Clock::now();
    std::deque<Handle> running;
    for (size_t i = 0; i < count; ++i) {
      if (running.size() == in_flight) {
        Check(std::move(running.front()));
        running.pop_front();
      }
      running.push_back(start(i));
    }
    for (Handle& handle : running) Check(std::move(handle));
    return Since(begin);
  }

  std::unique_ptr<Client> client_;
  const uint32_t dim_;
  const uint64_t share_, shares_;
  PhiloxRandom random_;
  Table table_;
  uint64_t rows_ = 0;
  std::unique_ptr<Zipf> zipf_;
  std::vector<std::vector<uint64_t>> ids_, rows_of_;
  std::vector<float> flat_;
};

int Main(int argc, char** argv) {
  auto client = Client::ConnectFromFlags(&argc, argv);
  if (!client.ok()) Die(client.status());
  uint64_t dim = 16, share = 0, shares = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.rfind("--dim=", 0) == 0) {
      dim = std::strtoull(flag.c_str() + 6, nullptr, 10);
    } else if (flag.rfind("--share=", 0) == 0) {
      share = std::strtoull(flag.c_str() + 8, nullptr, 10);
    } else if (flag.rfind("--shares=", 0) == 0) {
      shares = std::strtoull(flag.c_str() + 9, nullptr, 10);
    } else {
      std::fprintf(stderr, "table_worker: unknown option %s\n", argv[i]);
      return 2;
    }
  }
  Runner runner(std::move(*client), static_cast<uint32_t>(dim), share, shares);
  std::printf("ready\n");
  std::fflush(stdout);
  std::string command;
  size_t batch = 0, in_flight = 0, count = 0;
  while (std::cin >> command) {
    if (command == "fill" && std::cin >> count) {
      runner.Fill(count);
    } else if (command == "pull" && std::cin >> batch >> in_flight >> count) {
      std::printf("%.9f", runner.Pull(batch, in_flight, count));
    } else if (command == "push" && std::cin >> batch >> in_flight >> count) {
      std::printf("%.9f", runner.Push(batch, in_flight, count));
    } else if (command == "latency" && std::cin >> batch >> count) {
      runner.Latency(batch, count);
    } else if (command == "gather" && std::cin >> batch >> count) {
      std::printf("%.9f", runner.Gather(batch, count));
    } else {
      std::fprintf(stderr, "table_worker: unknown command %s\n", command.c_str());
      return 1;
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  runner.Finish();
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::Main(argc, argv); }
