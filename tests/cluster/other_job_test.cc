// Tables of another job: an observer reads them, a worker is refused, and neither ends.
#include <catch2/catch.hpp>
#include <string>

#include "shard/failpoints.h"
#include "tests/cluster/sim_member.h"

namespace verbena::test {
namespace {

// A member of a job, which has joined.
class JobMember : public SimMember {
 public:
  JobMember(SimCluster* cluster, const std::string& job, bool observer, uint64_t seed)
      : SimMember(cluster, job + (observer ? "-reader" : "-worker"),
                  {.job = job, .observer = observer, .seed = seed}) {
    REQUIRE(Join().ok());
  }
};

TEST_CASE("regression: an observer reads any job's tables, live or ended, and nobody ends for it") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP, v1::CONSISTENCY_SYNC);
  SimCluster cluster({});
  JobMember a(&cluster, "a", false, 1), b(&cluster, "b", false, 2), reader(&cluster, "b", true, 3);
  const uint32_t of_a = a.Create("a/w", consistency).value();
  const uint32_t of_b = b.Create("b/w").value();
  const bool async = consistency != v1::CONSISTENCY_SYNC;
  const float expected = async ? -1.0f : 0.0f;  // a sync table: the values after the last step
  if (async) REQUIRE(a.Push(of_a).ok());

  const absl::StatusOr<uint32_t> opened = reader.Open("a/w");
  REQUIRE(opened.ok());
  CHECK(*opened == of_a);
  absl::StatusOr<float> read = reader.Pull(of_a);
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == expected);

  const absl::Status refused = b.Open("a/w").status();
  INFO(refused.ToString());
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(refused.message().find("belongs to job 'a'") != std::string::npos);
  CHECK(refused.message().find("a worker of job 'b'") != std::string::npos);
  CHECK(b.Pull(of_a).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(b.Push(of_b).ok());

  REQUIRE(a.Leave().ok());
  read = reader.Pull(of_a);
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == expected);
  CHECK(reader.Pull(of_b).ok());
}

TEST_CASE("a shard that takes members of other jobs for ended ones is found") {
  SimCluster cluster({});
  JobMember a(&cluster, "a", false, 1), reader(&cluster, "b", true, 3);
  const uint32_t of_a = a.Create("a/w").value();
  REQUIRE(reader.Open("a/w").ok());
  shard::failpoints().expire_other_jobs = true;
  const absl::StatusOr<float> read = reader.Pull(of_a);
  shard::failpoints().expire_other_jobs = false;
  CHECK_FALSE(read.ok());
  // The lease has not ended, and so the client has not.
  const absl::Status again = reader.Pull(of_a).status();
  INFO(read.status().ToString() << "; " << again.ToString());
  CHECK(again.ok());
}

}  // namespace
}  // namespace verbena::test
