#include "rdma/memory/topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

// Null: hwloc could not read the machine. Never destroyed: memory may be mapped during exit.
hwloc_topology_t Topology() {
  static const hwloc_topology_t topology = []() -> hwloc_topology_t {
    hwloc_topology_t made = nullptr;
    if (hwloc_topology_init(&made) != 0) return nullptr;
    // Nodes and processors are always kept; detecting caches and devices only takes time.
    if (hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
        hwloc_topology_load(made) != 0) {
      hwloc_topology_destroy(made);
      return nullptr;
    }
    return made;
  }();
  return topology;
}

hwloc_obj_t FindNode(int node) {
  if (Topology() == nullptr || node < 0) return nullptr;
  return hwloc_get_numanode_obj_by_os_index(Topology(), static_cast<unsigned>(node));
}

// Distances from one node to every other, as (distance, node). Without a table, which the system
// has only for several nodes, all others are equally far.
std::vector<std::pair<hwloc_uint64_t, int>> DistancesFrom(hwloc_obj_t from) {
  std::vector<std::pair<hwloc_uint64_t, int>> result;
  hwloc_distances_s* table = nullptr;
  unsigned tables = 1;
  const bool known = from != nullptr &&
                     hwloc_distances_get_by_type(Topology(), HWLOC_OBJ_NUMANODE, &tables, &table,
                                                 HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) == 0 &&
                     tables > 0;
  for (hwloc_obj_t to = nullptr;
       (to = hwloc_get_next_obj_by_type(Topology(), HWLOC_OBJ_NUMANODE, to)) != nullptr;) {
    hwloc_uint64_t there = to == from ? 0 : 1;
    hwloc_uint64_t back = 0;
    if (known && to != from) (void)hwloc_distances_obj_pair_values(table, from, to, &there, &back);
    result.emplace_back(there, static_cast<int>(to->os_index));
  }
  if (known) hwloc_distances_release(Topology(), table);
  return result;
}

}  // namespace

int NodeCount() {
  if (Topology() == nullptr) return 1;
  return std::max(hwloc_get_nbobjs_by_type(Topology(), HWLOC_OBJ_NUMANODE), 1);
}

int NodeOfThisThread() {
  unsigned cpu = 0;
  unsigned node = 0;
  if (getcpu(&cpu, &node) != 0) return kAnyNode;
  return static_cast<int>(node);
}

int NodeOfPciDevice(const std::string& path) {
  std::ifstream file(absl::StrCat(path, "/numa_node"));
  int node = kAnyNode;
  // The system also returns -1 if the firmware has no information (sysfs-bus-pci, "numa_node").
  if (!(file >> node) || node < 0) return kAnyNode;
  return node;
}

std::vector<int> NodesByDistance(int node) {
  if (Topology() == nullptr) return {0};
  auto distances = DistancesFrom(FindNode(node));
  std::sort(distances.begin(), distances.end());
  std::vector<int> nodes;
  for (const auto& [distance, number] : distances) nodes.push_back(number);
  return nodes;
}

bool PreferNode(void* data, size_t bytes, int node) {
  const hwloc_obj_t where = FindNode(node);
  if (where == nullptr) return false;
  // Not HWLOC_MEMBIND_STRICT: if the node has no free page, another node must provide it. Under a
  // strict policy the access would end in SIGBUS (huge pages) or the out-of-memory killer.
  return hwloc_set_area_membind(Topology(), data, bytes, where->nodeset, HWLOC_MEMBIND_BIND,
                                HWLOC_MEMBIND_BYNODESET) == 0;
}

}  // namespace verbena::rdma
