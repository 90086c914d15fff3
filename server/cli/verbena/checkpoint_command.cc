#include "server/cli/verbena/checkpoint_command.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/byte_size.h"
#include "proto/base/json.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/compact.h"
#include "server/checkpoint/files/layout.h"
#include "server/cli/validators.h"
#include "server/cli/verbena/checkpoint_progress.h"
#include "server/cli/verbena/checkpoint_report.h"
#include "server/cli/verbena/limits.h"
#include "server/cli/verbena/newest_checkpoint.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

using checkpoint::CheckpointDirectory;
using checkpoint::CheckpointReader;
using checkpoint::ExportFormat;
using checkpoint::Listed;
using checkpoint::PosixDisk;
using Action = CheckpointOptions::Action;

// To be written elsewhere. `command`: that takes one by its own path, see ChooseCheckpoint().
absl::StatusOr<CheckpointReader> OpenChosen(const std::string& path, const std::string& command) {
  const absl::StatusOr<std::string> chosen = ChooseCheckpoint(path, command);
  if (!chosen.ok()) return chosen.status();
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(PosixDisk(), *chosen);
  if (!reader.ok()) return AdviseOnDamage(reader.status(), *chosen, command);
  return reader;
}

absl::Status NoDirectoryOfCheckpoints(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is one checkpoint; name the directory that it is in"));
}

absl::StatusOr<CheckpointReport> List(const CheckpointOptions& options, bool json) {
  if (IsOneCheckpoint(options.path)) return NoDirectoryOfCheckpoints(options.path);
  const auto all = checkpoint::ListCheckpoints(PosixDisk(), options.path);
  if (!all.ok()) return all.status();
  CheckpointReport report;
  report.out = json ? CheckpointsJson(options.path, *all) : CheckpointsText(*all);
  for (const Listed& listed : *all) report.wrong |= !listed.manifest.ok();
  return report;
}

// In a directory: the newest complete one, with the newer incomplete ones.
absl::StatusOr<CheckpointReport> Inspect(const CheckpointOptions& options, bool json) {
  CheckpointReport report;
  std::string path = options.path;
  std::vector<std::string> passed;
  if (!IsOneCheckpoint(path)) {
    const auto newest = checkpoint::NewestComplete(PosixDisk(), path, &passed);
    for (const std::string& why : passed) {
      absl::StrAppend(&report.err, "verbena: passed over: ", Printable(why), "\n");
    }
    if (!newest.ok()) return newest.status();
    path = *newest;
  }
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(PosixDisk(), path);
  if (!reader.ok()) return reader.status();
  report.out = json ? CheckpointJson(*reader, passed) : CheckpointText(*reader);
  return report;
}

struct Verdict {
  std::string path;
  absl::Status status;
  uint64_t bytes = 0;
  double seconds = 0;
};

Verdict VerifyOne(const CheckpointOptions& options, const std::string& path, int signal_fd) {
  Verdict verdict{path, absl::OkStatus(), 0, 0};
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(PosixDisk(), path);
  verdict.status = reader.status();
  if (!reader.ok()) return verdict;
  Progress progress(options.progress, "verifying", reader->bytes(), signal_fd);
  verdict.status = reader->Verify(progress.Callback());
  verdict.bytes = progress.done();
  verdict.seconds = progress.seconds();
  return verdict;
}

std::string VerdictJson(const Verdict& verdict) {
  JsonWriter json;
  json.Add("checkpoint", verdict.path);
  json.Add("whole", verdict.status.ok());
  if (verdict.status.ok()) {
    json.AddNull("error");
  } else {
    json.Add("error", std::string(verdict.status.message()));
  }
  json.Add("bytes", verdict.bytes);
  json.Add("seconds", verdict.seconds);
  return json.ToString() + "\n";
}

// In a directory it is the newest, complete or not: the check must cover incomplete ones.
absl::StatusOr<CheckpointReport> Verify(const CheckpointOptions& options, bool json,
                                        int signal_fd) {
  // Not "damaged": there is nothing to be damaged.
  if (const auto entries = PosixDisk()->List(options.path); !entries.ok()) return entries.status();
  std::vector<std::string> paths = {options.path};
  const bool one = IsOneCheckpoint(options.path);
  if (one && options.all) return NoDirectoryOfCheckpoints(options.path);
  if (!one) {
    const auto all = checkpoint::ListCheckpoints(PosixDisk(), options.path);
    if (!all.ok()) return all.status();
    if (all->empty()) {
      return absl::NotFoundError(absl::StrCat(options.path, " has no checkpoints"));
    }
    paths.clear();
    for (const Listed& listed : *all) {
      if (options.all || &listed == &all->back()) {
        paths.push_back(checkpoint::Join(options.path, listed.name));
      }
    }
  }
  CheckpointReport report;
  for (const std::string& path : paths) {
    const Verdict verdict = VerifyOne(options, path, signal_fd);
    if (absl::IsCancelled(verdict.status)) return verdict.status;
    report.wrong |= !verdict.status.ok();
    if (json) {
      report.out += VerdictJson(verdict);
    } else if (verdict.status.ok()) {
      absl::StrAppend(&report.out, Printable(path), " is whole: ", Bytes(verdict.bytes),
                      " read and checked in ", Seconds(verdict.seconds), "\n");
    } else {
      absl::StrAppend(&report.out, Printable(path),
                      " is damaged: ", Printable(std::string(verdict.status.message())), "\n");
    }
  }
  return report;
}

// Only where there are checkpoints, of `job` where one is named: a wrong name must not make a
// directory, or leave a LOCK in a directory of something else.
absl::StatusOr<std::unique_ptr<CheckpointDirectory>> OpenDirectory(const std::string& path,
                                                                   const std::string& job) {
  if (IsOneCheckpoint(path)) return NoDirectoryOfCheckpoints(path);
  const auto all = checkpoint::ListCheckpoints(PosixDisk(), path);
  if (!all.ok()) return all.status();
  if (all->empty()) return absl::NotFoundError(absl::StrCat(path, " has no checkpoints"));
  const std::vector<std::string> jobs = checkpoint::JobsOf(*all);
  if (!job.empty() && std::find(jobs.begin(), jobs.end(), job) == jobs.end()) {
    return absl::NotFoundError(
        absl::StrCat(path, " has no checkpoint of job '", job, "'; it has those of ",
                     jobs.empty() ? "no job that can be read"
                                  : absl::StrCat("'", absl::StrJoin(jobs, "', '"), "'")));
  }
  return CheckpointDirectory::Open(PosixDisk(), path);
}

absl::StatusOr<CheckpointReport> Prune(const CheckpointOptions& options, bool json) {
  const auto directory = OpenDirectory(options.path, options.retention.job);
  if (!directory.ok()) return directory.status();
  const auto removed = options.dry_run ? (*directory)->WouldPrune(options.retention)
                                       : (*directory)->Prune(options.retention);
  if (!removed.ok()) return removed.status();
  const auto all = checkpoint::ListCheckpoints(PosixDisk(), options.path);
  if (!all.ok()) return all.status();
  JsonArray gone, kept;
  CheckpointReport report;
  for (const std::string& name : *removed) {
    gone.Add(name);
    absl::StrAppend(&report.out, options.dry_run ? "would remove " : "removed ", name, "\n");
  }
  size_t count = 0;
  const Listed* unread = nullptr;
  for (const Listed& listed : *all) {
    if (!listed.manifest.ok()) unread = &listed;
    if (std::find(removed->begin(), removed->end(), listed.name) != removed->end()) continue;
    kept.Add(listed.name);
    ++count;
  }
  absl::StrAppend(&report.out, count, count == 1 ? " is kept\n" : " are kept\n");
  if (unread != nullptr) {
    absl::StrAppend(&report.out, unread->name, " cannot be read, so it stays, and so do all older ",
                    "ones, on which it may be based: ",
                    Printable(std::string(unread->manifest.status().message())), "\n");
  }
  if (json) {
    JsonWriter object;
    object.Add("directory", options.path);
    object.Add("dry_run", options.dry_run);
    object.Add("removed", gone);
    object.Add("kept", kept);
    report.out = object.ToString() + "\n";
  }
  return report;
}

absl::StatusOr<CheckpointReport> CompactNewest(const CheckpointOptions& options, bool json,
                                               int signal_fd) {
  const auto directory = OpenDirectory(options.path, /*job=*/"");
  if (!directory.ok()) return directory.status();
  CheckpointReport report;
  const absl::StatusOr<CheckpointReader> reader = OpenChosen(options.path, /*command=*/"");
  if (!reader.ok()) return reader.status();
  std::string made = checkpoint::BaseName(reader->path());
  const size_t links = reader->links();
  const bool slices = checkpoint::HasSlices(*reader);
  const bool needed = links > 1 || slices;
  if (needed) {
    Progress progress(options.progress, "compacting", reader->bytes(), signal_fd);
    const absl::StatusOr<std::string> name = checkpoint::Compact(
        PosixDisk(), *reader, directory->get(), checkpoint::kDefaultFileBytes, progress.Callback());
    if (!name.ok()) return AdviseOnDamage(name.status(), reader->path(), /*command=*/"");
    made = *name;
  }
  if (json) {
    JsonWriter object;
    object.Add("directory", options.path);
    object.Add("checkpoint", made);
    object.Add("compacted", needed ? links : 0);
    report.out = object.ToString() + "\n";
  } else if (needed) {
    report.out = absl::StrCat(
        made, links > 1 ? absl::StrCat(" is ", links, " checkpoints in one") : " has whole tensors",
        "; 'verbena checkpoint prune' removes unneeded files\n");
  } else {
    report.out = absl::StrCat(made, " is a full one already\n");
  }
  return report;
}

absl::StatusOr<CheckpointReport> RunExport(const CheckpointOptions& options, bool json,
                                           int signal_fd) {
  CheckpointReport report;
  constexpr char kCommand[] = "verbena checkpoint export";
  const absl::StatusOr<CheckpointReader> reader = OpenChosen(options.path, kCommand);
  if (!reader.ok()) return reader.status();
  const auto plan = checkpoint::PlanExport(*reader, options.exported);
  if (!plan.ok()) return AdviseOnDamage(plan.status(), reader->path(), kCommand);
  uint64_t bytes = 0;
  for (const checkpoint::ExportedTensor& tensor : *plan) bytes += tensor.bytes();
  Progress progress(options.progress, "exporting", bytes, signal_fd);
  const auto done =
      checkpoint::Export(PosixDisk(), *reader, options.exported, *plan, progress.Callback());
  if (!done.ok()) return AdviseOnDamage(done.status(), reader->path(), kCommand);
  if (!json) {
    report.out =
        absl::StrCat(Printable(reader->path()), ": ", done->tensors, " tensors, ",
                     Bytes(done->bytes), ", to ", Printable(options.exported.to), " (",
                     done->files.size(), done->files.size() == 1 ? " file)\n" : " files)\n");
    return report;
  }
  JsonArray files;
  for (const std::string& file : done->files) files.Add(file);
  JsonWriter object;
  object.Add("checkpoint", reader->path());
  object.Add("to", options.exported.to);
  object.Add("files", files);
  object.Add("tensors", done->tensors);
  object.Add("bytes", done->bytes);
  object.Add("seconds", progress.seconds());
  report.out = object.ToString() + "\n";
  return report;
}

// Takes texts that `parse` finds nothing wrong with.
template <typename Parse>
CLI::Validator CheckedText(Parse parse) {
  CLI::Validator check;
  check.description("");
  check.operation([parse](std::string& text) -> std::string { return parse(text); });
  return check;
}

void AddExport(CLI::App* action, CheckpointOptions* options) {
  checkpoint::ExportOptions* exported = &options->exported;
  action
      ->add_option(
          "--to", exported->to,
          "File to write; with npy and sharded a directory. Existing files are not overwritten")
      ->type_name("PATH")
      ->required();
  static const std::map<std::string, ExportFormat> kFormats = {
      {"safetensors", ExportFormat::kSafetensors},
      {"sharded", ExportFormat::kSharded},
      {"npy", ExportFormat::kNpy}};
  action
      ->add_option_function<std::string>(
          "--format", [exported](const std::string& word) { exported->format = kFormats.at(word); },
          "safetensors: one file; sharded: files of bounded size with "
          "model.safetensors.index.json; npy: a NumPy file for each array (default: safetensors)")
      ->type_name("FORMAT")
      ->check(CheckedText([](const std::string& word) -> std::string {
        if (kFormats.contains(word)) return "";
        return absl::StrCat("'", Printable(word), "' is not allowed: safetensors, sharded, npy");
      }));
  CLI::Option* file_size =
      action
          ->add_option("--file-size", exported->file_bytes,
                       "sharded: limit of a file's size, in bytes (default: 2GiB)")
          ->type_name("BYTES")
          ->transform(ByteSize(1, uint64_t{1} << 62));
  action->callback([options, exported, file_size] {
    options->action = Action::kExport;
    if (file_size->count() > 0 && exported->format != ExportFormat::kSharded) {
      throw CLI::ValidationError("--file-size is for --format sharded");
    }
  });
  action->add_option("--table", exported->tables, "Only this table; may be repeated (default: all)")
      ->type_name("TABLE")
      ->allow_extra_args(false);
  action
      ->add_option_function<std::vector<std::string>>(
          "--rename",
          [exported](const std::vector<std::string>& pairs) {
            for (const std::string& pair : pairs) {
              const size_t equals = pair.find('=');
              exported->renamed[pair.substr(0, equals)] = pair.substr(equals + 1);
            }
          },
          "Write a table under another name; may be repeated")
      ->type_name("TABLE=NAME")
      ->allow_extra_args(false)
      ->check(CheckedText([](const std::string& text) -> std::string {
        const size_t equals = text.find('=');
        if (equals != 0 && equals != std::string::npos && equals + 1 < text.size()) return "";
        return absl::StrCat("'", Printable(text), "' is not allowed: TABLE=NAME");
      }));
  action
      ->add_option_function<std::string>(
          "--dtype",
          [exported](const std::string& word) { exported->dtype = checkpoint::ParseType(word); },
          "Type of parameters: F32, BF16, F16 or F64, rounded to the nearest (default: as saved)")
      ->type_name("DTYPE")
      ->check(CheckedText([](const std::string& word) -> std::string {
        if (word == "F32" || word == "BF16" || word == "F16" || word == "F64") return "";
        return absl::StrCat("'", Printable(word), "' is not allowed: F32, BF16, F16, F64");
      }));
  action->add_flag(
      "--optimizer", exported->optimizer,
      "Also write optimizer state, f32 copies of 16-bit parameters and counts of applies");
}

}  // namespace

std::vector<CLI::App*> AddCheckpointActions(CLI::App* command, CheckpointOptions* options) {
  command->require_subcommand(1);
  std::vector<CLI::App*> actions;
  const auto add = [&](const char* name, Action action, const char* about, const char* path) {
    CLI::App* app = command->add_subcommand(name, about);
    app->callback([options, action] { options->action = action; });
    app->add_option("PATH", options->path, path)->type_name("")->required();
    actions.push_back(app);
    return app;
  };
  const char* root = "A directory of checkpoints";
  const char* one = "A checkpoint, or a directory of checkpoints, of which the newest is used";
  add("list", Action::kList, "List complete checkpoints: step, size, tables, base", root);
  CLI::App* verify =
      add("verify", Action::kVerify, "Read every byte and compare it with its checksum", one);
  verify->add_flag("--all", options->all, "Verify every checkpoint of the directory");
  add("inspect", Action::kInspect, "Show tables and files of a checkpoint", one);
  CLI::App* prune = add("prune", Action::kPrune, "Remove old checkpoints", root);
  prune
      ->add_option("--keep-last", options->retention.keep_last,
                   "Keep the newest N checkpoints, 1 or more, and their bases")
      ->type_name("N")
      ->check(CheckedText([](const std::string& text) -> std::string {
        if (text.find_first_not_of("0123456789") == std::string::npos && text.size() < 10 &&
            text.find_first_not_of('0') != std::string::npos) {
          return "";
        }
        return absl::StrCat("'", Printable(text), "' is not allowed: 1 or more");
      }))
      ->capture_default_str();
  prune
      ->add_option("--job", options->retention.job,
                   "Remove only checkpoints of this job (default: the only job in the directory)")
      ->type_name("JOB")
      ->check(server::NotEmpty("a job's name"));
  prune
      ->add_option("--keep-every", options->retention.keep_every,
                   "Also keep the first checkpoint of every N steps; 0: none")
      ->type_name("N")
      ->check(CheckedText([](const std::string& text) -> std::string {
        if (text.find_first_not_of("0123456789") == std::string::npos && text.size() < 19)
          return "";
        return absl::StrCat("'", Printable(text), "' is not allowed: a number of steps");
      }))
      ->capture_default_str();
  prune->add_flag("--dry-run", options->dry_run,
                  "List the files that would be removed, and remove nothing");
  CLI::App* compact = add("compact", Action::kCompact,
                          "Make a full checkpoint from the newest and its bases", root);
  CLI::App* exported =
      add("export", Action::kExport, "Export a checkpoint to safetensors or NumPy files", one);
  AddExport(exported, options);
  CLI::App* imported = add(
      "import", Action::kImport,
      "Import safetensors files of other programs as a checkpoint for restore",
      "A safetensors file, an index of files (*.safetensors.index.json), or a directory with one");
  AddImport(imported, &options->imported);
  for (CLI::App* slow : {verify, compact, exported, imported}) {
    slow->add_flag("--progress", options->progress,
                   "Show progress also if stderr is not a terminal");
  }
  return actions;
}

absl::StatusOr<CheckpointReport> RunCheckpoint(const CheckpointOptions& options, bool json,
                                               int signal_fd) {
  CheckpointOptions clean = options;
  for (std::string* path : {&clean.path, &clean.exported.to, &clean.imported.options.to}) {
    while (path->size() > 1 && path->back() == '/') path->pop_back();
  }
  switch (clean.action) {
    case Action::kList:
      return List(clean, json);
    case Action::kVerify:
      return Verify(clean, json, signal_fd);
    case Action::kInspect:
      return Inspect(clean, json);
    case Action::kPrune:
      return Prune(clean, json);
    case Action::kCompact:
      return CompactNewest(clean, json, signal_fd);
    case Action::kExport:
      return RunExport(clean, json, signal_fd);
    case Action::kImport: {
      absl::StatusOr<std::string> out =
          RunImport(clean.imported, clean.path, clean.progress, json, signal_fd);
      if (!out.ok()) return out.status();
      return CheckpointReport{.out = *std::move(out), .err = "", .wrong = false};
    }
  }
  return absl::InternalError("no such action");
}

}  // namespace verbena::cli
