#include "worker/snapshot.h"

#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/wire.h"

namespace sluice::worker {
namespace {

constexpr std::string_view kMagic = "SLUICEWS";
constexpr uint32_t kVersion = 2;   // 1: without the size of a codec's state
constexpr uint32_t kHasResidual = 1, kHasReplica = 2, kHasRowResidual = 4, kHasCodecState = 8;
constexpr size_t kMaxName = 4096;

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    const size_t at = out_.size();
    out_.resize(at + sizeof(T));
    StoreLe(out_.data() + at, value);
  }
  void PutBytes(ConstBytes bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void PutText(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    PutBytes(std::as_bytes(std::span(text)));
  }
  std::vector<std::byte> Take() { return std::move(out_); }
  ConstBytes bytes() const { return out_; }

 private:
  std::vector<std::byte> out_;
};

// Reads past the end give zeros and make ok() false; the caller looks once at the end of each record.
class Reader {
 public:
  explicit Reader(ConstBytes in) : in_(in) {}
  template <typename T>
  T Get() {
    if (!Has(sizeof(T))) return T{};
    const T value = LoadLe<T>(in_.data());
    in_ = in_.subspan(sizeof(T));
    return value;
  }
  ConstBytes GetBytes(size_t count) {
    if (!Has(count)) return {};
    const ConstBytes bytes = in_.first(count);
    in_ = in_.subspan(count);
    return bytes;
  }
  std::string GetText() {
    const uint32_t size = Get<uint32_t>();
    if (size > kMaxName) ok_ = false;
    if (!ok_) return "";
    const ConstBytes bytes = GetBytes(size);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  bool ok() const { return ok_; }
  bool at_end() const { return in_.empty(); }

 private:
  bool Has(size_t count) {
    ok_ = ok_ && count <= in_.size();
    return ok_;
  }
  ConstBytes in_;
  bool ok_ = true;
};

struct SavedPartition {
  uint32_t rate_bits = 0, residual_rate_bits = 0;
  ConstBytes residual, replica;  // fp32, at any alignment
  ConstBytes codec_state;
};

struct SavedRows {
  ConstBytes ids, values;
};

struct SavedTensor {
  TensorState* tensor = nullptr;
  uint64_t next_round = 0;
  std::vector<SavedPartition> partitions;
  std::optional<SavedRows> rows;
};

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the snapshot is damaged: ", absl::string_view(what.data(), what.size())));
}

absl::StatusOr<SavedTensor> ReadTensor(Reader& in, size_t snapshot_bytes, OpQueue& ops,
                                       const std::function<uint64_t(uint32_t)>& open_round) {
  SavedTensor saved;
  const std::string name = in.GetText();
  const uint64_t elements = in.Get<uint64_t>();
  saved.next_round = in.Get<uint64_t>();
  const uint32_t partitions = in.Get<uint32_t>();
  if (!in.ok()) return Bad("it ends early");
  saved.tensor = ops.FindByName(name);
  if (saved.tensor == nullptr || saved.tensor->elements != elements || saved.tensor->partitions.size() != partitions) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot has tensor ", name, " with ", elements,
                                                      " elements in ", partitions,
                                                      " partitions, which is not registered like that"));
  }
  if (saved.tensor->next_round == UINT64_MAX || !saved.tensor->ops.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", name, " is in use already; restore before the first operation"));
  }
  for (const auto& partition : saved.tensor->partitions) {
    SavedPartition out;
    out.rate_bits = in.Get<uint32_t>();
    out.residual_rate_bits = in.Get<uint32_t>();
    const uint32_t has = in.Get<uint32_t>();
    if ((has & ~(kHasResidual | kHasReplica | kHasRowResidual | kHasCodecState)) != 0) return Bad("unknown content of a partition");
    const size_t bytes = partition->shape().elements * sizeof(float);
    if ((has & kHasResidual) != 0) out.residual = in.GetBytes(bytes);
    if ((has & kHasReplica) != 0) out.replica = in.GetBytes(bytes);
    // Of any size: the codec that goes on may be another, and takes a state of another size for none.
    if ((has & kHasCodecState) != 0) out.codec_state = in.GetBytes(in.Get<uint64_t>());
    if ((has & kHasRowResidual) != 0) {
      if (saved.tensor->row_residual == nullptr || saved.rows.has_value()) {
        return absl::FailedPreconditionError(absl::StrCat("the snapshot keeps residuals of rows for ", name,
                                                          ", which is registered without (residual_rows, codec)"));
      }
      const uint64_t rows = in.Get<uint64_t>();
      if (rows > snapshot_bytes / sizeof(uint64_t)) return Bad("more residuals of rows than bytes");
      saved.rows.emplace();
      saved.rows->ids = in.GetBytes(rows * sizeof(uint64_t));
      saved.rows->values = in.GetBytes(rows * saved.tensor->row_residual->dim() * sizeof(float));
    }
    if (!in.ok()) return Bad("it ends early");
    const uint64_t open = open_round(partition->shape().index);
    if (open != saved.next_round && open != saved.next_round + 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("the snapshot goes on with round ", saved.next_round, " of tensor ", name,
                       ", but the owner of partition ", partition->shape().index, " is at round ", open,
                       open > saved.next_round ? ": the job went on without this worker for too long"
                                               : ": the owner has lost its state (was it started again?)"));
    }
    saved.partitions.push_back(out);
  }
  return saved;
}

template <typename T>
std::vector<T> ValuesOf(ConstBytes bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

std::vector<std::byte> EncodeSnapshot(const proto::Plan& plan, uint32_t rank,
                                      const std::map<uint32_t, std::unique_ptr<TensorState>>& tensors,
                                      const std::map<std::string, uint64_t>& barrier_counts) {
  Writer out;
  out.PutBytes(std::as_bytes(std::span(kMagic)));
  out.Put(kVersion);
  out.Put(rank);
  out.Put(static_cast<uint64_t>(plan.uid()));
  out.Put(static_cast<uint32_t>(tensors.size()));
  out.Put(static_cast<uint32_t>(barrier_counts.size()));
  for (const auto& [id, tensor] : tensors) {
    out.PutText(tensor->spec.name());
    out.Put(static_cast<uint64_t>(tensor->elements));
    out.Put(tensor->next_round);
    out.Put(static_cast<uint32_t>(tensor->partitions.size()));
    for (size_t i = 0; i < tensor->partitions.size(); ++i) {
      const auto& partition = tensor->partitions[i];
      const Partition::Saved saved = tensor->device != nullptr ? tensor->device->Saved(i) : partition->Save();
      RowResidual::Saved rows;   // of the whole table: with its first partition
      if (tensor->row_residual != nullptr && partition == tensor->partitions.front()) rows = tensor->row_residual->Save();
      out.Put(saved.rate_bits);
      out.Put(saved.residual_rate_bits);
      out.Put((saved.residual.empty() ? 0 : kHasResidual) | (saved.replica.empty() ? 0 : kHasReplica) |
              (saved.codec_state.empty() ? 0 : kHasCodecState) |
              (rows.ids.empty() ? 0 : kHasRowResidual));
      out.PutBytes(AsBytes(saved.residual));
      out.PutBytes(AsBytes(saved.replica));
      if (!saved.codec_state.empty()) {
        out.Put(static_cast<uint64_t>(saved.codec_state.size()));
        out.PutBytes(saved.codec_state);
      }
      if (rows.ids.empty()) continue;
      out.Put(static_cast<uint64_t>(rows.ids.size()));
      out.PutBytes(std::as_bytes(std::span<const uint64_t>(rows.ids)));
      out.PutBytes(AsBytes(rows.values));
    }
  }
  for (const auto& [name, count] : barrier_counts) {
    out.PutText(name);
    out.Put(count);
  }
  out.Put(transport::HashBytes(out.bytes()));
  return out.Take();
}

absl::Status RestoreSnapshot(ConstBytes snapshot, const proto::Plan& plan, uint32_t rank, OpQueue& ops,
                             const std::function<uint64_t(uint32_t)>& open_round,
                             std::map<std::string, uint64_t>* barrier_counts) {
  if (snapshot.size() < kMagic.size() + sizeof(uint64_t)) return Bad("it ends early");
  const ConstBytes body = snapshot.first(snapshot.size() - sizeof(uint64_t));
  if (LoadLe<uint64_t>(snapshot.data() + body.size()) != transport::HashBytes(body))
    return Bad("its hash does not match");
  Reader in(body);
  const ConstBytes magic = in.GetBytes(kMagic.size());
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) return Bad("it does not begin as one");
  if (const uint32_t version = in.Get<uint32_t>(); version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshot has version ", version, ", this release reads ", kVersion));
  }
  const uint32_t of_rank = in.Get<uint32_t>();
  const uint64_t uid = in.Get<uint64_t>();
  const uint32_t tensor_count = in.Get<uint32_t>();
  const uint32_t barriers = in.Get<uint32_t>();
  if (uid != plan.uid() || of_rank != rank) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot is of rank ", of_rank, " of job uid ",
                                                      absl::Hex(uid), "; this is rank ", rank, " of job uid ",
                                                      absl::Hex(plan.uid())));
  }
  std::vector<SavedTensor> tensors;
  for (uint32_t i = 0; i < tensor_count; ++i) {
    SLUICE_ASSIGN_OR_RETURN(SavedTensor saved, ReadTensor(in, body.size(), ops, open_round));
    tensors.push_back(std::move(saved));
  }
  std::map<std::string, uint64_t> counts;
  for (uint32_t i = 0; i < barriers && in.ok(); ++i) {
    const std::string name = in.GetText();
    counts[name] = in.Get<uint64_t>();
  }
  if (!in.ok() || !in.at_end()) return Bad("its length is not what it says");
  if (tensors.size() != ops.tensors().size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshot has ", tensors.size(), " tensors, ", ops.tensors().size(), " are registered"));
  }
  // From here on only a partition whose codec or reply changed can refuse; the job's configuration is fixed by its uid.
  for (SavedTensor& saved : tensors) {
    for (size_t i = 0; i < saved.partitions.size(); ++i) {
      const SavedPartition& from = saved.partitions[i];
      const std::vector<float> residual = ValuesOf<float>(from.residual), replica = ValuesOf<float>(from.replica);
      SLUICE_RETURN_IF_ERROR(
          saved.tensor->partitions[i]->Restore({from.rate_bits, from.residual_rate_bits, residual, replica,
                                                      from.codec_state}));
      ops.set_next_rate(saved.tensor->partitions[i]->next_rate());
    }
    saved.tensor->next_round = saved.next_round;
    if (saved.tensor->row_residual == nullptr) continue;
    const SavedRows rows = saved.rows.value_or(SavedRows{});
    saved.tensor->row_residual->Restore({ValuesOf<uint64_t>(rows.ids), ValuesOf<float>(rows.values)});
  }
  *barrier_counts = std::move(counts);
  return absl::OkStatus();
}

}  // namespace sluice::worker
