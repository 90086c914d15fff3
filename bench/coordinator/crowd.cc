#include "bench/coordinator/crowd.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/cluster_history.h"
#include "server/coordinator/sqlite_store.h"

namespace verbena::bench {
namespace {

constexpr int kChanges = 200;
constexpr uint32_t kLeaseMs = 600'000;  // none ends meanwhile

uint64_t ResidentBytes() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

// Calls a method whose answer comes before it returns.
template <typename Response, typename Request>
absl::StatusOr<Response> Call(
    server::Coordinator* coordinator,
    void (server::Coordinator::*method)(const Request&, server::Coordinator::Reply<Response>),
    const Request& request) {
  absl::StatusOr<Response> answer = absl::InternalError("no answer");
  (coordinator->*method)(request, [&](absl::StatusOr<Response> r) { answer = std::move(r); });
  return answer;
}

}  // namespace

absl::Status TimedStore::SaveAll(const server::CoordinatorState& state,
                                 absl::Span<const server::StateChange> changes) {
  const int64_t began = clock_.NowNanos();
  absl::Status status = store_->SaveAll(state, changes);
  nanos_ += clock_.NowNanos() - began;
  return status;
}

std::string Crowd::NewId() {
  std::string id(16, '\0');
  ++ids_;
  for (int i = 0; i < 8; ++i) id[i] = static_cast<char>(ids_ >> (8 * i));
  return id;
}

absl::Status Crowd::Start() {
  if (options_.directory.empty()) {
    store_ = std::make_unique<TimedStore>(std::make_unique<server::MemoryStore>());
  } else {
    auto opened = server::SqliteStore::Open(options_.directory);
    if (!opened.ok()) return opened.status();
    store_ = std::make_unique<TimedStore>(*std::move(opened));
  }
  return MakeCoordinator();
}

absl::Status Crowd::MakeCoordinator() {
  server::CoordinatorOptions options;
  options.partitions = static_cast<uint32_t>(options_.partitions);
  options.replicas = 2;
  options.lease_ms = kLeaseMs;
  auto made = server::Coordinator::Create(options, &clock_, store_.get());
  if (!made.ok()) return made.status();
  coordinator_ = *std::move(made);
  return absl::OkStatus();
}

void Crowd::Watch(Member* member) {
  member->watching = true;
  v1::GetViewRequest request;
  request.set_known_revision(member->seen.revision());
  *request.mutable_seen() = member->seen;
  request.set_incarnation(member->incarnation);
  request.set_wait_ms(30'000);
  request.set_takes_changes(true);
  coordinator_->GetView(request, [this, member](absl::StatusOr<v1::GetViewResponse> response) {
    member->watching = false;
    if (!response.ok()) return;
    buffer_.clear();
    response->SerializeToString(&buffer_);
    answered_bytes_ += buffer_.size();
    if (response->has_view()) member->seen = SeenOf(response->view());
    if (!response->changes().empty()) {
      member->seen.set_revision(response->changes().rbegin()->revision());
    }
  });
}

void Crowd::WatchAll() {
  const uint64_t revision = coordinator_->view().revision();
  for (const auto& member : members_) {
    // One that is behind is answered at once, and watches again.
    while (!member->watching) Watch(member.get());
  }
  for (const auto& member : members_) {
    while (member->seen.revision() != revision) {
      const int64_t due = coordinator_->NextTimerNanos() - clock_.NowNanos();
      if (due > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(due));
      coordinator_->RunOnce();
      while (!member->watching) Watch(member.get());
    }
  }
}

absl::Status Crowd::JoinServers() {
  for (int i = 0; i < options_.servers; ++i) {
    v1::JoinServerRequest request;
    request.set_request_id(NewId());
    request.set_name(absl::StrCat("server-", i));
    request.set_address(absl::StrCat("10.0.", i / 250, ".", i % 250, ":7000"));
    request.set_shards(8);
    const auto joined = Call(coordinator_.get(), &server::Coordinator::JoinServer, request);
    if (!joined.ok()) return joined.status();
    auto member = std::make_unique<Member>();
    member->incarnation = joined->incarnation();
    member->seen = SeenOf(joined->view());
    members_.push_back(std::move(member));
  }
  return absl::OkStatus();
}

absl::Status Crowd::MakeTables() {
  for (int i = 0; i < options_.tables; ++i) {
    v1::CreateTableRequest request;
    request.set_request_id(NewId());
    v1::TableSpec* spec = request.mutable_spec();
    spec->set_name(absl::StrCat("table-", i));
    spec->set_job("job");
    spec->add_shape(1 << 20);
    spec->set_dtype(v1::DTYPE_F32);
    spec->set_consistency(v1::CONSISTENCY_ASYNC);
    spec->mutable_optimizer()->set_name("sgd");
    spec->mutable_optimizer()->set_rate(0.1);
    const auto made = Call(coordinator_.get(), &server::Coordinator::CreateTable, request);
    if (!made.ok()) return made.status();
  }
  return absl::OkStatus();
}

// As many calls as wait for the coordinator while it handles others.
absl::Status Crowd::JoinSome(int count) {
  absl::Status status;
  coordinator_->BeginGroup();
  for (int i = 0; i < count; ++i) {
    v1::JoinWorkerRequest request;
    request.set_request_id(NewId());
    request.set_job("job");
    request.set_name(absl::StrCat("host-", members_.size() + static_cast<size_t>(i)));
    request.set_expected_workers(static_cast<uint32_t>(options_.workers));
    request.set_rank(-1);
    coordinator_->JoinWorker(request, [&](absl::StatusOr<v1::JoinWorkerResponse> joined) {
      status.Update(joined.status());
      if (!joined.ok()) return;
      buffer_.clear();
      joined->SerializeToString(&buffer_);
      auto member = std::make_unique<Member>();
      member->incarnation = joined->incarnation();
      member->seen = SeenOf(joined->view());
      members_.push_back(std::move(member));
    });
  }
  coordinator_->EndGroup();
  return status;
}

absl::Status Crowd::JoinWorkers() {
  WatchAll();
  const int64_t began = clock_.NowNanos();
  const double saving = store_->seconds();
  for (int joined = 0; joined < options_.workers; joined += options_.joins_together) {
    const absl::Status status =
        JoinSome(std::min(options_.joins_together, options_.workers - joined));
    if (!status.ok()) return status;
    coordinator_->RunOnce();
    for (const auto& m : members_) {
      while (!m->watching) Watch(m.get());
    }
  }
  WatchAll();
  figures_.joins_s = static_cast<double>(clock_.NowNanos() - began) / 1e9;
  figures_.joins_saving_s = store_->seconds() - saving;
  return absl::OkStatus();
}

// Drops a follower, so that another server gets a learner, as after the death of a server.
absl::Status Crowd::ChangeConfigurations() {
  const uint64_t before = answered_bytes_;
  for (int i = 0; i < kChanges; ++i) {
    const v1::Partition partition = coordinator_->view().partitions(i % options_.partitions);
    if (partition.followers().empty()) continue;
    v1::ReconfigureRequest ask;
    ask.set_request_id(NewId());
    ask.set_incarnation(partition.primary());
    const auto ticket = Call(coordinator_.get(), &server::Coordinator::Reconfigure, ask);
    if (!ticket.ok()) return ticket.status();
    v1::ReconfigureRequest request;
    request.set_request_id(NewId());
    request.set_incarnation(partition.primary());
    *request.mutable_ticket() = ticket->ticket();
    v1::ConfigurationChange* change = request.add_changes();
    change->set_kind(v1::ConfigurationChange::DROP_REPLICA);
    change->set_partition(partition.id());
    change->set_configuration(partition.configuration());
    change->set_server(partition.followers(0).server());
    WatchAll();
    // Published at once, as changes are that come now and then.
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    const double saving = store_->seconds();
    const int64_t began = clock_.NowNanos();
    const auto made = Call(coordinator_.get(), &server::Coordinator::Reconfigure, request);
    if (!made.ok()) return made.status();
    WatchAll();
    figures_.changes_ms.push_back(static_cast<double>(clock_.NowNanos() - began) / 1e6);
    figures_.changes_saving_ms.push_back((store_->seconds() - saving) * 1e3);
  }
  if (figures_.changes_ms.empty()) return absl::InternalError("no partition has a follower");
  figures_.change_bytes = static_cast<double>(answered_bytes_ - before) /
                          static_cast<double>(figures_.changes_ms.size());
  return absl::OkStatus();
}

absl::Status Crowd::BeatHearts() {
  const int64_t began = clock_.NowNanos();
  for (int i = 0; i < options_.servers; ++i) {
    v1::HeartbeatRequest request;
    request.set_incarnation(members_[i]->incarnation);
    *request.mutable_seen() = members_[i]->seen;
    request.set_server(true);
    const auto beat = Call(coordinator_.get(), &server::Coordinator::Heartbeat, request);
    if (!beat.ok()) return beat.status();
  }
  figures_.heartbeat_us =
      static_cast<double>(clock_.NowNanos() - began) / 1e3 / std::max(options_.servers, 1);
  return absl::OkStatus();
}

absl::Status Crowd::StartAgain() {
  figures_.view_bytes = coordinator_->view().ByteSizeLong();
  figures_.resident_bytes = ResidentBytes();
  constexpr int kTimes = 20;
  v1::GetViewResponse answer;
  *answer.mutable_view() = coordinator_->view();
  answer.set_changed(true);
  int64_t began = clock_.NowNanos();
  for (int i = 0; i < kTimes; ++i) {
    buffer_.clear();
    answer.SerializeToString(&buffer_);
  }
  figures_.whole_answer_us = static_cast<double>(clock_.NowNanos() - began) / 1e3 / kTimes;
  coordinator_.reset();
  began = clock_.NowNanos();
  const absl::Status status = MakeCoordinator();
  figures_.start_ms = static_cast<double>(clock_.NowNanos() - began) / 1e6;
  return status;
}

absl::StatusOr<CrowdFigures> Crowd::Run(const CrowdOptions& options) {
  Crowd crowd(options);
  for (absl::Status (Crowd::*step)() :
       {&Crowd::Start, &Crowd::JoinServers, &Crowd::MakeTables, &Crowd::JoinWorkers,
        &Crowd::ChangeConfigurations, &Crowd::BeatHearts, &Crowd::StartAgain}) {
    if (absl::Status status = (crowd.*step)(); !status.ok()) return status;
  }
  // Polls that wait name members.
  crowd.coordinator_.reset();
  return crowd.figures_;
}

}  // namespace verbena::bench
