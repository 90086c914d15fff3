#include "bench/migrate/load.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::bench {
namespace {

constexpr uint64_t kRangeBytes = 1 << 20;  // of a push to the dense table
constexpr uint64_t kKeys = 4096;           // of a push of rows
constexpr uint64_t kKeysAtOnce = 65'536;   // of pushes that make rows, and of lookups
constexpr int kDepth = 8;
constexpr char kJob[] = "migrate";

// Of a push: the gradient is one, and with the rate of -1 the parameter counts.
v1::TableSpec SpecOf(const LoadOptions& options, bool rows) {
  v1::TableSpec spec;
  spec.set_name(rows ? "rows" : "dense");
  spec.set_job(kJob);
  if (rows) {
    spec.set_dim(options.dim);
  } else {
    spec.add_shape(options.dense_bytes / sizeof(float));
  }
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_initializer()->set_kind(v1::Initializer::ZEROS);
  spec.mutable_optimizer()->set_name("sgd");
  spec.mutable_optimizer()->set_rate(1);
  return spec;
}

std::vector<double> Windows(const std::vector<std::atomic<uint64_t>>& counts, int from, int to,
                            int width) {
  std::vector<double> rates;
  for (int first = from; first + width <= std::min<int>(to, static_cast<int>(counts.size()));
       ++first) {
    double bytes = 0;
    for (int i = first; i < first + width; ++i) bytes += static_cast<double>(counts[i]);
    rates.push_back(bytes * 1e3 / (width * kBucketMs));
  }
  return rates;
}

absl::Status Wrong(const std::string& what, float is, uint64_t wanted) {
  return absl::DataLossError(
      absl::StrCat(what, " is ", is, "; ", wanted, " pushes of one were acknowledged"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Load>> Load::Start(const LoadOptions& options,
                                                  const std::string& cluster) {
  std::unique_ptr<Load> load(new Load(options));
  if (absl::Status s = load->Connect(cluster); !s.ok()) return s;
  if (absl::Status s = load->MakeRows(); !s.ok()) return s;
  return load;
}

absl::Status Load::Connect(const std::string& cluster) {
  ClientOptions options;
  options.cluster = cluster;
  options.job = kJob;
  options.transport = options_.wire.transport;
  options.rdma.device = options_.wire.device;
  auto connected = Client::Connect(options);
  if (!connected.ok()) return connected.status();
  client_ = *std::move(connected);
  for (const bool rows : {false, true}) {
    auto table = client_->CreateTable(SpecOf(options_, rows));
    if (!table.ok()) return table.status();
    (rows ? rows_ : dense_) = *table;
  }
  const uint64_t row_bytes = kKeysAtOnce * options_.dim * sizeof(float);
  for (const auto& [region, bytes] :
       {std::pair{&dense_ones_, kRangeBytes}, std::pair{&row_ones_, row_bytes},
        std::pair{&answers_, std::max(row_bytes, kRangeBytes)}}) {
    auto allocated = client_->AllocateRegion(bytes);
    if (!allocated.ok()) return allocated.status();
    *region = *std::move(allocated);
    std::fill_n(region->floats(), bytes / sizeof(float), -1.0f);
  }
  range_pushes_.resize(options_.dense_bytes / kRangeBytes);
  row_pushes_.resize(options_.rows);
  return absl::OkStatus();
}

absl::Status Load::MakeRows() {
  std::vector<uint64_t> keys(kKeysAtOnce);
  for (uint64_t first = 0; first < options_.rows; first += kKeysAtOnce) {
    keys.resize(std::min(kKeysAtOnce, options_.rows - first));
    std::iota(keys.begin(), keys.end(), first);
    const absl::Status made = client_->PushRows(rows_, keys, row_ones_).Wait();
    if (!made.ok()) return made;
  }
  std::fill(row_pushes_.begin(), row_pushes_.end(), 1);
  return absl::OkStatus();
}

void Load::Run() {
  start_ = steady_clock::now();
  threads_.emplace_back(
      [this] { PushAll([this] { return PushDense(); }, kRangeBytes, &dense_bytes_, &latencies_); });
  threads_.emplace_back([this] {
    PushAll([this] { return PushRows(); }, kKeys * options_.dim * sizeof(float), &row_bytes_,
            nullptr);
  });
}

absl::Status Load::End() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  const std::lock_guard<std::mutex> lock(mutex_);
  return failed_;
}

void Load::Note(const absl::Status& status) {
  if (status.ok()) return;
  stop_ = true;
  const std::lock_guard<std::mutex> lock(mutex_);
  failed_.Update(status);
}

void Load::PushAll(const std::function<Ticket()>& push, uint64_t bytes, Counts* counts,
                   std::vector<std::pair<int, float>>* latencies) {
  std::vector<Ticket> tickets;
  for (int k = 0; k < kDepth; ++k) tickets.push_back(push());
  for (int k = 0; !stop_; k = (k + 1) % kDepth) {
    Note(tickets[k].Wait());
    const int bucket = Now();
    if (bucket < kBuckets) (*counts)[bucket] += bytes;
    if (latencies != nullptr) {
      latencies->emplace_back(bucket, absl::ToDoubleMilliseconds(tickets[k].Elapsed()));
    }
    tickets[k] = push();
  }
  for (Ticket& ticket : tickets) Note(ticket.Wait());
}

Ticket Load::PushDense() {
  const uint64_t range = next_range_++ % range_pushes_.size();
  ++range_pushes_[range];
  const uint64_t elements = kRangeBytes / sizeof(float);
  return client_->Push(dense_, dense_ones_, {.first = range * elements, .count = elements});
}

Ticket Load::PushRows() {
  std::vector<uint64_t> keys(kKeys);
  for (uint64_t& key : keys) {
    // Knuth's linear congruential generator: the low bits are too regular.
    random_ = random_ * 6364136223846793005 + 1442695040888963407;
    key = (random_ >> 24) % options_.rows;
    ++row_pushes_[key];  // the gradients of a repeated key are added
  }
  return client_->PushRows(rows_, keys, row_ones_);
}

absl::Status Load::Check() {
  if (absl::Status s = CheckDense(); !s.ok()) return s;
  return CheckRows();
}

absl::Status Load::CheckDense() {
  const uint64_t elements = kRangeBytes / sizeof(float);
  for (uint64_t range = 0; range < range_pushes_.size(); ++range) {
    const absl::Status pulled =
        client_->Pull(dense_, answers_, {.first = range * elements, .count = elements}).Wait();
    if (!pulled.ok()) return pulled;
    for (uint64_t i = 0; i < elements; ++i) {
      if (answers_.floats()[i] == static_cast<float>(range_pushes_[range])) continue;
      return Wrong(absl::StrCat("element ", range * elements + i, " of the dense table"),
                   answers_.floats()[i], range_pushes_[range]);
    }
  }
  return absl::OkStatus();
}

absl::Status Load::CheckRows() {
  std::vector<uint64_t> keys(kKeysAtOnce);
  for (uint64_t first = 0; first < options_.rows; first += kKeysAtOnce) {
    keys.resize(std::min(kKeysAtOnce, options_.rows - first));
    std::iota(keys.begin(), keys.end(), first);
    const absl::Status found = client_->Lookup(rows_, keys, answers_).Wait();
    if (!found.ok()) return found;
    for (uint64_t i = 0; i < keys.size() * options_.dim; ++i) {
      const uint64_t key = first + i / options_.dim;
      if (answers_.floats()[i] == static_cast<float>(row_pushes_[key])) continue;
      return Wrong(absl::StrCat("a number of the row of key ", key), answers_.floats()[i],
                   row_pushes_[key]);
    }
  }
  return absl::OkStatus();
}

std::vector<double> Load::Latencies(int from, int to) const {
  std::vector<double> of_window;
  for (const auto& [bucket, milliseconds] : latencies_) {
    if (bucket >= from && bucket < to) of_window.push_back(milliseconds);
  }
  return of_window;
}

std::vector<double> Load::Dense(int from, int to, int width) const {
  return Windows(dense_bytes_, from, to, width);
}

std::vector<double> Load::Rows(int from, int to, int width) const {
  return Windows(row_bytes_, from, to, width);
}

}  // namespace verbena::bench
