// The jobs whose checkpoints fail, as GetView reports them.
#include "server/checkpoint/failing_checkpoints.h"

#include <catch2/catch.hpp>
#include <string>

namespace verbena::server {
namespace failing_checkpoints_test {
namespace {

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return now; }
  int64_t now = 1'000'000'000;
};

TEST_CASE("a job is listed from its first failure on until it is saved, or has no tables") {
  ManualClock clock;
  FailingCheckpoints failing(&clock);
  const auto list = [&] {
    v1::GetViewResponse response;
    failing.AddTo(&response);
    return response.failing_checkpoints();
  };
  CHECK(list().empty());
  failing.Failed("a", "/c/a", absl::UnavailableError("no space"));
  clock.now += 60'000'000'000;
  failing.Failed("a", "/c/a", absl::UnavailableError(std::string(5000, 'x')));
  failing.Failed("b", "/c/b", absl::UnavailableError("no space"));
  REQUIRE(list().size() == 2);
  CHECK(list()[0].job() == "a");
  CHECK(list()[0].directory() == "/c/a");
  CHECK(list()[0].failures() == 2);
  CHECK(list()[0].failing_ms() == 60'000);
  CHECK(list()[0].error() == std::string(1000, 'x'));
  CHECK(list()[1].failing_ms() == 0);
  failing.Saved("a");
  REQUIRE(list().size() == 1);
  // The time begins anew.
  failing.Failed("a", "/c/a", absl::UnavailableError("again"));
  CHECK(list()[0].failing_ms() == 0);
  CHECK(list()[0].failures() == 1);
  failing.KeepOnly({"a", "c"});
  REQUIRE(list().size() == 1);
  for (int job = 0; job < 1000; ++job) {
    failing.Failed("job-" + std::to_string(job), "/c", absl::UnavailableError("no space"));
  }
  CHECK(list().size() == 100);
}

TEST_CASE("regression: a job whose tables were dropped during its last save is not listed") {
  ManualClock clock;
  FailingCheckpoints failing(&clock);
  for (const char* job : {"gone", "restored", "there"}) {
    failing.Failed(job, "/c", absl::NotFoundError("a table was dropped"));
  }
  v1::GetViewResponse response;
  const auto add = [&](const std::string& job, bool restoring) {
    v1::Table* table = response.mutable_view()->add_tables();
    table->mutable_spec()->set_job(job);
    table->set_restoring(restoring);
  };
  add("there", false);
  add("restored", true);
  failing.AddTo(&response);
  REQUIRE(response.failing_checkpoints_size() == 1);
  CHECK(response.failing_checkpoints(0).job() == "there");
}

TEST_CASE("regression: whatever bytes an error has, the answer that names it can be read") {
  ManualClock clock;
  FailingCheckpoints failing(&clock);
  failing.Failed("a", "/c/caf\xe9", absl::UnavailableError("no \xff"));
  failing.Failed("b", "/c/b", absl::UnavailableError(std::string(999, 'x') + "\u00e9"));
  v1::GetViewResponse response, read;
  failing.AddTo(&response);
  REQUIRE(read.ParseFromString(response.SerializeAsString()));
  REQUIRE(read.failing_checkpoints_size() == 2);
  CHECK(read.failing_checkpoints(0).directory() == "/c/caf\ufffd");
  CHECK(read.failing_checkpoints(0).error() == "no \ufffd");
  CHECK(read.failing_checkpoints(1).error() == std::string(999, 'x'));
}

}  // namespace
}  // namespace failing_checkpoints_test
}  // namespace verbena::server
