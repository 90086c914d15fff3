#include "tests/support/cluster.h"

#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/http.h"

namespace verbena::test {
namespace {

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    std::fprintf(stderr, "%s is not set: run this test through ctest\n", name);
    std::abort();
  }
  return value;
}

}  // namespace

std::string VerbenadPath() { return FromEnvironment("VERBENA_VERBENAD"); }
std::string TrainPath() { return FromEnvironment("VERBENA_TRAIN"); }

std::string TestTransport() {
  const char* transport = std::getenv("VERBENA_TEST_TRANSPORT");
  return transport == nullptr ? "auto" : transport;
}

std::string JsonField(const std::string& json, const std::string& name) {
  const size_t key = json.find("\"" + name + "\"");
  if (key == std::string::npos) return "";
  size_t start = json.find(':', key) + 1;
  while (start < json.size() && (json[start] == ' ' || json[start] == '"')) ++start;
  size_t end = start;
  while (end < json.size() && json[end] != ',' && json[end] != '}' && json[end] != '"' &&
         json[end] != '\n') {
    ++end;
  }
  return json.substr(start, end - start);
}

ProcessCluster::ProcessCluster(const ProcessClusterOptions& options) : options_(options) {
  StartCoordinator("127.0.0.1:0");
  servers_.resize(options.servers);
  for (int i = 0; i < options.servers; ++i) RestartServer(i);
}

std::string ProcessCluster::WaitReady(Process& process, const std::string& ready_file) {
  Eventually([&] { return !ReadFile(ready_file).empty() || !process.running(); });
  const std::string ready = ReadFile(ready_file);
  if (ready.empty()) {
    std::fprintf(stderr, "verbenad did not become ready:\n%s\n", process.err().c_str());
    std::abort();
  }
  return ready;
}

void ProcessCluster::StartCoordinator(const std::string& listen) {
  const std::string ready = directory_.File("ready-" + std::to_string(starts_++));
  coordinator_ = std::make_unique<Process>(std::vector<std::string>{
      VerbenadPath(), "--coordinator", "--shards", "0", "--listen", listen, "--name", "coordinator",
      "--state", directory_.File("state"), "--lease-ms", std::to_string(options_.lease_ms),
      "--expected-servers", std::to_string(options_.servers), "--ready-file", ready});
  address_ = JsonField(WaitReady(*coordinator_, ready), "address");
}

void ProcessCluster::RestartCoordinator() {
  const std::string address = address_;
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait();
  StartCoordinator(address);
}

void ProcessCluster::RestartServer(int index) {
  Server& server = servers_[index];
  if (server.process != nullptr) {
    server.process->Signal(SIGKILL);
    server.process->Wait();
  }
  const std::string ready = directory_.File("ready-" + std::to_string(starts_++));
  server.process = std::make_unique<Process>(std::vector<std::string>{
      VerbenadPath(), "--join", address_, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
      "--shards", std::to_string(options_.shards), "--name", "server-" + std::to_string(index),
      "--transport", TestTransport(), "--ready-file", ready});
  server.metrics = JsonField(WaitReady(*server.process, ready), "metrics");
}

double ProcessCluster::Metric(const std::string& name) const {
  double sum = 0;
  for (const Server& server : servers_) {
    sum += MetricSum(HttpGet(server.metrics, "/metrics").body, name);
  }
  return sum;
}

}  // namespace verbena::test
