// What the library's own files may do that a trainer may not.
#pragma once

#include <memory>

#include "worker/client.h"
#include "worker/client_runtime.h"

namespace sluice {

struct ClientAccess {
  // A client of a runtime whose job runs.
  static std::unique_ptr<Client> Make(std::unique_ptr<worker::Runtime> runtime);
};

}  // namespace sluice
