// `verbena checkpoint` on checkpoints on this machine's disk.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/checkpoint/files/safetensors.h"
#include "server/cli/verbena/json_fields.h"
#include "tests/server/checkpoint/checkpoint_fixture.h"
#include "tests/server/cli_fixture.h"
#include "tests/support/json_check.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using Catch::Matchers::StartsWith;
using checkpoint::Listed;
using checkpoint::PosixDisk;
using checkpoint::test::Model;
using checkpoint::test::Save;

// Steps 1 and 2, the second based on the first.
struct Checkpoints {
  Checkpoints() {
    root = directory.File("c");
    one = root + "/" + *Save(PosixDisk(), root, model);
    const Listed base = checkpoint::ReadListed(PosixDisk(), one);
    model.Train();
    two = root + "/" + *Save(PosixDisk(), root, model, {.writers = 2, .base = &base});
  }
  // A byte of a file is another.
  static void Damage(const std::string& path) {
    std::string content = ReadFile(path);
    content[content.size() - 10] = static_cast<char>(content[content.size() - 10] ^ 1);
    WriteFile(path, content);
  }
  TemporaryDirectory directory;
  Model model{3};
  std::string root, one, two;
};

Finished Run(std::vector<std::string> arguments, int status = 0) {
  arguments.insert(arguments.begin(), "checkpoint");
  Finished run = Cli(arguments);
  INFO(run.out << run.err);
  CHECK(run.status == status);
  if (status == 0) CHECK(run.err.empty());
  return run;
}

TEST_CASE("checkpoints are listed and shown, to people and to programs") {
  Checkpoints c;
  CHECK_THAT(Run({"list", c.root}).out,
             StartsWith("NAME") && Contains("\ncheckpoint-00000001     1") &&
                 Contains("checkpoint-00000002     2") && Contains("  checkpoint-00000001  demo"));
  const Json list(Run({"list", c.root, "--json"}).out);
  CHECK(list["directory"].text() == c.root);
  REQUIRE(list["checkpoints"].size() == 2);
  CHECK(list["checkpoints"][0]["base"].null());
  CHECK(list["checkpoints"][1]["base"].text() == "checkpoint-00000001");
  CHECK(list["checkpoints"][1]["step"].number() == 2);
  CHECK(list["checkpoints"][0]["rows"].number() == 80);
  CHECK(list["checkpoints"][0]["tables"].number() == 5);
  CHECK(list["checkpoints"][0]["error"].null());
  // With a directory, inspect shows its newest checkpoint; a slash may follow the path.
  CHECK_THAT(Run({"inspect", c.root + "/"}).out,
             StartsWith(c.two + ": step 2 of job 'demo'") &&
                 Contains("changes checkpoint-00000001") && Contains("tower/w     [37, 20]") &&
                 Contains("rows of 4") && Contains("adam 0.1") &&
                 Contains("model-00001-of-00001.safetensors"));
  const Json json(Run({"--json", "inspect", c.one}).out);
  CHECK(json["checkpoint"].text() == c.one);
  CHECK(json["tables"][0]["name"].text() == "tower/w");
  CHECK(json["tables"][0]["arrays"][1].text() == "exp_avg");
  CHECK(json["format_version"].number() == 2);
  TemporaryDirectory empty;
  CHECK(Run({"list", empty.path()}).out == "no checkpoints\n");
  CHECK_THAT(Run({"list", c.root + "/no"}, 1).err,
             Equals("verbena: cannot list " + c.root + "/no: No such file or directory\n"));
}

TEST_CASE("verify reads everything, and names the file and tensor that are damaged") {
  Checkpoints c;
  CHECK_THAT(Run({"verify", c.root}).out, StartsWith(c.two + " is whole: "));
  const Finished told = Cli({"checkpoint", "verify", c.root, "--progress"});
  CHECK_THAT(told.err, Contains("verifying: ") && Contains(", 100 %, ") && Contains(" left\n"));
  // The second needs the rows of the first.
  Checkpoints::Damage(c.one + "/rows-0001-0-00001.safetensors");
  const std::string why = "rows-0001-0-00001.safetensors: tensor \"sum\": its checksum is";
  CHECK_THAT(Run({"verify", c.two}, 1).out, StartsWith(c.two + " is damaged: ") && Contains(why));
  const std::string all = Run({"verify", c.root, "--all", "--json"}, 1).out;
  const Json first(all.substr(0, all.find('\n')));
  CHECK(first["checkpoint"].text() == c.one);
  CHECK_FALSE(first["whole"].truth());
  CHECK_THAT(first["error"].text(), Contains(why));
  // list and inspect report a damaged manifest and continue with the readable ones.
  Checkpoints::Damage(c.two + "/manifest.json");
  CHECK_THAT(Run({"list", c.root}, 1).out,
             Contains("cannot be read") && Contains("its checksum is"));
  CHECK_THAT(Json(Cli({"checkpoint", "inspect", c.root, "--json"}).out)["passed_over"][0].text(),
             StartsWith(c.two));
  const Finished inspected = Cli({"checkpoint", "inspect", c.root});
  CHECK(inspected.status == 0);
  CHECK_THAT(inspected.err, StartsWith("verbena: passed over: " + c.two));
  CHECK_THAT(inspected.out, StartsWith(c.one));
}

TEST_CASE("a damaged newest checkpoint is never passed over for an older one that is used") {
  Checkpoints c;
  const std::string to = c.directory.File("out.safetensors");
  const std::string manifest = c.two + "/manifest.json";
  SECTION("a manifest that is none") { WriteFile(manifest, "junk"); }
  SECTION("a manifest with another checksum") { Checkpoints::Damage(manifest); }
  SECTION("no manifest") { std::filesystem::remove(manifest); }
  const Finished exported = Run({"export", c.root, "--to", to}, 1);
  CHECK(exported.out.empty());
  CHECK_THAT(exported.err, Contains(c.two) && Contains("nothing was done") &&
                               Contains("The newest complete one is " + c.one + ", of step 1") &&
                               Contains("'verbena checkpoint export " + c.one + "' takes"));
  CHECK_FALSE(std::filesystem::exists(to));
  // A full one of an old chain would be the newest.
  const Finished compacted = Run({"compact", c.root}, 1);
  CHECK_THAT(compacted.err, Contains(c.two) && Contains("give the damaged directory another name"));
  CHECK_FALSE(std::filesystem::exists(c.root + "/checkpoint-00000003"));
  // No cluster is asked before.
  const Finished restored =
      Cli({"checkpoint", "restore", c.root, "--replace", "--cluster", "127.0.0.1:1"});
  CHECK(restored.status == 1);
  CHECK_THAT(restored.err,
             Contains(c.two) && Contains("'verbena checkpoint restore " + c.one + "' takes"));
  Run({"export", c.one, "--to", to});
}

TEST_CASE("the error about a damaged data file names the commands that find a whole checkpoint") {
  Checkpoints c;
  Checkpoints::Damage(c.two + "/rows-0001-0-00001.safetensors");
  const Finished run = Run({"export", c.root, "--to", c.directory.File("out")}, 1);
  CHECK_THAT(run.err, Contains("its checksum is") &&
                          Contains("'verbena checkpoint verify " + c.root + " --all' finds") &&
                          Contains("'verbena checkpoint export PATH' takes one"));
}

TEST_CASE("a directory that is not there, or has no checkpoints, is reported as such") {
  Checkpoints c;
  const std::string none = c.directory.File("none");
  for (const char* all : {"--progress", "--all"}) {
    const Finished run = Run({"verify", none, all}, 1);
    CHECK(run.out.empty());
    CHECK_THAT(run.err, Contains("cannot list " + none + ": No such file or directory"));
  }
  CHECK_THAT(Run({"verify", c.root + "/checkpoint-00000009"}, 1).err,
             Contains("No such file or directory"));
  CHECK_THAT(Run({"prune", c.root, "--job", "typo"}, 1).err,
             Contains(c.root + " has no checkpoint of job 'typo'; it has those of 'demo'"));
  CHECK_THAT(Run({"prune", c.directory.path()}, 1).err, Contains("has no checkpoints"));
  CHECK_FALSE(std::filesystem::exists(c.directory.path() + "/LOCK"));
  CHECK_THAT(Run({"verify", c.one, "--all"}, 1).err,
             Contains(c.one + " is one checkpoint; name the"));
  for (const char* command : {"list", "prune", "compact"}) {
    CHECK_THAT(Run({command, c.one}, 1).err, Contains(c.one + " is one checkpoint; name the"));
  }
  CHECK_FALSE(std::filesystem::exists(c.one + "/LOCK"));
}

TEST_CASE("prune keeps the requested number, and --dry-run lists the checkpoints to be removed") {
  Checkpoints c;
  c.model.Train();
  REQUIRE(Save(PosixDisk(), c.root, c.model).ok());
  CHECK(Run({"prune", c.root, "--keep-last", "1", "--dry-run"}).out ==
        "would remove checkpoint-00000002\nwould remove checkpoint-00000001\n1 is kept\n");
  CHECK(std::filesystem::exists(c.two));
  const Json json(Run({"prune", c.root, "--keep-last", "2", "--json"}).out);
  CHECK(json["removed"].size() == 0);  // the second needs the first
  CHECK(json["kept"].size() == 3);
  Run({"prune", c.root, "--keep-last", "1"});
  CHECK_FALSE(std::filesystem::exists(c.one));
  CHECK(Run({"verify", c.root}).status == 0);
  // The report explains why more than the requested number are kept.
  REQUIRE(Save(PosixDisk(), c.root, c.model).ok());
  std::filesystem::resize_file(c.root + "/checkpoint-00000003/manifest.json", 9);
  CHECK_THAT(
      Run({"prune", c.root, "--keep-last", "1"}).out,
      StartsWith("2 are kept\ncheckpoint-00000003 cannot be read, so it stays, and so do all "
                 "older ones"));
  std::filesystem::remove_all(c.root + "/checkpoint-00000003");
  CHECK_THAT(Run({"prune", c.root, "--keep-last", "0"}, 2).err,
             Contains("--keep-last: '0' is not allowed: 1 or more"));
  // While somebody saves there.
  const auto held = checkpoint::CheckpointDirectory::Open(PosixDisk(), c.root);
  REQUIRE(held.ok());
  CHECK_THAT(Run({"prune", c.root}, 1).err, Contains("/LOCK is locked by another process (pid "));
  CHECK(Run({"list", c.root}).status == 0);
}

TEST_CASE("compact merges a chain into one checkpoint, and prune may remove the chain") {
  Checkpoints c;
  CHECK_THAT(Run({"compact", c.root}).out,
             StartsWith("checkpoint-00000003 is 2 checkpoints in one"));
  CHECK(checkpoint::test::Differs(PosixDisk(), c.root + "/checkpoint-00000003", c.model) == "");
  CHECK(Run({"compact", c.root}).out == "checkpoint-00000003 is a full one already\n");
  const Json json(Run({"compact", c.root, "--json"}).out);
  CHECK(json["compacted"].number() == 0);
  Run({"prune", c.root, "--keep-last", "1"});
  CHECK(checkpoint::test::Differs(PosixDisk(), c.root + "/checkpoint-00000003", c.model) == "");
}

TEST_CASE("compact makes whole tensors of slices, with the index that loaders want") {
  TemporaryDirectory directory;
  const std::string root = directory.File("c");
  const Model model(4);
  const std::string one =
      root + "/" + *Save(PosixDisk(), root, model, {.writers = 3, .slices = true});
  CHECK_FALSE(std::filesystem::exists(one + "/model.safetensors.index.json"));
  CHECK_THAT(Run({"compact", root}).out, StartsWith("checkpoint-00000002 has whole tensors"));
  CHECK(checkpoint::test::Differs(PosixDisk(), root + "/checkpoint-00000002", model) == "");
  CHECK(std::filesystem::exists(root + "/checkpoint-00000002/model.safetensors.index.json"));
  CHECK(Run({"compact", root}).out == "checkpoint-00000002 is a full one already\n");
  // Damaged data are not compacted with a valid checksum.
  REQUIRE(Save(PosixDisk(), root, model, {.writers = 3, .slices = true}).ok());
  Checkpoints::Damage(root + "/checkpoint-00000003/slices-0-00001.safetensors");
  CHECK_THAT(
      Run({"compact", root}, 1).err,
      Contains("slices-0-00001.safetensors: tensor \"tower/w.") && Contains("its checksum is"));
  CHECK_FALSE(std::filesystem::exists(root + "/checkpoint-00000004"));
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    CHECK(entry.path().extension() != ".tmp");
  }
}

TEST_CASE("export writes the tables, types and format that its options name") {
  Checkpoints c;
  const std::string to = c.directory.File("out.safetensors");
  CHECK_THAT(Run({"export", c.root, "--to", to, "--table", "tower/w", "--rename", "tower/w=w",
                  "--dtype", "BF16"})
                 .out,
             Contains(": 1 tensors, 1.5 kB, to " + to + " (1 file)"));
  const auto reader = checkpoint::SafetensorsReader::Open(PosixDisk(), to);
  REQUIRE(reader.ok());
  REQUIRE(reader->Find("w") != nullptr);
  CHECK(reader->Find("w")->type == checkpoint::TensorType::kBF16);
  CHECK_THAT(Run({"export", c.root, "--to", to}, 1).err, Contains(to + " is there; remove it"));
  const Json json(Run({"export", c.one, "--to", c.directory.File("set"), "--format", "sharded",
                       "--file-size", "1KiB", "--json"})
                      .out);
  CHECK(json["files"].size() > 3);
  CHECK(json["tensors"].number() == 7);
  CHECK(std::filesystem::exists(c.directory.File("set/model.safetensors.index.json")));
  Run({"export", c.root, "--to", c.directory.File("npy") + "/", "--format", "npy", "--optimizer"});
  CHECK(std::filesystem::exists(c.directory.File("npy/tower%2Fw.exp_avg.npy")));
  CHECK_THAT(Run({"export", c.root, "--to", "x", "--table", "nobody"}, 1).err,
             Contains("has no table \"nobody\"; it has: tower/w"));
  CHECK_THAT(Run({"export", c.root, "--to", "x", "--rename", "w"}, 2).err,
             Contains("'w' is not allowed: TABLE=NAME"));
  CHECK_THAT(Run({"export", c.root}, 2).err, Contains("--to"));
}

// The path of a model file with the tables' values, as another program would write it.
std::string Exported(const Checkpoints& c) {
  const std::string to = c.directory.File("model.safetensors");
  if (!std::filesystem::exists(to)) Run({"export", c.root, "--to", to});
  return to;
}

TEST_CASE("import makes a checkpoint of another program's file, as the options specify") {
  Checkpoints c;
  const std::string model = Exported(c);
  const std::string to = c.directory.File("imported");
  CHECK_THAT(Run({"import", model, "--to", to + "/", "--job", "ads"}).out,
             StartsWith(to + "/checkpoint-00000001: 5 tables of job 'ads', "));
  CHECK(Run({"verify", to}).status == 0);
  CHECK_THAT(Run({"import", model, "--to", to}, 1).err,
             Contains(to + " has checkpoints already, the newest is checkpoint-00000001"));
  const std::string other = c.directory.File("other");
  const Json json(Run({"import", model, "--to", other, "--table", "items", "--table", "head",
                       "--rename", "items=a.b/c", "--consistency", "ssp", "--optimizer", "adam",
                       "--rate", "0.25", "--dtype", "bf16", "--json"})
                      .out);
  CHECK(json["source"].text() == model);
  CHECK(json["checkpoint"].text() == other + "/checkpoint-00000001");
  CHECK(json["job"].text() == "default");
  REQUIRE(json["tables"].size() == 2);
  CHECK(json["rows"].number() == static_cast<double>(c.model.rows["items"].size()));
  const Json made(Run({"inspect", other, "--json"}).out);
  for (int i = 0; i < 2; ++i) {
    const Json table = made["tables"][i];
    const bool dense = table["dim"].number() == 0;
    CHECK(table["name"].text() == (dense ? "head" : "a.b/c"));
    CHECK(table["dtype"].text() == (dense ? "bf16" : "f32"));
    CHECK(table["consistency"].text() == "ssp");
    CHECK(table["optimizer"]["rate"].number() == 0.25);
  }
  // As the tables were.
  const std::string same = c.directory.File("same");
  const Finished told = Cli({"checkpoint", "import", model, "--to", same, "--spec",
                             c.two + "/manifest.json", "--progress"});
  CHECK(told.status == 0);
  CHECK_THAT(told.err, Contains("importing: ") && Contains(", 100 %, "));
  CHECK_THAT(Run({"inspect", same}).out, Contains("rowwise_adagrad 0.1") && Contains("'demo'"));
}

TEST_CASE("an import that is refused names the problem") {
  Checkpoints c;
  const std::string model = Exported(c);
  const auto wrong = [&](std::vector<std::string> more, int status, const std::string& what) {
    std::vector<std::string> arguments = {"import", model, "--to", c.directory.File("to")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    CHECK_THAT(Run(arguments, status).err, Contains(what));
    CHECK_FALSE(std::filesystem::exists(c.directory.File("to")));
  };
  wrong({"--consistency", "bsp"}, 2, "--consistency: 'bsp' is not allowed: sync, async, ssp");
  wrong({"--dtype", "f64"}, 2, "--dtype: 'f64' is not allowed: f32, bf16, f16");
  wrong({"--optimizer", "adam"}, 2, "--optimizer requires --rate");
  wrong({"--optimizer", "no", "--rate", "1"}, 2, "unknown optimizer \"no\"; known: \"adagrad\"");
  wrong({"--rate", "-1"}, 2, "--rate: '-1' is not allowed: a finite number");
  wrong({"--rate", "1e99"}, 2, "--rate: '1e99' is not allowed: a finite number");
  wrong({"--rename", "head="}, 2, "'head=' is not allowed: T=TABLE");
  CHECK_THAT(Run({"import", model}, 2).err, Contains("--to"));
  CHECK_THAT(Run({"import", "--to", "x"}, 2).err, Contains("PATH"));
  wrong({"--rename", "head=a b"}, 1,
        model + ": tensor \"head\": table \"a b\": name is \"a b\"; allowed: 1..128 characters");
  wrong({"--table", "no"}, 1, model + " has no table \"no\"; it has: \"head\", \"items\"");
  wrong({"--skip", "no"}, 1, model + " has no tensor \"no\"");
  wrong({"--optimizer", "rowwise_adagrad", "--rate", "1"}, 1, "allowed: embedding tables");
  wrong({"--spec", c.directory.File("none.json")}, 1, "none.json: No such file");
  WriteFile(c.directory.File("s.json"), "{\"tables\": [{\"spec\": {\"optimiser\": {}}}]}");
  wrong({"--spec", c.directory.File("s.json")}, 1, "s.json: ");
  const std::string content = ReadFile(model);
  WriteFile(model, content.substr(0, content.size() - 1));
  wrong({}, 1, model + ": its tensors end at byte ");
  WriteFile(model, "no");
  wrong({}, 1, model + " has 2 bytes, and a safetensors file at least 8");
  CHECK_THAT(Run({"import", c.two, "--to", c.directory.File("to")}, 1).err,
             Contains(c.two + " is a checkpoint already; 'verbena checkpoint restore' loads it"));
}

TEST_CASE("a signal ends an export or an import, which leaves nothing behind") {
  Checkpoints c;
  const std::string to = c.directory.File("out");
  const std::string model = Exported(c);
  // The signal is there before the program is, so that it cannot come too late.
  const std::string script =
      "import os, signal, sys\n"
      "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
      "os.kill(os.getpid(), signal.SIGTERM)\n"
      "os.execv(sys.argv[1], sys.argv[1:])\n";
  const Finished run = RunProgram({"/usr/bin/env", "python3", "-c", script, CliPath(), "checkpoint",
                                   "export", c.root, "--to", to});
  CHECK(run.status == 128 + SIGTERM);
  CHECK(run.out.empty());
  CHECK_FALSE(std::filesystem::exists(to));
  CHECK_FALSE(std::filesystem::exists(to + ".tmp"));
  const Finished import = RunProgram({"/usr/bin/env", "python3", "-c", script, CliPath(),
                                      "checkpoint", "import", model, "--to", to});
  CHECK(import.status == 128 + SIGTERM);
  CHECK(import.out.empty());
  CHECK_FALSE(std::filesystem::exists(to));
}

TEST_CASE("commands that are killed at any moment leave the newest checkpoint whole") {
  Checkpoints c;
  std::mt19937_64 random(1);
  int killed = 0;
  for (int i = 0; i < 20; ++i) {
    const std::vector<std::vector<std::string>> commands = {{"compact", c.root},
                                                            {"prune", c.root, "--keep-last", "1"}};
    for (const std::vector<std::string>& command : commands) {
      std::vector<std::string> arguments = {CliPath(), "checkpoint"};
      arguments.insert(arguments.end(), command.begin(), command.end());
      Process process(arguments);
      absl::SleepFor(
          absl::Microseconds(random() % 12'000));  // a random moment of the kill, not a wait
      process.Signal(SIGKILL);
      killed += process.Wait() == 128 + SIGKILL ? 1 : 0;
      const auto newest = checkpoint::NewestComplete(PosixDisk(), c.root, nullptr);
      REQUIRE(newest.ok());
      CHECK(checkpoint::test::Differs(PosixDisk(), *newest, c.model) == "");
    }
    // The next save clears up, and is a link of a chain again.
    const Listed base = checkpoint::ListCheckpoints(PosixDisk(), c.root)->back();
    c.model.Train();
    REQUIRE(Save(PosixDisk(), c.root, c.model, {.base = &base}).ok());
    for (const auto& entry : std::filesystem::directory_iterator(c.root)) {
      CHECK((entry.path().extension() != ".tmp" && entry.path().extension() != ".trash"));
    }
  }
  CHECK(killed > 0);
}

TEST_CASE("checkpoint commands ignore VERBENA_CLUSTER, and help lists each action") {
  Checkpoints c;
  const Finished run = RunProgram(
      {"/usr/bin/env", "VERBENA_CLUSTER=::no::", CliPath(), "checkpoint", "list", c.root});
  CHECK(run.status == 0);
  const std::string help = Run({"--help"}).out;
  for (const char* action : {"list", "verify", "inspect", "prune", "compact", "export", "import"}) {
    CHECK_THAT(help, Contains(std::string("\n  ") + action + " "));
  }
  CHECK_THAT(help, Contains("verbena checkpoint verify /data/checkpoints --all"));
  CHECK_THAT(Run({"export", "--help"}).out,
             Contains("--dtype DTYPE") && Contains("--rename TABLE=NAME"));
  CHECK(Run({}, 2).err.find("verbena: ") == 0);
}

TEST_CASE("objects of checkpoints have the members that the reference describes") {
  Checkpoints c;
  const std::vector<std::vector<std::string>> commands = {
      {"list", c.root},
      {"verify", c.root},
      {"inspect", c.root},
      {"compact", c.root},
      {"prune", c.root},
      {"export", c.root, "--to", c.directory.File("x")},
      {"import", Exported(c), "--to", c.directory.File("imported")}};
  for (std::vector<std::string> command : commands) {
    const std::string name = "checkpoint " + command.front();
    command.emplace_back("--json");
    CHECK(Undescribed(Json(Run(command).out).value(), name, cli::JsonObjects()) == "");
  }
}

}  // namespace
}  // namespace verbena::test
