// Functions about devices and execution providers. The devices are the CPU, and GPUs that Vulkan finds.
#include <algorithm>
#include <functional>
#include <set>

#include "gpu/gpu_type.h"
#include "onnx/parse.h"
#include "ort_api/api.h"
#include "ort_api/providers.h"
#include "session/model.h"

void OrtKeyValuePairs::index() {
  keys.clear();
  values.clear();
  for (const auto& [key, value] : entries) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
}

namespace treadle::ort {
namespace {

constexpr uint32_t kDeviceIncompatible = 2;  // OrtDeviceEpIncompatibility_DEVICE_INCOMPATIBLE in ONNX Runtime

// Returns true for the policies PREFER_GPU (3) and MAX_PERFORMANCE (4).
bool prefers_gpu(OrtExecutionProviderDevicePolicy policy) { return policy == 3 || policy == 4; }

struct Vendor {
  const char* name;
  uint32_t id;  // the vendor's PCI id
};
Vendor vendor() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return {"Intel", 0x8086};
  if (__builtin_cpu_is("amd")) return {"AMD", 0x1022};
#endif
  return {"", 0};
}

// Returns the name of the vendor with this id in Vulkan. Ids up to 0xFFFF are PCI ids; Khronos assigns larger ones.
const char* vendor_of_gpu(uint32_t id) {
  switch (id) {
    case 0x1002: return "AMD";
    case 0x106B: return "Apple";
    case 0x10DE: return "NVIDIA";
    case 0x13B5: return "ARM";
    case 0x5143: return "Qualcomm";
    case 0x8086: return "Intel";
    case 0x10005: return "Mesa";
    default: return "";
  }
}

std::unique_ptr<const OrtEpDevice> device_of(const char* provider, std::string name, OrtHardwareDevice hardware) {
  auto made = std::make_unique<OrtEpDevice>();
  made->provider = provider;
  made->name = std::move(name);
  made->hardware = std::move(hardware);
  made->hardware.metadata.index();
  made->metadata.entries["version"] = kVersion;
  if (const size_t colon = made->name.find(':'); colon != std::string::npos)
    made->options.entries["device_id"] = made->name.substr(colon + 1);
  made->metadata.index();
  made->options.index();
  return made;
}

// Returns the CPU. Does not search for GPUs, since this would load Vulkan.
const OrtEpDevice& cpu_device() {
  static const auto device = device_of(kCpuProvider, "cpu", {OrtHardwareDeviceType_CPU, vendor().name, vendor().id, 0, {}});
  return *device;
}

struct Devices {
  std::vector<std::unique_ptr<const OrtEpDevice>> owned;
  std::vector<const OrtEpDevice*> pointers;
  std::vector<const OrtHardwareDevice*> hardware;
};
const Devices& all_devices() {
  static const Devices devices = [] {
    Devices made;
    made.pointers.push_back(&cpu_device());
    for (const gpu::Gpu& gpu : gpu::offered_gpus()) {
      OrtHardwareDevice hardware{OrtHardwareDeviceType_GPU, vendor_of_gpu(gpu.vendor_id), gpu.vendor_id, gpu.device_id, {}};
      hardware.metadata.entries = {{"Description", gpu.model}, {"Discrete", gpu.is_discrete ? "1" : "0"}};
      made.owned.push_back(device_of(kVulkanProvider, gpu.name, std::move(hardware)));
    }
    for (const auto& device : made.owned) made.pointers.push_back(device.get());
    for (const OrtEpDevice* device : made.pointers) made.hardware.push_back(&device->hardware);
    return made;
  }();
  return devices;
}

// Checks the size of a client's array. @throws Error(invalid_argument) if it is too small
void check_room(const char* what, size_t count, size_t room) {
  if (room < count)
    throw Error(ErrorCode::invalid_argument,
                std::string("Number of ") + what + " " + std::to_string(count) + " exceeds the provided size of " + std::to_string(room));
}

// Returns the names of all values that nodes read or that are outputs of the model.
std::set<std::string> read_values(const OrtSession& session) {
  std::set<std::string> read;
  const std::function<void(const onnx::GraphDef&)> add = [&](const onnx::GraphDef& graph) {
    for (const onnx::NodeDef& node : graph.nodes) {
      read.insert(node.inputs.begin(), node.inputs.end());
      for (const onnx::AttributeDef& attribute : node.attributes)
        if (attribute.g) add(*attribute.g);
    }
  };
  add(session.running().model().impl().def.graph);
  return read;
}

void add_pairs(OrtApi& table) {
  table.CreateKeyValuePairs = [](OrtKeyValuePairs** out) { *out = new (std::nothrow) OrtKeyValuePairs(); };
  table.ReleaseKeyValuePairs = [](OrtKeyValuePairs* pairs) { delete pairs; };
  table.AddKeyValuePair = [](OrtKeyValuePairs* pairs, const char* key, const char* value) {
    if (pairs == nullptr || key == nullptr || *key == '\0' || value == nullptr) return;
    pairs->entries[key] = value;
    pairs->index();
  };
  table.RemoveKeyValuePair = [](OrtKeyValuePairs* pairs, const char* key) {
    if (pairs == nullptr || key == nullptr) return;
    pairs->entries.erase(key);
    pairs->index();
  };
  table.GetKeyValue = [](const OrtKeyValuePairs* pairs, const char* key) -> const char* {
    const auto found = pairs->entries.find(key);
    return found != pairs->entries.end() ? found->second.c_str() : nullptr;
  };
  table.GetKeyValuePairs = [](const OrtKeyValuePairs* pairs, const char* const** keys, const char* const** values, size_t* count) {
    *keys = pairs->keys.data();
    *values = pairs->values.data();
    *count = pairs->keys.size();
  };
}

// Sets *out to the compatibility information that the model's metadata contain for the provider, in memory from the allocator; null if
// there is none. A model that is compiled for one of our providers has none, because it is an ONNX model that any build can run.
void compatibility_of(const onnx::ModelDef& model, const char* provider, OrtAllocator* allocator, char** out) {
  const std::map<std::string, std::string> custom = metadata_of(model).custom;
  const auto found = custom.find(std::string("ep_compatibility_info.") + provider);
  *out = found != custom.end() ? copy_text(allocator, found->second) : nullptr;
}

void add_compatibility(OrtApi& table) {
  table.GetModelCompatibilityForEpDevices = [](const OrtEpDevice* const* devices, size_t count, const char* info,
                                               OrtCompiledModelCompatibility* out) {
    return guarded([&] {
      if (count == 0) throw Error(ErrorCode::invalid_argument, "there are no devices");
      required(devices, "ep_devices"), chars_of(info, "compatibility_info");
      required(out, "out_status") = 0;  // "not applicable"
    });
  };
  table.GetCompatibilityInfoFromModel = [](const char* path, const char* provider, OrtAllocator* allocator, char** out) {
    return guarded([&] {
      chars_of(path, "model_path");
      required(allocator, "allocator"), required(out, "compatibility_info");
      if (*chars_of(provider, "ep_type") == '\0')
        throw Error(ErrorCode::invalid_argument, "Invalid argument provided: the provider has no name");
      compatibility_of(onnx::parse_model_file(path, {.load_external = false}), provider, allocator, out);
    });
  };
  table.GetCompatibilityInfoFromModelBytes = [](const void* data, size_t size, const char* provider, OrtAllocator* allocator, char** out) {
    return guarded([&] {
      const auto* bytes = &required(static_cast<const std::byte*>(data), "model_data");
      required(allocator, "allocator"), required(out, "compatibility_info");
      if (size == 0 || *chars_of(provider, "ep_type") == '\0')
        throw Error(ErrorCode::invalid_argument, "Invalid argument provided: the model has no bytes, or the provider no name");
      compatibility_of(onnx::parse_model_bytes({bytes, size}, nullptr, {}, {.load_external = false}), provider, allocator, out);
    });
  };
  table.GetHardwareDeviceEpIncompatibilityDetails = [](const OrtEnv* env, const char* provider, const OrtHardwareDevice* device,
                                                       OrtDeviceEpIncompatibilityDetails** out) {
    return guarded([&] {
      required(env, "env");
      required(device, "hw");
      const std::string name = chars_of(provider, "ep_name");
      const char* known = find_provider(name);
      if (known == nullptr || name != known)
        throw Error(ErrorCode::invalid_argument,
                    "there is no execution provider " + name + "; " + kCpuProvider + " and " + kVulkanProvider + " are there");
      auto made = std::make_unique<OrtDeviceEpIncompatibilityDetails>();
      if (device->type != (known == kCpuProvider ? OrtHardwareDeviceType_CPU : OrtHardwareDeviceType_GPU)) {
        made->reasons = kDeviceIncompatible;
        made->notes = name + " has no kernels for devices of this type";
      }
      required(out, "details") = made.release();
    });
  };
  table.DeviceEpIncompatibilityDetails_GetReasonsBitmask = [](const OrtDeviceEpIncompatibilityDetails* details, uint32_t* out) {
    return guarded([&] { required(out, "reasons_bitmask") = required(details, "details").reasons; });
  };
  table.DeviceEpIncompatibilityDetails_GetNotes = [](const OrtDeviceEpIncompatibilityDetails* details, const char** out) {
    return guarded([&] { required(out, "notes") = required(details, "details").notes.empty() ? nullptr : details->notes.c_str(); });
  };
  table.DeviceEpIncompatibilityDetails_GetErrorCode = [](const OrtDeviceEpIncompatibilityDetails* details, int32_t* out) {
    return guarded([&] { required(out, "error_code") = required(details, "details").error_code; });
  };
  table.ReleaseDeviceEpIncompatibilityDetails = [](OrtDeviceEpIncompatibilityDetails* details) { delete details; };
}

// Sets the functions about the assignment of nodes to execution providers.
void add_assignment(OrtApi& table) {
  table.Session_GetEpGraphAssignmentInfo = [](const OrtSession* session, const OrtEpAssignedSubgraph* const** out, size_t* count) {
    return guarded([&] {
      const OrtSession& of = required(session, "session");
      if (!of.tells_assignment)
        throw StatusError(ORT_FAIL,
                          "Session configuration entry 'session.record_ep_graph_assignment_info' must be set to \"1\" to retrieve EP "
                          "graph assignment information.");
      required(out, "ep_subgraphs") = of.assigned_pointers.data();
      required(count, "num_ep_subgraphs") = of.assigned_pointers.size();
    });
  };
  table.EpAssignedSubgraph_GetEpName = [](const OrtEpAssignedSubgraph* assigned, const char** out) {
    return guarded([&] { required(out, "out") = required(assigned, "ep_subgraph").provider; });
  };
  table.EpAssignedSubgraph_GetNodes = [](const OrtEpAssignedSubgraph* assigned, const OrtEpAssignedNode* const** out, size_t* count) {
    return guarded([&] {
      required(out, "ep_nodes") = &required(assigned, "ep_subgraph").pointer;
      required(count, "num_ep_nodes") = 1;
    });
  };
  table.EpAssignedNode_GetName = [](const OrtEpAssignedNode* node, const char** out) {
    return guarded([&] { required(out, "out") = required(node, "ep_node").name.c_str(); });
  };
  table.EpAssignedNode_GetDomain = [](const OrtEpAssignedNode* node, const char** out) {
    return guarded([&] { required(out, "out") = required(node, "ep_node").domain.c_str(); });
  };
  table.EpAssignedNode_GetOperatorType = [](const OrtEpAssignedNode* node, const char** out) {
    return guarded([&] { required(out, "out") = required(node, "ep_node").op_type.c_str(); });
  };
  // These two functions only check their arguments: no provider captures graphs, or has options that change after loading.
  table.SessionReleaseCapturedGraph = [](OrtSession* session, int) { return guarded([&] { required(session, "session"); }); };
  table.SetEpDynamicOptions = [](OrtSession* session, const char* const*, const char* const*, size_t count) {
    return guarded([&] {
      if (count == 0) throw Error(ErrorCode::invalid_argument, "no inputs were passed");
      required(session, "session").running();
    });
  };
}

const OrtSession& ready(const OrtSession* session) {
  if (!required(session, "session").session) throw Error(ErrorCode::invalid_argument, "Session has not been initialized.");
  return *session;
}

// Sets the functions that say in which memory and on which device a session's inputs and outputs are.
void add_places(OrtApi& table) {
  table.SessionGetMemoryInfoForInputs = [](const OrtSession* session, const OrtMemoryInfo** infos, size_t room) {
    return guarded([&] {
      const size_t count = ready(session).inputs.size();
      check_room("inputs", count, room);
      std::fill_n(infos, count, &memory_of(*session));
    });
  };
  table.SessionGetMemoryInfoForOutputs = [](const OrtSession* session, const OrtMemoryInfo** infos, size_t room) {
    return guarded([&] {
      const size_t count = ready(session).outputs.size();
      check_room("outputs", count, room);
      std::fill_n(infos, count, &memory_of(*session));
    });
  };
  // Sets the device to null for an input that no node reads, and for unused elements of the array.
  table.SessionGetEpDeviceForInputs = [](const OrtSession* session, const OrtEpDevice** devices, size_t room) {
    return guarded([&] {
      const std::vector<ValueInfo>& inputs = ready(session).inputs;
      if (room == 0) throw Error(ErrorCode::invalid_argument, "Invalid argument provided to SessionGetEpDeviceForInputs: no room");
      check_room("inputs", inputs.size(), room);
      const std::set<std::string> read = read_values(*session);
      const OrtEpDevice* const device = &ep_device_named(session->running().options().device);
      for (size_t i = 0; i < room; ++i) devices[i] = i < inputs.size() && read.contains(inputs[i].name) ? device : nullptr;
    });
  };
  table.SessionGetEpDeviceForOutputs = [](const OrtSession* session, const OrtEpDevice** devices, size_t room) {
    return guarded([&] {
      const size_t count = ready(session).outputs.size();
      if (room == 0) throw Error(ErrorCode::invalid_argument, "Invalid argument provided to SessionGetEpDeviceForOutputs: no room");
      check_room("outputs", count, room);
      const OrtEpDevice* const device = &ep_device_named(session->running().options().device);
      for (size_t i = 0; i < room; ++i) devices[i] = i < count ? device : nullptr;
    });
  };
}

}  // namespace

std::span<const OrtEpDevice* const> ep_devices() { return all_devices().pointers; }

const OrtEpDevice& ep_device_named(std::string_view name) {
  if (provider_of(name) == kCpuProvider) return cpu_device();
  for (const OrtEpDevice* device : ep_devices())
    if (device->provider == kVulkanProvider && (device->name == name || name == "gpu")) return *device;
  return cpu_device();
}

void add_devices(OrtApi& table) {
  add_pairs(table);
  add_compatibility(table);
  add_assignment(table);
  add_places(table);
  table.GetAvailableProviders = [](char*** out, int* count) {
    return guarded([&] {
      std::vector<const char*> providers{kCpuProvider};
      if (ep_devices().size() > 1) providers.insert(providers.begin(), kVulkanProvider);
      auto names = std::make_unique<char*[]>(providers.size());
      for (size_t i = 0; i < providers.size(); ++i) names[i] = copy_text(&default_allocator(), providers[i]);
      required(out, "out_ptr") = names.release();
      required(count, "provider_length") = static_cast<int>(providers.size());
    });
  };
  table.ReleaseAvailableProviders = [](char** names, int count) -> OrtStatus* {
    for (int i = 0; i < count; ++i) default_allocator().Free(&default_allocator(), names[i]);
    delete[] names;
    return nullptr;
  };
  table.GetEpDevices = [](const OrtEnv*, const OrtEpDevice* const** out, size_t* count) {
    return guarded([&] {
      required(out, "ep_devices") = ep_devices().data();
      required(count, "num_ep_devices") = ep_devices().size();
    });
  };
  table.SessionOptionsAppendExecutionProvider_V2 = [](OrtSessionOptions* options, OrtEnv*, const OrtEpDevice* const* devices, size_t count,
                                                      const char* const* keys, const char* const* values, size_t num_options) {
    return guarded([&] {
      required(options, "session_options");
      if (count == 0 || devices == nullptr) throw Error(ErrorCode::invalid_argument, "Must provide one or more OrtEpDevice instances.");
      append_devices(*options, {devices, count}, provider_options(keys, values, num_options));
    });
  };
  table.UnregisterExecutionProviderLibrary = [](OrtEnv*, const char* name) {
    return make_status(ORT_FAIL,
                       ("Execution provider library: " + std::string(name != nullptr ? name : "") + " was not registered.").c_str());
  };
  table.SessionOptionsSetEpSelectionPolicyDelegate = [](OrtSessionOptions* options, EpSelectionDelegate delegate, void* state) {
    return guarded([&] {
      required(options, "session_options").select_devices = delegate;
      options->select_devices_state = state;
    });
  };
  table.SessionOptionsSetEpSelectionPolicy = [](OrtSessionOptions* options, OrtExecutionProviderDevicePolicy policy) {
    return guarded([&] { required(options, "session_options").prefers_gpu = prefers_gpu(policy); });
  };
  table.EpDevice_EpName = [](const OrtEpDevice* device) { return device->provider; };
  table.EpDevice_EpVendor = [](const OrtEpDevice*) { return "Treadle"; };
  table.EpDevice_EpMetadata = [](const OrtEpDevice* device) -> const OrtKeyValuePairs* { return &device->metadata; };
  table.EpDevice_EpOptions = [](const OrtEpDevice* device) -> const OrtKeyValuePairs* { return &device->options; };
  table.EpDevice_Device = [](const OrtEpDevice* device) -> const OrtHardwareDevice* { return &device->hardware; };
  // Returns null, as ONNX Runtime does for the CPU. Clients cannot access GPU memory, because values are copied to the host.
  table.EpDevice_MemoryInfo = [](const OrtEpDevice*, OrtDeviceMemoryType) -> const OrtMemoryInfo* { return nullptr; };
  table.GetNumHardwareDevices = [](const OrtEnv* environment, size_t* count) {
    return guarded([&] {
      required(environment, "env");
      required(count, "num_devices") = all_devices().hardware.size();
    });
  };
  table.GetHardwareDevices = [](const OrtEnv* environment, const OrtHardwareDevice** devices, size_t count) {
    return guarded([&] {
      required(environment, "env");
      const std::vector<const OrtHardwareDevice*>& all = all_devices().hardware;
      check_room("hardware devices", all.size(), count);
      std::copy(all.begin(), all.end(), &required(devices, "devices"));
    });
  };
  table.HardwareDevice_Type = [](const OrtHardwareDevice* device) { return device->type; };
  table.HardwareDevice_VendorId = [](const OrtHardwareDevice* device) { return device->vendor_id; };
  table.HardwareDevice_DeviceId = [](const OrtHardwareDevice* device) { return device->device_id; };
  table.HardwareDevice_Vendor = [](const OrtHardwareDevice* device) { return device->vendor.c_str(); };
  table.HardwareDevice_Metadata = [](const OrtHardwareDevice* device) -> const OrtKeyValuePairs* { return &device->metadata; };
}

}  // namespace treadle::ort
