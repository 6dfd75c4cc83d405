#include "onnx/external_data.h"

#include <algorithm>
#include <cctype>
#include <system_error>
#include <utility>

#include "core/base/sha1.h"
#include "core/files/file.h"
#include "core/files/shared_storage.h"

namespace treadle::onnx {
namespace fs = std::filesystem;
namespace {

bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

std::string canonical(const std::string& location) { return fs::path(location).lexically_normal().string(); }

}  // namespace

ExternalFiles::ExternalFiles(fs::path folder, std::vector<fs::path> allowed, bool use_mmap, bool share)
    : folder_(std::move(folder)), allowed_(std::move(allowed)), use_mmap_(use_mmap), share_(share) {}

void ExternalFiles::add(const std::string& location, std::shared_ptr<Storage> contents) {
  files_[canonical(location)] = File{std::move(contents)};
  are_given_ = true;
}

fs::path ExternalFiles::resolve(const Place& place, const std::string& location) const {
  if (are_given_) {
    std::string given;
    for (const auto& [name, file] : files_) given += (given.empty() ? "" : ", ") + in_quotes(name);
    place.fail(ErrorCode::not_found, "External file: " + location + " not found from the table user provided, which has " + given);
  }
  if (folder_.empty())
    place.fail_outside("the data is in the external file " + in_quotes(location) + ", but no folder was given in which to look for it");
  if (location.empty() || location.find('\0') != std::string::npos)
    place.fail_outside("the location " + in_quotes(location) + " of external data is not a file name");
  const fs::path relative = fs::path(location).lexically_normal();
  if (relative.is_absolute() || *relative.begin() == "..")
    place.fail_outside("the location " + in_quotes(location) + " of external data must be a relative path inside the model's folder");
  std::error_code failure;
  fs::path found = fs::canonical(folder_ / relative, failure);
  if (failure)
    place.fail(failure == std::errc::no_such_file_or_directory ? ErrorCode::not_found : ErrorCode::io_error,
               "cannot find the external data " + in_quotes(location) + " in " + in_quotes(folder_.string()) + ": " + failure.message());
  fs::path root = fs::canonical(folder_, failure);
  bool inside = !failure && is_inside(found, root);
  for (const fs::path& folder : allowed_) inside = inside || is_inside(found, folder);
  if (!inside)
    place.fail_outside("the location " + in_quotes(location) + " of external data leaves the model's folder through a symbolic link");
  return found;
}

ExternalFiles::File& ExternalFiles::open(const Place& place, const std::string& location) {
  auto known = files_.find(canonical(location));
  if (known != files_.end()) return known->second;
  std::string path = resolve(place, location).string();
  try {
    auto storage = use_mmap_ ? map_file(path) : share_ ? share_storage(read_file(path)) : read_file(path);
    return files_.emplace(canonical(location), File{std::move(storage)}).first->second;
  } catch (const Error& error) {
    place.fail(error.code(), error.message());
  }
}

void ExternalFiles::verify(const Place& place, const std::string& location, File& file, const std::string& checksum) {
  constexpr size_t kDigits = 40;
  std::string expected = checksum;
  for (char& c : expected) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (expected.size() != kDigits || expected.find_first_not_of("0123456789abcdef") != std::string::npos) return;
  if (file.digest.empty()) file.digest = sha1({file.storage->data(), file.storage->size_bytes()});
  if (file.digest != expected)
    place.fail_outside("the external file " + in_quotes(location) + " is damaged or another one: its SHA-1 is " + file.digest +
                       ", the model says " + expected);
}

}  // namespace treadle::onnx
