// Files that are written as a whole: their readers, symbolic links, and files that are not regular.
#include "proto/base/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace verbena {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/verbena-whole-file-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  int Entries() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  auto file = WholeFile::Open(path);
  REQUIRE(file.ok());
  std::fputs(text.c_str(), (*file)->stream());
  REQUIRE((*file)->Commit().ok());
}

mode_t TypeOf(const std::string& path) {
  struct stat there = {};
  REQUIRE(lstat(path.c_str(), &there) == 0);
  return there.st_mode & S_IFMT;
}

TEST_CASE("a file appears when it is complete, and an abandoned one leaves nothing") {
  const Folder folder;
  Write(folder / "a", "first");
  {
    auto file = WholeFile::Open(folder / "a");
    REQUIRE(file.ok());
    std::fputs("second", (*file)->stream());
    std::fflush((*file)->stream());
    CHECK(Read(folder / "a") == "first");
  }
  CHECK(Read(folder / "a") == "first");
  CHECK(folder.Entries() == 1);
  Write(folder / "a", "third");
  CHECK(Read(folder / "a") == "third");
  CHECK(folder.Entries() == 1);
}

TEST_CASE("regression: several writers of one path write complete files, and the last one stays") {
  const Folder folder;
  auto first = WholeFile::Open(folder / "a");
  REQUIRE(first.ok());
  std::fputs("first, which is longer", (*first)->stream());
  auto second = WholeFile::Open(folder / "a");
  REQUIRE(second.ok());
  std::fputs("second", (*second)->stream());
  {
    auto given_up = WholeFile::Open(folder / "a");
    REQUIRE(given_up.ok());
  }
  REQUIRE((*first)->Commit().ok());
  CHECK(Read(folder / "a") == "first, which is longer");
  REQUIRE((*second)->Commit().ok());
  CHECK(Read(folder / "a") == "second");
  CHECK(folder.Entries() == 1);
}

TEST_CASE("a symbolic link is followed, not replaced") {
  const Folder folder;
  Write(folder / "target", "old");
  REQUIRE(symlink((folder / "target").c_str(), (folder / "link").c_str()) == 0);
  Write(folder / "link", "new");
  CHECK(TypeOf(folder / "link") == S_IFLNK);
  CHECK(Read(folder / "target") == "new");
}

TEST_CASE(
    "a symbolic link to a file that is not there stays, and so does one whose file is removed") {
  const Folder folder;
  REQUIRE(symlink("target", (folder / "second").c_str()) == 0);
  REQUIRE(symlink((folder / "second").c_str(), (folder / "link").c_str()) == 0);
  for (int i = 0; i < 2; ++i) {
    Write(folder / "link", "new");
    CHECK(TypeOf(folder / "link") == S_IFLNK);
    CHECK(TypeOf(folder / "second") == S_IFLNK);
    CHECK(Read(folder / "target") == "new");
    CHECK(WholeFile::Remove(folder / "link").ok());
    CHECK(access((folder / "target").c_str(), F_OK) != 0);
    CHECK(TypeOf(folder / "link") == S_IFLNK);
  }
  CHECK(WholeFile::Remove(folder / "link").ok());
  CHECK(WholeFile::Remove("/dev/null").ok());
  CHECK(TypeOf("/dev/null") == S_IFCHR);
}

TEST_CASE("a path of a descriptor is written in place") {
  const Folder folder;
  const int fd = open((folder / "out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(write(fd, "printed\n", 8) == 8);
  const std::string name = "/dev/fd/" + std::to_string(fd);
  CHECK(WholeFile::CanWrite(name).ok());
  Write(name, "written\n");
  CHECK(WholeFile::Remove(name).ok());
  REQUIRE(write(fd, "", 0) == 0);
  CHECK(Read(folder / "out") == "printed\nwritten\n");
  struct stat of_name = {}, of_fd = {};
  REQUIRE(stat((folder / "out").c_str(), &of_name) == 0);
  REQUIRE(fstat(fd, &of_fd) == 0);
  CHECK(of_name.st_ino == of_fd.st_ino);
  close(fd);
}

TEST_CASE("a device and a pipe are written and keep their type") {
  const Folder folder;
  // /dev/null itself is not tried: where the test fails, the machine would lose it.
  REQUIRE(symlink("/dev/null", (folder / "null").c_str()) == 0);
  auto file = WholeFile::Open(folder / "null");
  REQUIRE(file.ok());
  file->reset();
  CHECK(TypeOf("/dev/null") == S_IFCHR);

  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto nobody = WholeFile::Open(folder / "pipe");
  CHECK(nobody.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(WholeFile::CanWrite(folder / "pipe").ok());
  const int reader = open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  Write(folder / "pipe", "through");
  char text[16] = {};
  CHECK(read(reader, text, sizeof(text)) == 7);
  CHECK(std::string(text) == "through");
  close(reader);
  CHECK(TypeOf(folder / "pipe") == S_IFIFO);
}

TEST_CASE("an unwritable path is named before and after writing") {
  const Folder folder;
  for (const std::string& path : {folder / "none/a", folder / "."}) {
    CAPTURE(path);
    const absl::Status can = WholeFile::CanWrite(path);
    CHECK(can.code() == absl::StatusCode::kInvalidArgument);
    CHECK(can.message().find("cannot write " + path) == 0);
    CHECK(WholeFile::Open(path).status() == can);
  }
  CHECK(WholeFile::CanWrite(folder / "a").ok());
  CHECK(folder.Entries() == 0);
  // /dev/full takes no byte; it is no regular file, so it is written in place.
  auto full = WholeFile::Open("/dev/full");
  REQUIRE(full.ok());
  std::fputs("text", (*full)->stream());
  CHECK((*full)->Commit().message() == "cannot write /dev/full: No space left on device");
  CHECK(TypeOf("/dev/full") == S_IFCHR);
}

TEST_CASE("another user's link is refused, and its target left alone") {
  if (geteuid() != 0) return;  // only root can make one
  const Folder folder;
  Write(folder / "target", "kept");
  REQUIRE(symlink((folder / "target").c_str(), (folder / "link").c_str()) == 0);
  REQUIRE(lchown((folder / "link").c_str(), 12345, 12345) == 0);
  for (const absl::Status& status :
       {WholeFile::Open(folder / "link").status(), WholeFile::CanWrite(folder / "link")}) {
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(status.message()), Catch::Contains("belongs to user id 12345"));
  }
  CHECK(Read(folder / "target") == "kept");
}

TEST_CASE("a link at the temporary file's name is not followed") {
  const Folder folder;
  const std::string victim = folder / "victim";
  std::ofstream(victim) << "kept";
  const std::string draft = folder / ("out." + std::to_string(getpid()) + ".partial");
  REQUIRE(symlink(victim.c_str(), draft.c_str()) == 0);
  auto file = WholeFile::Open(folder / "out");
  REQUIRE(file.ok());
  std::fputs("new", (*file)->stream());
  REQUIRE((*file)->Commit().ok());
  CHECK(Read(victim) == "kept");
  CHECK(Read(folder / "out") == "new");
}

}  // namespace
}  // namespace verbena
