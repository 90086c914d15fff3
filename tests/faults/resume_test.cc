// verbena-train --resume: from a checkpoint, on another cluster, to the bits of the run that was
// never interrupted.
#include <signal.h>

#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/cluster.h"
#include "tests/support/libsvm_examples.h"

namespace verbena::test {
namespace resume_test {

using Catch::Matchers::Contains;

constexpr int kEndless = 1'000'000;  // steps

std::string Examples() { return LibsvmExamples(4000); }

struct World {
  World() { WriteFile(directory.File("train"), Examples()); }
  // Two workers, with a dense and an embedding table.
  std::vector<std::string> Train(const ProcessCluster& cluster, const std::string& job, int steps,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> argv = {TrainPath(),
                                     "--cluster",
                                     cluster.address(),
                                     "--format",
                                     "libsvm",
                                     "--model",
                                     "mlp",
                                     "--data",
                                     directory.File("train"),
                                     "--workers",
                                     "2",
                                     "--job",
                                     job,
                                     "--batch",
                                     "64",
                                     "--steps",
                                     absl::StrCat(steps),
                                     "--transport",
                                     TestTransport(),
                                     "--checksum",
                                     "--json"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  // The same, in another consistency, of so many workers and steps.
  std::vector<std::string> TrainApart(const ProcessCluster& cluster, const std::string& consistency,
                                      int workers, int steps,
                                      const std::vector<std::string>& more) const {
    std::vector<std::string> argv = Train(cluster, "apart", steps, more);
    for (size_t i = 0; i + 1 < argv.size(); ++i) {
      if (argv[i] == "--workers") argv[i + 1] = absl::StrCat(workers);
    }
    argv.insert(argv.end(), {"--consistency", consistency, "--log-steps"});
    return argv;
  }
  std::vector<std::string> CheckpointWords(const ProcessCluster& cluster,
                                           std::vector<std::string> words) const {
    words.insert(words.begin(), {CliPath(), "--cluster", cluster.address(), "checkpoint"});
    words.insert(words.end(), {"--job", "job", "--json"});
    return words;
  }
  Finished Checkpoint(const ProcessCluster& cluster, const std::vector<std::string>& words) const {
    return RunProgram(CheckpointWords(cluster, words));
  }
  TemporaryDirectory directory;
};

// Stops worker 0 of a run with --log-steps once it has made so many steps, and returns its pid.
// Whatever it makes until it stands still, no step is committed from then on.
pid_t StopAfterStep(Process* run, int steps) {
  REQUIRE(run->WaitFor(absl::StrCat(") step ", steps, "\n")));
  const std::string start = "worker 0 (pid ";
  REQUIRE(run->WaitFor(start));
  const std::string err = run->err();
  const pid_t worker = std::stoi(err.substr(err.find(start) + start.size()));
  REQUIRE(kill(worker, SIGSTOP) == 0);
  return worker;
}

// Saves a run whose worker 0 stands still after so many steps or more. The other worker has pushed
// its part of the next step, which is not committed. Where worker 0 has pushed some of its part,
// the step is committed in some tables alone, and the save waits for the others: it goes on a
// little.
int SaveStopped(const World& world, const ProcessCluster& cluster, Process* run, int steps,
                const std::string& root) {
  for (;; steps += 20) {
    const pid_t worker = StopAfterStep(run, steps);
    Process save(world.CheckpointWords(cluster, {"save", root}));
    const std::optional<int> status = save.Wait(absl::Seconds(10));
    INFO(save.err());
    if (status) {
      REQUIRE(*status == 0);
      const int saved = std::stoi(JsonField(save.out(), "step"));
      CHECK(saved >= steps - 1);
      return saved;
    }
    save.Signal(SIGINT);
    REQUIRE(save.Wait().has_value());
    REQUIRE(kill(worker, SIGCONT) == 0);
  }
}

TEST_CASE("a run that was killed goes on from its checkpoint, elsewhere, to the same bits") {
  const World world;
  const std::string root = world.directory.File("checkpoints");
  int saved = 0;
  {
    // A stopped worker must not lose its lease.
    ProcessCluster cluster({.servers = 2, .lease_ms = 60'000});
    Process run(world.Train(cluster, "job", kEndless, {"--log-steps"}));
    saved = SaveStopped(world, cluster, &run, 150, root);
    run.Signal(SIGKILL);
  }
  ProcessCluster cluster({.servers = 3, .lease_ms = 60'000});
  const int steps = saved + 150;
  const Finished whole = RunProgram(world.Train(cluster, "whole", steps, {}));
  INFO(whole.err);
  REQUIRE(whole.status == 0);
  const std::string expected = JsonField(whole.out, "parameters_xxh64");
  REQUIRE_FALSE(expected.empty());
  const Finished none = RunProgram(world.Train(cluster, "job", steps, {"--resume"}));
  CHECK(none.status == 1);
  CHECK_THAT(none.err, Contains("--resume: there is no table 'job/") && Contains("not restored"));

  const Finished restore = world.Checkpoint(cluster, {"restore", root});
  INFO(restore.err);
  REQUIRE(restore.status == 0);
  const Finished resumed =
      RunProgram(world.Train(cluster, "job", steps, {"--resume", "--log-steps"}));
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  CHECK_THAT(resumed.err, Contains(absl::StrCat(") step ", saved + 1, "\n")) &&
                              !Contains(absl::StrCat(") step ", saved, "\n")));
  CHECK(JsonField(resumed.out, "parameters_xxh64") == expected);
  // A checkpoint of a resumed run counts the steps of both runs.
  const Finished again = world.Checkpoint(cluster, {"save", root});
  INFO(again.err);
  REQUIRE(again.status == 0);
  CHECK(JsonField(again.out, "step") == absl::StrCat(steps));

  const Finished over = RunProgram(world.Train(cluster, "job", steps, {"--resume"}));
  CHECK(over.status == 1);
  CHECK_THAT(over.err, Contains(absl::StrCat("nothing to resume: the tables have ", steps)));
}

size_t CountOf(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_CASE("regression: workers of async and ssp resume after the steps that they have made") {
  const World world;
  for (const std::string consistency : {"async", "ssp"}) {
    for (const int workers : {1, 3}) {
      INFO(consistency << " with " << workers << " workers");
      ProcessCluster cluster({.servers = 2});
      const Finished first = RunProgram(world.TrainApart(cluster, consistency, workers, 49, {}));
      INFO(first.err);
      REQUIRE(first.status == 0);
      const Finished second =
          RunProgram(world.TrainApart(cluster, consistency, workers, 60, {"--resume"}));
      INFO(second.err);
      REQUIRE(second.status == 0);
      CHECK(JsonField(second.out, "steps") == "60");
      // In any order of their starts, each worker makes the steps 50 to 60.
      for (int step = 49; step <= 60; ++step) {
        CHECK(CountOf(second.err, absl::StrCat(") step ", step, "\n")) ==
              (step == 49 ? 0 : static_cast<size_t>(workers)));
      }
      const Finished over =
          RunProgram(world.TrainApart(cluster, consistency, workers, 60, {"--resume"}));
      CHECK(over.status == 1);
      CHECK_THAT(over.err, Contains("nothing to resume: the tables have 60 steps"));
    }
  }
}

TEST_CASE("a job goes on with other numbers of workers, at the step where it was") {
  const World world;
  for (const std::string consistency : {"sync", "ssp", "async"}) {
    ProcessCluster cluster({.servers = 2});
    int done = 0;
    for (const int workers : {3, 7, 2}) {
      INFO(consistency << " with " << workers << " workers");
      std::vector<std::string> more;
      if (done > 0) more.emplace_back("--resume");
      const int steps = done + 10;
      const Finished run = RunProgram(world.TrainApart(cluster, consistency, workers, steps, more));
      INFO(run.err);
      REQUIRE(run.status == 0);
      CHECK(JsonField(run.out, "steps") == absl::StrCat(steps));
      for (int step = done; step <= steps; ++step) {
        CHECK(CountOf(run.err, absl::StrCat(") step ", step, "\n")) ==
              (step == done ? 0 : static_cast<size_t>(workers)));
      }
      done = steps;
    }
  }
}

TEST_CASE("a worker that was killed is started again at once, and waits for its former lease") {
  const World world;
  const ProcessCluster cluster({.servers = 1, .lease_ms = 2000});
  const std::vector<std::string> rank = {"--rank", "0"};
  Process killed(world.TrainApart(cluster, "sync", 1, kEndless, rank));
  REQUIRE(killed.WaitFor(") step 20\n"));
  killed.Signal(SIGKILL);
  REQUIRE(killed.Wait().has_value());
  const Finished again =
      RunProgram(world.TrainApart(cluster, "sync", 1, 400, {"--rank", "0", "--resume", "auto"}));
  INFO(again.err);
  REQUIRE(again.status == 0);
  CHECK(CountOf(again.err, ") step 20\n") == 0);
  CHECK(CountOf(again.err, ") step 400\n") == 1);
}

TEST_CASE("a resume with other options than the run before is refused, and names both values") {
  const World world;
  ProcessCluster cluster({.servers = 1});
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> argv = {TrainPath(),
                                     "--cluster",
                                     cluster.address(),
                                     "--format",
                                     "libsvm",
                                     "--data",
                                     world.directory.File("train"),
                                     "--job",
                                     "job",
                                     "--transport",
                                     TestTransport()};
    argv.insert(argv.end(), more.begin(), more.end());
    return RunProgram(argv);
  };
  REQUIRE(run({"--steps", "10", "--batch", "64", "--seed", "5", "--rate", "0.02"}).status == 0);
  struct Other {
    std::vector<std::string> options;
    std::string problem;
  };
  for (const Other& other :
       std::vector<Other>{{{"--batch", "32", "--seed", "5", "--rate", "0.02"},
                           "--batch is 32, and the run that is resumed had 64"},
                          {{"--batch", "64", "--seed", "6", "--rate", "0.02"},
                           "--seed is 6, and the run that is resumed had 5"},
                          {{"--batch", "64", "--seed", "5", "--rate", "0.03"},
                           "--rate is 0.03, and the run that is resumed had 0.02"}}) {
    std::vector<std::string> argv = other.options;
    argv.insert(argv.end(), {"--steps", "20", "--resume"});
    const Finished refused = run(argv);
    CHECK(refused.status == 1);
    CHECK_THAT(refused.err, Contains("--resume: ") && Contains(other.problem));
  }
  WriteFile(world.directory.File("train"), Examples() + "1 1:1\n");
  const Finished warned =
      run({"--batch", "64", "--seed", "5", "--rate", "0.02", "--steps", "20", "--resume"});
  INFO(warned.err);
  CHECK(warned.status == 0);
  CHECK_THAT(warned.err, Contains("warning: --resume: --data has ") &&
                             Contains("bytes, and the run that is resumed had "));
}

}  // namespace resume_test
}  // namespace verbena::test
