// LoRA adapters: files with parameters. A run that uses an adapter gets these parameters in addition to its inputs.
#include "ort_api/api.h"

namespace treadle::ort {
namespace {

// Loads an adapter. Like ONNX Runtime, reports invalid bytes by the status FAIL, and a missing file as an invalid argument.
template <typename Load>
OrtStatus* load(OrtLoraAdapter** out, const void* given, Load&& read) {
  return guarded([&] {
    required(static_cast<const std::byte*>(given), "the adapter");
    try {
      required(out, "out") = new OrtLoraAdapter{std::make_shared<const Adapter>(read())};
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) throw StatusError(ORT_INVALID_ARGUMENT, error.what());
      if (error.code() == ErrorCode::invalid_argument)
        throw StatusError(ORT_FAIL, std::string("The buffer does not appear to be a valid lora parameter format: ") + error.what());
      throw;
    }
  });
}

}  // namespace

void add_adapters(OrtApi& table) {
  // Ignores the allocator, which is meant for memory of devices: an adapter's tensors are in the library's memory.
  table.CreateLoraAdapter = [](const char* path, OrtAllocator*, OrtLoraAdapter** out) {
    return load(out, path, [&] { return Adapter::load(path); });
  };
  table.CreateLoraAdapterFromArray = [](const void* bytes, size_t size, OrtAllocator*, OrtLoraAdapter** out) {
    return load(out, bytes, [&] { return Adapter::from_bytes({static_cast<const std::byte*>(bytes), size}); });
  };
  table.ReleaseLoraAdapter = [](OrtLoraAdapter* adapter) { delete adapter; };
  table.RunOptionsAddActiveLoraAdapter = [](OrtRunOptions* options, const OrtLoraAdapter* adapter) {
    return guarded([&] { required(options, "options").options.adapters.push_back(required(adapter, "adapter").adapter); });
  };
}

}  // namespace treadle::ort
