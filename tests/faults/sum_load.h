// Workers of a table whose elements count pushes, while a cluster changes under them.
#ifndef VERBENA_TESTS_FAULTS_SUM_LOAD_H_
#define VERBENA_TESTS_FAULTS_SUM_LOAD_H_

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {

// Workers that push ones to a table, and read back no less than their own pushes, until they are
// stopped. In a sync table they end at the same step.
class SumLoad {
 public:
  explicit SumLoad(const ProcessCluster& cluster,
                   v1::Consistency consistency = v1::CONSISTENCY_ASYNC)
      : sync_(consistency == v1::CONSISTENCY_SYNC) {
    for (int i = 0; i < kWorkers; ++i) {
      ClientOptions options;
      options.cluster = cluster.address();
      if (sync_) options.job = "sync";
      if (sync_) options.expected_workers = kWorkers;
      options.transport = TestTransport();
      options.timeout = absl::Seconds(60);
      auto client = Client::Connect(options);
      REQUIRE(client.ok());
      clients_.push_back(*std::move(client));
      auto table = clients_.back()->CreateTable(Spec(consistency));
      INFO(table.status());
      REQUIRE(table.ok());
      tables_.push_back(*std::move(table));
    }
    for (int i = 0; i < kWorkers; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~SumLoad() { Stop(); }

  uint64_t pushes() const { return pushes_; }
  void AwaitMore() {
    const uint64_t before = pushes();
    CHECK(
        Eventually([&] { return pushes() > before + 20 || !Error().empty(); }, absl::Seconds(60)));
  }
  std::string Error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Every element is the number of pushes.
  void Check() {
    Stop();
    REQUIRE(Error() == "");
    auto memory = clients_[0]->AllocateRegion(tables_[0].bytes());
    REQUIRE(memory.ok());
    REQUIRE(clients_[0]->Pull(tables_[0], *memory).Wait().ok());
    const float sum = static_cast<float>(pushes());
    const auto right = std::count(memory->floats(), memory->floats() + kElements, sum);
    CAPTURE(sum, memory->floats()[0]);
    CHECK(static_cast<uint64_t>(right) == kElements);
  }

 private:
  static constexpr uint64_t kElements = 1 << 20;  // 16 chunks of 256 KiB
  static constexpr int kWorkers = 2;

  static v1::TableSpec Spec(v1::Consistency consistency) {
    v1::TableSpec spec;
    const bool sync = consistency == v1::CONSISTENCY_SYNC;
    spec.set_name(sync ? "sync-sums" : "sums");
    if (sync) spec.set_job("sync");
    spec.add_shape(kElements);
    spec.set_consistency(consistency);
    spec.set_reduction(v1::REDUCTION_SUM);
    spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    return spec;
  }

  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Whether a worker makes this step: a sync one that another worker has begun needs all of them.
  bool Begin(uint64_t step) {
    const std::lock_guard lock(mutex_);
    if (stop_ && (!sync_ || step > furthest_)) return false;
    furthest_ = std::max(furthest_, step);
    return true;
  }
  absl::Status Push(int worker, const Region& gradient) {
    Client& client = *clients_[worker];
    Ticket push = client.Push(tables_[worker], gradient);
    if (sync_) {
      if (absl::Status ended = client.EndStep(tables_[worker]).Wait(); !ended.ok()) return ended;
    }
    return push.Wait();
  }
  void Fail(const std::string& error) {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = error;
  }
  void Run(int worker) {
    auto ones = clients_[worker]->AllocateRegion(tables_[worker].bytes());
    auto values = clients_[worker]->AllocateRegion(tables_[worker].bytes());
    if (!ones.ok() || !values.ok()) return Fail("no memory");
    std::fill_n(ones->floats(), kElements, -1.0f);
    for (uint64_t own = 1; Begin(own); ++own) {
      if (absl::Status s = Push(worker, *ones); !s.ok()) {
        return Fail(absl::StrCat("push: ", s.ToString()));
      }
      ++pushes_;
      if (absl::Status s = clients_[worker]->Pull(tables_[worker], *values).Wait(); !s.ok()) {
        return Fail(absl::StrCat("pull: ", s.ToString()));
      }
      const float least = *std::min_element(values->floats(), values->floats() + kElements);
      if (least >= static_cast<float>(own)) continue;
      return Fail(absl::StrCat("after ", own, " own pushes a pull has ", least));
    }
  }

  const bool sync_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<Table> tables_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> pushes_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  uint64_t furthest_ = 0;  // step that a worker has begun
  std::string error_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_SUM_LOAD_H_
