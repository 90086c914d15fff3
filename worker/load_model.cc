#include "worker/load_model.h"

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
#include "proto/whole_file.h"
#include "rdma/memory/cuda/cuda_device.h"
#include "worker/criteo_reader.h"
#include "worker/cuda_text_model.h"
#include "worker/embedding_mlp.h"
#include "worker/factorization_machine.h"
#include "worker/libsvm_reader.h"
#include "worker/logistic_regression.h"
#include "worker/text_model.h"
#include "worker/validation.h"

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

absl::StatusOr<std::unique_ptr<Model>> LoadText(const Options& options) {
  absl::StatusOr<TextData> data = ReadText(options.data, options.test, options.holdout);
  if (!data.ok()) return data.status();
  if (options.device == "cpu") {
    return std::make_unique<TextModel>(*std::move(data), options.text);
  }
  const absl::StatusOr<std::vector<int>> ordinals = OrdinalsOf(options);
  if (!ordinals.ok()) return ordinals.status();
  return CudaTextModel::Open(*std::move(data), options.text, *ordinals);
}

absl::StatusOr<std::unique_ptr<Model>> LoadLogistic(const Options& options) {
  absl::StatusOr<SparseExamples> train = ReadLibsvm(options.data);
  if (!train.ok()) return train.status();
  std::optional<SparseExamples> test;
  if (!options.test.empty()) {
    absl::StatusOr<SparseExamples> read = ReadLibsvm(options.test);
    if (!read.ok()) return read.status();
    test = *std::move(read);
  }
  return std::make_unique<LogisticRegression>(*std::move(train), std::move(test), L2Of(options));
}

absl::StatusOr<KeyedExamples> ReadKeyed(const std::string& format,
                                        const std::vector<std::string>& paths) {
  if (format == "criteo") return ReadCriteo(paths);
  const absl::StatusOr<SparseExamples> examples = ReadLibsvm(paths);
  if (!examples.ok()) return examples.status();
  return KeyedFromSparse(*examples);
}

absl::StatusOr<std::unique_ptr<Model>> LoadKeyed(const Options& options) {
  absl::StatusOr<KeyedExamples> train = ReadKeyed(options.format, options.data);
  if (!train.ok()) return train.status();
  std::optional<KeyedExamples> test;
  if (!options.test.empty()) {
    absl::StatusOr<KeyedExamples> read = ReadKeyed(options.format, options.test);
    if (!read.ok()) return read.status();
    test = *std::move(read);
  } else if (options.format == "criteo" && options.holdout > 0) {
    test = HoldOut(options.holdout, &*train);
    if (train->rows() == 0 || test->rows() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("holding out ", options.holdout, " of ", train->rows() + test->rows(),
                       " lines leaves nothing to train on or nothing to test on; give --test, or "
                       "--holdout 0"));
    }
  }
  if (ModelOf(options) == "mlp") {
    return std::make_unique<EmbeddingMlp>(*std::move(train), std::move(test), EmbeddingOf(options),
                                          HiddenOf(options), L2Of(options));
  }
  const uint32_t factors = ModelOf(options) == "fm" ? EmbeddingOf(options) : 0;
  return std::make_unique<FactorizationMachine>(*std::move(train), std::move(test), factors,
                                                L2Of(options));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const Options& options) {
  if (!options.predictions.empty()) {
    if (absl::Status can = WholeFile::CanWrite(options.predictions); !can.ok()) return can;
  }
  if (options.format == "text") return LoadText(options);
  return HasEmbeddingTable(options) ? LoadKeyed(options) : LoadLogistic(options);
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
