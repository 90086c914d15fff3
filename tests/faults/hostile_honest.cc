#include "tests/faults/hostile_honest.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "proto/control/grpc_control_channel.h"
#include "tests/support/http.h"
#include "tests/support/process.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::test {
namespace {

constexpr int kWorkers = 2;
constexpr uint64_t kNumbers = 100'000;
// Sums stay exact in f32.
constexpr uint64_t kMostSteps = 4'000'000;

v1::TableSpec SpecOf(const std::string& name, const std::string& job, v1::Consistency consistency,
                     uint64_t numbers) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job(job);
  spec.add_shape(static_cast<int64_t>(numbers));
  spec.set_dtype(v1::DTYPE_F32);
  spec.set_consistency(consistency);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  spec.set_reduction(v1::REDUCTION_SUM);
  return spec;
}

bool AllAre(const Region& region, uint64_t numbers, float value, float* other) {
  const auto* values = reinterpret_cast<const float*>(region.data());
  const float* found = std::find_if(values, values + numbers, [&](float v) { return v != value; });
  if (found == values + numbers) return true;
  *other = *found;
  return false;
}

}  // namespace

void CallTimes::Add(absl::Duration time) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ms_.push_back(absl::ToDoubleMilliseconds(time));
  longest_ms_ = std::max(longest_ms_, ms_.back());
}

std::string CallTimes::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::sort(ms_.begin(), ms_.end());
  const auto at = [&](double part) {
    return ms_.empty() ? 0.0 : ms_[static_cast<size_t>(part * static_cast<double>(ms_.size() - 1))];
  };
  std::string text = absl::StrFormat("%d calls, p50 %.2f ms, p99 %.2f, p99.9 %.2f, longest %.2f",
                                     ms_.size(), at(0.5), at(0.99), at(0.999), at(1));
  ms_.clear();
  return text;
}

absl::Duration CallTimes::longest() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return absl::Milliseconds(longest_ms_);
}

HonestUsers::HonestUsers(Options options) : options_(std::move(options)) {}
HonestUsers::~HonestUsers() { Stop(); }

ClientOptions HonestUsers::ClientOf(const std::string& job) const {
  ClientOptions options;
  options.cluster = options_.cluster;
  options.job = job;
  options.timeout = absl::Seconds(60);
  options.token_file = options_.operator_token;
  return options;
}

void HonestUsers::Took(const char* what, CallTimes* times, absl::Time begin) const {
  const absl::Duration time = absl::Now() - begin;
  times->Add(time);
  if (time > options_.longest) {
    Fail(absl::StrCat(what, " took ", absl::FormatDuration(time), ", allowed ",
                      absl::FormatDuration(options_.longest)));
  }
}

bool HonestUsers::Start() {
  for (int worker = 0; worker < kWorkers; ++worker) {
    threads_.emplace_back([this, worker] { Train(worker); });
  }
  threads_.emplace_back([this] { Quick(); });
  threads_.emplace_back([this] { Heartbeats(); });
  threads_.emplace_back([this] { Probe(); });
  return Eventually([&] { return served_ == kWorkers + 3; }, absl::Seconds(60));
}

std::string HonestUsers::Times() {
  return absl::StrCat("  training:   ", training_.Take(), "\n  quick job:  ", quick_.Take(),
                      "\n  heartbeats: ", heartbeats_.Take(), "\n  health:     ", probes_.Take(),
                      "\n");
}

std::string HonestUsers::Stop() {
  if (threads_.empty()) return "";
  over_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return CheckSums();
}

void HonestUsers::Train(int worker) {
  ClientOptions options = ClientOf("honest");
  options.expected_workers = kWorkers;
  auto client = Client::Connect(options);
  if (!client.ok()) return Fail(absl::StrCat("honest: connect: ", client.status().ToString()));
  auto sync =
      (*client)->CreateTable(SpecOf("honest-sync", "honest", v1::CONSISTENCY_SYNC, kNumbers));
  auto async =
      (*client)->CreateTable(SpecOf("honest-async", "honest", v1::CONSISTENCY_ASYNC, kNumbers));
  if (!sync.ok() || !async.ok()) {
    return Fail(absl::StrCat("honest: tables: ", sync.status().ToString(), ", ",
                             async.status().ToString()));
  }
  auto ones = (*client)->AllocateRegion(sync->bytes());
  auto read = (*client)->AllocateRegion(sync->bytes());
  if (!ones.ok() || !read.ok()) return Fail("honest: no regions");
  std::fill_n(reinterpret_cast<float*>(ones->data()), kNumbers, -1.0F);
  for (uint64_t step = 1; step <= std::min(stop_step_.load(), kMostSteps); ++step) {
    // Worker 0 ends the run at a step that the other has not reached: it waits for each commit.
    if (over_ && worker == 0 && stop_step_ == UINT64_MAX) stop_step_ = step + 1;
    absl::Time begin = absl::Now();
    absl::Status status = (*client)->PushPull(*sync, *ones, *read).Wait();
    if (!status.ok()) return Fail(absl::StrCat("honest: step: ", status.ToString()));
    Took("a step of the honest job", &training_, begin);
    float other = 0;
    if (!AllAre(*read, kNumbers, static_cast<float>(kWorkers * step), &other)) {
      return Fail(
          absl::StrCat("honest: after step ", step, ": ", other, " instead of ", kWorkers * step));
    }
    begin = absl::Now();
    status = (*client)->Push(*async, *ones).Wait();
    if (!status.ok()) return Fail(absl::StrCat("honest: async: ", status.ToString()));
    Took("an async push of the honest job", &training_, begin);
    ++pushed_;
    if (worker == 0) ++steps_;
    if (step == 1) ++served_;
    absl::SleepFor(absl::Milliseconds(5));  // leaves processor time to the hostile peers
  }
}

void HonestUsers::Quick() {
  auto client = Client::Connect(ClientOf("quick"));
  if (!client.ok()) return Fail(absl::StrCat("quick: connect: ", client.status().ToString()));
  auto table = (*client)->CreateTable(SpecOf("quick", "quick", v1::CONSISTENCY_ASYNC, 1000));
  if (!table.ok()) return Fail(absl::StrCat("quick: table: ", table.status().ToString()));
  auto region = (*client)->AllocateRegion(table->bytes());
  if (!region.ok()) return Fail("quick: no region");
  while (!over_) {
    const absl::Time begin = absl::Now();
    const absl::Status status = (*client)->Pull(*table, *region).Wait();
    if (!status.ok()) return Fail(absl::StrCat("quick: pull: ", status.ToString()));
    Took("a pull of the quick job", &quick_, begin);
    if (served_ < kWorkers + 3) {
      static std::once_flag once;
      std::call_once(once, [this] { ++served_; });
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
}

// Heartbeats of a member of its own, so that each answer's time is seen.
void HonestUsers::Heartbeats() {
  auto token = TokenFile::Open(options_.operator_token);
  if (!token.ok()) return Fail("heartbeats: no token");
  GrpcControlChannel channel(nullptr, *token);
  const auto call = [&](const char* method, const google::protobuf::Message& request,
                        const std::shared_ptr<google::protobuf::Message>& response) {
    absl::Status result = absl::UnknownError("");
    bool done = false;
    channel.Unary(options_.cluster, method, request, response, absl::Seconds(30),
                  [&](absl::Status status) {
                    result = std::move(status);
                    done = true;
                  });
    while (!done) {
      pollfd fd = {channel.wake_fd(), POLLIN, 0};
      poll(&fd, 1, 100);
      channel.RunOnce();
    }
    return result;
  };
  v1::JoinWorkerRequest join;
  join.set_request_id("heartbeats of it");
  join.set_job("beats");
  join.set_observer(true);
  const auto joined = std::make_shared<v1::JoinWorkerResponse>();
  if (const absl::Status status = call("/verbena.v1.Cluster/JoinWorker", join, joined);
      !status.ok()) {
    return Fail(absl::StrCat("heartbeats: join: ", status.ToString()));
  }
  ++served_;
  v1::HeartbeatRequest beat;
  beat.set_incarnation(joined->incarnation());
  while (!over_) {
    const absl::Time begin = absl::Now();
    const absl::Status status =
        call("/verbena.v1.Cluster/Heartbeat", beat, std::make_shared<v1::HeartbeatResponse>());
    if (!status.ok()) return Fail(absl::StrCat("a heartbeat: ", status.ToString()));
    Took("a heartbeat", &heartbeats_, begin);
    absl::SleepFor(absl::Milliseconds(100));
  }
}

void HonestUsers::Probe() {
  bool first = true;
  while (!over_) {
    for (const std::string& metrics : options_.metrics) {
      const absl::Time begin = absl::Now();
      const int status = HttpGet(metrics, "/healthz").status;
      if (status != 200) Fail(absl::StrCat("/healthz answers ", status));
      Took("/healthz", &probes_, begin);
    }
    if (std::exchange(first, false)) ++served_;
    absl::SleepFor(absl::Milliseconds(100));
  }
}

// By a client that comes new, so that one is served afterwards, too.
std::string HonestUsers::CheckSums() {
  ClientOptions options = ClientOf("honest");
  options.observer = true;
  auto client = Client::Connect(options);
  if (!client.ok()) return absl::StrCat("a new client: ", client.status().ToString());
  const auto check = [&](const char* name, uint64_t wanted) -> std::string {
    auto table = (*client)->OpenTable(name);
    if (!table.ok()) return absl::StrCat(name, ": ", table.status().ToString());
    auto region = (*client)->AllocateRegion(table->bytes());
    if (!region.ok()) return absl::StrCat(name, ": ", region.status().ToString());
    const absl::Status status = (*client)->Pull(*table, *region).Wait();
    if (!status.ok()) return absl::StrCat(name, ": ", status.ToString());
    float other = 0;
    if (AllAre(*region, kNumbers, static_cast<float>(wanted), &other)) return "";
    return absl::StrCat(name, ": ", other, " instead of ", wanted);
  };
  return check("honest-sync", kWorkers * steps_) + check("honest-async", pushed_);
}

}  // namespace verbena::test
