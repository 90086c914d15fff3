// The public C++ client: empty handles, and a client that is closed before it is destroyed. Tests
// with real data and with failures are in tests/faults/client_test.cc.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {
namespace api_test {

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains(words));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

struct Fixture {
  Fixture() {
    ClientOptions options;
    options.cluster = cluster.address();
    client = *Client::Connect(options);
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.add_shape(1000);
    table = *client->CreateTable(spec);
    region = *client->AllocateRegion(table.bytes());
  }
  ProcessCluster cluster{{.servers = 1, .shards = 1}};
  std::unique_ptr<Client> client;
  Table table;
  Region region;
};

TEST_CASE("empty handles report that they are empty, and calls with them are refused") {
  const Region region;
  CHECK(region.data() == nullptr);
  CHECK(region.floats() == nullptr);
  CHECK(region.half_data() == nullptr);
  CHECK(region.size() == 0);
  CHECK(region.kind() == MemoryKind::kHost);
  CHECK_FALSE(region.allocated());
  const Table table;
  CHECK(table.name().empty());
  CHECK(table.id() == 0);
  CHECK(table.spec().shape_size() == 0);
  CHECK(table.elements() == 0);
  CHECK(table.bytes() == 0);
  CHECK(table.gradient_bytes() == 0);
  CHECK(table.element_bytes() == 0);
  CHECK(table.gradient_element_bytes() == 0);
  CHECK(table.dtype() == v1::DTYPE_UNSPECIFIED);
  CHECK(table.gradient_dtype() == v1::DTYPE_UNSPECIFIED);
  CHECK(table.chunk_elements() == 0);
  CHECK_FALSE(table.embedding());
  CHECK(table.dim() == 0);
  RowScan scan;
  std::vector<uint64_t> keys;
  std::vector<float> rows;
  ExpectError(scan.Next(&keys, &rows).status(), kPrecondition, "an empty scan");
  ExpectError(scan.Next(nullptr, &rows).status(), kInvalid, "null");
  ExpectError(scan.Next(&keys, nullptr).status(), kInvalid, "null");
  Ticket ticket;
  CHECK(ticket.Done());
  CHECK(ticket.BufferReleased());
  ExpectError(ticket.Wait(), kPrecondition, "an empty ticket");
  ExpectError(ticket.Wait(absl::Seconds(1)), kPrecondition, "an empty ticket");
  ExpectError(ticket.status(), kPrecondition, "an empty ticket");
  ticket.Cancel();
  absl::Status ended;
  ticket.OnDone([&](absl::Status status) { ended = std::move(status); });
  ExpectError(ended, kPrecondition, "an empty ticket");

  Fixture f;
  ExpectError(f.client->Push(table, f.region).Wait(), kInvalid, "the table is empty");
  ExpectError(f.client->Pull(table, f.region).Wait(), kInvalid, "the table is empty");
  ExpectError(f.client->EndStep(table).Wait(), kInvalid, "the table is empty");
  ExpectError(f.client->PushRows(table, {1}, f.region).Wait(), kInvalid, "the table is empty");
  ExpectError(f.client->Lookup(table, {1}, f.region).Wait(), kInvalid, "the table is empty");
  ExpectError(f.client->LookupBags(table, {1}, {0}, f.region).Wait(), kInvalid,
              "the table is empty");
  ExpectError(f.client->Scan(table).status(), kInvalid, "the table is empty");
  ExpectError(f.client->Scan(f.table).status(), kInvalid, "dense");
  ExpectError(f.client->PushRows(f.table, {1}, region).Wait(), kInvalid,
              "gradient region is empty");
  ExpectError(f.client->Lookup(f.table, {1}, region).Wait(), kInvalid,
              "destination region is empty");
  ExpectError(f.client->LookupBags(f.table, {1}, {0}, region).Wait(), kInvalid,
              "destination region is empty");
  ExpectError(f.client->Push(f.table, region).Wait(), kInvalid, "gradient region is empty");
  ExpectError(f.client->Pull(f.table, region).Wait(), kInvalid, "destination region is empty");
  ExpectError(f.client->PushPull(f.table, f.region, region).Wait(), kInvalid,
              "destination region is empty");
  ExpectError(f.client->RegisterRegion(nullptr, 64).status(), kInvalid, "null");
  float one = 0;
  ExpectError(f.client->RegisterRegion(&one, 0).status(), kInvalid, "0 bytes");
  for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kCuda}) {
    ExpectError(f.client->AllocateRegion(64, kind).status(), absl::StatusCode::kUnavailable,
                "no CUDA driver");
  }
  ExpectError(f.client->RegisterRegion(&one, 4, MemoryKind::kCuda).status(),
              absl::StatusCode::kUnavailable, "no CUDA driver");
  ExpectError(f.client->DropTable("nowhere"), absl::StatusCode::kNotFound, "nowhere");
  ExpectError(f.client->DropTable(table), kInvalid, "the table is empty");
}

TEST_CASE("regression: calls on a table that was dropped name it") {
  Fixture f;
  v1::TableSpec spec;
  spec.set_name("brief");
  spec.add_shape(1000);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  const Table table = *f.client->CreateTable(spec);
  const Region region = *f.client->AllocateRegion(4000);
  REQUIRE(f.client->DropTable("brief").ok());
  const std::string named = "no table 'brief' (id " + std::to_string(table.id()) + ") in cluster ";
  constexpr auto kNotFound = absl::StatusCode::kNotFound;
  ExpectError(f.client->Push(table, region).Wait(), kNotFound, named);
  ExpectError(f.client->Pull(table, region).Wait(), kNotFound, named);
  ExpectError(f.client->DropTable(table), kNotFound, named);
}

// Handles named their client by its address, which the next client may get: of another cluster,
// where the id names another table.
TEST_CASE("a table of a freed client is refused by every later client") {
  ProcessCluster cluster{{.servers = 1, .shards = 1}};
  ClientOptions options;
  options.cluster = cluster.address();
  v1::TableSpec spec;
  spec.set_name("stale");
  spec.add_shape(1000);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  std::vector<Table> stale;
  for (int i = 0; i < 4; ++i) {
    options.job = "job" + std::to_string(i);
    const auto client = *Client::Connect(options);
    Region region = *client->AllocateRegion(4000);
    for (const Table& table : stale) {
      ExpectError(client->Push(table, region).Wait(), kInvalid,
                  "another client, or by one that was freed");
      ExpectError(client->Pull(table, region).Wait(), kInvalid, "another client");
      ExpectError(client->EndStep(table).Wait(), kInvalid, "another client");
      ExpectError(client->Scan(table).status(), kInvalid, "another client");
      ExpectError(client->DropTable(table), kInvalid, "another client");
    }
    spec.set_name("stale" + std::to_string(i));
    stale.push_back(*client->CreateTable(spec));
  }
}

TEST_CASE("a 16-bit table reports its size in each direction, and trains") {
  Fixture f;
  v1::TableSpec spec;
  spec.set_name("narrow");
  spec.add_shape(999);
  spec.set_dtype(v1::DTYPE_F16);
  spec.mutable_optimizer()->set_rate(1);
  const Table table = *f.client->CreateTable(spec);
  CHECK(table.dtype() == v1::DTYPE_F16);
  CHECK(table.gradient_dtype() == v1::DTYPE_F32);
  CHECK(table.element_bytes() == 2);
  CHECK(table.gradient_element_bytes() == 4);
  CHECK(table.bytes() == 999 * 2);
  CHECK(table.gradient_bytes() == 999 * 4);
  const Region gradient = *f.client->AllocateRegion(table.gradient_bytes());
  const Region parameters = *f.client->AllocateRegion(table.bytes());
  // -100000 is no f16, but the servers have it.
  std::fill_n(gradient.floats(), 999, -100000.0f);
  REQUIRE(f.client->PushPull(table, gradient, parameters).Wait().ok());
  CHECK(std::count(parameters.half_data(), parameters.half_data() + 999, 0x7c00) == 999);
  std::fill_n(gradient.floats(), 999, 99999.0f);
  REQUIRE(f.client->PushPull(table, gradient, parameters).Wait().ok());
  CHECK(FloatFromHalf(parameters.half_data()[0]) == 1);
  CHECK(FloatFromHalf(parameters.half_data()[998]) == 1);
  ExpectError(f.client->PushPull(table, gradient, gradient).Wait(), kInvalid,
              "overlaps the gradient");
}

TEST_CASE("a pull from any replica has a staleness of at least a millisecond") {
  Fixture f;
  for (const absl::Duration staleness :
       {absl::Milliseconds(0), absl::Microseconds(999), absl::Milliseconds(int64_t{UINT32_MAX} + 1),
        absl::InfiniteDuration(), -absl::Seconds(1)}) {
    PullOptions options;
    options.max_staleness = staleness;
    CHECK(f.client->Pull(f.table, f.region, {}, options).Wait().ok());  // has no effect
    options.read_from = ReadFrom::kAny;
    ExpectError(f.client->Pull(f.table, f.region, {}, options).Wait(), kInvalid,
                "max_staleness is");
  }
  // A worker reads from the primary.
  PullOptions any;
  any.read_from = ReadFrom::kAny;
  CHECK(f.client->Pull(f.table, f.region, {}, any).Wait().ok());
}

TEST_CASE("a closed client refuses every call, and its handles stay valid") {
  Fixture f;
  PullOptions never;
  never.min_version = 5;
  Ticket pull = f.client->Pull(f.table, f.region, {}, never);
  int ended = 0;
  pull.OnDone([&](const absl::Status& status) { ended += absl::IsCancelled(status) ? 1 : 100; });
  f.client->Close();
  CHECK(ended == 1);
  CHECK(absl::IsCancelled(pull.Wait()));
  CHECK(pull.BufferReleased());
  f.client->Close();
  for (Ticket ticket :
       {f.client->Push(f.table, f.region), f.client->Pull(f.table, f.region),
        f.client->PushPull(f.table, f.region, f.region), f.client->EndStep(f.table),
        f.client->PushRows(f.table, {1}, f.region), f.client->Lookup(f.table, {1}, f.region),
        f.client->LookupBags(f.table, {1}, {0}, f.region)}) {
    CHECK(ticket.Done());
    ExpectError(ticket.Wait(), kPrecondition, "the client is closed");
    ticket.Cancel();
    CHECK(ticket.BufferReleased());
  }
  ExpectError(f.client->CreateTable(f.table.spec()).status(), kPrecondition,
              "the client is closed");
  ExpectError(f.client->OpenTable("weights").status(), kPrecondition, "the client is closed");
  ExpectError(f.client->ListTables().status(), kPrecondition, "the client is closed");
  ExpectError(f.client->DropTable("weights"), kPrecondition, "the client is closed");
  ExpectError(f.client->Scan(f.table).status(), kPrecondition, "the client is closed");
  ExpectError(f.client->AllocateRegion(64).status(), kPrecondition, "the client is closed");
  std::byte memory[64];
  ExpectError(f.client->RegisterRegion(memory, 64).status(), kPrecondition, "the client is closed");
  CHECK(f.client->run().incarnation == 0);
  CHECK(f.client->rank() == -1);
  CHECK(f.client->run().live_workers == 0);
  CHECK(f.client->statistics().lanes.empty());
  f.client.reset();
  CHECK(f.table.name() == "weights");
  CHECK(f.region.floats()[0] == 0);
}

TEST_CASE("rows of an embedding table, in three kinds of consistency") {
  Fixture f;
  for (const auto consistency :
       {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP}) {
    v1::TableSpec spec;
    spec.set_name(v1::Consistency_Name(consistency));
    spec.set_dim(4);
    spec.set_consistency(consistency);
    spec.mutable_optimizer()->set_rate(1);
    const Table table = *f.client->CreateTable(spec);
    CHECK(table.embedding());
    CHECK(table.dim() == 4);
    CHECK(table.elements() == 0);
    CHECK(table.chunk_elements() == 0);
    const std::vector<uint64_t> keys = {5, UINT64_MAX, 5, 0};
    std::fill_n(f.region.floats(), 16, -1.0f);
    Ticket push = f.client->PushRows(table, keys, f.region);
    Ticket end = f.client->EndStep(table);
    CHECK(push.Wait().ok());
    CHECK(end.Wait().ok());
    Ticket lookup = f.client->Lookup(table, keys, f.region, {.region_offset = 16});
    CHECK(lookup.Wait().ok());
    CHECK(lookup.BufferReleased());
    CHECK(f.region.floats()[4] == 2);
    CHECK(f.region.floats()[8] == 1);
    CHECK(f.region.floats()[15] == 2);
    CHECK(f.region.floats()[16] == 1);
    // 5 is at 2, the others at 1.
    const std::vector<float> weights = {0.5f, 1, 2, 8};
    BagOptions options = {.mode = BagMode::kMean, .weights = weights, .region_offset = 64};
    CHECK(f.client->LookupBags(table, keys, {0, 3, 3}, f.region, options).Wait().ok());
    CHECK(f.region.floats()[16] == (0.5f * 2 + 1 + 2 * 2) / 3.5f);
    CHECK(f.region.floats()[20] == 0);
    CHECK(f.region.floats()[27] == 1);
    auto scan = f.client->Scan(table);
    REQUIRE(scan.ok());
    std::vector<uint64_t> found, all;
    std::vector<float> rows;
    while (true) {
      const auto more = scan->Next(&found, &rows);
      REQUIRE(more.ok());
      if (!*more) break;
      REQUIRE(rows.size() == found.size() * 4);
      all.insert(all.end(), found.begin(), found.end());
    }
    CHECK(found.empty());
    CHECK(rows.empty());
    CHECK_FALSE(*scan->Next(&found, &rows));
    std::sort(all.begin(), all.end());
    CHECK(all == std::vector<uint64_t>{0, 5, UINT64_MAX});
  }
}

TEST_CASE("a scan ends with its client and with its table") {
  Fixture f;
  v1::TableSpec spec;
  spec.set_name("items");
  spec.set_dim(4);
  const Table table = *f.client->CreateTable(spec);
  auto dropped = f.client->Scan(table);
  REQUIRE(dropped.ok());
  CHECK(f.client->DropTable("items").ok());
  std::vector<uint64_t> keys;
  std::vector<float> rows;
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = dropped->Next(&keys, &rows);
  // Its first request, sent before the drop, may have returned all rows.
  CHECK((more.ok() || absl::IsNotFound(more.status())));
  CHECK(Eventually([&] { return absl::IsNotFound(f.client->Scan(table).status()); }));
  spec.set_name("others");
  auto closed = f.client->Scan(*f.client->CreateTable(spec));
  REQUIRE(closed.ok());
  f.client->Close();
  more = closed->Next(&keys, &rows);
  CHECK_FALSE(more.ok());
  CHECK(closed->Next(&keys, &rows).status() == more.status());
}

}  // namespace api_test
}  // namespace verbena::test
