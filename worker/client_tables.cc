// Tables: the trainer's thread prepares (worker/rows.h), the loop sends.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/client_impl.h"

namespace sluice {
namespace {

using worker::OpKind;
using worker::OpRequest;
using worker::OpResult;
using worker::RowPull;
using worker::RowPullRequest;
using worker::RowPush;
using worker::TableShape;
using worker::WorkerCore;

proto::TensorSpec ToProto(const TableSpec& spec, int priority) {
  proto::TensorSpec out;
  out.set_name(spec.name);
  out.set_priority(priority);
  proto::TableSpec* table = out.mutable_table();
  table->set_dim(spec.dim);
  table->set_dtype(spec.dtype);
  table->set_initializer(spec.initializer);
  table->set_init_scale(spec.init_scale);
  table->set_seed(spec.seed);
  proto::TableOptimizer* optimizer = table->mutable_optimizer();
  optimizer->set_kind(spec.optimizer.kind);
  optimizer->set_rate(spec.optimizer.rate);
  optimizer->set_epsilon(spec.optimizer.epsilon);
  optimizer->set_beta1(spec.optimizer.beta1);
  optimizer->set_beta2(spec.optimizer.beta2);
  optimizer->set_initial_accumulator(spec.optimizer.initial_accumulator);
  optimizer->set_l1(spec.optimizer.l1);
  optimizer->set_l2(spec.optimizer.l2);
  optimizer->set_beta(spec.optimizer.beta);
  table->set_admit_after(spec.admit_after);
  table->set_max_age_rounds(spec.max_age_rounds);
  table->set_max_rows(spec.max_rows);
  table->set_max_bytes_per_server(spec.max_bytes_per_server);
  table->set_vocabulary(spec.vocabulary);
  if (spec.unknown_as_zero) table->set_unknown_ids("zero");
  table->set_drop_zero_rows(spec.drop_zero_rows);
  table->set_segments(spec.segments);
  table->set_codec(spec.codec);
  table->set_residual_rows(spec.residual_rows);
  return out;
}

// Whether `values` hold so many rows; the product may be more than a size_t.
bool Holds(size_t values, size_t rows, size_t dim) {
  return dim == 0 ? values == 0 : values % dim == 0 && values / dim == rows;
}

absl::Status WrongOutput(const TableShape& table, size_t rows, size_t values) {
  return absl::InvalidArgumentError(absl::StrCat("table ", table.name, ": ", rows, " rows of ", table.dim,
                                                 " values do not fit an output of ", values));
}

}  // namespace

absl::StatusOr<Client::Impl::KnownTable> Client::Impl::Known(Table table) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto it = tables.find(table.id); it != tables.end()) return it->second;
  }
  return absl::NotFoundError(absl::StrCat("table ", table.id, " is not registered; register it first"));
}

// Not before: a pull of another thread could get rows without the push and keep them as if they had it.
void Client::Impl::CountPush(Table table) {
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto it = tables.find(table.id); it != tables.end()) ++it->second.pushed;
}

absl::StatusOr<std::shared_ptr<const RowPull>> Client::Impl::PreparePull(const TableShape& shape,
                                                                         std::span<const uint64_t> ids) {
  constexpr size_t kMostKept = 64 << 10;   // ids; calls of more allocate for themselves
  std::unique_ptr<worker::RowPullScratch> used;
  if (ids.size() <= kMostKept) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!scratch.empty()) {
      used = std::move(scratch.back());
      scratch.pop_back();
    } else {
      used = std::make_unique<worker::RowPullScratch>();
    }
  }
  auto pull = worker::PrepareRowPull(shape, ids, used.get());
  if (used != nullptr) {
    std::lock_guard<std::mutex> lock(mutex);
    scratch.push_back(std::move(used));   // as many as there are threads that pull at a time
  }
  if (!pull.ok()) return pull.status();
  return std::make_shared<const RowPull>(*std::move(pull));
}

Result<Table> Client::RegisterTable(const TableSpec& spec) {
  std::vector<proto::TensorSpec> specs;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    specs.push_back(ToProto(spec, impl_->next_priority++));
  }
  using Ids = absl::StatusOr<std::vector<uint32_t>>;
  WorkerCore& core = impl_->runtime->core();
  const Ids ids = impl_->runtime->Await<Ids>([&](std::function<void(Ids)> done) {
    core.RegisterTensors(std::move(specs), std::move(done));
  });
  if (!ids.ok()) return FromAbsl(ids.status());
  const absl::StatusOr<TableShape> shape = impl_->runtime->Call([&] { return core.DescribeTable(ids->front()); });
  if (!shape.ok()) return FromAbsl(shape.status());
  std::lock_guard<std::mutex> lock(impl_->mutex);
  Impl::KnownTable& known = impl_->tables[ids->front()];
  known.shape = *shape;
  if (known.cache == nullptr && spec.cache_rows > 0) {
    known.cache = std::make_shared<worker::RowCache>(spec.dim, spec.cache_rows, spec.cache_staleness);
  }
  return Table{ids->front(), spec.dim};
}

Handle Client::PullRows(Table table, std::span<const uint64_t> ids, std::span<float> out, const OpOptions& options) {
  const absl::StatusOr<Impl::KnownTable> known = impl_->Known(table);
  if (!known.ok()) return Ended(known.status());
  const TableShape& shape = known->shape;
  if (!Holds(out.size(), ids.size(), shape.dim)) return Ended(WrongOutput(shape, ids.size(), out.size()));
  if (known->cache != nullptr) return impl_->PullCached(table, *known, ids, out, options);
  auto pull = impl_->PreparePull(shape, ids);
  if (!pull.ok()) return Ended(pull.status());
  RowPullRequest request{.table = table.id, .pull = *std::move(pull), .output = out};
  return impl_->Start(options, [request](WorkerCore& core, TimeNs deadline, const std::shared_ptr<uint64_t>& number,
                                         Impl::DoneFn done, std::function<void()> released) mutable {
    request.deadline = deadline;
    *number = core.PullRows(request, std::move(done), std::move(released));
  });
}

Handle Client::PrefetchRows(Table table, std::span<const uint64_t> ids, const OpOptions& options) {
  const absl::StatusOr<Impl::KnownTable> known = impl_->Known(table);
  if (!known.ok()) return Ended(known.status());
  if (known->cache == nullptr) {
    return Ended(absl::FailedPreconditionError(
        absl::StrCat("table ", known->shape.name, " has no cache to prefetch into: register it with cache_rows")));
  }
  return impl_->PullCached(table, *known, ids, {}, options);
}

Handle Client::Impl::PullCached(Table table, const KnownTable& known, std::span<const uint64_t> ids,
                                std::span<float> out, const OpOptions& options) {
  const size_t dim = known.shape.dim;
  const uint64_t round = known.pushed;   // by this client's own count: no pull waits for the loop to say it
  std::vector<float> unused;
  if (out.empty()) unused.resize(ids.size() * dim);
  const std::vector<uint32_t> missing = known.cache->Read(ids, round, out.empty() ? std::span<float>(unused) : out);
  auto lacking = std::make_shared<std::vector<uint64_t>>();
  for (const uint32_t at : missing) lacking->push_back(ids[at]);
  if (missing.empty()) return Ended(absl::OkStatus());
  auto pull = PreparePull(known.shape, *lacking);
  if (!pull.ok()) return Ended(pull.status());
  auto rows = std::make_shared<std::vector<float>>(missing.size() * dim);
  RowPullRequest request{.table = table.id, .pull = *std::move(pull), .output = *rows};
  return Start(options, [request, rows, lacking, missing, round, dim, out, cache = known.cache](
                            WorkerCore& core, TimeNs deadline, const std::shared_ptr<uint64_t>& number, DoneFn done,
                            std::function<void()> released) mutable {
    request.deadline = deadline;
    auto keep = [=, done = std::move(done)](const OpResult& result) {
      if (result.status.ok()) {
        cache->Put(*lacking, round, *rows);
        for (size_t i = 0; i < missing.size() && !out.empty(); ++i) {
          std::copy_n(rows->begin() + static_cast<std::ptrdiff_t>(i * dim), dim,
                      out.begin() + static_cast<std::ptrdiff_t>(size_t{missing[i]} * dim));
        }
      }
      done(result);
    };
    *number = core.PullRows(request, std::move(keep), std::move(released));
  });
}

absl::StatusOr<OpRequest> Client::Impl::Prepare(Table table, std::span<const uint64_t> ids,
                                                std::span<const float> gradients, const OpOptions& options) {
  const absl::StatusOr<KnownTable> known = Known(table);
  if (!known.ok()) return known.status();
  const TableShape* shape = &known->shape;
  auto push = worker::PrepareRowPush(*shape, ids, gradients);
  if (!push.ok()) return push.status();
  OpRequest request;
  request.kind = OpKind::kPushRows;
  request.tensor = table.id;
  request.rows = std::make_shared<const RowPush>(*std::move(push));
  if (options.priority.has_value()) request.priority = *options.priority;
  return request;
}

Handle Client::PushRows(Table table, std::span<const uint64_t> ids, std::span<const float> gradients,
                        const OpOptions& options) {
  auto request = impl_->Prepare(table, ids, gradients, options);
  if (!request.ok()) return Ended(request.status());
  Handle handle = impl_->Submit(*std::move(request), options);
  impl_->CountPush(table);
  return handle;
}

Handle Client::PushPullRows(Table table, std::span<const uint64_t> ids, std::span<const float> gradients,
                            std::span<float> out, const OpOptions& options) {
  const absl::StatusOr<Impl::KnownTable> known = impl_->Known(table);
  if (!known.ok()) return Ended(known.status());
  const TableShape* shape = &known->shape;
  if (!Holds(out.size(), ids.size(), shape->dim)) return Ended(WrongOutput(*shape, ids.size(), out.size()));
  auto pull = impl_->PreparePull(*shape, ids);
  if (!pull.ok()) return Ended(pull.status());
  auto push = impl_->Prepare(table, ids, gradients, options);   // last: it changes residuals
  if (!push.ok()) return Ended(push.status());
  RowPullRequest rows{.table = table.id, .pull = *std::move(pull), .output = out};
  // The pull is sent at once: it names the push's round, and waits for it at the servers. The operation is both; its result
  // is the push's unless the pull fails.
  Handle handle = impl_->Start(options, [push = *std::move(push), rows](WorkerCore& core, TimeNs deadline,
                                                               const std::shared_ptr<uint64_t>& number,
                                                               Impl::DoneFn done, std::function<void()> released) mutable {
    struct Both {
      Impl::DoneFn done;
      std::function<void()> released;
      int open = 2, held = 2;
      OpResult result;
      void Done(const OpResult& part, bool is_push) {
        if (is_push || !part.status.ok()) {
          const absl::Status before = result.status;
          result = part;
          if (!before.ok()) result.status = before;
        }
        if (--open == 0 && done) std::exchange(done, nullptr)(result);
      }
      void Released() {
        if (--held == 0 && released) std::exchange(released, nullptr)();
      }
    };
    auto both = std::make_shared<Both>();
    both->done = std::move(done);
    both->released = std::move(released);
    push.deadline = rows.deadline = deadline;
    *number = core.Submit(push, [both](const OpResult& result) { both->Done(result, true); },
                          [both] { both->Released(); });
    core.PullRows(rows, [both](const OpResult& result) { both->Done(result, false); }, [both] { both->Released(); });
  });
  impl_->CountPush(table);
  return handle;
}

Handle Client::LookupRows(Table table, std::span<const uint64_t> ids, std::span<const uint32_t> offsets,
                          Pooling pooling, std::span<float> out, const OpOptions& options) {
  const absl::StatusOr<Impl::KnownTable> known = impl_->Known(table);
  if (!known.ok()) return Ended(known.status());
  const TableShape* shape = &known->shape;
  const size_t dim = shape->dim;
  if (!Holds(out.size(), offsets.size(), dim)) return Ended(WrongOutput(*shape, offsets.size(), out.size()));
  for (size_t b = 0; b < offsets.size(); ++b) {
    const size_t end = b + 1 < offsets.size() ? offsets[b + 1] : ids.size();
    if (offsets[b] > end) {
      return Ended(absl::InvalidArgumentError(
          absl::StrCat("table ", shape->name, ": bag ", b, " begins at ", offsets[b], " and ends at ", end)));
    }
  }
  auto pull = impl_->PreparePull(*shape, ids);
  if (!pull.ok()) return Ended(pull.status());
  auto rows = std::make_shared<std::vector<float>>(ids.size() * dim);
  std::vector<uint32_t> begins(offsets.begin(), offsets.end());
  begins.push_back(static_cast<uint32_t>(ids.size()));
  RowPullRequest request{.table = table.id, .pull = *std::move(pull), .output = *rows};
  return impl_->Start(options, [request, rows, begins = std::move(begins), pooling, dim, out](
                                   WorkerCore& core, TimeNs deadline, const std::shared_ptr<uint64_t>& number,
                                   Impl::DoneFn done, std::function<void()> released) mutable {
    request.deadline = deadline;
    auto pool = [rows, begins, pooling, dim, out, done = std::move(done)](const OpResult& result) {
      if (result.status.ok()) {
        std::fill(out.begin(), out.end(), 0.0f);
        for (size_t b = 0; b + 1 < begins.size(); ++b) {
          float* bag = out.data() + b * dim;
          for (size_t r = begins[b]; r < begins[b + 1]; ++r) {
            for (size_t k = 0; k < dim; ++k) bag[k] += (*rows)[r * dim + k];
          }
          const auto count = static_cast<float>(begins[b + 1] - begins[b]);
          if (pooling == Pooling::kMean && count > 1) {
            for (size_t k = 0; k < dim; ++k) bag[k] /= count;
          }
        }
      }
      done(result);
    };
    *number = core.PullRows(request, std::move(pool), std::move(released));
  });
}

}  // namespace sluice
