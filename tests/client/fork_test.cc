// A process that was forked after Connect(): its calls fail at once, releasing is local, and the
// parent notices nothing.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "verbena/client.h"
#include "verbena/verbena.h"

namespace verbena::test {
namespace fork_test {

constexpr uint64_t kElements = 1000;

// Runs `body` in a fork of this process. Its result is the exit status; -1: it did not end.
int InFork(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  for (int i = 0; i < 500; ++i) {
    if (waitpid(pid, &status, WNOHANG) == pid) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    usleep(10'000);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  return -1;
}

bool Refused(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) &&
         status.message().find("is a fork") != std::string::npos;
}

struct World {
  World() {
    client = Connected(cluster);
    v1::TableSpec dense;
    dense.set_name("dense");
    dense.add_shape(kElements);
    dense.set_consistency(v1::CONSISTENCY_ASYNC);
    dense.mutable_optimizer()->set_name("sgd");
    dense.mutable_optimizer()->set_rate(1);
    table = Value(client->CreateTable(dense));
    v1::TableSpec embedding;
    embedding.set_name("rows");
    embedding.set_dim(4);
    embedding.set_consistency(v1::CONSISTENCY_ASYNC);
    rows = Value(client->CreateTable(embedding));
    gradient = Value(client->AllocateRegion(table.bytes()));
    parameters = Value(client->AllocateRegion(table.bytes()));
    std::fill_n(gradient.floats(), kElements, -1.0f);
  }
  void Step() {
    Good(client->Push(table, gradient).Wait());
    Good(client->Pull(table, parameters).Wait());
    CHECK(parameters.floats()[kElements - 1] == static_cast<float>(++steps));
  }
  // Every kind of call; 0: each is refused as it should be, else the number of the first that
  // is not.
  int TryEverything() {
    std::vector<uint64_t> keys = {1, 2, 3};
    const CallOptions brief = {.timeout = absl::Seconds(1)};
    const std::vector<std::function<absl::Status()>> calls = {
        [&] { return client->Push(table, gradient).Wait(); },
        [&] { return client->Pull(table, parameters).Wait(); },
        [&] { return client->PushPull(table, gradient, parameters).Wait(); },
        [&] { return client->EndStep(table).Wait(); },
        [&] { return client->PushRows(rows, keys, gradient).Wait(); },
        [&] { return client->Lookup(rows, keys, parameters).Wait(); },
        [&] { return client->LookupBags(rows, keys, {0}, parameters).Wait(); },
        [&] { return client->Prefetch(rows, keys).Wait(); },
        [&] { return client->Scan(rows).status(); },
        [&] { return client->AllocateRegion(64).status(); },
        [&] { return client->RegisterRegion(keys.data(), 8).status(); },
        [&] { return client->OpenTable("dense", brief).status(); },
        [&] { return client->CreateTable(table.spec(), brief).status(); },
        [&] { return client->ListTables(brief).status(); },
        [&] { return client->DropTable("dense", brief); },
        [&] { return Client::Connect({.cluster = cluster.address(), .job = "child"}).status(); },
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      if (!Refused(calls[i]())) return static_cast<int>(i) + 1;
    }
    return client->run().incarnation == 0 && client->run().live_workers == 0 ? 0 : 99;
  }

  ProcessCluster cluster{{.servers = 1, .shards = 2}};
  std::unique_ptr<Client> client;
  Table table, rows;
  Region gradient, parameters;
  int steps = 0;
};

TEST_CASE("a fork is refused every call at once, also a client of its own") {
  World w;
  w.Step();
  CHECK(InFork([&] { return w.TryEverything(); }) == 0);
  w.Step();
  // Its own children, too.
  CHECK(InFork([&] { return InFork([&] { return w.TryEverything(); }); }) == 0);
  w.Step();
  w.client->Close();
  CHECK(InFork([&] {
          return Refused(Client::Connect({.cluster = w.cluster.address()}).status()) ? 0 : 1;
        }) == 0);
}

TEST_CASE("a fork releases everything, and the parent goes on") {
  World w;
  w.Step();
  CHECK(InFork([&] {
          w.gradient = Region();
          w.parameters = Region();
          w.table = Table();
          w.client->Close();
          w.client.reset();
          return 0;
        }) == 0);
  w.Step();
  // With the destructors of static objects.
  static std::unique_ptr<Client> global;
  global = Connected(w.cluster);
  CHECK(InFork([]() -> int { exit(0); }) == 0);
  w.Step();
  global.reset();
}

TEST_CASE("operations and scans that run during a fork have ended in the child") {
  World w;
  v1::TableSpec sync;
  sync.set_name("sync");
  sync.add_shape(8);
  const Table waits = Value(w.client->CreateTable(sync));
  // No step of it is ever ended.
  Ticket pull = w.client->Pull(waits, w.parameters, {.count = 8}, {.min_version = 5});
  const std::vector<uint64_t> keys = {1, 2, 3};
  Good(w.client->PushRows(w.rows, keys, w.gradient).Wait());
  RowScan scan = Value(w.client->Scan(w.rows));
  CHECK_FALSE(pull.Done());
  CHECK(InFork([&] {
          std::vector<uint64_t> found;
          std::vector<float> values;
          int called = 0;
          pull.OnDone([&](const absl::Status& status) { called += Refused(status) ? 1 : 0; });
          const bool over = pull.Done() && Refused(pull.Wait()) && Refused(pull.status()) &&
                            Refused(pull.Wait(absl::Seconds(1))) && pull.BufferReleased();
          pull.Cancel();
          return over && called == 1 && Refused(scan.Next(&found, &values).status()) ? 0 : 1;
        }) == 0);
  CHECK_FALSE(pull.Done());
  std::vector<uint64_t> found;
  std::vector<float> values;
  size_t rows = 0;
  while (Value(scan.Next(&found, &values))) rows += found.size();
  CHECK(rows == 3);
  pull.Cancel();
  w.Step();
}

// glibc's allocator can be used in a fork of a process whose threads allocate. gcc 12's
// AddressSanitizer has one that cannot: a fork may find its locks taken.
#ifndef __SANITIZE_ADDRESS__
TEST_CASE("forks that use and release the client end while the parent's threads push") {
  World w;
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) failed += w.client->Push(w.table, w.gradient).Wait().ok() ? 0 : 1;
    });
  }
  for (int i = 0; i < 40; ++i) {
    const int ended = InFork([&] {
      const bool refused = Refused(w.client->Push(w.table, w.gradient).Wait());
      w.gradient = Region();
      w.client.reset();
      return refused ? 0 : 1;
    });
    CHECK(ended == 0);
    if (ended != 0) break;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
}
#endif

TEST_CASE(
    "C: calls in a forked child fail at once with the reason; it frees the handles, and the parent "
    "goes on") {
  ProcessCluster cluster{{.servers = 1, .shards = 1}};
  verbena_connect_options options;
  verbena_connect_options_init(&options, sizeof options);
  options.cluster = cluster.address().c_str();
  verbena_client* client = nullptr;
  REQUIRE(verbena_connect(&options, &client) == VERBENA_OK);
  verbena_table_spec spec;
  verbena_table_spec_init(&spec, sizeof spec);
  spec.name = "rows";
  spec.dim = 2;
  spec.consistency = VERBENA_CONSISTENCY_ASYNC;
  verbena_table* table = nullptr;
  REQUIRE(verbena_table_create(client, &spec, -1, &table) == VERBENA_OK);
  verbena_region* region = nullptr;
  REQUIRE(verbena_region_allocate(client, 64, VERBENA_MEMORY_HOST, 0, &region) == VERBENA_OK);
  const auto push = [&](verbena_ticket** ticket) {
    const uint64_t key = 1;
    return verbena_push_rows(client, table, &key, 1, region, 0, -1, ticket);
  };
  verbena_ticket* ticket = nullptr;
  REQUIRE(push(&ticket) == VERBENA_OK);
  CHECK(InFork([&] {
          verbena_ticket* none = nullptr;
          const bool refused = push(&none) == VERBENA_FAILED_PRECONDITION && none == nullptr;
          verbena_client* own = nullptr;
          const bool refused_own = verbena_connect(&options, &own) == VERBENA_FAILED_PRECONDITION;
          verbena_ticket_free(ticket);
          verbena_region_free(region);
          verbena_table_free(table);
          verbena_client_free(client);
          return refused && refused_own ? 0 : 1;
        }) == 0);
  CHECK(verbena_ticket_wait(ticket, -1) == VERBENA_OK);
  verbena_ticket_free(ticket);
  REQUIRE(push(&ticket) == VERBENA_OK);
  CHECK(verbena_ticket_wait(ticket, -1) == VERBENA_OK);
  verbena_ticket_free(ticket);
  verbena_region_free(region);
  verbena_table_free(table);
  verbena_client_free(client);
}

}  // namespace fork_test
}  // namespace verbena::test
