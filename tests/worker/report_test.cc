// The JSON that verbena-train prints and logs has the members that the reference describes.
#include "worker/train/report.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "absl/strings/match.h"
#include "tests/support/json_check.h"
#include "tests/worker/temporary_file.h"
#include "worker/train/progress.h"
#include "worker/train/run_log.h"

namespace verbena::worker {
namespace {

google::protobuf::Value Parse(const std::string& text) {
  google::protobuf::Value value;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(text, value.mutable_struct_value());
  INFO(text);
  REQUIRE(parsed.ok());
  return value;
}

std::string UndescribedIn(const Options& options, const Report& report) {
  return test::Undescribed(Parse(FormatReport(options, report)), ReportFields().name,
                           {ReportFields()});
}

std::vector<google::protobuf::Value> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<google::protobuf::Value> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Parse(line));
  return lines;
}

double Number(const google::protobuf::Value& line, const std::string& member) {
  return line.struct_value().fields().at(member).number_value();
}

TEST_CASE("the progress of a run that is resumed is of its own steps") {
  Totals now;
  now.steps = now.steps_before = 30;
  now.bytes_pulled = 1000;
  now.seconds = 1e-6;
  CHECK(ProgressLine(now, Totals(), 30) == "step 30/30  nothing was left to train");
  CHECK(ProgressLine(now, Totals(), 20) == "step 30/20  nothing was left to train");
  // 10 of 70 steps in 5 s.
  now.steps = 40;
  now.seconds = 5;
  CHECK(absl::EndsWith(ProgressLine(now, Totals(), 100), "  ETA 30 s"));
  now.steps = now.steps_before = 0;
  CHECK_FALSE(absl::StrContains(ProgressLine(now, Totals(), 100), "ETA"));
}

TEST_CASE("every member of the result is described") {
  Options options;
  options.json = true;
  options.format = "text";
  Report report;
  CHECK(UndescribedIn(options, report) == "");
  options.format = "criteo";
  options.early_stop = 1;
  report.quality.emplace();
  report.quality->auc = 0.5;
  report.quality->accuracy = 0.5;
  report.quality->bits_per_byte = 1;
  report.parameters_hash = 7;
  CHECK(UndescribedIn(options, report) == "");
}

TEST_CASE("the log of a run has its beginning, its progress, validations and the result") {
  const TemporaryFile file("");
  Options options;
  options.format = "libsvm";
  options.log = file.path();
  for (int run = 0; run < 2; ++run) {
    auto log = RunLog::Open(options, [](const std::string& warning) { FAIL(warning); });
    REQUIRE(log.ok());
    log->Begin(100);
    log->Progress({.steps = 10, .samples = 100, .seconds = 0.5, .loss = 1});
    log->Progress({.steps = 12, .samples = 120, .seconds = 0.6, .loss = 1});  // too early
    log->Progress({.steps = 30, .samples = 300, .seconds = 1.5, .loss = 0.5});
    log->Validated({.step = 30, .quality = {.examples = 7, .auc = 0.75}, .best = true});
    log->End(Report());
    // A second run is behind the first one.
    CHECK(LinesOf(options.log).size() == 5 * (static_cast<size_t>(run) + 1));
  }
  const std::vector<google::protobuf::Value> lines = LinesOf(options.log);
  const std::vector<std::string> events = {"run", "progress", "progress", "validation", "result"};
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& event = events[i % events.size()];
    CHECK(lines[i].struct_value().fields().at("event").string_value() == event);
    std::vector<JsonObject> objects = RunLogObjects();
    const auto found = std::find_if(objects.begin(), objects.end(), [&](const JsonObject& o) {
      return absl::EndsWith(o.name, event);
    });
    REQUIRE(found != objects.end());
    JsonObject& object = *found;
    if (event == "result") {
      const std::vector<JsonField>& fields = ReportFields().fields;
      object.fields.insert(object.fields.end(), fields.begin(), fields.end());
    }
    CHECK(test::Undescribed(lines[i], object.name, {object}) == "");
  }
  CHECK(Number(lines[0], "planned_steps") == 100);
  CHECK(Number(lines[2], "samples_per_s") == 200);
  CHECK(Number(lines[3], "auc") == 0.75);
}

TEST_CASE("a log that cannot be written is reported once, and one that cannot be opened at once") {
  Options options;
  options.format = "text";
  options.log = "/dev/full";
  std::vector<std::string> warnings;
  auto log = RunLog::Open(options, [&](const std::string& line) { warnings.push_back(line); });
  REQUIRE(log.ok());
  log->Begin(100);
  log->End(Report());
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] ==
        "--log /dev/full: cannot write: No space left on device; the log ends here, and training "
        "continues");
  options.log = "/nowhere/run.jsonl";
  const absl::Status status = RunLog::Open(options, nullptr).status();
  CHECK(status.message() == "--log /nowhere/run.jsonl: cannot open it: No such file or directory");
}

TEST_CASE("a result has the steps of these workers, whatever the run had before") {
  using Catch::Matchers::Contains;
  Options options;
  Report report;
  report.totals = {.steps = 50, .samples = 100, .seconds = 0.004};
  CHECK_THAT(FormatReport(options, report), Contains("trained 50 steps in 0.004 s"));
  CHECK_THAT(FormatReport(options, report), Contains("25000 samples/s"));
  report.totals.steps_before = 30;
  report.totals.seconds = 2;
  CHECK_THAT(FormatReport(options, report),
             Contains("trained 20 steps (31 to 50) in 2.0 s") && Contains(": 50 samples/s"));
  report.totals = {.steps = 50, .steps_before = 50};
  CHECK(FormatReport(options, report) == "nothing was left to train: the run has 50 steps\n");
}

}  // namespace
}  // namespace verbena::worker
