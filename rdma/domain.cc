#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rdma/context.h"

namespace sluice::rdma {
namespace {

int RightsOf(Access access) {
  // Relaxed ordering lets the writes of a message pass each other on PCIe; the notice after them still comes last.
  int rights = IBV_ACCESS_RELAXED_ORDERING;
  if (access == Access::kSendAndReceive) rights |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  return rights;
}

absl::Status Refusal(const Context& context, size_t bytes, uint64_t registered, int error) {
  const std::string what = absl::StrCat(context.rail().device, " cannot register ", bytes, " bytes beside ", registered,
                                        " of this job: ", std::strerror(error));
  if (error != ENOMEM) return absl::FailedPreconditionError(what);
  const std::optional<uint64_t> limit = MemlockLimit();
  if (!limit.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what,
                     "; the memlock limit is unlimited, so the host is short of memory or the device of "
                     "translation entries: use larger pages or less memory"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(what, "; the memlock limit is ", *limit, " bytes: ", MemlockMend()));
}

}  // namespace

Domain::Domain(Context* context, ibv_pd* pd, MemoryRegistry* memory, std::function<void(const absl::Status&)> refused)
    : context_(context), pd_(pd), memory_(memory), refused_(std::move(refused)) {
  if (memory_ != nullptr) listener_ = memory_->AddListener([this](uint64_t region) { Forget(region); });
}

Domain::~Domain() {
  if (memory_ != nullptr) memory_->RemoveListener(listener_);
  {
    std::lock_guard lock(mutex_);
    regions_.ForEach([this](uint64_t, const auto& range) {
      if (range.value.mr != nullptr) context_->verbs()->DeregMr(range.value.mr);
    });
  }
  context_->verbs()->DeallocPd(pd_);
}

std::optional<Domain::Keys> Domain::Find(ConstBytes bytes, Access access) {
  absl::Status refusal;
  std::optional<Keys> keys;
  {
    std::lock_guard lock(mutex_);
    keys = FindLocked(bytes, access, &refusal);
  }
  if (!refusal.ok()) refused_(refusal);
  return keys;
}

std::optional<Domain::Keys> Domain::FindLocked(ConstBytes bytes, Access access, absl::Status* refusal) {
  const auto* known = regions_.Find(
      bytes, [&](uint64_t, const auto& range) { return range.value.mr != nullptr && range.value.access >= access; });
  if (known != nullptr) return Keys{known->value.mr->lkey, known->value.mr->rkey};
  if (memory_ == nullptr) return std::nullopt;
  const auto region = memory_->Find(bytes, access);
  if (!region.has_value() || regions_.Get(region->id) != nullptr) return std::nullopt;  // unknown, or refused before

  ibv_mr* mr = context_->verbs()->RegMr(pd_, region->address, region->bytes, RightsOf(region->access));
  const int error = errno;
  regions_.Insert(region->id, reinterpret_cast<uintptr_t>(region->address), region->bytes, {mr, region->access});
  if (mr == nullptr) {
    ++stats_.refused;
    *refusal = Refusal(*context_, region->bytes, stats_.registered_bytes, error);
    return std::nullopt;
  }
  ++stats_.regions;
  stats_.registered_bytes += region->bytes;
  return Keys{mr->lkey, mr->rkey};
}

void Domain::Deregister(ibv_mr* mr) {
  stats_.registered_bytes -= mr->length;
  --stats_.regions;
  context_->verbs()->DeregMr(mr);
}

void Domain::Forget(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto* range = regions_.Get(id);
  if (range == nullptr) return;
  if (range->value.mr != nullptr) {
    Deregister(range->value.mr);
  } else {
    --stats_.refused;
  }
  regions_.Erase(id);
}

absl::StatusOr<uint64_t> Domain::RegisterDmabuf(int fd, uint64_t offset, size_t bytes, uint64_t iova, Access access) {
  std::lock_guard lock(mutex_);
  ibv_mr* mr = context_->verbs()->RegDmabufMr(pd_, offset, bytes, iova, fd, RightsOf(access));
  if (mr == nullptr) {
    const int error = errno;
    if (error == ENOTSUP || error == EOPNOTSUPP || error == ENOSYS) {
      return absl::UnimplementedError(
          absl::StrCat(context_->rail().device, " cannot register GPU memory as a dmabuf (", std::strerror(error),
                       "): it takes Linux 5.12, rdma-core 34 and a driver that knows how; payloads go through host "
                       "memory"));
    }
    return Refusal(*context_, bytes, stats_.registered_bytes, error);
  }
  mr->length = bytes;  // older libraries leave it out
  ++stats_.regions;
  stats_.registered_bytes += bytes;
  regions_.Insert(++last_dmabuf_, iova, bytes, {mr, access});
  return last_dmabuf_;
}

void Domain::DeregisterDmabuf(uint64_t number) { Forget(number); }

absl::StatusOr<ibv_mr*> Domain::RegisterLocal(void* address, size_t bytes) {
  std::lock_guard lock(mutex_);
  ibv_mr* mr = context_->verbs()->RegMr(pd_, address, bytes, IBV_ACCESS_LOCAL_WRITE);
  if (mr == nullptr) return Refusal(*context_, bytes, stats_.registered_bytes, errno);
  ++stats_.regions;
  stats_.registered_bytes += bytes;
  return mr;
}

void Domain::DeregisterLocal(ibv_mr* mr) {
  std::lock_guard lock(mutex_);
  Deregister(mr);
}

Domain::Stats Domain::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace sluice::rdma
