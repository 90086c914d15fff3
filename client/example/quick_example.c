/* Trains one table for ten steps: ./verbena_example_c HOST:PORT */
#include <stdio.h>

#include "verbena/verbena.h"

/* Prints the call that failed, and its error. */
static int Failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, verbena_last_error());
  return 1;
}

static int Train(verbena_client* client) {
  const uint64_t shape[] = {1000};
  verbena_table_spec spec;
  verbena_table* table = NULL;
  verbena_region *gradient = NULL, *weights = NULL;
  verbena_table_spec_init(&spec, sizeof spec);
  spec.name = "model";
  spec.shape = shape;
  spec.dimensions = 1;
  spec.consistency = VERBENA_CONSISTENCY_SYNC;
  spec.optimizer = "sgd";
  spec.rate = 0.1;
  if (verbena_table_create(client, &spec, VERBENA_TIMEOUT_DEFAULT, &table)) return Failed("table");
  if (verbena_region_allocate(client, 4000, VERBENA_MEMORY_HOST, 0, &gradient) ||
      verbena_region_allocate(client, 4000, VERBENA_MEMORY_HOST, 0, &weights)) {
    return Failed("region");
  }

  float* g = verbena_region_data(gradient);
  const float* w = verbena_region_data(weights);
  for (int step = 0; step < 10; ++step) {
    verbena_ticket* ticket = NULL;
    for (int i = 0; i < 1000; ++i) g[i] = w[i] - 1;
    /* For the whole table: also ends the step, and pulls parameters that include it. */
    if (verbena_push_pull(client, table, gradient, weights, NULL, VERBENA_TIMEOUT_DEFAULT,
                          &ticket) ||
        verbena_ticket_wait(ticket, VERBENA_TIMEOUT_DEFAULT)) {
      return Failed("step");
    }
    verbena_ticket_free(ticket);
  }
  printf("weights[0] = %.4f after 10 steps\n", w[0]);
  /* Each step goes a tenth of the way from 0 to 1: 1 - 0.9^10. */
  const float error = w[999] - 0.65132156f;
  verbena_region_free(gradient);
  verbena_region_free(weights);
  verbena_table_free(table);
  if (error < 1e-5f && error > -1e-5f) return 0;
  fprintf(stderr, "not 0.6513: is the table from an earlier run? 'verbena table drop model'\n");
  return 1;
}

int main(int argc, char** argv) {
  verbena_connect_options options;
  verbena_client* client = NULL;
  if (argc != 2) return fprintf(stderr, "usage: %s HOST:PORT\n", argv[0]), 2;
  verbena_connect_options_init(&options, sizeof options);
  options.cluster = argv[1];
  options.job = "example-c";
  if (verbena_connect(&options, &client)) return Failed("connect");
  const int status = Train(client);
  verbena_client_free(client);
  return status;
}
