// Clipping by a global norm and LAMB through servers equal a plain loop in double precision, and do
// not depend on how many servers there are.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/cluster.h"
#include "verbena/client.h"

namespace verbena::test {
namespace {

constexpr int kSteps = 40;
constexpr int kWorkers = 2;
constexpr double kClip = 3;

struct TableCase {
  const char* name;
  int elements;
  const char* optimizer;
  double rate;
  double clip;
};
constexpr TableCase kTables[] = {{"dense", 3000, "sgd", 0.1, kClip},
                                 {"bias", 70, "momentum", 0.02, kClip},
                                 {"layer", 2000, "lamb", 0.01, kClip},
                                 {"head", 1500, "lamb", 0.01, 0}};
constexpr size_t kCount = std::size(kTables);

using Weights = std::vector<std::vector<float>>;  // by table

// Grows and shrinks from step to step, so that some steps are clipped and some are not.
std::vector<float> Gradient(size_t table, int step, int rank) {
  std::mt19937 random(static_cast<unsigned>(table * 1000 + step * 10 + rank));
  std::normal_distribution<float> normal(0.01f, step % 3 == 0 ? 0.001f : 0.5f);
  std::vector<float> g(kTables[table].elements);
  for (float& x : g) x = normal(random);
  return g;
}

v1::TableSpec Spec(const TableCase& table) {
  v1::TableSpec spec;
  spec.set_name(table.name);
  spec.set_job("job");
  spec.add_shape(table.elements);
  spec.set_chunk_bytes(256);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(0.25);
  spec.mutable_optimizer()->set_name(table.optimizer);
  spec.mutable_optimizer()->set_rate(table.rate);
  spec.mutable_optimizer()->set_clip_global_norm(table.clip);
  return spec;
}

// One process, one loop, in double precision.
class PlainLoop {
 public:
  PlainLoop() {
    for (const TableCase& t : kTables) {
      w.emplace_back(t.elements, 0.25);
      a_.emplace_back(t.elements, 0.0);
      b_.emplace_back(t.elements, 0.0);
    }
  }
  void Step(int step) {
    std::vector<std::vector<double>> g(kCount);
    double squares = 0;
    for (size_t t = 0; t < kCount; ++t) {
      g[t].assign(kTables[t].elements, 0);
      for (int rank = 0; rank < kWorkers; ++rank) {
        const std::vector<float> part = Gradient(t, step, rank);
        for (size_t i = 0; i < part.size(); ++i) g[t][i] += part[i] / double{kWorkers};
      }
      if (kTables[t].clip == 0) continue;
      for (const double x : g[t]) squares += x * x;
    }
    const double scale = std::min(1.0, kClip / std::sqrt(squares));
    clipped += scale < 1;
    for (size_t t = 0; t < kCount; ++t) {
      if (kTables[t].clip > 0) {
        for (double& x : g[t]) x *= scale;
      }
      Apply(t, step + 1, g[t]);
    }
  }
  std::vector<std::vector<double>> w;
  int clipped = 0;

 private:
  void Apply(size_t t, int count, const std::vector<double>& g) {
    const double rate = kTables[t].rate;
    const std::string name = kTables[t].optimizer;
    std::vector<double> u(g);
    double weights = 0, update = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      if (name == "momentum") u[i] = a_[t][i] = 0.9 * a_[t][i] + g[i];
      if (name != "lamb") continue;
      a_[t][i] = 0.9 * a_[t][i] + 0.1 * g[i];
      b_[t][i] = 0.999 * b_[t][i] + 0.001 * g[i] * g[i];
      u[i] = a_[t][i] / (1 - std::pow(0.9, count)) /
                 (std::sqrt(b_[t][i] / (1 - std::pow(0.999, count))) + 1e-6) +
             0.01 * w[t][i];
      weights += w[t][i] * w[t][i];
      update += u[i] * u[i];
    }
    const double ratio = name == "lamb" ? std::sqrt(weights / update) : 1;
    for (size_t i = 0; i < g.size(); ++i) w[t][i] -= rate * ratio * u[i];
  }
  std::vector<std::vector<double>> a_, b_;
};

absl::Status Work(const std::string& address, int rank, Weights* result) {
  ClientOptions options;
  options.cluster = address;
  options.job = "job";
  options.expected_workers = kWorkers;
  options.transport = TestTransport();
  options.rank = rank;
  auto client = Client::Connect(options);
  if (!client.ok()) return client.status();
  std::vector<Table> tables;
  std::vector<Region> gradients, parameters;
  for (const TableCase& t : kTables) {
    auto table = (*client)->CreateTable(Spec(t));
    if (!table.ok()) return table.status();
    auto gradient = (*client)->AllocateRegion(table->bytes());
    auto parameter = (*client)->AllocateRegion(table->bytes());
    if (!gradient.ok() || !parameter.ok()) return absl::ResourceExhaustedError("region");
    tables.push_back(*std::move(table));
    gradients.push_back(*std::move(gradient));
    parameters.push_back(*std::move(parameter));
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Ticket> tickets;
    for (size_t t = 0; t < kCount; ++t) {
      const std::vector<float> g = Gradient(t, step, rank);
      std::copy(g.begin(), g.end(), gradients[t].floats());
      tickets.push_back((*client)->PushPull(tables[t], gradients[t], parameters[t]));
    }
    for (Ticket& ticket : tickets) {
      if (absl::Status s = ticket.Wait(); !s.ok()) return s;
    }
  }
  for (size_t t = 0; t < kCount; ++t) {
    result->emplace_back(parameters[t].floats(), parameters[t].floats() + kTables[t].elements);
  }
  return absl::OkStatus();
}

Weights Train(int servers) {
  ProcessClusterOptions options;
  options.servers = servers;
  options.shards = 1;
  ProcessCluster cluster(options);
  std::vector<Weights> got(kWorkers);
  std::vector<absl::Status> statuses(kWorkers);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = Work(cluster.address(), rank, &got[rank]); });
  }
  for (std::thread& t : threads) t.join();
  for (const absl::Status& s : statuses) {
    INFO(servers << " servers: " << s.ToString());
    REQUIRE(s.ok());
  }
  REQUIRE(got[0] == got[1]);
  return got[0];
}

TEST_CASE(
    "a global norm and trust ratios equal a plain loop to 1e-6, on 1, 2 and 5 servers alike") {
  PlainLoop plain;
  for (int step = 0; step < kSteps; ++step) plain.Step(step);
  CHECK(plain.clipped > 5);
  CHECK(plain.clipped < kSteps - 5);
  const Weights one = Train(1);
  for (size_t t = 0; t < kCount; ++t) {
    double largest = 0, wrong = 0;
    for (size_t i = 0; i < one[t].size(); ++i) {
      largest = std::max(largest, std::abs(plain.w[t][i]));
      wrong = std::max(wrong, std::abs(one[t][i] - plain.w[t][i]));
    }
    INFO(kTables[t].name << " of up to " << largest << " is wrong by up to " << wrong);
    CHECK(wrong <= 1e-6 * largest);
  }
  CHECK(Train(2) == one);
  CHECK(Train(5) == one);
}

}  // namespace
}  // namespace verbena::test
