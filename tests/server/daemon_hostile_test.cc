// What peers can take of a daemon without a token, and with one: never what others need.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/server/access_fixture.h"
#include "tests/server/http2_peer.h"
#include "tests/support/http.h"

namespace verbena::test {
namespace {

constexpr uint32_t kMessage = 60 << 20;

// A coordinator that is a server, too, with tokens and without TLS, and a worker of it.
class PlainCluster {
 public:
  PlainCluster()
      : daemon_({"--coordinator", "--name", "first", "--memory-limit", "134217728",
                 "--operator-token-file", directory_.File("operator"), "--audit-log",
                 directory_.File("audit")}) {
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
  std::string token() const { return ReadFile(directory_.File("operator")).substr(0, 60); }
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
    CHECK(cluster.Memory("VmHWM") < 1.2 * quiet);
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
    CHECK(cluster.Memory("VmHWM") < quiet + (96 << 20));
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

}  // namespace
}  // namespace verbena::test
