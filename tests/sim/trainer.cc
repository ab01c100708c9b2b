#include "tests/sim/trainer.h"

#include <limits>

#include "base/philox.h"

namespace sluice::sim {

TrainerState InitialState(const Scenario& scenario, uint32_t rank) {
  TrainerState state;
  for (uint32_t t = 0; t < scenario.tensors.size(); ++t) {
    PhiloxRandom random(scenario.seed, 1000 + t + (scenario.broadcast ? 100 * rank : 0));
    uint64_t elements = 1;
    for (const uint64_t extent : scenario.tensors[t].shape()) elements *= extent;
    std::vector<float> x(elements, 0.0f);
    // Without a broadcast all begin where the servers do.
    if (scenario.broadcast)
      for (float& value : x) value = random.Uniform() - 0.5f;
    state.x.push_back(std::move(x));
  }
  return state;
}

std::vector<float> Gradient(const Scenario& scenario, uint32_t rank, uint64_t step, uint32_t tensor,
                            const std::vector<float>& x) {
  std::vector<float> gradient(x.size());
  PhiloxRandom random(scenario.seed * 31 + rank, 100 * step + tensor);
  for (size_t i = 0; i < x.size(); ++i) gradient[i] = 0.3f * x[i] + (random.Uniform() - 0.5f);
  if (scenario.overflow == step) gradient[step % gradient.size()] = 3e38f;
  if (scenario.nonfinite && scenario.nonfinite->rank == rank && scenario.nonfinite->step == step && tensor == 0)
    gradient[gradient.size() / 2] = std::numeric_limits<float>::quiet_NaN();
  return gradient;
}

std::vector<uint64_t> RowIds(const Scenario& scenario, uint32_t rank, uint64_t round, uint32_t table) {
  PhiloxRandom random(scenario.seed * 37 + rank, 5000 + 100 * round + table);
  std::vector<uint64_t> ids(random.Chance(0.1) ? 0 : random.Below(12));
  for (uint64_t& id : ids) id = random.Below(20) * 0x100000001ull;
  return ids;
}

std::vector<float> RowGradients(const Scenario& scenario, uint32_t rank, uint64_t round, uint32_t table,
                                const std::vector<float>& rows) {
  PhiloxRandom random(scenario.seed * 41 + rank, 7000 + 100 * round + table);
  std::vector<float> gradients(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) gradients[i] = 0.3f * rows[i] + (random.Uniform() - 0.5f);
  return gradients;
}

void TakeAnswer(const Scenario& scenario, uint32_t tensor, const std::vector<float>& answer, bool skipped,
                TrainerState* state) {
  if (skipped) return;
  std::vector<float>& x = state->x[tensor];
  const bool aggregate = !scenario.has_optimizer() || scenario.job.reply() == proto::REPLY_AGGREGATE;
  for (size_t i = 0; i < x.size(); ++i) x[i] = aggregate ? x[i] - 0.1f * answer[i] : answer[i];
}

}  // namespace sluice::sim
