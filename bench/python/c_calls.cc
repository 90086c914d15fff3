// The C side of calls.py, which loads it: a client with a table, and push_pulls from C.
//
// **Thread safety**: one thread at a time.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "verbena/verbena.h"

namespace {

void Require(verbena_status status, const char* call) {
  if (status == VERBENA_OK) return;
  std::fprintf(stderr, "bench/python: %s: %s\n", call, verbena_last_error());
  std::exit(1);
}

}  // namespace

struct CSide {
  verbena_client* client = nullptr;
  verbena_table* table = nullptr;
  std::vector<float> memory[2];
  verbena_region* gradient = nullptr;
  verbena_region* destination = nullptr;
  uint64_t destination_offset = 0;
};

extern "C" {

// `memory` as calls.py has it: "empty" is memory of the library, "parts" are two parts of one such
// region, others are the caller's memory.
__attribute__((visibility("default"))) CSide* bench_open(const char* cluster, const char* memory,
                                                         uint64_t bytes) {
  auto* const side = new CSide;
  verbena_connect_options options;
  verbena_connect_options_init(&options, sizeof(options));
  const std::string name = "c-" + std::string(memory) + "-" + std::to_string(bytes);
  options.cluster = cluster;
  options.job = name.c_str();
  Require(verbena_connect(&options, &side->client), "connect");
  verbena_table_spec spec;
  verbena_table_spec_init(&spec, sizeof(spec));
  const uint64_t shape = bytes / sizeof(float);
  spec.name = name.c_str();
  spec.shape = &shape;
  spec.dimensions = 1;
  spec.rate = 1e-6;
  spec.consistency = VERBENA_CONSISTENCY_ASYNC;
  Require(verbena_table_create(side->client, &spec, VERBENA_TIMEOUT_DEFAULT, &side->table),
          "table");
  const std::string kind = memory;
  const auto allocate = [&](uint64_t size, verbena_region** region) {
    Require(verbena_region_allocate(side->client, size, VERBENA_MEMORY_HOST, 0, region), "region");
  };
  if (kind == "parts") {
    allocate(2 * bytes, &side->gradient);
    side->destination = side->gradient;
    side->destination_offset = bytes;
  } else if (kind == "empty") {
    allocate(bytes, &side->gradient);
    allocate(bytes, &side->destination);
  } else {
    verbena_region** const regions[] = {&side->gradient, &side->destination};
    for (int i = 0; i < 2; ++i) {
      side->memory[i].resize(shape);
      Require(verbena_region_register(side->client, side->memory[i].data(), bytes,
                                      VERBENA_MEMORY_HOST, 0, regions[i]),
              "region");
    }
  }
  return side;
}

// Microseconds of a push_pull, each of which is waited for.
__attribute__((visibility("default"))) double bench_run(CSide* side, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    verbena_ticket* ticket = nullptr;
    Require(
        verbena_push_pull_to(side->client, side->table, side->gradient, side->destination, nullptr,
                             side->destination_offset, VERBENA_TIMEOUT_DEFAULT, &ticket),
        "push_pull");
    Require(verbena_ticket_wait(ticket, VERBENA_TIMEOUT_DEFAULT), "wait");
    verbena_ticket_free(ticket);
  }
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / calls;
}

__attribute__((visibility("default"))) void bench_close(CSide* side) {
  if (side->destination != side->gradient) verbena_region_free(side->destination);
  verbena_region_free(side->gradient);
  verbena_table_free(side->table);
  verbena_client_free(side->client);
  delete side;
}

}  // extern "C"
