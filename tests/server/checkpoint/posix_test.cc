// Checkpoints on a real file system: read by NumPy alone, a full and a read-only disk.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/checkpoint/files/export.h"
#include "server/checkpoint/files/safetensors.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/support/process.h"

namespace verbena::checkpoint::test {
namespace {

using Catch::Matchers::Contains;
using verbena::test::Finished;
using verbena::test::ReadFile;
using verbena::test::RunProgram;
using verbena::test::TemporaryDirectory;
using verbena::test::WriteFile;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  INFO(name);
  REQUIRE(value != nullptr);
  return value;
}

Finished Python(const std::string& script, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {Variable("VERBENA_PYTHON"), "-B", Variable("VERBENA_SCRIPTS") + "/" + script});
  Finished run = RunProgram(arguments);
  INFO(run.out << run.err);
  CHECK(run.status == 0);
  return run;
}

// Every array's bytes, in a file of its name, for a script to compare with.
void WriteExpected(const Model& model, const std::string& directory) {
  const auto name = [&](const std::string& table, const std::string& array) {
    return absl::StrCat(directory, "/", absl::StrReplaceAll(table, {{"/", "%2F"}}), ".", array);
  };
  for (const auto& [table, arrays] : model.dense) {
    for (const auto& [array, bytes] : arrays) {
      WriteFile(name(table, array),
                std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
  }
  for (const auto& [table, rows] : model.rows) {
    std::string content;
    for (const auto& [key, bytes] : rows) {
      content.append(reinterpret_cast<const char*>(&key), sizeof(key));
      content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    WriteFile(name(table, "rows"), content);
  }
}

TEST_CASE("NumPy and json alone read a checkpoint, bit for bit") {
  TemporaryDirectory directory, expected;
  Model model(7);
  const auto save = [&](const CheckpointStartOptions& options) {
    const auto name = Save(PosixDisk(), directory.File("c"), model, options);
    INFO(name.status());
    REQUIRE(name.ok());
    return directory.File("c") + "/" + *name;
  };
  std::string path = save({.writers = 3});
  CHECK(Differs(PosixDisk(), path, model) == "");
  SECTION("full, with Hugging Face's index") {}
  SECTION("slices of several writers") { path = save({.writers = 3, .slices = true}); }
  SECTION("incremental") {
    const Listed base = ReadListed(PosixDisk(), path);
    model.Train();
    path = save({.writers = 2, .base = &base});
    CHECK(Differs(PosixDisk(), path, model) == "");
  }
  WriteExpected(model, expected.path());
  CHECK_THAT(Python("read_checkpoint.py", {path, expected.path()}).out, Contains("5 tables"));
}

TEST_CASE("NumPy loads files exported as npy") {
  TemporaryDirectory directory;
  const Model model(8);
  const auto name = Save(PosixDisk(), directory.File("c"), model);
  REQUIRE(name.ok());
  const auto reader = CheckpointReader::Open(PosixDisk(), directory.File("c") + "/" + *name);
  REQUIRE(reader.ok());
  ExportOptions options;
  options.format = ExportFormat::kNpy;
  options.to = directory.File("npy");
  options.optimizer = true;
  const auto plan = PlanExport(*reader, options);
  REQUIRE(plan.ok());
  REQUIRE(
      Export(PosixDisk(), *reader, options, *plan, [](uint64_t) { return absl::OkStatus(); }).ok());
  TemporaryDirectory expected;
  WriteExpected(model, expected.path());
  Python("read_npy.py", {options.to, expected.path()});
}

TEST_CASE("a safetensors file that NumPy wrote is read, in all of its types") {
  TemporaryDirectory directory;
  const std::string path = directory.File("numpy.safetensors");
  Python("write_safetensors.py", {path});
  const auto reader = SafetensorsReader::Open(PosixDisk(), path);
  INFO(reader.status());
  REQUIRE(reader.ok());
  CHECK(reader->header().metadata.at("by") == "numpy");
  CHECK(reader->header().tensors.size() == 11);
  for (const TensorInfo& tensor : reader->header().tensors) {
    INFO(tensor.name);
    CHECK(tensor.shape == std::vector<uint64_t>{2, 3});
    // arange(6), times -1 where there are such numbers, plus a half where there are those.
    std::vector<std::byte> bytes(tensor.bytes());
    REQUIRE(reader->Read(tensor, 0, absl::MakeSpan(bytes)).ok());
    double found[6];
    ConvertNumbers(tensor.type, bytes, TensorType::kF64,
                   {reinterpret_cast<std::byte*>(found), sizeof(found)});
    const std::string type = TypeName(tensor.type);
    const bool is_float = type[0] == 'F';
    for (int i = 0; i < 6; ++i) {
      const double sign = is_float || type[0] == 'I' ? -1 : 1;
      CHECK(found[i] == (type == "BOOL" ? i % 2 : sign * (i + (is_float ? 0.5 : 0))));
    }
  }
}

TEST_CASE("two processes cannot save into one directory") {
  TemporaryDirectory directory;
  const auto first = CheckpointDirectory::Open(PosixDisk(), directory.File("c"));
  REQUIRE(first.ok());
  const absl::Status second = CheckpointDirectory::Open(PosixDisk(), directory.File("c")).status();
  CHECK(absl::IsFailedPrecondition(second));
  CHECK_THAT(std::string(second.message()),
             Contains(directory.File("c") + "/LOCK") && Contains(absl::StrCat("pid ", getpid())));
}

TEST_CASE(
    "regression: a writer that makes files all the time keeps no attempt from being removed") {
  TemporaryDirectory directory;
  const std::string root = directory.File("c");
  for (int i = 0; i < 100; ++i) {
    const auto held = CheckpointDirectory::Open(PosixDisk(), root);
    REQUIRE(held.ok());
    const std::string path = *(*held)->Begin();
    std::atomic<int> made{0};
    std::thread late([&] {
      while (PosixDisk()->Create(Join(path, absl::StrCat(made.load()))).ok()) ++made;
    });
    while (made < 3) std::this_thread::yield();
    const absl::Status status = (*held)->Abandon();
    late.join();
    REQUIRE(status.ok());
    CHECK(PosixDisk()->List(root)->size() == 1);  // LOCK
  }
}

TEST_CASE("a path that cannot be a checkpoint directory is refused with the reason") {
  TemporaryDirectory directory;
  WriteFile(directory.File("file"), "x");
  const auto open = [&](const std::string& path) {
    return CheckpointDirectory::Open(PosixDisk(), path).status();
  };
  CHECK(absl::IsFailedPrecondition(open(directory.File("file"))));
  CHECK_THAT(std::string(open(directory.File("file")).message()),
             Contains("Not a directory; name a directory"));
  CHECK(absl::IsNotFound(open(directory.File("a/b"))));
  CHECK(absl::IsInvalidArgument(open("")));
  // A pipe nobody writes to must not hold anybody up.
  REQUIRE(mkfifo(directory.File("pipe").c_str(), 0600) == 0);
  CHECK(absl::IsFailedPrecondition(PosixDisk()->Open(directory.File("pipe")).status()));
}

TEST_CASE("a small disk that fills leaves the checkpoint before", "[.small-disk]") {
  // Of 1 MiB, made by small_disk_test.sh.
  const std::string disk = Variable("VERBENA_SMALL_DISK");
  Model model(9);
  const auto first = Save(PosixDisk(), disk + "/c", model);
  INFO(first.status());
  REQUIRE(first.ok());
  const std::string path = disk + "/c/" + *first;
  Model large = model;
  large.specs[0].set_shape(0, 20'000);
  large.Train();
  const auto second = Save(PosixDisk(), disk + "/c", large);
  CHECK(second.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(second.status().message()), Contains("checkpoint-00000002.") &&
                                                         Contains("No space left on device") &&
                                                         Contains("keep fewer checkpoints"));
  for (const auto& entry : std::filesystem::directory_iterator(disk + "/c")) {
    CHECK(entry.path().extension() != ".tmp");
  }
  CHECK(Differs(PosixDisk(), path, model) == "");

  // Removing checkpoints frees the full disk: it must not need room for a lock file of its own.
  std::filesystem::remove(disk + "/c/LOCK");
  std::ofstream filler(disk + "/filler");
  while (filler.write("0123456789abcdef", 16).flush()) {
  }
  const auto directory = CheckpointDirectory::Open(PosixDisk(), disk + "/c");
  INFO(directory.status());
  REQUIRE(directory.ok());
}

TEST_CASE("a save to a read-only disk is refused, its checkpoints can be read",
          "[.read-only-disk]") {
  const std::string disk = Variable("VERBENA_SMALL_DISK");
  const auto saved = Save(PosixDisk(), disk + "/c", Model(9));
  CHECK(absl::IsPermissionDenied(saved.status()));
  CHECK_THAT(std::string(saved.status().message()),
             Contains("Read-only file system; mount it writable"));
  const auto newest = NewestComplete(PosixDisk(), disk + "/c", nullptr);
  REQUIRE(newest.ok());
  CHECK(Differs(PosixDisk(), *newest, Model(9)) == "");
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  CHECK(stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

TEST_CASE(
    "files and directories are for their owner alone, or for the group of a setgid directory") {
  const TemporaryDirectory directory;
  for (const mode_t mask : {mode_t{0}, mode_t{077}}) {
    const mode_t before = umask(mask);
    const std::string own = directory.File(absl::StrCat("own", mask));
    const std::string group = directory.File(absl::StrCat("group", mask));
    REQUIRE(PosixDisk()->MakeDirectory(own).ok());
    REQUIRE(PosixDisk()->MakeDirectory(group).ok());
    REQUIRE(chmod(group.c_str(), 02750) == 0);
    for (const std::string& parent : {own, group}) {
      REQUIRE(PosixDisk()->MakeDirectory(parent + "/directory").ok());
      REQUIRE(PosixDisk()->Create(parent + "/directory/file").ok());
    }
    CHECK(ModeOf(own) == 0700);
    CHECK(ModeOf(own + "/directory") == 0700);
    CHECK(ModeOf(own + "/directory/file") == 0600);
    CHECK(ModeOf(group + "/directory") == 02750);
    CHECK(ModeOf(group + "/directory/file") == 0640);
    umask(before);
  }
}

}  // namespace
}  // namespace verbena::checkpoint::test
