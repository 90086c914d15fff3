// Client::Assign(), AssignRows(), AssignState() and PullState() against real daemons, in C++ and in
// C: parameters and state that are written as they are, and each documented error.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/client/c_api_support.h"
#include "verbena/client.h"

namespace verbena::test {
namespace assign_api_test {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

void Fails(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  INFO(status.ToString());
  CHECK(status.code() == code);
  CHECK_THAT(std::string(status.message()), Contains(words));
}

struct Assigner {
  explicit Assigner(const ProcessClusterOptions& of_cluster = {.servers = 1, .shards = 1})
      : cluster(of_cluster) {
    ClientOptions options;
    options.cluster = cluster.address();
    client = *Client::Connect(options);
    region = *client->AllocateRegion(1 << 20);
  }
  Table Make(const std::string& name, v1::Consistency consistency, uint64_t elements,
             v1::DType dtype = v1::DTYPE_F32) {
    v1::TableSpec spec;
    spec.set_name(name);
    spec.add_shape(elements);
    spec.set_dtype(dtype);
    spec.set_chunk_bytes(4096);
    spec.set_consistency(consistency);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    return *client->CreateTable(spec);
  }
  Table MakeRows(v1::Consistency consistency) {
    v1::TableSpec spec;
    spec.set_name("items");
    spec.set_dim(4);
    spec.set_consistency(consistency);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    return *client->CreateTable(spec);
  }
  std::vector<float> Pull(const Table& table) {
    const size_t at = region.size() - table.bytes();
    const absl::Status status = client->Pull(table, region, {.region_offset = at}).Wait();
    INFO(status);
    REQUIRE(status.ok());
    const float* const first = region.floats() + at / sizeof(float);
    return {first, first + table.elements()};
  }

  ProcessCluster cluster;
  std::unique_ptr<Client> client;
  Region region;
};

TEST_CASE("assign: a table starts from a model's own weights, and is trained on from there") {
  Assigner f;
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const Table table = f.Make("w", consistency, 5000);
  std::vector<float> expected(5000);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<float>(i) / 3;
  std::copy(expected.begin(), expected.end(), f.region.floats());
  Ticket assign = f.client->Assign(table, f.region);
  Ticket end = f.client->EndStep(table);
  CHECK(assign.Wait().ok());
  CHECK(end.Wait().ok());
  CHECK(f.Pull(table) == expected);
  std::fill_n(f.region.floats(), 5000, 1.0f);
  Ticket push = f.client->Push(table, f.region);
  end = f.client->EndStep(table);
  CHECK(push.Wait().ok());
  CHECK(end.Wait().ok());
  for (float& value : expected) value -= 1;
  CHECK(f.Pull(table) == expected);
}

TEST_CASE("assign: a range is written, and the other chunks stay") {
  Assigner f;
  const Table table = f.Make("w", v1::CONSISTENCY_ASYNC, 3000);
  std::fill_n(f.region.floats() + 10, 1024, 7.0f);
  const Range range = {.first = 1024, .count = 1024, .region_offset = 40};
  CHECK(f.client->Assign(table, f.region, range).Wait().ok());
  const std::vector<float> values = f.Pull(table);
  CHECK(std::count(values.begin(), values.end(), 7.0f) == 1024);
  CHECK(values[1023] == 0);
  CHECK(values[1024] == 7);
  CHECK(values[2048] == 0);
}

TEST_CASE("assign: errors name the argument") {
  Assigner f;
  const Table table = f.Make("w", v1::CONSISTENCY_SYNC, 3000);
  const Table half = f.Make("half", v1::CONSISTENCY_ASYNC, 3000, v1::DTYPE_BF16);
  Client& client = *f.client;
  Fails(client.Assign(Table(), f.region).Wait(), kInvalid, "the table is empty");
  Fails(client.Assign(table, Region()).Wait(), kInvalid, "parameter region is empty");
  Fails(client.Assign(table, f.region, {.first = 1}).Wait(), kInvalid,
        "does not start and end at chunks");
  Fails(client.Assign(table, f.region, {.region_offset = f.region.size() - 400}).Wait(), kInvalid,
        "assignment: the region is too small");
  Fails(client.Assign(half, f.region, {.region_offset = 1}).Wait(), kInvalid, "bf16 parameter");
  Ticket first = client.Assign(table, f.region, {.first = 0, .count = 1024});
  Fails(client.Push(table, f.region).Wait(), kInvalid, "was pushed in step 0 already");
  Fails(client.Assign(table, f.region).Wait(), kInvalid, "a step takes one contribution");
  f.region.floats()[0] = std::numeric_limits<float>::quiet_NaN();
  Fails(client.Assign(half, f.region, {.first = 0, .count = half.chunk_elements()}).Wait(),
        kInvalid, "a parameter is NaN or Inf; this chunk is not assigned");
  const Table rows = f.MakeRows(v1::CONSISTENCY_ASYNC);
  Fails(client.Assign(rows, f.region).Wait(), kInvalid, "is an embedding table");
  Fails(client.AssignRows(table, {1}, f.region).Wait(), kInvalid, "is a dense table");
  Fails(client.AssignRows(rows, {1}, Region()).Wait(), kInvalid, "row region is empty");
  Fails(client.AssignRows(rows, {1}, f.region, {.region_offset = 2}).Wait(), kInvalid,
        "multiples of 4");
  Fails(client.AssignRows(rows, {1}, f.region).Wait(), kInvalid,
        "a parameter is NaN or Inf; the rows of partition");
  CHECK(client.AssignRows(rows, {}, f.region).Wait().ok());
  ClientOptions options;
  options.cluster = f.cluster.address();
  options.observer = true;
  const auto observer = *Client::Connect(options);
  const Table seen = *observer->OpenTable("w");
  const Region other = *observer->AllocateRegion(seen.bytes());
  Fails(observer->Assign(seen, other).Wait(), absl::StatusCode::kFailedPrecondition,
        "an observer only pulls");
  Fails(client.Assign(seen, f.region).Wait(), kInvalid, "was opened by another client");
  CHECK(client.DropTable("half").ok());
  Fails(client.Assign(half, f.region).Wait(), absl::StatusCode::kNotFound, "dropped");
  client.Close();
  Fails(client.Assign(table, f.region).Wait(), absl::StatusCode::kFailedPrecondition, "closed");
}

TEST_CASE("assign rows: missing rows are created, and the last value of a repeated key is used") {
  Assigner f;
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const Table table = f.MakeRows(consistency);
  const std::vector<uint64_t> keys = {5, UINT64_MAX, 5, 0};
  for (int i = 0; i < 16; ++i) f.region.floats()[i] = static_cast<float>(i);
  Ticket assign = f.client->AssignRows(table, keys, f.region);
  Ticket end = f.client->EndStep(table);
  CHECK(assign.Wait().ok());
  CHECK(end.Wait().ok());
  CHECK(f.client->Lookup(table, keys, f.region, {.region_offset = 64}).Wait().ok());
  const float* const rows = f.region.floats() + 16;
  CHECK(std::vector<float>(rows, rows + 16) ==
        std::vector<float>{8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
}

TEST_CASE("assign: acknowledged values survive a failover") {
  Assigner f({.servers = 3, .replicas = 2});
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  const Table table = f.Make("w", consistency, 100'000);
  REQUIRE(f.cluster.WaitReplicated());
  const std::vector<float> expected(100'000, 3.0f);
  std::fill_n(f.region.floats(), 100'000, 3.0f);
  Ticket assign = f.client->Assign(table, f.region);
  Ticket end = f.client->EndStep(table);
  f.cluster.KillServer(0);
  CHECK(assign.Wait().ok());
  CHECK(end.Wait().ok());
  CHECK(f.Pull(table) == expected);
}

Table MakeAdam(Assigner* f, v1::Consistency consistency, uint64_t elements,
               v1::DType dtype = v1::DTYPE_F32) {
  v1::TableSpec spec;
  spec.set_name("adam");
  spec.add_shape(elements);
  spec.set_dtype(dtype);
  spec.set_gradient_dtype(dtype == v1::DTYPE_BF16 ? v1::DTYPE_BF16 : v1::DTYPE_F32);
  spec.set_consistency(consistency);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->set_rate(1);
  return *f->client->CreateTable(spec);
}

TEST_CASE("state: acknowledged state survives a failover, and is that of one step") {
  Assigner f({.servers = 3, .replicas = 2});
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  const Table table = MakeAdam(&f, consistency, 100'000);
  CHECK(table.state_arrays() == std::vector<std::string>{"exp_avg", "exp_avg_sq"});
  REQUIRE(f.cluster.WaitReplicated());
  std::fill_n(f.region.floats(), 100'000, 3.0f);
  Ticket assign = f.client->AssignState(table, "exp_avg_sq", 1'000'000'000'000, f.region);
  Ticket end = f.client->EndStep(table);
  f.cluster.KillServer(0);
  CHECK(assign.Wait().ok());
  CHECK(end.Wait().ok());
  auto versions = std::make_shared<StateVersions>();
  const std::vector<float> expected[] = {std::vector<float>(100'000, 0.0f),
                                         std::vector<float>(100'000, 3.0f)};
  for (size_t i = 0; i < 2; ++i) {
    const absl::Status pulled =
        f.client->PullState(table, table.state_arrays()[i], f.region, {}, {.versions = versions})
            .Wait();
    INFO(pulled);
    REQUIRE(pulled.ok());
    CHECK(std::equal(expected[i].begin(), expected[i].end(), f.region.floats()));
    CHECK(versions->least_version == 1);
    CHECK(versions->greatest_version == 1);
    CHECK(versions->least_applies == 1'000'000'000'000);
    CHECK(versions->greatest_applies == 1'000'000'000'000);
  }
  *versions = {};
  REQUIRE(f.client->Pull(table, f.region, {}, {.versions = versions}).Wait().ok());
  CHECK(versions->least_version == 1);
  CHECK(versions->least_applies == 1'000'000'000'000);
  CHECK(versions->greatest_applies == 1'000'000'000'000);
}

// The state of a chunk is twice as large as its parameters and gradients.
TEST_CASE("state of 16-bit tables, where records do not refer to the worker's memory, too") {
  Assigner f({.servers = 2});
  const Table table = MakeAdam(&f, v1::CONSISTENCY_SYNC, 200'000, v1::DTYPE_BF16);
  REQUIRE(table.state_arrays().back() == "master");
  for (const std::string& array : table.state_arrays()) {
    std::fill_n(f.region.floats(), 200'000, 0.3f);
    Ticket assign = f.client->AssignState(table, array, 1, f.region);
    CHECK(f.client->EndStep(table).Wait().ok());
    CHECK(assign.Wait().ok());
    std::fill_n(f.region.floats(), 200'000, 0.0f);
    CHECK(f.client->PullState(table, array, f.region).Wait().ok());
    CHECK(std::count(f.region.floats(), f.region.floats() + 200'000, 0.3f) == 200'000);
  }
}

TEST_CASE("state: calls that are refused name the arrays that there are") {
  Assigner f;
  const Table table = MakeAdam(&f, v1::CONSISTENCY_ASYNC, 1000);
  const Table plain = f.Make("plain", v1::CONSISTENCY_ASYNC, 1000);
  const Table items = f.MakeRows(v1::CONSISTENCY_ASYNC);
  const auto pull = [&](const Table& of, const char* array, const Range& range = {}) {
    return f.client->PullState(of, array, f.region, range).Wait();
  };
  const auto assign = [&](const Table& of, const char* array, const Range& range = {}) {
    return f.client->AssignState(of, array, 1, f.region, range).Wait();
  };
  Fails(pull(table, "momentum_buffer"), kInvalid,
        "table 'adam' of optimizer \"adam\" has no state array 'momentum_buffer'; it has: exp_avg, "
        "exp_avg_sq");
  Fails(assign(table, ""), kInvalid, "no state array ''");
  Fails(pull(plain, "exp_avg"), kInvalid, "it has none");
  Fails(pull(items, "exp_avg"), kInvalid, "'items' is an embedding table");
  Fails(assign(items, "exp_avg"), kInvalid, "'items' is an embedding table");
  Fails(assign(table, "exp_avg", {.first = 1}), kInvalid, "does not start and end at chunks");
  Fails(pull(table, "exp_avg", {.region_offset = f.region.size() - 4}), kInvalid,
        "the region is too small: 1000 elements of table 'adam' need 4000 bytes");
  Fails(pull(table, "exp_avg", {.region_offset = 2}), kInvalid, "the bytes of one f32 of state");
}

TEST_CASE("state in C: versions of a pull, and missing arguments") {
  Fixture f;
  verbena_table_spec adam = Spec("dense");
  adam.optimizer = "adam";
  const Handle<verbena_table> table = Create(f.client.get(), adam);
  CHECK(std::string(verbena_table_state_array(table.get(), 1)) == "exp_avg_sq");
  CHECK(verbena_table_state_array(table.get(), 2) == nullptr);
  CHECK(verbena_table_state_array(nullptr, 0) == nullptr);
  const Handle<verbena_region> state = Allocate(f.client.get(), kElements * 4);
  std::fill_n(Floats(state), kElements, 9.0f);
  verbena_ticket* raw = nullptr;
  Good(verbena_assign_state(f.client.get(), table.get(), "exp_avg", 5, state.get(), nullptr,
                            kDefault, nullptr));
  Good(verbena_end_step(f.client.get(), table.get(), kDefault, &raw));
  const Handle<verbena_ticket> end(raw);
  Good(verbena_ticket_wait(raw, kDefault));
  std::fill_n(Floats(state), kElements, 0.0f);
  Good(verbena_pull_state(f.client.get(), table.get(), "exp_avg", state.get(), nullptr,
                          VERBENA_MIN_VERSION_DEFAULT, kDefault, &raw));
  const Handle<verbena_ticket> pull(raw);
  Good(verbena_ticket_wait(raw, kDefault));
  CHECK(std::count(Floats(state), Floats(state) + kElements, 9.0f) == kElements);
  verbena_state_versions versions = {};
  versions.struct_size = sizeof(versions);
  Good(verbena_ticket_state_versions(pull.get(), &versions));
  CHECK(versions.least_applies == 5);
  CHECK(versions.greatest_version == 1);
  const auto refused = [](verbena_status status, const std::string& words) {
    CHECK(status == VERBENA_INVALID_ARGUMENT);
    CHECK_THAT(std::string(verbena_last_error()), Contains(words));
  };
  refused(verbena_ticket_state_versions(end.get(), &versions), "of another call");
  refused(verbena_ticket_state_versions(pull.get(), nullptr), "versions is NULL");
  refused(verbena_pull_state(f.client.get(), table.get(), nullptr, state.get(), nullptr, 0,
                             kDefault, nullptr),
          "array is NULL");
  refused(verbena_assign_state(f.client.get(), table.get(), "exp_avg", 5, nullptr, nullptr,
                               kDefault, nullptr),
          "state is NULL");
}

TEST_CASE("assign in C: chunks, rows, and missing arguments") {
  Fixture f;
  const Handle<verbena_table> items = Create(f.client.get(), EmbeddingSpec("items"));
  const Handle<verbena_region> rows = Allocate(f.client.get(), 2 * kDim * 4);
  const uint64_t keys[] = {3, 4};
  std::fill_n(Floats(rows), 2 * kDim, 0.25f);
  verbena_ticket* raw = nullptr;
  Good(verbena_assign_rows(f.client.get(), items.get(), keys, 2, rows.get(), 0, kDefault, &raw));
  const Handle<verbena_ticket> assign(raw);
  Good(verbena_end_step(f.client.get(), items.get(), kDefault, &raw));
  const Handle<verbena_ticket> end(raw);
  Good(verbena_ticket_wait(assign.get(), kDefault));
  Good(verbena_ticket_wait(end.get(), kDefault));
  std::fill_n(Floats(rows), 2 * kDim, 0.0f);
  Good(verbena_lookup(f.client.get(), items.get(), keys, 2, rows.get(), 0,
                      VERBENA_MIN_VERSION_DEFAULT, kDefault, &raw));
  const Handle<verbena_ticket> lookup(raw);
  Good(verbena_ticket_wait(raw, kDefault));
  CHECK(std::count(Floats(rows), Floats(rows) + 2 * kDim, 0.25f) == 2 * kDim);
  const Handle<verbena_table> table = Create(f.client.get(), Spec("dense"));
  const Handle<verbena_region> weights = Allocate(f.client.get(), kElements * 4);
  std::fill_n(Floats(weights), kElements, 9.0f);
  Good(verbena_assign(f.client.get(), table.get(), weights.get(), nullptr, kDefault, nullptr));
  Good(verbena_end_step(f.client.get(), table.get(), kDefault, &raw));
  const Handle<verbena_ticket> step(raw);
  Good(verbena_ticket_wait(raw, kDefault));
  std::fill_n(Floats(weights), kElements, 0.0f);
  Good(verbena_pull(f.client.get(), table.get(), weights.get(), nullptr,
                    VERBENA_MIN_VERSION_DEFAULT, kDefault, &raw));
  const Handle<verbena_ticket> pull(raw);
  Good(verbena_ticket_wait(raw, kDefault));
  CHECK(std::count(Floats(weights), Floats(weights) + kElements, 9.0f) == kElements);
  const auto assigned = [&](verbena_client* client, const verbena_table* t,
                            const verbena_region* r) {
    return verbena_assign(client, t, r, nullptr, kDefault, nullptr);
  };
  ExpectError(assigned(nullptr, table.get(), weights.get()), VERBENA_INVALID_ARGUMENT,
              {"verbena_assign", "client"});
  ExpectError(assigned(f.client.get(), nullptr, weights.get()), VERBENA_INVALID_ARGUMENT,
              {"table"});
  ExpectError(assigned(f.client.get(), table.get(), nullptr), VERBENA_INVALID_ARGUMENT,
              {"parameters"});
  ExpectError(verbena_assign_rows(f.client.get(), items.get(), nullptr, 2, rows.get(), 0, kDefault,
                                  nullptr),
              VERBENA_INVALID_ARGUMENT, {"verbena_assign_rows", "keys"});
  Good(verbena_assign_rows(f.client.get(), items.get(), nullptr, 0, rows.get(), 0, kDefault,
                           nullptr));
  ExpectError(
      verbena_assign_rows(f.client.get(), items.get(), keys, 2, nullptr, 0, kDefault, nullptr),
      VERBENA_INVALID_ARGUMENT, {"rows"});
}

}  // namespace assign_api_test
}  // namespace verbena::test
