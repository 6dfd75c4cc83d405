// The file that stores a device's compiled pipelines, so that later processes need not compile them again.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace treadle::vulkan {

/// A file for one combination of device, driver and version of this library. Damaged files and files for other combinations count as empty,
/// because drivers do not check the bytes that they are given.
class PipelineFile {
 public:
  /// Makes the folder if it does not exist. @param identity  PhysicalDevice::identity @throws Error(io_error) if the folder cannot be made
  PipelineFile(const std::string& folder, const std::string& identity);

  const std::string& path() const { return path_; }
  /// Returns the compiled pipelines in the file, in the driver's form; empty if the file has none for this device.
  std::vector<std::byte> read() const;
  /// Replaces the file atomically, so that other processes see either the old or the new one. @throws Error(io_error) if writing fails
  static void write(const std::string& path, const std::string& identity, std::span<const std::byte> contents);

 private:
  const std::string identity_;
  std::string path_;
};

}  // namespace treadle::vulkan
