// Shared by tests of the C API: handles that free themselves, a cluster with a table, and checks of
// errors.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLIENT_C_API_SUPPORT_H_
#define VERBENA_TESTS_CLIENT_C_API_SUPPORT_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "verbena/verbena.h"

namespace verbena::test {
using Catch::Matchers::Contains;

inline constexpr int64_t kDefault = VERBENA_TIMEOUT_DEFAULT;

// Fails with `status`, and the text names every one of `words`.
inline void ExpectError(verbena_status got, verbena_status status,
                        const std::vector<std::string>& words = {}) {
  INFO(verbena_status_name(got) << ": " << verbena_last_error());
  CHECK(got == status);
  for (const std::string& word : words) CHECK_THAT(verbena_last_error(), Contains(word));
}

inline void Good(verbena_status status) {
  INFO(verbena_status_name(status) << ": " << verbena_last_error());
  REQUIRE(status == VERBENA_OK);
}

struct Free {
  void operator()(verbena_client* p) const { verbena_client_free(p); }
  void operator()(verbena_table* p) const { verbena_table_free(p); }
  void operator()(verbena_region* p) const { verbena_region_free(p); }
  void operator()(verbena_ticket* p) const { verbena_ticket_free(p); }
};
template <typename T>
using Handle = std::unique_ptr<T, Free>;

inline verbena_connect_options Options(const char* address) {
  verbena_connect_options options;
  std::memset(&options, 0xee, sizeof(options));
  verbena_connect_options_init(&options, sizeof(options));
  options.cluster = address;
  options.timeout_ms = 10'000;
  return options;
}

inline Handle<verbena_client> Connect(const verbena_connect_options& options) {
  verbena_client* client = nullptr;
  Good(verbena_connect(&options, &client));
  return Handle<verbena_client>(client);
}

inline constexpr uint64_t kShape[] = {60, 50};
inline constexpr uint64_t kElements = 3000;

inline verbena_table_spec Spec(const char* name) {
  verbena_table_spec spec;
  std::memset(&spec, 0xee, sizeof(spec));
  verbena_table_spec_init(&spec, sizeof(spec));
  spec.name = name;
  spec.shape = kShape;
  spec.dimensions = 2;
  spec.chunk_bytes = 4096;
  spec.initializer = VERBENA_INITIALIZER_CONSTANT;
  spec.initializer_a = 2;
  spec.rate = 1;
  return spec;
}

inline constexpr uint32_t kDim = 8;

inline verbena_table_spec EmbeddingSpec(const char* name) {
  verbena_table_spec spec = Spec(name);
  spec.shape = nullptr;
  spec.dimensions = 0;
  spec.dim = kDim;
  return spec;
}

inline Handle<verbena_table> Create(verbena_client* client, const verbena_table_spec& spec) {
  verbena_table* table = nullptr;
  Good(verbena_table_create(client, &spec, kDefault, &table));
  return Handle<verbena_table>(table);
}

inline Handle<verbena_region> Allocate(verbena_client* client, size_t bytes) {
  verbena_region* region = nullptr;
  Good(verbena_region_allocate(client, bytes, VERBENA_MEMORY_HOST, 0, &region));
  return Handle<verbena_region>(region);
}

inline float* Floats(const Handle<verbena_region>& region) {
  return static_cast<float*>(verbena_region_data(region.get()));
}

// One client in a cluster of one server, with a table and memory for it.
struct Fixture {
  ProcessCluster cluster{{.servers = 1, .shards = 2}};
  Handle<verbena_client> client = Connect(Options(cluster.address().c_str()));
  Handle<verbena_table> table = Create(client.get(), Spec("weights"));
  Handle<verbena_region> gradient = Allocate(client.get(), kElements * 4);
  Handle<verbena_region> parameters = Allocate(client.get(), kElements * 4);

  verbena_status PullOf(uint64_t min_version, int64_t timeout_ms, Handle<verbena_ticket>* ticket) {
    verbena_ticket* raw = nullptr;
    const verbena_status status = verbena_pull(client.get(), table.get(), parameters.get(), nullptr,
                                               min_version, timeout_ms, &raw);
    ticket->reset(raw);
    return status;
  }
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLIENT_C_API_SUPPORT_H_
