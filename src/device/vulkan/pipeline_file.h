// The file that keeps the compiled pipelines of a device from process to process.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace treadle::vulkan {

/// A file for one device, driver and version of this library. Files of other devices and damaged files count as empty, because drivers do
/// not check the bytes that they get.
class PipelineFile {
 public:
  /// Makes the folder if it does not exist. @param identity  PhysicalDevice::identity @throws Error(io_error) if that fails
  PipelineFile(const std::string& folder, const std::string& identity);

  const std::string& path() const { return path_; }
  /// Returns the pipelines in the file; empty if it has none for this device.
  std::vector<std::byte> read() const;
  /// Replaces the file in one step, so that other processes see either the old or the new one. @throws Error(io_error) if that fails
  static void write(const std::string& path, const std::string& identity, std::span<const std::byte> contents);

 private:
  const std::string identity_;
  std::string path_;
};

}  // namespace treadle::vulkan
