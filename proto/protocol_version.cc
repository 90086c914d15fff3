#include "proto/protocol_version.h"

namespace verbena {

Protocols SpokenProtocols() { return {kOldestProtocolVersion, kProtocolVersion}; }

}  // namespace verbena
