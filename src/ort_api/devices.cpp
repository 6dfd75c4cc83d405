// The devices that there are: the CPU.
#include "ort_api/api.h"

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

const OrtEpDevice& cpu() {
  static const OrtEpDevice device{{"", {}}, {}, {}};
  return device;
}

const OrtMemoryInfo& cpu_memory() {
  static const OrtMemoryInfo info;
  return info;
}

void add_pairs(OrtApi& table) {
  table.CreateKeyValuePairs = [](OrtKeyValuePairs** out) { *out = new (std::nothrow) OrtKeyValuePairs(); };
  table.ReleaseKeyValuePairs = [](OrtKeyValuePairs* pairs) { delete pairs; };
  table.AddKeyValuePair = [](OrtKeyValuePairs* pairs, const char* key, const char* value) {
    if (key == nullptr || *key == '\0' || value == nullptr) return;
    pairs->entries[key] = value;
    pairs->index();
  };
  table.RemoveKeyValuePair = [](OrtKeyValuePairs* pairs, const char* key) {
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

}  // namespace

void add_devices(OrtApi& table) {
  add_pairs(table);
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
      static const OrtEpDevice* const devices[] = {&cpu()};
      required(out, "ep_devices") = devices;
      required(count, "num_ep_devices") = 1;
    });
  };
  table.SessionOptionsAppendExecutionProvider_V2 = [](OrtSessionOptions*, OrtEnv*, const OrtEpDevice* const*, size_t, const char* const*,
                                                      const char* const*,
                                                      size_t) -> OrtStatus* { return nullptr; };  // the CPU is all there is
  table.SessionOptionsSetEpSelectionPolicy = [](OrtSessionOptions*, OrtExecutionProviderDevicePolicy) -> OrtStatus* { return nullptr; };
  table.EpDevice_EpName = [](const OrtEpDevice*) { return kCpuProvider; };
  table.EpDevice_EpVendor = [](const OrtEpDevice*) { return "Treadle"; };
  table.EpDevice_EpMetadata = [](const OrtEpDevice* device) -> const OrtKeyValuePairs* { return &device->metadata; };
  table.EpDevice_EpOptions = [](const OrtEpDevice* device) -> const OrtKeyValuePairs* { return &device->options; };
  table.EpDevice_Device = [](const OrtEpDevice* device) -> const OrtHardwareDevice* { return &device->hardware; };
  table.EpDevice_MemoryInfo = [](const OrtEpDevice*, OrtDeviceMemoryType) { return &cpu_memory(); };
  table.GetNumHardwareDevices = [](const OrtEnv*, size_t* count) { return guarded([&] { required(count, "num_devices") = 1; }); };
  table.GetHardwareDevices = [](const OrtEnv*, const OrtHardwareDevice** devices, size_t count) {
    return guarded([&] {
      if (count > 0) *devices = &cpu().hardware;
    });
  };
  table.HardwareDevice_Type = [](const OrtHardwareDevice*) { return OrtHardwareDeviceType_CPU; };
  table.HardwareDevice_VendorId = table.HardwareDevice_DeviceId = [](const OrtHardwareDevice*) { return uint32_t{0}; };
  table.HardwareDevice_Vendor = [](const OrtHardwareDevice* device) { return device->vendor.c_str(); };
  table.HardwareDevice_Metadata = [](const OrtHardwareDevice* device) -> const OrtKeyValuePairs* { return &device->metadata; };
  table.SessionGetMemoryInfoForInputs =
      table.SessionGetMemoryInfoForOutputs = [](const OrtSession*, const OrtMemoryInfo** infos, size_t count) {
        return guarded([&] {
          for (size_t i = 0; i < count; ++i) infos[i] = &cpu_memory();
        });
      };
  table.SessionGetEpDeviceForInputs =
      table.SessionGetEpDeviceForOutputs = [](const OrtSession*, const OrtEpDevice** devices, size_t count) {
        return guarded([&] {
          for (size_t i = 0; i < count; ++i) devices[i] = &cpu();
        });
      };
}

}  // namespace treadle::ort
