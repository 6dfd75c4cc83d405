// The available devices: only the CPU.
#include <algorithm>
#include <functional>
#include <set>

#include "onnx/parse.h"
#include "ort_api/api.h"
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

constexpr const char* kCpuProvider = "CPUExecutionProvider";

struct Vendor {
  const char* name;
  uint32_t id;  // PCI vendor id
};
Vendor vendor() {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) return {"Intel", 0x8086};
  if (__builtin_cpu_is("amd")) return {"AMD", 0x1022};
#endif
  return {"", 0};
}

// @throws Error(invalid_argument) if the array is too small. Unused elements of a larger one stay null.
void check_room(const char* what, size_t count, size_t room) {
  if (room < count)
    throw Error(ErrorCode::invalid_argument,
                std::string("Number of ") + what + " " + std::to_string(count) + " exceeds the provided size of " + std::to_string(room));
}

// The values that nodes read or that are outputs.
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

// Compatibility of a model made for an execution provider. For the CPU these are ONNX models, which any build can run.
void compatibility_of(const onnx::ModelDef& model, const char* provider, OrtAllocator* allocator, char** out) {
  const std::map<std::string, std::string> custom = metadata_of(model).custom;
  const auto found = custom.find(std::string("ep_compatibility_info.") + provider);
  required(allocator, "allocator");
  required(out, "compatibility_info") = found != custom.end() ? copy_text(allocator, found->second) : nullptr;
}

void add_compatibility(OrtApi& table) {
  table.GetModelCompatibilityForEpDevices = [](const OrtEpDevice* const* devices, size_t count, const char* info,
                                               OrtCompiledModelCompatibility* out) {
    return guarded([&] {
      if (count == 0) throw Error(ErrorCode::invalid_argument, "there are no devices");
      required(devices, "ep_devices"), chars_of(info, "compatibility_info");
      required(out, "out_status") = 0;  // not applicable
    });
  };
  table.GetCompatibilityInfoFromModel = [](const char* path, const char* provider, OrtAllocator* allocator, char** out) {
    return guarded([&] {
      chars_of(path, "model_path");
      if (*chars_of(provider, "ep_type") == '\0')
        throw Error(ErrorCode::invalid_argument, "Invalid argument provided: the provider has no name");
      compatibility_of(onnx::parse_model_file(path, {.load_external = false}), provider, allocator, out);
    });
  };
  table.GetCompatibilityInfoFromModelBytes = [](const void* data, size_t size, const char* provider, OrtAllocator* allocator, char** out) {
    return guarded([&] {
      const auto* bytes = &required(static_cast<const std::byte*>(data), "model_data");
      if (size == 0 || *chars_of(provider, "ep_type") == '\0')
        throw Error(ErrorCode::invalid_argument, "Invalid argument provided: the model has no bytes, or the provider no name");
      compatibility_of(onnx::parse_model_bytes({bytes, size}, nullptr, {}, {.load_external = false}), provider, allocator, out);
    });
  };
  table.GetHardwareDeviceEpIncompatibilityDetails = [](const OrtEnv*, const char* provider, const OrtHardwareDevice* device,
                                                       OrtDeviceEpIncompatibilityDetails** out) {
    return guarded([&] {
      required(device, "hw");
      if (const std::string name = chars_of(provider, "ep_name"); name != kCpuProvider)
        throw Error(ErrorCode::invalid_argument, "there is no execution provider " + name + "; " + kCpuProvider + " is there");
      required(out, "details") = new OrtDeviceEpIncompatibilityDetails();
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

// The assignment of nodes to execution providers: all run on the CPU.
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
  table.EpAssignedSubgraph_GetEpName = [](const OrtEpAssignedSubgraph*, const char** out) {
    return guarded([&] { required(out, "out") = kCpuProvider; });
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
  // No provider with these settings keeps data between runs, or has options that change at run time.
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

// The memory in which a session expects inputs and leaves outputs.
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
  // An input that no node reads is on no device.
  table.SessionGetEpDeviceForInputs = [](const OrtSession* session, const OrtEpDevice** devices, size_t room) {
    return guarded([&] {
      const std::vector<ValueInfo>& inputs = ready(session).inputs;
      check_room("inputs", inputs.size(), room);
      const std::set<std::string> read = read_values(*session);
      for (size_t i = 0; i < room; ++i) devices[i] = i < inputs.size() && read.contains(inputs[i].name) ? &cpu_device() : nullptr;
    });
  };
  table.SessionGetEpDeviceForOutputs = [](const OrtSession* session, const OrtEpDevice** devices, size_t room) {
    return guarded([&] {
      const size_t count = ready(session).outputs.size();
      check_room("outputs", count, room);
      for (size_t i = 0; i < room; ++i) devices[i] = i < count ? &cpu_device() : nullptr;
    });
  };
}

}  // namespace

const OrtEpDevice& cpu_device() {
  static const OrtEpDevice device = [] {
    OrtEpDevice made{{vendor().name, {}}, {}, {}};
    made.metadata.entries["version"] = kVersion;
    made.metadata.index();
    return made;
  }();
  return device;
}

void add_devices(OrtApi& table) {
  add_pairs(table);
  add_compatibility(table);
  add_assignment(table);
  add_places(table);
  table.GetAvailableProviders = [](char*** out, int* count) {
    return guarded([&] {
      auto names = std::make_unique<char*[]>(1);
      names[0] = copy_text(&default_allocator(), kCpuProvider);
      required(out, "out_ptr") = names.release();
      required(count, "provider_length") = 1;
    });
  };
  table.ReleaseAvailableProviders = [](char** names, int count) -> OrtStatus* {
    for (int i = 0; i < count; ++i) default_allocator().Free(&default_allocator(), names[i]);
    delete[] names;
    return nullptr;
  };
  table.GetEpDevices = [](const OrtEnv*, const OrtEpDevice* const** out, size_t* count) {
    return guarded([&] {
      static const OrtEpDevice* const devices[] = {&cpu_device()};
      required(out, "ep_devices") = devices;
      required(count, "num_ep_devices") = 1;
    });
  };
  table.SessionOptionsAppendExecutionProvider_V2 = [](OrtSessionOptions* options, OrtEnv*, const OrtEpDevice* const* devices, size_t count,
                                                      const char* const*, const char* const*, size_t) {
    return guarded([&] {
      required(options, "session_options");
      if (count == 0 || devices == nullptr) throw Error(ErrorCode::invalid_argument, "Must provide one or more OrtEpDevice instances.");
      for (size_t i = 0; i < count; ++i) required(devices[i], "a device");  // the CPU is the only device
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
  table.SessionOptionsSetEpSelectionPolicy = [](OrtSessionOptions*, OrtExecutionProviderDevicePolicy) -> OrtStatus* { return nullptr; };
  table.EpDevice_EpName = [](const OrtEpDevice*) { return kCpuProvider; };
  table.EpDevice_EpVendor = [](const OrtEpDevice*) { return "Treadle"; };
  table.EpDevice_EpMetadata = [](const OrtEpDevice* device) -> const OrtKeyValuePairs* { return &device->metadata; };
  table.EpDevice_EpOptions = [](const OrtEpDevice* device) -> const OrtKeyValuePairs* { return &device->options; };
  table.EpDevice_Device = [](const OrtEpDevice* device) -> const OrtHardwareDevice* { return &device->hardware; };
  // Null, as in ONNX Runtime: the CPU has no memory besides the process's.
  table.EpDevice_MemoryInfo = [](const OrtEpDevice*, OrtDeviceMemoryType) -> const OrtMemoryInfo* { return nullptr; };
  table.GetNumHardwareDevices = [](const OrtEnv* environment, size_t* count) {
    return guarded([&] {
      required(environment, "env");
      required(count, "num_devices") = 1;
    });
  };
  table.GetHardwareDevices = [](const OrtEnv* environment, const OrtHardwareDevice** devices, size_t count) {
    return guarded([&] {
      required(environment, "env");
      check_room("hardware devices", 1, count);
      required(devices, "devices") = &cpu_device().hardware;
    });
  };
  table.HardwareDevice_Type = [](const OrtHardwareDevice*) { return OrtHardwareDeviceType_CPU; };
  table.HardwareDevice_VendorId = [](const OrtHardwareDevice*) { return vendor().id; };
  table.HardwareDevice_DeviceId = [](const OrtHardwareDevice*) { return uint32_t{0}; };
  table.HardwareDevice_Vendor = [](const OrtHardwareDevice* device) { return device->vendor.c_str(); };
  table.HardwareDevice_Metadata = [](const OrtHardwareDevice* device) -> const OrtKeyValuePairs* { return &device->metadata; };
}

}  // namespace treadle::ort
