// verbena: shows an operator the state of a Verbena cluster, and its checkpoints on disk.
#include <grpc/support/log.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/json.h"
#include "proto/base/process_start.h"
#include "proto/base/threads.h"
#include "proto/control/grpc_control_channel.h"
#include "proto/security/tls_files.h"
#include "server/cli/verbena/cluster_reader.h"
#include "server/cli/verbena/command_line.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/health.h"
#include "server/cli/verbena/json_report.h"
#include "server/cli/verbena/move_leader.h"
#include "server/cli/verbena/option_reference.h"
#include "server/cli/verbena/partition_report.h"
#include "server/cli/verbena/repair_command.h"
#include "server/cli/verbena/scale_hint.h"
#include "server/cli/verbena/shard_load.h"
#include "server/cli/verbena/text_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

// With --wait: less time is not worth another read of the state.
constexpr absl::Duration kShortestRead = absl::Milliseconds(20);

// Prints whole lines and flushes, also to a pipe. False: the reader is gone, or the disk is full.
bool Print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

// A reader that has seen enough (`verbena shards | head -1`) is no failure and worth no word.
int AfterFailedPrint(int status) {
  if (errno == EPIPE) return status;
  std::fprintf(stderr, "verbena: cannot write the output: %s\n", std::strerror(errno));
  return kExitWrong;
}

// Call before any thread starts, so that all of them inherit the mask and only the descriptor
// reports a signal. -1: signals keep their usual effect.
int SignalDescriptor() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // The terminal is gone; a program under nohup continues.
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&signals, SIGHUP);
  }
  const int fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd >= 0) pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return fd;
}

// 128 + the signal that came.
int EndedBySignal(int signal_fd) {
  signalfd_siginfo info = {};
  const ssize_t size = read(signal_fd, &info, sizeof info);
  return 128 + (size == sizeof info ? static_cast<int>(info.ssi_signo) : SIGINT);
}

// A stopped process accepts connections: a call that waits for it must wait as long as --timeout.
// Where there are several coordinators, another one may answer.
absl::Duration LongestAttempt(const Options& options) {
  const bool several = options.cluster.find(',') != std::string::npos;
  return several ? std::min(options.timeout / 4, absl::Seconds(2))
                 : options.timeout + absl::Seconds(1);
}

class Program {
 public:
  Program(const Options& options, std::shared_ptr<TlsFiles> tls, std::shared_ptr<TokenFile> token,
          int signal_fd)
      : options_(options),
        signal_fd_(signal_fd),
        channel_(std::move(tls), std::move(token), LongestAttempt(options_)),
        coordinator_{&channel_, options.cluster, options.timeout, signal_fd},
        reader_(coordinator_) {}

  int Run() {
    if (options_.command == Command::kToken) return RunToken();
    if (options_.command == Command::kCoordinator) return RunList();
    if (options_.command == Command::kMoveLeader) return RunMoveLeader();
    if (options_.command == Command::kLimits) return Limits();
    if (options_.move.action != MoveOptions::Action::kNone ||
        options_.command == Command::kRebalance) {
      return Move();
    }
    if (options_.command == Command::kRollingRestart) return Restart();
    if (options_.command == Command::kCheckpoint) return ClusterCheckpoint();
    if (!options_.table.table.empty()) return RunTable();
    if (options_.repair.action != RepairOptions::Action::kNone) return Repair();
    absl::StatusOr<ClusterState> state =
        options_.wait ? WaitSettled() : reader_.Read(options_.command != Command::kJobs);
    if (!state.ok()) return Failed(state.status());
    if (options_.command == Command::kScaleHint) return ScaleHint(*state);
    if (options_.watch) return Watch(std::move(*state));
    const int status = StatusOf(*state);
    return Print(Report(*state)) ? status : AfterFailedPrint(status);
  }

 private:
  int RunToken() const {
    absl::StatusOr<TokenReport> report =
        RunTokenCommand(options_.token, options_.json, coordinator_);
    if (!report.ok()) return Failed(report.status());
    std::fputs(report->err.c_str(), stderr);
    return Print(report->out) ? kExitOk : AfterFailedPrint(kExitWrong);
  }

  int Move() {
    const absl::StatusOr<MoveReport> report =
        options_.command == Command::kRebalance
            ? RunRebalance(options_.rebalance, options_.json, coordinator_, &reader_)
            : RunMove(options_.move, options_.json, coordinator_, &reader_);
    if (!report.ok()) return Failed(report.status());
    std::fputs(report->err.c_str(), stderr);
    const int status = report->done ? kExitOk : kExitWrong;
    return Print(report->out) ? status : AfterFailedPrint(status);
  }

  int Restart() {
    const absl::StatusOr<size_t> restarted =
        RunRollingRestart(options_.restart, coordinator_, &reader_);
    if (!restarted.ok()) return Failed(restarted.status());
    JsonWriter json;
    json.Add("restarted", static_cast<uint64_t>(*restarted));
    return Print(options_.json ? json.ToString() + "\n" : "") ? kExitOk : AfterFailedPrint(kExitOk);
  }

  int RunList() const {
    const absl::StatusOr<CoordinatorReport> report = ListCoordinators(options_.json, coordinator_);
    if (!report.ok()) return Failed(report.status());
    const int status = report->leads ? kExitOk : kExitWrong;
    return Print(report->out) ? status : AfterFailedPrint(status);
  }

  int RunMoveLeader() const {
    const absl::StatusOr<MovedLeader> report =
        MoveLeader(options_.successor, options_.json, coordinator_);
    if (!report.ok()) return Failed(report.status());
    std::fputs(report->err.c_str(), stderr);
    return Print(report->out) ? kExitOk : AfterFailedPrint(kExitOk);
  }

  int RunTable() const {
    const absl::StatusOr<v1::Table> table = ServedTable(coordinator_, options_.table.table);
    if (!table.ok()) return Failed(table.status());
    absl::StatusOr<TableReport> report = options_.table.run(
        {coordinator_, options_.tls, options_.token_file, options_.json}, *table);
    if (!report.ok()) return FailedSince(report.status());
    std::fputs(report->err.c_str(), stderr);
    return Print(report->out) ? kExitOk : AfterFailedPrint(kExitWrong);
  }

  int ClusterCheckpoint() const {
    const absl::StatusOr<std::string> out =
        RunClusterCheckpoint(options_.cluster_checkpoint, options_.json, coordinator_);
    if (Unreached(out.status())) {
      // It may be a server that was not reached.
      const auto view =
          CallAndWait<v1::GetViewResponse>(coordinator_, "GetView", v1::GetViewRequest());
      if (!view.ok()) return Failed(view.status());
    }
    if (!out.ok()) return FailedSince(out.status());
    return Print(*out) ? kExitOk : AfterFailedPrint(kExitWrong);
  }

  int Repair() {
    const absl::StatusOr<ClusterState> state = reader_.Read(/*servers=*/false);
    if (!state.ok()) return Failed(state.status());
    if (const absl::Status target = CheckTarget(options_.repair, *state); !target.ok()) {
      return Failed(target);
    }
    if (!options_.repair.yes) {
      const absl::Status agreed = Confirm(Consequences(options_.repair, *state), signal_fd_);
      if (absl::IsCancelled(agreed)) return Failed(agreed);
      if (!agreed.ok()) {
        const std::string message(agreed.message());
        std::fprintf(stderr, "verbena: %s\n", message.c_str());
        return absl::IsAborted(agreed) ? kExitWrong : kExitUsage;
      }
    }
    const absl::StatusOr<RepairReport> report =
        RunRepair(options_.repair, options_.json, *state, coordinator_);
    if (!report.ok()) return Failed(report.status());
    std::fputs(report->err.c_str(), stderr);
    return Print(report->out) ? kExitOk : AfterFailedPrint(kExitWrong);
  }

  std::string Report(const ClusterState& state) const {
    const bool json = options_.json;
    switch (options_.command) {
      case Command::kStatus:
        return json ? StatusJson(state) + "\n" : StatusText(state);
      case Command::kTables:
        return json ? TablesJson(state) + "\n" : TablesText(state);
      case Command::kJobs:
        return json ? JobsJson(state) + "\n" : JobsText(state);
      case Command::kLimits:
        return json ? LimitsJson(state, options_.job) + "\n" : LimitsText(state, options_.job);
      case Command::kWorkers:
        return json ? WorkersJson(state) + "\n" : WorkersText(state);
      case Command::kShards: {
        const std::vector<ShardLoad> loads = ShardLoads(state, nullptr);
        return json ? ShardsJson(state, loads, std::nullopt) + "\n" : ShardsText(state, loads);
      }
      case Command::kPartition:
        return json ? PartitionsJson(state) + "\n" : PartitionsText(state);
      case Command::kScaleHint:
      case Command::kServer:
      case Command::kMigrate:
      case Command::kDrain:
      case Command::kRebalance:
      case Command::kRollingRestart:
      case Command::kJob:
      case Command::kTable:
      case Command::kToken:
      case Command::kCoordinator:
      case Command::kMoveLeader:
      case Command::kCheckpoint:
        break;  // is no report
    }
    return "";
  }

  // The state at the end of the wait, settled or not. A coordinator that restarts meanwhile is
  // waited for like a server.
  absl::StatusOr<ClusterState> WaitSettled() {
    const absl::Time end = absl::Now() + *options_.wait;
    reader_.set_end(end);
    absl::StatusOr<ClusterState> last = absl::UnavailableError("not read yet");
    std::string printed;
    while (true) {
      const bool in_full = end - absl::Now() >= options_.timeout;
      absl::StatusOr<ClusterState> state = reader_.Read(true);
      const bool away =
          absl::IsUnavailable(state.status()) || absl::IsDeadlineExceeded(state.status());
      if (state.ok() ? Settled(*state) : !away) return state;
      // The end of the wait may have cut the read short.
      if (state.ok() || in_full || !last.ok()) last = std::move(state);
      const absl::Duration left = end - absl::Now();
      if (left <= kShortestRead) {
        std::fprintf(stderr, "verbena: the cluster did not become healthy within %s\n",
                     absl::FormatDuration(*options_.wait).c_str());
        return last;
      }
      const std::string waits_for =
          last.ok() ? Obstacle(*last) : std::string(last.status().message());
      if (waits_for != printed) std::fprintf(stderr, "verbena: waiting: %s\n", waits_for.c_str());
      printed = waits_for;
      // The other half is for the next read.
      const absl::Duration pause = std::min(absl::Milliseconds(500), left / 2);
      if (const absl::Status slept = reader_.Sleep(pause); !slept.ok()) return slept;
    }
  }

  int StatusOf(const ClusterState& state) const {
    if (options_.wait) return Settled(state) ? kExitOk : kExitWrong;
    if (options_.command == Command::kStatus) return Problems(state).empty() ? kExitOk : kExitWrong;
    if (options_.command == Command::kPartition) return kExitOk;
    // Servers have to answer only for rows of embedding tables.
    if (options_.command == Command::kTables && !HasRows(state)) return kExitOk;
    return Unanswered(state) == 0 ? kExitOk : kExitWrong;
  }

  // Options that are not given keep their values. So the view is read first, and again afterwards
  // for the values in effect.
  int Limits() {
    absl::StatusOr<ClusterState> state = reader_.Read(!options_.limits.any());
    if (!state.ok()) return Failed(state.status());
    if (!options_.limits.any() && FindJob(*state, options_.job) == nullptr) {
      const std::string job = Printable(options_.job);
      std::fprintf(stderr, "verbena: there is no job '%s' yet, and it has no limits\n",
                   job.c_str());
      return kExitWrong;
    }
    if (options_.limits.any()) {
      const v1::JobLimits before = LimitsOf(*state, options_.job);
      v1::SetJobLimitsRequest request;
      request.set_request_id(NewRequestId());
      request.set_job(options_.job);
      *request.mutable_limits() = Changed(before, options_.limits);
      const absl::Status set =
          ChangeAndWait<v1::SetJobLimitsResponse>(coordinator_, "SetJobLimits", request).status();
      if (!set.ok()) return Failed(set);
      state = reader_.Read(true);
      if (!state.ok()) return Failed(state.status());
    }
    const int status = StatusOf(*state);
    return Print(Report(*state)) ? status : AfterFailedPrint(status);
  }

  std::string RatesReport(const ClusterState& now, const ClusterState& before) const {
    const std::vector<ShardLoad> loads = ShardLoads(now, &before);
    const double seconds = now.read_at - before.read_at;
    if (options_.json) return ShardsJson(now, loads, seconds) + "\n";
    const std::string when =
        absl::StrCat(absl::FormatTime("%H:%M:%S", now.time, absl::LocalTimeZone()), ", over ",
                     Fixed(seconds, 1), " s");
    return RatesText(now, loads, when) + "\n";
  }

  int ScaleHint(const ClusterState& before) {
    if (const absl::Status slept = reader_.Sleep(options_.scale.interval); !slept.ok()) {
      return Failed(slept);
    }
    const absl::StatusOr<ClusterState> now = reader_.Read(true);
    if (!now.ok()) return Failed(now.status());
    const int status = StatusOf(*now);
    const std::string report = options_.json ? ScaleHintJson(*now, before, options_.scale) + "\n"
                                             : ScaleHintText(*now, before, options_.scale);
    return Print(report) ? status : AfterFailedPrint(status);
  }

  // Data continue to flow without the coordinator, so the rates are still valid.
  int Watch(ClusterState before) {
    double next = before.read_at;
    while (true) {
      // Ticks keep their distance however long the answers take; missed ones are left out.
      next = std::max(next + absl::ToDoubleSeconds(*options_.watch), before.read_at);
      if (!reader_.Sleep(absl::Seconds(next - before.read_at)).ok()) return kExitOk;
      absl::StatusOr<ClusterState> now = reader_.Read(true, &before);
      if (!now.ok()) return kExitOk;  // only an interrupt is an error here
      if (!Print(RatesReport(*now, before))) return AfterFailedPrint(kExitOk);
      before = std::move(*now);
    }
  }

  // After any other error the coordinator has answered: it refused.
  static bool Unreached(const absl::Status& status) {
    return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
           absl::IsUnauthenticated(status) || absl::IsUnimplemented(status);
  }

  // After the coordinator has answered: whatever its code, this is no error of reaching it.
  int FailedSince(const absl::Status& status) const {
    if (absl::IsCancelled(status)) return EndedBySignal(signal_fd_);
    std::fprintf(stderr, "verbena: %s\n", Printable(std::string(status.message())).c_str());
    return kExitWrong;
  }

  int Failed(const absl::Status& status) const {
    if (absl::IsCancelled(status)) return EndedBySignal(signal_fd_);
    const std::string message(status.message());
    std::fprintf(stderr, "verbena: %s\n", message.c_str());
    return Unreached(status) ? kExitUnreachable : kExitWrong;
  }

  const Options options_;
  const int signal_fd_;
  GrpcControlChannel channel_;
  const Coordinator coordinator_;
  ClusterReader reader_;
};

// Calls no cluster, and does not need the setup of main().
int RunCheckpointCommand(const Options& options) {
  const int signal_fd = SignalDescriptor();
  const absl::StatusOr<CheckpointReport> report =
      RunCheckpoint(options.checkpoint, options.json, signal_fd);
  if (absl::IsCancelled(report.status())) return EndedBySignal(signal_fd);
  if (!report.ok()) {
    const std::string message = Printable(std::string(report.status().message()));
    std::fprintf(stderr, "verbena: %s\n", message.c_str());
    return kExitWrong;
  }
  std::fputs(report->err.c_str(), stderr);
  const int status = report->wrong ? kExitWrong : kExitOk;
  return Print(report->out) ? status : AfterFailedPrint(status);
}

// Calls no coordinator.
int RunMoveState(const Options& options) {
  const absl::StatusOr<CoordinatorReport> report = MoveState(options.coordinator, options.json);
  if (!report.ok()) {
    std::fprintf(stderr, "verbena: %s\n", std::string(report.status().message()).c_str());
    return kExitWrong;
  }
  std::fputs(report->err.c_str(), stderr);
  return Print(report->out) ? kExitOk : AfterFailedPrint(kExitOk);
}

int PrintOptionReference(const Options& options) {
  const std::string text = options.markdown ? OptionReferenceMarkdown()
                           : options.json   ? OptionReferenceJson()
                                            : OptionReferenceText();
  return Print(text) ? kExitOk : AfterFailedPrint(kExitOk);
}

int Main(int argc, char** argv) {
  const Parsed parsed = ParseCommandLine(argc, argv);
  if (parsed.exit_status) {
    if (*parsed.exit_status == kExitOk) {
      return Print(parsed.message) ? kExitOk : AfterFailedPrint(kExitOk);
    }
    std::fputs(parsed.message.c_str(), stderr);
    return *parsed.exit_status;
  }
  if (parsed.options.option_reference) return PrintOptionReference(parsed.options);
  if (parsed.options.command == Command::kCheckpoint &&
      parsed.options.cluster_checkpoint.action == ClusterCheckpointOptions::Action::kNone) {
    return RunCheckpointCommand(parsed.options);
  }
  if (const absl::Status room = CheckGrpcThreadRoom(1, "verbena"); !room.ok()) {
    std::fprintf(stderr, "verbena: %s\n", std::string(room.message()).c_str());
    return kExitWrong;
  }
  // The call's status has gRPC's reason.
  gpr_set_log_function([](gpr_log_func_args*) {});
  if (MovesState(parsed.options.coordinator)) return RunMoveState(parsed.options);
  absl::StatusOr<std::shared_ptr<TlsFiles>> tls = TlsFiles::Open(parsed.options.tls);
  if (!tls.ok()) {
    const std::string message(tls.status().message());
    std::fprintf(stderr, "verbena: %s\n", message.c_str());
    return kExitUsage;
  }
  absl::StatusOr<std::shared_ptr<TokenFile>> token = TokenFile::Open(parsed.options.token_file);
  if (!token.ok()) {
    const std::string message(token.status().message());
    std::fprintf(stderr, "verbena: %s\n", message.c_str());
    return kExitUsage;
  }
  const int signal_fd = SignalDescriptor();
  return Program(parsed.options, *std::move(tls), *std::move(token), signal_fd).Run();
}

}  // namespace
}  // namespace verbena::cli

int main(int argc, char** argv) {
  verbena::PrepareProcess();
  return verbena::cli::Main(argc, argv);
}
