#include "scheduler/placement/solver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "scheduler/placement/baselines.h"
#include "scheduler/placement/layouts.h"
#include "scheduler/placement/local_search.h"

namespace sluice::placement {
namespace {

constexpr size_t kSmall = 64;          // tasks: every start is improved to its end
constexpr size_t kLarge = 20'000;      // tasks: few layouts are tried
constexpr uint32_t kVainKicksPerStart = 10;   // so many in a row that change nothing are the end
constexpr uint32_t kSwapsPerKick = 4;         // at most
constexpr size_t kImproved = 3;        // starts of others than small jobs

struct Start {
  std::string name;
  Placement placement;
  Score score;
};

class Solver {
 public:
  Solver(const Problem& problem, const SolveOptions& options)
      : problem_(problem), options_(options), objective_(MakeObjective(problem, options)) {
    for (const Task& task : problem.tasks) has_others_ |= !TakesPlace(task);
  }

  absl::StatusOr<Solution> Run() {
    SLUICE_ASSIGN_OR_RETURN(Placement best_fit, BestFit(problem_));
    Take("best-fit", std::move(best_fit));
    SLUICE_ASSIGN_OR_RETURN(Placement round_robin, RoundRobin(problem_));
    Take("round-robin", std::move(round_robin));
    const bool large = problem_.tasks.size() > kLarge;
    for (const Layout& layout : LayoutsFor(problem_, large)) {
      const Placement workers = LayOut(problem_, layout, options_.seed);
      if (!has_others_) {
        Take(layout.Name(), workers);
        continue;
      }
      for (const auto& [seating, text] : {std::pair(Seating::kBeside, "servers beside workers"), std::pair(Seating::kApart, "servers apart"),
                                          std::pair(Seating::kWide, "servers everywhere")}) {
        if (large && seating != Seating::kBeside) continue;
        Placement placement = workers;
        Seat(problem_, seating, &placement);
        Take(absl::StrCat(layout.Name(), ", ", text), std::move(placement));
      }
    }
    const bool small = problem_.tasks.size() <= kSmall;
    for (uint32_t i = 0; i < options_.starts && (i == 0 || (small && starts_.size() < 2 * options_.starts)); ++i) {
      SLUICE_ASSIGN_OR_RETURN(Placement random, Random(problem_, options_.seed + i));
      Take(i == 0 ? "random" : absl::StrCat("random ", i), std::move(random));
    }
    std::stable_sort(starts_.begin(), starts_.end(), [](const Start& a, const Start& b) { return Better(a.score, b.score); });
    Solution solution = ImproveThem(small ? std::max<size_t>(options_.starts, kImproved) : kImproved);
    if (small) Kick(&solution);
    return solution;
  }

  absl::StatusOr<Solution> ImproveOne(const Placement& placement) {
    Take("as it was", placement);
    return ImproveThem(1);
  }

 private:
  void Take(std::string name, Placement placement) {
    objective_->Reset(placement);
    for (const Start& start : starts_)
      if (start.placement == placement) return;
    starts_.push_back({std::move(name), std::move(placement), objective_->score()});
    // Many placements of a large job are much memory: the best few are enough.
    if (problem_.tasks.size() <= kSmall || starts_.size() <= 2 * kImproved) return;
    size_t worst = 0;
    for (size_t i = 1; i < starts_.size(); ++i)
      if (!Better(starts_[i].score, starts_[worst].score)) worst = i;
    lost_.push_back({starts_[worst].name, starts_[worst].score});
    starts_.erase(starts_.begin() + static_cast<std::ptrdiff_t>(worst));
  }

  Solution ImproveThem(size_t count) {
    Solution solution;
    for (const Start& start : starts_) solution.attempts.push_back({start.name, start.score});
    solution.attempts.insert(solution.attempts.end(), lost_.begin(), lost_.end());
    std::stable_sort(solution.attempts.begin(), solution.attempts.end(),
                     [](const Attempt& a, const Attempt& b) { return Better(a.score, b.score); });
    // Of a small job the best starts are much alike: random ones are improved as well.
    std::vector<size_t> chosen;
    count = std::min(count, starts_.size());
    for (size_t i = 0; i < (count + 1) / 2; ++i) chosen.push_back(i);
    for (size_t i = starts_.size(); i-- > (count + 1) / 2 && chosen.size() < count;)
      if (problem_.tasks.size() <= kSmall) chosen.push_back(i);
    for (size_t i = (count + 1) / 2; chosen.size() < count; ++i) chosen.push_back(i);
    for (size_t k = 0; k < chosen.size(); ++k) {
      const Start& start = starts_[chosen[k]];
      const uint64_t budget = (options_.evaluations - std::min(options_.evaluations, solution.evaluations)) / (chosen.size() - k);
      objective_->Reset(start.placement);
      uint64_t used = TakeApart(objective_.get(), options_.seed + k, budget);
      used += Refine(objective_.get(), options_.seed + k, budget - std::min(budget, used));
      solution.evaluations += used;
      objective_->Reset(Placement(objective_->placement()));   // without what rounding has left
      const Score score = objective_->score();
      if (!solution.placement.empty() && !Better(score, solution.score)) continue;
      solution.placement = objective_->placement();
      solution.score = score;
      solution.start = start.name;
    }
    return solution;
  }

  // Out of the local optimum by a few swaps at random, and down again.
  void Kick(Solution* solution) {
    std::vector<uint32_t> movable;
    for (uint32_t t = 0; t < problem_.tasks.size(); ++t)
      if (problem_.Movable(t)) movable.push_back(t);
    if (movable.size() < 4) return;
    PhiloxRandom random(options_.seed, 0x6b69636b);
    const auto any = [&] { return movable[random.Below(static_cast<uint32_t>(movable.size()))]; };
    for (uint32_t kick = 0, vain = 0; vain < kVainKicksPerStart * options_.starts && solution->evaluations < options_.evaluations; ++kick) {
      ++vain;
      Placement placement = solution->placement;
      const uint32_t swaps = 2 + random.Below(kSwapsPerKick - 1);
      for (uint32_t i = 0; i < swaps; ++i) {
        const uint32_t a = any(), b = any();
        if (TakesPlace(problem_.tasks[a]) == TakesPlace(problem_.tasks[b])) std::swap(placement[a], placement[b]);
      }
      objective_->Reset(placement);
      solution->evaluations += Refine(objective_.get(), options_.seed + kick, options_.evaluations - solution->evaluations);
      objective_->Reset(Placement(objective_->placement()));
      if (!Better(objective_->score(), solution->score)) continue;
      vain = 0;
      solution->placement = objective_->placement();
      solution->score = objective_->score();
    }
  }

  const Problem& problem_;
  const SolveOptions& options_;
  const std::unique_ptr<Objective> objective_;
  bool has_others_ = false;
  std::vector<Start> starts_;
  std::vector<Attempt> lost_;
};

}  // namespace

std::unique_ptr<Objective> MakeObjective(const Problem& problem, const SolveOptions& options) {
  if (options.graph != nullptr && options.routes != nullptr && problem.sites.size() <= kRoutedSites)
    return std::make_unique<RoutedObjective>(&problem, options.graph, options.routes);
  return std::make_unique<TreeObjective>(&problem);
}

absl::StatusOr<Solution> Solve(const Problem& problem, const SolveOptions& options) {
  SLUICE_RETURN_IF_ERROR(Check(problem));
  SLUICE_RETURN_IF_ERROR(CheckFits(problem));
  return Solver(problem, options).Run();
}

absl::StatusOr<Solution> Improve(const Problem& problem, const Placement& placement, const SolveOptions& options) {
  SLUICE_RETURN_IF_ERROR(Check(problem));
  SLUICE_RETURN_IF_ERROR(CheckFits(problem));
  SLUICE_RETURN_IF_ERROR(Check(problem, placement));
  return Solver(problem, options).ImproveOne(placement);
}

}  // namespace sluice::placement
