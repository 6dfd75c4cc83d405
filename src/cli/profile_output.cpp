#include "cli/profile_output.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <span>
#include <string_view>

#include "core/files/file.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

constexpr std::string_view kGzip = ".gz";

std::string compressed(const std::string& text) {
  z_stream stream{};
  constexpr int kFast = 3, kGzipFormat = 16;
  if (deflateInit2(&stream, kFast, Z_DEFLATED, MAX_WBITS + kGzipFormat, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw Error(ErrorCode::internal, "zlib cannot start");
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw Error(ErrorCode::internal, "zlib cannot compress " + std::to_string(text.size()) + " bytes");
  return out;
}

// Returns the path without the extension ".gz", if it has this extension.
std::string without_gzip(const std::string& path) { return path.ends_with(kGzip) ? path.substr(0, path.size() - kGzip.size()) : path; }

}  // namespace

void check_target(const char* option, const std::string& path) {
  if (path.empty()) return;
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  const char* why = fs::is_directory(path, ignored)      ? "it is a folder"
                    : !fs::is_directory(folder, ignored) ? "there is no such folder"
                    : access(folder.c_str(), W_OK) != 0  ? "its folder cannot be written to"
                                                         : nullptr;
  if (why) throw Error(ErrorCode::invalid_argument, fmt::format("{} {}: {}", option, path, why));
}

void check_profile_output(const char* option, const std::string& path) {
  check_profile_file(without_gzip(path));
  check_target(option, path);
}

void write_profile_output(const std::string& path, const ProfileReport& report, const Profile* profile) {
  std::string text = profile_file(without_gzip(path), report, profile);
  if (path.ends_with(kGzip)) text = compressed(text);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace treadle::cli
