// The protocol versions that a program of a test speaks, in place of its own: a verbenad of the
// version before, or of a later one, is the same objects linked with this.
#include "proto/protocol_version.h"

namespace verbena {

Protocols SpokenProtocols() { return {VERBENA_TEST_OLDEST_PROTOCOL, VERBENA_TEST_NEWEST_PROTOCOL}; }

}  // namespace verbena
