// The cost of the engine's passes over a dense table, beside a pass over as many bytes, read and
// written the same way, with next to no arithmetic. One thread, as a shard has; arrays beyond every
// cache; chunks of 256 KiB, as tables have them by default.
//
//     apply [--mib N] [--case TEXT] [--repeats N] [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...).
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "bench/apply/limits.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "shard/kernel/convert.h"
#include "shard/kernel/fused_pass.h"
#include "shard/kernel/reduce.h"
#include "shard/optimizer/optimizer.h"

namespace verbena::bench {
namespace {

using shard::BestIsa;
using shard::Source;
using std::chrono::steady_clock;

constexpr char kBench[] = "apply";
constexpr size_t kChunk = size_t{64} << 10;  // elements

struct Settings {
  size_t mib = 512;  // of each array of f32
  std::string only;
  int repeats = 5;
  std::string json;
};

// Numbers in pages as large as the system has them, like a server's tables.
class Array {
 public:
  explicit Array(size_t bytes)
      : data_(::operator new (bytes, std::align_val_t{size_t{2} << 20})), bytes_(bytes) {
    (void)madvise(data_, bytes, MADV_HUGEPAGE);
    std::fill_n(static_cast<float*>(data_), bytes / sizeof(float), 0.0f);
  }
  ~Array() { ::operator delete (data_, std::align_val_t{size_t{2} << 20}); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  float* floats() const { return static_cast<float*>(data_); }
  uint16_t* half_data() const { return static_cast<uint16_t*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* const data_;
  const size_t bytes_;
};

class Bench {
 public:
  Bench(const Settings& settings, Report* report)
      : settings_(settings), report_(report), n_((settings.mib << 20) / sizeof(float)) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (int i = 0; i < 4; ++i) gradients_.push_back(std::make_unique<Array>(n_ * 4));
    for (const auto& g : gradients_)
      std::generate_n(g->floats(), kChunk, [&] { return uniform(random); });
    for (const auto& g : gradients_) Repeat(g->floats());
    parameters_ = std::make_unique<Array>(n_ * 4);
    state_ = std::make_unique<Array>(shard::kMaxStateArrays * n_ * 4);
    half_ = std::make_unique<Array>(n_ * 2);
  }

  absl::Status Run() {
    for (const char* name :
         {"sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl", "lamb"}) {
      if (absl::Status status = Apply(name, name, {gradient(0)}, false); !status.ok())
        return status;
    }
    absl::Status status =
        Apply("sgd, sum of 4", "sgd", {gradient(0), gradient(1), gradient(2), gradient(3)}, false);
    shard::Round(BestIsa(), ElementType::kBf16, gradient(0), half_->half_data(), n_);
    if (status.ok()) status = Apply("adam, gradients of bf16", "adam", {}, false);
    if (status.ok()) status = Apply("adam, parameters of bf16", "adam", {gradient(0)}, true);
    if (!status.ok()) return status;
    Kernels();
    return absl::OkStatus();
  }

 private:
  const float* gradient(size_t i) const { return gradients_[i]->floats(); }
  void Repeat(float* numbers) const {
    for (size_t i = kChunk; i < n_; i += kChunk) std::copy_n(numbers, kChunk, numbers + i);
  }

  // `gradients`: of f32; none: one of bf16. `rounded`: parameters of bf16, with a master copy.
  absl::Status Apply(const std::string& name, const char* optimizer_name,
                     const std::vector<const float*>& gradients, bool rounded) {
    v1::Optimizer spec;
    spec.set_name(optimizer_name);
    spec.set_rate(1e-3);
    auto made = shard::MakeOptimizer(spec);
    if (!made.ok()) return made.status();
    const shard::Optimizer& optimizer = **made;
    const size_t arrays = optimizer.state_arrays();
    Traffic traffic;
    traffic.read = gradients;
    if (gradients.empty()) traffic.read16.push_back(half_->half_data());
    traffic.updated.push_back(parameters_->floats());
    for (size_t a = 0; a < arrays; ++a) traffic.updated.push_back(state_->floats() + a * n_);
    if (rounded) traffic.written16.push_back(half_->half_data());
    uint64_t applies = 0;
    Measure(name, traffic, [&] {
      const shard::ApplyScalars scalars = optimizer.Prepare(++applies);
      for (size_t c = 0; c < n_ / kChunk; ++c) {
        std::vector<Source> sources;
        for (const float* g : gradients) sources.emplace_back(g + c * kChunk);
        if (gradients.empty()) {
          sources.emplace_back(reinterpret_cast<const std::byte*>(half_->half_data() + c * kChunk),
                               ElementType::kBf16);
        }
        float* const parameters = parameters_->floats() + c * kChunk;
        shard::ReduceAndApply(
            BestIsa(), optimizer, scalars, sources, 1, parameters, parameters,
            state_->floats() + c * kChunk, n_, kChunk,
            {rounded ? half_->half_data() + c * kChunk : nullptr, ElementType::kBf16});
      }
    });
    return absl::OkStatus();
  }
  void Kernels() {
    float* const to = parameters_->floats();
    uint16_t* const half = half_->half_data();
    const auto chunks = [&](auto work) {
      return [this, work] {
        for (size_t i = 0; i < n_; i += kChunk) work(i);
      };
    };
    Measure("sum of 2 to a third", {{gradient(0), gradient(1)}, {}, {}, {to}, {}},
            chunks([&](size_t i) {
              const Source sources[] = {gradient(0) + i, gradient(1) + i};
              shard::Accumulate(BestIsa(), sources, to + i, kChunk);
            }));
    Measure("f32 to bf16", {{gradient(0)}, {}, {}, {}, {half}}, chunks([&](size_t i) {
              shard::Round(BestIsa(), ElementType::kBf16, gradient(0) + i, half + i, kChunk);
            }));
    Measure("bf16 to f32", {{}, {half}, {}, {to}, {}},
            chunks([&](size_t i) { shard::FloatsFromBf16(BestIsa(), half + i, to + i, kChunk); }));
    Measure("f32 to f16", {{gradient(0)}, {}, {}, {}, {half}}, chunks([&](size_t i) {
              shard::Round(BestIsa(), ElementType::kF16, gradient(0) + i, half + i, kChunk);
            }));
    Measure("f16 to f32", {{}, {half}, {}, {to}, {}},
            chunks([&](size_t i) { shard::FloatsFromF16(BestIsa(), half + i, to + i, kChunk); }));
    Measure("look for NaN and Inf", {{gradient(0)}, {}, {}, {}, {}}, chunks([&](size_t i) {
              found_ = found_ || shard::HasNonFinite(BestIsa(), gradient(0) + i, kChunk);
            }));
  }

  void Measure(const std::string& name, const Traffic& traffic, const std::function<void()>& ours) {
    if (name.find(settings_.only) == std::string::npos) return;
    const auto rate = [&](const auto& work) {
      const auto start = steady_clock::now();
      work();
      const std::chrono::duration<double> seconds = steady_clock::now() - start;
      return static_cast<double>(traffic.bytes(n_)) / seconds.count() / 1e9;
    };
    Row row{kBench, name, "GB/s", Better::kHigher, {}, {}};
    for (int i = 0; i < settings_.repeats; ++i) {
      row.value.Add(rate(ours));
      double best = 0;
      for (const Pass pass : kPasses) {
        best = std::max(best, rate([&] { sum_ = sum_ + Touch(pass, traffic, n_); }));
      }
      row.limit.Add(best);
    }
    report_->Add(std::move(row));
  }

  const Settings& settings_;
  Report* const report_;
  const size_t n_;
  std::vector<std::unique_ptr<Array>> gradients_;
  std::unique_ptr<Array> parameters_;  // or their master copy
  std::unique_ptr<Array> state_;       // the optimizer's arrays, one after the other
  std::unique_ptr<Array> half_;        // numbers of 16 bits
  bool found_ = false;
  volatile float sum_ = 0;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("Cost of the engine's passes over a dense table, beside the speed of memory");
  app.add_option("--mib", settings.mib,
                 "size of each array of f32; there are up to seven and a half")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--case", settings.only, "only those whose names contain this");
  app.add_option("--repeats", settings.repeats, "interleaved runs")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  std::printf(
      "one thread; %zu MiB an array of f32, in chunks of 256 KiB; the limit: the best of three "
      "passes over as many bytes, read and written alike\n",
      settings.mib);
  verbena::bench::Report report;
  const absl::Status status = verbena::bench::Bench(settings, &report).Run();
  return report.End("apply", status, settings.json);
}
