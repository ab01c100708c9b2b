// From the configuration's section rdma to the options of endpoints.
#pragma once

#include "proto/config.pb.h"
#include "rdma/verbs_driver.h"
#include "transport/auto/auto_endpoint.h"

namespace sluice::rdma {

// What the keys mean, with the defaults of rdma.fabric filled in. config has passed CheckConfig.
DriverOptions DriverOptionsOf(const proto::RdmaConfig& config);

// Sets options->rdma, chunk_bytes and reconnect; options->log must be set before. Devices are looked for when the endpoint is
// created.
void Configure(const proto::RdmaConfig& config, transport::AutoOptions* options);

}  // namespace sluice::rdma
