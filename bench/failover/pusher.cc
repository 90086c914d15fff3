#include "bench/failover/pusher.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/failover/cases.h"
#include "proto/verbena/v1/cluster.grpc.pb.h"

namespace verbena::bench {

double MillisecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

absl::StatusOr<std::unique_ptr<Pusher>> Pusher::Connect(const Wire& wire,
                                                        const std::string& cluster, uint64_t chunks,
                                                        uint32_t chunk_bytes,
                                                        uint64_t region_chunks) {
  auto pusher = std::make_unique<Pusher>();
  ClientOptions options;
  options.cluster = cluster;
  options.job = kFailover;
  options.transport = wire.transport;
  options.rdma.device = wire.device;
  auto connected = Client::Connect(options);
  if (!connected.ok()) return connected.status();
  pusher->client_ = *std::move(connected);
  v1::TableSpec spec;
  spec.set_name("pushed");
  spec.set_job(kFailover);
  spec.add_shape(chunks * chunk_bytes / sizeof(float));
  spec.set_chunk_bytes(chunk_bytes);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.001);
  auto table = pusher->client_->CreateTable(spec);
  if (!table.ok()) return table.status();
  pusher->table_ = *table;
  auto region = pusher->client_->AllocateRegion(region_chunks * chunk_bytes);
  if (!region.ok()) return region.status();
  pusher->region_ = *std::move(region);
  std::fill_n(pusher->region_.floats(), pusher->region_.size() / sizeof(float), 0.5f);
  return pusher;
}

Ticket Pusher::Push(uint64_t first, uint64_t count) {
  const uint64_t elements = table_.chunk_elements();
  return client_->Push(table_, region_, {.first = first * elements, .count = count * elements});
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

namespace {

bool HasCopies(const v1::ClusterView& view) {
  std::set<uint64_t> alive;
  for (const v1::Server& server : view.servers()) {
    if (server.state() == v1::Server::ALIVE) alive.insert(server.incarnation());
  }
  if (alive.size() != view.expected_servers() || view.partitions().empty()) return false;
  for (const v1::Partition& partition : view.partitions()) {
    if (!alive.contains(partition.primary()) || partition.learners_size() > 0) return false;
    uint32_t copies = 1;
    for (const v1::Replica& copy : partition.followers()) copies += alive.count(copy.server());
    if (copies < view.replicas()) return false;
  }
  return true;
}

}  // namespace

absl::Status AwaitCopies(const Cluster& cluster) {
  const auto start = steady_clock::now();
  while (MillisecondsSince(start) < 60'000) {
    auto view = ViewOf(cluster);
    if (!view.ok()) return view.status();
    if (HasCopies(*view)) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError("after 60 s not all partitions have their copies");
}

}  // namespace verbena::bench
