// The C API against real daemons: each error that verbena.h documents.
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/c_api_support.h"

namespace verbena::test {
namespace {

TEST_CASE("the error of an invalid table specification names the member") {
  Fixture f;
  const auto refuse = [&](const verbena_table_spec& spec, const std::vector<std::string>& words) {
    auto* raw = reinterpret_cast<verbena_table*>(&f);
    ExpectError(verbena_table_create(f.client.get(), &spec, kDefault, &raw),
                VERBENA_INVALID_ARGUMENT, words);
    CHECK(raw == nullptr);
  };
  verbena_table_spec spec = Spec("bad name");
  refuse(spec, {"bad name", "[A-Za-z0-9_./-]"});
  spec = Spec(nullptr);
  refuse(spec, {"spec->name is NULL"});
  spec = Spec("t");
  spec.shape = nullptr;
  refuse(spec, {"spec->shape is NULL"});
  spec = Spec("t");
  spec.dimensions = 0;
  refuse(spec, {"shape", "1..8"});
  spec.dimensions = SIZE_MAX;
  refuse(spec, {"dimensions is", "at most 8"});
  const uint64_t zero[] = {0};
  spec = Spec("t");
  spec.shape = zero;
  spec.dimensions = 1;
  refuse(spec, {"shape", "[0]"});
  for (int32_t verbena_table_spec::*field :
       {&verbena_table_spec::dtype, &verbena_table_spec::consistency,
        &verbena_table_spec::reduction, &verbena_table_spec::non_finite,
        &verbena_table_spec::initializer}) {
    spec = Spec("t");
    spec.*field = 77;
    refuse(spec, {"77", "allowed"});
    spec.*field = -1;
    refuse(spec, {"-1", "allowed"});
  }
  spec = Spec("t");
  spec.chunk_bytes = 100;
  refuse(spec, {"chunk_bytes", "100"});
  spec = Spec("t");
  spec.optimizer = "sdg";
  refuse(spec, {"sdg", "sgd"});
  spec = Spec("t");
  spec.rate = -1;
  refuse(spec, {"rate", "-1"});
  spec = Spec("t");
  spec.parameter_count = 1;
  refuse(spec, {"spec->parameters is NULL"});
  const verbena_parameter unnamed[] = {{nullptr, 1}};
  spec.parameters = unnamed;
  refuse(spec, {"parameters[0].name is NULL"});
  const verbena_parameter twice[] = {{"beta1", 0.5}, {"beta1", 0.6}};
  spec.parameters = twice;
  spec.parameter_count = 2;
  refuse(spec, {"spec->parameters[1].name is 'beta1' again"});
  spec = EmbeddingSpec("t");
  spec.dim = 1025;
  refuse(spec, {"dim is 1025", "1..1024"});
  spec.dim = 100;
  spec.chunk_bytes = 256;
  refuse(spec, {"chunk_bytes is 256", "dim 100", "400 bytes"});
  spec = Spec("t");
  spec.dim = 4;
  refuse(spec, {"shape", "dim", "4"});
  spec = EmbeddingSpec("t");
  spec.dimensions = 1;
  refuse(spec, {"spec->shape is NULL"});
  spec = EmbeddingSpec("t");
  spec.admission = VERBENA_ADMISSION_MIN_COUNT;
  spec.admission_min_count = 256;
  refuse(spec, {"admission.min_count is 256", "2..255"});
  spec.admission_min_count = 2;
  spec.admission_seed = 1;
  refuse(spec, {"admission.seed is 1"});
  spec = EmbeddingSpec("t");
  spec.stochastic_rounding = 1;
  refuse(spec, {"stochastic_rounding is true", "row_dtype"});
  spec.row_dtype = 9;
  refuse(spec, {"row_dtype is 9", "2 (bf16)"});
  spec = EmbeddingSpec("t");
  spec.eviction = VERBENA_EVICTION_TTL_STEPS;
  refuse(spec, {"eviction.ttl is 0", "1..1073741824"});
  spec.eviction_ttl = 5;
  spec.eviction_max_bytes = 6;
  refuse(spec, {"eviction.max_bytes is 6"});
  spec.eviction = VERBENA_EVICTION_LFU;
  spec.eviction_ttl = 0;
  spec.eviction_max_rows = 7;
  refuse(spec, {"eviction.max_bytes is 6", "max_rows"});
  spec = Spec("t");
  spec.eviction = VERBENA_EVICTION_LRU;
  spec.eviction_max_rows = 7;
  refuse(spec, {"eviction.kind is 4", "dense"});
  spec = Spec("t");
  spec.hot_bytes = 1 << 20;
  refuse(spec, {"cold_tier.hot_bytes is 1048576", "dense"});
  spec = EmbeddingSpec("t");
  spec.hot_bytes = 1000;
  refuse(spec, {"cold_tier.hot_bytes is 1000", "65536 and more"});
  spec = Spec("t");
  spec.admission = VERBENA_ADMISSION_PROBABILITY;
  spec.admission_probability = 0.5;
  refuse(spec, {"admission.kind is 3", "dense"});
  spec = Spec("weights");
  spec.rate = 2;
  verbena_table* raw = nullptr;
  ExpectError(verbena_table_create(f.client.get(), &spec, kDefault, &raw), VERBENA_ALREADY_EXISTS,
              {"weights", "rate", "1", "2"});
}

TEST_CASE("NULL is refused by name, in every argument") {
  Fixture f;
  verbena_client* client = f.client.get();
  const verbena_table* table = f.table.get();
  const verbena_region* region = f.gradient.get();
  const auto null = [](verbena_status status, const char* argument) {
    ExpectError(status, VERBENA_INVALID_ARGUMENT, {std::string(": ") + argument + " is NULL"});
  };
  const verbena_connect_options options = Options(f.cluster.address().c_str());
  const verbena_table_spec spec = Spec("t");
  verbena_client* made_client = nullptr;
  verbena_table* made_table = nullptr;
  verbena_region* made = nullptr;
  verbena_ticket* ticket = nullptr;
  null(verbena_connect(nullptr, &made_client), "options");
  null(verbena_connect(&options, nullptr), "client");
  null(verbena_close(nullptr), "client");
  verbena_client_info info = {sizeof(info), 0, 0, 0};
  null(verbena_client_get_info(nullptr, &info), "client");
  null(verbena_client_get_info(client, nullptr), "info");
  verbena_statistics statistics = {};
  null(verbena_client_get_statistics(nullptr, &statistics), "client");
  null(verbena_client_get_statistics(client, nullptr), "statistics");
  null(verbena_client_list_lanes(
           nullptr, [](const verbena_lane*, void*) {}, nullptr),
       "client");
  null(verbena_client_list_lanes(client, nullptr, nullptr), "show");
  null(verbena_client_list_gpu_paths(
           nullptr, [](const verbena_gpu_path*, void*) {}, nullptr),
       "client");
  null(verbena_client_list_gpu_paths(client, nullptr, nullptr), "show");
  null(verbena_client_list_missing_transports(
           nullptr, [](const char*, void*) {}, nullptr),
       "client");
  null(verbena_client_list_missing_transports(client, nullptr, nullptr), "show");
  null(verbena_table_create(nullptr, &spec, kDefault, &made_table), "client");
  null(verbena_table_create(client, nullptr, kDefault, &made_table), "spec");
  null(verbena_table_create(client, &spec, kDefault, nullptr), "table");
  const verbena_setting setting = {"name", "t"}, nameless = {nullptr, "t"},
                        empty = {"name", nullptr};
  null(verbena_table_create_with(nullptr, &setting, 1, kDefault, &made_table), "client");
  null(verbena_table_create_with(client, nullptr, 1, kDefault, &made_table), "settings");
  null(verbena_table_create_with(client, &setting, 1, kDefault, nullptr), "table");
  null(verbena_table_create_with(client, &nameless, 1, kDefault, &made_table), "settings[0].name");
  null(verbena_table_create_with(client, &empty, 1, kDefault, &made_table), "settings[0].value");
  null(verbena_table_list_options(nullptr, nullptr), "show");
  null(verbena_table_open(nullptr, "t", kDefault, &made_table), "client");
  null(verbena_table_open(client, nullptr, kDefault, &made_table), "name");
  null(verbena_table_open(client, "t", kDefault, nullptr), "table");
  null(verbena_table_drop(nullptr, "t", kDefault), "client");
  null(verbena_table_drop(client, nullptr, kDefault), "name");
  null(verbena_table_list(
           nullptr, kDefault, [](const verbena_table_info*, void*) {}, nullptr),
       "client");
  null(verbena_table_list(client, kDefault, nullptr, nullptr), "show");
  verbena_table_info table_info = {};
  null(verbena_table_get_info(nullptr, &table_info), "table");
  null(verbena_table_get_info(table, nullptr), "info");
  float memory[4] = {};
  null(verbena_region_allocate(nullptr, 4, VERBENA_MEMORY_HOST, 0, &made), "client");
  null(verbena_region_allocate(client, 4, VERBENA_MEMORY_HOST, 0, nullptr), "region");
  null(verbena_region_register(nullptr, memory, 4, VERBENA_MEMORY_HOST, 0, &made), "client");
  null(verbena_region_register(client, nullptr, 4, VERBENA_MEMORY_HOST, 0, &made), "data");
  null(verbena_region_register(client, memory, 4, VERBENA_MEMORY_HOST, 0, nullptr), "region");
  null(verbena_push(nullptr, table, region, nullptr, kDefault, &ticket), "client");
  null(verbena_push(client, nullptr, region, nullptr, kDefault, &ticket), "table");
  null(verbena_push(client, table, nullptr, nullptr, kDefault, &ticket), "gradient");
  null(verbena_pull(nullptr, table, region, nullptr, 0, kDefault, &ticket), "client");
  null(verbena_pull(client, nullptr, region, nullptr, 0, kDefault, &ticket), "table");
  null(verbena_pull(client, table, nullptr, nullptr, 0, kDefault, &ticket), "destination");
  null(verbena_push_pull(nullptr, table, region, region, nullptr, kDefault, &ticket), "client");
  null(verbena_push_pull(client, nullptr, region, region, nullptr, kDefault, &ticket), "table");
  null(verbena_push_pull(client, table, nullptr, region, nullptr, kDefault, &ticket), "gradient");
  null(verbena_push_pull(client, table, region, nullptr, nullptr, kDefault, &ticket),
       "destination");
  null(verbena_push_pull_to(client, table, region, nullptr, nullptr, 0, kDefault, &ticket),
       "destination");
  null(verbena_table_set_priority(nullptr, table, 1), "client");
  null(verbena_table_set_priority(client, nullptr, 1), "table");
  null(verbena_end_step(nullptr, table, kDefault, &ticket), "client");
  null(verbena_end_step(client, nullptr, kDefault, &ticket), "table");
  const uint64_t key = 0;
  null(verbena_push_rows(nullptr, table, &key, 1, region, 0, kDefault, &ticket), "client");
  null(verbena_push_rows(client, nullptr, &key, 1, region, 0, kDefault, &ticket), "table");
  null(verbena_push_rows(client, table, nullptr, 1, region, 0, kDefault, &ticket), "keys");
  null(verbena_push_rows(client, table, &key, 1, nullptr, 0, kDefault, &ticket), "gradients");
  null(verbena_lookup(nullptr, table, &key, 1, region, 0, 0, kDefault, &ticket), "client");
  null(verbena_lookup(client, nullptr, &key, 1, region, 0, 0, kDefault, &ticket), "table");
  null(verbena_lookup(client, table, nullptr, 1, region, 0, 0, kDefault, &ticket), "keys");
  null(verbena_lookup(client, table, &key, 1, nullptr, 0, 0, kDefault, &ticket), "rows");
  const uint64_t start = 0;
  const auto bags = [&](verbena_client* c, const verbena_table* t, const uint64_t* keys,
                        const uint64_t* offsets, const verbena_region* sums) {
    return verbena_lookup_bags(c, t, keys, 1, offsets, 1, nullptr, VERBENA_BAG_SUM, sums, 0, 0,
                               kDefault, &ticket);
  };
  null(bags(nullptr, table, &key, &start, region), "client");
  null(bags(client, nullptr, &key, &start, region), "table");
  null(bags(client, table, nullptr, &start, region), "keys");
  null(bags(client, table, &key, nullptr, region), "offsets");
  null(bags(client, table, &key, &start, nullptr), "sums");
  null(verbena_prefetch(nullptr, table, &key, 1, kDefault, &ticket), "client");
  null(verbena_prefetch(client, nullptr, &key, 1, kDefault, &ticket), "table");
  null(verbena_prefetch(client, table, nullptr, 1, kDefault, &ticket), "keys");
  const auto show = [](const uint64_t*, const float*, size_t, void*) { return 0; };
  null(verbena_scan(nullptr, table, kDefault, show, nullptr), "client");
  null(verbena_scan(client, nullptr, kDefault, show, nullptr), "table");
  null(verbena_scan(client, table, kDefault, nullptr, nullptr), "show");
  null(verbena_ticket_wait(nullptr, kDefault), "ticket");
  null(verbena_ticket_status(nullptr), "ticket");
  null(verbena_ticket_cancel(nullptr), "ticket");
  null(verbena_ticket_on_done(
           nullptr, [](verbena_status, const char*, void*) {}, nullptr),
       "ticket");
  // Functions that accept NULL.
  CHECK(verbena_region_data(nullptr) == nullptr);
  CHECK(verbena_region_size(nullptr) == 0);
  CHECK(verbena_ticket_done(nullptr) == 1);
  CHECK(verbena_ticket_buffer_released(nullptr) == 1);
  verbena_client_free(nullptr);
  verbena_table_free(nullptr);
  verbena_region_free(nullptr);
  verbena_ticket_free(nullptr);
  verbena_connect_options_init(nullptr, sizeof(verbena_connect_options));
  verbena_table_spec_init(nullptr, sizeof(verbena_table_spec));
  // A ticket that nobody wants.
  Good(verbena_push(client, table, region, nullptr, kDefault, nullptr));
  Good(verbena_end_step(client, table, kDefault, nullptr));
  Handle<verbena_ticket> pull;
  Good(f.PullOf(VERBENA_MIN_VERSION_DEFAULT, kDefault, &pull));
  null(verbena_ticket_on_done(pull.get(), nullptr, nullptr), "done");
  Good(verbena_ticket_wait(pull.get(), kDefault));
}

TEST_CASE("connect errors name the wrong option, or the address that does not answer") {
  const ProcessCluster cluster({.servers = 1, .shards = 1});
  const auto refuse = [](const verbena_connect_options& options, verbena_status status,
                         const std::vector<std::string>& words) {
    verbena_client* client = nullptr;
    ExpectError(verbena_connect(&options, &client), status, words);
    CHECK(client == nullptr);
  };
  verbena_connect_options options = Options("nowhere");
  refuse(options, VERBENA_INVALID_ARGUMENT, {"cluster", "nowhere", "host:port"});
  options.cluster = nullptr;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"cluster", "host:port"});
  options = Options(cluster.address().c_str());
  options.transport = "pigeon";
  refuse(options, VERBENA_INVALID_ARGUMENT, {"pigeon", "shm"});
  options = Options(cluster.address().c_str());
  options.progress = 2;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"progress is 2"});
  options = Options(cluster.address().c_str());
  options.rdma_gpu_direct = 3;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"rdma_gpu_direct is 3", "2 (required)"});
  options = Options(cluster.address().c_str());
  options.timeout_ms = 0;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"timeout"});
  options = Options(cluster.address().c_str());
  options.expected_workers = 0;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"expected_workers"});
  options = Options(cluster.address().c_str());
  options.rank = -2;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"rank", "-2"});
  options = Options(cluster.address().c_str());
  options.job = "";
  refuse(options, VERBENA_INVALID_ARGUMENT, {"job"});
  options = Options(cluster.address().c_str());
  options.transport = "verbs";
  options.rdma_retries = 9;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"retries", "9"});
  options = Options("127.0.0.1:1");
  options.timeout_ms = 500;
  refuse(options, VERBENA_UNAVAILABLE, {"127.0.0.1:1"});

  options = Options(cluster.address().c_str());
  options.expected_workers = 2;
  options.rank = 1;
  const Handle<verbena_client> first = Connect(options);
  refuse(options, VERBENA_ALREADY_EXISTS, {"rank 1"});
  options.rank = 0;
  options.expected_workers = 3;
  refuse(options, VERBENA_INVALID_ARGUMENT, {"expected_workers is 3", "2"});
}

TEST_CASE("invalid pushes and pulls do not start") {
  Fixture f;
  verbena_ticket* ticket = nullptr;
  const auto refuse = [&](const verbena_region* region, const verbena_range* range,
                          const std::vector<std::string>& words) {
    ExpectError(verbena_push(f.client.get(), f.table.get(), region, range, kDefault, &ticket),
                VERBENA_INVALID_ARGUMENT, words);
    CHECK(ticket == nullptr);
    ExpectError(verbena_pull(f.client.get(), f.table.get(), region, range, 0, kDefault, &ticket),
                VERBENA_INVALID_ARGUMENT, words);
    ExpectError(
        verbena_push_pull(f.client.get(), f.table.get(), region, region, range, kDefault, &ticket),
        VERBENA_INVALID_ARGUMENT, words);
  };
  const Handle<verbena_region> small = Allocate(f.client.get(), 64);
  refuse(small.get(), nullptr, {"12000", "64"});
  verbena_range range = {5, 1024, 0};
  refuse(f.gradient.get(), &range, {"5", "1024"});
  range = {0, 0, 0};
  refuse(f.gradient.get(), &range, {"0 elements"});
  range = {4096, 1, 0};
  refuse(f.gradient.get(), &range, {"4096", "3000"});
  range = {0, 1024, 2};
  refuse(f.gradient.get(), &range, {"region_offset is 2"});
  range = {0, 1024, UINT64_MAX - 3};
  refuse(f.gradient.get(), &range, {"too small"});
  ExpectError(verbena_push(f.client.get(), f.table.get(), f.gradient.get(), nullptr, -2, &ticket),
              VERBENA_INVALID_ARGUMENT, {"timeout_ms is -2"});
  ExpectError(verbena_table_open(f.client.get(), "weights", -9, nullptr), VERBENA_INVALID_ARGUMENT);

  // Handles of another client.
  verbena_connect_options options = Options(f.cluster.address().c_str());
  options.job = "other";
  const Handle<verbena_client> other = Connect(options);
  ExpectError(
      verbena_push(other.get(), f.table.get(), f.gradient.get(), nullptr, kDefault, &ticket),
      VERBENA_INVALID_ARGUMENT, {"another client"});
  ExpectError(verbena_end_step(other.get(), f.table.get(), kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"another client"});
  const Handle<verbena_region> theirs = Allocate(other.get(), kElements * 4);
  refuse(theirs.get(), nullptr, {"another client"});

  // Handles outlive their client; with a later client, which may have its address, they are
  // refused.
  verbena_table* stale = nullptr;
  {
    options.job = "gone";
    options.observer = 1;
    const Handle<verbena_client> gone = Connect(options);
    Good(verbena_table_open(gone.get(), "weights", kDefault, &stale));
  }
  const Handle<verbena_table> table(stale);
  options.job = "later";
  options.observer = 0;
  const Handle<verbena_client> later = Connect(options);
  const Handle<verbena_region> own = Allocate(later.get(), kElements * 4);
  ExpectError(verbena_push(later.get(), stale, own.get(), nullptr, kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"another client, or by one that was freed"});
  ExpectError(verbena_pull(later.get(), stale, own.get(), nullptr, VERBENA_MIN_VERSION_DEFAULT,
                           kDefault, &ticket),
              VERBENA_INVALID_ARGUMENT, {"another client"});

  // One contribution a step.
  Good(verbena_push(f.client.get(), f.table.get(), f.gradient.get(), nullptr, kDefault, nullptr));
  ExpectError(
      verbena_push(f.client.get(), f.table.get(), f.gradient.get(), nullptr, kDefault, &ticket),
      VERBENA_INVALID_ARGUMENT, {"step 0 already"});
}

TEST_CASE("the deadline error of a step names the number of missing workers") {
  const ProcessCluster cluster({.servers = 1, .shards = 1});
  verbena_connect_options options = Options(cluster.address().c_str());
  options.expected_workers = 2;
  options.progress = VERBENA_PROGRESS_CALLER;
  const Handle<verbena_client> client = Connect(options);
  const Handle<verbena_table> table = Create(client.get(), Spec("weights"));
  const Handle<verbena_region> region = Allocate(client.get(), kElements * 4);
  verbena_ticket* ticket = nullptr;
  Good(verbena_push_pull(client.get(), table.get(), region.get(), region.get(), nullptr, 300,
                         &ticket));
  ExpectError(verbena_ticket_wait(ticket, kDefault), VERBENA_DEADLINE_EXCEEDED, {"1 of 2 workers"});
  verbena_ticket_free(ticket);
}

TEST_CASE("too many steps ahead are refused") {
  const ProcessCluster cluster({.servers = 1, .shards = 1});
  verbena_connect_options options = Options(cluster.address().c_str());
  options.expected_workers = 2;
  const Handle<verbena_client> client = Connect(options);
  const Handle<verbena_table> table = Create(client.get(), Spec("weights"));
  for (int i = 0; i < 64; ++i) {
    Good(verbena_end_step(client.get(), table.get(), 60'000, nullptr));
  }
  ExpectError(verbena_end_step(client.get(), table.get(), 60'000, nullptr),
              VERBENA_RESOURCE_EXHAUSTED, {"64 steps", "weights"});
}

TEST_CASE("closing a client ends waiting calls and refuses new ones; its handles stay valid") {
  Fixture f;
  Handle<verbena_ticket> waiting;
  Good(f.PullOf(5, 60'000, &waiting));
  verbena_status ended = VERBENA_OK;
  std::thread other([&] { ended = verbena_ticket_wait(waiting.get(), kDefault); });
  ExpectError(verbena_ticket_wait(waiting.get(), 20), VERBENA_DEADLINE_EXCEEDED);
  Good(verbena_close(f.client.get()));
  other.join();
  CHECK(ended == VERBENA_CANCELLED);
  CHECK(verbena_ticket_status(waiting.get()) == VERBENA_CANCELLED);
  CHECK(verbena_ticket_buffer_released(waiting.get()) == 1);
  Good(verbena_close(f.client.get()));  // again: nothing to do

  const auto closed = [](verbena_status status) {
    ExpectError(status, VERBENA_FAILED_PRECONDITION, {"the client is closed"});
  };
  Handle<verbena_ticket> ticket;
  closed(f.PullOf(0, kDefault, &ticket));
  CHECK(ticket == nullptr);
  verbena_client* client = f.client.get();
  closed(verbena_push(client, f.table.get(), f.gradient.get(), nullptr, kDefault, nullptr));
  closed(verbena_push_pull(client, f.table.get(), f.gradient.get(), f.gradient.get(), nullptr,
                           kDefault, nullptr));
  closed(verbena_end_step(client, f.table.get(), kDefault, nullptr));
  const uint64_t key = 0;
  closed(verbena_push_rows(client, f.table.get(), &key, 1, f.gradient.get(), 0, kDefault, nullptr));
  closed(verbena_lookup(client, f.table.get(), &key, 1, f.gradient.get(), 0, 0, kDefault, nullptr));
  closed(verbena_lookup_bags(client, f.table.get(), &key, 1, &key, 1, nullptr, VERBENA_BAG_MEAN,
                             f.gradient.get(), 0, 0, kDefault, nullptr));
  closed(verbena_prefetch(client, f.table.get(), &key, 1, kDefault, nullptr));
  closed(verbena_scan(
      client, f.table.get(), kDefault,
      [](const uint64_t*, const float*, size_t, void*) { return 0; }, nullptr));
  const verbena_table_spec spec = Spec("t");
  verbena_table* table = nullptr;
  closed(verbena_table_create(client, &spec, kDefault, &table));
  const verbena_setting settings[] = {{"name", "t"}, {"dim", "3"}};
  closed(verbena_table_create_with(client, settings, 2, kDefault, &table));
  closed(verbena_table_open(client, "weights", kDefault, &table));
  closed(verbena_table_drop(client, "weights", kDefault));
  closed(verbena_table_list(
      client, kDefault, [](const verbena_table_info*, void*) {}, nullptr));
  verbena_client_info info = {sizeof(info), 1, 1, 1};
  Good(verbena_client_get_info(client, &info));
  CHECK(info.incarnation == 0);
  CHECK(info.rank == -1);
  CHECK(info.live_workers == 0);
  Good(verbena_client_list_lanes(
      client, [](const verbena_lane*, void*) { CHECK(false); }, nullptr));

  f.client.reset();
  verbena_table_info table_info = {};
  table_info.struct_size = sizeof(table_info);
  Good(verbena_table_get_info(f.table.get(), &table_info));
  CHECK(std::string(table_info.name) == "weights");
  Floats(f.gradient)[0] = 1;
}

TEST_CASE("calls to a killed server end UNAVAILABLE, and DATA_LOSS after its restart") {
  Fixture f;
  Handle<verbena_ticket> pull;
  Good(f.PullOf(0, kDefault, &pull));
  Good(verbena_ticket_wait(pull.get(), kDefault));
  f.cluster.server(0).Signal(9);
  f.cluster.server(0).Wait();
  Good(f.PullOf(0, 4000, &pull));  // longer than the lease
  ExpectError(verbena_ticket_wait(pull.get(), kDefault), VERBENA_UNAVAILABLE, {"server-0"});
  f.cluster.RestartServer(0);
  CHECK(Eventually([&] {
    const verbena_status started = f.PullOf(0, 2000, &pull);
    if (started != VERBENA_OK) return started == VERBENA_DATA_LOSS;
    return verbena_ticket_wait(pull.get(), kDefault) == VERBENA_DATA_LOSS;
  }));
  CHECK_THAT(verbena_last_error(), Contains("weights"));
  f.cluster.coordinator().Signal(9);
  f.cluster.coordinator().Wait();
  verbena_table* table = nullptr;
  const verbena_table_spec spec = Spec("t");
  ExpectError(verbena_table_create(f.client.get(), &spec, 500, &table), VERBENA_UNAVAILABLE,
              {f.cluster.address()});
  ExpectError(verbena_table_drop(f.client.get(), "weights", 500), VERBENA_UNAVAILABLE);
}

}  // namespace
}  // namespace verbena::test
