// Trains one table for ten steps: ./verbena_example HOST:PORT
#include <cstdio>

#include "verbena/client.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s HOST:PORT\n", argv[0]), 2;
  auto client = verbena::Client::Connect({.cluster = argv[1], .job = "example"});
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;

  verbena::v1::TableSpec spec;
  spec.set_name("weights");
  spec.add_shape(1000);
  spec.set_consistency(verbena::v1::CONSISTENCY_SYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.1);
  auto table = (*client)->CreateTable(spec);
  if (!table.ok()) return std::puts(table.status().ToString().c_str()), 1;
  auto gradient = (*client)->AllocateRegion(table->bytes());
  auto weights = (*client)->AllocateRegion(table->bytes());
  if (!gradient.ok() || !weights.ok()) return std::puts("out of memory"), 1;

  for (int step = 0; step < 10; ++step) {
    for (int i = 0; i < 1000; ++i) gradient->floats()[i] = weights->floats()[i] - 1;
    verbena::Ticket push = (*client)->Push(*table, *gradient);
    (*client)->EndStep(*table);
    verbena::Ticket pull = (*client)->Pull(*table, *weights);
    absl::Status status = push.Wait();
    if (status.ok()) status = pull.Wait();
    if (!status.ok()) return std::puts(status.ToString().c_str()), 1;
  }
  std::printf("weights[0] = %.4f after 10 steps\n", double(weights->floats()[0]));
}
