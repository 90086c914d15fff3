// How the operator's program parses its command line.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "proto/base/byte_size.h"
#include "server/cli/verbena/command_line.h"
#include "server/cli/verbena/limits.h"
#include "server/cli/verbena/repair_command.h"
#include "tests/server/cli_states.h"

namespace verbena::cli {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

Parsed Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "verbena");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST_CASE("options may stand before and after the command") {
  unsetenv("VERBENA_CLUSTER");
  Parsed parsed = Parse({"--cluster", "a:1", "shards", "--json", "--watch", "0.5"});
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.command == Command::kShards);
  CHECK(parsed.options.cluster == "a:1");
  CHECK(parsed.options.json);
  CHECK(parsed.options.watch == absl::Milliseconds(500));
  CHECK(parsed.options.timeout == absl::Seconds(5));
  parsed = Parse({"jobs", "--cluster=b:2", "--timeout", "0.25"});
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.command == Command::kJobs);
  CHECK(parsed.options.cluster == "b:2");
  CHECK(parsed.options.timeout == absl::Milliseconds(250));
  CHECK_FALSE(parsed.options.watch);
  CHECK(Parse({"tables"}).options.cluster == "127.0.0.1:7000");
  setenv("VERBENA_CLUSTER", "c:3", 1);
  CHECK(Parse({"tables"}).options.cluster == "c:3");
  CHECK(Parse({"--cluster", "a:1", "tables"}).options.cluster == "a:1");
  setenv("VERBENA_CLUSTER", "nonsense", 1);
  CHECK_THAT(Parse({"tables"}).message, Contains("VERBENA_CLUSTER: 'nonsense'"));
  unsetenv("VERBENA_CLUSTER");
}

TEST_CASE("partition and server commands take the names of lost objects") {
  unsetenv("VERBENA_CLUSTER");
  using Action = RepairOptions::Action;
  Parsed parsed = Parse({"partition", "list", "--json"});
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.command == Command::kPartition);
  CHECK(parsed.options.repair.action == Action::kNone);
  parsed = Parse({"partition", "reset", "--partition", "3", "t", "--partition", "7", "--yes"});
  INFO(parsed.message);
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.repair.action == Action::kResetTable);
  CHECK(parsed.options.repair.name == "t");
  CHECK(parsed.options.repair.partitions == std::vector<uint32_t>{3, 7});
  CHECK(parsed.options.repair.yes);
  CHECK(Consequences(parsed.options.repair, Healthy()) ==
        "table 't' starts again from initial values in 3, 7, and its job's steps from 0");
  parsed = Parse({"job", "forget", "demo", "--yes"});
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.command == Command::kJob);
  CHECK(parsed.options.repair.action == Action::kForgetJob);
  CHECK_THAT(std::string(CheckTarget(parsed.options.repair, Healthy()).message()),
             Contains("there is no job 'demo'; 'verbena jobs' lists them"));
  ClusterState with_job = Healthy();
  v1::Job* job = with_job.view.add_jobs();
  job->set_name("demo");
  job->set_generation(3);
  job->mutable_limits()->set_tables(2);
  CHECK(CheckTarget(parsed.options.repair, with_job).ok());
  CHECK(Consequences(parsed.options.repair, with_job) ==
        "job 'demo' (generation 3) is forgotten, with its limits");
  CHECK(Parse({"job"}).exit_status == kExitUsage);
  CHECK(Parse({"job", "forget"}).exit_status == kExitUsage);
  parsed = Parse({"server", "remove", "s5"});
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.repair.action == Action::kRemoveServer);
  CHECK_FALSE(parsed.options.repair.yes);
  ClusterState state = Healthy();
  // Refused before anybody is asked to agree to it.
  state.view.mutable_servers(0)->set_state(v1::Server::ALIVE);
  CHECK_THAT(std::string(CheckTarget(parsed.options.repair, state).message()),
             StartsWith("server 's5' at ") && EndsWith(" is alive; only a server that is silent "
                                                       "can be removed: stop it first"));
  state.view.mutable_servers(0)->set_state(v1::Server::SILENT);
  CHECK(CheckTarget(parsed.options.repair, state).ok());
  RepairOptions unknown = parsed.options.repair;
  unknown.name = "s9";
  CHECK_THAT(std::string(CheckTarget(unknown, state).message()),
             Contains("there is no server 's9'; 'verbena status' lists them"));
  unknown.action = Action::kResetTable;
  CHECK_THAT(std::string(CheckTarget(unknown, state).message()),
             Contains("there is no table 's9'; 'verbena tables' lists them"));
  CHECK(Consequences(parsed.options.repair, state) ==
        "server 's5' is forgotten for ever, with the last replica of 2 partitions (0, 1): no table "
        "has "
        "anything there");
  v1::Table* table = state.view.add_tables();
  table->mutable_spec()->set_name("rows");
  table->mutable_spec()->set_dim(4);
  CHECK_THAT(
      Consequences(parsed.options.repair, state),
      EndsWith("with the last replica of 2 partitions (0, 1): table 'rows' loses 2 partitions"));
  for (v1::Partition& p : *state.view.mutable_partitions()) p.add_followers()->set_server(6);
  CHECK(Consequences(parsed.options.repair, state) == "server 's5' is forgotten for ever");
}

TEST_CASE("the options of tables are listed without a cluster") {
  setenv("VERBENA_CLUSTER", "not an address", 1);
  const Parsed parsed = Parse({"table", "options", "--markdown"});
  unsetenv("VERBENA_CLUSTER");
  INFO(parsed.message);
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.option_reference);
  CHECK(parsed.options.markdown);
  CHECK_FALSE(Parse({"table", "drop", "w", "--yes"}).options.option_reference);
  CHECK(Parse({"table", "options", "--json", "--markdown"}).exit_status == kExitUsage);
}

TEST_CASE("a table that is dropped is named, with the workers that use it") {
  unsetenv("VERBENA_CLUSTER");
  const Parsed parsed = Parse({"table", "drop", "w", "--yes"});
  INFO(parsed.message);
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.command == Command::kTable);
  const RepairOptions& drop = parsed.options.repair;
  CHECK(drop.action == RepairOptions::Action::kDropTable);
  CHECK(drop.yes);
  ClusterState state = Healthy();
  CHECK(absl::IsNotFound(CheckTarget(drop, state)));
  v1::Table* table = state.view.add_tables();
  table->mutable_spec()->set_name("w");
  table->mutable_spec()->set_job("demo");
  REQUIRE(CheckTarget(drop, state).ok());
  CHECK(Consequences(drop, state) == "table 'w' of job 'demo' is dropped with all that it has");
  v1::Job* job = state.view.add_jobs();
  job->set_name("demo");
  job->add_members()->set_rank(-1);  // an observer
  CHECK(UsersText({table}, state.view).empty());
  for (const int rank : {0, 1}) job->add_members()->set_rank(rank);
  CHECK(
      Consequences(drop, state) ==
      "table 'w' of job 'demo' is dropped with all that it has; table 'w' is used by 2 workers of "
      "job 'demo', whose calls on it fail");
  const Parsed restoring = Parse({"table", "drop", "w", "--restoring"});
  CHECK(absl::IsNotFound(CheckTarget(restoring.options.repair, state)));
  table->set_restoring(true);
  CHECK(CheckTarget(restoring.options.repair, state).ok());
  CHECK_THAT(Consequences(drop, state), StartsWith("table 'w' of job 'demo' is being restored"));
}

TEST_CASE("limits are given in bytes and their multiples, and only those that change") {
  unsetenv("VERBENA_CLUSTER");
  Parsed parsed = Parse({"limits", "ads", "--memory", "10GiB", "--lanes", "0"});
  INFO(parsed.message);
  REQUIRE_FALSE(parsed.exit_status);
  CHECK(parsed.options.command == Command::kLimits);
  CHECK(parsed.options.job == "ads");
  CHECK(parsed.options.limits.memory_bytes == uint64_t{10} << 30);
  CHECK(parsed.options.limits.lanes == 0);
  CHECK_FALSE(parsed.options.limits.tables.has_value());
  v1::JobLimits before;
  before.set_tables(7);
  before.set_lanes(3);
  CHECK(LimitsWord(Changed(before, parsed.options.limits)) == "memory 10.7 GB, 7 tables");
  CHECK(LimitsWord(Changed(before, Parse({"limits", "ads", "--none"}).options.limits)) == "-");
  CHECK_FALSE(Parse({"limits", "ads"}).options.limits.any());
  CHECK(ParseByteSize("4096") == 4096);
  CHECK(ParseByteSize("18446744073709551615") == UINT64_MAX);
  CHECK(ParseByteSize("1.5 TB") == 1'500'000'000'000);
  CHECK(ParseByteSize("512mib") == uint64_t{512} << 20);
  for (const char* no : {"", "GiB", "-1", "1e3", "10 GiX", "1.2.3", "99999999TiB", "1 2"}) {
    INFO(no);
    CHECK_FALSE(ParseByteSize(no).has_value());
  }
}

TEST_CASE("the error about a wrong command line names the problem") {
  const auto check = [](std::vector<const char*> arguments, const char* says) {
    const Parsed parsed = Parse(std::move(arguments));
    INFO(parsed.message);
    CHECK(parsed.exit_status == kExitUsage);
    CHECK_THAT(parsed.message, StartsWith("verbena: ") && Contains(says) && Contains("--help"));
  };
  check({}, "a command is needed: status, tables, jobs, limits, workers, shards");
  check({"stat"}, "unknown command 'stat'; allowed: status, tables, jobs, limits, workers, shards");
  check({"status", "--jsno"},
        "unknown option '--jsno' of 'verbena status'\n'verbena status --help'");
  check({"status", "--wait"}, "--wait needs a value: SECONDS\n");
  check({"tables", "--watch", "1"}, "unknown option '--watch'");
  check({"status", "extra"}, "unexpected argument 'extra'");
  check({"status", "jobs"}, "jobs");
  check({"status", "--timeout", "soon"}, "--timeout: 'soon' is not allowed: seconds from 0.1");
  check({"shards", "--watch", "0"}, "--watch: '0' is not allowed: seconds from 0.1");
  check({"--cluster", "nowhere", "jobs"}, "--cluster: 'nowhere' is not HOST:PORT");
  check({"jobs", "--cluster"}, "--cluster");
  check({"limits"}, "JOB");
  check({"status", "--wait", "0"}, "--wait: '0' is not allowed: seconds from 0.1");
  check({"tables", "--wait", "1"}, "unknown option '--wait'");
  check({"token", "create", "--role", "worker"}, "a worker needs role job");
  check({"token", "create", "--role", "job"}, "--job JOB for --role job is required");
  check({"token", "create", "--role", "job", "--job", ""},
        "--job: '' is not allowed: a job's name");
  check({"checkpoint", "prune", "/c", "--job", ""}, "--job: '' is not allowed: a job's name");
  check({"checkpoint", "save", "/c", "--job", ""}, "--job: '' is not allowed: a job's name");
  check({"table", "drop"}, "NAME");
  check({"table", "drop", ""}, "'' is not allowed: give a value\n'verbena table drop --help'");
  check({"table", "set", "w"}, "--rate RATE or --param NAME=VALUE is required");
  check({"table", "set", "w", "--rate", "fast"}, "--rate: 'fast' is not allowed: a number");
  check({"table", "set", "w", "--param", "beta1"}, "--param: 'beta1' is not allowed: NAME=NUMBER");
  check({"table", "set", "w", "--param", "beta1=0.5", "--param", "beta1=0.6"},
        "--param: 'beta1' is given twice; allowed: once");
  check({"checkpoint", "save", "/c", "--keep-every", "3"}, "--keep-every requires --keep-last");
  check({"checkpoint", "save", "/c", "--full-every", "0"},
        "--full-every: '0' is not allowed: an integer from 1 to 100");
  check({"checkpoint", "export", "/c", "--to", "m", "--file-size", "1GiB"},
        "--file-size is for --format sharded");
  check({"status", "--token-file", ""}, "--token-file: '' is not allowed: give a value");
  check({"status", "--tls-ca", ""}, "--tls-ca: '' is not allowed: give a value");
  check({"server"}, "server needs an action: remove");
  check({"checkpoint"}, "checkpoint needs an action: list, verify, inspect, prune, compact");
  check({"checkpoint"}, "restore");
  check({"checkpoint", "lsit", "/c"}, "unknown action 'lsit' of checkpoint; allowed: list, ");
  check({"partition", "lst"}, "unknown action 'lst' of partition; allowed: list, reset");
  check({"server", "remove"}, "NAME");
  check({"server", "forget", "a"}, "forget");
  check({"partition", "reset"}, "TABLE");
  check({"partition", "reset", "t", "--partition", "-1"},
        "--partition: '-1' is not allowed: a partition's number");
  check({"partition", "list", "--yes"}, "--yes");
  check({"limits", "a", "b"}, "unexpected argument 'b'");
  check({"limits", "a", "--memory", "many"}, "--memory: 'many' is not allowed: bytes from 0 to");
  check({"limits", "a", "--tables", "-1"}, "--tables: '-1' is not allowed: a number");
  check({"limits", "a", "--none", "--lanes", "1"}, "--none");
}

TEST_CASE("the help of every command has an example") {
  for (const char* command : {"status", "tables", "jobs", "limits", "workers", "shards",
                              "partition", "server", "table"}) {
    const Parsed parsed = Parse({command, "--help"});
    CHECK(parsed.exit_status == kExitOk);
    const std::string example = std::string("\n  verbena ") + command;
    CHECK_THAT(parsed.message, Contains("Example") && Contains(example) && Contains("--json") &&
                                   Contains("--cluster HOST:PORT"));
  }
  const Parsed parsed = Parse({"--help"});
  CHECK(parsed.exit_status == kExitOk);
  CHECK_THAT(parsed.message, Contains("Exit status") && Contains("Examples:"));
  CHECK_THAT(Parse({"--version"}).message, StartsWith("verbena "));
}

TEST_CASE("a list of coordinators is taken, and an error shows the text of the one that answered") {
  const Parsed parsed = Parse({"--cluster", "a:7000,b:7000", "status"});
  REQUIRE_FALSE(parsed.exit_status.has_value());
  CHECK(parsed.options.cluster == "a:7000,b:7000");
  CHECK_THAT(Parse({"--cluster", "a:7000,b", "status"}).message, Catch::Matchers::Contains("'b'"));
  CHECK(Said(absl::UnavailableError("b:7000: no"), "a:7000,b:7000") == "no");
  CHECK(Said(absl::UnavailableError("a:7000: no"), "a:7000") == "no");
  CHECK(Said(absl::UnavailableError("c:7000: no"), "a:7000,b:7000") == "c:7000: no");
}

}  // namespace
}  // namespace verbena::cli
