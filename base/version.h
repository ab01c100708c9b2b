// The release, for people and logs. Whether two processes can talk is decided by kProtocolVersion in transport/wire.h.
#pragma once

namespace sluice {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace sluice
