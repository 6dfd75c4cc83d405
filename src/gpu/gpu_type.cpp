#include "gpu/gpu_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>

#include "core/devices/device_registry.h"
#include "device/vulkan/vulkan_device.h"
#include "gpu/launch.h"
#include "gpu/peaks.h"
#include "graph/graph.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

using vulkan::PhysicalDevice;

std::string listed(const std::vector<PhysicalDevice>& devices) {
  std::string text;
  for (size_t i = 0; i < devices.size(); ++i)
    text += fmt::format("{}gpu:{} is {}{}", i == 0 ? "" : ", ", i, devices[i].name,
                        devices[i].is_software ? ", which computes on the CPU" : "");
  return text.empty() ? "Vulkan finds none" : text;
}

// A software device, such as lavapipe, is used only if its index is given. So nothing runs on the CPU unnoticed.
size_t choose(const std::vector<PhysicalDevice>& devices, const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) {
    for (size_t i = 0; i < devices.size(); ++i)
      if ((!devices[i].is_software || takes_software()) && devices[i].lacks.empty()) return i;
    throw Error(ErrorCode::not_found, fmt::format("there is no GPU that can be used: {}", listed(devices)));
  }
  size_t index = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + colon + 1, end, index);
  if (error != std::errc{} || rest != end || index >= devices.size())
    throw Error(ErrorCode::not_found, fmt::format("there is no device \"{}\": {}", name, listed(devices)));
  return index;
}

// Sessions that use the same GPU share one Device, even if they name it in different ways.
std::shared_ptr<Device> make(const DeviceRequest& request) {
  static std::mutex mutex;
  static std::map<size_t, std::weak_ptr<vulkan::VulkanDevice>> made;
  const std::vector<PhysicalDevice> devices = vulkan::physical_devices();
  const size_t index = choose(devices, request.name);
  std::lock_guard lock(mutex);
  std::shared_ptr<vulkan::VulkanDevice> device = made[index].lock();
  if (!device || device->is_lost()) made[index] = device = vulkan::VulkanDevice::open(devices[index], fmt::format("gpu:{}", index));
  if (!request.cache_dir.empty()) device->keep_pipelines_in(std::string(request.cache_dir));
  return device;
}

class GpuKernels final : public KernelTable {
 public:
  DeviceKernel find(const Graph& graph, const Node& node) const override {
    // These kernels do not support nodes with captures (values that bodies read). All but those that generate tensors read input 0.
    const bool captures = node.inputs.size() != static_cast<size_t>(node.num_formal_inputs);
    if (!node.op || captures) return {};
    if (!node.has_input(0)) return node.inputs.empty() && !node.outputs.empty() ? find_random(graph, node) : DeviceKernel();
    // A recurrent layer may output only its last state, and a Split only some of its parts. So output 0 may be absent.
    if (node.outputs.empty() || node.outputs[0] == kNoValue) {
      const DeviceKernel moved = find_movement(graph, node);
      return moved.kernel ? moved : find_recurrent(graph, node);
    }
    const auto has_rank = [&](ValueId id) { return id == kNoValue || graph.type(id).has_rank(); };
    if (!std::all_of(node.inputs.begin(), node.inputs.end(), has_rank) ||
        !std::all_of(node.outputs.begin(), node.outputs.end(), has_rank)) {
      // These families' kernels check ranks when they are bound, so they also support nodes whose ranks are unknown before the run.
      for (const auto find : {find_pointwise, find_movement, find_product, find_row_kernel, find_recurrent, find_gather, find_clip,
                              find_integers, find_top_k, find_placing})
        if (const DeviceKernel found = find(graph, node); found.kernel) return found;
      return {};
    }
    if (node.domain == "ai.onnx.ml") {
      for (const auto find : {find_trees, find_linear, find_svm, find_columns, find_encoder, find_gather})
        if (const DeviceKernel found = find(graph, node); found.kernel) return found;
      return {};
    }
    for (const auto find :
         {find_pointwise, find_product,     find_row_kernel, find_movement, find_gather,  find_resampling,   find_recurrent,
          find_quantized, find_top_k,       find_found,      find_scatter,  find_placing, find_volume,       find_clip,
          find_integers,  find_blocked,     find_attention,  find_gradient, find_update,  find_sampling,     find_fourier,
          find_random,    find_determinant, find_narrow,     find_dropout,  find_cache,   find_gathered_rows})
      if (const DeviceKernel found = find(graph, node); found.kernel) return found;
    return {};
  }
};

}  // namespace

std::vector<Gpu> list_gpus() {
  std::vector<Gpu> gpus;
  for (const PhysicalDevice& device : vulkan::physical_devices())
    gpus.push_back({fmt::format("gpu:{}", gpus.size()), device.name, device.is_software, device.lacks, device.memory_bytes,
                    device.vendor_id, device.device_id, device.is_discrete});
  return gpus;
}

bool takes_software() {
  const char* const wish = std::getenv("TREADLE_SOFTWARE_GPU");
  return wish && std::string_view(wish) == "1";
}

std::vector<Gpu> offered_gpus() {
  std::vector<Gpu> gpus;
  try {
    gpus = list_gpus();
  } catch (const Error&) {  // no Vulkan: a session that names a GPU reports the reason
  }
  std::erase_if(gpus, [](const Gpu& gpu) { return !gpu.lacks.empty() || (gpu.is_software && !takes_software()); });
  return gpus;
}

void register_gpu_type() {
  static const bool once = [] {
    register_device_type({.name = "gpu",
                          .make = make,
                          .make_host = {},
                          .kernels = std::make_shared<GpuKernels>(),
                          .fused_operators = {"FusedElementwise", "ChainedConv", "ChainedMatMul", "ChainedGemm", "BlockedMatMul",
                                              "FusedAttention", "FusedRotary", "RoundedMatMul", "RoundedGemm", "QuantizedMatMul"},
                          .measure_peaks = measure_peaks});
    return true;
  }();
  (void)once;
}

}  // namespace treadle::gpu
