#include "worker/data/decompressor.h"

#include <zlib.h>
#include <zstd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace verbena::worker {
namespace {

constexpr size_t kOutBytes = 256 * 1024;

struct Signature {
  std::string_view bytes;
  const char* name;
  const char* fix;
};

constexpr Signature kRefused[] = {
    {"\xfd"
     "7zXZ",
     "xz", "xz -dc"},
    {"BZh", "bzip2", "bzip2 -dc"},
    {std::string_view("\x04\x22\x4d\x18", 4), "lz4", "lz4 -dc"},
    {std::string_view("PK\x03\x04", 4), "a zip archive", "unzip -p"},
    {"7z\xbc\xaf", "7z", "7z x -so"},
    {"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"},
};

absl::Status Damaged(const std::string& name, const char* format, std::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": the ", format,
                   " data is damaged: ", absl::string_view(problem.data(), problem.size()),
                   "; get the file again (", format, " -t FILE tests it)"));
}

// Members one after the other, as gzip(1) reads them; zeros behind the last are padding.
class Gunzip final : public Decompressor {
 public:
  explicit Gunzip(std::string name) : name_(std::move(name)), out_(kOutBytes) {
    constexpr int kGzipWindow = 15 + 16;
    ready_ = inflateInit2(&stream_, kGzipWindow) == Z_OK;
  }
  ~Gunzip() override { inflateEnd(&stream_); }

  absl::Status Decode(std::string_view piece, const Sink& sink) override {
    if (!ready_) return absl::ResourceExhaustedError(name_ + ": no memory to decode gzip");
    // zlib's interface is not const; it does not write to the input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
    stream_.avail_in = static_cast<uInt>(piece.size());
    for (;;) {
      if (between_ && !BeginMember()) return absl::OkStatus();
      stream_.next_out = reinterpret_cast<Bytef*>(out_.data());
      stream_.avail_out = static_cast<uInt>(out_.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      const size_t n = out_.size() - stream_.avail_out;
      if (n > 0) {
        if (absl::Status s = sink(std::string_view(out_.data(), n)); !s.ok()) return s;
      }
      between_ = result == Z_STREAM_END;
      if (result == Z_BUF_ERROR || (result == Z_OK && stream_.avail_out > 0)) {
        return absl::OkStatus();  // the input is used up
      }
      if (result != Z_OK && !between_) {
        return Damaged(name_, "gzip", stream_.msg != nullptr ? stream_.msg : "unknown");
      }
    }
  }

  absl::Status Finish() override {
    return between_ ? absl::OkStatus() : Damaged(name_, "gzip", "it ends in the middle");
  }

 private:
  // Whether there is another one.
  bool BeginMember() {
    while (stream_.avail_in > 0 && *stream_.next_in == 0) {
      ++stream_.next_in;
      --stream_.avail_in;
    }
    if (stream_.avail_in == 0) return false;
    inflateReset(&stream_);
    between_ = false;
    return true;
  }

  const std::string name_;
  z_stream stream_ = {};
  bool ready_ = false;
  bool between_ = false;  // two members
  std::vector<char> out_;
};

// Frames one after the other.
class Unzstd final : public Decompressor {
 public:
  explicit Unzstd(std::string name)
      : name_(std::move(name)), stream_(ZSTD_createDStream(), &ZSTD_freeDStream), out_(kOutBytes) {}

  absl::Status Decode(std::string_view piece, const Sink& sink) override {
    if (stream_ == nullptr) return absl::ResourceExhaustedError(name_ + ": no memory for zstd");
    ZSTD_inBuffer in = {piece.data(), piece.size(), 0};
    for (bool full = false; in.pos < in.size || full;) {
      ZSTD_outBuffer out = {out_.data(), out_.size(), 0};
      left_ = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(left_) != 0) return Damaged(name_, "zstd", ZSTD_getErrorName(left_));
      // Behind the end of a frame, a call without input begins another one.
      full = out.pos == out.size && left_ != 0;
      if (out.pos == 0) continue;
      if (absl::Status s = sink(std::string_view(out_.data(), out.pos)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Finish() override {
    return left_ == 0 ? absl::OkStatus() : Damaged(name_, "zstd", "it ends in the middle");
  }

 private:
  const std::string name_;
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  size_t left_ = 1;  // of the frame; 0: it is complete
  std::vector<char> out_;
};

bool StartsWith(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

}  // namespace

absl::StatusOr<Encoding> EncodingOf(std::string_view name, std::string_view first_bytes) {
  if (StartsWith(first_bytes, "\x1f\x8b")) return Encoding::kGzip;
  if (StartsWith(first_bytes, "\x28\xb5\x2f\xfd")) return Encoding::kZstd;
  for (const Signature& refused : kRefused) {
    if (!StartsWith(first_bytes, refused.bytes)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(absl::string_view(name.data(), name.size()), ": is ", refused.name,
                     "; allowed: plain, gzip or zstd. Convert it, as by ", refused.fix));
  }
  return Encoding::kPlain;
}

std::unique_ptr<Decompressor> Decompressor::Create(Encoding encoding, std::string name) {
  if (encoding == Encoding::kGzip) return std::make_unique<Gunzip>(std::move(name));
  return std::make_unique<Unzstd>(std::move(name));
}

}  // namespace verbena::worker
