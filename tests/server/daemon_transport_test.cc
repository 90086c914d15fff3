// A transport that was named and cannot be had; auto where only some can.
#include <dirent.h>

#include "tests/server/daemon_fixture.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

bool HasRdmaDevice() {
  DIR* directory = opendir("/sys/class/infiniband");
  if (directory == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(directory)) found |= entry->d_name[0] != '.';
  closedir(directory);
  return found;
}

TEST_CASE("--transport verbs with an unknown device ends verbenad with the reason") {
  const Finished run = Verbenad({"--coordinator", "--listen", "127.0.0.1:0", "--transport", "verbs",
                                 "--rdma-device", "no_such_device"});
  INFO(run.err);
  CHECK(run.status == 1);
  CHECK_THAT(run.err, Contains("transport verbs: no RDMA device"));
  if (HasRdmaDevice()) CHECK_THAT(run.err, Contains("'no_such_device'"));
}

TEST_CASE("a coordinator alone needs no transport") {
  Daemon daemon({"--coordinator", "--shards", "0", "--transport", "verbs", "--rdma-device",
                 "no_such_device"});
  daemon.Ready();
}

TEST_CASE("--transport auto starts without a device, and logs the reason") {
  Daemon daemon({"--coordinator", "--rdma-device", "no_such_device"});
  daemon.Ready();
  CHECK_THAT(daemon.process().err(),
             Contains("shard 0: transports: shm") && Contains("; not verbs: no RDMA device"));
}

}  // namespace
}  // namespace verbena::test
