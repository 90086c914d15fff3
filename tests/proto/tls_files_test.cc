// Reading, checking and rereading certificates and keys.
#include "proto/security/tls_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/support/certificates.h"
#include "tests/support/process.h"

namespace verbena {
namespace tls_files_test {

using Catch::Contains;
using test::Authority;
using test::Identity;
using test::TemporaryDirectory;
using test::WriteFile;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// A set of files that is in order.
struct Files {
  Files() {
    WriteFile(options.ca, authority.certificate());
    Write(authority.Issue());
  }
  void Write(const Identity& identity) const {
    WriteFile(options.cert, identity.cert);
    WriteFile(options.key, identity.key);
  }
  TemporaryDirectory directory;
  Authority authority{"authority"};
  TlsOptions options = {directory.File("ca.pem"), directory.File("cert.pem"),
                        directory.File("key.pem")};
};

TEST_CASE("valid files are read completely") {
  const Files files;
  const auto read = ReadTlsFiles(files.options);
  REQUIRE(read.ok());
  REQUIRE(read->ca == test::ReadFile(files.options.ca));
  REQUIRE(read->cert == test::ReadFile(files.options.cert));
  REQUIRE(read->key == test::ReadFile(files.options.key));
  REQUIRE(read->expires > absl::Now());
  REQUIRE(CheckCertificateName(*read, "127.0.0.1").ok());
  REQUIRE(CheckCertificateName(*read, "localhost").ok());
  const std::string other = Message(CheckCertificateName(*read, "node1"));
  REQUIRE_THAT(other, Contains("'localhost', '127.0.0.1', '::1'") && Contains("'node1'"));
}

TEST_CASE("without files there is no TLS") {
  const auto files = TlsFiles::Open({});
  REQUIRE(files.ok());
  REQUIRE(*files == nullptr);
}

TEST_CASE("a certificate and its key go together") {
  const Files files;
  const auto without_key = TlsFiles::Open({.cert = files.options.cert}).status();
  REQUIRE(absl::IsInvalidArgument(without_key));
  REQUIRE_THAT(Message(without_key), Contains(files.options.cert));
  const auto without_cert = TlsFiles::Open({.key = files.options.key}).status();
  REQUIRE(absl::IsInvalidArgument(without_cert));
  REQUIRE_THAT(Message(without_cert), Contains(files.options.key));
}

TEST_CASE("errors name the file and the problem, and contain no key") {
  const Files files;
  const std::string& ca = files.options.ca;
  const std::string& cert = files.options.cert;
  const std::string& key = files.options.key;
  const std::string good_key = test::ReadFile(key);
  const Identity other = Authority("other").Issue();
  Authority authority("authority");
  struct Case {
    const char* name;
    std::function<void()> spoil;
    std::string file, says;
  };
  const Case cases[] = {
      {"no CA", [&] { unlink(ca.c_str()); }, ca, "No such file"},
      {"no certificate", [&] { unlink(cert.c_str()); }, cert, "No such file"},
      {"no key", [&] { unlink(key.c_str()); }, key, "No such file"},
      {"a folder",
       [&] {
         unlink(key.c_str());
         mkdir(key.c_str(), 0700);
       },
       key, "cannot be read"},
      {"a pipe nobody writes to",
       [&] {
         unlink(key.c_str());
         mkfifo(key.c_str(), 0600);
       },
       key, "is not a private key"},
      {"an empty CA", [&] { WriteFile(ca, ""); }, ca, "certificates in PEM"},
      {"half a CA", [&] { WriteFile(ca, authority.certificate().substr(0, 200)); }, ca,
       "certificates in PEM"},
      {"a key for a certificate", [&] { WriteFile(cert, good_key); }, cert, "certificates in PEM"},
      {"a certificate for a key", [&] { WriteFile(key, test::ReadFile(cert)); }, key,
       "is not a private key"},
      {"another key", [&] { WriteFile(key, other.key); }, key, "does not belong to"},
      {"a pass phrase", [&] { WriteFile(key, test::Encrypted(good_key)); }, key, "pass phrase"},
      {"expired",
       [&] {
         files.Write(
             authority.Issue({.valid_from = -absl::Hours(48), .valid_to = -absl::Hours(24)}));
       },
       cert, "expired on "},
      {"not yet",
       [&] {
         files.Write(authority.Issue({.valid_from = absl::Hours(24), .valid_to = absl::Hours(48)}));
       },
       cert, "is not valid before "},
  };
  for (const Case& wrong : cases) {
    INFO(wrong.name);
    Files fresh;
    WriteFile(ca, fresh.authority.certificate());
    files.Write(fresh.authority.Issue());
    wrong.spoil();
    const auto status = ReadTlsFiles(files.options).status();
    rmdir(key.c_str());
    unlink(key.c_str());
    REQUIRE(absl::IsFailedPrecondition(status));
    REQUIRE_THAT(Message(status), Contains(wrong.file) && Contains(wrong.says));
    // "MHcCAQ" and "MIGHAg" begin every EC key in PEM.
    REQUIRE_THAT(Message(status), !Contains("MHcC") && !Contains("MIGH") && !Contains("PRIVATE"));
  }
}

TEST_CASE("replaced files are read again, and unusable ones are ignored") {
  const Files files;
  std::vector<absl::Status> log;
  const auto opened =
      TlsFiles::Open(files.options, [&](const absl::Status& status) { log.push_back(status); });
  REQUIRE(opened.ok());
  TlsFiles& tls = **opened;
  const auto first = tls.Current();
  REQUIRE(tls.Current() == first);
  REQUIRE(log.empty());

  Authority authority("authority");
  const Identity second = authority.Issue({.name = "second"});
  SECTION("all at once") {
    files.Write(second);
    REQUIRE(tls.Current()->cert == second.cert);
    REQUIRE(tls.Current()->key == second.key);
    REQUIRE(log == std::vector{absl::OkStatus()});
  }
  SECTION("one after the other: a pair that does not match is never given out") {
    WriteFile(files.options.cert, second.cert);
    REQUIRE(tls.Current() == first);
    REQUIRE(tls.Current() == first);
    REQUIRE(log.size() == 1);
    REQUIRE_THAT(Message(log.back()), Contains("does not belong to"));
    WriteFile(files.options.key, second.key);
    REQUIRE(tls.Current()->cert == second.cert);
    REQUIRE(log.size() == 2);
    REQUIRE(log.back().ok());
  }
  SECTION("taken away and brought back") {
    unlink(files.options.key.c_str());
    REQUIRE(tls.Current() == first);
    REQUIRE_THAT(Message(log.back()), Contains("No such file"));
    WriteFile(files.options.key, first->key);
    REQUIRE(tls.Current() == first);
  }
  SECTION("by a rename, as tools that renew certificates do") {
    const std::string draft = files.directory.File("draft");
    WriteFile(draft, authority.certificate());
    REQUIRE(std::rename(draft.c_str(), files.options.ca.c_str()) == 0);
    REQUIRE(tls.Current()->ca == authority.certificate());
    REQUIRE(tls.Current()->cert == first->cert);
  }
}

}  // namespace tls_files_test
}  // namespace verbena
