// Tables in restoration: the owner of each, the table that it replaces, and how it ends.
#include <string>
#include <vector>

#include "proto/control/view_tables.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

constexpr int64_t kRestoreLeaseMs = 4 * kLeaseMs;

absl::StatusOr<v1::CreateTableResponse> Begin(TestCoordinator* c, const std::string& name,
                                              bool replace = false,
                                              const std::string& restorer = "verbena on a") {
  v1::CreateTableRequest request;
  request.set_request_id(c->NewId());
  *request.mutable_spec() = c->Spec(name, 100, v1::CONSISTENCY_ASYNC);
  request.set_restoring(true);
  request.set_restorer(restorer);
  request.set_replace(replace);
  return c->Call(&Coordinator::CreateTable, request);
}

absl::StatusOr<v1::FinishRestoreResponse> Finished(TestCoordinator* c,
                                                   const std::vector<uint32_t>& ids) {
  v1::FinishRestoreRequest request;
  request.set_request_id(c->NewId());
  request.mutable_tables()->Add(ids.begin(), ids.end());
  return c->Call(&Coordinator::FinishRestore, request);
}

absl::Status Finish(TestCoordinator* c, const std::vector<uint32_t>& ids) {
  return Finished(c, ids).status();
}

std::vector<uint32_t> Renew(TestCoordinator* c, const std::vector<uint32_t>& ids) {
  v1::RenewRestoreRequest request;
  request.mutable_tables()->Add(ids.begin(), ids.end());
  const auto response = c->Call(&Coordinator::RenewRestore, request);
  REQUIRE(response.ok());
  return {response->missing().begin(), response->missing().end()};
}

absl::Status DropById(TestCoordinator* c, uint32_t id, bool only_restoring = true) {
  v1::DropTableRequest request;
  request.set_request_id(c->NewId());
  request.set_id(id);
  request.set_only_restoring(only_restoring);
  return c->Call(&Coordinator::DropTable, request).status();
}

absl::StatusOr<v1::Table> Create(TestCoordinator* c, const std::string& name) {
  return c->CreateTable(c->Spec(name, 100, v1::CONSISTENCY_ASYNC));
}

// The id of the table of that name that is served; 0: there is none.
uint32_t Served(const TestCoordinator& c, const std::string& name) {
  const v1::Table* table = FindTableNamed(name, false, c.view());
  return table == nullptr ? 0 : table->id();
}

TEST_CASE("regression: the end of a restore that has ended names a revision that there is") {
  TestCoordinator c;
  c.JoinServer("a");
  const auto begun = Begin(&c, "t");
  REQUIRE(begun.ok());
  const auto first = Finished(&c, {begun->table().id()});
  REQUIRE(first.ok());
  CHECK(first->revision() == c.view().revision());
  const auto again = Finished(&c, {begun->table().id()});
  REQUIRE(again.ok());
  CHECK(again->revision() == c.view().revision());
}

TEST_CASE("a table that is being restored belongs to its restorer") {
  TestCoordinator c;
  c.JoinServer("a");
  const auto begun = Begin(&c, "t");
  REQUIRE(begun.ok());
  const uint32_t id = begun->table().id();
  CHECK(begun->restore_lease_ms() == kRestoreLeaseMs);
  // Another restore, and everybody else, hear whose it is.
  REQUIRE_STATUS(Begin(&c, "t").status(), kFailedPrecondition,
                 "table 't' of job 'job' is being restored by verbena on a; wait for its end");
  REQUIRE_STATUS(Begin(&c, "t", true).status(), kFailedPrecondition, "by verbena on a");
  REQUIRE_STATUS(Create(&c, "t").status(), kUnavailable,
                 "table 't' of job 'job' is being restored by verbena on a");
  REQUIRE_STATUS(c.ResetTable("t").status(), kNotFound, "no table 't'");
  REQUIRE_STATUS(Begin(&c, "u", false, "line\nline").status(), kInvalidArgument,
                 "restorer has 9 bytes; allowed: at most 200 printable");
  // Its end.
  REQUIRE(Finish(&c, {id}).ok());
  CHECK(Served(c, "t") == id);
  CHECK(FindTableById(id, c.view())->restorer().empty());
  REQUIRE(Create(&c, "t")->id() == id);
  REQUIRE(Finish(&c, {id}).ok());  // once more: so it is
}

TEST_CASE("a drop by id drops no other table of that name") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint32_t first = Begin(&c, "t")->table().id();
  REQUIRE(c.DropTable("t").ok());
  const uint32_t other = Create(&c, "t")->id();
  REQUIRE_STATUS(DropById(&c, first), kNotFound, "no table with id " + std::to_string(first));
  v1::DropTableRequest named;
  named.set_request_id(c.NewId());
  named.set_id(first);
  named.set_name("t");
  REQUIRE_STATUS(c.Call(&Coordinator::DropTable, named).status(), kNotFound,
                 "no table 't' with id " + std::to_string(first));
  REQUIRE_STATUS(Finish(&c, {first}), kNotFound, "no table");
  REQUIRE_STATUS(DropById(&c, other), kFailedPrecondition, "'t' is served");
  CHECK(Served(c, "t") == other);
  // By name the one that is served goes first.
  const uint32_t second = Begin(&c, "t", true)->table().id();
  REQUIRE(c.DropTable("t").ok());
  CHECK(Served(c, "t") == 0);
  REQUIRE(FindTableById(second, c.view()) != nullptr);
  REQUIRE(DropById(&c, second).ok());
  CHECK(c.view().tables_size() == 0);
  // A drop by id may drop a served table, if the caller does not require a restoring one.
  REQUIRE(DropById(&c, Create(&c, "t")->id(), false).ok());
}

TEST_CASE("a table is replaced when all of the others are loaded, in one step") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint32_t t = Create(&c, "t")->id(), u = Create(&c, "u")->id();
  REQUIRE_STATUS(Begin(&c, "t").status(), kAlreadyExists, "there is a table 't' of job 'job'");
  const uint32_t new_t = Begin(&c, "t", true)->table().id();
  const uint32_t new_u = Begin(&c, "u", true)->table().id();
  // Meanwhile the others are those of that name for everybody, and keep their place.
  CHECK(Served(c, "t") == t);
  CHECK(c.view().tables(0).id() == t);
  REQUIRE(Create(&c, "t")->id() == t);
  // A state with two tables of one name is one that makes sense.
  c.Restart();
  CHECK(Served(c, "t") == t);
  // One is missing: nothing changes.
  REQUIRE_STATUS(Finish(&c, {new_t, new_u, 99}), kNotFound, "no table 99");
  CHECK(Served(c, "t") == t);
  CHECK(Served(c, "u") == u);
  const uint64_t before = c.view().revision();
  REQUIRE(Finish(&c, {new_t, new_u}).ok());
  CHECK(c.view().revision() == before + 1);
  CHECK(Served(c, "t") == new_t);
  CHECK(Served(c, "u") == new_u);
  CHECK(c.view().tables_size() == 2);
  // One that fails, and one that its restorer gives up: the table stays as it is.
  const uint32_t failed = Begin(&c, "t", true)->table().id();
  REQUIRE(DropById(&c, failed).ok());
  CHECK(Served(c, "t") == new_t);
}

TEST_CASE("limits and clipping count a table and its replacement once") {
  TestCoordinator c;
  c.JoinServer("a");
  v1::SetJobLimitsRequest limits;
  limits.set_request_id(c.NewId());
  limits.set_job("job");
  limits.mutable_limits()->set_tables(1);
  REQUIRE(c.Call(&Coordinator::SetJobLimits, limits).ok());
  v1::TableSpec spec = c.Spec("t", 100);
  spec.mutable_optimizer()->set_clip_global_norm(1);
  REQUIRE(c.CreateTable(spec).ok());
  REQUIRE_STATUS(Begin(&c, "u").status(), kResourceExhausted, "at its limit of tables");
  v1::CreateTableRequest request;
  request.set_request_id(c.NewId());
  spec.mutable_optimizer()->set_clip_global_norm(2);
  *request.mutable_spec() = spec;
  request.set_restoring(true);
  request.set_replace(true);
  const auto other = c.Call(&Coordinator::CreateTable, request);
  REQUIRE(other.ok());
  REQUIRE(Finish(&c, {other->table().id()}).ok());
  CHECK(c.view().tables_size() == 1);
}

TEST_CASE("a table is dropped when its restorer stops renewing its lease") {
  TestCoordinator c;
  const uint64_t server = c.JoinServer("a");
  const uint32_t served = Create(&c, "t")->id();
  const uint32_t kept = Begin(&c, "t", true)->table().id();
  const uint32_t left = Begin(&c, "u")->table().id();
  for (int i = 0; i < 10; ++i) {
    CHECK(Renew(&c, {kept}).empty());
    c.clock.AdvanceMs(kRestoreLeaseMs / 4);
  }
  CHECK(FindTableById(kept, c.view()) != nullptr);
  CHECK(FindTableById(left, c.view()) == nullptr);
  CHECK(Renew(&c, {kept, left}) == std::vector<uint32_t>{left});
  REQUIRE(c.Heartbeat(server).ok());
  CHECK(Create(&c, "u").ok());
  c.clock.AdvanceMs(kRestoreLeaseMs + 1);
  CHECK(FindTableById(kept, c.view()) == nullptr);
  CHECK(Served(c, "t") == served);
  // One that is served needs no lease.
  CHECK(Renew(&c, {served}).empty());
}

TEST_CASE("a coordinator that starts again leaves restorers their time") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint32_t id = Begin(&c, "t")->table().id();
  c.clock.AdvanceMs(kRestoreLeaseMs - 1);
  c.Restart();
  c.clock.AdvanceMs(kRestoreLeaseMs - 1);
  CHECK(Renew(&c, {id}).empty());
  c.clock.AdvanceMs(kRestoreLeaseMs - 1);
  CHECK(FindTableById(id, c.view()) != nullptr);
  c.clock.AdvanceMs(2);
  CHECK(FindTableById(id, c.view()) == nullptr);
}

}  // namespace
}  // namespace verbena::server
