#include "bench/catch_up/clients.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "verbena/client.h"

namespace verbena::bench {
namespace {

constexpr int kBuckets = 6000;  // ten minutes
constexpr int kDepth = 4;       // pushes in flight, of each client
constexpr uint64_t kKeysOfPush = 64;
constexpr char kJob[] = "catch_up";

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void* MapShared(int fd, size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

pid_t StartClient(const ClientsOptions& options, int fd, int index) {
  std::vector<std::string> arguments = {"/proc/self/exe",
                                        "--as-client",
                                        absl::StrCat(index),
                                        "--shared",
                                        absl::StrCat(fd),
                                        "--cluster",
                                        options.cluster,
                                        "--transport",
                                        options.transport,
                                        "--rows",
                                        absl::StrCat(options.rows),
                                        "--dim",
                                        absl::StrCat(options.dim),
                                        "--optimizer",
                                        options.optimizer,
                                        "--new-keys",
                                        absl::StrCat(options.new_keys),
                                        "--dense-bytes",
                                        absl::StrCat(options.dense_bytes),
                                        "--clients",
                                        absl::StrCat(options.clients)};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  execv(argv[0], argv.data());
  _exit(127);
}

void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

v1::TableSpec SpecOf(const ClientsOptions& options, bool rows) {
  v1::TableSpec spec;
  spec.set_name(rows ? "rows" : "dense");
  spec.set_job(kJob);
  if (rows) {
    spec.set_dim(options.dim);
  } else {
    spec.add_shape(options.dense_bytes / sizeof(float));
    spec.set_chunk_bytes(16 << 10);
  }
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.mutable_optimizer()->set_name(options.optimizer);
  spec.mutable_optimizer()->set_rate(0.001);
  return spec;
}

}  // namespace

// In memory that all processes map.
struct Clients::Shared {
  int64_t start_ms = 0;
  std::atomic<bool> load = false, stop = false;
  std::atomic<int> ready = 0, quiet = 0, failed = 0;
  std::atomic<uint64_t> pushes[kBuckets] = {};
  char error[512] = {};  // of the first that failed

  int Bucket() const { return static_cast<int>((NowMs() - start_ms) / kBucketMs); }
  void Fail(const absl::Status& status) {
    if (failed.fetch_add(1) > 0) return;
    std::strncpy(error, status.ToString().c_str(), sizeof(error) - 1);
  }
};

namespace {

// The work of one process.
template <typename Shared>
class ClientProcess {
 public:
  ClientProcess(const ClientsOptions& options, int index, Shared* shared)
      : options_(options), shared_(*shared), random_(static_cast<uint64_t>(index) + 1) {
    next_new_ = options.rows + (static_cast<uint64_t>(index) << 40);
  }

  absl::Status Run() {
    if (absl::Status status = Open(); !status.ok()) return status;
    ++shared_.ready;
    while (!shared_.stop) {
      if (!shared_.load) {
        Pause();
        continue;
      }
      --shared_.quiet;
      const absl::Status status = PushUntilQuiet();
      ++shared_.quiet;
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Open() {
    ClientOptions options;
    options.cluster = options_.cluster;
    options.job = kJob;
    options.expected_workers = static_cast<uint32_t>(options_.clients);
    options.transport = options_.transport;
    auto connected = Client::Connect(options);
    if (!connected.ok()) return connected.status();
    client_ = *std::move(connected);
    for (const bool rows : {false, true}) {
      auto table = client_->CreateTable(SpecOf(options_, rows));
      if (!table.ok()) return table.status();
      (rows ? rows_ : dense_) = *table;
    }
    auto region = client_->AllocateRegion(
        std::max<uint64_t>(options_.dense_bytes, kKeysOfPush * options_.dim * sizeof(float)));
    if (!region.ok()) return region.status();
    region_ = *std::move(region);
    std::fill_n(region_.floats(), region_.size() / sizeof(float), 0.5f);
    return absl::OkStatus();
  }

  Ticket Push() {
    if (turn_++ % 2 == 0) return client_->Push(dense_, region_);
    std::set<uint64_t> keys;
    for (int i = 0; i < options_.new_keys; ++i) keys.insert(next_new_++);
    while (keys.size() < kKeysOfPush) keys.insert(random_() % options_.rows);
    const std::vector<uint64_t> all(keys.begin(), keys.end());
    return client_->PushRows(rows_, all, region_);
  }

  absl::Status PushUntilQuiet() {
    std::vector<Ticket> tickets;
    for (int i = 0; i < kDepth; ++i) tickets.push_back(Push());
    absl::Status status;
    for (size_t k = 0; shared_.load && !shared_.stop && status.ok(); k = (k + 1) % kDepth) {
      status.Update(tickets[k].Wait());
      const int bucket = shared_.Bucket();
      if (status.ok() && bucket < kBuckets) ++shared_.pushes[bucket];
      tickets[k] = Push();
    }
    for (Ticket& ticket : tickets) status.Update(ticket.Wait());
    return status;
  }

  const ClientsOptions& options_;
  Shared& shared_;
  std::mt19937_64 random_;
  uint64_t next_new_ = 0;
  uint64_t turn_ = 0;
  std::unique_ptr<Client> client_;
  Table dense_, rows_;
  Region region_;
};

}  // namespace

int RunClient(const ClientsOptions& options, int fd, int index) {
  void* const memory = MapShared(fd, sizeof(Clients::Shared));
  if (memory == MAP_FAILED) return 1;
  auto* const shared = static_cast<Clients::Shared*>(memory);
  const absl::Status status = ClientProcess<Clients::Shared>(options, index, shared).Run();
  if (!status.ok()) shared->Fail(status);
  return status.ok() ? 0 : 1;
}

absl::StatusOr<std::unique_ptr<Clients>> Clients::Start(const ClientsOptions& options) {
  std::unique_ptr<Clients> clients(new Clients);
  const int fd = memfd_create("catch_up", 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  void* const memory =
      ftruncate(fd, sizeof(Shared)) == 0 ? MapShared(fd, sizeof(Shared)) : MAP_FAILED;
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  clients->shared_ = new (memory) Shared;
  Shared& shared = *clients->shared_;
  shared.start_ms = NowMs();
  shared.quiet = options.clients;
  for (int i = 0; i < options.clients; ++i) {
    const pid_t pid = StartClient(options, fd, i);
    if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
    clients->pids_.push_back(pid);
  }
  close(fd);
  while (shared.ready < options.clients && shared.failed == 0) Pause();
  if (absl::Status status = clients->status(); !status.ok()) return status;
  return clients;
}

Clients::~Clients() {
  if (shared_ == nullptr) return;
  shared_->stop = true;
  const int64_t until = NowMs() + 20'000;
  for (const pid_t pid : pids_) {
    while (waitpid(pid, nullptr, WNOHANG) == 0) {
      if (NowMs() > until) kill(pid, SIGKILL);
      Pause();
    }
  }
  munmap(shared_, sizeof(Shared));
}

absl::Status Clients::SetLoad(bool load) {
  shared_->load = load;
  const int all = static_cast<int>(pids_.size());
  while (shared_->failed == 0 && shared_->quiet != (load ? 0 : all)) Pause();
  return status();
}

int Clients::Now() const { return shared_->Bucket(); }

std::vector<double> Clients::Windows(int from, int to, int width) const {
  std::vector<double> rates;
  for (int first = from; first + width <= std::min(to, kBuckets); ++first) {
    uint64_t pushes = 0;
    for (int i = first; i < first + width; ++i) pushes += shared_->pushes[i];
    rates.push_back(static_cast<double>(pushes) * 1e3 / (width * kBucketMs));
  }
  return rates;
}

absl::Status Clients::status() const {
  if (shared_->failed == 0) return absl::OkStatus();
  Pause();  // the text is written after the count
  return absl::UnavailableError(absl::StrCat("a client: ", shared_->error));
}

}  // namespace verbena::bench
