// One HTTP GET on loopback, for reading metrics in tests.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_SUPPORT_HTTP_H_
#define VERBENA_TESTS_SUPPORT_HTTP_H_

#include <string>

namespace verbena::test {

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string body;
};
HttpAnswer HttpGet(const std::string& address, const std::string& path);

// The sum over all samples of a metric in Prometheus' text format (labels ignored).
double MetricSum(const std::string& text, const std::string& name);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_HTTP_H_
