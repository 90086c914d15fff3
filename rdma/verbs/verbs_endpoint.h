// The verbs transport: reliable-connected queue pairs over librdmacm (InfiniBand and RoCE).
//
// librdmacm resolves device, GID and path, and carries the private data (rdma_cm(7)). The queue
// pairs are made with ibv_create_qp and moved with rdma_init_qp_attr + ibv_modify_qp, so that this
// library controls completion queues, depths and attributes. A write with immediate data is one
// IBV_WR_RDMA_WRITE_WITH_IMM. Memory that a peer may write is exposed through a type-2B memory
// window bound to the queue pair (IBTA vol. 1, 10.6.7.2): its key works only on that queue pair. On
// devices without such windows each `ConnectionLimits::domain` has its own protection domain.
//
// **Thread safety**: one owner thread, like every Endpoint. Endpoints of a process share the
// device's context, protection domain and registrations (verbs_device.h).
#ifndef VERBENA_RDMA_VERBS_VERBS_ENDPOINT_H_
#define VERBENA_RDMA_VERBS_VERBS_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdma/transport.h"

namespace verbena::rdma {

// The defaults suit most networks. librdmacm or the device selects "auto" values;
// NewVerbsEndpoint() logs the selection.
struct VerbsOptions {
  std::string device;      // "mlx5_0" or "mlx5_0:1" (device:port); empty: the nearest usable one
  std::string address;     // local IP address to use; empty: the first of that device
  int gid_index = -1;      // -1: the one that belongs to the address. RoCE only
  int port = 0;            // TCP-like port to listen on; 0: any free one
  int traffic_class = -1;  // 0..255 (DSCP << 2 | ECN); -1: the system's default
  int service_level = -1;  // 0..15; -1: the path's
  int path_mtu = 0;        // 256, 512, 1024, 2048, 4096 bytes; 0: the path's
  int timeout = 14;        // 0..31: acknowledgement timeout of 4.096 us x 2^timeout: 67 ms
  int retries = 6;         // 0..7: resends before a connection is lost; with timeout 14: about 0.5
                           // s. Not 7 as default: soft-RoCE (rxe_comp.c, COMPST_ERROR_RETRY) then
                           // never gives up
  uint32_t inline_bytes = 256;   // maximum size copied into the work request, if granted
  bool memory_windows = true;    // false: a protection domain per domain, as on devices without
                                 // windows
  bool relaxed_ordering = true;  // PCIe relaxed ordering, where the device has it
  GpuDirectUse gpu_direct = GpuDirectUse::kAuto;
  std::string sysfs = "/sys";  // where to find kernel modules and NUMA nodes of NICs
  absl::Duration connect_timeout = absl::Seconds(5);  // of each stage: address, route, connection
  // Connection requests that may wait; more are refused. At 10 ms each, this many are answered
  // within the connect timeout. In a longer queue all would time out.
  int backlog = 512;
  int numa_node = -1;             // select the device nearest to this node; -1: this thread's
  uint64_t max_registration = 0;  // bytes of one memory region; 0: the device's max_mr_size
  // Bytes of one memory window, at least 4096. mlx5 refuses to bind more than 2 GiB, and no query
  // gives a device's limit.
  uint64_t max_window = uint64_t{1} << 31;
  std::function<void(const std::string&)> log;  // receives selections and failures; may be empty
};

// A device, port and address that a verbs endpoint could use.
struct VerbsPort {
  std::string device;            // "rxe0"
  int port = 0;                  // from 1
  std::string address;           // local IP address that librdmacm maps to it
  std::string netdev;            // network interface the address is on
  int numa_node = -1;            // -1: unknown
  std::string link_layer;        // "Ethernet" (RoCE) or "InfiniBand"
  std::vector<int> gid_indexes;  // entries of the GID table that hold the address
};

// All usable ports in ascending distance from `numa_node`. If the list is empty, `why` has the
// examined ports and the reasons against them (no device, no address, iWARP, port down).
std::vector<VerbsPort> ListVerbsPorts(int numa_node, std::string* why);

// INVALID_ARGUMENT: an option is out of range; the message has it. UNAVAILABLE: no usable device;
// the message has the reason and the checks to make. The endpoint's device() is "DEVICE:PORT".
absl::StatusOr<std::unique_ptr<Endpoint>> NewVerbsEndpoint(const VerbsOptions& options);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_VERBS_VERBS_ENDPOINT_H_
