// verbena-train --max-workers: workers that join, leave and are killed, and that begin again with
// the same command line, against a reference in one process.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cluster.h"
#include "worker/models/load_model.h"
#include "worker/stores/client_store.h"
#include "worker/train/options.h"
#include "worker/train/schedule.h"
#include "worker/train/trainer.h"

namespace verbena::test {
namespace elastic_train_test {

using Catch::Matchers::Contains;

constexpr int kSteps = 1'000'000;  // more than are made
constexpr int kWorkers = 2, kMostWorkers = 5;
constexpr int kGoOn = 40;  // steps

std::string Examples() {
  std::mt19937_64 random(3);
  std::string text;
  for (int row = 0; row < 3000; ++row) {
    int score = static_cast<int>(random() % 5) - 2;
    std::string features;
    for (int index = 1; index <= 60; ++index) {
      if (random() % 6 != 0) continue;
      score += (index % 7) - 3;
      absl::StrAppend(&features, " ", index, ":1");
    }
    absl::StrAppend(&text, score > 0 ? 1 : 0, features, "\n");
  }
  return text;
}

// The part that a worker had in a step's batch.
struct Part {
  uint64_t part = 0, parts = 0;
};
// By step, and by rank.
using Record = std::map<uint64_t, std::map<uint64_t, Part>>;

class World {
 public:
  World() { WriteFile(directory_.File("train"), Examples()); }

  std::vector<std::string> Words(const std::string& program, int steps) const {
    return {program,
            "--cluster",
            cluster.address(),
            "--format",
            "libsvm",
            "--data",
            directory_.File("train"),
            "--job",
            "job",
            "--workers",
            absl::StrCat(kWorkers),
            "--max-workers",
            absl::StrCat(kMostWorkers),
            "--resume",
            "auto",
            "--batch",
            "100",
            "--steps",
            absl::StrCat(steps),
            "--transport",
            TestTransport(),
            "--checksum",
            "--log-steps",
            "--json"};
  }
  Process* Start(const std::string& program = TrainPath()) {
    processes.push_back(std::make_unique<Process>(Words(program, kSteps)));
    return processes.back().get();
  }
  // The parts that workers have had, from the lines that they have printed.
  Record Recorded() const {
    static const std::regex line(R"(worker (\d+) \(pid \d+\) step (\d+) part (\d+) of (\d+))");
    Record record;
    for (const auto& process : processes) {
      std::istringstream err(process->err());
      std::smatch match;
      for (std::string text; std::getline(err, text);) {
        if (!std::regex_match(text, match, line)) continue;
        record[std::stoull(match[2]) - 1][std::stoull(match[1])] = {std::stoull(match[3]),
                                                                    std::stoull(match[4])};
      }
    }
    return record;
  }
  // Until this worker has had a part of so many.
  bool WaitForParts(Process* worker, int parts) {
    return worker->WaitFor(absl::StrCat(" of ", parts, "\n"));
  }
  // SIGTERM to a worker, which drains.
  void Leave(Process* worker) {
    worker->Signal(SIGTERM);
    CHECK(worker->Wait() == 143);
    CHECK_THAT(worker->err(), Contains("SIGTERM: ended after step ") &&
                                  Contains(" of 1000000; the tables of job 'job' are kept"));
  }
  // The checksum of the tables, by a worker that finds all steps made.
  std::string Checksum(uint64_t steps) {
    Process second(Words(TrainPath(), static_cast<int>(steps)));
    const Finished report = RunProgram(Words(TrainPath(), static_cast<int>(steps)));
    INFO(report.err);
    CHECK(second.Wait() == 0);
    CHECK(report.status == 0);
    CHECK(JsonField(report.out, "steps") == absl::StrCat(steps));
    return JsonField(report.out, "parameters_xxh64");
  }
  // The same after the recorded steps, computed by one worker.
  std::string Reference(const Record& record) const;

  ProcessCluster cluster{{.servers = 2, .lease_ms = 1000}};
  std::vector<std::unique_ptr<Process>> processes;

 private:
  TemporaryDirectory directory_;
};

std::string World::Reference(const Record& record) const {
  const std::vector<std::string> words = Words("verbena-train", kSteps);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  const worker::Options options =
      worker::ParseOptions(static_cast<int>(argv.size()), argv.data()).options.value();
  auto model = worker::LoadModel(options, nullptr);
  REQUIRE(model.ok());
  const worker::Layout& layout = (*model)->layout();
  worker::ClusterOptions to;
  to.cluster = cluster.address();
  to.job = "reference";
  to.transport = TestTransport();
  auto store = worker::ClientStore::Connect(to, layout, {}, worker::TrainingSpecOf(options, kSteps));
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  REQUIRE(worker::PullAll(store->get()).ok());
  worker::Schedule schedule((*model)->examples(), worker::BatchOf(options), 1, 0, options.seed,
                            (*model)->order());
  std::vector<float> gradient(layout.floats());
  uint64_t expected = 0;
  for (const auto& [step, parts] : record) {
    REQUIRE(step == expected++);
    float* const sum = (*store)->gradient();
    std::fill_n(sum, layout.floats(), 0.0f);
    for (const auto& [rank, part] : parts) {  // in the order of ranks
      schedule.Divide(part.parts, part.part - 1);
      const worker::Schedule::Share share = schedule.Step(step);
      worker::Batch batch;
      batch.ids.assign(share.ids.begin(), share.ids.end());
      batch.penalty = static_cast<double>(share.ids.size()) / static_cast<double>(share.batch);
      REQUIRE((*model)->Prepare(&batch).ok());
      REQUIRE((*model)
                  ->Gradient(batch, 1 / static_cast<double>(share.batch),
                             {(*store)->parameters(), {}}, {gradient.data(), {}})
                  .ok());
      for (size_t i = 0; i < layout.floats(); ++i) sum[i] += gradient[i];
    }
    for (size_t i = 0; i < layout.size(); ++i) (*store)->Push(i);
    (*store)->EndStep();
    for (size_t i = 0; i < layout.size(); ++i) (*store)->Pull(i);
    REQUIRE((*store)->Wait().ok());
  }
  return absl::StrFormat("%016x", worker::HashParameters(layout, (*store)->parameters()));
}

// Whether some step's batch was divided among so many, after a step of the number before.
void CheckNumbers(const Record& record, std::vector<uint64_t> numbers) {
  size_t found = 0;
  for (const auto& [step, parts] : record) {
    if (found < numbers.size() && parts.begin()->second.parts == numbers[found]) ++found;
  }
  CAPTURE(found);
  CHECK(found == numbers.size());
}

// Workers that had a part in the step before have it in this one, unless one left or was killed:
// all examples of the batches are used. Returns the number of steps that lack a part.
int Incomplete(const Record& record) {
  int incomplete = 0;
  for (const auto& [step, parts] : record) {
    CAPTURE(step);
    std::vector<bool> had(parts.begin()->second.parts);
    for (const auto& [rank, part] : parts) {
      REQUIRE(part.parts == had.size());
      REQUIRE(!had[part.part - 1]);
      had[part.part - 1] = true;
    }
    incomplete += parts.size() == had.size() ? 0 : 1;
  }
  return incomplete;
}

TEST_CASE("workers of verbena-train join, leave and are killed in a run, and begin again") {
  World w;
  Process* const first = w.Start();
  Process* const second = w.Start();
  REQUIRE(w.WaitForParts(first, 2));
  // 2 -> 4
  Process* const third = w.Start();
  REQUIRE(w.WaitForParts(third, 3));
  REQUIRE(setenv("END_AFTER_STEPS", "500", 1) == 0);
  Process* const killed = w.Start(std::getenv("VERBENA_ENDING_TRAIN"));
  REQUIRE(w.WaitForParts(third, 4));
  // 4 -> 3: one leaves, without a step that lacks its part.
  w.Leave(third);
  REQUIRE(w.WaitForParts(first, 3));
  // 3 -> 2: one is killed.
  CHECK(killed->Wait() == 128 + SIGKILL);
  const auto waits_for = [&](int parts) {
    const size_t from = first->err().size();
    return Eventually([&] {
      return first->err().find(absl::StrCat(" of ", parts, "\n"), from) != std::string::npos;
    });
  };
  REQUIRE(waits_for(2));
  // 2 -> 3, in the place of it.
  Process* const fourth = w.Start();
  REQUIRE(w.WaitForParts(fourth, 3));
  for (Process* worker : {first, second, fourth}) worker->Signal(SIGTERM);
  for (Process* worker : {first, second, fourth}) CHECK(worker->Wait() == 143);
  const Record record = w.Recorded();
  CheckNumbers(record, {2, 4, 3, 2, 3});
  CHECK(Incomplete(record) == 1);  // of the killed one
  const uint64_t steps = record.rbegin()->first + 1;
  CHECK(w.Checksum(steps) == w.Reference(record));

  // The same command line goes on.
  Process* const again = w.Start();
  w.Start();
  REQUIRE(again->WaitFor(absl::StrCat(" step ", steps + kGoOn, " part ")));
  const std::string err = again->err();
  CHECK(err.find(absl::StrCat(" step ", steps + 1, " part ")) != std::string::npos);
  CHECK(err.find(absl::StrCat(" step ", steps, " part ")) == std::string::npos);
  w.Leave(again);
  w.Leave(w.processes.back().get());
}

}  // namespace elastic_train_test
}  // namespace verbena::test
