#include "transport/control/grpc_session.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "proto/control.grpc.pb.h"
#include "transport/control/grpc_options.h"

// How one stream lives:
//   1. Loop: Open makes a channel and a Stream of its own for each attempt, so that one Open is one real attempt to
//      connect (a channel that is kept would add its own back-off to ours).
//   2. gRPC: OnReadInitialMetadataDone -> loop: up, first read.
//   3. gRPC: OnReadDone -> loop: message, then the next read: a slow loop slows the peer down instead of filling
//   memory.
//   4. gRPC: OnDone -> loop: down.
// A hold keeps gRPC from ending the stream while the loop may still start reads and writes; whoever sees that no read
// will follow gives it back. Closures on their way to the loop find out by Session::current() that they come too late.
namespace sluice::control {
namespace {

using proto::MemberMessage;
using proto::SchedulerMessage;

constexpr size_t kMaxOutbox = 4096;  // messages; heartbeats come twice a second, so this is a peer that reads nothing

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);   // no connection is shared between two sessions of a process
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);           // http_proxy is for the web
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);  // also how long one attempt to connect may take
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

// Counts the streams that gRPC's threads may still call.
class Alive {
 public:
  void Add() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
  }
  void Remove() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  void WaitForNone() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int count_ = 0;
};

class Stream;

// What a closure on the loop needs of a session that may be gone. The loop's thread alone uses it.
struct Anchor {
  Stream* current = nullptr;  // null after the session's end
  GrpcSession::Callbacks callbacks;
};

class Stream final : public grpc::ClientBidiReactor<MemberMessage, SchedulerMessage>,
                     public std::enable_shared_from_this<Stream> {
 public:
  Stream(transport::Loop* loop, std::shared_ptr<Anchor> anchor, std::shared_ptr<Alive> alive)
      : loop_(loop), anchor_(std::move(anchor)), alive_(std::move(alive)) {}

  void Start(const std::string& address) {
    alive_->Add();
    self_ = shared_from_this();
    stub_ = proto::Control::NewStub(MakeChannel(address));
    stub_->async()->Session(&context_, this);
    AddHold();
    StartCall();
  }

  // Loop.
  void Send(const MemberMessage& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!held_ || write_failed_) return;
    if (outbox_.size() >= kMaxOutbox) {
      context_.TryCancel();
      return;
    }
    outbox_.push_back(message);
    if (outbox_.size() == 1) StartWrite(&outbox_.front());
  }

  // Loop. No callback follows; gRPC lets go by itself some time later.
  void Abandon() {
    bool release;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      abandoned_ = true;
      release = held_ && !reading_;
      if (release) held_ = false;
    }
    context_.TryCancel();
    if (release) RemoveHold();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!EndOfRead(ok)) return;
    loop_->Post([self = shared_from_this()] {
      if (self->Late()) return;
      self->anchor_->callbacks.up();
      self->Read();
    });
  }

  void OnReadDone(bool ok) override {
    if (!EndOfRead(ok)) return;
    loop_->Post([self = shared_from_this()] {
      if (self->Late()) return;
      SchedulerMessage message;
      message.Swap(&self->incoming_);
      self->anchor_->callbacks.message(std::move(message));
      self->Read();
    });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    outbox_.pop_front();
    if (!ok) {
      write_failed_ = true;
      outbox_.clear();
      return;  // the read fails as well and brings the end
    }
    if (!outbox_.empty()) StartWrite(&outbox_.front());
  }

  void OnDone(const grpc::Status& status) override {
    // The loop drops the last claim and with it the channel: gRPC 1.51 joins its callback threads when the last channel
    // goes, which must not happen on one of them. After Post nothing of this object is touched.
    const std::shared_ptr<Alive> alive = alive_;
    loop_->Post([self = std::move(self_), status = FromGrpc(status)] {
      if (self->Late()) return;
      self->anchor_->current = nullptr;
      self->anchor_->callbacks.down(status);
    });
    alive->Remove();
  }

 private:
  // Loop. Another stream took over, or the session ended.
  bool Late() const { return anchor_->current != this; }

  // Loop. Up and message callbacks may have ended this stream.
  void Read() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (abandoned_ || !held_) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  // gRPC. True if what was read goes to the loop; otherwise no read follows.
  bool EndOfRead(bool ok) {
    bool release;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      reading_ = false;
      if (ok && !abandoned_) return true;
      release = held_;
      held_ = false;
    }
    if (release) RemoveHold();
    return false;
  }

  transport::Loop* const loop_;
  const std::shared_ptr<Anchor> anchor_;
  const std::shared_ptr<Alive> alive_;
  std::shared_ptr<Stream> self_;  // gRPC's claim
  grpc::ClientContext context_;
  std::unique_ptr<proto::Control::Stub> stub_;
  SchedulerMessage incoming_;     // gRPC's while reading_, else the loop's

  std::mutex mutex_;
  bool held_ = true;
  bool reading_ = true;           // the initial metadata counts as the first read
  bool abandoned_ = false;
  bool write_failed_ = false;
  std::deque<MemberMessage> outbox_;  // the front one is being written
};

class Session final : public GrpcSession {
 public:
  Session(std::string address, transport::Loop* loop, Callbacks callbacks)
      : address_(std::move(address)), loop_(loop), anchor_(std::make_shared<Anchor>()) {
    anchor_->callbacks = std::move(callbacks);
  }

  ~Session() override {
    if (timer_ != 0) loop_->CancelTimer(timer_);
    Drop();
    alive_->WaitForNone();
  }

  void Open(TimeNs delay) override {
    if (timer_ != 0) loop_->CancelTimer(timer_);
    Drop();
    timer_ = loop_->After(delay, [this] {
      timer_ = 0;
      stream_ = std::make_shared<Stream>(loop_, anchor_, alive_);
      anchor_->current = stream_.get();
      stream_->Start(address_);
    });
  }

  void Send(const MemberMessage& message) override {
    if (stream_ != nullptr) stream_->Send(message);
  }

 private:
  void Drop() {
    anchor_->current = nullptr;
    if (stream_ != nullptr) stream_->Abandon();
    stream_ = nullptr;
  }

  const std::string address_;
  transport::Loop* const loop_;
  const std::shared_ptr<Anchor> anchor_;
  const std::shared_ptr<Alive> alive_ = std::make_shared<Alive>();
  std::shared_ptr<Stream> stream_;
  uint64_t timer_ = 0;
};

}  // namespace

std::unique_ptr<GrpcSession> GrpcSession::Create(std::string address, transport::Loop* loop, Callbacks callbacks) {
  return std::make_unique<Session>(std::move(address), loop, std::move(callbacks));
}

absl::StatusOr<proto::Plan> FetchPlan(const std::string& address, uint32_t job, uint64_t newer_than, TimeNs timeout) {
  auto stub = proto::Control::NewStub(MakeChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout));
  proto::GetPlanRequest request;
  request.set_job(job);
  request.set_newer_than(newer_than);
  proto::Plan plan;
  const grpc::Status status = stub->GetPlan(&context, request, &plan);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat("asking ", address, " for the plan of job ", job, ": ", status.error_message()));
  }
  return plan;
}

}  // namespace sluice::control
