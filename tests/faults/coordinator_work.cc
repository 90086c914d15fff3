#include "tests/faults/coordinator_work.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "absl/strings/str_cat.h"

namespace verbena::test {

v1::TableSpec Spec(const std::string& name, v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.add_shape(kElements);
  spec.set_consistency(consistency);
  spec.set_chunk_bytes(4096);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

std::unique_ptr<Process> StartCoordinator(const std::string& address,
                                          std::vector<std::string> state) {
  std::vector<std::string> argv = {
      VerbenadPath(), "--coordinator", "--shards",           "0", "--listen", address,
      "--lease-ms",   "4000",          "--expected-servers", "1"};
  argv.insert(argv.end(), state.begin(), state.end());
  auto process = std::make_unique<Process>(argv);
  INFO(process->err());
  REQUIRE(process->WaitFor(" ready"));
  return process;
}

Work::Work(const std::string& coordinators) {
  const char* const jobs[] = {"async", "sync", "tables"};
  for (const char* job : jobs) {
    ClientOptions options;
    options.cluster = coordinators;
    options.job = job;
    options.timeout = kPatience;
    options.transport = TestTransport();
    auto client = Client::Connect(options);
    INFO(client.status());
    REQUIRE(client.ok());
    clients_.push_back(*std::move(client));
  }
  for (size_t i = 0; i < trainings_.size(); ++i) {
    auto table = clients_[i]->CreateTable(Spec(absl::StrCat("trained-", jobs[i]), kinds[i]));
    INFO(table.status());
    REQUIRE(table.ok());
    trainings_[i].table = *table;
  }
  for (size_t i = 0; i < trainings_.size(); ++i) threads_.emplace_back([this, i] { Train(i); });
  threads_.emplace_back([this] { Tables(); });
}

void Work::End() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Work::CheckTables() {
  for (size_t i = 0; i < trainings_.size(); ++i) {
    auto parameters = clients_[i]->AllocateRegion(kElements * 4);
    REQUIRE(parameters.ok());
    const absl::Status pulled = clients_[i]->Pull(trainings_[i].table, *parameters).Wait();
    INFO(pulled);
    REQUIRE(pulled.ok());
    const float wanted = -static_cast<float>(trainings_[i].pushes.load());
    CHECK(std::count(parameters->floats(), parameters->floats() + kElements, wanted) ==
          static_cast<int64_t>(kElements));
  }
}

std::string Work::failed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failed_;
}

void Work::Note(const char* call, const absl::Status& status) {
  ++calls_;
  if (status.ok()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.empty()) failed_ = absl::StrCat(call, ": ", status.ToString());
  stop_ = true;
}

void Work::Train(size_t i) {
  Client& client = *clients_[i];
  auto gradient = client.AllocateRegion(kElements * 4);
  auto parameters = client.AllocateRegion(kElements * 4);
  if (!gradient.ok() || !parameters.ok())
    return Note("AllocateRegion", absl::InternalError("no region"));
  std::fill_n(gradient->floats(), kElements, 1.0f);
  while (!stop_) {
    Ticket push = client.Push(trainings_[i].table, *gradient);
    std::optional<Ticket> end;
    if (kinds[i] == v1::CONSISTENCY_SYNC) end = client.EndStep(trainings_[i].table);
    const absl::Status pushed = push.Wait();
    if (end) Note("EndStep", end->Wait());
    Note("Push", pushed);
    if (pushed.ok()) ++trainings_[i].pushes;
    Note("Pull", client.Pull(trainings_[i].table, *parameters).Wait());
  }
}

void Work::Tables() {
  while (!stop_) {
    const std::string name = absl::StrCat("table-", tables_.load());
    Note("CreateTable", clients_[2]->CreateTable(Spec(name)).status());
    Note("DropTable", clients_[2]->DropTable(name));
    ++tables_;
  }
}

std::vector<uint64_t> Members(const v1::ClusterView& view) {
  std::vector<uint64_t> members;
  for (const v1::Server& server : view.servers()) {
    if (server.state() == v1::Server::ALIVE) members.push_back(server.incarnation());
  }
  for (const v1::Job& job : view.jobs()) {
    if (job.name() == kCallersJob) continue;
    for (const v1::Worker& worker : job.members()) members.push_back(worker.incarnation());
  }
  std::sort(members.begin(), members.end());
  return members;
}

World::World(const EtcdClusterOptions& options) : cluster(options) {
  REQUIRE(cluster.WaitLeader() >= 0);
  work = std::make_unique<Work>(cluster.address());
  v1::ClusterView view;
  REQUIRE(cluster.WaitLeader(-1, &view) >= 0);
  members = Members(view);
  REQUIRE(members.size() == static_cast<size_t>(options.servers + 3));
  callers = std::make_unique<CoordinatorCallers>(cluster.coordinators());
}

void World::Goes(const char* after) {
  const int64_t pushes = work->pushes(), tables = work->tables();
  const bool went = Eventually(
      [&] {
        return !work->failed().empty() ||
               (work->pushes() > pushes + 2 && work->tables() > tables + 2);
      },
      kPatience);
  INFO(cluster.logs());
  INFO(after);
  REQUIRE(work->failed().empty());
  REQUIRE(went);
}

void World::Flows(const char* during) {
  const int64_t pushes = work->pushes();
  INFO(cluster.logs());
  INFO(during);
  REQUIRE(Eventually([&] { return work->pushes() > pushes + 5 || !work->failed().empty(); },
                     kPatience));
  REQUIRE(work->failed().empty());
}

std::string World::Check() {
  work->End();
  callers->End();
  INFO(cluster.logs());
  CHECK(work->failed() == "");
  work->CheckTables();
  v1::ClusterView view;
  REQUIRE(cluster.WaitLeader(-1, &view) >= 0);
  CHECK(Members(view) == members);
  CHECK(callers->Violation() == "");
  return absl::StrCat(work->calls(), " calls, ", work->pushes(), " pushes of the slower training, ",
                      work->tables(), " tables, term ", view.term(), "; ", callers->Counts());
}

}  // namespace verbena::test
