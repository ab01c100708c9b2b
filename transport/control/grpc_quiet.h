// gRPC writes lines of its own to stderr ("E0423 12:01:02.3 chttp2_server.cc:1045] …") for what its callers get as
// statuses anyway. Programs that report their errors themselves switch them off first thing in main().
#pragma once

namespace sluice::control {

void SilenceGrpcLog();

}  // namespace sluice::control
