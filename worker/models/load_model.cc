#include "worker/models/load_model.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/whole_file.h"
#include "rdma/memory/cuda/cuda_device.h"
#include "worker/data/inputs.h"
#include "worker/data/libsvm_reader.h"
#include "worker/data/streamed_input.h"
#include "worker/models/cuda_text_model.h"
#include "worker/models/embedding_mlp.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/logistic_regression.h"
#include "worker/models/text_model.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

// "cuda": the workers of a machine take its GPUs in turn.
absl::StatusOr<std::vector<int>> OrdinalsOf(const Options& options) {
  std::vector<int> ordinals;
  if (options.device == "cuda") {
    const absl::StatusOr<int> count = rdma::CudaDeviceCount();
    if (!count.ok()) return count.status();
    ordinals.push_back(std::max(options.rank, 0) % *count);
    return ordinals;
  }
  const std::string numbers = options.device.substr(std::strlen("cuda:"));
  for (const auto number : absl::StrSplit(numbers, ',')) {
    ordinals.push_back(std::atoi(std::string(number).c_str()));
  }
  return ordinals;
}

// The parts' examples in memory: most of it for those to train on.
uint64_t TestMemory(const Options& options) { return options.input_memory / 4; }

absl::StatusOr<std::unique_ptr<Model>> LoadText(const Options& options, const InputParts& parts) {
  TextData data;
  absl::StatusOr<ByteSet> train = StreamBytes(parts.train, options.input_memory);
  if (!train.ok()) return train.status();
  data.train = *std::move(train);
  absl::StatusOr<ByteSet> test = StreamBytes(parts.test, TestMemory(options));
  if (!test.ok()) return test.status();
  data.test = *std::move(test);
  if (options.device == "cpu") {
    return std::make_unique<TextModel>(std::move(data), options.text);
  }
  const absl::StatusOr<std::vector<int>> ordinals = OrdinalsOf(options);
  if (!ordinals.ok()) return ordinals.status();
  return CudaTextModel::Open(std::move(data), options.text, *ordinals);
}

absl::StatusOr<std::unique_ptr<Model>> LoadClassifier(const Options& options,
                                                      const InputParts& parts) {
  const std::string name = ModelOf(options);
  const uint64_t max_index =
      name == "logistic" ? LibsvmParser::kMaxDenseIndex : LibsvmParser::kMaxIndex;
  absl::StatusOr<ExampleSet> train = StreamExamples(parts.train, options.input_memory, max_index);
  if (!train.ok()) return train.status();
  std::optional<ExampleSet> test;
  if (parts.test.count > 0) {
    absl::StatusOr<ExampleSet> read = StreamExamples(parts.test, TestMemory(options), max_index);
    if (!read.ok()) return read.status();
    test = *std::move(read);
  }
  const double l2 = L2Of(options);
  if (name == "logistic") {
    return std::make_unique<LogisticRegression>(*std::move(train), std::move(test), l2);
  }
  if (name == "mlp") {
    return std::make_unique<EmbeddingMlp>(*std::move(train), std::move(test), EmbeddingOf(options),
                                          HiddenOf(options), l2);
  }
  const uint32_t factors = name == "fm" ? EmbeddingOf(options) : 0;
  return std::make_unique<FactorizationMachine>(*std::move(train), std::move(test), factors, l2);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const Options& options,
                                                 const std::atomic<bool>* stop) {
  if (!options.predictions.empty()) {
    if (absl::Status can = WholeFile::CanWrite(options.predictions); !can.ok()) return can;
  }
  const absl::StatusOr<Inputs> inputs = OpenInputs(options, stop);
  if (!inputs.ok()) return inputs.status();
  const absl::StatusOr<InputParts> parts =
      SplitInputs(*inputs, options.format == "libsvm" ? 0 : options.holdout);
  if (!parts.ok()) return parts.status();
  if (options.format == "text") return LoadText(options, *parts);
  if (options.format == "criteo" && options.holdout > 0 && parts->test.count == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("holding out ", options.holdout, " of ", parts->train.count,
                     " lines leaves nothing to train on or nothing to test on; give --test, or "
                     "--holdout 0"));
  }
  return LoadClassifier(options, *parts);
}

absl::StatusOr<Quality> EvaluateModel(const Options& options, Model* model, RowStore* rows,
                                      const float* parameters) {
  Evaluation evaluation;
  evaluation.parameters = parameters;
  if (options.predictions.empty()) return EvaluateWith(model, rows, evaluation);
  // Workers may all write it.
  absl::StatusOr<std::unique_ptr<WholeFile>> file = WholeFile::Open(options.predictions);
  if (!file.ok()) return file.status();
  evaluation.predictions = (*file)->stream();
  absl::StatusOr<Quality> quality = EvaluateWith(model, rows, evaluation);
  if (!quality.ok()) return quality;
  if (absl::Status wrote = (*file)->Commit(); !wrote.ok()) return wrote;
  return quality;
}

}  // namespace verbena::worker
