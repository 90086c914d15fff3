// Access control and the audit log by themselves.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "proto/security/token.h"
#include "server/access/access_control.h"
#include "server/access/audit_log.h"
#include "server/access/peer_log.h"
#include "server/access/scope.h"
#include "tests/support/process.h"

namespace verbena::server {
namespace {

using Catch::Matchers::Contains;
using test::ReadFile;

TEST_CASE("no role may call a method whose roles the .proto does not declare") {
  CHECK(AccessOf("/verbena.v1.Cluster/GetView").roles_size() == 4);
  CHECK(AccessOf("/verbena.v1.Cluster/Nothing").roles().empty());
  CHECK(AccessOf("").roles().empty());
  CHECK(Authorize({}, "/verbena.v1.Cluster/Nothing", {}).code() ==
        absl::StatusCode::kPermissionDenied);
}

TEST_CASE("a cluster without tokens lets everybody in") {
  const auto who = Authenticate(nullptr, "whatever");
  REQUIRE(who.ok());
  CHECK(Authorize(*who, "/verbena.v1.Cluster/DropTable", {.job = "any"}).ok());
}

TEST_CASE("errors about a token have nothing of its secret") {
  const auto token = MakeToken();
  REQUIRE(token.ok());
  v1::AccessRules rules;
  for (const std::string& text :
       {token->text, token->text + "x", token->text.substr(0, 30), std::string("Bearer")}) {
    const absl::Status status = Authenticate(&rules, text).status();
    CHECK(status.code() == absl::StatusCode::kUnauthenticated);
    CHECK(std::string(status.message()).find(token->text.substr(20, 8)) == std::string::npos);
  }
}

struct Log {
  std::vector<std::string> lines;
  std::function<void(const std::string&)> Sink() {
    return [this](const std::string& line) { lines.push_back(line); };
  }
};

AuditEvent Refusal(const std::string& peer) {
  return {.peer = peer,
          .method = "/verbena.v1.Cluster/DropTable",
          .status = absl::PermissionDeniedError("no \"quotes\"\nand lines")};
}

TEST_CASE("an audit line is one line of JSON") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  REQUIRE(audit.ok());
  (*audit)->Write(Refusal("ipv4:10.0.0.1:5"), absl::FromUnixSeconds(0));
  (*audit)->Flush();
  REQUIRE(log.lines.size() == 1);
  CHECK(log.lines[0] ==
        "audit: {\"time\": \"1970-01-01T00:00:00.000000Z\", \"peer\": \"ipv4:10.0.0.1:5\", "
        "\"call\": \"/verbena.v1.Cluster/DropTable\", \"result\": \"PERMISSION_DENIED\", "
        "\"reason\": \"no \\\"quotes\\\"\\nand lines\"}");
}

TEST_CASE("a host that is refused again and again fills no disk, and is counted") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 5000; ++i) (*audit)->Write(Refusal("ipv4:10.0.0.1:5"), now);
  (*audit)->Flush();
  CHECK(log.lines.size() == static_cast<size_t>(kRefusalBurst));
  (*audit)->Write(Refusal("ipv4:10.0.0.2:5"), now);  // another host
  (*audit)->Flush();
  CHECK(log.lines.size() == static_cast<size_t>(kRefusalBurst) + 1);
  AuditEvent success = Refusal("ipv4:10.0.0.1:5");
  success.status = absl::OkStatus();
  (*audit)->Write(success, now);  // the burst limit is for refusals only
  (*audit)->Flush();
  CHECK(log.lines.size() == static_cast<size_t>(kRefusalBurst) + 2);
  now += absl::Seconds(1);
  for (int i = 0; i < 100; ++i) (*audit)->Write(Refusal("ipv4:10.0.0.1:5"), now);
  (*audit)->Flush();
  CHECK(log.lines.size() ==
        static_cast<size_t>(kRefusalBurst) + 2 + static_cast<size_t>(kRefusalsPerSecond));
  CHECK_THAT(log.lines[static_cast<size_t>(kRefusalBurst) + 2],
             Contains("\"refusals_without_a_line\": 4000"));
}

TEST_CASE("many hosts that are refused fill no disk") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  const absl::Time now = absl::FromUnixSeconds(1000);
  for (int host = 0; host < 50; ++host) {
    for (int i = 0; i < 1000; ++i) {
      (*audit)->Write(Refusal("ipv6:%5B2001:db8::" + std::to_string(host) + "%5D:5"), now);
    }
    (*audit)->Flush();
  }
  CHECK(log.lines.size() == static_cast<size_t>(10 * kRefusalBurst));
}

TEST_CASE("regression: a host that is refused again and again takes no other host's lines") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  const absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 20'000; ++i) {
    (*audit)->Write(Refusal("ipv4:10.0.0.1:5"), now);
    if (i % 1000 == 0) (*audit)->Flush();
  }
  (*audit)->Flush();
  CHECK(log.lines.size() == static_cast<size_t>(kRefusalBurst));
  (*audit)->Write(Refusal("ipv4:10.0.0.2:5"), now);
  (*audit)->Flush();
  REQUIRE(log.lines.size() == static_cast<size_t>(kRefusalBurst) + 1);
  CHECK_THAT(log.lines.back(), Contains("10.0.0.2"));
}

TEST_CASE("regression: refusals that all hosts together leave without a line are counted") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int host = 0; host < 11; ++host) {
    for (int i = 0; i < 1000; ++i) {
      (*audit)->Write(Refusal("ipv4:10.0.0." + std::to_string(host) + ":5"), now);
    }
    (*audit)->Flush();
  }
  CHECK(log.lines.size() == static_cast<size_t>(10 * kRefusalBurst));
  now += absl::Seconds(1);
  (*audit)->Write(Refusal("ipv4:10.0.0.10:5"), now);
  (*audit)->Flush();
  CHECK_THAT(log.lines.back(), Contains("\"refusals_without_a_line\": 1000"));
}

TEST_CASE("regression: refusals without a line are counted however many hosts are refused") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 1500; ++i) (*audit)->Write(Refusal("ipv4:10.0.0.1:5"), now);
  (*audit)->Flush();
  for (int host = 0; host < 5000; ++host) {
    (*audit)->Write(Refusal("ipv6:%5B2001:db8::" + std::to_string(host) + "%5D:5"), now);
    if (host % 1000 == 0) (*audit)->Flush();
  }
  (*audit)->Flush();
  CHECK(log.lines.size() == static_cast<size_t>(kRefusalBurst) + 5000);
  const auto counts = [](const std::string& line) {
    return Contains("\"refusals_without_a_line\": 500").match(line);
  };
  CHECK(std::count_if(log.lines.begin(), log.lines.end(), counts) == 1);
}

TEST_CASE("regression: refusals that wait for a slow disk displace no line of a change") {
  std::promise<void> go;
  std::vector<std::string> lines;
  auto audit = AuditLog::Open("", [&, wait = go.get_future().share()](const std::string& line) {
    wait.wait();
    lines.push_back(line);
  });
  REQUIRE(audit.ok());
  for (int host = 0; host < 10; ++host) {
    for (int i = 0; i < 1000; ++i) {
      (*audit)->Write(Refusal("ipv4:10.0.0." + std::to_string(host) + ":5"));
    }
  }
  AuditEvent change = Refusal("ipv4:10.0.1.1:5");
  change.status = absl::OkStatus();
  (*audit)->Write(change);
  go.set_value();
  (*audit)->Flush();
  CHECK_THAT(lines.back(), Contains("10.0.1.1"));
}

TEST_CASE("a caller with too many changes is refused before the next change is made") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < static_cast<int>(kCallBurst); ++i) {
    REQUIRE((*audit)->Charge("token a", now).ok());
  }
  const absl::Status held = (*audit)->Charge("token a", now);
  CHECK(absl::IsUnavailable(held));
  CHECK_THAT(std::string(held.message()), Contains("token a") && Contains("retry later"));
  CHECK((*audit)->Charge("token b", now).ok());
  now += absl::Seconds(1);
  int more = 0;
  while ((*audit)->Charge("token a", now).ok()) ++more;
  CHECK(more == static_cast<int>(kCallsPerSecond));
  // One of these has changed nothing.
  (*audit)->Refund("token a");
  CHECK((*audit)->Charge("token a", now).ok());
  CHECK_FALSE((*audit)->Charge("token a", now).ok());
}

TEST_CASE("an audit line has a bounded length, however long the names that a peer sends") {
  Log log;
  auto audit = AuditLog::Open("", log.Sink());
  REQUIRE(audit.ok());
  AuditEvent event = Refusal("ipv4:10.0.0.1:5");
  const std::string longest(20 << 20, '\x01');  // each byte takes six in JSON
  event.certificate = event.method = event.about = longest;
  event.status = absl::PermissionDeniedError(longest);
  (*audit)->Write(event);
  (*audit)->Flush();
  REQUIRE(log.lines.size() == 1);
  CHECK(log.lines[0].size() < 16384);
  CHECK_THAT(log.lines[0], Contains("20971520 bytes"));
}

TEST_CASE("a disk that stops blocks no caller of the audit log, and lost lines are counted") {
  std::promise<void> go;
  std::vector<std::string> lines;
  auto audit = AuditLog::Open("", [&, wait = go.get_future().share()](const std::string& line) {
    wait.wait();
    lines.push_back(line);
  });
  REQUIRE(audit.ok());
  AuditEvent event = Refusal("ipv4:10.0.0.1:5");
  event.status = absl::OkStatus();
  const absl::Time begin = absl::Now();
  for (size_t i = 0; i < 3 * kMostWaiting; ++i) (*audit)->Write(event);
  CHECK(absl::Now() - begin < absl::Seconds(5));
  const uint64_t lost = (*audit)->left_out();
  CHECK(lost >= kMostWaiting);
  go.set_value();
  (*audit)->Flush();
  CHECK(lines.size() == 3 * kMostWaiting - lost);
  (*audit)->Write(event);
  (*audit)->Flush();
  CHECK_THAT(lines.back(), Contains("\"lines_lost\": " + std::to_string(lost)));
  (*audit)->Write(event);
  audit->reset();  // writes the waiting lines
  CHECK_THAT(lines.back(), !Contains("lines_lost"));
}

TEST_CASE("lines that a peer causes are bounded in number and length, and counted") {
  Log log;
  PeerLog peers(log.Sink());
  const uint64_t before = PeerLog::left_out();
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int i = 0; i < 5000; ++i) peers.Write("no lane", now);
  CHECK(log.lines.size() == static_cast<size_t>(PeerLog::kBurst));
  CHECK(PeerLog::left_out() - before == 4800);
  now += absl::Seconds(1);
  peers.Write(std::string(20 << 20, 'x'), now);
  CHECK(log.lines.back().size() < 2 * PeerLog::kMostBytes);
  CHECK_THAT(log.lines.back(), Contains("20971520 bytes") && Contains("(4800 lines before it"));
}

TEST_CASE("the object of a call and the reason of a refusal have a bounded length") {
  const std::string longest(20 << 20, 'n');
  const v1::ClusterView none;
  const ViewScan view(none);
  v1::CreateTableRequest create;
  create.mutable_spec()->set_name(longest);
  create.mutable_spec()->set_job(longest);
  CHECK(ScopeOf(create, view).about.size() < 1024);
  v1::DropTableRequest drop;
  drop.set_name(longest);
  CHECK(ScopeOf(drop, view).about.size() < 1024);
  v1::JoinServerRequest join;
  join.set_name(longest);
  join.set_address(longest);
  CHECK(ScopeOf(join, view).about.size() < 1024);
  const absl::Status status = Authorize({.token = "1", .role = v1::ROLE_JOB, .job = "ads"},
                                        "/verbena.v1.Cluster/CreateTable", ScopeOf(create, view));
  CHECK(status.code() == absl::StatusCode::kPermissionDenied);
  CHECK(status.message().size() < 1024);
}

TEST_CASE("regression: a read-only token ends no observer that joined with another token") {
  v1::ClusterView view;
  v1::Job* job = view.add_jobs();
  job->set_name("serving");
  for (const char* token : {"aaaa", "bbbb"}) {
    v1::Worker* observer = job->add_members();
    observer->set_incarnation(static_cast<uint64_t>(job->members_size()));
    observer->set_rank(-1);
    observer->set_token(token);
  }
  const auto leave = [&](const Principal& who, uint64_t incarnation) {
    v1::LeaveRequest request;
    request.set_incarnation(incarnation);
    return Authorize(who, "/verbena.v1.Cluster/Leave", ScopeOf(request, ViewScan(view)));
  };
  const auto close = [&](const Principal& who, uint64_t incarnation) {
    v1::CloseLaneRequest request;
    request.set_incarnation(incarnation);
    return Authorize(who, "/verbena.v1.Shard/CloseLane", ScopeOf(request, ViewScan(view)));
  };
  const Principal reader{"aaaa", v1::ROLE_READ_ONLY, ""};
  CHECK(leave(reader, 1).ok());
  CHECK(absl::IsPermissionDenied(leave(reader, 2)));
  CHECK(close(reader, 1).ok());
  CHECK(absl::IsPermissionDenied(close(reader, 2)));
  CHECK(leave({"cccc", v1::ROLE_JOB, "serving"}, 2).ok());
}

TEST_CASE("regression: a token of a job opens no lane for an observer that reads all jobs") {
  v1::ClusterView view;
  v1::Job* job = view.add_jobs();
  job->set_name("serving");
  const auto add = [&](int rank, const std::string& only_job) {
    v1::Worker* member = job->add_members();
    member->set_incarnation(static_cast<uint64_t>(job->members_size()));
    member->set_rank(rank);
    member->set_only_job(only_job);
    return member->incarnation();
  };
  const uint64_t of_all = add(-1, ""), of_job = add(-1, "serving"), worker = add(0, "");
  const uint64_t writer = add(-1, "serving");
  job->mutable_members(3)->set_may_write(true);
  const auto open = [&](const Principal& who, uint64_t incarnation) {
    v1::OpenLaneRequest request;
    request.set_incarnation(incarnation);
    return Authorize(who, "/verbena.v1.Shard/OpenLane", ScopeOf(request, ViewScan(view)));
  };
  const Principal narrow{"aaaa", v1::ROLE_READ_ONLY, "serving"};
  const Principal wide{"bbbb", v1::ROLE_READ_ONLY, ""};
  const Principal trains{"cccc", v1::ROLE_JOB, "serving"};
  CHECK(absl::IsPermissionDenied(open(narrow, of_all)));
  CHECK(absl::IsPermissionDenied(open(trains, of_all)));
  CHECK(open(wide, of_all).ok());
  CHECK(absl::IsPermissionDenied(open(narrow, writer)));
  CHECK(absl::IsPermissionDenied(open(wide, writer)));
  CHECK(open(trains, writer).ok());
  CHECK(open(Principal{}, of_all).ok());
  CHECK(open(narrow, of_job).ok());
  CHECK(open(trains, of_job).ok());
  CHECK(open(trains, worker).ok());
}

TEST_CASE("regression: a job's token makes no table that only an operator can finish to restore") {
  v1::CreateTableRequest create;
  create.mutable_spec()->set_name("another's");
  create.mutable_spec()->set_job("ads");
  const auto may = [&](const Principal& who) {
    return Authorize(who, "/verbena.v1.Cluster/CreateTable",
                     ScopeOf(create, ViewScan(v1::ClusterView())));
  };
  const Principal trains{"aaaa", v1::ROLE_JOB, "ads"};
  CHECK(may(trains).ok());
  create.set_restoring(true);
  CHECK(absl::IsPermissionDenied(may(trains)));
  CHECK(may(Principal{}).ok());
}

TEST_CASE("the audit log follows no link and takes no file of another user") {
  test::TemporaryDirectory directory;
  const std::string victim = directory.File("victim");
  std::ofstream(victim) << "kept";
  REQUIRE(symlink(victim.c_str(), directory.File("audit").c_str()) == 0);
  Log log;
  auto audit = AuditLog::Open(directory.File("audit"), log.Sink());
  REQUIRE_FALSE(audit.ok());
  CHECK_THAT(std::string(audit.status().message()), Contains("symbolic link"));
  CHECK(ReadFile(victim) == "kept");
  if (geteuid() != 0) return;  // only root gives files away
  REQUIRE(chown(victim.c_str(), 54321, 54321) == 0);
  auto foreign = AuditLog::Open(victim, log.Sink());
  REQUIRE_FALSE(foreign.ok());
  CHECK_THAT(std::string(foreign.status().message()), Contains("54321"));
}

TEST_CASE("the audit log appends to its file, and opens it anew after it was moved away") {
  test::TemporaryDirectory directory;
  const std::string path = directory.File("audit");
  Log log;
  for (int start = 0; start < 2; ++start) {
    auto audit = AuditLog::Open(path, log.Sink());
    REQUIRE(audit.ok());
    (*audit)->Write(Refusal("first"));
  }
  const std::string both = ReadFile(path);
  CHECK(std::count(both.begin(), both.end(), '\n') == 2);
  auto audit = AuditLog::Open(path, log.Sink());
  REQUIRE(rename(path.c_str(), directory.File("audit.1").c_str()) == 0);
  (*audit)->Write(Refusal("second"));
  (*audit)->Flush();
  CHECK(ReadFile(directory.File("audit.1")) == both);
  CHECK_THAT(ReadFile(path), Contains("second"));
  CHECK(log.lines.empty());
}

TEST_CASE("an audit line that cannot be written to the file goes to the daemon's log") {
  Log log;
  auto audit = AuditLog::Open("/dev/full", log.Sink());
  REQUIRE(audit.ok());
  (*audit)->Write(Refusal("one"));
  (*audit)->Write(Refusal("two"));
  (*audit)->Flush();
  REQUIRE(log.lines.size() == 3);
  CHECK_THAT(log.lines[0], Contains("/dev/full") && Contains("No space left"));
  CHECK_THAT(log.lines[1], Contains("one"));
  CHECK_THAT(log.lines[2], Contains("two"));
}

}  // namespace
}  // namespace verbena::server
