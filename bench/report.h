// The output of a benchmark: rows of ours beside its limit, medians of interleaved runs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_REPORT_H_
#define VERBENA_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace verbena::bench {

// Measurements of one thing.
class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  double Median() const;
  double Low() const;
  double High() const;

 private:
  std::vector<double> values_;
};

enum class Better { kHigher, kLower };

struct Row {
  std::string bench;
  std::string name;  // "case" in the output
  std::string unit;
  Better better = Better::kHigher;
  Samples value;
  Samples limit;

  // >= 1 is always good: as good as the limit, or better.
  double Ratio() const;
};

class Report {
 public:
  // Prints the row at once, with the spread of both sides.
  void Add(Row row);
  // The exit status of `bench`, which ended with `status`: prints the error, or writes the rows to
  // the file `json` (empty: nowhere), an array of {bench, case, value, unit, limit, ratio}.
  int End(const char* bench, const absl::Status& status, const std::string& json) const;

 private:
  bool WriteJson(const std::string& path) const;

  std::vector<Row> rows_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_REPORT_H_
