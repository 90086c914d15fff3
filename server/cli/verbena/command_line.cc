#include "server/cli/verbena/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/byte_size.h"
#include "proto/base/empty_values.h"
#include "proto/base/help_formatter.h"
#include "proto/base/number_values.h"
#include "proto/base/usage_error.h"
#include "proto/security/role.h"
#include "server/cli/validators.h"
#include "server/cli/verbena/move_leader.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

constexpr char kVersionText[] = "verbena " VERBENA_VERSION;
constexpr char kVariable[] = "VERBENA_CLUSTER";
constexpr char kCaVariable[] = "VERBENA_TLS_CA";
constexpr char kCertVariable[] = "VERBENA_TLS_CERT";
constexpr char kKeyVariable[] = "VERBENA_TLS_KEY";
constexpr char kTokenVariable[] = "VERBENA_TOKEN_FILE";
constexpr char kDefaultCluster[] = "127.0.0.1:7000";

constexpr char kExamples[] =
    "Examples:\n"
    "  verbena --cluster 10.0.0.1:7000 status\n"
    "  VERBENA_CLUSTER=10.0.0.1:7000 verbena shards --watch 2\n\n"
    "Exit status: 0 success; 1 a problem, or a server did not answer; 2 wrong usage; 3 the\n"
    "coordinator cannot be reached; 128 + N ended by signal N.\n"
    "'verbena COMMAND --help' has the options and an example of a command.";

struct CommandText {
  Command command;
  const char* name;
  const char* about;
  const char* footer;
};
constexpr CommandText kCommands[] = {
    {Command::kStatus, "status",
     "Show the health of the cluster: problems, servers, partitions, jobs, tables",
     "Exit status 1 when a server is silent or does not answer, partitions are lost or have fewer\n"
     "living replicas than wanted, expected servers are missing, or checkpoints that the "
     "coordinator\n"
     "makes by itself fail; with --wait, which does not wait for these, when the rest is still so\n"
     "at the end. Replicas on servers that are silent, do not answer or were replaced do not "
     "count.\n\n"
     "Examples:\n"
     "  verbena status --cluster 10.0.0.1:7000 --timeout 2 || echo 'look at the cluster'\n"
     "  systemctl restart verbenad && verbena status --wait 600   # then the next server"},
    {Command::kTables, "tables",
     "Show tables: shape, type, consistency, optimizer, rows, size, lost partitions, hot keys",
     "Rows and bytes of an embedding table are those of the servers that answer; exit status "
     "1\nwhen one does not and there are such tables.\n\n"
     "Example:\n"
     "  verbena tables --json | jq -r '.tables[] | select(.bytes > 1e9) | .name'"},
    {Command::kJobs, "jobs",
     "Show jobs: generation, current and expected workers, departed ranks, limits",
     "Example:\n"
     "  verbena jobs --cluster 10.0.0.1:7000"},
    {Command::kLimits, "limits",
     "Set the given limits of a job, and show all limits with their use",
     "Limits that are not given stay. At a limit the job gets RESOURCE_EXHAUSTED and other jobs\n"
     "continue; existing tables and rows stay. Each server grants a share of the memory, by its\n"
     "partitions. Limits may be set before the job's first worker joins, and outlive its runs.\n"
     "Exit status 1 if a server did not answer or the coordinator refused.\n\n"
     "Examples:\n"
     "  verbena limits ads --memory 10GiB --tables 20 --lanes 64\n"
     "  verbena limits ads --tables 0     # as many tables as it likes\n"
     "  verbena limits ads"},
    {Command::kWorkers, "workers", "Show workers: rank, incarnation, lanes by transport",
     "Exit status 1 when a server did not answer, so that its lanes are not counted.\n\n"
     "Example:\n"
     "  verbena workers --cluster 10.0.0.1:7000"},
    {Command::kShards, "shards",
     "Show shards: requests, bytes, memory, CPU time, lanes; the hottest is marked",
     "The hottest is the shard that used most processor time of those that served requests: since\n"
     "they started, or with --watch in each interval. Exit status 1 when a server did not answer.\n"
     "--watch goes on until SIGINT or SIGTERM and then exits 0; with --json it prints one object "
     "a\n"
     "line.\n\n"
     "Examples:\n"
     "  verbena shards --cluster 10.0.0.1:7000\n"
     "  verbena shards --watch 2"},
    {Command::kScaleHint, "scale-hint",
     "Show load and memory of servers, workers of jobs, and how many servers to run",
     "For autoscalers, from two readings. A new server gets its share with verbena rebalance or "
     "verbenad --rebalance.\nExit status 1 when a server did not answer.\n\n"
     "Example:\n"
     "  verbena scale-hint --json --cpu-high 0.6 --max-servers 16 | jq .wanted_servers"},
    {Command::kPartition, "partition", "List partitions with their servers; reset lost ones",
     "Lost partitions of a table answer DATA_LOSS until the table is dropped, restored or reset.\n"
     "A reset starts them from initial values, and the job from step 0: end its workers first.\n\n"
     "Examples:\n"
     "  verbena partition list\n"
     "  verbena partition list --json | jq '.partitions[] | select(.followers == [])'\n"
     "  verbena partition reset weights --partition 3 --partition 7"},
    {Command::kServer, "server", "Remove a server that will not return",
     "Partitions without another replica are UNAVAILABLE until their silent server returns. After\n"
     "its removal they are lost, and new tables can be created on the remaining servers.\n\n"
     "Examples:\n"
     "  verbena server remove server-3\n"
     "  verbena server remove server-3 --yes --json"},
    {Command::kMigrate, "migrate", "Move partitions to another server while they are used",
     "The server becomes a learner, then a follower, then the primary; the old place is dropped, "
     "and\n"
     "other replicas stay. Calls of workers wait for a moment and do not fail. The command waits "
     "for\n"
     "the end; when it is interrupted, the moves go on. When the target has no memory for one, "
     "those\n"
     "that are not being copied stay, too.\n"
     "Exit status 0 when all have moved, with --no-wait when they have begun, with --cancel also "
     "when\n"
     "there was nothing to cancel; 1 when a partition stayed: its server or the target died, or "
     "the\n"
     "target has no memory.\n\n"
     "Examples:\n"
     "  verbena migrate --partition 3 --partition 7 --to server-2\n"
     "  verbena migrate --table weights --table bias --to server-2 --no-wait\n"
     "  verbena migrate --table weights --cancel"},
    {Command::kDrain, "drain", "Move everything off a server, which can then be stopped",
     "All replicas move to other servers, and the server gets no new ones. It is refused when "
     "fewer\n"
     "than --replicas other servers are alive. A server that is started again has no drain. When "
     "the\n"
     "others have no memory it says which lacks how many bytes, and goes on waiting.\n"
     "Exit status 0 when the server has no replica any more, with --no-wait when the drain has "
     "begun,\n"
     "with --cancel also when there was none; 1 when it was refused, cancelled, or the server "
     "was\n"
     "removed or restarted.\n\n"
     "Examples:\n"
     "  verbena drain server-3 && ssh server-3 systemctl stop verbenad\n"
     "  verbena drain server-3 --cancel"},
    {Command::kRebalance, "rebalance", "Spread the data over the servers while it is used",
     "Moves replicas from servers with more bytes than their share to others, until the servers'\n"
     "bytes differ by at most 10 % of their average: an empty server that has joined gets its\n"
     "share, as the memory limits are. Zones stay apart. Then primaries are spread, until they\n"
     "differ by at most 20 %, where each counts by its bytes and as one. --plan shows all rounds. "
     "--apply\n"
     "waits for the end, without --no-wait; when interrupted, the moves go on.\n"
     "Exit status of --apply: 0 when the servers are balanced, with --no-wait when the moves have "
     "begun;\n"
     "1 when a replica stayed, or bytes or primaries stay apart, with the reason. --plan and "
     "--cancel\n"
     "end with 0 also when there is nothing to move or to cancel; 1: the load is not known, or "
     "there\n"
     "is one server.\n\n"
     "Examples:\n"
     "  verbena rebalance --plan\n"
     "  verbena rebalance --apply\n"
     "  verbena rebalance --cancel"},
    {Command::kRollingRestart, "rolling-restart",
     "Restart the servers one after the other by a command of yours",
     "Before each server it waits until every partition has all of its replicas, then runs the\n"
     "command, and waits for the server. Workers go on. It stops at the first failure and names "
     "the\n"
     "servers that are left, with exit status 1. Where the cluster keeps one replica, --drain is\n"
     "needed: it moves everything to other servers first.\n\n"
     "Examples:\n"
     "  verbena rolling-restart --command 'ssh $VERBENA_SERVER_NAME systemctl restart verbenad'\n"
     "  verbena rolling-restart --drain --server server-3 --command ./restart.sh"},
    {Command::kTable, "table",
     "Change a table: its optimizer, its parameters; drop it; list the options of tables",
     "drop: the served table of that name, else the one that is being restored; --restoring: only\n"
     "the latter. The command lists the workers that use the table, and asks. If none did, but\n"
     "workers have joined its job since, the drop is refused; --yes drops the table then, too.\n\n"
     "Examples:\n"
     "  verbena table set weights --rate 0.001\n"
     "  verbena table assign weights --from model.safetensors\n"
     "  verbena table drop weights\n"
     "  verbena table drop weights --yes --json\n"
     "  verbena table options   # of a new table; calls no cluster"},
    {Command::kJob, "job", "Remove a job that has ended from the list of jobs",
     "Only a job without workers, observers and tables: it leaves the list of jobs, with its "
     "limits.\nIts checkpoints stay, and it may begin again under its name.\n\n"
     "Examples:\n"
     "  verbena job forget demo\n"
     "  verbena job forget demo --yes --json"},
    {Command::kToken, "token", "Create, list and revoke tokens (for operators)",
     "Roles: operator: all calls; server: joins as a server; job: all calls of one job; "
     "read-only:\n"
     "shows the state, and joins as an observer, which only pulls.\n\n"
     "Examples:\n"
     "  verbena token create --role job --job ads --expires 30d --out ads.token\n"
     "  verbena token list\n"
     "  verbena token revoke 4be1c02f9d77"},
    {Command::kCoordinator, "coordinator",
     "List the coordinators and the leader; move their state to etcd or from it",
     "list: exit status 1 if none of them leads. import-sqlite and export: stop all coordinators "
     "first.\n\n"
     "Examples:\n"
     "  verbena coordinator list --cluster a:7000,b:7000,c:7000\n"
     "  verbena coordinator import-sqlite --state /var/lib/verbena --etcd a:2379,b:2379,c:2379 "
     "--etcd-ca ca.pem\n"
     "  verbena coordinator export --etcd a:2379,b:2379,c:2379 --etcd-ca ca.pem --state "
     "/var/lib/verbena2"},
    {Command::kMoveLeader, "move-leader",
     "Have another coordinator lead, before the leader's maintenance",
     "The leader leaves its office to the standby at once, which takes less time than its end "
     "would.\n"
     "Calls of workers wait meanwhile. Exit status 1 if nothing was moved, or another one was "
     "elected.\n\n"
     "Examples:\n"
     "  verbena move-leader b:7000 --cluster a:7000,b:7000,c:7000\n"
     "  verbena move-leader --cluster a:7000,b:7000,c:7000   # to any standby"},
    {Command::kCheckpoint, "checkpoint",
     "Save and restore tables; on disk: list, verify, inspect, prune, compact, export, import",
     "All but save and restore need no cluster, only the directory. Exit status 1 if a checkpoint\n"
     "is damaged or the command failed: the message names file and tensor.\n\n"
     "Examples:\n"
     "  verbena checkpoint save /data/checkpoints --keep-last 3\n"
     "  verbena checkpoint restore /data/checkpoints\n"
     "  verbena checkpoint list /data/checkpoints\n"
     "  verbena checkpoint verify /data/checkpoints --all\n"
     "  verbena checkpoint export /data/checkpoints --to model.safetensors --dtype BF16\n"
     "  verbena checkpoint import model.safetensors --to /data/imported --job demo\n"
     "  verbena checkpoint prune /data/checkpoints --keep-last 3 --keep-every 10000"},
};

// Values as texts from CLI11, so that checks can quote them.
struct RawOptions {
  std::string cluster;
  TlsOptions tls;
  double timeout = 5;
  double watch = 0;
  double wait = 0;
  std::string token_file;
  bool json = false;
  bool option_reference = false;
  bool markdown = false;
  TokenOptions token;
  CoordinatorAction coordinator;
  CheckpointOptions checkpoint;
  ClusterCheckpointOptions cluster_checkpoint;
  RepairOptions repair;
  MoveOptions move;
  RebalanceOptions rebalance;
  RollingRestartOptions restart;
  TableAction table;
  std::string job, memory;
  LimitChange limits;
  ScaleOptions scale;
  std::string successor;
};

// Accepts the texts that `parse` accepts, with its error.
template <typename Parse>
CLI::Validator Checked(Parse parse) {
  CLI::Validator check;
  check.description("");
  check.operation([parse](std::string& text) -> std::string {
    return std::string(parse(text).status().message());
  });
  return check;
}

// A worker's token has the role of its job.
std::string CheckRole(std::string& word) {
  const std::string wrong(ParseRole(word).status().message());
  const bool worker = word == "worker" || word == "workers" || word == "trainer";
  return worker ? absl::StrCat(wrong, "; a worker needs role job") : wrong;
}

void AddTokenActions(CLI::App* command, TokenOptions* token, std::vector<CLI::App*>* actions) {
  command->require_subcommand(1);
  CLI::App* create = command->add_subcommand("create", "Create a token and print it once");
  create
      ->add_option_function<std::string>(
          "--role", [token](const std::string& word) { token->role = *ParseRole(word); },
          "Role: operator, server, job or read-only")
      ->type_name("ROLE")
      ->required()
      ->check(CLI::Validator(CheckRole, ""));
  create
      ->add_option("--job", token->job,
                   "Job of the token: for role job; for read-only, if it may read only one job")
      ->check(server::NotEmpty("a job's name"));
  create
      ->add_option_function<std::string>(
          "--expires", [token](const std::string& text) { token->lifetime = *ParseLifetime(text); },
          "Lifetime, such as 30d, 12h, 15m (default: until it is revoked)")
      ->type_name("TIME")
      ->check(Checked(ParseLifetime));
  create->callback([token] {
    if (token->role == v1::ROLE_JOB && token->job.empty()) {
      throw CLI::RequiredError("--job JOB for --role job");
    }
  });
  create->add_option("--note", token->note, "Note for operators: holder and purpose");
  create
      ->add_option(
          "--out", token->out,
          "Write the token to this new file, readable only by its owner, instead of printing it")
      ->type_name("FILE");
  CLI::App* list = command->add_subcommand("list", "List all tokens without their secrets");
  CLI::App* revoke = command->add_subcommand(
      "revoke", "Revoke a token at once, and end the leases of workers that joined with it");
  revoke->add_option("ID", token->id, "ID of the token, as in 'list'")->required();
  *actions = {create, list, revoke};
}

RepairOptions::Action RepairOf(Command command) {
  switch (command) {
    case Command::kPartition:
      return RepairOptions::Action::kResetTable;
    case Command::kServer:
      return RepairOptions::Action::kRemoveServer;
    case Command::kTable:
      return RepairOptions::Action::kDropTable;
    case Command::kJob:
      return RepairOptions::Action::kForgetJob;
    default:
      return RepairOptions::Action::kNone;
  }
}

void AddOptionReference(CLI::App* command, RawOptions* raw) {
  CLI::App* action =
      command->add_subcommand("options", "Options of a new table: type, allowed values, default");
  action->callback([raw] { raw->option_reference = true; });
  CLI::Option* markdown =
      action->add_flag("--markdown", raw->markdown, "Print docs/reference/table-options.md");
  action->add_flag("--json", raw->json, "Print one JSON object on one line, for programs")
      ->excludes(markdown);
  action->get_formatter()->column_width(28);
}

CLI::Validator SecondsUpTo(double most) { return NumberIn(0.1, most, "seconds"); }

// On the program and on every command, so that they may stand before or after the command's name.
void AddCommon(CLI::App* app, RawOptions* raw) {
  CLI::Validator host_port = server::HostPorts();
  host_port.description("");
  app->add_option("--cluster", raw->cluster,
                  "Address of the coordinator, or of several (default: $VERBENA_CLUSTER, else "
                  "127.0.0.1:7000)")
      ->type_name("HOST:PORT[,...]")
      ->check(host_port);
  app->add_option(
         "--timeout", raw->timeout,
         "Longest wait for the coordinator, and then for all servers together, in seconds, 0.1 to "
         "3600")
      ->type_name("SECONDS")
      ->check(SecondsUpTo(3600))
      ->capture_default_str();
  app->add_option("--tls-ca", raw->tls.ca,
                  "CA bundle (PEM) that verifies servers; turns TLS on (default: $VERBENA_TLS_CA)")
      ->type_name("FILE");
  app->add_option("--tls-cert", raw->tls.cert,
                  "Client certificate (PEM) for mutual TLS (default: $VERBENA_TLS_CERT)")
      ->type_name("FILE");
  app->add_option("--tls-key", raw->tls.key,
                  "Private key (PEM) of --tls-cert (default: $VERBENA_TLS_KEY)")
      ->type_name("FILE");
  app->add_option(
         "--token-file", raw->token_file,
         "File of the token, where the cluster requires one (default: $VERBENA_TOKEN_FILE)")
      ->type_name("FILE");
  app->add_flag("--json", raw->json, "Print one JSON object on one line, for programs");
}

Parsed Ended(int status, std::string message) {
  Parsed parsed;
  parsed.exit_status = status;
  parsed.message = std::move(message);
  return parsed;
}

Parsed Wrong(const std::string& what, const CLI::App& app) {
  return Ended(kExitUsage, absl::StrCat("verbena: ", what, "\n", UsageHint(app)));
}

// Empty when all is well.
std::string CompleteCluster(std::string* cluster) {
  if (!cluster->empty()) return "";
  const char* value = std::getenv(kVariable);
  *cluster = value == nullptr || *value == '\0' ? kDefaultCluster : value;
  const std::string wrong = server::HostPorts()(*cluster);
  return wrong.empty() ? "" : absl::StrCat(kVariable, ": ", Printable(wrong));
}

// Empty when all is well.
std::string CompleteTls(TlsOptions* tls) {
  const auto complete = [](const char* variable, std::string* path) {
    const char* value = std::getenv(variable);
    if (path->empty() && value != nullptr) *path = value;
  };
  complete(kCaVariable, &tls->ca);
  complete(kCertVariable, &tls->cert);
  complete(kKeyVariable, &tls->key);
  if (tls->cert.empty() != tls->key.empty()) {
    return "--tls-cert and --tls-key go together: a certificate and its key";
  }
  if (!tls->cert.empty() && tls->ca.empty()) {
    return "--tls-cert needs --tls-ca, which verifies servers";
  }
  return "";
}

}  // namespace

Parsed ParseCommandLine(int argc, const char* const* argv) {
  RawOptions raw;
  CLI::App app("verbena: shows and changes the state of a Verbena cluster", "verbena");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", kVersionText);
  app.footer(kExamples);
  app.require_subcommand(0, 1);
  AddCommon(&app, &raw);
  std::vector<CLI::App*> commands, token_actions, repairs;
  for (const CommandText& text : kCommands) {
    CLI::App* command = app.add_subcommand(text.name, text.about);
    command->footer(text.footer);
    commands.push_back(command);
    if (text.command == Command::kCheckpoint) {
      // No options of a cluster, which it does not ask.
      std::vector<CLI::App*> apps = AddCheckpointActions(command, &raw.checkpoint);
      apps.push_back(command);
      for (CLI::App* app_or_action : apps) {
        app_or_action->add_flag("--json", raw.json,
                                "Print one JSON object on one line, for programs");
      }
      for (CLI::App* action : AddClusterCheckpointActions(command, &raw.cluster_checkpoint)) {
        AddCommon(action, &raw);
      }
      continue;
    }
    if (text.command == Command::kCoordinator) {
      for (CLI::App* action : AddCoordinatorActions(command, &raw.coordinator, &raw.json)) {
        AddCommon(action, &raw);
      }
      continue;
    }
    AddCommon(command, &raw);
    if (text.command == Command::kShards) {
      command
          ->add_option(
              "--watch", raw.watch,
              "Print rates at this interval, 0.1 to 86400 seconds, until SIGINT or SIGTERM")
          ->type_name("SECONDS")
          ->check(SecondsUpTo(86400));
    }
    if (text.command == Command::kStatus) {
      command
          ->add_option(
              "--wait", raw.wait,
              "Wait until the cluster is healthy and all replicas are complete, at most this "
              "time, 0.1 to 86400 seconds; unmet conditions are printed on stderr")
          ->type_name("SECONDS")
          ->check(SecondsUpTo(86400));
    }
    if (text.command == Command::kToken) {
      AddTokenActions(command, &raw.token, &token_actions);
      for (CLI::App* action : token_actions) AddCommon(action, &raw);
    }
    if (text.command == Command::kPartition) {
      repairs.push_back(
          command->add_subcommand("list", "List partitions with primary, followers and learners"));
    }
    if (const auto repair = RepairOf(text.command); repair != RepairOptions::Action::kNone) {
      repairs.push_back(AddRepair(repair, command, &raw.repair));
    }
    if (text.command == Command::kTable) {
      for (CLI::App* action : AddTableActions(command, &raw.table)) AddCommon(action, &raw);
      AddOptionReference(command, &raw);
    }
    if (text.command == Command::kMigrate) AddMigrate(command, &raw.move);
    if (text.command == Command::kDrain) AddDrain(command, &raw.move);
    if (text.command == Command::kRebalance) AddRebalance(command, &raw.rebalance);
    if (text.command == Command::kRollingRestart) AddRollingRestart(command, &raw.restart);
    if (text.command == Command::kLimits)
      AddLimitOptions(command, &raw.job, &raw.memory, &raw.limits);
    if (text.command == Command::kScaleHint) AddScaleOptions(command, &raw.scale);
    if (text.command == Command::kMoveLeader) AddMoveLeader(command, &raw.successor);
  }
  for (CLI::App* action : repairs) AddCommon(action, &raw);
  CheckNumbers(&app);
  RefuseEmptyValues(&app, {"--note"});
  try {
    ParseArguments(&app, argc, argv);
    if (app.get_subcommands().empty()) throw CLI::RequiredError("command");
  } catch (const CLI::CallForHelp&) {
    // Help of the named command, if any.
    return Ended(kExitOk, app.help());
  } catch (const CLI::CallForVersion&) {
    return Ended(kExitOk, absl::StrCat(kVersionText, "\n"));
  } catch (const CLI::ParseError& error) {
    return Wrong(Printable(UsageError(app, error)), app);
  }
  Parsed parsed;
  for (size_t i = 0; i < commands.size(); ++i) {
    if (commands[i]->parsed()) parsed.options.command = kCommands[i].command;
  }
  // Cluster options do not matter to a command that calls no cluster.
  const bool no_cluster =
      raw.option_reference || MovesState(raw.coordinator) ||
      (parsed.options.command == Command::kCheckpoint &&
       raw.cluster_checkpoint.action == ClusterCheckpointOptions::Action::kNone);
  if (!no_cluster) {
    if (const std::string wrong = CompleteCluster(&raw.cluster); !wrong.empty()) {
      return Wrong(wrong, app);
    }
    if (const std::string wrong = CompleteTls(&raw.tls); !wrong.empty()) return Wrong(wrong, app);
  }
  if (const std::string wrong = WrongScaleOptions(raw.scale); !wrong.empty()) {
    return Wrong(wrong, app);
  }
  if (const char* file = std::getenv(kTokenVariable); raw.token_file.empty() && file != nullptr) {
    raw.token_file = file;
  }
  parsed.options.cluster = raw.cluster;
  parsed.options.tls = raw.tls;
  parsed.options.token_file = raw.token_file;
  parsed.options.token = raw.token;
  parsed.options.coordinator = raw.coordinator;
  parsed.options.checkpoint = raw.checkpoint;
  parsed.options.cluster_checkpoint = raw.cluster_checkpoint;
  parsed.options.repair = raw.repair;
  parsed.options.move = raw.move;
  parsed.options.rebalance = raw.rebalance;
  parsed.options.restart = raw.restart;
  parsed.options.table = raw.table;
  for (size_t i = 0; i < token_actions.size(); ++i) {
    if (token_actions[i]->parsed()) {
      parsed.options.token.action = static_cast<TokenOptions::Action>(i);
    }
  }
  parsed.options.timeout = absl::Seconds(raw.timeout);
  if (raw.wait > 0) parsed.options.wait = absl::Seconds(raw.wait);
  if (raw.watch > 0) parsed.options.watch = absl::Seconds(raw.watch);
  parsed.options.json = raw.json;
  parsed.options.option_reference = raw.option_reference;
  parsed.options.markdown = raw.markdown;
  parsed.options.job = raw.job;
  parsed.options.limits = raw.limits;
  parsed.options.scale = raw.scale;
  parsed.options.successor = raw.successor;
  if (!raw.memory.empty()) parsed.options.limits.memory_bytes = ParseByteSize(raw.memory);
  return parsed;
}

}  // namespace verbena::cli
