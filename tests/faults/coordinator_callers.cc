#include "tests/faults/coordinator_callers.h"

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace verbena::test {
namespace {

using Kind = RecordedCall::Kind;
using Outcome = RecordedCall::Outcome;

// The check searches each table's calls among all reads: neither may be too many.
constexpr absl::Duration kBetweenChanges = absl::Milliseconds(40);
constexpr absl::Duration kBetweenReads = absl::Milliseconds(40);
constexpr uint64_t kChangesOfNames = 12;

bool IsDefinite(const absl::Status& status) {
  return status.ok() || absl::IsNotFound(status) || absl::IsAlreadyExists(status) ||
         absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

std::string NewId(std::mt19937_64& random) {
  std::string id(16, '\0');
  for (char& c : id) c = static_cast<char>(random());
  return id;
}

}  // namespace

CoordinatorCallers::CoordinatorCallers(std::vector<std::string> coordinators)
    : coordinators_(std::move(coordinators)), all_(absl::StrJoin(coordinators_, ",")) {
  std::random_device device;
  for (int i = 0; i < 2; ++i) {
    threads_.emplace_back([this, seed = device()] { Change(seed); });
    threads_.emplace_back([this, seed = device()] { Read(seed); });
  }
}

void CoordinatorCallers::End() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

std::string CoordinatorCallers::Counts() const {
  int known = 0, open = 0, reads = 0;
  for (const RecordedCall& call : history_.calls()) {
    const bool done = call.outcome != Outcome::kUnknown;
    if (call.kind == Kind::kRead) {
      reads += done ? 1 : 0;
    } else {
      ++(done ? known : open);
    }
  }
  return absl::StrCat(known, " recorded changes, ", open, " of unknown outcome, ", reads, " reads");
}

// Names change over time: a call of unknown outcome explains much of what later ones on its table
// return. Some calls are on earlier names, most of which are dropped so.
std::string CoordinatorCallers::TableName(std::mt19937_64& random) {
  const uint64_t generation = changes_++ / kChangesOfNames;
  const uint64_t back = random() % 3 == 0 ? std::min<uint64_t>(generation, random() % 3) : 0;
  return absl::StrCat(kRecordedTables, generation - back, "-", random() % 3);
}

template <typename Request, typename Response>
std::optional<absl::StatusOr<Response>> CoordinatorCallers::Attempt(GrpcControlChannel& channel,
                                                                    const char* method,
                                                                    Request request, Kind kind,
                                                                    const std::string& name,
                                                                    std::mt19937_64& random) {
  request.set_request_id(NewId(random));
  const bool once = random() % 8 == 0;
  for (int attempt = 0; !stop_ && (attempt == 0 || !once); ++attempt) {
    // A request id makes at most one change. An attempt that changes nothing leaves no trace of the
    // id, so one without an answer may make the change after that.
    if (attempt == 1 && kind != Kind::kJoin) history_.Begin(kind, name);
    const absl::Duration timeout =
        random() % (once ? 2 : 8) == 0 ? absl::Milliseconds(5) : absl::Seconds(2);
    absl::StatusOr<Response> answer =
        CallCluster<Response>(channel, all_, method, request, timeout);
    if (IsDefinite(answer.status())) return answer;
    absl::SleepFor(absl::Milliseconds(50));
  }
  return std::nullopt;
}

void CoordinatorCallers::Change(uint64_t seed) {
  std::mt19937_64 random(seed);
  GrpcControlChannel channel(nullptr, nullptr, absl::Milliseconds(300));
  for (; !stop_; absl::SleepFor(kBetweenChanges)) {
    const std::string name = TableName(random);
    const uint64_t kind = random() % 8;
    if (kind == 0) {
      v1::JoinWorkerRequest request;
      request.set_job(kCallersJob);
      request.set_observer(true);
      const size_t call = history_.Begin(Kind::kJoin);
      auto joined = Attempt<v1::JoinWorkerRequest, v1::JoinWorkerResponse>(
          channel, "JoinWorker", request, Kind::kJoin, "", random);
      if (!joined) continue;
      if (!joined->ok()) {
        history_.Refused(call);
        continue;
      }
      history_.Joined(call, (*joined)->incarnation());
      v1::LeaveRequest leave;
      leave.set_request_id(NewId(random));
      leave.set_incarnation((*joined)->incarnation());
      // Its lease ends otherwise.
      (void)CallCluster<v1::LeaveResponse>(channel, all_, "Leave", leave, absl::Seconds(1));
    } else if (kind < 5) {
      v1::CreateTableRequest request;
      v1::TableSpec* spec = request.mutable_spec();
      spec->set_name(name);
      spec->set_job(kCallersJob);
      spec->add_shape(16);
      spec->set_consistency(v1::CONSISTENCY_ASYNC);
      spec->set_chunk_bytes(4096);
      spec->mutable_optimizer()->set_name("sgd");
      spec->mutable_optimizer()->set_rate(1);
      const size_t call = history_.Begin(Kind::kCreate, name);
      auto made = Attempt<v1::CreateTableRequest, v1::CreateTableResponse>(
          channel, "CreateTable", request, Kind::kCreate, name, random);
      if (!made) continue;
      made->ok() ? history_.Created(call, (*made)->table().id()) : history_.Refused(call);
    } else {
      v1::DropTableRequest request;
      request.set_name(name);
      const size_t call = history_.Begin(Kind::kDrop, name);
      auto dropped = Attempt<v1::DropTableRequest, v1::DropTableResponse>(
          channel, "DropTable", request, Kind::kDrop, name, random);
      if (!dropped) continue;
      if (dropped->ok()) {
        history_.Dropped(call, true, (*dropped)->revision());
      } else if (absl::IsNotFound(dropped->status())) {
        history_.Dropped(call, false, 0);
      } else {
        history_.Refused(call);
      }
    }
  }
}

// Half of them at one coordinator by itself: one that has been stopped may take itself for the
// leader.
void CoordinatorCallers::Read(uint64_t seed) {
  std::mt19937_64 random(seed);
  GrpcControlChannel channel(nullptr, nullptr, absl::Milliseconds(300));
  for (; !stop_; absl::SleepFor(kBetweenReads)) {
    // It may be stopped in the middle of the call, and answer when it runs on.
    const absl::Duration timeout = absl::Milliseconds(random() % 16 == 0 ? 8000 : 300);
    const size_t call = history_.Begin(Kind::kRead);
    const auto view =
        CallCluster<v1::GetViewResponse>(channel, coordinators_[random() % coordinators_.size()],
                                         "GetView", v1::GetViewRequest(), timeout);
    if (view.ok()) history_.Read(call, view->view());
  }
}

}  // namespace verbena::test
