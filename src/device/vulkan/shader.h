// Compute shaders, and the Vulkan pipelines that devices compile them to.
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

/// How many bytes of push constants a dispatch can pass to its shader. All Vulkan devices support this many.
inline constexpr size_t kMaxPushBytes = 128;

/// The SPIR-V code of a shader, with the values of its specialization constants 0, 1, ... Equal shaders share one object. It exists as long
/// as the process, so that kernels and devices can refer to it by address.
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

/// The pipelines of one device. Each is made when it is first used. Thread-safe: several pipelines may be made at the same time.
class Pipelines {
 public:
  explicit Pipelines(const Connection& connection);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  VkPipelineLayout layout() const { return layout_; }
  /// Returns the pipeline of a shader. @throws Error(not_implemented) if the device lacks a feature that the shader uses; Error(internal)
  /// if the driver rejects the shader
  VkPipeline get(const Shader& shader);
  /// Reads compiled pipelines of earlier processes from the device's file in this folder. From now on, save() also writes new pipelines to
  /// this file. Makes the folder if necessary. @throws Error(io_error) if the folder cannot be made
  void keep_in(const std::string& folder);
  /// Writes the files if there are pipelines that they do not contain. Errors are ignored; the next process then has to compile these
  /// pipelines again.
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
  std::mutex mutex_;           ///< guards the members below; not held while a pipeline is compiled
  std::deque<Pipeline> made_;  ///< indexed by Shader::index()
  std::set<std::string> files_;
  std::atomic<size_t> num_made_ = 0, num_saved_ = 0;
};

}  // namespace treadle::vulkan
