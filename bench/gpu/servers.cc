#include "bench/gpu/servers.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {

absl::StatusOr<std::unique_ptr<ServersWorld>> ServersWorld::Make(const std::string& verbenad,
                                                                 int shards, int device,
                                                                 uint64_t staging) {
  std::unique_ptr<ServersWorld> world(new ServersWorld);
  world->device_ = device;
  ClusterOptions cluster;
  cluster.verbenad = verbenad;
  cluster.shards = shards;
  auto started = Cluster::Start(cluster);
  if (!started.ok()) return started.status();
  world->cluster_ = *std::move(started);
  ClientOptions client;
  client.cluster = world->cluster_->address();
  client.transport = "shm";
  client.staging_bytes = staging;
  auto connected = Client::Connect(client);
  if (!connected.ok()) return connected.status();
  world->client_ = *std::move(connected);
  return world;
}

absl::Status ServersWorld::UseTable(uint64_t bytes) {
  v1::TableSpec spec;
  spec.set_name(absl::StrCat("gpu-", bytes));
  spec.add_shape(bytes / sizeof(float));
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1e-3);
  auto table = client_->CreateTable(spec);
  if (!table.ok()) return table.status();
  table_ = *table;
  for (Region& region : regions_) {
    auto made = client_->AllocateRegion(table_.bytes(), MemoryKind::kCuda, device_);
    if (!made.ok()) return made.status();
    region = *std::move(made);
  }
  // Finite numbers: the GPU's memory is uninitialized.
  for (int slot = 0; slot < kDepth; ++slot) {
    if (absl::Status status = Start(What::kPull, slot).Wait(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

Ticket ServersWorld::Start(What what, int slot) {
  return what == What::kPush ? client_->Push(table_, regions_[slot])
                             : client_->Pull(table_, regions_[slot]);
}

absl::StatusOr<double> ServersWorld::Run(What what, int milliseconds) {
  using Clock = std::chrono::steady_clock;
  Ticket tickets[kDepth];
  for (int slot = 0; slot < kDepth; ++slot) tickets[slot] = Start(what, slot);
  uint64_t moved = 0;
  const Clock::time_point began = Clock::now();
  Clock::duration took{};
  for (int slot = 0; took < std::chrono::milliseconds(milliseconds); slot = (slot + 1) % kDepth) {
    if (absl::Status status = tickets[slot].Wait(); !status.ok()) return status;
    tickets[slot] = Start(what, slot);
    moved += table_.bytes();
    took = Clock::now() - began;
  }
  for (Ticket& ticket : tickets) {
    if (absl::Status status = ticket.Wait(); !status.ok()) return status;
  }
  return static_cast<double>(moved) / std::chrono::duration<double>(took).count();
}

}  // namespace verbena::bench
