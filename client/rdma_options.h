// What a client may choose about RDMA and fabrics; every default is what most networks want.
//
// Several devices or addresses, with a comma between, are *rails*: lanes side by side to each
// shard, rail i to rail i of the server. A rail that fails costs its speed, and no call.
//
// **Thread safety**: plain data.
#ifndef VERBENA_CLIENT_RDMA_OPTIONS_H_
#define VERBENA_CLIENT_RDMA_OPTIONS_H_

#include <string>

#include "rdma/memory/memory_kind.h"

namespace verbena {

// Whether RDMA devices read and write memory of GPUs themselves: kAuto, kOff, kRequired.
using rdma::GpuDirectUse;

// Of one process; used when data travels over verbs.
struct RdmaOptions {
  std::string device = {};       // "mlx5_0" or "mlx5_0:1" (device:port); empty: the nearest usable.
                                 // "mlx5_0,mlx5_1": two rails
  std::string address = {};      // local IP address to use; empty: the first of that device. Two
                                 // rails: "10.0.0.1,10.1.0.1", as many as devices, if any are given
  int gid_index = -1;            // -1: the one that belongs to the address
  int traffic_class = -1;        // 0..255 (DSCP << 2 | ECN); -1: the system's
  int service_level = -1;        // 0..15; -1: the path's
  int path_mtu = 0;              // 256, 512, 1024, 2048, 4096 bytes; 0: the path's
  int timeout = 14;              // 1..31: an acknowledgement is waited for 4.096 us x 2^timeout
  int retries = 6;               // 0..7 times a packet is sent again before a lane is given up
  bool memory_windows = true;    // guard each lane's memory by windows, where the device has them
  bool relaxed_ordering = true;  // PCIe relaxed ordering, where that is safe
  // Whether the device reads and writes memory of GPUs itself; ClientStatistics::gpu_paths says
  // whether it does, and why not. kRequired: other transports are none for such memory.
  GpuDirectUse gpu_direct = GpuDirectUse::kAuto;
};

// Of one process; used when data travels over ofi (libfabric).
struct FabricOptions {
  std::string provider = "tcp;ofi_rxm";  // as fi_info(1) lists it; the servers' must be the same
  // Local IP; empty: the one that leads to the coordinator. Rails: "10.0.0.1,10.1.0.1".
  std::string address = {};
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_RDMA_OPTIONS_H_
