// The JSON result of verbena-train has the members that the reference describes.
#include "worker/train/report.h"

#include <google/protobuf/util/json_util.h>

#include <catch2/catch.hpp>

#include "tests/support/json_check.h"

namespace verbena::worker {
namespace {

std::string UndescribedIn(const Options& options, const Report& report) {
  google::protobuf::Value value;
  const std::string text = FormatReport(options, report);
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(text, value.mutable_struct_value());
  INFO(text);
  REQUIRE(parsed.ok());
  return test::Undescribed(value, ReportFields().name, {ReportFields()});
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

}  // namespace
}  // namespace verbena::worker
