// Tokens: their text, their hash, their files.
#include "proto/security/token.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <set>

#include "absl/strings/escaping.h"
#include "proto/security/token_file.h"
#include "tests/support/process.h"

namespace verbena {
namespace token_test {

using Catch::Matchers::Contains;

TEST_CASE("a token contains its id and is unique") {
  std::set<std::string> texts;
  for (int i = 0; i < 100; ++i) {
    const auto token = MakeToken();
    REQUIRE(token.ok());
    CHECK(token->text.size() == 60);
    CHECK(*TokenId(token->text) == token->id);
    CHECK(IsTokenId(token->id));
    CHECK(texts.insert(token->text).second);
  }
}

TEST_CASE("the error of a malformed token contains no part of it") {
  const std::string good = MakeToken()->text;
  for (const std::string& text :
       {std::string(), std::string("secret"), good.substr(1), good + "A", good.substr(0, 59),
        "vbn_0123456789AB" + good.substr(16), good.substr(0, 59) + "/"}) {
    const auto id = TokenId(text);
    INFO(text);
    CHECK(id.status().code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(id.status().message()), !Contains("secret"));
  }
}

TEST_CASE("the hash is SHA-256") {
  // FIPS 180-2, appendix B.1.
  CHECK(absl::BytesToHexString(HashToken("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(SameHash(HashToken("abc"), HashToken("abc")));
  CHECK_FALSE(SameHash(HashToken("abc"), HashToken("abd")));
  CHECK_FALSE(SameHash("", ""));
}

TEST_CASE(
    "a token's file: private to its owner, never overwritten, read again after a replacement") {
  test::TemporaryDirectory directory;
  const std::string path = directory.File("token");
  const std::string first = MakeToken()->text, second = MakeToken()->text;
  REQUIRE(WriteToken(path, first).ok());
  struct stat info = {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(WriteToken(path, second).code() == absl::StatusCode::kAlreadyExists);
  auto file = TokenFile::Open(path);
  REQUIRE(file.ok());
  CHECK((*file)->Current() == first);
  test::WriteFile(path, "half a tok");  // in the middle of being replaced
  CHECK_FALSE(test::Eventually([&] { return (*file)->Current() != first; }, absl::Seconds(2)));
  test::WriteFile(path, "\n  " + second + "\r\n");
  CHECK(test::Eventually([&] { return (*file)->Current() == second; }));
  CHECK(*TokenFile::Open("") == nullptr);
  CHECK_THAT(std::string(TokenFile::Open(directory.path()).status().message()),
             Contains("token file " + directory.path()));
  CHECK(WriteToken("/dev/full/x", first).code() == absl::StatusCode::kFailedPrecondition);
}

}  // namespace token_test
}  // namespace verbena
