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
// The table that is waited for has few chunks, as a client with few calls in flight sleeps more
// deeply; the idle one has chunks on all lanes, so also on those of the others.
constexpr uint64_t kChunk = 256, kLaterChunks = 6, kIdleChunks = 32;
constexpr int kBatch = 8;
// An answer that wakes no thread is seen at the next heartbeat, half a lease later at most. So a
// batch is slow when a quarter of its calls take longer than kSlowUs, and kSlowTimes longer than
// the same calls just before, without a waiting thread: a busy machine slows down both. One slow
// batch may be chance.
constexpr uint64_t kSlowUs = 150'000, kSlowTimes = 10;
constexpr int kSlowBatches = 3;

v1::TableSpec SpecNamed(const char* name, uint64_t chunks, v1::Consistency consistency) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("probe");
  spec.add_shape(chunks * kChunk);
  spec.set_chunk_bytes(kChunk * sizeof(float));
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
      const uint64_t before = run_.ledger->memory().disturbance.load();
      const uint64_t alone = ThirdQuartile();
      std::thread waiting([&] { AwaitVersion(version + 1); });
      // It has nothing to do for longer than it looks for work before it sleeps.
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      const uint64_t beside = ThirdQuartile();
      const bool disturbed = before % 2 == 1 || run_.ledger->memory().disturbance.load() != before;
      const bool committed = Commit();
      waiting.join();
      if (!committed) return;
      if (disturbed) continue;
      slow_batches = Slow(alone, beside) ? slow_batches + 1 : 0;
      if (slow_batches < kSlowBatches) continue;
      calls_.Fail(absl::StrCat("answers that have arrived wake their waiters late: a pull took ",
                               alone / 1000, " ms alone and ", beside / 1000,
                               " ms while another thread was waiting (a quarter of ", kBatch,
                               " calls took longer; ", kSlowBatches, " times in a row)"));
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
    return Made("probe-later", kLaterChunks, v1::CONSISTENCY_SYNC, &later_) &&
           Made("probe-idle", kIdleChunks, v1::CONSISTENCY_ASYNC, &idle_) &&
           Opened("probe-later", &later_read_) && Opened("probe-idle", &idle_read_) &&
           Allocated(worker_.get(), &gradient_) && Allocated(reader_.get(), &later_values_) &&
           Allocated(reader_.get(), &idle_values_) && Commit();
  }
  std::unique_ptr<Client> Connected(const ClientOptions& options) {
    const CallCheck::Call call = calls_.Begin("Connect", "");
    auto client = Client::Connect(options);
    return calls_.End(call, client.status()) ? *std::move(client) : nullptr;
  }
  bool Made(const char* name, uint64_t chunks, v1::Consistency consistency, Table* table) {
    const CallCheck::Call call = calls_.Begin("CreateTable", name);
    auto made = worker_->CreateTable(SpecNamed(name, chunks, consistency));
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
    auto made = client->AllocateRegion(kLaterChunks * kChunk * sizeof(float));
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
  uint64_t Quick(int i) {
    const bool callback = i % 2 == 1;
    const Range range = {(static_cast<uint64_t>(i) * 5 + calls_made_++) % kIdleChunks * kChunk,
                         kChunk, 0};
    const CallCheck::Call call = calls_.Begin("Pull", "probe-idle");
    Ticket ticket = reader_->Pull(idle_read_, idle_values_, range);
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
  // The third quartile of a batch of quick calls, in microseconds.
  uint64_t ThirdQuartile() {
    std::vector<uint64_t> times;
    for (int i = 0; i < kBatch; ++i) {
      times.push_back(Quick(i));
      // Short of the next call, so that the waiting thread sleeps again.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() * 3 / 4];
  }
  bool Slow(uint64_t alone, uint64_t beside) {
    ProbeLedger& probe = run_.ledger->memory().probe;
    const bool slow = beside > kSlowUs && beside > kSlowTimes * alone;
    probe.batches.fetch_add(1);
    probe.slow.fetch_add(slow ? 1 : 0);
    probe.alone_us.store(std::max(probe.alone_us.load(), alone));
    probe.beside_us.store(std::max(probe.beside_us.load(), beside));
    return slow;
  }

  const Run& run_;
  CallCheck calls_;
  std::unique_ptr<Client> worker_, reader_;
  Table later_, idle_, later_read_, idle_read_;
  Region gradient_, later_values_, idle_values_;
  uint64_t calls_made_ = 0;
};

}  // namespace

void RunProbe(const Run& run) { Probe(run).Loop(); }

}  // namespace verbena::test
