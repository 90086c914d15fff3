#include "rdma/memory/device.h"

namespace verbena::rdma {

std::string_view DeviceRouteName(DeviceRoute route) {
  switch (route) {
    case DeviceRoute::kStaging:
      return "staging";
    case DeviceRoute::kDmaBuf:
      return "dma-buf";
    case DeviceRoute::kPeerMemory:
      return "peer memory";
  }
  return "?";
}

}  // namespace verbena::rdma
