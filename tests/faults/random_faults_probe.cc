// The probe of wake-ups: quick pulls of an idle table while another thread of the same client waits
// for a version that comes later.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/faults/random_faults_calls.h"
#include "tests/faults/random_faults_client.h"

namespace verbena::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kEntry = LedgerMemory::kClients - 2;  // in the ledger
constexpr uint64_t kElements = 256;
constexpr int kBatch = 8;
// A wake-up that is lost comes from a timer of one second. Nothing else here takes nearly as long
// again and again, also on a machine with many times more threads than processors.
constexpr uint64_t kSlowUs = 900'000;
constexpr int kSlowOfBatch = 6, kSlowBatches = 2;

v1::TableSpec SpecNamed(const char* name, v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("probe");
  spec.add_shape(kElements);
  spec.set_consistency(consistency);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

class Probe {
 public:
  explicit Probe(const Run& run)
      : run_(run), calls_(run.ledger, kEntry, "probe", absl::Seconds(run.options.call_s)) {}
  void Loop() {
    if (!Open()) return;
    run_.ledger->memory().probe.ready.store(1);
    int slow_batches = 0;
    for (uint64_t version = 1; run_.ledger->running(); ++version) {
      std::thread waiting([&] { AwaitVersion(version + 1); });
      slow_batches = SlowBatch() ? slow_batches + 1 : 0;
      const bool committed = Commit();
      waiting.join();
      if (!committed) return;
      if (slow_batches < kSlowBatches) continue;
      calls_.Fail(absl::StrCat("wake-ups are lost: of each of the last ", kSlowBatches,
                               " batches of ", kBatch, " quick pulls, ", kSlowOfBatch,
                               " or more took longer than ", kSlowUs / 1000,
                               " ms without a fault, while another thread was waiting"));
      return;
    }
  }

 private:
  bool Open() {
    ClientOptions options;
    options.cluster = run_.cluster;
    options.job = "probe";
    options.timeout = absl::Seconds(run_.options.call_s);
    options.transport = run_.options.transport == "mixed" ? "shm" : run_.options.transport;
    worker_ = Connected(options);
    options.observer = true;
    reader_ = worker_ == nullptr ? nullptr : Connected(options);
    if (reader_ == nullptr) return false;
    return Made(worker_.get(), "probe-later", v1::CONSISTENCY_SYNC, &later_) &&
           Made(worker_.get(), "probe-idle", v1::CONSISTENCY_ASYNC, &idle_) &&
           Opened("probe-later", &later_read_) && Opened("probe-idle", &idle_read_) &&
           Allocated(worker_.get(), &gradient_) && Allocated(reader_.get(), &later_values_) &&
           Allocated(reader_.get(), &idle_values_) && Commit();
  }
  std::unique_ptr<Client> Connected(const ClientOptions& options) {
    const CallCheck::Call call = calls_.Begin("Connect", "");
    auto client = Client::Connect(options);
    return calls_.End(call, client.status()) ? *std::move(client) : nullptr;
  }
  bool Made(Client* client, const char* name, v1::Consistency consistency, Table* table) {
    const CallCheck::Call call = calls_.Begin("CreateTable", name);
    auto made = client->CreateTable(SpecNamed(name, consistency));
    if (!calls_.End(call, made.status())) return false;
    *table = *std::move(made);
    return true;
  }
  bool Opened(const char* name, Table* table) {
    const CallCheck::Call call = calls_.Begin("OpenTable", name);
    auto opened = reader_->OpenTable(name);
    if (!calls_.End(call, opened.status())) return false;
    *table = *std::move(opened);
    return true;
  }
  bool Allocated(Client* client, Region* region) {
    const CallCheck::Call call = calls_.Begin("AllocateRegion", "");
    auto made = client->AllocateRegion(kElements * sizeof(float));
    if (!calls_.End(call, made.status())) return false;
    *region = *std::move(made);
    return true;
  }
  bool Commit() {
    const CallCheck::Call call = calls_.Begin("PushPull", "probe-later");
    return calls_.End(call, worker_->PushPull(later_, gradient_, gradient_).Wait());
  }
  // May outlive its deadline when faults keep the batch from its end: that is no failure.
  void AwaitVersion(uint64_t version) {
    PullOptions options;
    options.min_version = version;
    options.timeout = absl::Seconds(2 * run_.options.call_s);
    const CallCheck::Call call =
        calls_.BeginShort("Pull of a later version", "probe-later", *options.timeout);
    calls_.End(call, reader_->Pull(later_read_, later_values_, {}, options).Wait());
  }
  // One call, by a wait or by a callback; in microseconds.
  uint64_t Quick(bool callback) {
    const CallCheck::Call call = calls_.Begin("Pull", "probe-idle");
    Ticket ticket = reader_->Pull(idle_read_, idle_values_);
    absl::Status status;
    if (callback) {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
      ticket.OnDone([&](absl::Status ended) {
        const std::lock_guard<std::mutex> lock(mutex);
        status = std::move(ended);
        done = true;
        changed.notify_one();
      });
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return done; });
    } else {
      status = ticket.Wait();
    }
    calls_.End(call, status);
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - call.start).count());
  }
  // Whether most calls of a batch without a fault were slow.
  bool SlowBatch() {
    ProbeLedger& probe = run_.ledger->memory().probe;
    std::atomic<uint64_t>& disturbance = run_.ledger->memory().disturbance;
    const uint64_t before = disturbance.load();
    std::vector<uint64_t> times;
    for (int i = 0; i < kBatch && !run_.ledger->aborted(); ++i) {
      times.push_back(Quick(i % 2 == 1));
      // Short of the next call, so that the waiting thread sleeps again.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (before % 2 == 1 || disturbance.load() != before || times.size() < kBatch) return false;
    std::sort(times.begin(), times.end());
    const auto slow = static_cast<uint64_t>(
        std::count_if(times.begin(), times.end(), [](uint64_t us) { return us > kSlowUs; }));
    probe.quick.fetch_add(times.size());
    probe.slow.fetch_add(slow);
    probe.p50_us.store(times[times.size() / 2]);
    probe.longest_us.store(std::max(probe.longest_us.load(), times.back()));
    return slow >= kSlowOfBatch;
  }

  const Run& run_;
  CallCheck calls_;
  std::unique_ptr<Client> worker_, reader_;
  Table later_, idle_, later_read_, idle_read_;
  Region gradient_, later_values_, idle_values_;
};

}  // namespace

void RunProbe(const Run& run) { Probe(run).Loop(); }

}  // namespace verbena::test
