// verbena-train: trains a model on a Verbena cluster.
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/json.h"
#include "proto/base/process_start.h"
#include "worker/data/inputs.h"
#include "worker/models/count_models.h"
#include "worker/train/launcher.h"
#include "worker/train/options.h"
#include "worker/train/report.h"
#include "worker/train/worker_process.h"

namespace verbena::worker {
namespace {

// The whole text, to train on and to measure on.
absl::StatusOr<std::pair<std::string, std::string>> ReadTexts(const Options& options) {
  const absl::StatusOr<Inputs> inputs = OpenInputs(options, nullptr);
  if (!inputs.ok()) return inputs.status();
  const absl::StatusOr<InputParts> parts = SplitInputs(*inputs, options.holdout);
  if (!parts.ok()) return parts.status();
  if (parts->test.count == 0) {
    return absl::InvalidArgumentError("nothing was held out to measure on");
  }
  absl::StatusOr<std::string> train = ReadBytes(parts->train);
  if (!train.ok()) return train.status();
  absl::StatusOr<std::string> test = ReadBytes(parts->test);
  if (!test.ok()) return test.status();
  return std::make_pair(*std::move(train), *std::move(test));
}

int PrintCountModels(const Options& options) {
  const auto texts = ReadTexts(options);
  if (!texts.ok()) {
    std::fprintf(stderr, "verbena-train: %s\n", std::string(texts.status().message()).c_str());
    return kExitFailure;
  }
  const auto& [train, test] = *texts;
  const auto bits = CountModelBitsPerByte(train, test);
  std::string text;
  if (options.json) {
    JsonWriter json;
    json.Add("train_bytes", uint64_t{train.size()});
    json.Add("test_bytes", uint64_t{test.size()});
    json.Add("order_0", bits[0]);
    json.Add("order_1", bits[1]);
    json.Add("order_2", bits[2]);
    text = json.ToString() + "\n";
  } else {
    text =
        absl::StrFormat("held-out bits per byte of counting models: order 0 %.4f, 1 %.4f, 2 %.4f\n",
                        bits[0], bits[1], bits[2]);
  }
  return WriteResult(text) ? kExitOk : kExitFailure;
}

}  // namespace
}  // namespace verbena::worker

int main(int argc, char** argv) {
  using namespace verbena::worker;
  verbena::PrepareProcess();
  const Parsed parsed = ParseOptions(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  const Options& options = *parsed.options;
  if (options.count_models) return PrintCountModels(options);
  if (options.channel >= 0) return RunLaunchedWorker(options);
  if (options.local || options.rank >= 0 || options.max_workers > 0) {
    return RunSeparateWorker(options);
  }
  return Launch(options, argc, argv);
}
