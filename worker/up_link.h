// A link of this worker that is up.
#pragma once

#include <string>

#include "transport/transport.h"

namespace sluice::worker {

struct UpLink {
  transport::LinkId link = 0;
  std::string peer;       // for people: "server s1 loop 0"
  std::string peer_id;    // its Register.id: "s1"
};

}  // namespace sluice::worker
