// The file in which a device's compiled pipelines are kept between processes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace treadle::vulkan {

/// A file for one device, driver and version of this library. Others' files, and damaged ones, count as empty: drivers trust what they are
/// given.
class PipelineFile {
 public:
  /// Makes the folder. @param identity  PhysicalDevice::identity. @throws Error(io_error)
  PipelineFile(const std::string& folder, const std::string& identity);

  const std::string& path() const { return path_; }
  /// Returns the pipelines in the file; empty if it has none for this device.
  std::vector<std::byte> read() const;
  /// Replaces the file at once, so that other processes see the old or the new one. @throws Error(io_error)
  static void write(const std::string& path, const std::string& identity, std::span<const std::byte> contents);

 private:
  const std::string identity_;
  std::string path_;
};

}  // namespace treadle::vulkan
