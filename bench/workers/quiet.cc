#include "bench/workers/quiet.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <numeric>
#include <utility>
#include <vector>

namespace verbena::bench {
namespace {

constexpr int kWarmUpRounds = 20;
constexpr int kPusherDepth = 4;

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Quiet>> Quiet::Connect(const std::string& cluster, const Wire& wire,
                                                      const std::string& job, size_t bytes) {
  std::unique_ptr<Quiet> quiet(new Quiet);
  ClientOptions options;
  options.cluster = cluster;
  options.job = job;
  options.transport = wire.transport;
  options.rdma.device = wire.device;
  auto connected = Client::Connect(options);
  if (!connected.ok()) return connected.status();
  quiet->client_ = *std::move(connected);
  v1::TableSpec spec;
  spec.set_name(job);
  spec.set_job(job);
  spec.add_shape(bytes / sizeof(float));
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_reduction(v1::REDUCTION_SUM);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1e-3);
  auto table = quiet->client_->CreateTable(spec);
  if (!table.ok()) return table.status();
  quiet->table_ = *table;
  for (Region* region : {&quiet->gradient_, &quiet->result_}) {
    auto allocated = quiet->client_->AllocateRegion(bytes);
    if (!allocated.ok()) return allocated.status();
    *region = *std::move(allocated);
  }
  return quiet;
}

absl::StatusOr<Times> Quiet::Measure(int rounds, bool pull, int gap_us) {
  std::vector<double> seconds;
  if (absl::Status s = Sample(rounds, pull, gap_us, &seconds); !s.ok()) return s;
  return TimesOf(std::move(seconds));
}

absl::Status Quiet::Sample(int rounds, bool pull, int gap_us, std::vector<double>* seconds) {
  for (int i = 0; i < rounds + kWarmUpRounds; ++i) {
    if (gap_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(gap_us));
    const double begin = NowSeconds();
    const absl::Status status = pull ? client_->PushPull(table_, gradient_, result_).Wait()
                                     : client_->Push(table_, gradient_).Wait();
    if (!status.ok()) return status;
    if (i >= kWarmUpRounds) seconds->push_back(NowSeconds() - begin);
  }
  return absl::OkStatus();
}

absl::StatusOr<Times> Quiet::MeasureCallbacks(int rounds, int gap_us) {
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(rounds));
  for (int i = 0; i < rounds + kWarmUpRounds; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(gap_us));
    const double begin = NowSeconds();
    std::promise<std::pair<absl::Status, double>> ended;
    Ticket pull = client_->Pull(table_, result_);
    pull.OnDone([&](absl::Status status) { ended.set_value({std::move(status), NowSeconds()}); });
    const auto [status, end] = ended.get_future().get();
    if (!status.ok()) return status;
    if (i >= kWarmUpRounds) seconds.push_back(end - begin);
  }
  return TimesOf(std::move(seconds));
}

absl::Status Quiet::BeginLongWait() {
  if (steps_.elements() == 0) {
    v1::TableSpec spec = table_.spec();
    spec.set_name(spec.name() + "-steps");
    spec.set_consistency(v1::CONSISTENCY_SYNC);
    auto table = client_->CreateTable(spec);
    if (!table.ok()) return table.status();
    steps_ = *table;
    auto region = client_->AllocateRegion(steps_.bytes());
    if (!region.ok()) return region.status();
    steps_result_ = *std::move(region);
  }
  long_wait_ =
      client_->Pull(steps_, steps_result_, {}, {.timeout = absl::Minutes(10), .min_version = 1});
  waiter_ = std::thread([ticket = long_wait_]() mutable { (void)ticket.Wait(); });
  return absl::OkStatus();
}

void Quiet::EndLongWait() {
  if (!waiter_.joinable()) return;
  long_wait_.Cancel();
  waiter_.join();
}

Times Quiet::TimesOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return Times{.median_us = seconds[seconds.size() / 2] * 1e6,
               .p99_us = seconds[seconds.size() * 99 / 100] * 1e6,
               .p999_us = seconds[seconds.size() * 999 / 1000] * 1e6,
               .mean_ns = sum / static_cast<double>(seconds.size()) * 1e9};
}

absl::StatusOr<std::unique_ptr<Pusher>> Pusher::Start(const std::string& cluster, const Wire& wire,
                                                      size_t bytes) {
  std::unique_ptr<Pusher> pusher(new Pusher);
  auto client = Quiet::Connect(cluster, wire, "pusher", bytes);
  if (!client.ok()) return client.status();
  pusher->client_ = *std::move(client);
  pusher->thread_ = std::thread([raw = pusher.get()] { raw->Push(); });
  return pusher;
}

Pusher::~Pusher() {
  end_ = true;
  if (thread_.joinable()) thread_.join();
}

void Pusher::Push() {
  const auto await = [](Ticket* ticket) {
    const absl::Status status = ticket->Wait();
    if (!status.ok()) std::fprintf(stderr, "workers: pusher: %s\n", status.ToString().c_str());
    return status.ok();
  };
  while (!end_) {
    if (!on_) {
      idle_ = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    std::vector<Ticket> tickets;
    for (int k = 0; k < kPusherDepth; ++k) {
      tickets.push_back(client_->client_->Push(client_->table_, client_->gradient_));
    }
    for (size_t k = 0; on_ && !end_; k = (k + 1) % tickets.size()) {
      if (!await(&tickets[k])) return;
      ++pushes_;
      tickets[k] = client_->client_->Push(client_->table_, client_->gradient_);
    }
    for (Ticket& ticket : tickets) {
      if (!await(&ticket)) return;
    }
  }
  idle_ = true;
}

void Pusher::SetOn(bool on) {
  if (on) {
    pushes_ = 0;
    started_ = NowSeconds();
    idle_ = false;
  } else {
    seconds_ = NowSeconds() - started_;
  }
  on_ = on;
  // A thread that failed never says that it is idle.
  for (int i = 0; !on && !idle_ && i < 10'000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

double Pusher::Gigabytes() const {
  return static_cast<double>(pushes_) * static_cast<double>(client_->gradient_.size()) / seconds_ /
         1e9;
}

}  // namespace verbena::bench
