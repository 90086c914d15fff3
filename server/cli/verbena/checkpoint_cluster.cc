#include "server/cli/verbena/checkpoint_cluster.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/byte_size.h"
#include "proto/base/json.h"
#include "proto/control/view_tables.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/restore_task.h"
#include "server/cli/validators.h"
#include "server/cli/verbena/limits.h"
#include "server/cli/verbena/newest_checkpoint.h"
#include "server/cli/verbena/repair_command.h"
#include "server/cli/verbena/text_table.h"
#include "server/nanoseconds.h"

namespace verbena::cli {
namespace {

using server::kNanosPerMilli;
using ClusterAction = ClusterCheckpointOptions::Action;

constexpr int64_t kSayNanos = 500 * kNanosPerMilli;
constexpr uint64_t kMostBytes = uint64_t{1} << 62;
// Where standard error is no terminal: a line for each.
constexpr int64_t kSayWaitNanos = 2000 * kNanosPerMilli;

std::string Now() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
}

// "verbena on host-a, process 4711".
std::string ThisProgram() {
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return absl::StrCat("verbena on ", Printable(host), ", process ", getpid());
}

// "12.5 MiB of 100.0 MiB, 3 s left".
std::string Amount(uint64_t done, uint64_t all, double seconds) {
  std::string text = Bytes(done);
  if (done == 0 || done >= all) return text;
  const double part = static_cast<double>(done) / static_cast<double>(all);
  absl::StrAppendFormat(&text, " of %s, %.0f s left", Bytes(all), seconds / part - seconds);
  return text;
}

// A line of progress of running work.
struct Shown {
  std::string text;
  bool waits = false;  // for something else to end; shown also where there is no terminal
};

// Runs a CheckpointTask or RestoreTask to its end, and shows its progress on standard error.
template <typename Machine>
absl::Status RunToEnd(Machine* machine, const Clock& clock, const Coordinator& coordinator,
                      const std::function<Shown(double seconds)>& describe) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const int64_t began = clock.NowNanos();
  int64_t say_ns = began + kSayNanos, say_wait_ns = began;
  bool interrupted = false;
  while (!machine->done()) {
    const bool worked = coordinator.channel->RunOnce();
    if (machine->RunOnce() || worked || machine->done()) continue;
    const int64_t now = clock.NowNanos();
    if (say_ns <= now) {
      const Shown shown = describe(static_cast<double>(now - began) / 1e9);
      if (terminal) {
        std::fprintf(stderr, "\r\x1b[K%s", shown.text.c_str());
      } else if (shown.waits && say_wait_ns <= now) {
        std::fprintf(stderr, "verbena: %s\n", shown.text.c_str());
        say_wait_ns = now + kSayWaitNanos;
      }
      say_ns = now + kSayNanos;
    }
    const int64_t next = std::min(machine->NextTimerNanos(), say_ns);
    pollfd fds[2] = {{coordinator.channel->wake_fd(), POLLIN, 0},
                     {interrupted ? -1 : coordinator.interrupt_fd, POLLIN, 0}};
    poll(fds, 2, static_cast<int>(std::max<int64_t>(0, (next - now) / kNanosPerMilli + 1)));
    if (fds[1].revents != 0) {
      interrupted = true;
      machine->Cancel();
    }
  }
  if (terminal) std::fputs("\r\x1b[K", stderr);
  return machine->status();
}

absl::StatusOr<std::string> Save(const ClusterCheckpointOptions& options, const std::string& root,
                                 bool json, const Coordinator& coordinator) {
  const MonotonicClock clock;
  server::CheckpointTaskOptions checkpoint_task_options;
  checkpoint_task_options.coordinator = coordinator.address;
  checkpoint_task_options.root = root;
  checkpoint_task_options.job = options.job;
  checkpoint_task_options.tables = options.tables;
  checkpoint_task_options.memory_bytes = options.memory_bytes;
  checkpoint_task_options.bytes_per_second = options.bytes_per_second;
  checkpoint_task_options.full_every = options.full_every;
  checkpoint_task_options.written_by = "verbena " VERBENA_VERSION;
  checkpoint_task_options.time = Now;
  server::CheckpointTask saver(std::move(checkpoint_task_options), &clock, coordinator.channel,
                               checkpoint::PosixDisk());
  const int64_t began = clock.NowNanos();
  const absl::Status status = RunToEnd(&saver, clock, coordinator, [&](double seconds) {
    const server::CheckpointTaskProgress progress = saver.progress();
    if (!progress.failure.empty()) {
      return Shown{absl::StrFormat("trying again in %.1f s: %s",
                                   static_cast<double>(progress.pause_nanos) / 1e9,
                                   Printable(progress.failure)),
                   true};
    }
    std::string text = absl::StrFormat("%s, step %d: ", progress.doing, progress.step);
    if (progress.waiting > 0) {
      absl::StrAppendFormat(&text, "%d partitions are not there yet; workers of job '%s' end it",
                            progress.waiting, Printable(progress.job));
      return Shown{text, true};
    }
    return Shown{text + Amount(progress.written_bytes, progress.total_bytes, seconds)};
  });
  if (!status.ok()) return status;
  const double seconds = static_cast<double>(clock.NowNanos() - began) / 1e9;
  uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : saver.manifest().files()) bytes += file.bytes();
  std::vector<std::string> removed;
  if (options.retention.keep_last > 0) {
    auto directory = checkpoint::CheckpointDirectory::Open(checkpoint::PosixDisk(), root);
    if (!directory.ok()) return directory.status();
    checkpoint::Retention retention = options.retention;
    retention.job = saver.manifest().job();
    retention.keep_former_runs = true;
    auto pruned = (*directory)->Prune(retention);
    if (!pruned.ok()) return pruned.status();
    removed = *std::move(pruned);
  }
  const std::string path = checkpoint::Join(root, saver.name());
  if (!json) {
    std::string text = absl::StrFormat(
        "saved %s: step %d, %s in %.1f s, %s/s\n", Printable(path), saver.manifest().step(),
        Bytes(bytes), seconds, Bytes(static_cast<uint64_t>(static_cast<double>(bytes) / seconds)));
    if (!removed.empty()) absl::StrAppend(&text, "removed ", absl::StrJoin(removed, ", "), "\n");
    return text;
  }
  JsonArray names;
  for (const std::string& name : removed) names.Add(name);
  JsonWriter out;
  out.Add("checkpoint", path);
  out.Add("step", saver.manifest().step());
  out.Add("bytes", bytes);
  out.Add("seconds", seconds);
  out.Add("removed", names);
  return out.ToString() + "\n";
}

// Asks where more is lost than the option names: a worker's calls on a replaced table fail, and its
// training is lost; a table of another job than `job` may be another one of the same name. Returns
// whether there are such workers. Errors as Confirm() and CallAndWait().
absl::StatusOr<bool> AgreeToReplace(const std::vector<std::string>& names, const std::string& job,
                                    const Coordinator& coordinator) {
  const absl::StatusOr<v1::GetViewResponse> response =
      CallAndWait<v1::GetViewResponse>(coordinator, "GetView", v1::GetViewRequest());
  if (!response.ok()) return response.status();
  std::vector<const v1::Table*> replaced;
  for (const std::string& name : names) {
    const v1::Table* served = FindTableNamed(name, /*restoring=*/false, response->view());
    if (served != nullptr) replaced.push_back(served);
  }
  const std::string users = UsersText(replaced, response->view());
  std::vector<std::string> losses;
  if (!users.empty()) {
    losses.push_back(absl::StrCat(users,
                                  "; end these workers first, or the restore replaces the "
                                  "parameters that they train"));
  }
  for (const v1::Table* table : replaced) {
    if (table->spec().job() == job) continue;
    losses.push_back(absl::StrCat("table '", Printable(table->spec().name()), "' of job '",
                                  Printable(table->spec().job()),
                                  "' is replaced by a table of job '", Printable(job), "'"));
  }
  if (losses.empty()) return false;
  const absl::Status agreed = Confirm(absl::StrJoin(losses, "; "), coordinator.interrupt_fd);
  if (!agreed.ok()) return agreed;
  return !users.empty();
}

absl::StatusOr<std::string> Restore(const ClusterCheckpointOptions& options,
                                    const std::string& given, bool json,
                                    const Coordinator& coordinator) {
  const MonotonicClock clock;
  server::RestoreTaskOptions restorer_options;
  restorer_options.coordinator = coordinator.address;
  restorer_options.path = given;
  checkpoint::Disk* const disk = checkpoint::PosixDisk();
  constexpr char kCommand[] = "verbena checkpoint restore";
  if (!IsOneCheckpoint(given)) {
    const auto newest = ChooseCheckpoint(given, kCommand);
    if (!newest.ok()) return newest.status();
    // The newest may belong to another job.
    const auto all = checkpoint::ListCheckpoints(disk, given);
    if (!all.ok()) return all.status();
    if (const std::vector<std::string> jobs = checkpoint::JobsOf(*all); jobs.size() > 1) {
      return absl::FailedPreconditionError(
          absl::StrCat(Printable(given), " has checkpoints of ", jobs.size(), " jobs (",
                       Printable(absl::StrJoin(jobs, ", ")),
                       "); name the checkpoint to restore, 'verbena checkpoint list' has them"));
    }
    restorer_options.path = *newest;
  }
  restorer_options.job = options.job;
  restorer_options.tables = options.tables;
  restorer_options.renamed = options.renamed;
  restorer_options.state = !options.parameters_only;
  restorer_options.replace = options.replace;
  restorer_options.drop_first = options.drop_first;
  restorer_options.restorer = ThisProgram();
  const std::string path = restorer_options.path;
  const auto make = [&] {
    return server::RestoreTask::Make(restorer_options, &clock, coordinator.channel, disk);
  };
  auto restorer = make();
  if (!restorer.ok()) return AdviseOnDamage(restorer.status(), path, kCommand);
  if ((options.replace || options.drop_first) && !options.yes) {
    const std::string& saved_job = (*restorer)->manifest().job();
    const absl::StatusOr<bool> used = AgreeToReplace(
        (*restorer)->tables(), options.job.empty() ? saved_job : options.job, coordinator);
    if (!used.ok()) return used.status();
    // Agreed to as it was: not to workers that come from now on.
    restorer_options.only_unused = !*used;
    restorer = make();
    if (!restorer.ok()) return AdviseOnDamage(restorer.status(), path, kCommand);
  }
  const int64_t began = clock.NowNanos();
  const absl::Status status = RunToEnd(restorer->get(), clock, coordinator, [&](double seconds) {
    const server::RestoreTaskProgress progress = (*restorer)->progress();
    return Shown{absl::StrCat(progress.doing, ": ",
                              Amount(progress.read_bytes, progress.total_bytes, seconds))};
  });
  if (absl::IsAlreadyExists(status)) {
    return absl::AlreadyExistsError(
        absl::StrCat(Said(status, coordinator.address),
                     "; --replace puts the restored table in its place, "
                     "--rename beside it"));
  }
  if (!status.ok()) return AdviseOnDamage(status, path, kCommand);
  const double seconds = static_cast<double>(clock.NowNanos() - began) / 1e9;
  const uint64_t bytes = (*restorer)->progress().total_bytes;
  const std::vector<std::string> tables = (*restorer)->tables();
  if (!json) {
    return absl::StrFormat("restored %s: step %d, %s in %.1f s; tables %s\n", Printable(path),
                           (*restorer)->manifest().step(), Bytes(bytes), seconds,
                           Printable(absl::StrJoin(tables, ", ")));
  }
  JsonArray names;
  for (const std::string& name : tables) names.Add(name);
  JsonWriter out;
  out.Add("checkpoint", path);
  out.Add("step", (*restorer)->manifest().step());
  out.Add("bytes", bytes);
  out.Add("seconds", seconds);
  out.Add("tables", names);
  return out.ToString() + "\n";
}

// ---- the command line ---------------------------------------------------------------------------

CLI::Validator RenameCheck() {
  CLI::Validator check;
  check.description("");
  check.operation([](std::string& text) -> std::string {
    const size_t equals = text.find('=');
    if (equals != 0 && equals != std::string::npos && equals + 1 < text.size()) return "";
    return absl::StrCat("'", Printable(text), "' is not allowed: TABLE=NAME");
  });
  return check;
}

void AddCheckpoint(CLI::App* app, ClusterCheckpointOptions* options) {
  app->add_option(
         "--limit-rate", options->bytes_per_second,
         "Limit of the bytes per second that all servers together write (default: no limit)")
      ->type_name("BYTES")
      ->transform(ByteSize(1, kMostBytes));
  app->add_option(
         "--memory", options->memory_bytes,
         "Memory of each shard, in bytes, for data that changes before it is written; when it is "
         "used up, training waits (default: 256MiB, and a copy of the dense tables)")
      ->type_name("BYTES")
      ->transform(ByteSize(1, kMostBytes));
  app->add_option(
         "--full-every", options->full_every,
         "Every N-th checkpoint has all rows of embedding tables; the others have the rows that "
         "changed since the previous checkpoint there; 1 to 100 (default: 1)")
      ->type_name("N")
      ->check(server::InRange<uint32_t>(1, 100).description(""));
  CLI::Option* last = app->add_option("--keep-last", options->retention.keep_last,
                                      "Then remove all but the newest N checkpoints, 1 to 1000000 "
                                      "(default: none is removed)")
                          ->type_name("N")
                          ->check(server::InRange<uint32_t>(1, 1'000'000).description(""));
  app->add_option("--keep-every", options->retention.keep_every,
                  "With --keep-last: also keep the first checkpoint of every N steps")
      ->type_name("N")
      ->check(server::InRange<uint64_t>(0, uint64_t{1} << 60).description(""))
      ->needs(last);
}

void AddRestore(CLI::App* app, ClusterCheckpointOptions* options) {
  app->add_option_function<std::vector<std::string>>(
         "--rename",
         [options](const std::vector<std::string>& pairs) {
           for (const std::string& pair : pairs) {
             const size_t equals = pair.find('=');
             options->renamed[pair.substr(0, equals)] = pair.substr(equals + 1);
           }
         },
         "Restore a table under another name; may be repeated")
      ->type_name("TABLE=NAME")
      ->allow_extra_args(false)
      ->check(RenameCheck());
  app->add_flag("--parameters-only", options->parameters_only,
                "Restore no optimizer state: it starts from its initial values");
  auto* replace =
      app->add_flag("--replace", options->replace,
                    "Replace tables of these names in one step when all data is loaded; "
                    "there must be memory for both");
  app->add_flag(
         "--drop-first", options->drop_first,
         "Drop tables of these names first, if there is no memory for both; if the restore fails, "
         "both are gone")
      ->excludes(replace);
  app->add_flag(
      "--yes", options->yes,
      "Do not ask for confirmation of --replace or --drop-first, also while workers use these "
      "tables");
}

}  // namespace

std::vector<CLI::App*> AddClusterCheckpointActions(CLI::App* command,
                                                   ClusterCheckpointOptions* options) {
  std::vector<CLI::App*> actions;
  const auto add = [&](const char* name, ClusterAction action, const char* about, const char* path,
                       const char* job) {
    CLI::App* app = command->add_subcommand(name, about);
    app->callback([options, action] { options->action = action; });
    app->add_option("PATH", options->path, path)->type_name("")->required();
    app->add_option("--job", options->job, job)
        ->type_name("JOB")
        ->check(server::NotEmpty("a job's name"));
    app->add_option("--table", options->tables, "Only this table; may be repeated (default: all)")
        ->type_name("TABLE")
        ->allow_extra_args(false);
    actions.push_back(app);
    return app;
  };
  AddCheckpoint(
      add("save", ClusterAction::kCheckpoint, "Save tables of a cluster while training continues",
          "A directory of checkpoints, which all servers can write",
          "Job of the tables (default: the only job)"),
      options);
  AddRestore(add("restore", ClusterAction::kRestore, "Restore tables into a cluster",
                 "A checkpoint, or a directory of checkpoints, of which the newest is used; all "
                 "servers read it",
                 "Job of the restored tables (default: as in the checkpoint)"),
             options);
  return actions;
}

absl::StatusOr<std::string> RunClusterCheckpoint(const ClusterCheckpointOptions& options, bool json,
                                                 const Coordinator& coordinator) {
  std::error_code error;
  std::string path = std::filesystem::absolute(options.path, error).lexically_normal().string();
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(Printable(options.path), ": ", error.message()));
  }
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return options.action == ClusterAction::kCheckpoint ? Save(options, path, json, coordinator)
                                                      : Restore(options, path, json, coordinator);
}

}  // namespace verbena::cli
