#include "onnx/external_data.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/file.h"

namespace treadle::onnx {
namespace fs = std::filesystem;
namespace {

bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

}  // namespace

ExternalFiles::ExternalFiles(fs::path folder, std::vector<fs::path> allowed, bool use_mmap)
    : folder_(std::move(folder)), allowed_(std::move(allowed)), use_mmap_(use_mmap) {}

fs::path ExternalFiles::resolve(const Place& place, const std::string& location) const {
  if (folder_.empty())
    place.fail("the data is in the external file " + in_quotes(location) + ", but no folder was given in which to look for it");
  if (location.empty() || location.find('\0') != std::string::npos)
    place.fail("the location " + in_quotes(location) + " of external data is not a file name");
  fs::path relative(location);
  if (relative.is_absolute() || std::find(relative.begin(), relative.end(), "..") != relative.end())
    place.fail("the location " + in_quotes(location) + " of external data must be a relative path inside the model's folder");
  std::error_code failure;
  fs::path found = fs::canonical(folder_ / relative, failure);
  if (failure)
    place.fail(failure == std::errc::no_such_file_or_directory ? ErrorCode::not_found : ErrorCode::io_error,
               "cannot find the external data " + in_quotes(location) + " in " + in_quotes(folder_.string()) + ": " + failure.message());
  fs::path root = fs::canonical(folder_, failure);
  bool inside = !failure && is_inside(found, root);
  for (const fs::path& folder : allowed_) inside = inside || is_inside(found, folder);
  if (!inside) place.fail("the location " + in_quotes(location) + " of external data leaves the model's folder through a symbolic link");
  return found;
}

ExternalFiles::File& ExternalFiles::open(const Place& place, const std::string& location) {
  auto known = files_.find(location);
  if (known != files_.end()) return known->second;
  std::string path = resolve(place, location).string();
  try {
    return files_.emplace(location, File{use_mmap_ ? map_file(path) : read_file(path)}).first->second;
  } catch (const Error& error) {
    place.fail(error.code(), error.message());
  }
}

}  // namespace treadle::onnx
