// Configurations and settings across restarts of the coordinator.
#include "tests/server/configurations_fixture.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

TEST_CASE("configurations survive a restart; replicas may be wanted later, or no more") {
  TestCoordinator c(Replicated());
  c.options().replicas = 1;
  c.Restart();
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  const std::string one = std::to_string(a), two = std::to_string(b);
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  REQUIRE(Words(c.Partition(0)) == one);
  c.options().replicas = 2;
  c.Restart();
  REQUIRE(Words(c.Partition(0)) == one + "?" + two);
  REQUIRE(c.Reconfigure(a, {c.Change(kAdmit, 0, b)})->made(0));
  c.options().replicas = 1;
  c.Restart();
  REQUIRE(c.view().replicas() == 1);
  REQUIRE(Words(c.Partition(0)) == one + "+" + two);
  REQUIRE(c.Leave(a).ok());
  REQUIRE(Words(c.Partition(0)) == two);
  REQUIRE_FALSE(Lost(c));
}

TEST_CASE("regression: settings that a restart does not name stay as they are") {
  TestCoordinator c(Replicated());
  c.options().expected_servers = 3;
  c.options().min_replicas = 2;
  c.Restart();
  c.options().replicas = 0;
  c.options().min_replicas = 0;
  c.options().expected_servers = 0;
  c.Restart();
  CHECK(c.view().replicas() == 2);
  CHECK(c.view().min_replicas() == 2);
  CHECK(c.view().expected_servers() == 3);
  c.options().min_replicas = 1;
  c.Restart();
  CHECK(c.view().min_replicas() == 1);
}

TEST_CASE("a state without configurations is taken over, one that breaks them is not") {
  MemoryStore store;
  {
    TestCoordinator c(Replicated(), &store);
    for (const char* name : {"a", "b", "d"}) c.JoinServer(name);
    REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  }
  CoordinatorState good = *store.Load();
  v1::Partition* p = good.view.mutable_partitions(0);
  SECTION("of before") {
    p->clear_configuration();
    REQUIRE(store.Save(good, {}).ok());
    TestCoordinator c(Replicated(), &store);
    REQUIRE(c.Partition(0).configuration() >= c.Partition(0).epoch());
    return;
  }
  SECTION("a server twice") { p->mutable_followers(0)->set_server(p->primary()); }
  SECTION("three copies") { p->add_learners()->set_server(3); }
  SECTION("unknown server") { p->mutable_followers(0)->set_server(99); }
  SECTION("unknown shard") { p->mutable_followers(0)->set_shard(1); }
  SECTION("a copy of nothing") { p->set_primary(0); }
  SECTION("configuration behind the epoch") { p->set_configuration(1); }
  SECTION("a silent learner") {
    p->mutable_learners()->Swap(p->mutable_followers());
    for (v1::Server& s : *good.view.mutable_servers()) {
      if (s.incarnation() == p->learners(0).server()) s.set_state(v1::Server::SILENT);
    }
  }
  REQUIRE(store.Save(good, {}).ok());
  ManualClock clock;
  const auto created = Coordinator::Create(Replicated(), &clock, &store);
  REQUIRE_STATUS(created.status(), kDataLoss, "makes no sense: partition ");
}

}  // namespace
}  // namespace verbena::server
