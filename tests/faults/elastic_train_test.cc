// verbena-train --max-workers: workers that join, leave and are killed, and that begin again with
// the same command line, against a reference in one process.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cluster.h"
#include "tests/support/libsvm_examples.h"
#include "verbena/client.h"
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

std::string Examples() { return LibsvmExamples(3000); }

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
  auto store =
      worker::ClientStore::Connect(to, layout, {}, worker::TrainingSpecOf(options, kSteps));
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

// A job of two workers that one program launches.
std::vector<std::string> Launched(const World& w, const std::string& job, int steps,
                                  const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = w.Words(TrainPath(), steps);
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--max-workers") words[i + 1] = "0";
    if (words[i] == "--job") words[i + 1] = job;
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("SIGTERM drains a step of all workers, and the same command goes on to the same bits") {
  World w;
  Process run(Launched(w, "job", kSteps));
  REQUIRE(run.WaitFor(") step 20\n"));
  run.Signal(SIGTERM);
  REQUIRE(run.Wait() == 128 + SIGTERM);
  std::smatch ended;
  const std::string err = run.err();
  INFO(err.substr(err.size() > 500 ? err.size() - 500 : 0));
  REQUIRE(std::regex_search(
      err, ended,
      std::regex("SIGTERM: ended after step (\\d+); the tables of job 'job' are kept")));
  const int steps = std::stoi(ended[1]);
  for (const std::string worker : {"worker 0 ", "worker 1 "}) {
    CHECK(std::regex_search(err, std::regex(absl::StrCat(worker, ".* step ", steps, "\n"))));
    CHECK_FALSE(
        std::regex_search(err, std::regex(absl::StrCat(worker, ".* step ", steps + 1, "\n"))));
  }
  const Finished resumed = RunProgram(Launched(w, "job", steps + kGoOn));
  INFO(resumed.err);
  REQUIRE(resumed.status == 0);
  const Finished whole = RunProgram(Launched(w, "whole", steps + kGoOn));
  REQUIRE(whole.status == 0);
  CHECK(JsonField(resumed.out, "parameters_xxh64") == JsonField(whole.out, "parameters_xxh64"));
  // Once more: there is nothing to do, and that is no failure.
  const Finished again = RunProgram(Launched(w, "job", steps + kGoOn));
  CHECK(again.status == 0);
  CHECK(JsonField(again.out, "parameters_xxh64") == JsonField(whole.out, "parameters_xxh64"));
}

TEST_CASE("regression: a signal ends a worker that waits for others before its first step") {
  World w;
  Process alone(w.Words(TrainPath(), kSteps));  // a run begins with two
  REQUIRE(Eventually([&] {
    const Finished workers =
        RunProgram({CliPath(), "--cluster", w.cluster.address(), "workers", "--json"});
    return workers.out.find("\"job\": \"job\"") != std::string::npos;
  }));
  alone.Signal(SIGTERM);
  CHECK(alone.Wait(absl::Seconds(15)) == 128 + SIGTERM);
}

TEST_CASE("a second signal ends a worker that cannot end its step") {
  World w;
  const bool launched = GENERATE(true, false);
  CAPTURE(launched);
  Process first(launched ? Launched(w, "job", kSteps) : w.Words(TrainPath(), kSteps));
  Process* const second = launched ? nullptr : w.Start();
  REQUIRE(first.WaitFor(" step 20"));
  w.cluster.server(0).Signal(SIGSTOP);
  first.Signal(SIGTERM);
  REQUIRE(first.WaitFor(launched ? "SIGTERM: the workers end after this step"
                                 : "SIGTERM: ends after this step"));
  CHECK(first.running());
  first.Signal(SIGTERM);
  CHECK(first.Wait(absl::Seconds(10)) == 128 + SIGTERM);
  w.cluster.server(0).Signal(SIGCONT);
  if (second != nullptr) CHECK(second->running());
}

// As a worker that was killed between the pushes of one step, which ended the run.
void MakeStepOf(const World& w, const std::string& table) {
  ClientOptions options;
  options.cluster = w.cluster.address();
  options.job = "job";
  options.expected_workers = 2;
  options.transport = TestTransport();
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Region> regions;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(Client::Connect(options).value());
    const Table opened = clients[i]->OpenTable(table).value();
    regions.push_back(clients[i]->AllocateRegion(opened.bytes()).value());
    std::fill_n(regions[i].floats(), opened.elements(), 0.0f);
    tickets.push_back(clients[i]->Push(opened, regions[i]));
    tickets.push_back(clients[i]->EndStep(opened));
  }
  for (Ticket& ticket : tickets) REQUIRE(ticket.Wait().ToString() == "OK");
}

TEST_CASE("a run that ended inside a step is not resumed as if it had not, nor trained twice") {
  World w;
  REQUIRE(RunProgram(Launched(w, "job", 10)).status == 0);
  const std::string table = GENERATE("bias", "steps", "weights");
  CAPTURE(table);
  MakeStepOf(w, "job/" + table);
  const std::string lacking = table == "bias"      ? "tables weights, steps lack"
                              : table == "weights" ? "tables bias, steps lack"
                                                   : "tables weights, bias lack";
  // The table "steps" has counted no step of the model here.
  const std::string inside = absl::StrCat("the run before ended inside step ",
                                          table == "steps" ? 10 : 11, ", which ", lacking);
  const Finished refused = RunProgram(Launched(w, "job", 30, {"--resume", "yes"}));
  CHECK(refused.status == 1);
  CHECK_THAT(refused.err, Contains("--resume: " + inside + "; restore an earlier checkpoint"));
  const Finished resumed = RunProgram(Launched(w, "job", 30));
  INFO(resumed.err);
  CHECK(resumed.status == 0);
  CHECK_THAT(resumed.err, Contains("warning: --resume: " + inside + "; training goes on after it"));
  const int next = table == "steps" ? 11 : 12;
  CHECK_THAT(resumed.err, Contains(absl::StrCat(") step ", next, "\n")) &&
                              !Contains(absl::StrCat(") step ", next - 1, "\n")));
  // It is not left out again.
  const Finished later = RunProgram(Launched(w, "job", 40));
  CHECK(later.status == 0);
  CHECK_THAT(later.err, Contains(") step 31\n") && !Contains(") step 30\n"));
  CHECK_THAT(later.err, !Contains("ended inside"));
}

}  // namespace elastic_train_test
}  // namespace verbena::test
