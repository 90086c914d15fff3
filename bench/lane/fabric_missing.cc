// A build without libfabric.
#include "bench/lane/fabric.h"

namespace verbena::bench {

absl::StatusOr<double> FabricMegabytes(const FabricOptions&, double) {
  return absl::UnavailableError("this build has no libfabric");
}

absl::StatusOr<FabricTimes> FabricRoundTrip(const FabricOptions&, double) {
  return absl::UnavailableError("this build has no libfabric");
}

}  // namespace verbena::bench
