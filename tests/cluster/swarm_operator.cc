#include "tests/cluster/swarm_operator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace verbena::test {

SwarmOperator::SwarmOperator(SwarmWorld* world)
    : world_(world), channel_(world->cluster->control().NewChannel("operator")) {}

template <typename Response, typename Request>
void SwarmOperator::Call(const char* method, Request request, OnOk<Response> on_ok) {
  std::string id(16, '\0');
  for (char& c : id) c = static_cast<char>(world_->Between(0, 255));
  request.set_request_id(id);
  ++calls_;
  Send<Response>(method, std::make_shared<Request>(std::move(request)), std::move(on_ok));
}

template <typename Response, typename Request>
void SwarmOperator::Send(const char* method, std::shared_ptr<Request> request,
                         OnOk<Response> on_ok) {
  const auto response = std::make_shared<Response>();
  channel_->Unary(kCoordinatorAddress, absl::StrCat("/verbena.v1.Cluster/", method), *request,
                  response, absl::Milliseconds(500),
                  [this, method, request, response, on_ok](absl::Status status) {
                    last_ = status;
                    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
                      return Send<Response>(method, request, on_ok);
                    }
                    if (status.ok() && on_ok) on_ok(*response);
                    if (absl::IsInvalidArgument(status)) {
                      world_->Violation(absl::StrCat("operator: ", method, ": ", status.ToString(),
                                                     "; ", request->ShortDebugString()));
                    }
                    --calls_;
                  });
}

SwarmTable* SwarmOperator::AnyTable() {
  std::vector<SwarmTable*> tables;
  for (auto& [id, table] : world_->tables) {
    if (!table.dropped()) tables.push_back(&table);
  }
  return tables.empty() ? nullptr : tables[world_->Pick(tables.size())];
}

bool SwarmOperator::HasWorkers(const SwarmJob& job) const {
  const auto& jobs = world_->cluster->view().jobs();
  return std::any_of(jobs.begin(), jobs.end(), [&](const v1::Job& j) {
    return j.name() == job.plan.name &&
           std::any_of(j.members().begin(), j.members().end(),
                       [](const v1::Worker& w) { return w.rank() >= 0; });
  });
}

void SwarmOperator::Restart() {
  for (SwarmJob& job : world_->jobs) {
    if (!job.plan.steps) continue;
    job.restart |= job.norm.Apart();
    if (world_->stage == SwarmStage::kFaults && world_->Chance(0.03)) job.restart = true;
  }
}

// A table is reset when its job has no workers: they leave first.
bool SwarmOperator::Reset() {
  bool draining = false;
  for (SwarmJob& job : world_->jobs) {
    const SwarmTable* table = nullptr;
    for (const auto& [id, t] : world_->tables) {
      if (!t.dropped() && t.lost_any() && t.spec().job() == job.plan.name) table = &t;
    }
    const bool workers = HasWorkers(job);
    job.restart = job.restart && workers;
    job.draining = table != nullptr || job.restart;
    draining |= job.draining;
    if (table == nullptr || calls_ > 0 || workers) continue;
    ++world_->result->reset;
    v1::ResetTableRequest request;
    request.set_name(table->spec().name());
    Call<v1::ResetTableResponse>("ResetTable", std::move(request));
  }
  return draining;
}

void SwarmOperator::Create() {
  v1::CreateTableRequest request;
  *request.mutable_spec() = DrawTableSpec(world_->plan, &world_->random);
  // Chunks are pushed to before they have been read; rows are made by pushes.
  for (int i = 0; i < 3 && world_->has(SwarmFeature::kEagerTables) && request.spec().dim() > 0;
       ++i) {
    *request.mutable_spec() = DrawTableSpec(world_->plan, &world_->random);
  }
  // Few names: those of dropped tables come again.
  request.mutable_spec()->set_name(absl::StrCat("t", world_->Between(0, 9)));
  const SwarmJobPlan& job = world_->jobs[world_->Pick(world_->jobs.size())].plan;
  request.mutable_spec()->set_job(job.name);
  DrawSteps(world_->plan, job, &world_->random, request.mutable_spec());
  for (const auto& [id, table] : world_->tables) {
    if (!table.dropped() && table.spec().name() == request.spec().name()) return;
  }
  Call<v1::CreateTableResponse>(
      "CreateTable", std::move(request),
      [this](const v1::CreateTableResponse& made) { made_.push_back(made.table().id()); });
}

void SwarmOperator::Drop(const SwarmTable& table) {
  v1::DropTableRequest request;
  request.set_name(table.spec().name());
  // One that is being restored may share its name with one that is served.
  const bool served = !table.restoring();
  Call<v1::DropTableResponse>("DropTable", std::move(request),
                              [this, served, id = table.id()](const v1::DropTableResponse&) {
                                if (served) dropped_.push_back(id);
                              });
}

bool SwarmOperator::Runs(const v1::Server& server) const {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* process = world_->cluster->server(i);
    if (process != nullptr && process->incarnation() == server.incarnation())
      return !process->ended();
  }
  return false;
}

void SwarmOperator::Remove() {
  // No server that still runs: until it and its readers hear of its removal, they may read lost
  // values from it.
  std::vector<std::string> silent;
  for (const v1::Server& server : world_->cluster->view().servers()) {
    if (server.state() == v1::Server::SILENT && !Runs(server)) silent.push_back(server.name());
  }
  if (silent.empty()) return;
  v1::RemoveServerRequest request;
  request.set_name(silent[world_->Pick(silent.size())]);
  world_->Trace(absl::StrCat("the operator removes ", request.name()));
  world_->removed.insert(request.name());
  Call<v1::RemoveServerResponse>("RemoveServer", std::move(request));
}

bool SwarmOperator::AnyLearner() const {
  const auto& partitions = world_->cluster->view().partitions();
  return std::any_of(partitions.begin(), partitions.end(),
                     [](const v1::Partition& p) { return p.learners_size() > 0; });
}

void SwarmOperator::CheckAcknowledged() {
  if (world_->old_state) return;
  for (const uint32_t id : std::exchange(made_, {})) {
    if (world_->tables.contains(id)) continue;
    world_->Violation(
        absl::StrCat("the creation of table ", id, " was acknowledged, and it is not there"));
  }
  for (const uint32_t id : std::exchange(dropped_, {})) {
    if (world_->tables.at(id).dropped()) continue;
    world_->Violation(absl::StrCat("the drop of table ", id, " was acknowledged, and it is there"));
  }
}

void SwarmOperator::Run() {
  channel_->RunOnce();
  CheckAcknowledged();
  // Before servers have proved that the state is an old one.
  const bool first = world_->old_state && !tried_old_state_;
  tried_old_state_ = world_->old_state;
  if (first && calls_ == 0 && world_->has(SwarmFeature::kOldRequests)) return Create();
  const bool faults = world_->stage == SwarmStage::kFaults;
  const bool eager = faults && calls_ == 0 && world_->has(SwarmFeature::kEagerTables);
  const bool learner = eager && AnyLearner();
  if (world_->stage == SwarmStage::kFinish || (world_->now() < next_at_ && !learner)) return;
  next_at_ =
      world_->now() + (faults ? world_->Between(0, world_->plan.operator_pause_ns) : 20 * kMilli);
  Restart();
  if (Reset() && world_->Chance(0.5)) return;
  if (calls_ > 0) return;
  if (faults && world_->has(SwarmFeature::kRemovals) && world_->Chance(0.5)) Remove();
  if (calls_ > 0) return;
  uint32_t tables = 0;
  for (const auto& [id, table] : world_->tables) tables += table.dropped() ? 0 : 1;
  const uint32_t most = world_->plan.max_tables - (eager && !learner ? 1 : 0);
  if (faults ? tables < most : tables == 0) return Create();
  SwarmTable* table = AnyTable();
  // Table ids must have no gap between the tables that a learner has and those that are made then.
  if (eager && table != nullptr && table->id() == world_->tables.rbegin()->first) return;
  const bool drops = world_->has(SwarmFeature::kDrops) ? !learner : eager && tables > most;
  if (faults && drops && table != nullptr) Drop(*table);
}

bool SwarmOperator::idle() const {
  return calls_ == 0 &&
         std::none_of(world_->jobs.begin(), world_->jobs.end(),
                      [](const SwarmJob& job) { return job.restart; }) &&
         std::none_of(world_->tables.begin(), world_->tables.end(),
                      [](const auto& t) { return !t.second.dropped() && t.second.lost_any(); });
}

std::string SwarmOperator::Describe() const {
  std::string text = absl::StrCat("operator: ", calls_, " calls, last: ", last_.ToString());
  for (const v1::Job& job : world_->cluster->view().jobs()) {
    absl::StrAppend(&text, "; job ", job.name(), " has workers");
    for (const v1::Worker& w : job.members()) absl::StrAppend(&text, " ", w.incarnation());
  }
  return text;
}

}  // namespace verbena::test
