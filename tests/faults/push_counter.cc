// Pushes ones into an asynchronous table until STOP-FILE exists, then checks that each push was
// applied exactly once. A program for cases of tests/softroce/, which break the network meanwhile.
//
//     push_counter COORDINATOR DEVICE STOP-FILE
//
// Prints a line a second until then. The last line has the number of pushes, of lanes lost and of
// records sent again.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

constexpr uint64_t kElements = 250'000;

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "push_counter: %s: %s\n", what, status.ToString().c_str());
  return 1;
}

void Print(const Client& client, uint64_t pushes) {
  const ClientStatistics statistics = client.statistics();
  std::printf("%llu pushes, %llu lanes lost, %llu records sent again\n",
              static_cast<unsigned long long>(pushes),
              static_cast<unsigned long long>(statistics.lanes_lost),
              static_cast<unsigned long long>(statistics.records_resent));
  std::fflush(stdout);
}

int Run(const std::string& cluster, const std::string& device, const std::string& stop_file) {
  ClientOptions options;
  options.cluster = cluster;
  options.job = "count";
  options.transport = "verbs";
  options.rdma.device = device;
  // Longer than the servers' (14): these are the first to give up in an outage.
  options.rdma.timeout = 16;
  options.timeout = absl::Seconds(120);
  auto client = Client::Connect(options);
  if (!client.ok()) return Fail("connect", client.status());
  v1::TableSpec spec;
  spec.set_name("counted");
  spec.set_job("count");
  spec.add_shape(kElements);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  auto table = (*client)->CreateTable(spec);
  if (!table.ok()) return Fail("create table", table.status());
  auto ones = (*client)->AllocateRegion(table->bytes());
  auto values = (*client)->AllocateRegion(table->bytes());
  if (!ones.ok()) return Fail("gradient", ones.status());
  if (!values.ok()) return Fail("parameters", values.status());
  std::fill_n(ones->floats(), kElements, 1.0f);

  uint64_t pushes = 0;
  absl::Time say = absl::Now();
  while (access(stop_file.c_str(), F_OK) != 0) {
    if (absl::Status s = (*client)->Push(*table, *ones).Wait(); !s.ok()) return Fail("push", s);
    ++pushes;
    if (absl::Now() < say) continue;
    Print(**client, pushes);
    say = absl::Now() + absl::Seconds(1);
  }
  if (absl::Status s = (*client)->Pull(*table, *values).Wait(); !s.ok()) return Fail("pull", s);
  // Sums of ones are exact in a float up to 2^24.
  const float expected = -static_cast<float>(pushes);
  const auto right = std::count(values->floats(), values->floats() + kElements, expected);
  Print(**client, pushes);
  if (pushes < (1u << 24) && static_cast<uint64_t>(right) == kElements) return 0;
  const float* wrong = std::find_if(values->floats(), values->floats() + kElements,
                                    [&](float value) { return value != expected; });
  std::fprintf(stderr,
               "push_counter: of %llu values %llu are not %g: the first, number %lld, is %g\n",
               static_cast<unsigned long long>(kElements),
               static_cast<unsigned long long>(kElements - static_cast<uint64_t>(right)),
               static_cast<double>(expected), static_cast<long long>(wrong - values->floats()),
               static_cast<double>(*wrong));
  return 1;
}

}  // namespace
}  // namespace verbena::test

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: push_counter COORDINATOR DEVICE STOP-FILE\n");
    return 2;
  }
  return verbena::test::Run(argv[1], argv[2], argv[3]);
}
