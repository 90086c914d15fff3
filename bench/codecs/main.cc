// The cost of encoding and decoding a gradient, beside a pass over as many bytes, read and written
// the same way, with next to no arithmetic. One thread; arrays beyond every cache, in chunks of 256
// KiB, as a client has them.
//
//     codecs [--mib N] [--case TEXT] [--repeats N] [--json FILE]
//
// Every figure is the median of interleaved runs (ours, limit, ours, limit, ...).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "shard/codec/codec.h"

namespace verbena::bench {
namespace {

using std::chrono::steady_clock;

constexpr size_t kChunk = size_t{64} << 10;  // elements
constexpr size_t kBlock = 2048;

struct Settings {
  size_t mib = 256;  // of f32
  std::string only;
  int repeats = 5;
  std::string json;
};

struct Codec {
  const char* name;
  ElementType type;
};
constexpr Codec kCodecs[] = {{"bf16", ElementType::kBf16},     {"f16", ElementType::kF16},
                             {"int8", ElementType::kInt8},     {"fp8_e4m3", ElementType::kE4m3},
                             {"fp8_e5m2", ElementType::kE5m2}, {"sign", ElementType::kSign},
                             {"top_k", ElementType::kTopK}};

// Reads `bytes`, a multiple of 4; the result depends on all of them.
#if defined(__x86_64__)
__attribute__((target_clones("default", "avx2")))
#endif
uint32_t
Read(const void* from, size_t bytes) {
  const auto* words = static_cast<const uint32_t*>(from);
  uint32_t sum = 0;
  for (size_t i = 0; i < bytes / 4; ++i) sum += words[i];
  return sum;
}

class Bench {
 public:
  Bench(const Settings& settings, Report* report)
      : settings_(settings),
        report_(report),
        n_((settings.mib << 20) / sizeof(float) / kChunk * kChunk),
        values_(n_),
        residual_(n_),
        payload_(n_ * 2) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::generate_n(values_.begin(), kChunk, [&] { return normal(random); });
    for (size_t i = kChunk; i < n_; i += kChunk) {
      std::copy_n(values_.begin(), kChunk, values_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void Run() {
    for (const Codec& codec : kCodecs) {
      Encoding(codec, false);
      Encoding(codec, true);
      Decoding(codec);
    }
  }

 private:
  void Encoding(const Codec& codec, bool feedback) {
    const size_t encoded = PayloadBytes(codec.type, kBlock);
    const size_t bytes = n_ / kBlock * encoded + n_ * sizeof(float) * (feedback ? 3 : 1);
    Measure(
        absl::StrCat("encode ", codec.name, feedback ? ", error feedback" : ""), bytes,
        [&] {
          for (size_t i = 0; i < n_; i += kChunk) {
            codec::Encode(shard::BestIsa(), codec.type, &values_[i],
                          feedback ? &residual_[i] : nullptr,
                          &payload_[PayloadBytes(codec.type, i)], kChunk);
          }
        },
        [&] {
          for (size_t i = 0; i < n_; i += kBlock) {
            const uint32_t sum = Read(&values_[i], kBlock * sizeof(float));
            if (feedback) Update(&residual_[i], static_cast<float>(sum & 1) * 1e-30f);
            std::memset(&payload_[PayloadBytes(codec.type, i)], static_cast<int>(sum), encoded);
          }
        });
    std::fill(residual_.begin(), residual_.end(), 0.0f);
  }

  void Decoding(const Codec& codec) {
    const size_t encoded = PayloadBytes(codec.type, kBlock);
    const size_t bytes = n_ / kBlock * encoded + n_ * sizeof(float);
    codec::Encode(shard::BestIsa(), codec.type, values_.data(), nullptr, payload_.data(), n_);
    Measure(
        absl::StrCat("decode ", codec.name), bytes,
        [&] {
          for (size_t i = 0; i < n_; i += kChunk) {
            codec::Decode(shard::BestIsa(), codec.type, payload_.data(), i, &residual_[i], kChunk);
          }
        },
        [&] {
          for (size_t i = 0; i < n_; i += kBlock) {
            const uint32_t sum = Read(&payload_[PayloadBytes(codec.type, i)], encoded);
            std::fill_n(&residual_[i], kBlock, static_cast<float>(sum & 1));
          }
        });
    std::fill(residual_.begin(), residual_.end(), 0.0f);
  }

  static void Update(float* what, float by) {
    for (size_t i = 0; i < kBlock; ++i) what[i] += by;
  }

  void Measure(const std::string& name, size_t bytes, const std::function<void()>& ours,
               const std::function<void()>& limit) {
    if (name.find(settings_.only) == std::string::npos) return;
    Row row;
    row.bench = "codecs";
    row.name = name;
    row.unit = "GB/s";
    const auto rate = [bytes](const std::function<void()>& pass) {
      const auto begin = steady_clock::now();
      pass();
      const std::chrono::duration<double> took = steady_clock::now() - begin;
      return static_cast<double>(bytes) / took.count() / 1e9;
    };
    ours();
    limit();
    for (int i = 0; i < settings_.repeats; ++i) {
      row.value.Add(rate(ours));
      row.limit.Add(rate(limit));
    }
    report_->Add(std::move(row));
  }

  const Settings& settings_;
  Report* const report_;
  const size_t n_;
  std::vector<float> values_, residual_;
  std::vector<std::byte> payload_;
};

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) {
  verbena::bench::Settings settings;
  CLI::App app("Cost of codecs of gradients, beside the speed of memory");
  app.add_option("--mib", settings.mib, "of f32; there are two and a half times as many")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--case", settings.only, "only those whose names contain this");
  app.add_option("--repeats", settings.repeats, "interleaved runs")
      ->check(CLI::Range(1, 99))
      ->capture_default_str();
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  std::printf(
      "one thread; %zu MiB of f32, in chunks of 256 KiB; GB/s of all bytes read and written; the "
      "limit: a pass over as many bytes\n",
      settings.mib);
  verbena::bench::Report report;
  verbena::bench::Bench(settings, &report).Run();
  return report.End("codecs", absl::OkStatus(), settings.json);
}
