// Error messages for functions that Treadle does not support. Words in a function's name determine the reason in its message.
#include "ort_api/api.h"

namespace treadle::ort {

std::string missing_text(std::string_view name) {
  struct Reason {
    std::string_view part, text;
  };
  static constexpr Reason kReasons[] = {
      // These words are for functions of the additional tables.
      {"ExternalResource", "the CPU shares no memory or semaphores with other devices' interfaces"},
      {"ImportMemory", "the CPU shares no memory or semaphores with other devices' interfaces"},
      {"CreateTensorFromMemory", "the CPU shares no memory or semaphores with other devices' interfaces"},
      {"Semaphore", "the CPU shares no memory or semaphores with other devices' interfaces"},
      {"GraphicsInterop", "the CPU shares no memory or semaphores with other devices' interfaces"},
      {"ThreadPoolCallbacks", "nobody is told what threads take up"},
      {"OpaqueValue", "values are tensors, sparse tensors, sequences, maps and optionals"},
      {"ExecutionProviderLibrary", "other devices and backends are plugins of Treadle, which clients register by treadle/plugin.h"},
      {"WeightlessSourceModel", "a compiled model without weights is an execution provider's; the CPU runs ONNX models"},
      {"EpContextData", "contexts are an execution provider's; the CPU runs ONNX models"},
      {"SyncStream", "the CPU computes without streams"},
      {"KernelContext_GetResource", "resources are those of streams; the CPU computes without streams"},
      {"EpDevice_GetNumbers", "of the CPU nothing is counted"},
      {"ProviderOptions", "CPUExecutionProvider is the only execution provider, and has no options"},
      {"ExecutionProviderApi", "CPUExecutionProvider is the only execution provider, and has no interface of its own"},
      {"GpuDeviceId", "the CPU is the only device"},
  };
  std::string text = "Treadle does not have " + std::string(name);
  for (const Reason& reason : kReasons)
    if (name.find(reason.part) != std::string_view::npos) return text + ": " + std::string(reason.text);
  return text;
}

}  // namespace treadle::ort
