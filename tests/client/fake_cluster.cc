#include "tests/client/fake_cluster.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/record_check.h"
#include "proto/routing.h"
#include "proto/table_spec.h"
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

// ---- FakeServer ---------------------------------------------------------------------------------

FakeServer::FakeServer(std::unique_ptr<rdma::Endpoint> endpoint, const Clock* clock,
                       uint64_t incarnation, std::string host)
    : endpoint_(std::move(endpoint)),
      clock_(clock),
      incarnation_(incarnation),
      host_(std::move(host)) {
  config.small_slots = 16;
  config.large_slots = 2;
  config.large_slot_bytes = 4096 + 4096;
  config.operations = 16;
  lane_address_ = *endpoint_->Listen();
}

absl::StatusOr<v1::OpenLaneResponse> FakeServer::OpenLane(const v1::OpenLaneRequest& request) {
  if (!open_status.ok()) return open_status;
  if (request.server_incarnation() != incarnation_) {
    return absl::FailedPreconditionError("another incarnation lives here");
  }
  rdma::ShardLane::Params params;
  params.lane = next_lane_++;
  params.generation = params.lane;
  params.incarnation = request.incarnation();
  params.config = config;
  granted_[params.lane] = params;
  v1::OpenLaneResponse response;
  response.set_lane(params.lane);
  response.set_generation(params.generation);
  std::string token(16, '\0');
  std::memcpy(token.data(), &params.lane, sizeof(params.lane));
  response.set_token(token);
  response.set_wire_version(kWireVersion);
  response.set_transport(std::string(endpoint_->transport()));
  response.set_transport_reason("a test");
  response.set_address(lane_address_);
  last_open = request;
  if (request.offers(0).transport() == "broken") {
    response.set_transport("broken");
    response.set_address("sim:nowhere/1");
  }
  response.set_small_slots(config.small_slots);
  response.set_small_slot_bytes(config.small_slot_bytes);
  response.set_large_slots(config.large_slots);
  response.set_large_slot_bytes(config.large_slot_bytes);
  response.set_operations(config.operations);
  return response;
}

void FakeServer::Accept(const rdma::ConnectionEvent& event) {
  const auto hello = ParseHello(event.private_data);
  uint32_t id = 0;
  if (hello.ok()) std::memcpy(&id, hello->token, sizeof(id));
  const auto it = granted_.find(id);
  if (it == granted_.end()) return endpoint_->Reject(event.connection, "unknown token");
  auto lane = rdma::ShardLane::Accept(endpoint_.get(), event.connection, *hello, it->second);
  if (!lane.ok()) return;
  by_connection_[event.connection] = id;
  lanes_[id] = *std::move(lane);
  ++lanes_opened;
}

bool FakeServer::RunOnce() {
  bool worked = false;
  std::vector<rdma::ConnectionEvent> events(8);
  const size_t n = endpoint_->PollEvents(absl::MakeSpan(events));
  for (size_t i = 0; i < n; ++i) {
    worked = true;
    if (events[i].kind == rdma::ConnectionEvent::Kind::kRequest) {
      Accept(events[i]);
    } else if (const auto it = by_connection_.find(events[i].connection);
               it != by_connection_.end()) {
      lanes_[it->second]->OnEvent(events[i]);
    }
  }
  std::vector<rdma::Completion> completions(32);
  const size_t c = endpoint_->Poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < c; ++i) {
    worked = true;
    const auto it = by_connection_.find(completions[i].connection);
    if (it == by_connection_.end()) continue;
    Held held;
    held.lane = it->second;
    std::vector<uint64_t> written;
    if (!lanes_[held.lane]->OnCompletion(completions[i], &held.arrival, &written)) continue;
    held.payload.assign(held.arrival.payload.begin(), held.arrival.payload.end());
    const RecordHeader& h = held.arrival.record.header;
    float value = 0;
    if (held.payload.size() >= sizeof(value)) {
      std::memcpy(&value, held.payload.data(), sizeof(value));
    }
    for (const Group& g : held.arrival.record.group_span()) {
      seen.push_back({h.type, h.table, g.partition, g.index, g.epoch, g.sequence, g.count,
                      h.min_version, value, held.lane, clock_->NowNanos()});
    }
    held_.push_back(std::move(held));
  }
  for (auto& [id, lane] : lanes_) worked |= lane->RunOnce();
  if (silent) return worked;
  // What was answered may let an earlier record go.
  for (size_t i = 0; i < held_.size();) {
    if (lanes_[held_[i].lane]->state() != rdma::ShardLane::State::kOpen || Handle(&held_[i])) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      i = 0;
      worked = true;
    } else {
      ++i;
    }
  }
  return worked;
}

uint64_t FakeServer::CommittedOf(uint32_t table, uint32_t partition) const {
  if (hold_commits) return 0;
  const auto it = ended_.find({table, partition});
  return it == ended_.end() ? 0 : it->second;
}

ReplyStatus FakeServer::Apply(const Record& record, size_t group, float value, uint64_t* version) {
  const Group& g = record.groups[group];
  const std::pair<uint32_t, uint32_t> key(record.header.table, g.partition);
  // Odd tables are async (FakeCluster::AddTable).
  if (record.header.table % 2 == 1) {
    uint64_t& last = last_[key];
    if (g.sequence <= last) return ReplyStatus::kDuplicate;
    if (g.sequence > last + 1) return ReplyStatus::kSequenceGap;
    last = g.sequence;
    if (record.header.type == RecordType::kPush) applied[{key.first, g.index}] += value;
    return ReplyStatus::kOk;
  }
  const uint64_t committed = CommittedOf(key.first, key.second);
  *version = committed;
  if (g.sequence < committed) return ReplyStatus::kDuplicate;
  if (record.header.type == RecordType::kEndStep) {
    ended_[key] = std::max(ended_[key], g.sequence + 1);
    return ReplyStatus::kOk;
  }
  if (g.sequence > committed) return ReplyStatus::kWrongStep;
  applied[{key.first, g.index}] += value;
  return ReplyStatus::kOk;
}

bool FakeServer::Handle(Held* held) {
  rdma::ShardLane* lane = lanes_[held->lane].get();
  const Record& record = held->arrival.record;
  const RecordHeader& h = record.header;
  rdma::ShardLane::Answer answer;
  answer.operation = h.operation;
  answer.group_count = h.group_count;
  answer.return_slot = !held->slot_returned;
  answer.slot = held->arrival.slot;
  float value = 0;
  if (held->payload.size() >= sizeof(value)) {
    std::memcpy(&value, held->payload.data(), sizeof(value));
  }
  if (refuse) {
    const Group& g = record.groups[0];
    const Seen first = {h.type,  h.table,       g.partition, g.index,    g.epoch, g.sequence,
                        g.count, h.min_version, value,       held->lane, 0};
    if (const auto status = refuse(first)) {
      answer.status = *status;
      answer.version = reply_version;
      lane->SendReply(answer);
      return true;
    }
  }
  if (h.type == RecordType::kPush || h.type == RecordType::kEndStep) {
    if (h.type == RecordType::kPush && hold_pushes) return false;
    std::vector<ReplyStatus> statuses;
    for (size_t i = 0; i < h.group_count; ++i) {
      statuses.push_back(Apply(record, i, value, &answer.version));
      if (statuses.back() != ReplyStatus::kOk && answer.status == ReplyStatus::kOk) {
        answer.status = statuses.back();
      }
    }
    answer.group_status = statuses;
    lane->SendReply(answer);
    return true;
  }
  // Pulls and awaits of async tables never wait.
  uint64_t version = h.table % 2 == 1 ? h.min_version : UINT64_MAX;
  for (const Group& g : record.group_span()) {
    if (h.table % 2 == 0) version = std::min(version, CommittedOf(h.table, g.partition));
  }
  if (version < h.min_version) {
    if (!held->slot_returned) lane->ReturnSlot(held->arrival.slot);
    held->slot_returned = true;
    return false;
  }
  answer.version = version;
  if (h.type == RecordType::kAwait) {
    lane->SendReply(answer);
    return true;
  }
  const Group& g = record.groups[0];
  auto block = rdma::MemoryBlock::Allocate(g.count * sizeof(float), rdma::MemoryKind::kHost, "out");
  std::fill_n(reinterpret_cast<float*>((*block)->data()), g.count, applied[{h.table, g.index}]);
  outgoing_.push_back(*block);
  lane->WriteAndReply({(*block)->data(), static_cast<uint32_t>((*block)->size()), block->get()},
                      {h.destination, h.destination_key}, 0, answer);
  return true;
}

void FakeServer::CloseLanes(const std::string& why) {
  for (auto& [id, lane] : lanes_) lane->Close(absl::UnavailableError(why));
}

std::vector<Seen> FakeServer::Of(RecordType type) const {
  std::vector<Seen> result;
  std::copy_if(seen.begin(), seen.end(), std::back_inserter(result),
               [&](const Seen& s) { return s.type == type; });
  return result;
}

// ---- FakeCluster --------------------------------------------------------------------------------

FakeCluster::FakeCluster(const Options& options)
    : network(7, options.faults),
      clock(options.shm ? static_cast<const Clock*>(&real_clock) : &network.clock()),
      control(clock),
      options_(options) {
  view.set_cluster_id("fake");
  view.set_revision(1);
  view.set_lease_ms(2000);
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
    partition->set_primary(10 + p % uint64_t(options.servers));
  }
  v1::Job* job = view.add_jobs();
  job->set_name("job");
  job->set_generation(1);
  job->set_expected_workers(options.expected_workers);
  v1::Worker* worker = job->add_members();
  worker->set_incarnation(100);
  worker->set_rank(0);

  control.Serve("JoinWorker",
                [this](auto&, auto&, auto* response, int64_t) -> std::optional<absl::Status> {
                  if (!coordinator_answers) return absl::UnavailableError("refused");
                  auto* join = static_cast<v1::JoinWorkerResponse*>(response);
                  join->set_incarnation(100);
                  join->set_rank(0);
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
  core_options.clock = clock;
  core_options.control = &control;
  core = std::make_unique<client::ClientCore>(std::move(core_options));
}

std::unique_ptr<rdma::Endpoint> FakeCluster::NewEndpoint(const std::string& host) {
  return options_.shm ? *rdma::NewShmEndpoint() : network.NewEndpoint(host);
}

uint32_t FakeCluster::AddTable(v1::Consistency consistency, uint32_t chunks, uint32_t chunk_bytes,
                               const std::string& name) {
  uint32_t id = view.tables_size() == 0 ? 1 : view.tables(view.tables_size() - 1).id() + 1;
  // The fake server tells by the id: odd is async.
  if ((id % 2 == 1) != (consistency == v1::CONSISTENCY_ASYNC)) ++id;
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("job");
  spec.add_shape(uint64_t{chunks} * chunk_bytes / sizeof(float));
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(chunk_bytes);
  v1::Table* table = view.add_tables();
  table->set_id(id);
  *table->mutable_spec() = *NormalizeTableSpec(spec);
  Publish();
  return id;
}

void FakeCluster::Publish() { view.set_revision(view.revision() + 1); }

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
    // Steps of a millisecond: the fake coordinator has no timers of its own to tell.
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

FakeCluster::CallPtr FakeCluster::Pull(uint32_t table, client::ClientCore::Slice slice,
                                       std::optional<uint64_t> min_version, int64_t timeout_ns) {
  return Track(
      [&](auto done) { return core->Pull(table, slice, min_version, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::PushPull(uint32_t table, client::ClientCore::Slice from,
                                           client::ClientCore::Slice to, int64_t timeout_ns) {
  return Track(
      [&](auto done) { return core->PushPull(table, from, to, now() + timeout_ns, done); });
}

FakeCluster::CallPtr FakeCluster::EndStep(uint32_t table, int64_t timeout_ns) {
  return Track([&](auto done) { return core->EndStep(table, now() + timeout_ns, done); });
}

client::ClientCore::Slice FakeCluster::Memory(uint32_t table, float value) {
  uint64_t elements = 0;
  for (const v1::Table& t : view.tables()) {
    if (t.id() == table) elements = LayoutOf(t.spec()).elements;
  }
  auto block = *rdma::MemoryBlock::Allocate(elements * sizeof(float), rdma::MemoryKind::kHost,
                                            "test-region");
  std::fill_n(reinterpret_cast<float*>(block->data()), elements, value);
  return {block, 0, 0, elements};
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
