// The coordinator under requests that anybody may send. The input is a script: requests as they
// come off the wire, time that passes, restarts. A shard applies the resulting views, and must
// accept or refuse each.
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/stubs/logging.h"
#include "server/coordinator/configurations.h"
#include "server/coordinator/coordinator.h"
#include "shard/engine.h"
#include "shard/table/dense_table.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_shard.h"

namespace verbena::fuzz {
namespace {

using server::Coordinator;

constexpr int kTurns = 64;
constexpr size_t kShardBytes = size_t{1} << 20;

constexpr char kSeedToken[] = "0123456789ab";

class ScriptClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now; }
  int64_t now = 1'000'000'000;
};

enum class Turn : uint8_t {
  kJoinServer,
  kJoinWorker,
  kHeartbeat,
  kLeave,
  kCreateTable,
  kDropTable,
  kGetView,
  kCreateToken,
  kRevokeToken,
  kWait,     // so many milliseconds
  kRestart,  // only the store is left
  kSetJobLimits,
  kRemoveServer,
  kResetTable,
  kReconfigure,
  kFinishRestore,
  kRenewRestore,
  kForgetJob,
  kMovePartitions,
  kDrainServer,
  kAdmitMembers,
  kCount
};

class Script {
 public:
  Script() {
    google::protobuf::SetLogHandler(nullptr);  // of texts that are no UTF-8: there are many
    Restart();
  }

  void Run(Input* input) {
    for (int i = 0; i < kTurns && !input->empty(); ++i) {
      const auto turn = static_cast<Turn>(input->Take<uint8_t>() % static_cast<int>(Turn::kCount));
      const auto argument = input->Take<uint16_t>();
      if (turn == Turn::kWait) {
        clock_.now += int64_t{argument} * 1'000'000;
        coordinator_->RunOnce();
      } else if (turn == Turn::kRestart) {
        Restart();
      } else {
        std::string bytes(argument % 512, '\0');
        for (char& c : bytes) c = input->Take<char>();
        Call(turn, bytes);
      }
      Check();
    }
  }

 private:
  void Restart() {
    coordinator_.reset();

    auto created =
        Coordinator::Create({.partitions = 8,
                             .lease_ms = 1000,
                             .expected_servers = 1,
                             .replicas = 2,
                             .chunk_memory = shard::DenseTable::MemoryOfChunk,
                             .cluster_id = "fuzz",
                             .tokens = true,
                             .wall_clock = [this] { return clock_.now / 1'000'000'000; }},
                            &clock_, &store_);
    // The coordinator accepts the state that it stored.
    FUZZ_CHECK(created.ok());
    coordinator_ = *std::move(created);
    FUZZ_CHECK(coordinator_->view().term() > term_);
    term_ = coordinator_->view().term();
  }

  template <typename Response, typename Request>
  void Send(void (Coordinator::*method)(const Request&, Coordinator::Reply<Response>),
            const std::string& bytes) {
    Request request;
    // gRPC answers bytes that cannot be parsed.
    if (!request.ParseFromString(bytes)) return;
    const uint64_t call = ++calls_;
    (coordinator_.get()->*method)(request, [this, call](absl::StatusOr<Response> response) {
      FUZZ_CHECK(++answers_[call] == 1);
      if (!response.ok()) FUZZ_CHECK(!response.status().message().empty());
    });
  }

  // Every worker shows the seeds' token, while that is good.
  void JoinWithToken(const std::string& bytes) {
    v1::JoinWorkerRequest request;
    if (!request.ParseFromString(bytes)) return;
    bool good = false;
    for (const v1::Token& token : coordinator_->access()->tokens()) {
      good |= token.id() == kSeedToken && token.ended() == 0;
    }
    coordinator_->JoinWorker(request, good ? kSeedToken : "", [](const auto&) {});
  }

  void Call(Turn turn, const std::string& bytes) {
    switch (turn) {
      case Turn::kJoinServer:
        return Send(&Coordinator::JoinServer, bytes);
      case Turn::kJoinWorker:
        return JoinWithToken(bytes);
      case Turn::kHeartbeat:
        return Send(&Coordinator::Heartbeat, bytes);
      case Turn::kLeave:
        return Send(&Coordinator::Leave, bytes);
      case Turn::kCreateTable:
        return Send(&Coordinator::CreateTable, bytes);
      case Turn::kDropTable:
        return Send(&Coordinator::DropTable, bytes);
      case Turn::kCreateToken:
        return Send(&Coordinator::CreateToken, bytes);
      case Turn::kRevokeToken:
        return Send(&Coordinator::RevokeToken, bytes);
      case Turn::kSetJobLimits:
        return Send(&Coordinator::SetJobLimits, bytes);
      case Turn::kAdmitMembers:
        return Send(&Coordinator::AdmitMembers, bytes);
      case Turn::kForgetJob:
        return Send(&Coordinator::ForgetJob, bytes);
      case Turn::kRemoveServer:
        return Send(&Coordinator::RemoveServer, bytes);
      case Turn::kResetTable:
        return Send(&Coordinator::ResetTable, bytes);
      case Turn::kReconfigure:
        return Send(&Coordinator::Reconfigure, bytes);
      case Turn::kFinishRestore:
        return Send(&Coordinator::FinishRestore, bytes);
      case Turn::kRenewRestore:
        return Send(&Coordinator::RenewRestore, bytes);
      case Turn::kMovePartitions:
        return Send(&Coordinator::MovePartitions, bytes);
      case Turn::kDrainServer:
        return Send(&Coordinator::DrainServer, bytes);
      default:
        return Send(&Coordinator::GetView, bytes);
    }
  }

  void Check() {
    const v1::ClusterView& view = coordinator_->view();
    FUZZ_CHECK(view.revision() >= revision_);
    revision_ = view.revision();
    FUZZ_CHECK(view.partitions_size() == 8);
    FUZZ_CHECK(server::CheckConfigurations(view).ok());
    // No worker is left of a token that has ended.
    for (const v1::Token& token : coordinator_->access()->tokens()) {
      if (token.ended() == 0) continue;
      for (const v1::Job& job : view.jobs()) {
        for (const v1::Worker& worker : job.members()) FUZZ_CHECK(worker.token() != token.id());
      }
    }
    if (view.servers().empty()) return;
    if (TooManyContributions(view)) return;
    if (engine_ == nullptr || server_ != view.servers(0).incarnation()) {
      server_ = view.servers(0).incarnation();
      engine_.reset();
      shard::EngineOptions options;
      options.allocator = &allocator_;
      options.server = server_;
      engine_ = std::make_unique<shard::Engine>(options);
    }
    // An error for lack of memory is allowed.
    (void)engine_->ApplyView(view);
    FUZZ_CHECK(engine_->counters().resident_bytes <= kShardBytes);
  }

  ScriptClock clock_;
  server::MemoryStore store_;
  SmallAllocator allocator_{kShardBytes};
  uint64_t term_ = 0, revision_ = 0, calls_ = 0, server_ = 0;
  std::map<uint64_t, int> answers_;
  std::unique_ptr<shard::Engine> engine_;
  std::unique_ptr<Coordinator> coordinator_;
};

std::string TurnOf(Turn turn, const google::protobuf::Message& request) {
  const std::string bytes = request.SerializeAsString();
  return BytesOf(turn) + BytesOf(static_cast<uint16_t>(bytes.size())) + bytes;
}

std::string Id(char c) { return std::string(16, c); }

}  // namespace

std::vector<std::string> Seeds() {
  v1::JoinServerRequest server;
  server.set_request_id(Id('a'));
  server.set_name("server-0");
  server.set_address("127.0.0.1:7000");
  server.set_shards(2);
  v1::JoinWorkerRequest worker;
  worker.set_request_id(Id('b'));
  worker.set_job("job");
  worker.set_name("worker");
  worker.set_expected_workers(2);
  worker.set_rank(-1);
  v1::CreateTableRequest table;
  table.set_request_id(Id('c'));
  table.mutable_spec()->set_name("weights");
  table.mutable_spec()->set_job("job");
  table.mutable_spec()->add_shape(1000);
  table.mutable_spec()->set_chunk_bytes(1024);
  table.mutable_spec()->set_dtype(v1::DTYPE_BF16);
  v1::CreateTableRequest rows = table;
  rows.set_request_id(Id('d'));
  rows.mutable_spec()->set_name("rows");
  rows.mutable_spec()->clear_shape();
  rows.mutable_spec()->clear_dtype();
  rows.mutable_spec()->set_dim(8);
  rows.mutable_spec()->set_consistency(v1::CONSISTENCY_ASYNC);
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(1);
  v1::GetViewRequest view;
  view.set_wait_ms(100);
  view.set_known_revision(3);
  v1::DropTableRequest drop;
  drop.set_request_id(Id('e'));
  drop.set_name("weights");
  v1::SetJobLimitsRequest limits;
  limits.set_request_id(Id('g'));
  limits.set_job("job");
  limits.mutable_limits()->set_memory_bytes(1000);
  limits.mutable_limits()->set_tables(1);
  limits.mutable_limits()->set_lanes(1);
  v1::LeaveRequest leave;
  leave.set_request_id(Id('f'));
  leave.set_incarnation(2);
  v1::CreateTokenRequest token;
  token.set_request_id(Id('g'));
  token.set_id(kSeedToken);
  token.set_role(v1::ROLE_JOB);
  token.set_job("job");
  token.set_hash(std::string(32, 'h'));
  token.set_lifetime_s(1);
  v1::RevokeTokenRequest revoke;
  revoke.set_request_id(Id('h'));
  revoke.set_id(token.id());
  // Two servers; the first falls silent, and the second requests each change that it may.
  v1::JoinServerRequest other = server;
  other.set_request_id(Id('i'));
  other.set_name("server-1");
  other.set_zone("b");
  v1::HeartbeatRequest other_lives;
  other_lives.set_incarnation(2);
  v1::ReconfigureRequest reconfigure;
  reconfigure.set_request_id(Id('j'));
  reconfigure.set_incarnation(2);
  reconfigure.mutable_ticket()->set_term(1);
  reconfigure.mutable_ticket()->set_issued_ns(ScriptClock().now);
  for (const int kind : {1, 2, 3}) {
    v1::ConfigurationChange* change = reconfigure.add_changes();
    change->set_kind(static_cast<v1::ConfigurationChange::Kind>(4 - kind));
    change->set_partition(kind);
    change->set_configuration(2);
    change->set_server(1);
  }
  v1::ForgetJobRequest forget;
  forget.set_request_id(Id('m'));
  forget.set_job("job");
  v1::RemoveServerRequest remove;
  remove.set_request_id(Id('k'));
  remove.set_name("server-0");
  v1::ResetTableRequest reset;
  reset.set_request_id(Id('l'));
  reset.set_name("weights");
  // A worker of an elastic job, and one that joins its run.
  v1::JoinWorkerRequest elastic = worker, joining = worker;
  for (v1::JoinWorkerRequest* request : {&elastic, &joining}) {
    request->set_expected_workers(1);
    request->set_max_workers(2);
    request->set_rank(-1);
  }
  joining.set_request_id(Id('n'));
  v1::AdmitMembersRequest admit;
  admit.set_request_id(Id('o'));
  admit.set_incarnation(2);
  v1::HeldSteps* held = admit.add_tables();
  held->set_table(1);
  held->set_first_held(3);
  const std::string pair = TurnOf(Turn::kJoinServer, server) + TurnOf(Turn::kJoinServer, other);
  const std::string start = TurnOf(Turn::kJoinServer, server) + TurnOf(Turn::kJoinWorker, worker);
  const std::string tables = TurnOf(Turn::kCreateTable, table) + TurnOf(Turn::kCreateTable, rows);
  const std::string wait = BytesOf(Turn::kWait) + BytesOf(uint16_t{700});
  return {start + tables + TurnOf(Turn::kDropTable, drop) + TurnOf(Turn::kLeave, leave),
          start + tables + BytesOf(Turn::kRestart) + BytesOf(uint16_t{0}) + wait +
              TurnOf(Turn::kHeartbeat, heartbeat) + wait + TurnOf(Turn::kJoinServer, server),
          start + TurnOf(Turn::kSetJobLimits, limits) + BytesOf(Turn::kRestart) +
              BytesOf(uint16_t{0}) + tables,
          start + TurnOf(Turn::kLeave, leave) + TurnOf(Turn::kForgetJob, forget) +
              BytesOf(Turn::kRestart) + BytesOf(uint16_t{0}) + TurnOf(Turn::kJoinWorker, worker),
          start + TurnOf(Turn::kGetView, view) + wait + tables,
          TurnOf(Turn::kJoinServer, server) + TurnOf(Turn::kJoinWorker, elastic) + tables +
              TurnOf(Turn::kJoinWorker, joining) + TurnOf(Turn::kAdmitMembers, admit) +
              BytesOf(Turn::kRestart) + BytesOf(uint16_t{0}) + TurnOf(Turn::kLeave, leave),
          pair + tables + TurnOf(Turn::kReconfigure, reconfigure) + wait +
              TurnOf(Turn::kHeartbeat, other_lives) + wait + TurnOf(Turn::kRemoveServer, remove) +
              TurnOf(Turn::kResetTable, reset),
          TurnOf(Turn::kJoinServer, server) + tables + wait + wait +
              TurnOf(Turn::kJoinServer, other) + TurnOf(Turn::kRemoveServer, remove) +
              TurnOf(Turn::kResetTable, reset) + BytesOf(Turn::kRestart) + BytesOf(uint16_t{0}),
          TurnOf(Turn::kCreateToken, token) + start + wait + wait + wait +
              TurnOf(Turn::kRevokeToken, revoke),
          TurnOf(Turn::kCreateToken, token) + start + TurnOf(Turn::kRevokeToken, revoke) +
              BytesOf(Turn::kRestart) + BytesOf(uint16_t{0})};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  verbena::fuzz::Input input(data, size);
  verbena::fuzz::Script().Run(&input);
  return 0;
}
