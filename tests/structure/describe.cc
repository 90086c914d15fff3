// Prints the descriptions that reference pages are made of, as Markdown tables (docs/generate.sh):
//
//     verbena_describe metrics | json
//
// It needs no cluster. It links the tables from which the programs export metrics and write JSON.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/cli/verbena/json_fields.h"
#include "server/metrics/metrics.h"
#include "worker/train/report.h"
#include "worker/train/run_log.h"

namespace verbena {
namespace {

// In a cell of a table.
std::string Cell(const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

void PrintMetrics() {
  std::puts("| metric | type | meaning |\n|---|---|---|");
  for (const server::MetricDescription& metric : server::DescribeMetrics()) {
    std::printf("| `%s` | %s | %s |\n", metric.name.c_str(), metric.type.c_str(),
                Cell(metric.help).c_str());
  }
}

void PrintObject(const JsonObject& object) {
  std::printf("### %s\n\n", object.name);
  if (*object.about != '\0') std::printf("%s\n\n", object.about);
  std::puts("| member | type | meaning |\n|---|---|---|");
  for (const JsonField& field : object.fields) {
    std::printf("| `%s` | %s | %s |\n", field.name, field.type, Cell(field.meaning).c_str());
  }
  std::puts("");
}

int Main(const std::string& kind) {
  if (kind == "metrics") {
    PrintMetrics();
  } else if (kind == "json") {
    for (const JsonObject& object : cli::JsonObjects()) PrintObject(object);
    PrintObject(worker::ReportFields());
    for (const JsonObject& object : worker::RunLogObjects()) PrintObject(object);
  } else {
    std::fprintf(stderr, "verbena_describe: '%s' is not allowed; allowed: metrics, json\n",
                 kind.c_str());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace verbena

int main(int argc, char** argv) { return verbena::Main(argc == 2 ? argv[1] : ""); }
