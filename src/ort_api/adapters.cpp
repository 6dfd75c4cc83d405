// Adapters of LoRA: what a run is fed besides its own inputs.
#include "ort_api/api.h"

namespace treadle::ort {

void add_adapters(OrtApi& table) {
  // Tensors are in the library's memory; an allocator, of a device, is only asked for by other providers.
  table.CreateLoraAdapter = [](const char* path, OrtAllocator*, OrtLoraAdapter** out) {
    return guarded([&] {
      auto adapter = std::make_shared<const Adapter>(Adapter::load(chars_of(path, "adapter_file_path")));
      required(out, "out") = new OrtLoraAdapter{std::move(adapter)};
    });
  };
  table.CreateLoraAdapterFromArray = [](const void* bytes, size_t size, OrtAllocator*, OrtLoraAdapter** out) {
    return guarded([&] {
      const auto* data = &required(static_cast<const std::byte*>(bytes), "bytes");
      required(out, "out") = new OrtLoraAdapter{std::make_shared<const Adapter>(Adapter::from_bytes({data, size}))};
    });
  };
  table.ReleaseLoraAdapter = [](OrtLoraAdapter* adapter) { delete adapter; };
  table.RunOptionsAddActiveLoraAdapter = [](OrtRunOptions* options, const OrtLoraAdapter* adapter) {
    return guarded([&] { required(options, "options").options.adapters.push_back(required(adapter, "adapter").adapter); });
  };
}

}  // namespace treadle::ort
