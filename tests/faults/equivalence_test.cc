// A sync run through servers equals a plain loop in this process, with f32 and with 16 bits.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/cluster.h"
#include "verbena/client.h"

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

struct Types {
  v1::DType parameters = v1::DTYPE_F32, gradients = v1::DTYPE_F32;
};

float Rounded(v1::DType type, float value) {
  if (type == v1::DTYPE_BF16) return FloatFromBFloat16(BFloat16FromFloat(value));
  return type == v1::DTYPE_F16 ? FloatFromHalf(HalfFromFloat(value)) : value;
}

// The same with the types of the wire: each worker's rounded gradient, summed in rank order, and
// rounded parameters of the master copy. With 2^n workers the division is exact wherever it is
// done.
std::vector<float> RoundedLoop(const std::vector<Example>& examples, Types types, int workers) {
  std::vector<float> master(kFeatures, 0.25f), w(kFeatures, 0.25f), gradient(kFeatures);
  const int count = kBatch / workers;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> sum(kFeatures, 0.0f);
    for (int rank = 0; rank < workers; ++rank) {
      Gradient(examples, step, rank * count, count, w.data(), gradient.data());
      for (int k = 0; k < kFeatures; ++k) sum[k] += Rounded(types.gradients, gradient[k]);
    }
    for (int k = 0; k < kFeatures; ++k) {
      master[k] -= kRate * (sum[k] / static_cast<float>(workers));
      w[k] = Rounded(types.parameters, master[k]);
    }
  }
  return w;
}

// Copies between numbers and a region.
void Fill(const std::vector<float>& from, v1::DType type, const Region& to) {
  if (type == v1::DTYPE_BF16) return BFloat16sFromFloats(from.data(), to.half_data(), from.size());
  std::copy(from.begin(), from.end(), to.floats());
}

void Read(const Region& from, v1::DType type, std::vector<float>* to) {
  if (type == v1::DTYPE_BF16) return FloatsFromBFloat16s(from.half_data(), to->data(), to->size());
  if (type == v1::DTYPE_F16) return FloatsFromHalves(from.half_data(), to->data(), to->size());
  std::copy_n(from.floats(), to->size(), to->data());
}

absl::Status Work(const std::string& address, const std::string& job, int workers, int rank,
                  Types types, const std::vector<Example>& examples, std::vector<float>* result) {
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
  spec.set_dtype(types.parameters);
  spec.set_gradient_dtype(types.gradients);
  spec.set_consistency(v1::CONSISTENCY_SYNC);
  spec.set_reduction(v1::REDUCTION_MEAN);
  spec.set_chunk_bytes(256);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(0.25);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(kRate);
  auto table = (*client)->CreateTable(spec);
  if (!table.ok()) return table.status();
  auto gradient = (*client)->AllocateRegion(table->gradient_bytes());
  auto parameters = (*client)->AllocateRegion(table->bytes());
  if (!gradient.ok() || !parameters.ok()) return absl::ResourceExhaustedError("region");
  absl::Status status = (*client)->Pull(*table, *parameters).Wait();
  const int count = kBatch / workers;
  std::vector<float> g(kFeatures);
  result->resize(kFeatures);
  for (int step = 0; step < kSteps && status.ok(); ++step) {
    Read(*parameters, types.parameters, result);
    Gradient(examples, step, rank * count, count, result->data(), g.data());
    Fill(g, types.gradients, *gradient);
    status = (*client)->PushPull(*table, *gradient, *parameters).Wait();
  }
  Read(*parameters, types.parameters, result);
  return status;
}

// Each worker's parameters at the end.
std::vector<std::vector<float>> Run(const ProcessCluster& cluster, const std::string& job,
                                    int workers, Types types,
                                    const std::vector<Example>& examples) {
  std::vector<std::vector<float>> got(workers);
  std::vector<absl::Status> statuses(workers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = Work(cluster.address(), job, workers, rank, types, examples, &got[rank]);
    });
  }
  for (std::thread& t : threads) t.join();
  for (int rank = 0; rank < workers; ++rank) {
    INFO(job << ", rank " << rank << ": " << statuses[rank].ToString());
    REQUIRE(statuses[rank].ok());
  }
  return got;
}

TEST_CASE("sync with 1, 2 and 4 workers equals a plain loop to 1e-5 after 200 steps") {
  const std::vector<Example> examples = Examples();
  const std::vector<float> want = PlainLoop(examples);
  ProcessCluster cluster;
  for (int workers : {1, 2, 4}) {
    const auto got = Run(cluster, "job" + std::to_string(workers), workers, {}, examples);
    double norm = 0;
    for (float v : want) norm = std::max(norm, std::abs(static_cast<double>(v)));
    for (int rank = 0; rank < workers; ++rank) {
      INFO(workers << " workers, rank " << rank);
      for (int k = 0; k < kFeatures; ++k) {
        REQUIRE(std::abs(got[rank][k] - want[k]) <= 1e-5 * norm);
      }
    }
  }
}

TEST_CASE("sync with 16 bits equals a plain loop that rounds, bit for bit, on 1, 2 and 5 servers",
          "[arithmetic]") {
  const std::vector<Example> examples = Examples();
  const std::vector<float> wide = PlainLoop(examples);
  double norm = 0;
  for (float v : wide) norm = std::max(norm, std::abs(static_cast<double>(v)));
  for (const int servers : {1, 2, 5}) {
    const ProcessCluster cluster({.servers = servers});
    for (const Types types :
         {Types{v1::DTYPE_BF16, v1::DTYPE_BF16}, Types{v1::DTYPE_F16, v1::DTYPE_BF16},
          Types{v1::DTYPE_BF16, v1::DTYPE_F32}}) {
      const int workers = types.gradients == v1::DTYPE_F32 ? 1 : 4;
      const std::string job =
          std::to_string(types.parameters) + "." + std::to_string(types.gradients);
      const std::vector<float> want = RoundedLoop(examples, types, workers);
      INFO(servers << " servers, job " << job);
      for (const std::vector<float>& got : Run(cluster, job, workers, types, examples)) {
        CHECK(got == want);
        // No more is lost than the last place of a parameter: small steps add up in the master
        // copy, although each is too small for 16 bits.
        for (int k = 0; k < kFeatures; ++k) {
          REQUIRE(std::abs(got[k] - wide[k]) <= norm / 128);
        }
      }
    }
  }
}

}  // namespace
}  // namespace verbena::test
