// Resources that a peer can take of a daemon, with and without a token: never those that others
// need.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/access_fixture.h"
#include "tests/server/http2_peer.h"
#include "tests/support/http.h"
#include "tests/support/process.h"
#include "verbena/client.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::test {
namespace {

constexpr uint32_t kMessage = 60 << 20;
// AddressSanitizer keeps freed memory in a quarantine.
#if defined(__SANITIZE_ADDRESS__)
constexpr double kKept = 256 << 20;
#else
constexpr double kKept = 0;
#endif

// A coordinator that is a server, too, with tokens and without TLS, and a worker of it.
class PlainCluster {
 public:
  // `before`: a command that runs the daemon, which follows.
  explicit PlainCluster(std::vector<std::string> before = {})
      : daemon_({"--coordinator", "--name", "first", "--memory-limit", "134217728",
                 "--operator-token-file", directory_.File("operator"), "--audit-log",
                 directory_.File("audit")},
                std::move(before)) {
    daemon_.Ready();
    ClientOptions options;
    options.cluster = address();
    options.job = "quiet";
    options.timeout = absl::Seconds(20);
    options.token_file = directory_.File("operator");
    auto client = Client::Connect(options);
    REQUIRE(client.status() == absl::OkStatus());
    client_ = *std::move(client);
    auto table = client_->CreateTable(Spec("t", "quiet"));
    REQUIRE(table.status() == absl::OkStatus());
    table_ = *table;
    auto region = client_->AllocateRegion(table->bytes());
    REQUIRE(region.status() == absl::OkStatus());
    region_ = *std::move(region);
    Serves();
  }

  std::string address() const { return daemon_.address(); }
  std::string token_file() const { return directory_.File("operator"); }
  std::string token() const { return ReadFile(directory_.File("operator")).substr(0, 60); }
  std::string metrics() const { return daemon_.metrics(); }
  // The file of a read-only token.
  std::string MakeToken(const std::string& name) {
    const Finished made = Cli({"--cluster", address(), "--token-file", token_file(), "token",
                               "create", "--role", "read-only", "--out", directory_.File(name)});
    INFO(made.err);
    REQUIRE(made.status == 0);
    return directory_.File(name);
  }
  // In bytes: "VmRSS", now, or "VmHWM", the most so far.
  double Memory(const std::string& field) {
    const std::string status =
        ReadFile("/proc/" + std::to_string(daemon_.process().pid()) + "/status");
    return std::atof(status.c_str() + status.find(field) + field.size() + 1) * 1024;
  }
  // Others are served: the worker, health probes, scrapes.
  void Serves() {
    CHECK(client_->Push(*table_, *region_).Wait() == absl::OkStatus());
    CHECK(client_->Pull(*table_, *region_).Wait() == absl::OkStatus());
    CHECK(HttpGet(daemon_.metrics(), "/healthz").status == 200);
    CHECK(HttpGet(daemon_.metrics(), "/metrics").status == 200);
  }

 private:
  TemporaryDirectory directory_;
  Daemon daemon_;
  std::unique_ptr<Client> client_;
  std::optional<Table> table_;
  std::optional<Region> region_;
};

TEST_CASE("requests without a token take no memory, and others are served meanwhile") {
  PlainCluster cluster;
  const double quiet = cluster.Memory("VmRSS");
  for (const char* method :
       {"/verbena.v1.Cluster/JoinWorker", "/verbena.v1.Shard/OpenLane", "/no.such/Method"}) {
    Http2Peer peer(cluster.address());
    for (int i = 0; i < 8; ++i) peer.Call(method, kMessage);
    peer.Flood(std::chrono::seconds(5));
    cluster.Serves();
    INFO(method << ": " << peer.sent() << " bytes were taken, " << cluster.Memory("VmHWM") / quiet
                << " times the quiet memory");
    CHECK(peer.open_calls() == 0);
    CHECK(cluster.Memory("VmHWM") < 1.2 * quiet + kKept);
  }
}

TEST_CASE("requests that are read without a token are within the control plane's memory") {
  PlainCluster cluster;
  const double quiet = cluster.Memory("VmRSS");
  for (const char* method : {"/grpc.health.v1.Health/Check",
                             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    Http2Peer peer(cluster.address());
    for (int i = 0; i < 8; ++i) peer.Call(method, kMessage);
    peer.Flood(std::chrono::seconds(5));
    cluster.Serves();
    INFO(method << ": " << peer.sent() << " bytes were taken, " << cluster.Memory("VmHWM") / quiet
                << " times the quiet memory");
    CHECK(cluster.Memory("VmHWM") < quiet + (96 << 20) + kKept);
  }
}

TEST_CASE("silent connections and requests that stay incomplete end by their deadlines") {
  PlainCluster cluster;
  std::vector<std::unique_ptr<Http2Peer>> silent;
  for (int i = 0; i < 200; ++i) {
    silent.push_back(std::make_unique<Http2Peer>(cluster.address(), /*speaks=*/false));
  }
  Http2Peer peer(cluster.address());
  peer.Call("/verbena.v1.Cluster/JoinWorker", 1000, cluster.token());
  peer.Listen(std::chrono::seconds(2));
  CHECK(peer.open_calls() == 1);
  cluster.Serves();
  peer.Listen(std::chrono::seconds(10));
  CHECK(peer.open_calls() == 0);
  CHECK_FALSE(peer.closed());
  const auto ended = [](const std::unique_ptr<Http2Peer>& one) {
    one->Listen(std::chrono::milliseconds(50));
    return one->closed();
  };
  CHECK(std::all_of(silent.begin(), silent.end(), ended));
  cluster.Serves();
}

// Calls of a member, each of which may be waited for.
class Member {
 public:
  explicit Member(const PlainCluster& cluster)
      : address_(cluster.address()),
        channel_(nullptr, TokenFile::Open(cluster.token_file()).value()) {}

  void Join(int number) {
    v1::JoinWorkerRequest request;
    const std::string id = std::to_string(number);
    request.set_request_id(std::string(16 - id.size(), 'j') + id);
    request.set_job("many");
    request.set_observer(true);
    auto response = std::make_shared<v1::JoinWorkerResponse>();
    ++waiting_;
    channel_.Unary(address_, "/verbena.v1.Cluster/JoinWorker", request, response, absl::Seconds(60),
                   [this, response, number](const absl::Status& status) {
                     --waiting_;
                     // One of a crowd that has waited for long.
                     if (absl::IsUnavailable(status)) return Join(number);
                     if (!status.ok()) return;
                     ++joined_;
                     incarnation_ = response->incarnation();
                   });
  }
  // The cluster's revision when the heartbeat was answered.
  uint64_t Heartbeat(uint64_t incarnation) {
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    const auto response = std::make_shared<v1::HeartbeatResponse>();
    ++waiting_;
    channel_.Unary(address_, "/verbena.v1.Cluster/Heartbeat", request, response, absl::Seconds(60),
                   [this](const absl::Status& status) {
                     --waiting_;
                     CHECK(status == absl::OkStatus());
                   });
    Wait();
    return response->revision();
  }
  void Wait() {
    while (waiting_ > 0) RunOnce();
  }
  void RunOnce() {
    pollfd readable{channel_.wake_fd(), POLLIN, 0};
    poll(&readable, 1, 10);
    channel_.RunOnce();
  }
  int waiting() const { return waiting_; }
  int joined() const { return joined_; }
  uint64_t incarnation() const { return incarnation_; }

 private:
  const std::string address_;
  GrpcControlChannel channel_;
  int waiting_ = 0, joined_ = 0;
  uint64_t incarnation_ = 0;
};

TEST_CASE("a heartbeat does not wait until all joins before it are done") {
  PlainCluster cluster;
  Member quiet(cluster), many(cluster);
  quiet.Join(-1);
  quiet.Wait();
  REQUIRE(quiet.joined() == 1);
  // All may be done before the heartbeat arrives, where this process has to wait for a processor.
  bool before_all = false;
  for (int round = 1; round <= 10 && !before_all; ++round) {
    for (int i = 0; i < 1000; ++i) many.Join(1000 * round + i);
    many.RunOnce();
    const uint64_t during = quiet.Heartbeat(quiet.incarnation());
    many.Wait();
    CHECK(many.joined() == 1000 * round);
    before_all = during < quiet.Heartbeat(quiet.incarnation());
  }
  CHECK(before_all);
  cluster.Serves();
}

TEST_CASE("statistics of one token do not hold up those of another") {
  PlainCluster cluster;
  const auto ask = [&](GrpcControlChannel* channel, int* waiting, int* answered) {
    ++*waiting;
    channel->Unary(cluster.address(), "/verbena.v1.Shard/GetStatistics", v1::GetStatisticsRequest(),
                   std::make_shared<v1::GetStatisticsResponse>(), absl::Seconds(10),
                   [waiting, answered](const absl::Status& status) {
                     --*waiting;
                     *answered += status.ok() ? 1 : 0;
                   });
  };
  const auto run = [](GrpcControlChannel* channel) {
    pollfd readable{channel->wake_fd(), POLLIN, 0};
    poll(&readable, 1, 5);
    channel->RunOnce();
  };
  GrpcControlChannel many(nullptr, TokenFile::Open(cluster.token_file()).value());
  GrpcControlChannel quiet(nullptr, TokenFile::Open(cluster.MakeToken("reader")).value());
  int waiting = 0, answered = 0;
  // As many calls of one token as its queue has room for, all the time. Behind them, a call of
  // another token would be refused or end by the server's deadline.
  const auto flood = [&] {
    many.RunOnce();
    while (waiting < 3000) ask(&many, &waiting, &answered);
  };
  for (int i = 0; i < 5; ++i) {
    flood();
    int mine = 0, good = 0;
    ask(&quiet, &mine, &good);
    while (mine > 0) {
      flood();
      run(&quiet);
    }
    CHECK(good == 1);
  }
  while (waiting > 0) run(&many);
  CHECK(answered > 0);
  cluster.Serves();
}

TEST_CASE("more connections than there are descriptors keep nobody out") {
  PlainCluster cluster({"/bin/sh", "-c", "ulimit -n 256; exec \"$0\" \"$@\""});
  // A scrape waits while there is no descriptor for it.
  const auto metric = [&](const char* name) {
    HttpAnswer scrape;
    REQUIRE(Eventually([&] {
      scrape = HttpGet(cluster.metrics(), "/metrics");
      return scrape.status == 200;
    }));
    return MetricSum(scrape.body, name);
  };
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<Http2Peer>> silent;
    // On a slow machine the first ones have ended by themselves before the limit is reached.
    for (int batch = 0; batch == 0 || metric("verbena_budget_exceeded_total") == 0; ++batch) {
      REQUIRE(batch < 25);
      silent.clear();
      for (int i = 0; i < 400; ++i) {
        silent.push_back(std::make_unique<Http2Peer>(cluster.address(), /*speaks=*/i % 2 == 0));
      }
    }
    cluster.Serves();
    Member member(cluster);
    member.Join(round);
    member.Wait();
    CHECK(member.joined() == 1);
  }
  CHECK(metric("verbena_control_connections") <= 64);
  cluster.Serves();
}

}  // namespace
}  // namespace verbena::test
