// How evenly whole partitions of an embedding table spread a Zipf load over shards, compared with
// partitions that are split in halves of their hash range wherever that helps.
//
//     partitions [--rows N] [--requests N] [--batch N] [--json FILE]
//
// A row's value is the load of the most loaded shard over the mean, with partitions placed by
// measured load (the heaviest first, each on the shard with the least). Its limit is the same after
// the heaviest partition has been split, again and again, as long as that lowers it. Nothing runs:
// the figures follow from the keys alone.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <numeric>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/random/zipf_distribution.h"
#include "absl/strings/str_format.h"
#include "bench/report.h"
#include "proto/base/usage_error.h"
#include "proto/wire/routing.h"

namespace verbena::bench {
namespace {

constexpr uint32_t kTable = 1;
constexpr uint32_t kPartitions = 256;  // the default
// A split partition is a range of the hash, as a whole one is: these are the halves of halves.
constexpr uint32_t kPieces = 256;  // of a partition
constexpr int kSplitsAtMost = 2'000;

struct Settings {
  uint64_t rows = 10'000'000;
  uint64_t requests = 20'000'000;
  uint64_t batch = 16'384;  // rows of a call, which names each key once
  std::string json;
};

// Rows that servers look up, by the smallest pieces of the hash range.
std::vector<uint64_t> LoadOfPieces(const Settings& settings, double exponent) {
  std::vector<uint64_t> pieces(kPartitions * kPieces);
  absl::zipf_distribution<uint64_t> ranks(settings.rows - 1, exponent);
  std::mt19937_64 random(1);
  std::vector<uint64_t> keys(settings.batch);
  for (uint64_t done = 0; done < settings.requests; done += settings.batch) {
    for (uint64_t& key : keys) key = ranks(random);
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    for (const uint64_t key : keys) ++pieces[PartitionOfKey(kTable, key, kPartitions * kPieces)];
    keys.resize(settings.batch);
  }
  return pieces;
}

// The load of the most loaded shard over the mean.
double Imbalance(std::vector<uint64_t> loads, size_t shards) {
  std::sort(loads.begin(), loads.end(), std::greater<>());
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> least;
  for (size_t shard = 0; shard < shards; ++shard) least.push(0);
  for (const uint64_t load : loads) {
    const uint64_t with = least.top() + load;
    least.pop();
    least.push(with);
  }
  uint64_t most = 0;
  for (; !least.empty(); least.pop()) most = least.top();
  const uint64_t all = std::accumulate(loads.begin(), loads.end(), uint64_t{0});
  return static_cast<double>(most) * static_cast<double>(shards) / static_cast<double>(all);
}

// A range of pieces.
struct Range {
  size_t first = 0, count = 0;
  uint64_t load = 0;
  bool operator<(const Range& other) const { return load < other.load; }
};

double ImbalanceWithSplits(const std::vector<uint64_t>& pieces, size_t shards, int* splits) {
  const auto load = [&](size_t first, size_t count) {
    const auto from = pieces.begin() + static_cast<ptrdiff_t>(first);
    return std::accumulate(from, from + static_cast<ptrdiff_t>(count), uint64_t{0});
  };
  std::priority_queue<Range> ranges;
  std::vector<uint64_t> single;  // loads of ranges that cannot be split further
  for (size_t p = 0; p < kPartitions; ++p) {
    ranges.push({p * kPieces, kPieces, load(p * kPieces, kPieces)});
  }
  const auto imbalance = [&] {
    std::vector<uint64_t> loads = single;
    for (auto left = ranges; !left.empty(); left.pop()) loads.push_back(left.top().load);
    return Imbalance(std::move(loads), shards);
  };
  double best = imbalance();
  *splits = 0;
  for (int made = 1; made <= kSplitsAtMost && !ranges.empty(); ++made) {
    const Range range = ranges.top();
    ranges.pop();
    if (range.count == 1) {
      single.push_back(range.load);
      continue;
    }
    const size_t half = range.count / 2;
    ranges.push({range.first, half, load(range.first, half)});
    ranges.push({range.first + half, half, load(range.first + half, half)});
    const double now = imbalance();
    if (now < best * 0.999) best = now, *splits = made;
  }
  return best;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("How evenly whole partitions spread a Zipf load, compared with split ones");
  app.add_option("--rows", settings.rows, "rows of the table")
      ->check(CLI::Range(1000, 1'000'000'000));
  app.add_option("--requests", settings.requests, "rows that are asked for");
  app.add_option("--batch", settings.batch, "rows of a call, which names each key once")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--json", settings.json, "write the rows to this file");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  std::printf("%lu rows in %u partitions, %lu requests in calls of %lu; load: rows of calls\n",
              settings.rows, kPartitions, settings.requests, settings.batch);
  Report report;
  for (const double exponent : {1.01, 1.05, 1.2}) {
    const std::vector<uint64_t> pieces = LoadOfPieces(settings, exponent);
    std::vector<uint64_t> whole(kPartitions);
    for (size_t i = 0; i < pieces.size(); ++i) whole[i / kPieces] += pieces[i];
    for (const size_t shards : {8u, 32u, 64u, 128u}) {
      int splits = 0;
      Row row;
      row.bench = "partitions";
      row.better = Better::kLower;
      row.unit = "of the mean";
      row.value.Add(Imbalance(whole, shards));
      row.limit.Add(ImbalanceWithSplits(pieces, shards, &splits));
      row.name =
          absl::StrFormat("Zipf %.2f, %d shards, limit with %d splits", exponent, shards, splits);
      report.Add(std::move(row));
    }
  }
  return report.End("partitions", absl::OkStatus(), settings.json);
}

}  // namespace
}  // namespace verbena::bench

int main(int argc, char** argv) { return verbena::bench::Main(argc, argv); }
