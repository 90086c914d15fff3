// `verbena scale-hint` against real clusters.
#include <signal.h>

#include <memory>
#include <string>

#include "server/cli/verbena/json_fields.h"
#include "tests/server/access_fixture.h"
#include "tests/server/cli_fixture.h"
#include "tests/server/daemon_fixture.h"
#include "tests/support/json_check.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("scale hint: load of servers, workers of jobs, and the number of servers") {
  ProcessCluster cluster;
  auto client = Client::Connect(
      {.cluster = cluster.address(), .job = "demo", .name = "a", .transport = TestTransport()});
  INFO(client.status());
  REQUIRE(client.ok());
  v1::TableSpec spec;
  spec.set_name("weights");
  spec.add_shape(1000);
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(0.5);
  auto table = (*client)->CreateTable(spec);
  REQUIRE(table.ok());
  auto region = (*client)->AllocateRegion(table->bytes());
  REQUIRE(region.ok());

  Process hint({CliPath(), "scale-hint", "--cluster", cluster.address(), "--interval", "1",
                "--min-servers", "5", "--json"});
  while (hint.running()) REQUIRE((*client)->Push(*table, *region).Wait().ok());
  INFO(hint.err());
  REQUIRE(hint.Wait() == 0);
  const Json answer(hint.out());
  CHECK(Undescribed(answer.value(), "scale-hint", cli::JsonObjects()) == "");
  CHECK(answer["interval_s"].number() >= 1);
  CHECK(answer["action"].text() == "add");
  CHECK(answer["servers_alive"].number() == 2);
  CHECK(answer["wanted_servers"].number() == 5);
  CHECK_THAT(answer["reason"].text(), Contains("--min-servers"));
  double pushes = 0, bytes = 0, memory = 0;
  for (int i = 0; i < answer["servers"].size(); ++i) {
    const Json server = answer["servers"][i];
    pushes += server["pushes_per_s"].number();
    bytes += server["push_bytes_per_s"].number();
    CHECK(server["cpu"].number() >= 0);
    memory += server["memory_bytes"].number();  // of one partition, on one of them
    CHECK(server["memory_limit_bytes"].number() > server["memory_bytes"].number());
  }
  CHECK(memory >= 4000);
  CHECK(pushes > 0);
  CHECK(bytes == Approx(4000 * pushes));
  const Json worker = answer["jobs"][0]["workers"][0];
  CHECK(worker["name"].text() == "a");
  CHECK(worker["state"].text() == "working");

  const Finished text =
      Cli({"scale-hint", "--cluster", cluster.address(), "--interval", "0.1", "--cpu-low", "0.01"});
  CHECK(text.status == 0);
  CHECK_THAT(text.out, StartsWith("none: 2 servers; ") && Contains("server-1") && Contains("demo"));
  const Finished wrong = Cli({"scale-hint", "--cpu-low", "0.8"});
  CHECK(wrong.status == 2);
  CHECK_THAT(wrong.err, Contains("--cpu-low must be less than --cpu-high"));
}

TEST_CASE("scale hint: a server that does not answer keeps the others from being removed") {
  // It must not become silent in the middle of this.
  ProcessCluster cluster({.servers = 3, .lease_ms = 120'000});
  cluster.server(1).Signal(SIGSTOP);
  const Finished hint = Cli({"scale-hint", "--cluster", cluster.address(), "--timeout", "0.5",
                             "--interval", "0.1", "--json"});
  CHECK(hint.status == 1);
  const Json answer(hint.out);
  CHECK(answer["action"].text() == "none");
  CHECK_THAT(answer["reason"].text(), Contains("server-1 has not answered"));
  CHECK(answer["servers"][1]["cpu"].null());
  cluster.server(1).Signal(SIGCONT);
}

}  // namespace
}  // namespace verbena::test
