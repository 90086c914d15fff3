#include "bench/failover/pusher.h"

#include <algorithm>
#include <utility>

#include "bench/failover/cases.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::bench {

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

}  // namespace verbena::bench
