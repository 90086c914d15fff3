#include "server/cli/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/byte_size.h"
#include "proto/base/empty_values.h"
#include "proto/base/help_formatter.h"
#include "proto/base/number_values.h"
#include "proto/base/toml_config.h"
#include "proto/base/usage_error.h"
#include "proto/base/utf8_text.h"
#include "server/cli/etcd_options.h"
#include "server/cli/network_options.h"
#include "server/cli/validators.h"
#include "server/memory_limit.h"

namespace verbena::server {
namespace {

constexpr char kClusterGroup[] = "Coordinator";
constexpr char kCheckpointGroup[] = "Checkpoints (coordinator)";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "server";
}

CLI::Validator Transport() {
  CLI::Validator check;
  check.description("auto|shm|verbs|ofi");
  check.operation([](std::string& text) -> std::string {
    return std::string(rdma::CheckTransport(text).message());
  });
  return check;
}

CLI::Validator TermId() {
  CLI::Validator check;
  check.operation([](std::string& text) -> std::string {
    uint64_t id = 0;
    if (text.size() == 16 && absl::SimpleHexAtoi(text, &id) && id != 0) return "";
    return absl::StrCat("'", text,
                        "' is no id of a state: 16 hexadecimal digits, as the coordinator's "
                        "refusal names them");
  });
  return check;
}

void AddMemberOptions(CLI::App* app, NodeOptions* node) {
  app->add_option("--listen", node->listen,
                  "Address of the control plane (gRPC); port 0 takes a free port")
      ->check(HostPort(true))
      ->capture_default_str();
  app->add_option("--advertise", node->advertise,
                  "Address under which other processes reach this one; default: --listen")
      ->type_name("HOST[:PORT]")
      ->check(HostPort(false).description(""));
  app->add_flag("--coordinator", node->coordinator,
                "Run the cluster's coordinator too; with --shards 0 only the coordinator");
  app->add_option(
         "--join", node->join,
         "Join the cluster of the coordinator at this address, or of the one that leads of "
         "several")
      ->check(HostPorts());
  app->add_option("--shards", node->shards,
                  "Executor threads, each with a part of the cluster's partitions")
      ->check(InRange<uint32_t>(0, 1024))
      ->capture_default_str();
  app->add_option(
         "--metrics", node->metrics,
         "Serve Prometheus metrics at http://HOST:PORT/metrics, and /healthz; port 0 takes "
         "a free port; default: off")
      ->check(HostPort(true));
  app->add_option(
         "--state", node->state,
         "Directory of the coordinator's state, created if missing; one process uses it at "
         "a time. Default: in memory, lost when the coordinator ends")
      ->type_name("DIR");
  app->add_option(
         "--accept-older-state", node->accept_older_state,
         "Begin a new history from the --state of this ID, which is older than the cluster "
         "(a backup): members of the old history end, and servers start empty. The coordinator's "
         "error about that state names the ID. Only that state is accepted, and only once")
      ->type_name("ID")
      ->check(TermId());
  app->add_option("--name", node->name,
                  "Name of this server in its cluster; default: the host's name. A new process "
                  "under this name replaces the previous one, whose data is lost")
      ->type_name("NAME");
  app->add_option("--zone", node->zone,
                  "Failure domain of this server (a rack, a power supply). Replicas of a partition "
                  "are placed in different zones. Default: a zone of its own")
      ->type_name("ZONE");
  app->add_option(
         "--transport", node->transports.transport,
         "Transport of workers' data. auto: for each worker the first of shm, verbs and ofi "
         "that works. A named transport has no fallback")
      ->check(Transport())
      ->capture_default_str();
}

void AddClusterOptions(CLI::App* app, NodeOptions* node) {
  app->add_option("--partitions", node->partitions,
                  "Partitions of a new cluster, which is also its largest number of shards")
      ->check(InRange<uint32_t>(1, 65536))
      ->capture_default_str();
  app->add_option("--lease-ms", node->lease_ms,
                  "Time for which a member counts as alive without a heartbeat, in milliseconds")
      ->type_name("MS")
      ->check(InRange<uint32_t>(100, 600'000))
      ->capture_default_str();
  app->add_option(
         "--expected-servers", node->expected_servers,
         "Create no table before this number of servers has joined. Default: as in --state, else 1")
      ->check(InRange<uint32_t>(1, 10'000));
  app->add_option("--replicas", node->replicas,
                  "Replicas of each partition, on different servers: with 2, training "
                  "continues when a server dies; with 3, also when two die at once. Default: as in "
                  "--state, else 1")
      ->check(InRange<uint32_t>(1, 3));
  app->add_option("--min-replicas", node->min_replicas,
                  "Pushes to a partition with fewer replicas wait; at most --replicas. Default: as "
                  "in --state, else 1")
      ->check(InRange<uint32_t>(1, 3));
}

void AddMoveOptions(CLI::App* app, NodeOptions* node) {
  app->add_flag("--rebalance", node->rebalance,
                "Move replicas by itself from servers with more bytes than their share to others, "
                "as 'verbena rebalance --apply' does");
  app->add_option(
         "--rebalance-above", node->rebalance_above,
         "With --rebalance: begin when the servers' bytes differ by more than this part of "
         "their average at three looks in a row, in percent. Moves end at 10 percent")
      ->type_name("PERCENT")
      ->check(InRange<uint32_t>(11, 1000))
      ->capture_default_str();
  app->add_option("--rebalance-every", node->rebalance_every_s,
                  "With --rebalance: interval of the looks, in seconds")
      ->type_name("SECONDS")
      ->check(InRange<uint32_t>(1, 86'400))
      ->capture_default_str();
  app->add_option("--move-rate", node->move_rate,
                  "Limit of the bytes per second that each server sends to copy partitions for "
                  "planned moves (rebalance, migrate, drain). Replicas that are missing are copied "
                  "without a limit. 0: no limit")
      ->type_name("BYTES")
      ->transform(ByteSize(0, uint64_t{1} << 50))
      ->capture_default_str();
}

void AddCheckpointOptions(CLI::App* app, NodeOptions* node) {
  app->add_option("--checkpoint-dir", node->checkpoint_dir,
                  "Write checkpoints of every job below this directory: an absolute path that the "
                  "coordinator and all servers share. Each job has a subdirectory. Default: only "
                  "'verbena checkpoint save' writes checkpoints")
      ->type_name("DIR");
  app->add_option("--checkpoint-every", node->checkpoint_every_s,
                  "Interval in seconds; 0: not by time")
      ->type_name("SECONDS")
      ->check(InRange<uint32_t>(0, 31'536'000))
      ->capture_default_str();
  app->add_option("--checkpoint-every-steps", node->checkpoint_every_steps,
                  "Also when a job's sync tables pass a multiple of this number of steps (checked "
                  "every second); 0: not by steps")
      ->check(InRange<uint64_t>(0, uint64_t{1} << 60))
      ->capture_default_str();
  app->add_option("--checkpoint-keep-last", node->checkpoint_keep_last,
                  "Number of a job's newest checkpoints to keep. The newest checkpoint of the "
                  "highest step and the last one of the previous run stay too")
      ->check(InRange<uint32_t>(1, 1'000'000))
      ->capture_default_str();
  app->add_option("--checkpoint-keep-every", node->checkpoint_keep_every,
                  "Also keep the first checkpoint of every N steps; 0: none")
      ->check(InRange<uint64_t>(0, uint64_t{1} << 60))
      ->capture_default_str();
  app->add_option(
         "--checkpoint-full-every", node->checkpoint_full_every,
         "Every N-th checkpoint has all rows of embedding tables; the others have the rows "
         "that changed since the previous checkpoint")
      ->check(InRange<uint32_t>(1, 100))
      ->capture_default_str();
  app->add_option("--checkpoint-on-exit", node->checkpoint_on_exit_s,
                  "Longest time, in seconds, for last checkpoints on SIGTERM and SIGINT; a second "
                  "signal ends the process at once; 0: no last checkpoints")
      ->type_name("SECONDS")
      ->check(InRange<uint32_t>(0, 86'400))
      ->capture_default_str();
  app->add_option("--checkpoint-rate", node->checkpoint_rate,
                  "Limit of the bytes per second that all servers together write; 0: no limit")
      ->type_name("BYTES")
      ->transform(ByteSize(0, uint64_t{1} << 50))
      ->capture_default_str();
}

void AddShardOptions(CLI::App* app, NodeOptions* node) {
  app->add_option("--slots", node->lane.small_slots,
                  "Slots of 4 KiB in a worker's lane; at most 256 with --large-slots")
      ->check(InRange<uint32_t>(4, 248))
      ->capture_default_str();
  app->add_option("--large-slots", node->lane.large_slots,
                  "Slots of chunk size (256 KiB) in a worker's lane")
      ->check(InRange<uint32_t>(1, 128))
      ->capture_default_str();
  app->add_option("--operations", node->lane.operations,
                  "Requests that a worker may have in flight on a lane")
      ->check(
          InRange<uint32_t>(8, 65536))  // fewer leave no room for reserves (client/core/poster.cc)
      ->capture_default_str();
  app->add_option("--lane-memory-limit", node->lane_memory_limit,
                  "Bytes of lane slots of a shard; lanes get fewer slots when it runs short")
      ->type_name("BYTES")
      ->transform(ByteSize(1 << 20, uint64_t{1} << 44))
      ->capture_default_str();
  app->add_option(
         "--replica-log-limit", node->replica_log.shard_bytes,
         "Bytes of requests that a shard keeps until its replicas acknowledge them. At the "
         "limit pushes wait. During catch-up of a learner, pushes have a quarter of it "
         "and the catch-up has another quarter")
      ->type_name("BYTES")
      ->transform(ByteSize(64 << 10, uint64_t{1} << 40))
      ->capture_default_str();
  app->add_option("--replica-log-partition-limit", node->replica_log.partition_bytes,
                  "The same for one partition; at most --replica-log-limit")
      ->type_name("BYTES")
      ->transform(ByteSize(64 << 10, uint64_t{1} << 40))
      ->capture_default_str();
  app->add_option(
         "--replica-audit-ms", node->replica_audit_ms,
         "Interval, in milliseconds, at which a shard compares up to 1 MiB of its data with its "
         "followers'. A follower that differs is logged, counted and copied again; 0: never")
      ->type_name("MS")
      ->check(InRange<int64_t>(0, 3'600'000))
      ->capture_default_str();
  app->add_option(
         "--memory-limit", node->memory_limit,
         "Limit, in bytes, of parameters, optimizer state and buffers of all shards, at least 64 "
         "MiB. Beyond it new rows and tables are refused. Lanes are not included. 0: four fifths "
         "of the memory of the machine or the control group")
      ->type_name("BYTES")
      ->transform(ByteSize(0, uint64_t{1} << 50))
      ->capture_default_str();
  app->add_option("--cold-dir", node->cold_dir,
                  "Directory on a local disk for cold rows of tables with hot_bytes, created if "
                  "missing, for one process. Its contents do not outlive the process. Default: "
                  "none; such tables are refused")
      ->type_name("DIR");
  app->add_flag("--pin", node->pin, "Bind each shard's thread to a processor");
  app->add_option(
         "--spin-us", node->spin_us,
         "Longest time that a shard polls before it sleeps, in microseconds; 0: it never polls; "
         "-1: the measured cost of waking a thread")
      ->type_name("US")
      ->check(InRange<int32_t>(-1, 1000))
      ->capture_default_str();
}

void AddOptions(CLI::App* app, DaemonOptions* options) {
  NodeOptions& node = options->node;
  AddMemberOptions(app, &node);
  app->add_option("--log-level", options->log_level, "Lowest level that is logged to stderr")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app->add_option("--ready-file", options->ready_file,
                  "Write a JSON object with address, metrics address, pid and incarnation to this "
                  "file when the process serves; removed at start and end")
      ->type_name("FILE");
  app->add_flag(
      "--stop-at-stdin-end", options->stop_at_stdin_end,
      "Stop as by SIGTERM when standard input ends: with a pipe from the process that starts "
      "this one, also when that process is killed");
  app->option_defaults()->group(kClusterGroup);
  AddClusterOptions(app, &node);
  AddMoveOptions(app, &node);
  app->option_defaults()->group(kCheckpointGroup);
  AddCheckpointOptions(app, &node);
  app->option_defaults()->group("Shards");
  AddShardOptions(app, &node);
  app->option_defaults()->group("Options");
  AddEtcdOptions(app, &node.etcd, true);
  AddTlsOptions(app, &node);
  AddAccessOptions(app, &node);
  AddRdmaOptions(app, &node.transports.verbs);
  AddFabricOptions(app, &node.transports.ofi);
}

std::string CheckTls(const NodeOptions& node) {
  const TlsOptions& tls = node.tls;
  if (tls.cert.empty() != tls.key.empty()) {
    return "--tls-cert and --tls-key go together: a certificate and its key";
  }
  if (tls.cert.empty() && !tls.ca.empty()) {
    return absl::StrCat("--tls-ca ", tls.ca,
                        " needs --tls-cert and --tls-key: with TLS every server shows a "
                        "certificate");
  }
  if (!tls.cert.empty() && node.insecure) {
    return "--insecure and --tls-cert exclude each other: with TLS nothing is allowed without it";
  }
  if (!tls.cert.empty() && tls.ca.empty() && node.shards > 0) {
    return absl::StrCat("--tls-cert ", tls.cert,
                        " needs --tls-ca, which verifies the coordinator's certificate. Only "
                        "--coordinator --shards 0 works without");
  }
  return "";
}

// Empty when all is well.
std::string CheckCheckpoints(const NodeOptions& node) {
  if (node.checkpoint_dir.empty()) return "";
  if (node.checkpoint_every_s == 0 && node.checkpoint_every_steps == 0 &&
      node.checkpoint_on_exit_s == 0) {
    return "--checkpoint-dir with --checkpoint-every 0: no checkpoint would ever be made; give "
           "--checkpoint-every-steps or --checkpoint-on-exit, or a time";
  }
  if (!node.coordinator) {
    return absl::StrCat("--checkpoint-dir ", node.checkpoint_dir,
                        " needs --coordinator: only it has checkpoints made");
  }
  if (node.checkpoint_dir.front() != '/') {
    return absl::StrCat("--checkpoint-dir '", node.checkpoint_dir,
                        "'; wanted: an absolute path, as servers may have been started anywhere");
  }
  if (const std::string text = Utf8Text(node.checkpoint_dir, SIZE_MAX);
      text != node.checkpoint_dir) {
    return absl::StrCat("--checkpoint-dir '", text,
                        "'; wanted: a path in UTF-8, as requests to servers name it");
  }
  return "";
}

std::string CheckAccess(const NodeOptions& node) {
  const std::string& own = node.operator_token_file;
  if (!own.empty() && !node.coordinator) {
    return absl::StrCat("--operator-token-file ", own,
                        " needs --coordinator: only it makes tokens; another server joins with a "
                        "--token-file");
  }
  if (!own.empty() && node.insecure) {
    return "--insecure and --operator-token-file exclude each other: without TLS the tokens can be "
           "read on the network";
  }
  return "";
}

// An option that was given, on the command line or in the file, and would have no effect.
std::string CheckEffect(const CLI::App& app, const NodeOptions& node) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string& group = option->get_group();
    if (group == kClusterGroup && !node.coordinator) {
      return absl::StrCat(option->get_name(), " needs --coordinator: it decides for all servers");
    }
    if (group == kCheckpointGroup && node.checkpoint_dir.empty()) {
      return absl::StrCat(option->get_name(), " needs --checkpoint-dir");
    }
    const bool of_rebalance = option->get_name().starts_with("--rebalance-");
    if (of_rebalance && !node.rebalance) {
      return absl::StrCat(option->get_name(), " needs --rebalance");
    }
  }
  return "";
}

// Of the coordinator's place in the cluster, and of its state.
std::string CheckCoordinator(const NodeOptions& node) {
  const bool elected = !node.etcd.endpoints.empty();
  if (elected && !node.coordinator) return "--etcd needs --coordinator: only it keeps state";
  if (elected && !node.state.empty()) {
    return absl::StrCat("--etcd and --state ", node.state,
                        " exclude each other: the state is in one of them ('verbena coordinator "
                        "import-sqlite' moves it)");
  }
  if (!node.coordinator && node.join.empty()) {
    return "one of --coordinator and --join HOST:PORT is needed";
  }
  if (elected && node.shards > 0 && node.join.empty()) {
    return "--etcd with shards needs --join with the addresses of all coordinators: this server "
           "joins the "
           "one that leads. Or give --shards 0";
  }
  if (node.coordinator && !elected && !node.join.empty()) {
    return absl::StrCat(
        "--coordinator and --join ", node.join,
        " exclude each other: a coordinator joins itself (unless several are elected "
        "by --etcd)");
  }
  if (elected && node.shards == 0 && !node.join.empty()) {
    return absl::StrCat("--join ", node.join, " needs shards: a coordinator alone joins nothing");
  }
  if (!node.state.empty() && !node.coordinator) {
    return absl::StrCat("--state ", node.state, " needs --coordinator: only it keeps state");
  }
  if (!node.accept_older_state.empty() && node.state.empty() && !elected) {
    return "--accept-older-state needs --state or --etcd, where that state is";
  }
  return CheckEtcdOptions(node.etcd, node.insecure);
}

// Checks that involve several options.
std::string CheckTogether(const NodeOptions& node) {
  if (const std::string wrong = CheckCoordinator(node); !wrong.empty()) return wrong;
  if (node.shards == 0 && !node.coordinator) {
    return "--shards 0 needs --coordinator: there would be nothing to do";
  }
  if (node.replicas != 0 && node.min_replicas > node.replicas) {
    return absl::StrCat("--min-replicas ", node.min_replicas, " is not allowed; allowed: 1 to ",
                        "--replicas, which is ", node.replicas);
  }
  if (!node.cold_dir.empty() && node.shards == 0) {
    return absl::StrCat("--cold-dir ", node.cold_dir, " needs shards: only they have rows");
  }
  if (node.memory_limit != 0 && node.memory_limit < kLeastMemoryLimit) {
    return absl::StrCat("--memory-limit ", node.memory_limit, " is too little: at least ",
                        kLeastMemoryLimit, ", or 0");
  }
  if (node.lane.slots() > 256) {
    return absl::StrCat("--slots ", node.lane.small_slots, " and --large-slots ",
                        node.lane.large_slots, " make ", node.lane.slots(),
                        " slots; a lane has at most 256");
  }
  if (const std::string wrong = CheckAccess(node); !wrong.empty()) return wrong;
  if (const std::string wrong = CheckCheckpoints(node); !wrong.empty()) return wrong;
  for (const absl::Status& rails : {rdma::VerbsRails(node.transports.verbs).status(),
                                    rdma::OfiRails(node.transports.ofi).status()}) {
    if (!rails.ok()) return std::string(rails.message());
  }
  return CheckTls(node);
}

}  // namespace

ParsedOptions ParseCommandLine(int argc, const char* const* argv) {
  ParsedOptions result;
  CLI::App app("verbenad: a server of a Verbena cluster, and its coordinator", "verbenad");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", absl::StrCat("verbenad ", kVersion));
  AddOptions(&app, &result.options);
  app.set_config("--config", "",
                 "Read options from this TOML file: the same names without the dashes. Options of "
                 "the command line take precedence")
      ->type_name("FILE");
  auto toml = std::make_shared<TomlConfig>(&app);
  app.config_formatter(toml);
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.get_option("--help")->configurable(false);
  app.get_option("--version")->configurable(false);
  app.get_option("--config")->configurable(false);
  CheckNumbers(&app);
  RefuseEmptyValues(&app, {"--zone"});  // of which the empty one is the default
  app.footer(
      "BYTES may have a unit: K, M, G, T and KiB to PiB are powers of 1024, KB to TB of 1000.\n"
      "An address beyond loopback needs TLS or --insecure: see docs/security.md. SIGTERM and "
      "SIGINT end\nthe process. Exit status: 0 ended by a signal, 1 failed, 2 wrong usage.");
  try {
    ParseArguments(&app, argc, argv);
  } catch (const CLI::CallForHelp&) {
    result.exit_code = 0;
    result.message = app.help();
    return result;
  } catch (const CLI::CallForVersion&) {
    result.exit_code = 0;
    result.message = absl::StrCat("verbenad ", kVersion, "\n");
    return result;
  } catch (const CLI::ParseError& error) {
    result.exit_code = kUsageError;
    result.message =
        absl::StrCat("verbenad: ", toml->WithPlace(UsageError(app, error)), "\n", UsageHint(app));
    return result;
  }
  if (result.options.node.name.empty()) result.options.node.name = HostName();
  std::string wrong = CheckTogether(result.options.node);
  if (wrong.empty()) wrong = CheckEffect(app, result.options.node);
  if (!wrong.empty()) {
    result.exit_code = kUsageError;
    result.message = absl::StrCat("verbenad: ", wrong, "\n", UsageHint(app));
  }
  return result;
}

}  // namespace verbena::server
