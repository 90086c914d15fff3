// A sync run through servers equals a plain loop in this process.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

constexpr int kFeatures = 300;
constexpr int kBatch = 64;  // global; divided evenly by 1, 2 and 4 workers
constexpr int kSteps = 200;
constexpr float kRate = 0.05f;

struct Example {
  std::vector<float> x;
  float y;
};

// Linear least squares on random data: the gradient of example i at w is (w.x - y) x.
std::vector<Example> Examples() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<Example> examples(kBatch * 8);
  for (Example& e : examples) {
    e.x.resize(kFeatures);
    for (float& v : e.x) v = normal(random) / std::sqrt(float(kFeatures));
    e.y = normal(random);
  }
  return examples;
}

// Mean gradient of the examples [first, first + count) of step `step`.
void Gradient(const std::vector<Example>& examples, int step, int first, int count, const float* w,
              float* gradient) {
  std::fill_n(gradient, kFeatures, 0.0f);
  for (int i = first; i < first + count; ++i) {
    const Example& e = examples[(step * kBatch + i) % examples.size()];
    float error = -e.y;
    for (int k = 0; k < kFeatures; ++k) error += w[k] * e.x[k];
    for (int k = 0; k < kFeatures; ++k) gradient[k] += error * e.x[k] / count;
  }
}

std::vector<float> PlainLoop(const std::vector<Example>& examples) {
  std::vector<float> w(kFeatures, 0.25f), gradient(kFeatures);
  for (int step = 0; step < kSteps; ++step) {
    Gradient(examples, step, 0, kBatch, w.data(), gradient.data());
    for (int k = 0; k < kFeatures; ++k) w[k] -= kRate * gradient[k];
  }
  return w;
}

absl::Status Work(const std::string& address, const std::string& job, int workers, int rank,
                  const std::vector<Example>& examples, std::vector<float>* result) {
  ClientOptions options;
  options.cluster = address;
  options.job = job;
  options.expected_workers = workers;
  options.transport = TestTransport();
  options.rank = rank;
  auto client = Client::Connect(options);
  if (!client.ok()) return client.status();
  v1::TableSpec spec;
  spec.set_name(job + "/w");
  spec.set_job(job);
  spec.add_shape(kFeatures);
  spec.set_consistency(v1::CONSISTENCY_SYNC);
  spec.set_reduction(v1::REDUCTION_MEAN);
  spec.set_chunk_bytes(256);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(0.25);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(kRate);
  auto table = (*client)->CreateTable(spec);
  if (!table.ok()) return table.status();
  auto gradient = (*client)->AllocateRegion(table->bytes());
  auto parameters = (*client)->AllocateRegion(table->bytes());
  if (!gradient.ok() || !parameters.ok()) return absl::ResourceExhaustedError("region");
  absl::Status status = (*client)->Pull(*table, *parameters).Wait();
  const int count = kBatch / workers;
  for (int step = 0; step < kSteps && status.ok(); ++step) {
    Gradient(examples, step, rank * count, count, parameters->floats(), gradient->floats());
    status = (*client)->PushPull(*table, *gradient, *parameters).Wait();
  }
  result->assign(parameters->floats(), parameters->floats() + kFeatures);
  return status;
}

TEST_CASE("sync with 1, 2 and 4 workers equals a plain loop to 1e-5 after 200 steps") {
  const std::vector<Example> examples = Examples();
  const std::vector<float> want = PlainLoop(examples);
  ProcessCluster cluster;
  for (int workers : {1, 2, 4}) {
    std::vector<std::vector<float>> got(workers);
    std::vector<absl::Status> statuses(workers);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < workers; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = Work(cluster.address(), "job" + std::to_string(workers), workers, rank,
                              examples, &got[rank]);
      });
    }
    for (std::thread& t : threads) t.join();
    double norm = 0;
    for (float v : want) norm = std::max(norm, std::abs(static_cast<double>(v)));
    for (int rank = 0; rank < workers; ++rank) {
      INFO(workers << " workers, rank " << rank << ": " << statuses[rank].ToString());
      REQUIRE(statuses[rank].ok());
      for (int k = 0; k < kFeatures; ++k) {
        REQUIRE(std::abs(got[rank][k] - want[k]) <= 1e-5 * norm);
      }
    }
  }
}

}  // namespace
}  // namespace verbena::test
