// Helpers to build metric families, for the files of this folder.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_METRICS_FAMILIES_H_
#define VERBENA_SERVER_METRICS_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/metrics/metrics.h"

namespace verbena::server {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

inline constexpr MetricType kCounter = MetricType::Counter;
inline constexpr MetricType kGauge = MetricType::Gauge;

template <typename T>
double D(T value) {
  return static_cast<double>(value);
}

inline MetricFamily Family(std::string name, std::string help, MetricType type) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  return family;
}

inline void Add(MetricFamily* family, double value, Labels labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family->type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family->metric.push_back(std::move(metric));
}

inline Labels ShardLabel(size_t shard) { return {{"shard", absl::StrCat(shard)}}; }

// Families of whole shards, without their tables and jobs.
void AddShards(const std::vector<ShardMetrics>& shards, std::vector<MetricFamily>* out);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_METRICS_FAMILIES_H_
