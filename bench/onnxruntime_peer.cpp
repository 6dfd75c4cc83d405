#include "onnxruntime_peer.h"

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

namespace treadle::bench {
namespace {

// Positions of functions in the table OrtApi. The positions never change, because new versions of ONNX Runtime only append functions.
enum At : size_t {
  kErrorMessage = 2,
  kCreateSession = 7,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetLogSeverity = 22,
  kSetIntraThreads = 24,
  kInputCount = 30,
  kOutputCount = 31,
  kInputName = 36,
  kOutputName = 37,
  kCreateTensor = 48,
  kCreateTensorWithData = 49,
  kFillStrings = 52,
  kCreateCpuMemoryInfo = 69,
  kAllocatorFree = 76,
  kDefaultAllocator = 78,
  kReleaseStatus = 93,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseSessionOptions = 100,
  kCreateEnvWithGlobalPools = 119,
  kDisablePerSessionThreads = 120,
  kCreateThreadingOptions = 121,
  kAddConfigEntry = 130,
};
constexpr uint32_t kVersion = 17;
constexpr int kFatalOnly = 4, kDeviceAllocator = 0, kDefaultMemory = 0;

struct Base {
  void* const* (*get_api)(uint32_t version);
  const char* (*version)();
};

}  // namespace

// Calls a function of the table that returns a status; a null status means success. @throws std::runtime_error for any other status
template <typename... Args>
void OnnxRuntime::call(size_t position, Args... args) const {
  void* status = reinterpret_cast<void* (*)(Args...)>(table_[position])(args...);
  if (!status) return;
  std::string text = reinterpret_cast<const char* (*)(void*)>(table_[kErrorMessage])(status);
  reinterpret_cast<void (*)(void*)>(table_[kReleaseStatus])(status);
  throw std::runtime_error("onnxruntime: " + text);
}

OnnxRuntime::OnnxRuntime(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  auto get_base = reinterpret_cast<const Base* (*)()>(dlsym(library, "OrtGetApiBase"));
  if (!get_base || !(table_ = get_base()->get_api(kVersion))) throw std::runtime_error(path + " has no C interface of version 17");
  void* threading = nullptr;
  call(kCreateThreadingOptions, &threading);
  call(kCreateEnvWithGlobalPools, kFatalOnly, "bench", threading, &env_);
  call(kCreateCpuMemoryInfo, kDeviceAllocator, kDefaultMemory, &memory_);
  call(kDefaultAllocator, &allocator_);
}

std::vector<std::string> OnnxRuntime::names(void* session, size_t count_at, size_t name_at) const {
  size_t count = 0;
  call(count_at, session, &count);
  std::vector<std::string> result;
  for (size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    call(name_at, session, i, allocator_, &name);
    result.emplace_back(name);
    call(kAllocatorFree, allocator_, name);
  }
  return result;
}

OnnxRuntime::Session::Session(const OnnxRuntime& runtime, const std::string& model, const Settings& settings,
                              const std::map<std::string, Datum>& feeds)
    : runtime_(runtime), feeds_(feeds) {
  void* options = nullptr;
  runtime.call(kCreateSessionOptions, &options);
  runtime.call(kSetLogSeverity, options, kFatalOnly);
  if (settings.global_pool)
    runtime.call(kDisablePerSessionThreads, options);
  else if (settings.threads > 0)
    runtime.call(kSetIntraThreads, options, settings.threads);
  if (!settings.spinning) runtime.call(kAddConfigEntry, options, "session.intra_op.allow_spinning", "0");
  runtime.call(kCreateSession, runtime.env_, model.c_str(), options, &session_);
  reinterpret_cast<void (*)(void*)>(runtime.table_[kReleaseSessionOptions])(options);
  for (const std::string& name : runtime.names(session_, kInputCount, kInputName)) {
    auto found = feeds_.find(name);
    if (found == feeds_.end()) continue;  // the input has a default value, an initializer
    const Tensor& tensor = found->second.tensor();
    const auto dims = tensor.shape().dims();
    void* value = nullptr;
    if (tensor.dtype() == DType::string) {
      runtime.call(kCreateTensor, runtime.allocator_, dims.data(), dims.size(), static_cast<int>(tensor.dtype()), &value);
      std::vector<const char*> texts;
      for (const std::string& text : tensor.span<std::string>()) texts.push_back(text.c_str());
      runtime.call(kFillStrings, value, texts.data(), texts.size());
    } else {
      runtime.call(kCreateTensorWithData, runtime.memory_, const_cast<void*>(static_cast<const void*>(tensor.raw())), tensor.size_bytes(),
                   dims.data(), dims.size(), static_cast<int>(tensor.dtype()), &value);
    }
    input_names_.push_back(name);
    values_.push_back(value);
  }
  output_names_ = runtime.names(session_, kOutputCount, kOutputName);
}

OnnxRuntime::Session::~Session() {
  for (void* value : values_) reinterpret_cast<void (*)(void*)>(runtime_.table_[kReleaseValue])(value);
  reinterpret_cast<void (*)(void*)>(runtime_.table_[kReleaseSession])(session_);
}

void OnnxRuntime::Session::run() const {
  std::vector<const char*> inputs, outputs;
  for (const std::string& name : input_names_) inputs.push_back(name.c_str());
  for (const std::string& name : output_names_) outputs.push_back(name.c_str());
  std::vector<void*> results(outputs.size(), nullptr);
  runtime_.call(kRun, session_, static_cast<void*>(nullptr), inputs.data(), values_.data(), inputs.size(), outputs.data(), outputs.size(),
                results.data());
  for (void* result : results) reinterpret_cast<void (*)(void*)>(runtime_.table_[kReleaseValue])(result);
}

}  // namespace treadle::bench
