// A trainer of one's own, in one page: linear regression y = 3 x0 - 2 x1 + 0.5 + noise, on data that each worker draws.
//   sluice-scheduler & sluice-server &
//   custom_trainer --job.workers=2 --job.optimizer.kind=sgd --job.optimizer.rate=0.1 &   (once for each worker)
//   custom_trainer --job.workers=2 --job.optimizer.kind=sgd --job.optimizer.rate=0.1   (--steps=N: its own flag)
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "sluice/client.h"

namespace {

int Fail(const sluice::Status& status) {
  std::fprintf(stderr, "custom_trainer: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  sluice::ClientOptions options;
  options.settings = {"job.name=linear", "job.optimizer.kind=sgd", "job.optimizer.rate=0.1"};
  auto connected = sluice::Client::ConnectFromFlags(&argc, argv, options);
  if (connected.status().code() == sluice::Code::kCancelled) return 0;  // --print-config
  if (!connected.ok()) return Fail(connected.status());
  sluice::Client& client = **connected;
  unsigned steps = 200;
  for (int i = 1; i < argc; ++i) {  // what is not Sluice's is left: this trainer's own --steps=N
    if (std::sscanf(argv[i], "--steps=%u", &steps) == 1) continue;
    return Fail({sluice::Code::kInvalidArgument, std::string("no flag ") + argv[i]});
  }

  auto tensors = client.RegisterTensors(
      {{.name = "weights", .shape = {2}}, {.name = "bias", .shape = {1}, .kind = sluice::TensorKind::kBias}});
  if (!tensors.ok()) return Fail(tensors.status());
  const sluice::Tensor weights = (*tensors)[0], bias = (*tensors)[1];

  std::vector<float> w = {0, 0}, b = {0};
  if (client.NextRound(weights) == 0) {  // the job begins: everybody starts from rank 0's values
    if (auto done = client.Broadcast(weights, w).Wait(); !done.ok()) return Fail(done.status());
    if (auto done = client.Broadcast(bias, b).Wait(); !done.ok()) return Fail(done.status());
  } else {  // a later life: goes on from what the servers have
    if (auto done = client.Pull(weights, w).Wait(); !done.ok()) return Fail(done.status());
    if (auto done = client.Pull(bias, b).Wait(); !done.ok()) return Fail(done.status());
  }

  std::mt19937 random(static_cast<unsigned>(client.rank()));
  std::normal_distribution<float> normal;
  const int batch = 64;
  // Rounds count from the broadcast, so a worker that was started again does the steps that are left.
  for (uint64_t round = client.NextRound(weights); round <= steps; ++round) {
    std::vector<float> gw = {0, 0}, gb = {0};
    float loss = 0;
    for (int i = 0; i < batch; ++i) {
      const float x0 = normal(random), x1 = normal(random);
      const float error = w[0] * x0 + w[1] * x1 + b[0] - (3 * x0 - 2 * x1 + 0.5f + 0.01f * normal(random));
      loss += error * error / batch;
      gw[0] += 2 * error * x0 / batch;
      gw[1] += 2 * error * x1 / batch;
      gb[0] += 2 * error / batch;
    }
    auto pushed_w = client.PushPull(weights, gw, w);  // both are on their way at once
    auto pushed_b = client.PushPull(bias, gb, b);
    if (auto done = pushed_w.Wait(); !done.ok()) return Fail(done.status());
    if (auto done = pushed_b.Wait(); !done.ok()) return Fail(done.status());
    if (round % 50 == 0) std::printf("rank %d step %d loss %.5f\n", client.rank(), static_cast<int>(round), loss);
  }
  std::printf("rank %d w = (%.3f, %.3f), b = %.3f\n", client.rank(), w[0], w[1], b[0]);
  if (auto status = client.Finish(); !status.ok()) return Fail(status);
  return 0;
}
