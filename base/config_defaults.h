// The default of every key whose default is not its type's zero, in one place.
#pragma once

namespace sluice {

// Text format of proto::Config; equals the comments of proto/config.proto.
extern const char kConfigDefaults[];

}  // namespace sluice
