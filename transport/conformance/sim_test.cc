#include "transport/conformance/sim_environment.h"
#include "transport/conformance/suite.h"

namespace sluice::transport::conformance {

INSTANTIATE_TEST_SUITE_P(
    Sim, ConformanceTest,
    ::testing::Values(Transport{"Copying", [] { return MakeSimEnvironment(1, /*by_reference=*/false); }},
                      Transport{"ByReference", [] { return MakeSimEnvironment(2, /*by_reference=*/true); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace sluice::transport::conformance
