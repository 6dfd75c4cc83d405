// The files next to a model that contain its large tensors.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "onnx/wire.h"
#include "treadle/tensor.h"

namespace treadle::onnx {

class ExternalFiles {
 public:
  /// @param folder  folder to which locations are relative; empty: external data is an error
  /// @param allowed  folders other than `folder` to which symbolic links in a location may lead
  ExternalFiles(std::filesystem::path folder, std::vector<std::filesystem::path> allowed, bool use_mmap, bool share);

  /// Adds a file's contents, so that it need not be opened; `location` may be any text. Once a file was added, no others are opened.
  void add(const std::string& location, std::shared_ptr<Storage> contents);

  struct File {
    std::shared_ptr<Storage> storage;
    size_t copied_bytes = 0;
    std::string digest;  // SHA-1 of the file, if it was requested
  };
  /// Returns the file, and opens it at the first call. @throws Error(invalid_model) for a location that is absolute, contains "..", or
  /// leaves the allowed folders; Error(not_found, io_error)
  File& open(const Place& place, const std::string& location);
  /// Compares the file's SHA-1, which is computed once, with `checksum`. Ignores a `checksum` that is not an SHA-1.
  /// @throws Error(invalid_model) with both digests
  static void verify(const Place& place, const std::string& location, File& file, const std::string& checksum);

 private:
  std::filesystem::path resolve(const Place& place, const std::string& location) const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> allowed_;
  bool use_mmap_, share_, are_given_ = false;
  std::map<std::string, File> files_;  // open files by location, in which "." and ".." are resolved
};

}  // namespace treadle::onnx
