#include "transport/tcp/resolver.h"

#include <mutex>
#include <thread>
#include <utility>

namespace sluice::transport {

struct Resolver::Shared {
  std::mutex mutex;
  Loop* loop;         // guarded by mutex; null: the resolver is gone
  bool gone = false;  // the loop's thread only
};

Resolver::Resolver(Loop* loop) : shared_(std::make_shared<Shared>()) { shared_->loop = loop; }

Resolver::~Resolver() {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->loop = nullptr;
  shared_->gone = true;
}

void Resolver::Resolve(const std::string& host, uint32_t port, Done done) {
  // getaddrinfo can neither be cancelled nor given a deadline, so the thread is detached and owns all that it needs.
  std::thread([shared = shared_, host, port, done = std::move(done)]() mutable {
    auto found = LookUp(host, port, /*numeric_only=*/false);
    std::lock_guard<std::mutex> lock(shared->mutex);
    if (shared->loop == nullptr) return;
    shared->loop->Post([shared, done = std::move(done), found = std::move(found)]() mutable {
      if (!shared->gone) done(std::move(found));
    });
  }).detach();
}

}  // namespace sluice::transport
