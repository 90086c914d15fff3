#include "bench/cluster_view.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "verbena/v1/cluster.grpc.pb.h"

namespace verbena::bench {
namespace {

std::set<uint64_t> AliveServers(const v1::ClusterView& view) {
  std::set<uint64_t> alive;
  for (const v1::Server& server : view.servers()) {
    if (server.state() == v1::Server::ALIVE) alive.insert(server.incarnation());
  }
  return alive;
}

bool HasPrimaries(const v1::ClusterView& view) {
  const std::set<uint64_t> alive = AliveServers(view);
  return !view.partitions().empty() &&
         std::all_of(view.partitions().begin(), view.partitions().end(),
                     [&](const v1::Partition& p) { return alive.contains(p.primary()); });
}

bool HasCopies(const v1::ClusterView& view) {
  const std::set<uint64_t> alive = AliveServers(view);
  if (alive.size() != view.expected_servers() || !HasPrimaries(view)) return false;
  for (const v1::Partition& partition : view.partitions()) {
    if (partition.learners_size() > 0) return false;
    uint32_t copies = 1;
    for (const v1::Replica& copy : partition.followers()) copies += alive.count(copy.server());
    if (copies < view.replicas()) return false;
  }
  return true;
}

absl::Status Await(const Cluster& cluster, int seconds, bool (*there)(const v1::ClusterView&),
                   const char* what) {
  const auto start = steady_clock::now();
  while (MillisecondsSince(start) < seconds * 1e3) {
    auto view = ViewOf(cluster);
    if (!view.ok()) return view.status();
    if (there(*view)) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("after ", seconds, " s not all partitions have ", what));
}

}  // namespace

double MillisecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

absl::StatusOr<v1::ClusterView> ViewOf(const Cluster& cluster) {
  auto stub = v1::Cluster::NewStub(
      grpc::CreateChannel(cluster.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetViewResponse response;
  const grpc::Status status = stub->GetView(&context, {}, &response);
  if (!status.ok()) return absl::UnavailableError(status.error_message());
  return std::move(*response.mutable_view());
}

absl::Status AwaitCopies(const Cluster& cluster, int seconds) {
  return Await(cluster, seconds, HasCopies, "their copies");
}

absl::Status AwaitPrimaries(const Cluster& cluster, int seconds) {
  return Await(cluster, seconds, HasPrimaries, "a primary that is alive");
}

}  // namespace verbena::bench
