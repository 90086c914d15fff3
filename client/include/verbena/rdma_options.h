// Options of the verbs and ofi transports. The defaults suit most networks.
//
// Several devices or addresses, separated by commas, are *rails*: parallel lanes to each shard,
// from rail i of the client to rail i of the server. If a rail fails, calls continue on the others.
//
// **Thread safety**: plain data.
#ifndef VERBENA_RDMA_OPTIONS_H_
#define VERBENA_RDMA_OPTIONS_H_

#include <string>

#include "verbena/memory_kind.h"

namespace verbena {

// Whether RDMA devices access GPU memory directly: kAuto, kOff, kRequired.
using rdma::GpuDirectUse;

// Options of verbs, for one process.
struct RdmaOptions {
  std::string device = {};       // "mlx5_0" or "mlx5_0:1" (device:port); empty: the nearest usable.
                                 // "mlx5_0,mlx5_1": two rails
  std::string address = {};      // local IP address to use; empty: the first of that device. Two
                                 // rails: "10.0.0.1,10.1.0.1", as many as devices, if any are given
  int gid_index = -1;            // -1: the index of the address
  int traffic_class = -1;        // 0..255 (DSCP << 2 | ECN); -1: the system's
  int service_level = -1;        // 0..15; -1: the path's
  int path_mtu = 0;              // 256, 512, 1024, 2048, 4096 bytes; 0: the path's
  int timeout = 14;              // 1..31: the ACK timeout is 4.096 us x 2^timeout
  int retries = 6;               // 0..7: the retry count, after which the lane is lost
  bool memory_windows = true;    // memory windows for each lane, where the device has them
  bool relaxed_ordering = true;  // PCIe relaxed ordering, where that is safe
  // Whether the device accesses GPU memory directly. ClientStatistics::gpu_paths shows the path in
  // use and the reason. kRequired: calls on GPU memory fail where it does not work.
  GpuDirectUse gpu_direct = GpuDirectUse::kAuto;
};

// Options of ofi (libfabric), for one process.
struct FabricOptions {
  std::string provider = "tcp;ofi_rxm";  // as fi_info(1) lists it; the same as the servers'
  // Local IP address; empty: the source address of connections to the coordinator. Rails:
  // "10.0.0.1,10.1.0.1".
  std::string address = {};
};

}  // namespace verbena

#endif  // VERBENA_RDMA_OPTIONS_H_
