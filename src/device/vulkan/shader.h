// Compute shaders and the pipelines that devices make of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// Bytes that a dispatch can pass to its shader; all Vulkan devices support this many.
inline constexpr size_t kMaxPushBytes = 128;

/// The code of a shader, with the values of its specialization constants 0, 1, ... Equal shaders share one object, which lives as long as
/// the process, so that kernels and devices can refer to them by address.
class Shader {
 public:
  /// Returns the shader with this code and these constants. Thread-safe.
  static const Shader& of(std::span<const uint32_t> code, std::span<const uint32_t> constants, std::string_view name);

  const std::string& name() const { return name_; }
  std::span<const uint32_t> code() const { return code_; }
  std::span<const uint32_t> constants() const { return constants_; }
  size_t index() const { return index_; }  ///< the shader's number; numbers are consecutive, from 0

 private:
  Shader(std::string name, std::vector<uint32_t> code, std::vector<uint32_t> constants, size_t index)
      : name_(std::move(name)), code_(std::move(code)), constants_(std::move(constants)), index_(index) {}

  const std::string name_;
  const std::vector<uint32_t> code_, constants_;
  const size_t index_;
};

/// The pipelines of one device, each made when it is first used. Thread-safe; several pipelines may be made at the same time.
class Pipelines {
 public:
  explicit Pipelines(const Connection& connection);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  VkPipelineLayout layout() const { return layout_; }
  /// @throws Error(not_implemented) if the device lacks a feature that the shader uses; Error(internal) if the driver rejects the shader
  VkPipeline get(const Shader& shader);
  /// Reads the pipelines that the driver has compiled before from the device's file in this folder, and makes the folder if necessary.
  /// Later, save() writes new ones there. @throws Error(io_error) if the folder cannot be made
  void keep_in(const std::string& folder);
  /// Writes the files if there are pipelines that they do not contain. If that fails, nothing is written, and the next process must compile
  /// them again.
  void save() noexcept;

 private:
  struct Pipeline {
    std::once_flag once;
    VkPipeline handle = VK_NULL_HANDLE;
  };
  VkPipeline make(const Shader& shader) const;
  VkPipelineCache make_cache(std::span<const std::byte> contents) const;
  std::vector<std::byte> compiled() const;

  const Connection& connection_;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipelineCache cache_ = VK_NULL_HANDLE;
  std::mutex mutex_;           ///< guards the members below; pipelines are compiled without holding it
  std::deque<Pipeline> made_;  ///< the pipelines by Shader::index()
  std::set<std::string> files_;
  std::atomic<size_t> num_made_ = 0, num_saved_ = 0;
};

}  // namespace treadle::vulkan
