#include "server/node_transports.h"

#include <sched.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "rdma/memory/topology.h"
#include "server/access/peer_log.h"
#include "server/control/address.h"

namespace verbena::server {
namespace {

// The NUMA node of a processor, which lies in a folder of its own for each of them
// (sysfs-devices-system-cpu); -1: not known.
int NodeOfProcessor(int cpu) {
  for (const int node : rdma::NodesByDistance(rdma::kAnyNode)) {
    const std::string path = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/node", node);
    if (access(path.c_str(), F_OK) == 0) return node;
  }
  return -1;
}

}  // namespace

std::vector<int> AllowedProcessors() {
  std::vector<int> result;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return result;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<size_t>(i), &set)) result.push_back(i);
  }
  return result;
}

absl::StatusOr<rdma::Transports> MakeShardTransports(const NodeOptions& options, uint32_t shard,
                                                     int cpu) {
  rdma::TransportSettings settings = options.transports;
  settings.verbs.log =
      Bounded([shard](const std::string& text) { spdlog::info("shard {}: {}", shard, text); });
  if (cpu >= 0) settings.verbs.numa_node = NodeOfProcessor(cpu);
  settings.ofi.log = settings.verbs.log;
  // Where the control plane listens; a server of loopback alone is of loopback alone.
  for (const std::string& near : {options.listen, options.join.substr(0, options.join.find(','))}) {
    const absl::StatusOr<HostAndPort> parsed = SplitHostPort(near);
    if (!settings.ofi.towards.empty() || !parsed.ok() || IsWildcard(parsed->host)) continue;
    settings.ofi.towards = parsed->host;
  }
  absl::StatusOr<rdma::Transports> made = rdma::MakeTransports(settings);
  // Once a process life.
  if (made.ok()) spdlog::info("shard {}: transports: {}", shard, rdma::DescribeTransports(*made));
  return made;
}

}  // namespace verbena::server
