// The lock of a coordinator's state directory: for its owner alone, and never somebody else's file.
#include "server/coordinator/state_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "tests/support/process.h"

namespace verbena::server {
namespace {

using test::TemporaryDirectory;

TEST_CASE("nobody else can hold the lock or read the state, whatever the umask") {
  TemporaryDirectory directory;
  const std::string path = directory.File("state");
  const mode_t before = umask(0);
  auto opened = StateDirectory::Open(path);
  umask(before);
  REQUIRE(opened.ok());
  struct stat info = {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  REQUIRE(stat((path + "/LOCK").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("a lock file of an earlier version that others can hold is closed to them") {
  TemporaryDirectory directory;
  const std::string lock = directory.File("LOCK");
  std::ofstream(lock) << "1\n";
  REQUIRE(chmod(lock.c_str(), 0644) == 0);
  REQUIRE(StateDirectory::Open(directory.path()).ok());
  struct stat info = {};
  REQUIRE(stat(lock.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("a lock that is a link, a pipe or another user's is refused and left alone") {
  TemporaryDirectory directory;
  const std::string victim = directory.File("victim");
  std::ofstream(victim) << "kept";
  const std::string lock = directory.File("LOCK");
  REQUIRE(symlink(victim.c_str(), lock.c_str()) == 0);
  absl::Status status = StateDirectory::Open(directory.path()).status();
  CHECK_THAT(std::string(status.message()), Catch::Contains("symbolic link"));
  REQUIRE(unlink(lock.c_str()) == 0);
  REQUIRE(link(victim.c_str(), lock.c_str()) == 0);  // a hard link to a file with another name
  status = StateDirectory::Open(directory.path()).status();
  CHECK_THAT(std::string(status.message()), Catch::Contains("hard link"));
  std::ifstream kept(victim);
  CHECK(std::string(std::istreambuf_iterator<char>(kept), {}) == "kept");
  REQUIRE(unlink(lock.c_str()) == 0);
  REQUIRE(mkfifo(lock.c_str(), 0600) == 0);
  CHECK_FALSE(StateDirectory::Open(directory.path()).ok());
  if (geteuid() != 0) return;  // only root gives files away
  REQUIRE(unlink(lock.c_str()) == 0);
  std::ofstream(lock) << "kept";
  REQUIRE(chown(lock.c_str(), 54321, 54321) == 0);
  status = StateDirectory::Open(directory.path()).status();
  CHECK_THAT(std::string(status.message()), Catch::Contains("54321"));
}

}  // namespace
}  // namespace verbena::server
