// The files beside a model that hold its large tensors.
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
  /// @param folder  locations are relative to it; empty: there is no folder, and external data is an error.
  /// @param allowed folders that, besides `folder`, a location may lead into through symbolic links.
  ExternalFiles(std::filesystem::path folder, std::vector<std::filesystem::path> allowed, bool use_mmap, bool share);

  /// The contents of a file that need not be opened: `location` may then be any text. Those that are added are all that there are.
  void add(const std::string& location, std::shared_ptr<Storage> contents);

  struct File {
    std::shared_ptr<Storage> storage;
    size_t copied_bytes = 0;
    std::string digest;  // SHA-1, once it was asked for
  };
  /// The file, opened on first use.
  /// @throws Error(invalid_model) for a location that is absolute, has "..", or leaves the allowed folders; Error(not_found, io_error).
  File& open(const Place& place, const std::string& location);
  /// Compares the whole file with its SHA-1, which is computed once. Text that is no SHA-1 says nothing that could be checked.
  /// @throws Error(invalid_model) with both digests.
  static void verify(const Place& place, const std::string& location, File& file, const std::string& checksum);

 private:
  std::filesystem::path resolve(const Place& place, const std::string& location) const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> allowed_;
  bool use_mmap_, share_, are_given_ = false;
  std::map<std::string, File> files_;  // by location without "." and ".." in it
};

}  // namespace treadle::onnx
