#include "device/vulkan/shader.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/base/logging.h"
#include "device/vulkan/pipeline_file.h"
#include "treadle/error.h"

namespace treadle::vulkan {
namespace {

// Returns the name of a feature that a shader declares (by OpCapability in its SPIR-V words) but the device lacks; null if it lacks none.
const char* find_lack(std::span<const uint32_t> words, const Features& has) {
  constexpr size_t kHeader = 5;
  constexpr uint32_t kOpCapability = 17, kFloat64 = 10, kInt64 = 11, kStorage16 = 4433, kStorage8 = 4448;
  for (size_t at = kHeader; at + 1 < words.size() && (words[at] & 0xFFFFU) == kOpCapability; at += 2) {
    const uint32_t capability = words[at + 1];
    if (capability == kFloat64 && !has.float64) return "arithmetic in float64";
    if (capability == kInt64 && !has.int64) return "arithmetic in 64-bit integers";
    if (capability == kStorage16 && !has.storage16) return "elements of 16 bits";
    if (capability == kStorage8 && !has.storage8) return "elements of 8 bits";
  }
  return nullptr;
}

}  // namespace

const Shader& Shader::of(std::span<const uint32_t> code, std::span<const uint32_t> constants, std::string_view name) {
  using Key = std::pair<std::vector<uint32_t>, std::vector<uint32_t>>;
  static std::mutex mutex;
  // The map is never destroyed, because kernels and devices refer to its shaders.
  static auto& known = *new std::map<Key, std::unique_ptr<const Shader>>();
  std::lock_guard lock(mutex);
  Key key{{code.begin(), code.end()}, {constants.begin(), constants.end()}};
  std::unique_ptr<const Shader>& shader = known[key];
  if (!shader) shader.reset(new Shader(std::string(name), std::move(key.first), std::move(key.second), known.size() - 1));
  return *shader;
}

Pipelines::Pipelines(const Connection& connection) : connection_(connection) {
  const VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, kMaxPushBytes};
  VkPipelineLayoutCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  info.pushConstantRangeCount = 1;
  info.pPushConstantRanges = &range;
  connection.check(connection->CreatePipelineLayout(connection.handle(), &info, nullptr, &layout_), "make a pipeline layout");
  cache_ = make_cache({});
}

Pipelines::~Pipelines() {
  if (!connection_.is_of_this_process()) return;
  for (const Pipeline& pipeline : made_)
    if (pipeline.handle) connection_->DestroyPipeline(connection_.handle(), pipeline.handle, nullptr);
  connection_->DestroyPipelineCache(connection_.handle(), cache_, nullptr);
  connection_->DestroyPipelineLayout(connection_.handle(), layout_, nullptr);
}

VkPipeline Pipelines::get(const Shader& shader) {
  Pipeline* pipeline = nullptr;
  {
    std::lock_guard lock(mutex_);
    while (shader.index() >= made_.size()) made_.emplace_back();
    pipeline = &made_[shader.index()];
  }
  std::call_once(pipeline->once, [&] {
    pipeline->handle = make(shader);
    num_made_.fetch_add(1);
  });
  return pipeline->handle;
}

VkPipelineCache Pipelines::make_cache(std::span<const std::byte> contents) const {
  VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  info.initialDataSize = contents.size();
  info.pInitialData = contents.data();
  VkPipelineCache cache = VK_NULL_HANDLE;
  connection_.check(connection_->CreatePipelineCache(connection_.handle(), &info, nullptr, &cache), "make a cache of pipelines");
  return cache;
}

void Pipelines::keep_in(const std::string& folder) {
  const PipelineFile file(folder, connection_.identity());
  std::lock_guard lock(mutex_);
  if (!files_.insert(file.path()).second) return;
  const std::vector<std::byte> contents = file.read();
  if (contents.empty()) return;
  const VkPipelineCache before = make_cache(contents);
  const VkResult merged = connection_->MergePipelineCaches(connection_.handle(), cache_, 1, &before);
  connection_->DestroyPipelineCache(connection_.handle(), before, nullptr);
  connection_.check(merged, "take pipelines from a file");
}

// Returns the bytes of the driver's pipeline cache. Asks again if the cache has grown after the driver reported its size, since other
// threads may make pipelines meanwhile.
std::vector<std::byte> Pipelines::compiled() const {
  std::vector<std::byte> contents;
  VkResult result = VK_INCOMPLETE;
  while (result == VK_INCOMPLETE) {
    size_t bytes = 0;
    connection_.check(connection_->GetPipelineCacheData(connection_.handle(), cache_, &bytes, nullptr), "tell what it has compiled");
    contents.resize(bytes);
    result = connection_->GetPipelineCacheData(connection_.handle(), cache_, &bytes, contents.data());
    contents.resize(bytes);
  }
  connection_.check(result, "tell what it has compiled");
  return contents;
}

void Pipelines::save() noexcept {
  const size_t made = num_made_.load();
  if (made == num_saved_.load()) return;
  try {
    std::lock_guard lock(mutex_);
    if (files_.empty()) return;
    num_saved_.store(made);
    const std::vector<std::byte> contents = compiled();
    for (const std::string& path : files_) PipelineFile::write(path, connection_.identity(), contents);
  } catch (const std::exception& error) {
    TREADLE_LOG(warning, "compiled pipelines are not kept: {}", error.what());
  }
}

VkPipeline Pipelines::make(const Shader& shader) const {
  if (const char* lack = find_lack(shader.code(), connection_.features()))
    throw Error(ErrorCode::not_implemented,
                fmt::format("the shader {} needs {}, which {} does not have", shader.name(), lack, connection_.name()));
  VkShaderModuleCreateInfo code{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  code.codeSize = shader.code().size_bytes();
  code.pCode = shader.code().data();
  const std::string what = fmt::format("compile the shader {}", shader.name());
  VkShaderModule module = VK_NULL_HANDLE;
  connection_.check(connection_->CreateShaderModule(connection_.handle(), &code, nullptr, &module), what.c_str());
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < shader.constants().size(); ++i) entries.push_back({i, i * 4U, 4});
  const VkSpecializationInfo values{static_cast<uint32_t>(entries.size()), entries.data(), shader.constants().size_bytes(),
                                    shader.constants().data()};
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, nullptr, 0, VK_SHADER_STAGE_COMPUTE_BIT, module, "main", &values};
  info.layout = layout_;
  VkPipeline pipeline = VK_NULL_HANDLE;
  const VkResult made = connection_->CreateComputePipelines(connection_.handle(), cache_, 1, &info, nullptr, &pipeline);
  connection_->DestroyShaderModule(connection_.handle(), module, nullptr);
  connection_.check(made, what.c_str());
  return pipeline;
}

}  // namespace treadle::vulkan
