// The NUMA nodes of this machine, as far as this process may use them.
//
// Nodes are the system's numbers (/sys/devices/system/node/nodeN). hwloc reads the machine once per
// process, at the first call, in some milliseconds.
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

// Where this thread runs at the moment; kAnyNode: not known. Lasting only for a pinned thread.
int NodeOfThisThread();

// Of the device whose folder in sysfs is `path`, such as /sys/class/infiniband/mlx5_0/device.
// kAnyNode: not known, as for devices made of software.
int NodeOfPciDevice(const std::string& path);

// Every node, the nearest to `node` first (itself, when it exists); by number for kAnyNode.
std::vector<int> NodesByDistance(int node);

// Asks for the pages of a mapping that was not touched yet to be on `node`, and on another one when
// it is full. False: the system refused, or has no such node; the pages go where they are touched.
bool PreferNode(void* data, size_t bytes, int node);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_TOPOLOGY_H_
