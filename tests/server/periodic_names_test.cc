// Names of jobs as names of directories.
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/periodic_checkpoints.h"

namespace verbena::server {
namespace {

// A pair of jobs with one directory; empty: there is none among many jobs.
std::string TwoInOne() {
  std::map<std::string, std::string> jobs;  // by directory
  const std::string signs = "a_/.%2F5E";
  std::string two;
  const auto add = [&](const std::string& job) {
    const std::string name = CheckpointDirectoryOf(job);
    const auto [other, is_new] = jobs.emplace(name, job);
    if (!is_new) two = other->second + " and " + job;
    if (name.empty() || name.size() > 255 || name.front() == '.' ||
        name.find('/') != std::string::npos) {
      two = job + " has the directory " + name;
    }
  };
  for (const char a : signs) {
    add({a});
    for (const char b : signs) {
      add({a, b});
      for (const char c : signs) {
        add({a, b, c});
        for (const char d : signs) add({a, b, c, d});
      }
    }
  }
  // As long as names of jobs may be.
  for (size_t at = 0; at < 128; ++at) {
    std::string job(128, '/');
    job[at] = '_';
    add(job);
    job.pop_back();
    add(job);
  }
  return two;
}

TEST_CASE("regression: two jobs never share a directory of checkpoints") {
  CHECK(CheckpointDirectoryOf("default") == "default");
  CHECK(CheckpointDirectoryOf("team/model") == "team%2Fmodel");
  CHECK(CheckpointDirectoryOf("..") == "%2E.");
  CHECK(CheckpointDirectoryOf("50%") == "50%25");
  CHECK(TwoInOne() == "");
  checkpoint::failpoints().share_directories = true;
  CHECK(TwoInOne() != "");
  checkpoint::failpoints().share_directories = false;
}

}  // namespace
}  // namespace verbena::server
