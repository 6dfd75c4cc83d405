// Functions for session options and run options.
#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>

#include "ort_api/api.h"
#include "ort_api/providers.h"
#include "session/options.h"

namespace treadle::ort {
namespace {

void add_initializers(std::map<std::string, Tensor>& to, const char* const* names, const OrtValue* const* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const char* name = chars_of(names[i], "an initializer's name");
    if (!to.try_emplace(name, required(values[i], "an initializer").datum.tensor()).second)
      throw Error(ErrorCode::invalid_argument, std::string("An OrtValue for this name has already been added: ") + name);
  }
}

OrtStatus* set_flag(OrtSessionOptions* options, bool OrtSessionOptions::*flag, bool value) {
  return guarded([&] { required(options, "options").*flag = value; });
}

// Returns the error of functions that append a provider which Treadle lacks, like ONNX Runtime without that provider's library.
OrtStatus* no_provider(const std::string& name, OrtErrorCode code = ORT_FAIL) {
  return make_status(
      code, (name + " execution provider is not supported in this build. It has " + kVulkanProvider + " and " + kCpuProvider).c_str());
}

std::string entry_value(const char* value) {
  constexpr size_t kMostBytes = 8192;
  std::string text = chars_of(value, "config_value");
  if (text.size() > kMostBytes)
    throw Error(ErrorCode::invalid_argument, "Config value is longer than maximum length: " + std::to_string(kMostBytes));
  return text;
}

void add_threads(OrtApi& table) {
  table.SetIntraOpNumThreads = [](OrtSessionOptions* options, int threads) {
    return guarded([&] { set_option(required(options, "options").options, "intra_op_num_threads", std::to_string(threads)); });
  };
  // This number matters only together with an execution mode that runs several nodes at once.
  table.SetInterOpNumThreads = [](OrtSessionOptions* options, int threads) {
    return guarded([&] { set_option(required(options, "options").options, "inter_op_num_threads", std::to_string(threads)); });
  };
  table.SetSessionExecutionMode = [](OrtSessionOptions* options, OrtExecutionMode mode) {
    return guarded([&] {
      if (mode != 0 && mode != 1) throw Error(ErrorCode::invalid_argument, "execution_mode is not valid: " + std::to_string(mode));
      required(options, "options").options.execution_mode = static_cast<treadle::ExecutionMode>(mode);
    });
  };
  table.GetSessionExecutionMode = [](const OrtSessionOptions* options, OrtExecutionMode* out) {
    return guarded([&] { required(out, "out") = static_cast<int>(required(options, "options").options.execution_mode); });
  };
  table.DisablePerSessionThreads = [](OrtSessionOptions* options) {
    return set_flag(options, &OrtSessionOptions::per_session_threads, false);
  };
}

void add_model_options(OrtApi& table) {
  table.SetSessionGraphOptimizationLevel = [](OrtSessionOptions* options, OrtOptimizationLevel level) {
    return guarded([&] {
      if (!is_level(level)) throw Error(ErrorCode::invalid_argument, "graph_optimization_level is not valid: " + std::to_string(level));
      required(options, "options").options.graph_optimization_level = static_cast<treadle::GraphOptimizationLevel>(level);
    });
  };
  table.SetOptimizedModelFilePath = [](OrtSessionOptions* options, const char* path) {
    return guarded([&] { required(options, "options").options.optimized_model_filepath = chars_of(path, "path"); });
  };
  table.AddFreeDimensionOverride = [](OrtSessionOptions* options, const char* denotation, int64_t extent) {
    return guarded([&] { required(options, "options").options.denotation_overrides[chars_of(denotation, "denotation")] = extent; });
  };
  table.AddFreeDimensionOverrideByName = [](OrtSessionOptions* options, const char* name, int64_t extent) {
    return guarded([&] { required(options, "options").options.free_dimension_overrides[chars_of(name, "name")] = extent; });
  };
  table.AddInitializer = [](OrtSessionOptions* options, const char* name, const OrtValue* value) {
    return guarded([&] { add_initializers(required(options, "options").options.initializers, &name, &value, 1); });
  };
  table.AddExternalInitializers = [](OrtSessionOptions* options, const char* const* names, const OrtValue* const* values, size_t count) {
    return guarded([&] { add_initializers(required(options, "options").external_values, names, values, count); });
  };
  table.AddExternalInitializersFromFilesInMemory = [](OrtSessionOptions* options, const char* const* names, char* const* buffers,
                                                      const size_t* lengths, size_t count) {
    return guarded([&] {
      auto& files = required(options, "options").external_files;
      for (size_t i = 0; i < count; ++i) {
        if (names[i] == nullptr || buffers[i] == nullptr)
          throw Error(ErrorCode::invalid_argument, "Input index: " + std::to_string(i) + " contains null pointers");
        const std::string name = std::filesystem::path(names[i]).lexically_normal().string();
        if (!files.emplace(name, Storage::borrow_read_only(buffers[i], lengths[i], {})).second)
          throw Error(ErrorCode::invalid_argument, "An entry for this name has already been added: " + name);
      }
    });
  };
}

void add_config(OrtApi& table) {
  table.AddSessionConfigEntry = [](OrtSessionOptions* options, const char* key, const char* value) {
    return guarded([&] {
      OrtSessionOptions& given = required(options, "options");
      const std::string name = chars_of(key, "config_key"), text = entry_value(value);
      if (!set_by_entry(given, name, text)) add_config_entry(given.options, name, text);
    });
  };
  table.HasSessionConfigEntry = [](const OrtSessionOptions* options, const char* key, int* out) {
    return guarded([&] { required(out, "out") = required(options, "options").options.config.contains(chars_of(key, "key")) ? 1 : 0; });
  };
  table.GetSessionConfigEntry = [](const OrtSessionOptions* options, const char* key, char* out, size_t* size) {
    return guarded([&] {
      const auto found = required(options, "options").options.config.find(chars_of(key, "key"));
      if (found == required(options, "options").options.config.end())
        throw Error(ErrorCode::invalid_argument, std::string("Session config entry '") + key + "' was not found.");
      give_text(found->second, out, size);
    });
  };
  table.GetSessionOptionsConfigEntries = [](const OrtSessionOptions* options, OrtKeyValuePairs** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtKeyValuePairs>();
      made->entries = required(options, "options").options.config;
      made->index();
      required(out, "out") = made.release();
    });
  };
}

// Sets the functions for settings that are stored but have no effect: what they control cannot be turned off, or Treadle does not have the
// mechanism of memory or logging that they concern.
void add_kept(OrtApi& table) {
  table.EnableMemPattern = [](OrtSessionOptions* options) { return set_flag(options, &OrtSessionOptions::mem_pattern, true); };
  table.DisableMemPattern = [](OrtSessionOptions* options) { return set_flag(options, &OrtSessionOptions::mem_pattern, false); };
  table.GetMemPatternEnabled = [](const OrtSessionOptions* options, int* out) {
    return guarded([&] { required(out, "out") = required(options, "options").mem_pattern ? 1 : 0; });
  };
  table.EnableCpuMemArena = [](OrtSessionOptions* options) { return set_flag(options, &OrtSessionOptions::cpu_mem_arena, true); };
  table.DisableCpuMemArena = [](OrtSessionOptions* options) { return set_flag(options, &OrtSessionOptions::cpu_mem_arena, false); };
  table.SetDeterministicCompute = [](OrtSessionOptions*, bool) -> OrtStatus* { return nullptr; };
  table.EnableOrtCustomOps = [](OrtSessionOptions*) {
    return make_status(ORT_FAIL, "Custom operators in onnxruntime-extensions are not enabled: register its library");
  };
  table.SetSessionLogId = [](OrtSessionOptions* options, const char* id) {
    return guarded([&] { required(options, "options").logger.id = chars_of(id, "logid"); });
  };
  table.SetSessionLogVerbosityLevel = [](OrtSessionOptions* options, int level) {
    return guarded([&] { required(options, "options").log_verbosity_level = level; });
  };
  // A negative level stands for that of the environment. With a level above FATAL, there are no messages.
  table.SetSessionLogSeverityLevel = [](OrtSessionOptions* options, int level) {
    return guarded([&] { required(options, "options").log_severity_level = level; });
  };
  table.SetUserLoggingFunction = [](OrtSessionOptions* options, OrtLoggingFunction function, void* param) {
    return guarded([&] {
      required(options, "options").logger.function = function;
      options->logger.param = param;
    });
  };
}

void add_providers(OrtApi& table) {
  table.SessionOptionsAppendExecutionProvider = [](OrtSessionOptions* options, const char* name, const char* const* keys,
                                                   const char* const* values, size_t count) {
    return guarded([&] {
      required(options, "options");
      const std::string wanted = chars_of(name, "provider_name");
      const std::map<std::string, std::string> given = filled_provider_options(keys, values, count);
      const char* const provider = find_provider(wanted);
      if (provider == nullptr) check(no_provider("Unknown provider name '" + wanted + "': " + wanted, ORT_INVALID_ARGUMENT));
      append_provider(*options, provider, given);
    });
  };
  table.SessionOptionsAppendExecutionProvider_CUDA = [](OrtSessionOptions*, const OrtCUDAProviderOptions*) { return no_provider("CUDA"); };
  table.SessionOptionsAppendExecutionProvider_CUDA_V2 = [](OrtSessionOptions*, const OrtCUDAProviderOptionsV2*) {
    return no_provider("CUDA");
  };
  table.SessionOptionsAppendExecutionProvider_ROCM = [](OrtSessionOptions*, const OrtROCMProviderOptions*) { return no_provider("ROCM"); };
  table.SessionOptionsAppendExecutionProvider_TensorRT = [](OrtSessionOptions*, const OrtTensorRTProviderOptions*) {
    return no_provider("TensorRT");
  };
  table.SessionOptionsAppendExecutionProvider_TensorRT_V2 = [](OrtSessionOptions*, const OrtTensorRTProviderOptionsV2*) {
    return no_provider("TensorRT");
  };
  table.SessionOptionsAppendExecutionProvider_MIGraphX = [](OrtSessionOptions*, const OrtMIGraphXProviderOptions*) {
    return no_provider("MIGraphX");
  };
  table.SessionOptionsAppendExecutionProvider_OpenVINO = [](OrtSessionOptions*, const OrtOpenVINOProviderOptions*) {
    return no_provider("OpenVINO");
  };
  table.SessionOptionsAppendExecutionProvider_OpenVINO_V2 = [](OrtSessionOptions*, const char* const*, const char* const*, size_t) {
    return no_provider("OpenVINO");
  };
  table.SessionOptionsAppendExecutionProvider_VitisAI = [](OrtSessionOptions*, const char* const*, const char* const*, size_t) {
    return no_provider("VitisAI");
  };
  table.SessionOptionsAppendExecutionProvider_Dnnl = [](OrtSessionOptions*, const OrtDnnlProviderOptions*) { return no_provider("Dnnl"); };
  table.SessionOptionsAppendExecutionProvider_CANN = [](OrtSessionOptions*, const OrtCANNProviderOptions*) { return no_provider("CANN"); };
}

void add_run_options(OrtApi& table) {
  table.CreateRunOptions = [](OrtRunOptions** out) { return guarded([&] { required(out, "out") = make_handle<OrtRunOptions>(); }); };
  table.ReleaseRunOptions = [](OrtRunOptions* options) { release_handle(options); };
  table.RunOptionsSetRunLogVerbosityLevel = [](OrtRunOptions* options, int level) {
    return guarded([&] { required(options, "options").log_verbosity_level = level; });
  };
  table.RunOptionsGetRunLogVerbosityLevel = [](const OrtRunOptions* options, int* out) {
    return guarded([&] { required(out, "out") = required(options, "options").log_verbosity_level; });
  };
  table.RunOptionsSetRunLogSeverityLevel = [](OrtRunOptions* options, int level) {
    return guarded([&] { required(options, "options").log_severity_level = level; });
  };
  table.RunOptionsGetRunLogSeverityLevel = [](const OrtRunOptions* options, int* out) {
    return guarded([&] { required(out, "out") = required(options, "options").log_severity_level; });
  };
  table.RunOptionsSetRunTag = [](OrtRunOptions* options, const char* tag) {
    return guarded([&] { required(options, "options").options.tag = chars_of(tag, "tag"); });
  };
  table.RunOptionsGetRunTag = [](const OrtRunOptions* options, const char** out) {
    return guarded([&] { required(out, "out") = required(options, "options").options.tag.c_str(); });
  };
  table.RunOptionsSetTerminate = [](OrtRunOptions* options) {
    return guarded([&] { required(options, "options").options.terminate = true; });
  };
  table.RunOptionsUnsetTerminate = [](OrtRunOptions* options) {
    return guarded([&] { required(options, "options").options.terminate = false; });
  };
  table.RunOptionsEnableProfiling = [](OrtRunOptions* options, const char* prefix) {
    return guarded([&] { required(options, "options").profile_file_prefix = chars_of(prefix, "profile_file_prefix"); });
  };
  table.RunOptionsDisableProfiling = [](OrtRunOptions* options) {
    return guarded([&] { required(options, "options").profile_file_prefix.reset(); });
  };
  table.AddRunConfigEntry = [](OrtRunOptions* options, const char* key, const char* value) {
    return guarded([&] { add_config_entry(required(options, "options").options, chars_of(key, "config_key"), entry_value(value)); });
  };
  table.GetRunConfigEntry = [](const OrtRunOptions* options, const char* key) -> const char* {
    if (options == nullptr || key == nullptr) return nullptr;
    const auto found = options->options.config.find(key);
    return found != options->options.config.end() ? found->second.c_str() : nullptr;
  };
}

}  // namespace

std::map<std::string, std::string> provider_options(const char* const* keys, const char* const* values, size_t count) {
  std::map<std::string, std::string> options;
  for (size_t i = 0; i < count; ++i) {
    const std::string key = chars_of((&required(keys, "provider_options_keys"))[i], "a key");
    options[key] = chars_of((&required(values, "provider_options_values"))[i], "a value");
  }
  return options;
}

std::map<std::string, std::string> filled_provider_options(const char* const* keys, const char* const* values, size_t count) {
  std::map<std::string, std::string> options = provider_options(keys, values, count);
  for (size_t i = 0; i < count; ++i)
    if (*keys[i] == '\0' || *values[i] == '\0') throw Error(ErrorCode::invalid_argument, "Provider options key/value cannot be empty");
  return options;
}

void append_provider(OrtSessionOptions& options, const char* provider, const std::map<std::string, std::string>& provider_options) {
  std::string prefix = std::string("ep.") + provider + ".";
  std::transform(prefix.begin(), prefix.end(), prefix.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // Stores the options as config entries, too, as ONNX Runtime does.
  for (const auto& [key, value] : provider_options) add_config_entry(options.options, prefix + key, value);
  if (options.provider == nullptr) use_provider(options.options, options.provider = provider, provider_options);
}

// Appends the provider of these devices. The devices' own options (`device_id`) tell it which devices they are.
void append_devices(OrtSessionOptions& options, std::span<const OrtEpDevice* const> devices,
                    std::map<std::string, std::string> provider_options) {
  const OrtEpDevice& first = required(devices[0], "a device");
  for (const OrtEpDevice* device : devices) {
    if (required(device, "a device").provider != first.provider)
      throw Error(ErrorCode::invalid_argument, "All OrtEpDevice values in ep_devices must have the same execution provider.");
    if (device->name != first.name)
      throw Error(ErrorCode::invalid_argument,
                  std::string("a session has one device of ") + kVulkanProvider + ", not " + first.name + " and " + device->name);
  }
  for (const auto& [key, value] : first.options.entries) provider_options.try_emplace(key, value);
  append_provider(options, first.provider, provider_options);
}

void add_session_options(OrtApi& table) {
  table.CreateSessionOptions = [](OrtSessionOptions** out) {
    return guarded([&] {
      auto made = std::make_unique<OrtSessionOptions>();
      made->options.profile_file_prefix = "onnxruntime_profile_";
      required(out, "out") = made.release();
    });
  };
  table.CloneSessionOptions = [](const OrtSessionOptions* options, OrtSessionOptions** out) {
    return guarded([&] { required(out, "out") = new OrtSessionOptions(required(options, "options")); });
  };
  table.ReleaseSessionOptions = [](OrtSessionOptions* options) { delete options; };
  table.EnableProfiling = [](OrtSessionOptions* options, const char* prefix) {
    return guarded([&] {
      required(options, "options").options.profile_file_prefix = chars_of(prefix, "prefix");
      required(options, "options").options.enable_profiling = true;
    });
  };
  table.DisableProfiling = [](OrtSessionOptions* options) {
    return guarded([&] { required(options, "options").options.enable_profiling = false; });
  };
  add_threads(table);
  add_model_options(table);
  add_config(table);
  add_kept(table);
  add_providers(table);
  add_run_options(table);
}

}  // namespace treadle::ort
