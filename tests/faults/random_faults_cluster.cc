#include "tests/faults/random_faults_cluster.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/support/cluster.h"
#include "verbena/v1/cluster.grpc.pb.h"

namespace verbena::test {
namespace {

constexpr absl::Duration kStart = absl::Seconds(60);
constexpr absl::Duration kEnd = absl::Seconds(30);

// A connection of its own each time: one that is kept would wait before it tries a coordinator
// again that was away.
bool ReadView(const std::string& address, v1::ClusterView* view, std::string* problem) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = v1::Cluster::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  v1::GetViewResponse response;
  const grpc::Status status = stub->GetView(&context, v1::GetViewRequest(), &response);
  if (!status.ok()) {
    *problem = absl::StrCat("the coordinator does not answer (", status.error_message(), ")");
    return false;
  }
  *view = std::move(*response.mutable_view());
  return true;
}

uint64_t IncarnationIn(const std::string& ready_file) {
  return std::strtoull(JsonField(ReadFile(ready_file), "incarnation").c_str(), nullptr, 10);
}

}  // namespace

FaultCluster::FaultCluster(const FaultOptions& options, const Plan& plan,
                           const std::string& directory)
    : options_(options), plan_(plan), directory_(directory), address_(AddressToKeep()) {
  members_.resize(static_cast<size_t>(options.servers) + 1);
}

std::string FaultCluster::StartAll() {
  for (const int member : members()) {
    Start(member);
    Eventually([&] { return Ready(member) || !process(member).running(); }, kStart);
    if (!Ready(member)) {
      return absl::StrCat(NameOf(member), " does not become ready: ", process(member).err_end());
    }
    if (member == kCoordinator) address_ = JsonField(ReadFile(Of(member).ready_file), "address");
  }
  return "";
}

std::string FaultCluster::NameOf(int member) {
  return member == kCoordinator ? "coordinator" : absl::StrCat("server-", member);
}

std::vector<int> FaultCluster::members() const {
  std::vector<int> members;
  for (int i = kCoordinator; i < options_.servers; ++i) members.push_back(i);
  return members;
}

Process& FaultCluster::process(int member) { return *Of(member).process; }

void FaultCluster::Launch(int member, std::vector<std::string> argv) {
  Member& state = Of(member);
  state.ready_file = absl::StrCat(directory_, "/ready-", starts_++);
  argv.insert(argv.end(), {"--name", NameOf(member), "--ready-file", state.ready_file});
  state.process = std::make_unique<Process>(argv);
  state.killed = false;
}

void FaultCluster::Start(int member) {
  if (member == kCoordinator) {
    Launch(member, {VerbenadPath(), "--coordinator", "--shards", "0", "--listen", address_,
                    "--state", directory_ + "/state", "--lease-ms", absl::StrCat(options_.lease_ms),
                    "--expected-servers", absl::StrCat(options_.servers), "--replicas", "2",
                    "--partitions", absl::StrCat(plan_.partitions)});
    return;
  }
  std::vector<std::string> argv = {VerbenadPath(), "--join", address_, "--listen", "127.0.0.1:0",
                                   "--shards", absl::StrCat(plan_.shards), "--transport", "auto",
                                   "--cold-dir", absl::StrCat(directory_, "/cold-", NameOf(member)),
                                   // So that a run that fails leaves the machine alone.
                                   "--memory-limit", absl::StrCat(uint64_t{2} << 30)};
  for (const absl::string_view option :
       absl::StrSplit(options_.server_options, ' ', absl::SkipEmpty())) {
    argv.emplace_back(option);
  }
  Launch(member, std::move(argv));
}

void FaultCluster::Stop(int member) { process(member).Signal(SIGSTOP); }
void FaultCluster::Continue(int member) { process(member).Signal(SIGCONT); }

bool FaultCluster::KillServer(int server) {
  // It stands still while the others are looked at: so it has no part in a change of copies that
  // the coordinator has not answered with yet. Twice, so that one in progress is seen.
  Stop(server);
  bool safe = Missing().empty();
  if (safe) {
    absl::SleepFor(absl::Milliseconds(options_.lease_ms / 16));
    safe = Missing().empty();
  }
  if (!safe) {
    Continue(server);
    return false;
  }
  Member& state = Of(server);
  gone_.insert(IncarnationIn(state.ready_file));
  state.killed = true;
  state.process->Signal(SIGKILL);
  state.process->Wait();
  old_logs_.emplace_back(NameOf(server), state.process->err());
  return true;
}

void FaultCluster::KillCoordinator() {
  Member& state = Of(kCoordinator);
  state.killed = true;
  state.process->Signal(SIGKILL);
  state.process->Wait();
  old_logs_.emplace_back(NameOf(kCoordinator), state.process->err());
}

bool FaultCluster::Ready(int member) {
  return !Of(member).killed && !ReadFile(Of(member).ready_file).empty();
}

std::string FaultCluster::Missing() {
  for (const int member : members()) {
    if (!Ready(member)) return absl::StrCat(NameOf(member), " is not ready");
  }
  v1::ClusterView view;
  std::string problem;
  if (!ReadView(address_, &view, &problem)) return problem;
  std::set<uint64_t> alive;
  for (const v1::Server& server : view.servers()) {
    if (server.state() == v1::Server::ALIVE && gone_.count(server.incarnation()) == 0) {
      alive.insert(server.incarnation());
    }
  }
  if (static_cast<int>(alive.size()) != options_.servers) {
    return absl::StrCat(alive.size(), " of ", options_.servers, " servers are members");
  }
  int without_primary = 0, without_follower = 0, learners = 0;
  for (const v1::Partition& partition : view.partitions()) {
    without_primary += alive.count(partition.primary()) == 0 ? 1 : 0;
    learners += partition.learners_size();
    const bool follower = partition.followers_size() == 1 &&
                          alive.count(partition.followers(0).server()) != 0 &&
                          partition.followers(0).server() != partition.primary();
    without_follower += follower ? 0 : 1;
  }
  if (without_primary + without_follower + learners == 0 &&
      view.partitions_size() == plan_.partitions) {
    return "";
  }
  return absl::StrCat("of ", view.partitions_size(), " partitions ", without_primary,
                      " have no primary that lives, ", without_follower, " no follower, ", learners,
                      " a learner");
}

std::vector<int> FaultCluster::ByPrimaries() {
  std::vector<int> servers;
  for (int i = 0; i < options_.servers; ++i) servers.push_back(i);
  v1::ClusterView view;
  std::string problem;
  if (!ReadView(address_, &view, &problem)) return servers;
  std::map<std::string, int> primaries;
  for (const v1::Server& server : view.servers()) {
    for (const v1::Partition& partition : view.partitions()) {
      primaries[server.name()] += partition.primary() == server.incarnation() ? 1 : 0;
    }
  }
  std::stable_sort(servers.begin(), servers.end(),
                   [&](int a, int b) { return primaries[NameOf(a)] > primaries[NameOf(b)]; });
  return servers;
}

std::string FaultCluster::End() {
  std::string problems;
  std::vector<int> order = members();
  std::reverse(order.begin(), order.end());
  for (const int member : order) {
    process(member).Signal(SIGTERM);
    const auto status = process(member).Wait(kEnd);
    if (status && *status == 0) continue;
    absl::StrAppend(&problems, NameOf(member), " after SIGTERM: ",
                    status ? absl::StrCat("exit status ", *status) : "it runs on", "; ");
  }
  return problems;
}

std::string FaultCluster::Ended() {
  for (const int member : members()) {
    if (Of(member).killed) continue;
    const auto status = process(member).Wait(absl::ZeroDuration());
    if (status) return absl::StrCat(NameOf(member), " has ended with exit status ", *status);
  }
  return "";
}

std::string FaultCluster::Logs() {
  std::string logs;
  for (const int member : members()) {
    absl::StrAppend(&logs, "--- ", NameOf(member), " ends:\n", process(member).err_end());
  }
  return logs;
}

void FaultCluster::KeepLogs(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  int number = 0;
  for (const auto& [name, text] : old_logs_) {
    WriteFile(absl::StrCat(directory, "/", name, "-", number++, ".log"), text);
  }
  for (const int member : members()) {
    WriteFile(absl::StrCat(directory, "/", NameOf(member), "-last.log"), process(member).err());
  }
}

}  // namespace verbena::test
