// The text model on a GPU: it computes the host's values, up to rounding.
#include <catch2/catch.hpp>
#include <cmath>

#include "rdma/memory/cuda/cuda_device.h"
#include "tests/gpu/gpu.h"
#include "tests/support/cluster.h"
#include "worker/models/cuda_text_model.h"
#include "worker/stores/client_store.h"
#include "worker/train/trainer.h"

namespace verbena::test {
namespace {

using worker::Batch;
using worker::CudaTextModel;
using worker::Layout;
using worker::TextModel;
using worker::TextModelOptions;

std::string SomeText(size_t bytes) {
  std::string text;
  for (uint32_t i = 0, state = 7; text.size() < bytes; ++i) {
    state = state * 1664525 + 1013904223;
    text += "the quick brown fox jumps over"[(state >> 16) % 30];
  }
  return text;
}

TextModelOptions Small() {
  TextModelOptions options;
  options.shape = {.context = 3, .embedding = 5, .hidden = 12};
  return options;
}

void CheckClose(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  double greatest = 0;
  double difference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    REQUIRE(std::isfinite(got[i]));
    greatest = std::max(greatest, std::abs(double{want[i]}));
    difference = std::max(difference, std::abs(double{got[i]} - want[i]));
  }
  CHECK(greatest > 0);
  CHECK(difference <= tolerance * greatest);
}

// The same arena on each GPU.
struct Replicas {
  Replicas(const std::vector<int>& ordinals, const std::vector<float>& numbers)
      : floats(numbers.size()) {
    for (const int ordinal : ordinals) {
      gpus.emplace_back(ordinal);
      blocks.push_back(gpus.back().Upload(numbers));
      arenas.push_back(reinterpret_cast<float*>(blocks.back()->data()));
    }
  }
  std::vector<float> Sum() {
    std::vector<float> sum(floats);
    for (size_t g = 0; g < gpus.size(); ++g) {
      const auto part = gpus[g].Download<float>(arenas[g], floats);
      for (size_t i = 0; i < floats; ++i) sum[i] += part[i];
    }
    return sum;
  }
  const size_t floats;
  std::vector<Gpu> gpus;
  std::vector<std::shared_ptr<rdma::MemoryBlock>> blocks;
  std::vector<float*> arenas;
};

// The first `count` GPUs that this process sees; with fewer GPUs none, with a warning.
std::vector<int> Gpus(int count) {
  if (Value(rdma::CudaDeviceCount()) < count) {
    WARN("not run with " << count << " GPUs: there are fewer");
    return {};
  }
  std::vector<int> ordinals;
  for (int i = 0; i < count; ++i) ordinals.push_back(i);
  return ordinals;
}

TEST_CASE("text on GPUs: losses and gradients are the host's", "[cublas]") {
  const std::vector<int> gpus = Gpus(GENERATE(1, 2));
  if (gpus.empty()) return;
  const bool dropout = GENERATE(true, false);
  const bool ngrams = GENERATE(true, false);
  const double l2 = GENERATE(0.0, 1e-3);
  TextModelOptions options = Small();
  options.dropout = dropout ? 0.2 : 0;
  options.ngrams = ngrams ? 3 : 0;
  options.l2 = l2;
  const worker::TextData data = {SomeText(4000), SomeText(300)};
  TextModel host(data, options);
  const std::unique_ptr<worker::Model> device = Value(CudaTextModel::Open(data, options, gpus));
  REQUIRE(device->devices().size() == gpus.size());

  std::vector<float> parameters(host.layout().floats());
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i] = 0.3f * std::sin(0.37f * static_cast<float>(i));
  }
  // More examples than one piece of the work of either, and not a multiple of a piece.
  Batch batch;
  for (uint32_t i = 0; i < 1300; ++i) batch.ids.push_back(i * 3);
  Batch same = batch;
  REQUIRE(host.Prepare(&batch).ok());
  REQUIRE(device->Prepare(&same).ok());

  std::vector<float> rows, host_rows, device_rows;
  std::vector<const float*> from;
  std::vector<float*> to_host, to_device;
  if (ngrams) {
    REQUIRE(batch.keys[0] == same.keys[0]);
    rows.resize(batch.keys[0].size() * 256);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = 0.1f * std::cos(static_cast<float>(i));
    host_rows.resize(rows.size());
    device_rows.assign(rows.size(), 5.0f);
    from = {rows.data()};
    to_host = {host_rows.data()};
    to_device = {device_rows.data()};
  }
  std::vector<float> gradient(parameters.size());
  const double scale = 1.0 / 1300;
  Replicas there(gpus, parameters);
  Replicas result(gpus, std::vector<float>(parameters.size(), 7.0f));
  for (int call = 0; call < 2; ++call) {  // with other masks
    const double want = Value(host.Gradient(batch, scale, {parameters.data(), from},
                                            {gradient.data(), absl::MakeSpan(to_host)}));
    const double got = Value(device->Gradient(same, scale, {nullptr, from, there.arenas},
                                              {nullptr, absl::MakeSpan(to_device), result.arenas}));
    CHECK(std::abs(got - want) <= 1e-5 * want);
    CheckClose(result.Sum(), gradient, 1e-5);
    if (ngrams) CheckClose(device_rows, host_rows, 1e-5);
  }
}

TEST_CASE("text on a GPU: a batch of nothing is the penalty's gradient", "[cublas]") {
  TextModelOptions options = Small();
  options.l2 = 0.5;
  const auto model = Value(CudaTextModel::Open({SomeText(100), ""}, options, {0}));
  const Layout& layout = model->layout();
  Replicas parameters({0}, std::vector<float>(layout.floats(), 2.0f));
  Replicas gradient({0}, std::vector<float>(layout.floats(), 9.0f));
  Batch none;
  REQUIRE(model->Prepare(&none).ok());
  CHECK(Value(model->Gradient(none, 1, {nullptr, {}, parameters.arenas},
                              {nullptr, {}, gradient.arenas})) == 0);
  const std::vector<float> numbers = gradient.Sum();
  for (size_t t = 0; t < layout.size(); ++t) {
    const std::string& name = layout[t].name;
    const bool penalised =
        name == "hidden_weights" || name == "output_weights" || name == "output_skip";
    CHECK(numbers[layout.offset(t)] == (penalised ? 1.0f : 0.0f));
  }
}

// A worker that trains on a cluster; its dense parameters at the end.
std::vector<float> TrainOn(const ProcessCluster& cluster, const std::string& job,
                           worker::Model* model) {
  worker::TrainOptions train;
  train.steps = 100;
  train.batch = 64;
  train.count_steps = true;
  worker::ClusterOptions options;
  options.cluster = cluster.address();
  options.job = job;
  options.devices.assign(model->devices().begin(), model->devices().end());
  worker::TrainingSpec spec;
  spec.rate = 0.003;
  const Layout layout = worker::StoreLayout(*model, train);
  const auto store = Value(worker::ClientStore::Connect(options, layout, model->tables(), spec));
  const worker::TrainResult result = Value(worker::Train(model, store.get(), train));
  CHECK(result.totals.steps == 100);
  Good(worker::PullAll(store.get()));
  const size_t steps = layout.size() - 1;
  CHECK(store->parameters()[layout.offset(steps)] == 100);
  return {store->parameters(), store->parameters() + model->layout().floats()};
}

void CompareTraining(const std::vector<int>& gpus) {
  if (gpus.empty()) return;
  const worker::TextData data = {SomeText(6000), ""};
  TextModelOptions options = Small();
  options.shape.hidden = 300;  // so that each of two GPUs has a chunk of the largest tensor
  TextModel host(data, options);
  const auto device = Value(CudaTextModel::Open(data, options, gpus));
  const ProcessCluster cluster({.servers = 2, .shards = 1});
  const std::vector<float> want = TrainOn(cluster, "host", &host);
  const std::vector<float> got = TrainOn(cluster, "gpu", device.get());
  CheckClose(got, want, 1e-4);
}

TEST_CASE("text on a GPU: a hundred steps on a cluster give the host's parameters", "[cublas]") {
  CompareTraining(Gpus(1));
}

TEST_CASE("text on two GPUs: a hundred steps give the host's parameters", "[cublas][nccl]") {
  CompareTraining(Gpus(2));
}

}  // namespace
}  // namespace verbena::test
