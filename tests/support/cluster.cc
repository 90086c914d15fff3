#include "tests/support/cluster.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
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

// The text of the value whose key ends just before `at`.
std::string ValueAfter(const std::string& json, size_t at) {
  size_t start = json.find(':', at) + 1;
  while (start < json.size() && (json[start] == ' ' || json[start] == '"')) ++start;
  size_t end = start;
  while (end < json.size() && std::strchr(",}\"\n{[", json[end]) == nullptr) ++end;
  return json.substr(start, end - start);
}

std::string Verbenad(const ProcessClusterOptions& options) {
  return options.verbenad.empty() ? VerbenadPath() : options.verbenad;
}

uint64_t Sum(const std::vector<std::string>& numbers) {
  uint64_t sum = 0;
  for (const std::string& number : numbers) sum += std::strtoull(number.c_str(), nullptr, 10);
  return sum;
}

}  // namespace

std::string VerbenadPath() { return FromEnvironment("VERBENA_VERBENAD"); }
std::string TrainPath() { return FromEnvironment("VERBENA_TRAIN"); }
std::string CliPath() { return FromEnvironment("VERBENA_CLI"); }

std::string TestTransport() {
  const char* transport = std::getenv("VERBENA_TEST_TRANSPORT");
  return transport == nullptr ? "auto" : transport;
}

std::string AddressToKeep() {
  constexpr int kFirst = 10000, kDefaultEnd = 32768, kAttempts = 1000;
  const int low = std::atoi(ReadFile("/proc/sys/net/ipv4/ip_local_port_range").c_str());
  const int end = low > 2 * kFirst ? low : kDefaultEnd;
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < kAttempts; ++i) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int port = std::uniform_int_distribution<int>(kFirst, end - 1)(random);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (is_free) return absl::StrCat("127.0.0.1:", port);
  }
  return "127.0.0.1:0";
}

std::string JsonField(const std::string& json, const std::string& name) {
  const size_t key = json.find("\"" + name + "\"");
  return key == std::string::npos ? "" : ValueAfter(json, key);
}

std::vector<std::string> JsonFields(const std::string& json, const std::string& name) {
  const std::string key = "\"" + name + "\"";
  std::vector<std::string> values;
  for (size_t at = json.find(key); at != std::string::npos; at = json.find(key, at + 1)) {
    values.push_back(ValueAfter(json, at));
  }
  return values;
}

ProcessCluster::ProcessCluster(const ProcessClusterOptions& options) : options_(options) {
  StartCoordinator(AddressToKeep());
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
  std::vector<std::string> argv = {Verbenad(options_),
                                   "--coordinator",
                                   "--shards",
                                   "0",
                                   "--listen",
                                   listen,
                                   "--name",
                                   "coordinator",
                                   "--state",
                                   directory_.File("state"),
                                   "--lease-ms",
                                   std::to_string(options_.lease_ms),
                                   "--expected-servers",
                                   std::to_string(options_.servers),
                                   "--replicas",
                                   std::to_string(options_.replicas),
                                   "--ready-file",
                                   ready};
  argv.insert(argv.end(), options_.coordinator_options.begin(), options_.coordinator_options.end());
  coordinator_ = std::make_unique<Process>(argv);
  const std::string said = WaitReady(*coordinator_, ready);
  address_ = JsonField(said, "address");
  coordinator_metrics_ = JsonField(said, "metrics");
}

void ProcessCluster::RestartCoordinator() {
  const std::string address = address_;
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait();
  StartCoordinator(address);
}

void ProcessCluster::RestartServer(int index) {
  Server& server = servers_[index];
  if (server.process != nullptr) KillServer(index);
  const std::string ready = directory_.File("ready-" + std::to_string(starts_++));
  std::vector<std::string> argv = {
      Verbenad(options_),
      "--join",
      address_,
      "--listen",
      "127.0.0.1:0",
      "--metrics",
      "127.0.0.1:0",
      "--shards",
      std::to_string(options_.shards),
      "--name",
      "server-" + std::to_string(index),
      "--transport",
      options_.transport.empty() ? TestTransport() : options_.transport,
      "--ready-file",
      ready};
  if (!options_.cold_dir.empty()) {
    argv.insert(argv.end(), {"--cold-dir", options_.cold_dir + "/server-" + std::to_string(index)});
  }
  argv.insert(argv.end(), options_.server_options.begin(), options_.server_options.end());
  server.process = std::make_unique<Process>(argv);
  server.metrics = JsonField(WaitReady(*server.process, ready), "metrics");
}

void ProcessCluster::AddServer() {
  servers_.emplace_back();
  RestartServer(servers() - 1);
}

void ProcessCluster::KillServer(int index) {
  server(index).Signal(SIGKILL);
  server(index).Wait();
}

bool ProcessCluster::Replicated() const {
  const std::vector<std::string> answers = JsonFields(status_, "answers");
  if (answers.size() != servers_.size()) return false;
  for (const std::string& answer : answers) {
    if (answer != "true") return false;
  }
  // The copies are counted where they are: on the servers that answer, under their incarnations.
  const uint64_t copies =
      Sum(JsonFields(status_, "partitions")) + Sum(JsonFields(status_, "followers"));
  const uint64_t total = Sum({JsonField(status_, "total")});
  return total > 0 && copies == total * static_cast<uint64_t>(options_.replicas) &&
         Sum(JsonFields(status_, "learners")) == 0;
}

bool ProcessCluster::WaitReplicated(absl::Duration at_most) {
  return Eventually([&] { return CheckReplicated(); }, at_most);
}

bool ProcessCluster::CheckReplicated() {
  status_ = RunProgram({CliPath(), "--cluster", address_, "status", "--json"}).out;
  return Replicated();
}

std::string ProcessCluster::logs() const {
  std::string logs = "coordinator: " + coordinator_->err_end();
  for (size_t i = 0; i < servers_.size(); ++i) {
    logs += "server-" + std::to_string(i) + ": " + servers_[i].process->err_end();
  }
  return logs;
}

double ProcessCluster::Metric(const std::string& name) const {
  double sum = 0;
  for (const Server& server : servers_) {
    sum += MetricSum(HttpGet(server.metrics, "/metrics").body, name);
  }
  return sum;
}

}  // namespace verbena::test
