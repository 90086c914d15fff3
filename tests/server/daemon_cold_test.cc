// Tables whose rows do not fit the memory that they may have, on real daemons: the bits of training
// are those of a table in memory; errors about --cold-dir; the files that daemons leave.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/cli_fixture.h"
#include "tests/support/cluster.h"
#include "tests/support/connected.h"
#include "tests/support/good.h"
#include "tests/support/process.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

constexpr uint32_t kDim = 16;
constexpr uint64_t kKeys = 20'000;
constexpr size_t kBatch = 3000;

// The bytes of parameters and state.
constexpr uint64_t BytesOf(uint32_t dim) { return kKeys * 2 * dim * sizeof(float); }
constexpr uint64_t kHotBytes = BytesOf(kDim) / 4;

v1::TableSpec Spec(v1::Consistency consistency, uint64_t hot_bytes, uint32_t dim = kDim) {
  v1::TableSpec spec;
  spec.set_name("items");
  spec.set_dim(dim);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(256 * dim * sizeof(float));
  spec.mutable_optimizer()->set_name("adagrad");
  spec.mutable_optimizer()->set_rate(0.125);
  spec.mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec.mutable_initializer()->set_b(1);
  spec.mutable_initializer()->set_seed(3);
  if (hot_bytes > 0) spec.mutable_cold_tier()->set_hot_bytes(hot_bytes);
  return spec;
}

using Rows = std::map<uint64_t, std::vector<float>>;

// All rows: by a scan, and by lookups of more rows than are in memory.
Rows RowsOf(Client* client, const Table& table, uint32_t dim) {
  Rows all;
  RowScan scan = Value(client->Scan(table));
  std::vector<uint64_t> keys;
  std::vector<float> content;
  while (Value(scan.Next(&keys, &content))) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const float* from = content.data() + i * dim;
      all[keys[i]].assign(from, from + dim);
    }
  }
  Region rows = Value(client->AllocateRegion(kBatch * dim * sizeof(float)));
  bool same = true;
  for (auto it = all.begin(); it != all.end();) {
    keys.clear();
    content.clear();
    for (; it != all.end() && keys.size() < kBatch; ++it) {
      keys.push_back(it->first);
      content.insert(content.end(), it->second.begin(), it->second.end());
    }
    Good(client->Lookup(table, keys, rows).Wait());
    same &= std::memcmp(rows.floats(), content.data(), content.size() * sizeof(float)) == 0;
  }
  CHECK(same);
  return all;
}

// Some keys often, most seldom; in order.
std::vector<uint64_t> SomeKeys(std::mt19937_64* random) {
  std::vector<uint64_t> keys;
  while (keys.size() < kBatch) {
    const uint64_t r = (*random)() % kKeys;
    keys.push_back(((*random)() % 2 == 0 ? r : r * r / kKeys * r / kKeys) * 0x9e3779b97f4a7c15u);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

// The gradient depends on the looked-up values, so a wrong bit stays wrong to the end. `amid` is
// called in each step, with a push in progress.
Rows Train(
    ProcessCluster* cluster, const v1::TableSpec& spec, int steps,
    const std::function<void(int step)>& amid = [](int) {}) {
  std::unique_ptr<Client> client = Connected(*cluster);
  const Table table = Value(client->CreateTable(spec));
  const uint32_t dim = spec.dim();
  Region rows = Value(client->AllocateRegion(kBatch * dim * sizeof(float)));
  std::mt19937_64 random(11);
  std::vector<uint64_t> keys, next = SomeKeys(&random);
  for (int step = 0; step < steps; ++step) {
    keys.swap(next);
    next = SomeKeys(&random);
    Good(client->Lookup(table, keys, rows).Wait());
    Ticket prefetch = client->Prefetch(table, next);
    for (size_t i = 0; i < keys.size() * dim; ++i) {
      rows.floats()[i] = rows.floats()[i] * 0.5f + static_cast<float>(i % 7) - 3;
    }
    Ticket push = client->PushRows(table, keys, rows);
    amid(step);
    if (spec.consistency() == v1::CONSISTENCY_SYNC) Good(client->EndStep(table).Wait());
    Good(push.Wait());
    Good(prefetch.Wait());
  }
  return RowsOf(client.get(), table, dim);
}

bool Same(const Rows& a, const Rows& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first && std::memcmp(x.second.data(), y.second.data(),
                                                    x.second.size() * sizeof(float)) == 0;
         });
}

Rows InMemory(const v1::TableSpec& spec, int steps) {
  ProcessCluster memory;
  Rows rows = Train(&memory, spec, steps);
  CHECK(memory.Metric("verbena_shard_cold_reads_total") == 0);
  return rows;
}

std::string DatabaseOf(const std::string& directory, int server, int shard) {
  return directory + "/server-" + std::to_string(server) + "/verbena-cold-" +
         std::to_string(shard) + "/CURRENT";
}

void CheckTiered(const ProcessCluster& tiered, int copies) {
  CHECK(tiered.Metric("verbena_shard_cold_reads_total") > 10'000);
  CHECK(tiered.Metric("verbena_shard_cold_writes_total") > 10'000);
  CHECK(tiered.Metric("verbena_shard_cold_waits_total") > 100);
  CHECK(tiered.Metric("verbena_shard_cold_prefetched_total") > 1000);
  CHECK(tiered.Metric("verbena_shard_cold_failures_total") == 0);
  CHECK(tiered.Metric("verbena_shard_cold_waiting") == 0);
  const double limit = tiered.Metric("verbena_shard_hot_limit_bytes");
  CHECK(limit <= copies * kHotBytes);
  CHECK(tiered.Metric("verbena_shard_hot_bytes") <= limit * 1.3);
}

TEST_CASE("a table four times its memory has the bits of one that is in memory") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  const int steps = 24;
  const Rows expected = InMemory(Spec(consistency, 0), steps);
  REQUIRE(expected.size() > kKeys * 9 / 10);
  TemporaryDirectory directory;
  {
    ProcessCluster tiered({.cold_dir = directory.path()});
    CHECK(Same(Train(&tiered, Spec(consistency, kHotBytes), steps), expected));
    CheckTiered(tiered, 1);
    // A server that is stopped leaves only its lock file.
    CHECK(std::filesystem::exists(DatabaseOf(directory.path(), 0, 1)));
    tiered.server(0).Signal(SIGTERM);
    CHECK(tiered.server(0).Wait() == 0);
    for (const auto& entry : std::filesystem::directory_iterator(directory.path() + "/server-0")) {
      CHECK(entry.path().filename() == "LOCK");
    }
  }
  // With replicas servers may be killed; the next server in the same directory removes the
  // leftovers of the killed one.
  ProcessCluster copied({.lease_ms = 1000, .replicas = 2, .cold_dir = directory.path()});
  const Rows rows = Train(&copied, Spec(consistency, kHotBytes), steps, [&](int step) {
    if (step != steps / 2) return;
    REQUIRE(copied.WaitReplicated());
    copied.KillServer(1);
    CHECK(std::filesystem::exists(DatabaseOf(directory.path(), 1, 0)));
    WriteFile(directory.path() + "/server-1/verbena-cold-0/left", "x");
    copied.RestartServer(1);
    CHECK(std::filesystem::exists(DatabaseOf(directory.path(), 1, 0)));
    CHECK_FALSE(std::filesystem::exists(directory.path() + "/server-1/verbena-cold-0/left"));
  });
  CHECK(Same(rows, expected));
  CHECK(copied.WaitReplicated());
  CheckTiered(copied, 2);
  // The copies have it, too.
  copied.KillServer(0);
  std::unique_ptr<Client> client = Connected(copied);
  CHECK(Same(RowsOf(client.get(), Value(client->OpenTable("items")), kDim), expected));
}

TEST_CASE("prefetched rows are in memory when the worker looks them up") {
  TemporaryDirectory directory;
  ProcessCluster tiered({.cold_dir = directory.path()});
  std::unique_ptr<Client> client = Connected(tiered);
  const Table table = Value(client->CreateTable(Spec(v1::CONSISTENCY_ASYNC, kHotBytes)));
  Region rows = Value(client->AllocateRegion(kBatch * kDim * sizeof(float)));
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < kKeys; key += kBatch) {
    keys.clear();
    for (uint64_t k = key; k < std::min(key + kBatch, kKeys); ++k) keys.push_back(k);
    Good(client->PushRows(table, keys, rows).Wait());
  }
  // Those that came first have left, if any have.
  keys.resize(200);
  std::iota(keys.begin(), keys.end(), 0);
  const double intended = tiered.Metric("verbena_shard_cold_prefetched_total");
  const double reads = tiered.Metric("verbena_shard_cold_reads_total");
  CHECK(intended == 0);
  Good(client->Prefetch(table, keys).Wait());
  CHECK(tiered.Metric("verbena_shard_cold_prefetched_total") > 100);
  REQUIRE(Eventually([&] {
    return tiered.Metric("verbena_shard_cold_reads_total") - reads >=
           tiered.Metric("verbena_shard_cold_prefetched_total");
  }));
  const double waits = tiered.Metric("verbena_shard_cold_waits_total");
  Good(client->Lookup(table, keys, rows).Wait());
  CHECK(tiered.Metric("verbena_shard_cold_waits_total") == waits);
  CHECK(tiered.Metric("verbena_shard_cold_dropped_prefetches_total") == 0);
}

TEST_CASE("a disk that fills while a tiered table is trained, and has room again",
          "[.small-disk]") {
  // Of 160 MiB, made by small_disk_test.sh, of which ten are left.
  const char* disk = std::getenv("VERBENA_SMALL_DISK");
  REQUIRE(disk != nullptr);
  constexpr uint32_t kWide = 128;
  const int steps = 30;
  const Rows expected = InMemory(Spec(v1::CONSISTENCY_SYNC, 0, kWide), steps);
  const std::string filler = std::string(disk) + "/filler";
  WriteFile(filler, std::string(size_t{150} << 20, 'x'));
  ProcessCluster tiered({.servers = 1, .shards = 1, .cold_dir = disk});
  // Training stands, perhaps, until there is room.
  bool filled = false;
  Finished status;
  std::thread operator_of_it([&] {
    filled = tiered.server(0).WaitFor("stay in memory");
    status = Cli({"--cluster", tiered.address(), "status"});
    std::filesystem::remove(filler);
  });
  const Rows rows = Train(&tiered, Spec(v1::CONSISTENCY_SYNC, BytesOf(kWide) / 4, kWide), steps);
  operator_of_it.join();
  CHECK(filled);
  CHECK_THAT(status.out, Contains("cannot write rows to its disk (--cold-dir): shard 0: ") &&
                             Contains("No space left on device") && Contains("df -h DIR"));
  CHECK_THAT(tiered.server(0).err(), Contains("No space left on device"));
  CHECK(tiered.Metric("verbena_shard_cold_write_failures_total") > 0);
  CHECK(Same(rows, expected));
  CHECK(tiered.server(0).WaitFor("cold rows are written again"));
  CHECK(tiered.Metric("verbena_shard_cold_failures_total") == 0);
}

TEST_CASE("errors about a missing or a wrong --cold-dir name the servers and the remedy") {
  ProcessCluster cluster;
  std::unique_ptr<Client> client = Connected(cluster);
  const auto table = client->CreateTable(Spec(v1::CONSISTENCY_ASYNC, kHotBytes));
  CHECK(table.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(table.status().message()),
             Contains("table 'items': cold_tier.hot_bytes is ") &&
                 Contains("these servers have no --cold-dir: server-0, server-1; start them with"));

  // Nor may more rows be named than fit.
  TemporaryDirectory tiered_directory;
  ProcessCluster tiered({.servers = 1, .shards = 1, .cold_dir = tiered_directory.path()});
  std::unique_ptr<Client> worker = Connected(tiered);
  constexpr uint32_t kWide = 64;
  v1::TableSpec small = Spec(v1::CONSISTENCY_SYNC, 1 << 16, kWide);
  small.set_chunk_bytes(4 * kWide * sizeof(float));  // four rows
  const Table few = Value(worker->CreateTable(small));
  constexpr size_t kMany = 25'000;
  Region many = Value(worker->AllocateRegion(kMany * kWide * sizeof(float)));
  std::vector<uint64_t> numbers(kMany);
  for (size_t i = 0; i < kMany; ++i) numbers[i] = i;
  Ticket push = worker->PushRows(few, numbers, many);
  Good(worker->EndStep(few).Wait());
  const absl::Status too_many = push.Wait();
  CHECK(too_many.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(too_many.message()),
             Contains("than may be in memory together") && Contains("hot_bytes is 65536"));

  TemporaryDirectory directory;
  const auto start = [&](const std::string& cold) {
    return RunProgram(
        {VerbenadPath(), "--join", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--cold-dir", cold});
  };
  WriteFile(directory.File("file"), "x");
  const Finished file = start(directory.File("file"));
  CHECK(file.status == 1);
  CHECK_THAT(file.err, Contains("is not a directory; name another one (--cold-dir)"));
  Process first({VerbenadPath(), "--join", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--cold-dir",
                 directory.File("cold")});
  REQUIRE(Eventually(
      [&] { return std::filesystem::exists(directory.File("cold/verbena-cold-0/CURRENT")); }));
  const Finished second = start(directory.File("cold"));
  CHECK(second.status == 1);
  CHECK_THAT(second.err,
             Contains("in use by another verbenad (pid " + std::to_string(first.pid()) + ")"));
}

}  // namespace
}  // namespace verbena::test
