#include "transport/control/grpc_quiet.h"

#include <grpc/support/log.h>

namespace sluice::control {

void SilenceGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace sluice::control
