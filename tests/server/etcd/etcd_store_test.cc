// The coordinator's state in etcd: errors of etcd by name, large saves, damage, and who may write.
#include "server/coordinator/etcd/etcd_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "proto/protocol_version.h"
#include "tests/server/coordinator_fixture.h"
#include "tests/server/etcd/checked_store.h"

namespace verbena::server {
namespace {

using Fault = FakeEtcd::Fault;

std::unique_ptr<EtcdClient> Client(const EtcdOptions& options) {
  auto client = EtcdClient::Create(options);
  INFO(client.status());
  REQUIRE(client.ok());
  return *std::move(client);
}

EtcdStore::Leadership For(int64_t create_revision) {
  return {create_revision, [] { return std::numeric_limits<int64_t>::max(); }};
}

// The fault, for `times` calls of that name.
FakeEtcd::Faults Some(const std::string& call, Fault fault, int times = 1000000) {
  auto left = std::make_shared<int>(times);
  return
      [=](const std::string& name) { return name == call && (*left)-- > 0 ? fault : Fault::kNone; };
}

struct Stored {
  StoreWorld world;
  std::unique_ptr<EtcdClient> client = Client(world.etcd.Options());

  EtcdStore NewStore(EtcdLimits limits = {}) {
    return EtcdStore(client.get(), &world.clock, For(world.NewLeader()), limits);
  }
  CoordinatorState MustLoad() {
    EtcdStore store = NewStore();
    absl::StatusOr<CoordinatorState> state = store.Load();
    INFO(state.status());
    REQUIRE(state.ok());
    return *state;
  }
};

void Fill(TestCoordinator& c) {
  c.JoinServer("a", 2);
  c.JoinServer("b", 1);
  REQUIRE(c.JoinWorker("job", 2).ok());
  for (int t = 0; t < 5; ++t) REQUIRE(c.CreateTable(c.Spec("t" + std::to_string(t), 6400)).ok());
  REQUIRE(c.DropTable("t2").ok());
}

CoordinatorState Large(int tables) {
  CoordinatorState state;
  state.view.set_cluster_id("large");
  state.view.set_revision(3);
  state.view.set_term(1);
  for (uint32_t i = 0; i < 4096; ++i) state.view.add_partitions()->set_id(i);
  for (int t = 1; t <= tables; ++t) {
    v1::Table* table = state.view.add_tables();
    table->set_id(static_cast<uint32_t>(t));
    *table->mutable_spec() = TestCoordinator::Spec("table" + std::to_string(t), 64);
    table->mutable_spec()->set_description(std::string(500, 'd'));
  }
  state.next_table = static_cast<uint32_t>(tables) + 1;
  return state;
}

TEST_CASE("the next leader goes on from the state that the last one saved") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  v1::ClusterView before;
  v1::JoinServerRequest request;
  uint64_t incarnation = 0;
  {
    TestCoordinator c({.partitions = 16}, &store);
    Fill(c);
    request = c.ServerRequest("z");
    incarnation = c.Call(&Coordinator::JoinServer, request)->incarnation();
    before = c.view();
  }
  EtcdStore next = stored.NewStore();
  TestCoordinator c({.partitions = 16}, &next);
  CHECK(c.view().cluster_id() == before.cluster_id());
  CHECK(c.view().term() == before.term() + 1);
  CHECK(c.view().tables_size() == 4);
  CHECK(c.view().servers_size() == 3);
  const auto repeated = c.Call(&Coordinator::JoinServer, request);
  REQUIRE(repeated.ok());
  CHECK(repeated->incarnation() == incarnation);
}

TEST_CASE("regression: the settings of a view are all stored in etcd") {
  Stored stored;
  v1::ClusterView before;
  {
    EtcdStore store = stored.NewStore();
    CoordinatorOptions options;
    options.move_rate = 12345;
    TestCoordinator c(options, &store);
    v1::JoinServerRequest request = c.ServerRequest("a");
    SetProtocols({kOldestProtocolVersion, kProtocolVersion}, request.mutable_protocol());
    REQUIRE(c.Call(&Coordinator::JoinServer, request).ok());
    before = SettingsOf(c.view());
  }
  REQUIRE(before.protocol() == kProtocolVersion);
  CHECK(SettingsOf(stored.MustLoad().view).DebugString() == before.DebugString());
}

TEST_CASE("all answers that are kept outlive a leader") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  REQUIRE(store.Load().ok());
  CoordinatorState state = Large(1);
  REQUIRE(store.Save(state, {}).ok());
  const v1::ViewChange same;
  const size_t saves = kAnswersKept + 40;
  for (size_t i = 0; i < saves;) {
    std::vector<CoordinatorState::Answered> answers;
    for (; answers.size() < 100 && i < saves; ++i)
      answers.push_back({absl::StrCat("id", i), "method", "answer"});
    std::vector<StateChange> changes;
    for (const auto& answer : answers) changes.push_back({&same, {}, false, &answer});
    REQUIRE(store.SaveAll(state, changes).ok());
  }
  CHECK(store.staged_saves() == 0);
  const CoordinatorState loaded = stored.MustLoad();
  REQUIRE(loaded.answered.size() == kAnswersKept);
  CHECK(loaded.answered.front().request_id == "id40");
  CHECK(loaded.answered.back().request_id == absl::StrCat("id", saves - 1));
  // Those that are forgotten take no space.
  CHECK(stored.world.etcd.Keys("/verbena/entries/answers/").size() <= kAnswersKept / 16 + 1);
}

TEST_CASE("a save that is larger than etcd's limits is made as a whole") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  REQUIRE(store.Load().ok());
  const CoordinatorState state = Large(5000);
  REQUIRE(store.Save(state, {}).ok());
  CHECK(store.staged_saves() == 1);
  CHECK(stored.world.etcd.Keys("/verbena/staged/").empty());
  CHECK(BytesOf(stored.MustLoad()) == BytesOf(state));
}

TEST_CASE("of a large save that is cut off, the next leader finds all or nothing") {
  // At every request on the way.
  bool done = false;
  bool nothing = false, all = false;
  for (int cut = 0; !done; ++cut) {
    Stored stored;
    const EtcdLimits small{.operations = 4, .bytes = 3000};
    const CoordinatorState before = Large(2), after = Large(30);
    EtcdStore store = stored.NewStore(small);
    REQUIRE(store.Load().ok());
    REQUIRE(store.Save(before, {}).ok());
    int requests = 0;
    stored.world.etcd.SetFaults(
        [&](const std::string&) { return requests++ < cut ? Fault::kNone : Fault::kNoSpace; });
    const absl::Status saved = store.Save(after, {});
    done = requests <= cut;
    stored.world.etcd.SetFaults({});
    const std::string found = BytesOf(stored.MustLoad());
    INFO("cut off after " << cut << " requests: " << saved);
    REQUIRE((found == BytesOf(before) || found == BytesOf(after)));
    if (saved.ok()) REQUIRE(found == BytesOf(after));
    (found == BytesOf(after) ? all : nothing) = true;
    REQUIRE(stored.world.etcd.Keys("/verbena/staged/").empty());
  }
  CHECK(nothing);
  CHECK(all);
}

TEST_CASE("a leader whose key is another's neither loads nor writes, and says so") {
  Stored stored;
  EtcdStore old = stored.NewStore();
  TestCoordinator c({.partitions = 16}, &old);
  Fill(c);
  const std::string before = stored.world.etcd.Value("/verbena/state");
  stored.world.NewLeader();
  REQUIRE_STATUS(c.CreateTable(c.Spec("late", 64)).status(), kUnavailable,
                 "the leader is somebody:7000");
  CHECK(!old.status().ok());
  CHECK(stored.world.etcd.Value("/verbena/state") == before);
  REQUIRE_STATUS(old.Load().status(), kUnavailable, "leads no more");
  // Its key is gone, and nobody leads.
  EtcdStore other = stored.NewStore();
  REQUIRE(other.Load().ok());
  stored.world.etcd.Remove("/verbena/leader");
  REQUIRE_STATUS(other.Save(CoordinatorState(), {}), kUnavailable, "its lease in etcd has ended");
}

TEST_CASE("a save whose answer is lost is recognised as made") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  TestCoordinator c({.partitions = 16}, &store);
  c.JoinServer("a");
  stored.world.etcd.SetFaults(Some("Txn", Fault::kAnswerLost, 1));
  REQUIRE(c.CreateTable(c.Spec("t", 64)).ok());
  stored.world.etcd.SetFaults({});
  REQUIRE(c.CreateTable(c.Spec("u", 64)).ok());
  CHECK(stored.MustLoad().view.tables_size() == 2);
}

TEST_CASE(
    "a save of unknown outcome ends the leadership, and is without effect once another leads") {
  Stored stored;
  EtcdStore store = stored.NewStore({.longest = absl::Milliseconds(20)});
  REQUIRE(store.Load().ok());
  REQUIRE(store.Save(Large(2), {}).ok());
  stored.world.etcd.SetFaults(Some("Txn", Fault::kLate));
  REQUIRE_STATUS(store.Save(Large(3), {}), kUnavailable, "is not known");
  stored.world.etcd.SetFaults({});
  REQUIRE(stored.world.etcd.late() > 0);
  // Not even in the same process, where etcd answers again.
  REQUIRE_STATUS(store.Save(Large(4), {}), kUnavailable, "is not known");
  CHECK(stored.MustLoad().view.tables_size() == 2);
  while (stored.world.etcd.ApplyLate(0)) {
  }
  CHECK(stored.MustLoad().view.tables_size() == 2);
}

TEST_CASE("a busy etcd, one without a leader, and one that does not answer are asked again") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  REQUIRE(store.Load().ok());
  int tables = 2;
  for (const Fault fault : {Fault::kTooMany, Fault::kNoLeader, Fault::kLost}) {
    stored.world.etcd.SetFaults(Some("Txn", fault, 5));
    REQUIRE(store.Save(Large(++tables), {}).ok());
  }
  stored.world.etcd.SetFaults({});
  // A member that is stopped: another one is asked.
  FakeEtcd stopped;
  stopped.SetFaults([](const std::string&) { return Fault::kHang; });
  EtcdOptions options = stored.world.etcd.Options();
  options.endpoints.insert(options.endpoints.begin(), stopped.address());
  options.endpoints.insert(options.endpoints.begin(), "127.0.0.1:1");
  options.attempt = absl::Milliseconds(100);
  const std::unique_ptr<EtcdClient> client = Client(options);
  EtcdStore through(client.get(), &stored.world.clock, For(stored.world.NewLeader()));
  REQUIRE(through.Load().ok());
  REQUIRE(through.Save(Large(9), {}).ok());
  CHECK(client->failed_attempts() >= 2);
  CHECK(stopped.requests("Range") == 1);
}

TEST_CASE("without a quorum a save fails in its time, and the error has the reason") {
  Stored stored;
  EtcdStore store = stored.NewStore({.longest = absl::Milliseconds(50)});
  REQUIRE(store.Load().ok());
  stored.world.etcd.SetFaults([](const std::string&) { return Fault::kNoLeader; });
  REQUIRE_STATUS(store.Save(Large(2), {}), kUnavailable,
                 "etcdserver: no leader; is there a quorum?");
}

TEST_CASE("a full etcd refuses changes until it has space, and the leader goes on") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  TestCoordinator c({.partitions = 16}, &store);
  c.JoinServer("a");
  stored.world.etcd.SetNoSpace(true);
  REQUIRE_STATUS(c.CreateTable(c.Spec("t", 64)).status(), kUnavailable, "etcdctl alarm disarm");
  CHECK(store.status().ok());
  CHECK(c.view().tables_size() == 0);
  // Also a large one, whose parts do not stay.
  stored.world.etcd.SetNoSpace(false);
  EtcdStore large = stored.NewStore({.operations = 4, .bytes = 3000});
  REQUIRE(large.Load().ok());
  int left = 2;
  stored.world.etcd.SetFaults([&](const std::string& call) {
    return call == "Txn" && left-- == 0 ? Fault::kNoSpace : Fault::kNone;
  });
  REQUIRE_STATUS(large.Save(Large(30), {}), kUnavailable, "database space exceeded");
  CHECK(large.status().ok());
  CHECK(stored.world.etcd.Keys("/verbena/staged/").empty());
  REQUIRE(large.Save(Large(30), {}).ok());
}

TEST_CASE("a compaction while the state is read makes the reader begin again") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  REQUIRE(store.Load().ok());
  REQUIRE(store.Save(Large(700), {}).ok());
  int reads = 0;
  stored.world.etcd.SetFaults([&](const std::string& call) {
    return call == "Range" && ++reads == 3 ? Fault::kCompacted : Fault::kNone;
  });
  CHECK(BytesOf(stored.MustLoad()) == BytesOf(Large(700)));
  CHECK(reads > 5);
  stored.world.etcd.SetFaults(Some("Range", Fault::kCompacted));
  EtcdStore never = stored.NewStore();
  REQUIRE_STATUS(never.Load().status(), kOutOfRange, "required revision has been compacted");
}

TEST_CASE("an expired token of etcd is replaced") {
  Stored stored;
  const std::string file = absl::StrCat("/tmp/verbena-etcd-password-", getpid());
  std::ofstream(file) << "secret\n";
  chmod(file.c_str(), 0600);
  stored.world.etcd.RequireUser("verbena", "secret");
  EtcdOptions options = stored.world.etcd.Options();
  const auto load = [&](const EtcdOptions& with) {
    const std::unique_ptr<EtcdClient> client = Client(with);
    EtcdStore store(client.get(), &stored.world.clock, For(stored.world.NewLeader()));
    return store.Load().status();
  };
  REQUIRE_STATUS(load(options), kInvalidArgument, "user name is empty");
  options.user = "verbena";
  options.password_file = file;
  const std::unique_ptr<EtcdClient> client = Client(options);
  EtcdStore store(client.get(), &stored.world.clock, For(stored.world.NewLeader()));
  REQUIRE(store.Load().ok());
  REQUIRE(stored.world.etcd.requests("Authenticate") == 1);
  stored.world.etcd.SetFaults(Some("Txn", Fault::kTokenForgot, 1));
  REQUIRE(store.Save(Large(2), {}).ok());
  CHECK(stored.world.etcd.requests("Authenticate") == 2);
  // Not for ever, where etcd refuses each.
  stored.world.etcd.SetFaults(Some("Txn", Fault::kBadToken));
  REQUIRE_STATUS(store.Save(Large(3), {}), kUnavailable, "invalid auth token");
  stored.world.etcd.SetFaults({});
  stored.world.etcd.RequireUser("verbena", "another");
  stored.world.etcd.SetFaults(Some("Range", Fault::kTokenForgot, 1));
  REQUIRE_STATUS(load(options), kInvalidArgument, "authentication failed");
  stored.world.etcd.SetFaults({});
  stored.world.etcd.RequireUser("", "");
  REQUIRE_STATUS(load(options), kFailedPrecondition, "leave out --etcd-user");
  unlink(file.c_str());
  REQUIRE_STATUS(EtcdClient::Create(options).status(), kFailedPrecondition, file);
}

TEST_CASE("a password is not sent over a network without TLS") {
  const std::string file = absl::StrCat("/tmp/verbena-etcd-password2-", getpid());
  std::ofstream(file) << "secret\n";
  chmod(file.c_str(), 0600);
  EtcdOptions options;
  options.endpoints = {"127.0.0.1:2379", "10.1.2.3:2379"};
  options.user = "verbena";
  options.password_file = file;
  REQUIRE_STATUS(EtcdClient::Create(options).status(), kFailedPrecondition, "10.1.2.3:2379");
  unlink(file.c_str());
}

TEST_CASE("a state that is not as it was written is refused by name") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  REQUIRE(store.Load().ok());
  REQUIRE(store.Save(Large(3), {}).ok());
  FakeEtcd& etcd = stored.world.etcd;
  const auto refused = [&](const char* part) {
    EtcdStore next = stored.NewStore();
    REQUIRE_STATUS(next.Load().status(), kDataLoss, part);
  };
  const std::string key = "/verbena/entries/tables/0000000000000002";
  const std::string value = etcd.Value(key);
  REQUIRE(!value.empty());
  std::string wrong = value;
  wrong.back() ^= 1;
  etcd.Overwrite(key, wrong);
  refused("checksum of /verbena/entries/tables/0000000000000002");
  // Another entry's value has a valid checksum of its own.
  etcd.Overwrite(key, etcd.Value("/verbena/entries/tables/0000000000000001"));
  refused("checksum of /verbena/entries/tables/0000000000000002");
  etcd.Remove(key);
  refused("entries are missing");
  etcd.Overwrite(key, value);
  REQUIRE(stored.MustLoad().view.tables_size() == 3);
  const std::string state = etcd.Value("/verbena/state");
  etcd.Overwrite("/verbena/state", "x");
  refused("checksum of /verbena/state");
  etcd.Remove("/verbena/state");
  refused("there is no /verbena/state");
  etcd.Overwrite("/verbena/state", state);
  stored::State newer;
  REQUIRE(newer.ParseFromString(state.substr(8)));
  newer.set_format(9);
  std::string bytes = newer.SerializeAsString();
  const uint64_t checksum = ChecksumOfEntry("state", bytes);
  etcd.Overwrite("/verbena/state",
                 std::string(reinterpret_cast<const char*>(&checksum), 8) + bytes);
  EtcdStore next = stored.NewStore();
  REQUIRE_STATUS(next.Load().status(), kFailedPrecondition, "a newer version wrote it");
}

TEST_CASE("a change writes its entries alone") {
  Stored stored;
  EtcdStore store = stored.NewStore();
  TestCoordinator c({.partitions = 4096}, &store);
  Fill(c);
  const auto revisions = [&] { return stored.world.etcd.requests("Txn"); };
  const int64_t before = revisions();
  const std::string partitions =
      stored.world.etcd.Value("/verbena/entries/partitions/0000000000000003");
  REQUIRE(c.CreateTable(c.Spec("new", 64)).ok());
  CHECK(revisions() == before + 1);
  CHECK(stored.world.etcd.Value("/verbena/entries/partitions/0000000000000003") == partitions);
  CHECK(stored.MustLoad().view.tables_size() == 5);
}

}  // namespace
}  // namespace verbena::server
