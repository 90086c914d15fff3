// The NUMA nodes of this machine that this process may use.
//
// Node numbers are those of the system (/sys/devices/system/node/nodeN). hwloc reads the machine
// once per process, at the first call, in a few milliseconds.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_RDMA_MEMORY_TOPOLOGY_H_
#define VERBENA_RDMA_MEMORY_TOPOLOGY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "rdma/memory/page_options.h"

namespace verbena::rdma {

// At least 1.
int NodeCount();

// The node of this thread at the moment; kAnyNode: unknown. It is stable only for a pinned thread.
int NodeOfThisThread();

// The node of the device with sysfs folder `path`, such as /sys/class/infiniband/mlx5_0/device.
// kAnyNode: unknown, as for software devices.
int NodeOfPciDevice(const std::string& path);

// All nodes in ascending distance from `node` (itself first, if it exists); by number for kAnyNode.
std::vector<int> NodesByDistance(int node);

// Requests pages on `node` for an untouched mapping, with other nodes if it is full. False: the
// system refused, or has no such node; pages are allocated on the node of the first touch.
bool PreferNode(void* data, size_t bytes, int node);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_TOPOLOGY_H_
