// Inputs of the workers of a job: pipes, compressed files and inputs beyond their memory
// train as plain files do, whatever the number of workers and of restarts.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace inputs_test {

std::string Examples() {
  std::string text;
  uint64_t state = 1;
  for (int row = 0; row < 4000; ++row) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t feature = state >> 40;
    absl::StrAppend(&text, feature % 20 < 10 ? 1 : 0, " ", feature % 20 + 1, ":1 ",
                    30 + (feature >> 8) % 100, ":0.5\n");
  }
  return text;
}

class InputsOfJobs {
 public:
  InputsOfJobs() : cluster_({.servers = 1}) { WriteFile(file(), Examples()); }

  std::string file() const { return directory_.File("train"); }

  // Trains in a shell, of which `data` is a word, so that it may be a pipe. Returns the hash of the
  // parameters; `err` gets standard error.
  std::string Train(const std::string& format, const std::string& data, int workers,
                    const std::vector<std::string>& more, std::string* err = nullptr) {
    const std::string command =
        absl::StrCat(TrainPath(), " --cluster ", cluster_.address(), " --format ", format,
                     " --data ", data, " --workers ", workers, " --batch 64 --transport ",
                     TestTransport(), " --checksum --json ", absl::StrJoin(more, " "));
    const Finished finished = RunProgram({"/bin/bash", "-c", command});
    INFO(command << "\n" << finished.out << finished.err);
    REQUIRE(finished.status == 0);
    if (err != nullptr) *err = finished.err;
    return JsonField(finished.out, "parameters_xxh64");
  }

 private:
  TemporaryDirectory directory_;
  ProcessCluster cluster_;
};

TEST_CASE("a pipe is read once for all workers, and trains as the file does") {
  InputsOfJobs jobs;
  for (const char* memory : {"100000000", "65536"}) {
    const std::vector<std::string> text = {"--steps 30 --hidden 16 --input-memory", memory};
    const std::string expected = jobs.Train("text", jobs.file(), 2, text);
    CHECK(jobs.Train("text", absl::StrCat("<(cat ", jobs.file(), ")"), 2, text) == expected);
    CHECK(jobs.Train("text", absl::StrCat("<(gzip -c ", jobs.file(), ")"), 2, text) == expected);
  }
}

TEST_CASE("inputs beyond memory: restarts change no bit") {
  InputsOfJobs jobs;
  for (const char* model : {"logistic", "fm"}) {
    const std::vector<std::string> options = {"--input-memory 65536 --model", model};
    const auto with = [&](const std::string& more) {
      std::vector<std::string> all = options;
      all.push_back(more);
      return all;
    };
    // A named job has a table for its steps, and a row's first value depends on its table's place.
    const std::string whole = absl::StrCat("--job whole-", model);
    const std::string expected = jobs.Train("libsvm", jobs.file(), 3, with(whole + " --steps 150"));
    const std::string job = absl::StrCat("--job again-", model);
    jobs.Train("libsvm", jobs.file(), 3, with(job + " --steps 40"));
    jobs.Train("libsvm", jobs.file(), 3, with(job + " --steps 97 --resume"));
    CHECK(jobs.Train("libsvm", jobs.file(), 3, with(job + " --steps 150 --resume")) == expected);
  }
}

TEST_CASE("a resume with the inputs in another order gives a warning") {
  InputsOfJobs jobs;
  const auto with = [](const char* steps, const char* memory) {
    return std::vector<std::string>{"--job ordered --steps", steps, "--input-memory", memory};
  };
  const std::string warning = "--input-memory gives another order";
  std::string err;
  jobs.Train("libsvm", jobs.file(), 1, with("10", "65536"));
  jobs.Train("libsvm", jobs.file(), 1, with("20 --resume", "65536"), &err);
  CHECK_THAT(err, !Catch::Contains(warning));
  jobs.Train("libsvm", jobs.file(), 1, with("30 --resume", "131072"), &err);
  CHECK_THAT(err, Catch::Contains(warning));
}

}  // namespace inputs_test
}  // namespace verbena::test
