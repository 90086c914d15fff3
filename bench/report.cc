#include "bench/report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

namespace verbena::bench {

double Samples::Median() const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Samples::Low() const {
  return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end());
}

double Samples::High() const {
  return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end());
}

double Row::Ratio() const {
  const double ours = value.Median();
  const double best = limit.Median();
  if (better == Better::kHigher) return best > 0 ? ours / best : 0;
  return ours > 0 ? best / ours : 0;
}

void Report::Add(Row row) {
  if (rows_.empty()) {
    std::printf("%-40s %10s %-21s %10s %-21s %-5s %6s\n", "case", "ours", "[spread]", "limit",
                "[spread]", "unit", "ratio");
  }
  char ours[32];
  char best[32];
  std::snprintf(ours, sizeof ours, "[%.4g..%.4g]", row.value.Low(), row.value.High());
  std::snprintf(best, sizeof best, "[%.4g..%.4g]", row.limit.Low(), row.limit.High());
  std::printf("%-40s %10.4g %-21s %10.4g %-21s %-5s %6.3f\n", row.name.c_str(), row.value.Median(),
              ours, row.limit.Median(), best, row.unit.c_str(), row.Ratio());
  std::fflush(stdout);
  rows_.push_back(std::move(row));
}

int Report::End(const char* bench, const absl::Status& status, const std::string& json) const {
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", bench, status.ToString().c_str());
    return 1;
  }
  if (!json.empty() && !WriteJson(json)) {
    std::fprintf(stderr, "%s: cannot write %s\n", bench, json.c_str());
    return 1;
  }
  return 0;
}

bool Report::WriteJson(const std::string& path) const {
  std::ofstream file(path);
  file << "[";
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    char numbers[160];
    std::snprintf(numbers, sizeof numbers,
                  "\"value\": %.6g, \"unit\": \"%s\", \"limit\": %.6g, \"ratio\": %.4g",
                  row.value.Median(), row.unit.c_str(), row.limit.Median(), row.Ratio());
    // Names are ours: nothing in them needs escaping.
    file << (i == 0 ? "\n" : ",\n") << "  {\"bench\": \"" << row.bench << "\", \"case\": \""
         << row.name << "\", " << numbers << "}";
  }
  file << "\n]\n";
  file.close();
  return !file.fail();
}

}  // namespace verbena::bench
