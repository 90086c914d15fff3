// Tables, placement, lost partitions, and watching the view.
#include <algorithm>
#include <map>
#include <set>

#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

std::set<uint32_t> PartitionsOf(const v1::Table& table, uint32_t partitions) {
  std::set<uint32_t> found;
  for (uint32_t chunk = 0; chunk < LayoutOf(table.spec()).chunks(); ++chunk) {
    found.insert(PartitionOfChunk(table.id(), chunk, partitions));
  }
  return found;
}

std::set<uint32_t> LostOf(const v1::ClusterView& view, const std::string& table) {
  for (const v1::Table& t : view.tables()) {
    if (t.spec().name() != table) continue;
    REQUIRE(std::is_sorted(t.lost_partitions().begin(), t.lost_partitions().end()));
    return {t.lost_partitions().begin(), t.lost_partitions().end()};
  }
  FAIL("no table " << table);
  return {};
}

TEST_CASE("tables wait for the expected servers") {
  TestCoordinator c({.expected_servers = 3});
  c.JoinServer("a");
  const uint64_t b = c.JoinServer("b");
  REQUIRE_STATUS(c.CreateTable(c.Spec("t", 64)).status(), kUnavailable,
                 "2 of 3 expected servers have joined");
  c.JoinServer("c");
  REQUIRE(c.Leave(b).ok());
  REQUIRE_STATUS(c.CreateTable(c.Spec("t", 64)).status(), kUnavailable, "silent: b");
  c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 64)).ok());
}

// A copied specification of a restored table has `changed` set.
TEST_CASE("regression: values of a table that no restore has made are compared") {
  TestCoordinator c;
  c.JoinServer("a");
  v1::TableSpec spec = c.Spec("t", 64);
  spec.mutable_optimizer()->set_rate(1);
  spec.mutable_optimizer()->set_changed(true);
  const auto made = c.CreateTable(spec);
  REQUIRE(made.ok());
  CHECK_FALSE(made->spec().optimizer().changed());
  spec.mutable_optimizer()->set_rate(2);
  REQUIRE_STATUS(c.CreateTable(spec).status(), kAlreadyExists, "optimizer.rate is 1");
}

TEST_CASE("the first table spreads the partitions evenly over all shards") {
  TestCoordinator c({.partitions = 256, .expected_servers = 2});
  REQUIRE(c.view().partitions_size() == 256);
  REQUIRE(c.view().partitions(9).primary() == 0);
  REQUIRE(c.view().partitions(9).epoch() == 1);
  const uint64_t a = c.JoinServer("a", 2);
  const uint64_t b = c.JoinServer("b", 2);
  const uint64_t silent = c.JoinServer("z", 8);
  REQUIRE(c.Leave(silent).ok());
  REQUIRE(c.CreateTable(c.Spec("t", 64)).ok());
  std::map<std::pair<uint64_t, uint32_t>, int> count;
  for (const v1::Partition& p : c.view().partitions()) {
    REQUIRE(p.epoch() == 2);
    ++count[{p.primary(), p.shard()}];
  }
  const std::map<std::pair<uint64_t, uint32_t>, int> wanted = {
      {{a, 0}, 64}, {{a, 1}, 64}, {{b, 0}, 64}, {{b, 1}, 64}};
  REQUIRE(count == wanted);

  SECTION("servers that join later get none while there are tables") {
    const auto before = c.view().partitions(3).SerializeAsString();
    c.JoinServer("c", 4);
    REQUIRE(c.CreateTable(c.Spec("u", 64)).ok());
    REQUIRE(c.view().partitions(3).SerializeAsString() == before);
    REQUIRE(c.DropTable("t").ok());
    REQUIRE(c.DropTable("u").ok());
    REQUIRE(c.CreateTable(c.Spec("v", 64)).ok());
    std::set<uint64_t> primaries;
    for (const v1::Partition& p : c.view().partitions()) primaries.insert(p.primary());
    REQUIRE(primaries.size() == 3);
  }
  SECTION("a placement that stays has no new epochs") {
    REQUIRE(c.DropTable("t").ok());
    REQUIRE(c.CreateTable(c.Spec("u", 64)).ok());
    for (const v1::Partition& p : c.view().partitions()) REQUIRE(p.epoch() == 2);
  }
}

TEST_CASE("creating a table twice returns the same table; another spec under its name is refused") {
  CoordinatorOptions options;
  options.check_optimizer = [](const v1::TableSpec& spec) {
    return spec.optimizer().name() == "sgd"
               ? absl::OkStatus()
               : absl::InvalidArgumentError("unknown optimizer " + spec.optimizer().name());
  };
  TestCoordinator c(options);
  c.JoinServer("a");
  const auto table = c.CreateTable(c.Spec("t", 64));
  REQUIRE(table.ok());
  REQUIRE(table->spec().dtype() == v1::DTYPE_F32);
  const uint64_t revision = c.view().revision();
  REQUIRE(c.CreateTable(c.Spec("t", 64))->id() == table->id());
  REQUIRE(c.view().revision() == revision);
  REQUIRE_STATUS(c.CreateTable(c.Spec("t", 65)).status(), kAlreadyExists, "[64]");
  REQUIRE_STATUS(c.CreateTable(c.Spec("u", 0)).status(), kInvalidArgument, "shape");
  v1::TableSpec unknown = c.Spec("u", 64);
  unknown.mutable_optimizer()->set_name("magic");
  REQUIRE_STATUS(c.CreateTable(unknown).status(), kInvalidArgument, "unknown optimizer magic");
  REQUIRE(c.view().tables_size() == 1);
  REQUIRE_STATUS(c.DropTable("u"), kNotFound, "no table 'u'");
  REQUIRE(c.DropTable("t").ok());
  REQUIRE(c.view().tables_size() == 0);
  REQUIRE(c.CreateTable(c.Spec("t", 65))->id() > table->id());
  v1::TableSpec nameless = c.Spec("w", 64);
  nameless.clear_job();
  REQUIRE(c.CreateTable(nameless)->spec().job() == "default");
}

TEST_CASE("tables of a job that clip by a global norm agree on it") {
  TestCoordinator c;
  c.JoinServer("a");
  const auto create = [&](const std::string& name, const std::string& job, double clip) {
    v1::TableSpec spec = c.Spec(name, 64);
    spec.set_job(job);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    if (clip > 0) spec.set_consistency(v1::CONSISTENCY_SYNC);
    spec.mutable_optimizer()->set_clip_global_norm(clip);
    return c.CreateTable(spec).status();
  };
  REQUIRE(create("a", "job", 2).ok());
  REQUIRE(create("b", "job", 2).ok());
  REQUIRE(create("c", "job", 0).ok());
  REQUIRE(create("d", "other", 3).ok());
  REQUIRE_STATUS(create("e", "job", 3), kFailedPrecondition,
                 "table 'e': optimizer.clip_global_norm is 3; allowed: 2, as in table 'a'");
  REQUIRE(c.DropTable("a").ok());
  REQUIRE(c.DropTable("b").ok());
  REQUIRE(create("e", "job", 3).ok());
}

TEST_CASE("a sync table's chunks times its job's workers are bounded") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t chunk = 64;  // elements of one, by Spec()
  // 2^10 workers may have 2^16 chunks and partitions.
  const auto first = c.JoinWorker("job", 1024);
  REQUIRE(first.ok());
  const uint64_t most = (1 << 16) - kDefaultPartitions;
  REQUIRE_STATUS(c.CreateTable(c.Spec("t", (most + 1) * chunk)).status(), kResourceExhausted,
                 "job 'job' with 1024 workers: its sync tables have 65537 chunks and partitions; "
                 "allowed: 65536 for so many workers. Greater chunk_bytes make fewer chunks");
  REQUIRE(c.CreateTable(c.Spec("t", most * chunk)).ok());
  REQUIRE_STATUS(c.CreateTable(c.Spec("u", 1)).status(), kResourceExhausted, "65538");
  // Pushes to others are applied when they come; and other jobs have room of their own.
  REQUIRE(c.CreateTable(c.Spec("async", most * chunk, v1::CONSISTENCY_ASYNC)).ok());
  REQUIRE(c.CreateTable(c.Spec("v", 1, v1::CONSISTENCY_SYNC, "other")).ok());
  // The next run must not have more workers than its tables allow.
  REQUIRE(c.Leave(first->incarnation()).ok());
  REQUIRE_STATUS(c.JoinWorker("job", 1025).status(), kResourceExhausted, "allowed: 65472");
  REQUIRE(c.JoinWorker("job", 1000).ok());
  REQUIRE(c.Job("job").expected_workers() == 1000);
}

TEST_CASE("a new incarnation under a server's name loses the chunks that its partitions had") {
  TestCoordinator c({.partitions = 16, .expected_servers = 2});
  const uint64_t a = c.JoinServer("a", 2);
  const uint64_t b = c.JoinServer("b", 2);
  // 5 chunks in 5 partitions, and one in every partition.
  REQUIRE(c.CreateTable(c.Spec("small", 64 * 5)).ok());
  REQUIRE(c.CreateTable(c.Spec("large", 64 * 40)).ok());
  std::set<uint32_t> of_b;
  for (const v1::Partition& p : c.view().partitions()) {
    if (p.primary() == b) of_b.insert(p.id());
  }
  REQUIRE(of_b.size() == 8);

  // Silent: nothing is lost, and the server stays primary of its partitions.
  c.clock.AdvanceMs(kLeaseMs);
  REQUIRE(c.Heartbeat(a).ok());
  c->RunOnce();
  REQUIRE(c.Server("b").state() == v1::Server::SILENT);
  REQUIRE(LostOf(c.view(), "large").empty());
  REQUIRE(c.view().partitions(2).primary() == b);
  REQUIRE(c.Heartbeat(b).ok());
  REQUIRE(LostOf(c.view(), "large").empty());

  // Replaced, with fewer shards, while the lease is alive.
  const uint64_t again = c.JoinServer("b", 1);
  REQUIRE(LostOf(c.view(), "large") == of_b);
  const std::set<uint32_t> small = PartitionsOf(c.view().tables(0), 16);
  std::set<uint32_t> wanted;
  std::set_intersection(small.begin(), small.end(), of_b.begin(), of_b.end(),
                        std::inserter(wanted, wanted.end()));
  REQUIRE(LostOf(c.view(), "small") == wanted);
  for (const v1::Partition& p : c.view().partitions()) {
    const bool moved = of_b.contains(p.id());
    REQUIRE(p.primary() == (moved ? again : a));
    REQUIRE(p.epoch() == (moved ? 3 : 2));
    if (moved) REQUIRE(p.shard() == 0);
  }

  // New tables work; losing it again changes nothing for tables that lost it before.
  REQUIRE(c.CreateTable(c.Spec("new", 64 * 40)).ok());
  REQUIRE(LostOf(c.view(), "new").empty());
  c.JoinServer("b", 1);
  REQUIRE(LostOf(c.view(), "new") == of_b);
  REQUIRE(LostOf(c.view(), "large") == of_b);
  REQUIRE(c.DropTable("large").ok());
  REQUIRE(c.CreateTable(c.Spec("large", 64 * 40)).ok());
  REQUIRE(LostOf(c.view(), "large").empty());
}

TEST_CASE("which partitions have chunks agrees with the routing, whatever the table") {
  // The partitions of the table are those lost when the only server comes back empty.
  for (uint32_t chunks = 1; chunks <= 20; ++chunks) {
    TestCoordinator c({.partitions = 16});
    c.JoinServer("a");
    for (uint32_t t = 0; t < 8; ++t) {
      REQUIRE(c.CreateTable(c.Spec("t" + std::to_string(t), 64 * chunks - 3)).ok());
    }
    c.JoinServer("a");
    for (const v1::Table& table : c.view().tables()) {
      REQUIRE(LostOf(c.view(), table.spec().name()) == PartitionsOf(table, 16));
    }
  }
}

TEST_CASE("a view is watched by long polls") {
  TestCoordinator c;
  const uint64_t now = c.view().revision();
  REQUIRE((*c.Poll(0, 10000))->value().changed());
  REQUIRE((*c.Poll(now + 5, 10000))->value().view().revision() == now);
  REQUIRE_FALSE((*c.Poll(now, 0))->value().changed());

  const auto first = c.Poll(now, 10000);
  const auto second = c.Poll(now, 500);
  const auto capped = c.Poll(now, 4000000000);
  REQUIRE_FALSE(first->has_value());
  REQUIRE(c->NextTimerNanos() == c.clock.NowNanos() + 500 * 1000000);
  c.clock.AdvanceMs(499);
  REQUIRE_FALSE(c->RunOnce());
  c.clock.AdvanceMs(1);
  REQUIRE(c->RunOnce());
  REQUIRE_FALSE((*second)->value().changed());
  REQUIRE_FALSE(first->has_value());
  c.JoinServer("a");
  REQUIRE((*first)->value().changed());
  REQUIRE((*first)->value().view().servers_size() == 1);
  REQUIRE((*capped)->value().changed());

  const uint64_t a = c.Server("a").incarnation();
  const auto late = c.Poll(c.view().revision(), 4000000000);
  for (int s = 0; s < 29; ++s) {
    c.clock.AdvanceMs(1000);
    REQUIRE(c.Heartbeat(a).ok());
    c->RunOnce();
  }
  REQUIRE_FALSE(late->has_value());
  c.clock.AdvanceMs(1000);
  c->RunOnce();
  REQUIRE(late->has_value());

  // The end of a lease is news too.
  const auto silent = c.Poll(c.view().revision(), 30000);
  c.clock.AdvanceMs(kLeaseMs);
  c->RunOnce();
  REQUIRE((*silent)->value().view().servers(0).state() == v1::Server::SILENT);
}

TEST_CASE("a reply may call the coordinator again") {
  TestCoordinator c;
  int answers = 0;
  v1::GetViewRequest poll;
  poll.set_known_revision(c.view().revision());
  poll.set_wait_ms(1000);
  for (int i = 0; i < 3; ++i) {
    c->GetView(poll, [&](absl::StatusOr<v1::GetViewResponse> response) {
      ++answers;
      REQUIRE(response.ok());
      c.JoinServer("from-reply-" + std::to_string(answers));
    });
  }
  c.JoinServer("a");
  REQUIRE(answers == 3);
  REQUIRE(c.view().servers_size() == 4);
}

}  // namespace
}  // namespace verbena::server
