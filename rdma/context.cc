#include "rdma/context.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sluice::rdma {
namespace {

absl::Status Failed(const Rail& rail, const char* what, int error) {
  const std::string text = absl::StrCat(rail.device, " port ", rail.port, ": ", what, ": ", std::strerror(error));
  if (error == ENOMEM) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; the device is out of such objects, or the memlock limit is too low: ", MemlockMend()));
  }
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(
        absl::StrCat(text, "; this user must be able to open /dev/infiniband/uverbs* (group rdma)"));
  }
  if (error == ENOENT) {
    return absl::UnavailableError(
        absl::StrCat(text, "; a container needs /dev/infiniband handed in (--device=/dev/infiniband)"));
  }
  return absl::UnavailableError(text);
}

absl::Status NonBlocking(const Rail& rail, int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) return absl::OkStatus();
  return Failed(rail, "cannot make an event descriptor non-blocking", errno);
}

}  // namespace

Context::Context(Verbs* verbs, const Rail& rail, const ContextOptions& options)
    : verbs_(verbs), options_(options), rail_(rail) {
  random_.seed(options.seed != 0 ? options.seed : (uint64_t{std::random_device{}()} << 32 | std::random_device{}()));
}

absl::StatusOr<std::unique_ptr<Context>> Context::Open(Verbs* verbs, const Rail& rail, const ContextOptions& options) {
  auto context = std::unique_ptr<Context>(new Context(verbs, rail, options));
  int count = 0;
  ibv_device** list = verbs->GetDeviceList(&count);
  if (list == nullptr) return Failed(rail, "cannot list devices", errno);
  int error = 0;
  bool found = false;
  for (int i = 0; i < count && !found; ++i) {
    if (verbs->GetDeviceName(list[i]) != rail.device) continue;
    found = true;
    context->device_ = verbs->OpenDevice(list[i]);
    error = errno;
  }
  verbs->FreeDeviceList(list);
  if (!found) return absl::NotFoundError(absl::StrCat("no RDMA device ", rail.device, " on this host any more"));
  if (context->device_ == nullptr) return Failed(rail, "cannot open the device", error);
  if (int failed = verbs->QueryDevice(context->device_, &context->attributes_); failed != 0) {
    return Failed(rail, "cannot query the device", failed);
  }
  SLUICE_RETURN_IF_ERROR(context->Refresh());
  SLUICE_RETURN_IF_ERROR(NonBlocking(rail, context->async_fd()));
  context->channel_ = verbs->CreateCompChannel(context->device_);
  if (context->channel_ == nullptr) return Failed(rail, "cannot make a completion channel", errno);
  SLUICE_RETURN_IF_ERROR(NonBlocking(rail, context->completion_fd()));
  const int entries = std::max(1, std::min(options.cq_entries, context->attributes_.max_cqe));
  context->cq_ = verbs->CreateCq(context->device_, entries, context->channel_);
  if (context->cq_ == nullptr) return Failed(rail, "cannot make a completion queue", errno);
  return context;
}

Context::~Context() {
  domains_.clear();
  if (cq_ != nullptr) verbs_->DestroyCq(cq_);
  if (channel_ != nullptr) verbs_->DestroyCompChannel(channel_);
  if (device_ != nullptr) verbs_->CloseDevice(device_);
}

absl::Status Context::Refresh() {
  if (int failed = verbs_->QueryPort(device_, rail_.port, &port_); failed != 0) {
    return Failed(rail_, "cannot query the port", failed);
  }
  if (port_.state != IBV_PORT_ACTIVE) {
    return absl::UnavailableError(absl::StrCat(rail_.device, " port ", rail_.port, " is down (state ",
                                               static_cast<int>(port_.state), "): check cable, switch and `ip link`"));
  }
  ibv_gid gid{};
  if (verbs_->QueryGid(device_, rail_.port, rail_.gid_index, &gid) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(rail_.ToString(), ": no such GID any more: ", std::strerror(errno), "; choose another"));
  }
  if (std::memcmp(gid.raw, rail_.gid.data(), sizeof(gid.raw)) != 0) {
    Gid now;
    std::memcpy(now.data(), gid.raw, now.size());
    return absl::FailedPreconditionError(absl::StrCat(rail_.ToString(), ": the GID there is ", GidText(now),
                                                      " now (an address of the interface changed); choose again"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Domain*> Context::DomainOf(uint32_t job) {
  auto found = domains_.find(job);
  if (found != domains_.end()) return found->second.get();
  ibv_pd* pd = verbs_->AllocPd(device_);
  if (pd == nullptr) return Failed(rail_, "cannot make a protection domain", errno);
  auto refused = [this](const absl::Status& why) {
    {
      std::lock_guard lock(refused_mutex_);
      if (std::exchange(refused_, true)) return;
    }
    if (options_.refused != nullptr) options_.refused(why);
  };
  auto domain = std::unique_ptr<Domain>(new Domain(this, pd, options_.memory, std::move(refused)));
  return domains_.emplace(job, std::move(domain)).first->second.get();
}

absl::Status Context::Poll(absl::FunctionRef<void(const ibv_wc&)> on_completion, bool* more) {
  constexpr int kAtOnce = 16;
  ibv_wc completions[kAtOnce];
  for (size_t handed_out = 0; more == nullptr || handed_out < kPollBatch;) {
    const int count = verbs_->PollCq(cq_, kAtOnce, completions);
    if (count < 0) {
      return absl::DataLossError(absl::StrCat(rail_.device, ": its completion queue of ", cq_->cqe,
                                              " entries cannot be read (overrun, or the device is gone); every "
                                              "connection over it must be made again"));
    }
    for (int i = 0; i < count; ++i) on_completion(completions[i]);
    handed_out += static_cast<size_t>(count);
    if (count == 0) {
      if (more != nullptr) *more = false;
      return absl::OkStatus();
    }
  }
  *more = true;
  return absl::OkStatus();
}

absl::Status Context::Arm() {
  ibv_cq* cq = nullptr;
  unsigned events = 0;
  while (verbs_->GetCqEvent(channel_, &cq) == 0) ++events;
  if (events != 0) verbs_->AckCqEvents(cq_, events);
  if (int failed = verbs_->ReqNotifyCq(cq_, 0); failed != 0) {
    return Failed(rail_, "cannot arm the completion queue (no event would come; poll it by a timer)", failed);
  }
  return absl::OkStatus();
}

int Context::OnAsyncEvents(absl::FunctionRef<void(const ibv_async_event&)> on_event) {
  int count = 0;
  for (ibv_async_event event{}; verbs_->GetAsyncEvent(device_, &event) == 0; ++count) {
    // Acknowledged first: a QP or queue that the callback destroys waits for its events to be.
    ibv_async_event acknowledged = event;
    verbs_->AckAsyncEvent(&acknowledged);
    on_event(event);
  }
  return count;
}

absl::Status Context::ReserveCompletions(size_t entries) {
  const size_t all = static_cast<size_t>(cq_->cqe);
  if (reserved_ + entries > all) {
    return absl::ResourceExhaustedError(absl::StrCat(
        rail_.device, ": ", entries, " more work requests do not fit its completion queue (", reserved_, " of ", all,
        " taken); fewer or smaller queue pairs, or more completion entries (the device takes ", attributes_.max_cqe,
        ")"));
  }
  reserved_ += entries;
  return absl::OkStatus();
}

}  // namespace sluice::rdma
