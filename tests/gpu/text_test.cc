// The text model on a GPU: what it computes is what the host computes, but for rounding.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/gpu/gpu.h"
#include "tests/support/cluster.h"
#include "worker/client_store.h"
#include "worker/cuda_text_model.h"
#include "worker/trainer.h"

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

TEST_CASE("text on a GPU: losses and gradients are the host's", "[cublas]") {
  const bool dropout = GENERATE(true, false);
  const bool ngrams = GENERATE(true, false);
  const double l2 = GENERATE(0.0, 1e-3);
  Gpu gpu;
  TextModelOptions options = Small();
  options.dropout = dropout ? 0.2 : 0;
  options.ngrams = ngrams ? 3 : 0;
  options.l2 = l2;
  const worker::TextData data = {SomeText(4000), SomeText(300)};
  TextModel host(data, options);
  const std::unique_ptr<worker::Model> device = Value(CudaTextModel::Open(data, options, 0));
  REQUIRE(device->device() == gpu.device());

  std::vector<float> parameters(host.layout().floats());
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i] = 0.3f * std::sin(0.37f * static_cast<float>(i));
  }
  // More than one piece of what either works on at once, and not a multiple of it.
  Batch batch;
  for (uint32_t i = 0; i < 1300; ++i) batch.ids.push_back(i * 3);
  Batch same = batch;
  host.Prepare(&batch);
  device->Prepare(&same);

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
  const auto there = gpu.Upload(parameters);
  const auto result = gpu.Upload(std::vector<float>(parameters.size(), 7.0f));
  auto* const out = reinterpret_cast<float*>(result->data());
  for (int call = 0; call < 2; ++call) {  // with other masks
    const double want = Value(host.Gradient(batch, scale, {parameters.data(), from},
                                            {gradient.data(), absl::MakeSpan(to_host)}));
    const double got =
        Value(device->Gradient(same, scale, {reinterpret_cast<const float*>(there->data()), from},
                               {out, absl::MakeSpan(to_device)}));
    CHECK(std::abs(got - want) <= 1e-5 * want);
    CheckClose(gpu.Download<float>(out, gradient.size()), gradient, 1e-5);
    if (ngrams) CheckClose(device_rows, host_rows, 1e-5);
  }
}

TEST_CASE("text on a GPU: a batch of nothing is the penalty's gradient", "[cublas]") {
  Gpu gpu;
  TextModelOptions options = Small();
  options.l2 = 0.5;
  const auto model = Value(CudaTextModel::Open({SomeText(100), ""}, options, 0));
  const Layout& layout = model->layout();
  const auto parameters = gpu.Upload(std::vector<float>(layout.floats(), 2.0f));
  const auto gradient = gpu.Upload(std::vector<float>(layout.floats(), 9.0f));
  Batch none;
  model->Prepare(&none);
  CHECK(Value(model->Gradient(none, 1, {reinterpret_cast<const float*>(parameters->data()), {}},
                              {reinterpret_cast<float*>(gradient->data()), {}})) == 0);
  const auto numbers = gpu.Download<float>(gradient->data(), layout.floats());
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
  options.device = model->device();
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

TEST_CASE("text on a GPU: a hundred steps on a cluster give the host's parameters", "[cublas]") {
  Gpu gpu;
  const worker::TextData data = {SomeText(6000), ""};
  TextModel host(data, Small());
  const auto device = Value(CudaTextModel::Open(data, Small(), 0));
  const ProcessCluster cluster({.servers = 2, .shards = 1});
  const std::vector<float> want = TrainOn(cluster, "host", &host);
  const std::vector<float> got = TrainOn(cluster, "gpu", device.get());
  CheckClose(got, want, 1e-4);
}

}  // namespace
}  // namespace verbena::test
