// Command line and configuration file of verbenad.
#include <signal.h>

#include "tests/server/daemon_fixture.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("--help explains every option, --version prints the version") {
  const Finished help = Verbenad({"--help"});
  CHECK(help.status == 0);
  for (const char* option : {"--listen",
                             "--coordinator",
                             "--join",
                             "--shards",
                             "--metrics",
                             "--state",
                             "--name",
                             "--lease-ms",
                             "--checkpoint-dir",
                             "--cold-dir",
                             "--checkpoint-every",
                             "--checkpoint-every-steps",
                             "--checkpoint-keep-last",
                             "--checkpoint-keep-every",
                             "--checkpoint-full-every",
                             "--checkpoint-on-exit",
                             "--checkpoint-rate",
                             "--partitions",
                             "--expected-servers",
                             "--replicas",
                             "--min-replicas",
                             "--zone",
                             "--slots",
                             "--large-slots",
                             "--operations",
                             "--lane-memory-limit",
                             "--replica-log-limit",
                             "--replica-log-partition-limit",
                             "--replica-audit-ms",
                             "--memory-limit",
                             "--log-level",
                             "--ready-file",
                             "--config",
                             "--pin",
                             "--transport",
                             "--tls-cert",
                             "--tls-key",
                             "--tls-ca",
                             "--tls-require-client-cert",
                             "--insecure",
                             "RDMA",
                             "--rdma-device",
                             "--rdma-address",
                             "--rdma-gid-index",
                             "--rdma-traffic-class",
                             "--rdma-service-level",
                             "--rdma-mtu",
                             "--rdma-timeout",
                             "--rdma-retries",
                             "--rdma-memory-windows",
                             "--rdma-relaxed-ordering",
                             "--ofi-provider",
                             "--ofi-address"}) {
    CHECK_THAT(help.out, Contains(option));
  }
  CHECK_THAT(help.out, Contains("127.0.0.1:7000"));
  const Finished version = Verbenad({"--version"});
  CHECK(version.status == 0);
  CHECK_THAT(version.out, StartsWith("verbenad 0."));
}

TEST_CASE("the error about a wrong option names its value and the allowed ones") {
  struct Case {
    std::vector<std::string> arguments;
    std::vector<std::string> says;
  };
  for (const Case& c : std::vector<Case>{
           {{}, {"--coordinator", "--join HOST:PORT"}},
           {{"--coordinator", "--join", "h:1"}, {"exclude each other"}},
           {{"--join", "h:1,h:2,h:1"}, {"--join", "h:1 twice"}},
           {{"--join", "h:1", "--etcd", "127.0.0.1:1"}, {"--etcd needs --coordinator"}},
           {{"--coordinator", "--shards", "0", "--etcd", "127.0.0.1:1", "--state", "/s"},
            {"--state /s", "exclude each other", "import-sqlite"}},
           {{"--coordinator", "--etcd", "127.0.0.1:1"}, {"--join", "all coordinators"}},
           {{"--coordinator", "--shards", "0", "--etcd", "http://h:1"}, {"--etcd", "leave out"}},
           {{"--coordinator", "--shards", "0", "--etcd", "h:1"},
            {"h:1", "--etcd-ca", "--insecure"}},
           {{"--coordinator", "--shards", "0", "--etcd", "h:1", "--insecure", "--etcd-user", "u",
             "--etcd-password-file", "f"},
            {"h:1", "--etcd-ca", "password"}},
           {{"--coordinator", "--shards", "0", "--etcd", "127.0.0.1:1", "--etcd-user", "u"},
            {"--etcd-password-file", "go together"}},
           {{"--coordinator", "--shards", "0", "--etcd", "127.0.0.1:1", "--etcd-cert", "c"},
            {"--etcd-key", "go together"}},
           {{"--coordinator", "--shards", "0", "--etcd", "127.0.0.1:1", "--etcd-prefix", "x"},
            {"--etcd-prefix", "'x'", "/verbena/"}},
           {{"--coordinator", "--shards", "0", "--etcd", "127.0.0.1:1", "--etcd-lease", "1"},
            {"--etcd-lease", "from 2"}},
           {{"--coordinator", "--etcd-ca", "f"}, {"need --etcd"}},
           {{"--bogus"}, {"--bogus"}},
           {{"--coordinator", "--shards", "many"}, {"--shards", "'many'", "from 0 to 1024"}},
           {{"--coordinator", "--shards", "-1"}, {"--shards", "'-1'"}},
           {{"--join", "h:1", "--shards", "0"}, {"--shards 0"}},
           {{"--join", "nowhere"}, {"--join", "'nowhere'", "HOST:PORT"}},
           {{"--coordinator", "--listen", "::1:7000"}, {"--listen", "'::1:7000'", "in brackets"}},
           {{"--coordinator", "--advertise", "fd77::1:"}, {"--advertise", "'fd77::1:'"}},
           {{"--coordinator", "--listen", "h:99999"}, {"--listen", "'h:99999'", "65535"}},
           {{"--coordinator", "--log-level", "loud"}, {"--log-level", "loud", "debug"}},
           {{"--coordinator", "--slots", "200", "--large-slots", "100"}, {"300", "256"}},
           {{"--coordinator", "--replicas", "1", "--min-replicas", "2"},
            {"--min-replicas 2", "--replicas, which is 1"}},
           {{"--coordinator", "--memory-limit", "1000"}, {"--memory-limit 1000", "67108864"}},
           {{"--coordinator", "--memory-limit", "64X"},
            {"--memory-limit", "'64X'", "512MiB or 64G"}},
           {{"--coordinator", "--shards", "0", "--cold-dir", "/c"}, {"--cold-dir /c", "shards"}},
           {{"--join", "h:1", "--state", "/s"}, {"--state /s", "--coordinator"}},
           {{"--join", "h:1", "--checkpoint-dir", "/s"}, {"--checkpoint-dir /s", "--coordinator"}},
           {{"--coordinator", "--checkpoint-dir", "s"}, {"--checkpoint-dir 's'", "absolute path"}},
           {{"--coordinator", "--checkpoint-dir", "/caf\xe9"}, {"--checkpoint-dir '/caf", "UTF-8"}},
           {{"--coordinator", "--checkpoint-on-exit", "5"}, {"needs --checkpoint-dir"}},
           {{"--coordinator", "--checkpoint-every", "x"}, {"--checkpoint-every", "'x'", "from 0"}},
           {{"--coordinator", "--checkpoint-every-steps", "9"}, {"needs --checkpoint-dir"}},
           {{"--coordinator", "--checkpoint-every", "9"},
            {"--checkpoint-every needs --checkpoint-dir"}},
           {{"--coordinator", "--checkpoint-keep-last", "3"},
            {"--checkpoint-keep-last needs --checkpoint-dir"}},
           {{"--coordinator", "--checkpoint-rate", "1M"},
            {"--checkpoint-rate needs --checkpoint-dir"}},
           {{"--join", "h:1", "--lease-ms", "1000"}, {"--lease-ms needs --coordinator"}},
           {{"--join", "h:1", "--partitions", "8"}, {"--partitions needs --coordinator"}},
           {{"--join", "h:1", "--expected-servers", "2"},
            {"--expected-servers needs --coordinator"}},
           {{"--join", "h:1", "--replicas", "2"}, {"--replicas needs --coordinator"}},
           {{"--coordinator", "--checkpoint-dir", "/s", "--checkpoint-every", "0"},
            {"--checkpoint-every 0", "--checkpoint-every-steps", "--checkpoint-on-exit"}},
           {{"--coordinator", "--transport", "tcp"}, {"--transport", "'tcp'", "auto", "verbs"}},
           {{"--coordinator", "--rdma-device", ":1"}, {"--rdma-device", "':1'", "DEVICE:PORT"}},
           {{"--coordinator", "--rdma-device", "mlx5_0:0"}, {"'mlx5_0:0'", "1 to 255"}},
           {{"--coordinator", "--rdma-address", "host"}, {"--rdma-address", "'host'", "IPv6"}},
           {{"--coordinator", "--rdma-device", "mlx5_0,"}, {"--rdma-device", "''", "DEVICE:PORT"}},
           {{"--coordinator", "--rdma-address", "10.0.0.1,x"}, {"--rdma-address", "'x'", "IPv6"}},
           {{"--coordinator", "--rdma-device", "a,a"}, {"rdma device", "names 'a' twice"}},
           {{"--coordinator", "--rdma-device", "a,b", "--rdma-address", "10.0.0.1"},
            {"of 2 entries", "of 1;"}},
           {{"--coordinator", "--ofi-address", "10.0.0.1,10.0.0.1"}, {"names '10.0.0.1' twice"}},
           {{"--coordinator", "--rdma-gid-index", "-2"}, {"--rdma-gid-index", "'-2'", "from -1"}},
           {{"--coordinator", "--rdma-traffic-class", "256"}, {"--rdma-traffic-class", "to 255"}},
           {{"--coordinator", "--rdma-service-level", "16"}, {"--rdma-service-level", "to 15"}},
           {{"--coordinator", "--rdma-mtu", "1500"}, {"--rdma-mtu", "1500", "1024", "4096"}},
           {{"--coordinator", "--rdma-timeout", "0"}, {"--rdma-timeout", "from 1 to 31"}},
           {{"--coordinator", "--rdma-retries", "8"}, {"--rdma-retries", "from 0 to 7"}},
           {{"--coordinator", "--rdma-memory-windows", "maybe"},
            {"--rdma-memory-windows", "maybe"}},
           // An unset variable of a script turns nothing off.
           {{"--coordinator", "--operator-token-file", ""}, {"--operator-token-file: ''"}},
           {{"--coordinator", "--state", ""}, {"--state: '' is not allowed", "leave the option"}},
           {{"--coordinator", "--tls-cert", ""}, {"--tls-cert: ''"}},
           {{"--coordinator", "--checkpoint-dir", ""}, {"--checkpoint-dir: ''"}},
           {{"--coordinator", "--name", ""}, {"--name: ''"}},
           {{"--coordinator", "--audit-log", ""}, {"--audit-log: ''"}},
           {{"--config", "/does/not/exist.toml"}, {"/does/not/exist.toml"}}}) {
    const Finished run = Verbenad(c.arguments);
    INFO(run.err);
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    for (const std::string& text : c.says) CHECK_THAT(run.err, Contains(text));
  }
}

TEST_CASE("an error in the configuration file is named with file and line") {
  TemporaryDirectory directory;
  const std::string file = directory.File("verbenad.toml");
  struct Case {
    std::string content;
    std::string line;
    std::string says;
  };
  for (const Case& c :
       std::vector<Case>{{"coordinator = true\nshards 2\n", ":2", "key = value"},
                         {"coordinator = true\nname = \"open\nshards = 2\n", ":2", "no closing \""},
                         {"# all well\n\nshrads = 2\n", ":3", "unknown key 'shrads'"},
                         {"name = server-1\n", ":1", "strings are quoted"},
                         {"coordinator = true\nshards = 4000\n", ":2", "from 0 to 1024"},
                         {"shards = 2\nshards = 3\n", ":2", "is set already"},
                         {"[server]\nshards = 2\n", ":1", "sections"},
                         {"shards = 2 3\n", ":1", "'3' after the value"},
                         {"help = true\n", ":1", "unknown key 'help'"},
                         {"shards = 2\nmemory-limit = \"1QiB\"\n", ":2", "such as 512MiB or 64G"},
                         {"memory-limit = 1GiB\n", ":1", "strings are quoted"},
                         {"\xff\xfes\x01", ":1", "the file is UTF-16; save it as UTF-8"}}) {
    WriteFile(file, c.content);
    const Finished run = Verbenad({"--config", file});
    INFO(run.err);
    CHECK(run.status == 2);
    CHECK_THAT(run.err, Contains(file + c.line + ":"));
    CHECK_THAT(run.err, Contains(c.says));
  }
}

TEST_CASE("the configuration file sets options and the command line wins") {
  TemporaryDirectory directory;
  const std::string file = directory.File("verbenad.toml");
  WriteFile(file,
            "\xef\xbb\xbf# a comment, after a byte order mark\n"
            "coordinator = true\n"
            "memory-limit = \"1GiB\"\n"
            "lane-memory-limit = \"64M\"\n"
            "name = 'from-file'   # literal\n"
            "shards = 3\n"
            "transport = \"shm\"\n"
            "rdma-mtu = 1024\n"
            "rdma-memory-windows = false\n"
            "listen = \"256.0.0.1:1\"\n");
  Daemon daemon({"--config", file});
  daemon.Ready();
  CHECK_THAT(daemon.address(), StartsWith("127.0.0.1:"));
  CHECK_THAT(daemon.process().err(),
             Contains("'from-file'") && Contains("3 shards") && Contains("memory limit: 1024 MiB"));
  CHECK_THAT(daemon.process().err(),
             Contains("shard 2: transports: shm; not verbs: only transport shm was asked for"));
}

}  // namespace
}  // namespace verbena::test
