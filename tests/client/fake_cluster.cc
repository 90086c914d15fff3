#include "tests/client/fake_cluster.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/operations/operations.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/record_check.h"
#include "proto/wire/routing.h"
#include "rdma/shm/shm_endpoint.h"

namespace verbena::test {

// ---- FakeControl --------------------------------------------------------------------------------

void FakeControl::Unary(const std::string& address, const std::string& method,
                        const Message& request, std::shared_ptr<Message> response,
                        absl::Duration timeout, Done done) {
  auto call = std::make_unique<Call>();
  call->address = address;
  call->method = method.substr(method.rfind('/') + 1);
  call->request = request.SerializeAsString();
  call->response = std::move(response);
  call->started = clock_->NowNanos();
  call->deadline = call->started + absl::ToInt64Nanoseconds(timeout);
  call->done = std::move(done);
  ++counts_[call->method];
  calls_.push_back(std::move(call));
}

bool FakeControl::RunOnce() {
  bool worked = false;
  for (size_t n = calls_.size(); n > 0; --n) {
    auto call = std::move(calls_.front());
    calls_.pop_front();
    const int64_t now = clock_->NowNanos();
    std::optional<absl::Status> status;
    if (const auto it = handlers_.find(call->method); it != handlers_.end()) {
      status = it->second(call->address, call->request, call->response.get(), now - call->started);
    }
    if (!status.has_value() && now >= call->deadline) {
      status = absl::DeadlineExceededError(call->method + ": no answer");
    }
    if (!status.has_value()) {
      calls_.push_back(std::move(call));
      continue;
    }
    worked = true;
    call->done(*status);
  }
  return worked;
}

// ---- FakeCluster --------------------------------------------------------------------------------

FakeCluster::FakeCluster(const Options& options)
    : network(7, options.faults),
      clock(options.shm ? static_cast<const Clock*>(&real_clock) : &network.clock()),
      control(clock),
      options_(options) {
  device = std::make_shared<FakeDevice>(clock);
  view.set_cluster_id("fake");
  view.set_revision(1);
  view.set_lease_ms(2000);
  view.set_replicas(options.replicas);
  for (int i = 0; i < options.servers; ++i) {
    const std::string host = absl::StrCat("server", i);
    servers.push_back(
        std::make_unique<FakeServer>(NewEndpoint(host), clock, 10 + uint64_t(i), host));
    v1::Server* server = view.add_servers();
    server->set_incarnation(servers.back()->incarnation());
    server->set_name(absl::StrCat("ps-", i));
    server->set_address(servers.back()->address());
    server->set_shards(1);
    server->set_state(v1::Server::ALIVE);
  }
  for (uint32_t p = 0; p < options.partitions; ++p) {
    v1::Partition* partition = view.add_partitions();
    partition->set_id(p);
    partition->set_epoch(1);
    partition->set_primary(10 + (options.replicas > 1 ? 0 : p % uint64_t(options.servers)));
    for (uint64_t i = 1; i < options.replicas; ++i) partition->add_followers()->set_server(10 + i);
  }
  v1::Job* job = view.add_jobs();
  job->set_name("job");
  job->set_generation(1);
  job->set_expected_workers(options.expected_workers);
  v1::Worker* worker = job->add_members();
  worker->set_incarnation(100);
  worker->set_rank(options.observer ? -1 : 0);

  control.Serve("JoinWorker",
                [this](auto&, auto&, auto* response, int64_t) -> std::optional<absl::Status> {
                  if (!coordinator_answers) return absl::UnavailableError("refused");
                  auto* join = static_cast<v1::JoinWorkerResponse*>(response);
                  join->set_incarnation(100);
                  join->set_rank(options_.observer ? -1 : 0);
                  join->set_lease_ms(2000);
                  *join->mutable_view() = view;
                  return absl::OkStatus();
                });
  control.Serve("Heartbeat",
                [this](auto&, auto&, auto* response, int64_t) -> std::optional<absl::Status> {
                  if (!coordinator_answers) return absl::UnavailableError("refused");
                  if (lease_ended) return absl::NotFoundError("no such incarnation");
                  static_cast<v1::HeartbeatResponse*>(response)->set_revision(view.revision());
                  return absl::OkStatus();
                });
  control.Serve("Leave", [](auto&, auto&, auto*, int64_t) { return absl::OkStatus(); });
  control.Serve("GetView",
                [this](auto&, const std::string& bytes, auto* response,
                       int64_t age) -> std::optional<absl::Status> {
                  if (!coordinator_answers) return absl::UnavailableError("refused");
                  v1::GetViewRequest request;
                  request.ParseFromString(bytes);
                  const bool changed = view.revision() > request.known_revision();
                  if (!changed && age < request.wait_ms() * kMilli) return std::nullopt;
                  auto* answer = static_cast<v1::GetViewResponse*>(response);
                  answer->set_changed(changed);
                  if (changed) *answer->mutable_view() = view;
                  return absl::OkStatus();
                });
  control.Serve("OpenLane",
                [this](const std::string& address, const std::string& bytes, auto* response,
                       int64_t) -> std::optional<absl::Status> {
                  v1::OpenLaneRequest request;
                  request.ParseFromString(bytes);
                  for (const auto& server : servers) {
                    if (server->address() != address) continue;
                    if (server->silent) return std::nullopt;
                    auto opened = server->OpenLane(request);
                    if (opened.ok()) *static_cast<v1::OpenLaneResponse*>(response) = *opened;
                    return opened.status();
                  }
                  return absl::UnavailableError("connection refused");
                });

  endpoint = std::make_unique<rdma::ForwardingEndpoint>(NewEndpoint("worker"));
  if (options.shm) endpoint->name = "shm";
  client::CoreOptions core_options;
  core_options.cluster = "coordinator:1";
  core_options.job = "job";
  core_options.name = "w0";
  core_options.expected_workers = options.expected_workers;
  core_options.staging_bytes = options.staging_bytes;
  core_options.seed = 42;
  if (options.broken_transport) {
    broken = std::make_unique<rdma::ForwardingEndpoint>(NewEndpoint("worker"));
    broken->name = "broken";
    core_options.transports.push_back({broken.get(), ""});
  }
  core_options.transports.push_back({endpoint.get(), "host"});
  core_options.missing = {{"verbs", "no RDMA device"}};
  core_options.observer = options.observer;
  core_options.direct_only = options.direct_only;
  if (options.reaches_device) {
    network.set_device_memory([this](const std::byte* data) { return device->Bytes(data); });
  }
  core_options.clock = clock;
  core_options.control = &control;
  core = std::make_unique<client::ClientCore>(std::move(core_options));
}

std::unique_ptr<rdma::Endpoint> FakeCluster::NewEndpoint(const std::string& host) {
  return options_.shm ? *rdma::NewShmEndpoint() : network.NewEndpoint(host);
}

uint32_t FakeCluster::AddTable(v1::Consistency consistency, uint32_t chunks, uint32_t chunk_bytes,
                               const std::string& name) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.add_shape(uint64_t{chunks} * chunk_bytes / sizeof(float));
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(chunk_bytes);
  return Add(spec);
}

uint32_t FakeCluster::AddTyped(v1::TableSpec spec, uint64_t elements, const std::string& name) {
  spec.set_name(name);
  spec.add_shape(elements);
  return Add(std::move(spec));
}

uint32_t FakeCluster::Add(v1::TableSpec spec) {
  uint32_t id = view.tables_size() == 0 ? 1 : view.tables(view.tables_size() - 1).id() + 1;
  // The fake server derives the consistency from the id: odd is async.
  if ((id % 2 == 1) != (spec.consistency() != v1::CONSISTENCY_SYNC)) ++id;
  spec.set_job("job");
  v1::Table* table = view.add_tables();
  table->set_id(id);
  *table->mutable_spec() = *NormalizeTableSpec(spec);
  Publish();
  return id;
}

void FakeCluster::Publish() { view.set_revision(view.revision() + 1); }

void FakeCluster::Move(uint32_t partition, size_t server) {
  v1::Partition* moved = view.mutable_partitions(static_cast<int>(partition));
  for (const auto& from : servers) {
    if (from->incarnation() == moved->primary()) servers[server]->TakeOver(*from, partition);
  }
  moved->set_primary(servers[server]->incarnation());
  moved->set_epoch(moved->epoch() + 1);
  moved->clear_followers();
}

void FakeCluster::Join() {
  bool joined = false;
  core->Join(now() + 10 * kSecond, [&](absl::Status status) { joined = status.ok(); });
  RunUntil([&] { return joined; });
}

bool FakeCluster::RunUntil(const std::function<bool()>& done, int64_t at_most_ns) {
  const int64_t end = now() + at_most_ns;
  while (!done()) {
    bool worked = core->RunOnce();
    for (const auto& server : servers) worked |= server->RunOnce();
    if (worked) continue;
    if (now() >= end) return done();
    if (options_.shm) continue;
    // Steps of a millisecond, because the fake coordinator has no timers.
    network.Advance(std::min(end, now() + kMilli));
  }
  return true;
}

FakeCluster::CallPtr FakeCluster::Track(
    const std::function<absl::StatusOr<client::OperationId>(client::ClientCore::Done)>& start) {
  auto call = std::make_shared<Call>();
  const auto id = start([this, call](absl::Status status) {
    call->done = true;
    call->status = std::move(status);
    call->ended_at = now();
  });
  if (id.ok()) {
    call->id = *id;
  } else {
    call->done = true;
    call->status = id.status();
  }
  return call;
}

FakeCluster::CallPtr FakeCluster::Push(uint32_t table, client::ClientCore::Slice slice,
                                       int64_t timeout_ns) {
  return Track([&](auto done) { return core->Push(table, slice, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::Assign(uint32_t table, client::ClientCore::Slice slice,
                                         int64_t timeout_ns) {
  return Track([&](auto done) {
    return core->Push(table, slice, now() + timeout_ns, done, nullptr, client::Write::kAssign);
  });
}

FakeCluster::CallPtr FakeCluster::Pull(uint32_t table, client::ClientCore::Slice slice,
                                       std::optional<uint64_t> min_version, int64_t timeout_ns) {
  return Track(
      [&](auto done) { return core->Pull(table, slice, min_version, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::PullAny(uint32_t table, client::ClientCore::Slice slice,
                                          uint32_t max_staleness_ms, int64_t timeout_ns) {
  return Track([&](auto done) {
    return core->Pull(table, slice, {}, now() + timeout_ns, done, nullptr, max_staleness_ms);
  });
}

FakeCluster::CallPtr FakeCluster::PushPull(uint32_t table, client::ClientCore::Slice from,
                                           client::ClientCore::Slice to, int64_t timeout_ns) {
  return Track(
      [&](auto done) { return core->PushPull(table, from, to, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::EndStep(uint32_t table, int64_t timeout_ns) {
  return Track([&](auto done) { return core->EndStep(table, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::SetOptimizer(uint32_t table,
                                               std::shared_ptr<client::OptimizerUpdate> change,
                                               int64_t timeout_ns) {
  return Track([&](auto done) {
    return core->SetOptimizer(table, std::move(change), now() + timeout_ns, done);
  });
}

client::ClientCore::Slice FakeCluster::Memory(uint32_t table, float value) {
  uint64_t elements = 0;
  for (const v1::Table& t : view.tables()) {
    if (t.id() == table) elements = LayoutOf(t.spec()).elements;
  }
  auto block = *rdma::MemoryBlock::Allocate(elements * sizeof(float), "test-region");
  std::fill_n(reinterpret_cast<float*>(block->data()), elements, value);
  return {block, 0, 0, elements};
}

client::ClientCore::Slice FakeCluster::DeviceMemory(uint32_t table, float value, uintptr_t stream) {
  const client::ClientCore::Slice host = Memory(table, value);
  client::ClientCore::Slice slice = host;
  slice.block = *rdma::MemoryBlock::AllocateOn(device, host.block->size());
  std::memcpy(Numbers(slice), host.block->data(), host.block->size());
  slice.after = *device->MarkStream(stream);
  return slice;
}

client::ClientCore::Slice FakeCluster::Chunk(const client::ClientCore::Slice& whole, uint32_t chunk,
                                             uint32_t chunk_elements) {
  client::ClientCore::Slice slice = whole;
  slice.first = uint64_t{chunk} * chunk_elements;
  slice.offset = slice.first * sizeof(float);
  slice.count = std::min<uint64_t>(chunk_elements, whole.count - slice.first);
  return slice;
}

}  // namespace verbena::test
