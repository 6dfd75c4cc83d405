// Sessions and their runs, and what a model says of itself.
#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>

#include "core/file.h"
#include "onnx/parse.h"
#include "ort_api/api.h"
#include "treadle/profile.h"

treadle::Session& OrtSession::running() const {
  if (!session)
    throw treadle::Error(treadle::ErrorCode::invalid_argument, "the session's model is still edited: FinalizeModelEditorSession ends that");
  return *session;
}

namespace treadle::ort {
namespace {

using Values = std::vector<ValueInfo> OrtSession::*;

// The client's options, and what it said of the environment.
SessionOptions options_for(const OrtEnv& environment, const OrtSessionOptions& given) {
  if (given.load_cancelled) throw LoadCancelled();
  register_operators(given);
  SessionOptions options = given.options;
  OrtLogger logger = given.logger.function != nullptr ? given.logger : environment.logger;
  logger.level = given.log_severity_level >= 0 ? static_cast<OrtLoggingLevel>(given.log_severity_level) : environment.logger.level;
  if (!given.logger.id.empty()) logger.id = given.logger.id;
  options.on_warning = [logger](const std::string& warning) { logger.log(ORT_WARNING, "", warning.c_str()); };
  if (!given.per_session_threads) {
    if (!environment.pool)
      throw Error(ErrorCode::invalid_argument, "the session is to use the environment's threads, and the environment has none");
    options.thread_pool = environment.pool;
    options.intra_op_num_threads = options.inter_op_num_threads = 0;
    options.set_denormal_as_zero = options.set_denormal_as_zero || environment.threading.set_denormal_as_zero;
  }
  const auto use = options.config.find("session.use_env_allocators");
  if (environment.allocator && use != options.config.end() && use->second == "1") options.allocator = environment.allocator;
  return options;
}

std::unique_ptr<OrtEpAssignedSubgraph> assigned_nodes(const Session& session) {
  auto made = std::make_unique<OrtEpAssignedSubgraph>();
  const std::string bytes = session.optimized_model();
  const onnx::ModelDef def = onnx::parse_model_bytes(std::as_bytes(std::span(bytes)), nullptr, {});
  for (const onnx::NodeDef& node : def.graph.nodes) made->nodes.push_back({node.name, node.domain, node.op_type});
  for (const OrtEpAssignedNode& node : made->nodes) made->pointers.push_back(&node);
  return made;
}

// A client may choose among the devices. @throws Error if it does not choose the CPU, the only one.
void ask_for_devices(const OrtSessionOptions& options) {
  if (options.select_devices == nullptr) return;
  const OrtEpDevice *device = &cpu_device(), *selected[1] = {nullptr};
  const OrtKeyValuePairs model, runtime;
  size_t count = 0;
  check(options.select_devices(&device, 1, &model, &runtime, selected, 1, &count, options.select_devices_state));
  if (count != 1 || selected[0] != device)
    throw Error(ErrorCode::invalid_argument, "the function that selects devices has not selected the CPU, the only one");
}

template <typename Load>
OrtStatus* create_session(const OrtEnv* environment, const OrtSessionOptions* options, OrtSession** out, Load&& load) {
  const OrtSessionOptions& given = options != nullptr ? *options : default_session_options();
  std::optional<Model> model;
  try {
    model = load(given);
  } catch (const Error& error) {
    // Bytes that are no model have a status of their own; those that are read and make no graph have another.
    const bool unreadable = error.code() == ErrorCode::invalid_model;
    return unreadable ? make_status(ORT_INVALID_PROTOBUF, error.what()) : status_of_current_exception();
  } catch (...) {
    return status_of_current_exception();
  }
  return guarded([&] {
    auto made = std::make_unique<OrtSession>();
    begin_session(*made, required(environment, "env"), given, *model);
    required(out, "out") = made.release();
  });
}

OrtStatus* session_from_path(const OrtEnv* environment, const char* path, const OrtSessionOptions* options, OrtSession** out) {
  return create_session(environment, options, out, [&](const OrtSessionOptions& given) {
    return Model::load(
        chars_of(path, "model_path"),
        {.use_mmap = given.options.use_mmap, .share_weights = given.options.share_weights, .external_files = given.external_files});
  });
}

OrtStatus* session_from_bytes(const OrtEnv* environment, const void* data, size_t length, const OrtSessionOptions* options,
                              OrtSession** out) {
  return create_session(environment, options, out, [&](const OrtSessionOptions& given) {
    const auto* bytes = &required(static_cast<const std::byte*>(data), "model_data");
    const auto folder = given.options.config.find("session.model_external_initializers_file_folder_path");
    return Model::from_bytes({bytes, length}, folder != given.options.config.end() ? folder->second : "",
                             {.external_files = given.external_files});
  });
}

template <Values values>
OrtStatus* count(const OrtSession* session, size_t* out) {
  return guarded([&] { required(out, "out") = (required(session, "session").*values).size(); });
}
const ValueInfo& at(const std::vector<ValueInfo>& infos, size_t index) {
  if (index >= infos.size())
    throw Error(ErrorCode::invalid_argument, "index " + std::to_string(index) + " of " + std::to_string(infos.size()));
  return infos[index];
}
template <Values values>
OrtStatus* name(const OrtSession* session, size_t index, OrtAllocator* allocator, char** out) {
  return guarded([&] { required(out, "value") = copy_text(allocator, at(required(session, "session").*values, index).name); });
}
template <Values values>
OrtStatus* type(const OrtSession* session, size_t index, OrtTypeInfo** out) {
  return guarded([&] { required(out, "type_info") = type_of(at(required(session, "session").*values, index)).release(); });
}

void run(OrtSession* session, const OrtRunOptions* options, const char* const* input_names, const OrtValue* const* inputs,
         size_t num_inputs, const char* const* output_names, size_t num_outputs, OrtValue** outputs) {
  std::map<std::string, Datum> feeds;
  for (size_t i = 0; i < num_inputs; ++i) feeds[chars_of(input_names[i], "an input's name")] = required(inputs[i], "an input").datum;
  std::vector<std::string> names;
  for (size_t i = 0; i < num_outputs; ++i) names.emplace_back(chars_of(output_names[i], "an output's name"));
  if (names.empty()) throw Error(ErrorCode::invalid_argument, "at least one output should be requested");
  const RunOptions* with = options != nullptr ? &options->options : nullptr;
  const Session& running = required(session, "session").running();
  if (std::any_of(outputs, outputs + num_outputs, [](const OrtValue* output) { return output != nullptr && output->datum.is_tensor(); }))
    return profiled(running, options, [&] { run_into(running, feeds, names, outputs, with); });
  std::vector<Datum> values;
  profiled(running, options, [&] { values = running.run(feeds, names, with); });
  std::vector<std::unique_ptr<OrtValue>> made;
  for (Datum& value : values) made.emplace_back(new_value(owned_by_client(std::move(value))));
  for (size_t i = 0; i < num_outputs; ++i) outputs[i] = made[i].release();
}

struct AsyncRun {
  OrtSession* session;
  const OrtRunOptions* options;
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> inputs;
  OrtValue** outputs;
  RunAsyncCallbackFn callback;
  void* user_data;

  void operator()() const {
    OrtStatus* status = guarded([&] {
      run(session, options, input_names.data(), inputs.data(), inputs.size(), output_names.data(), output_names.size(), outputs);
    });
    callback(user_data, outputs, output_names.size(), status);
  }
};

void add_creating(OrtApi& table) {
  table.CreateSession = session_from_path;
  table.CreateSessionFromArray = session_from_bytes;
  // Sessions of a process share packed weights anyway.
  table.CreatePrepackedWeightsContainer = [](OrtPrepackedWeightsContainer** out) {
    return guarded([&] { required(out, "out") = new OrtPrepackedWeightsContainer(); });
  };
  table.ReleasePrepackedWeightsContainer = [](OrtPrepackedWeightsContainer* container) { delete container; };
  table.CreateSessionWithPrepackedWeightsContainer = [](const OrtEnv* environment, const char* path, const OrtSessionOptions* options,
                                                        OrtPrepackedWeightsContainer*,
                                                        OrtSession** out) { return session_from_path(environment, path, options, out); };
  table.CreateSessionFromArrayWithPrepackedWeightsContainer =
      [](const OrtEnv* environment, const void* data, size_t length, const OrtSessionOptions* options, OrtPrepackedWeightsContainer*,
         OrtSession** out) { return session_from_bytes(environment, data, length, options, out); };
  table.ReleaseSession = [](OrtSession* session) { delete session; };
  table.SessionOptionsSetLoadCancellationFlag = [](OrtSessionOptions* options, bool cancel) -> OrtStatus* {
    options->load_cancelled = cancel;
    return nullptr;
  };
}

void add_description(OrtApi& table) {
  table.SessionGetInputCount = count<&OrtSession::inputs>;
  table.SessionGetOutputCount = count<&OrtSession::outputs>;
  table.SessionGetOverridableInitializerCount = count<&OrtSession::overridable>;
  table.SessionGetInputName = name<&OrtSession::inputs>;
  table.SessionGetOutputName = name<&OrtSession::outputs>;
  table.SessionGetOverridableInitializerName = name<&OrtSession::overridable>;
  table.SessionGetInputTypeInfo = type<&OrtSession::inputs>;
  table.SessionGetOutputTypeInfo = type<&OrtSession::outputs>;
  table.SessionGetOverridableInitializerTypeInfo = type<&OrtSession::overridable>;
  table.SessionGetProfilingStartTimeNs = [](const OrtSession* session, uint64_t* out) {
    return guarded([&] { required(out, "out") = static_cast<uint64_t>(required(session, "session").running().profiling_start_ns()); });
  };
  table.SessionEndProfiling = [](OrtSession* session, OrtAllocator* allocator, char** out) {
    return guarded([&] { required(out, "out") = copy_text(allocator, required(session, "session").running().end_profiling()); });
  };
}

using Text = std::string ModelMetadata::*;
template <Text text>
OrtStatus* metadata_text(const OrtModelMetadata* metadata, OrtAllocator* allocator, char** out) {
  return guarded([&] { required(out, "value") = copy_text(allocator, required(metadata, "model_metadata").metadata.*text); });
}

void add_metadata(OrtApi& table) {
  table.SessionGetModelMetadata = [](const OrtSession* session, OrtModelMetadata** out) {
    return guarded([&] { required(out, "out") = new OrtModelMetadata{required(session, "session").running().model().metadata()}; });
  };
  table.ReleaseModelMetadata = [](OrtModelMetadata* metadata) { delete metadata; };
  table.ModelMetadataGetProducerName = metadata_text<&ModelMetadata::producer_name>;
  table.ModelMetadataGetGraphName = metadata_text<&ModelMetadata::graph_name>;
  table.ModelMetadataGetGraphDescription = metadata_text<&ModelMetadata::graph_description>;
  table.ModelMetadataGetDomain = metadata_text<&ModelMetadata::domain>;
  table.ModelMetadataGetDescription = metadata_text<&ModelMetadata::description>;
  table.ModelMetadataGetVersion = [](const OrtModelMetadata* metadata, int64_t* out) {
    return guarded([&] { required(out, "value") = required(metadata, "model_metadata").metadata.version; });
  };
  // Null for a key that is not there.
  table.ModelMetadataLookupCustomMetadataMap = [](const OrtModelMetadata* metadata, OrtAllocator* allocator, const char* key, char** out) {
    return guarded([&] {
      const auto& custom = required(metadata, "model_metadata").metadata.custom;
      const auto found = custom.find(chars_of(key, "key"));
      required(out, "value") = found != custom.end() ? copy_text(allocator, found->second) : nullptr;
    });
  };
  table.ModelMetadataGetCustomMetadataMapKeys = [](const OrtModelMetadata* metadata, OrtAllocator* allocator, char*** keys,
                                                   int64_t* count) {
    return guarded([&] {
      const auto& custom = required(metadata, "model_metadata").metadata.custom;
      required(count, "num_keys") = static_cast<int64_t>(custom.size());
      required(keys, "keys") = nullptr;
      if (custom.empty()) return;
      *keys = static_cast<char**>(allocate(allocator, custom.size() * sizeof(char*)));
      size_t i = 0;
      for (const auto& [key, value] : custom) (*keys)[i++] = copy_text(allocator, key);
    });
  };
}

}  // namespace

const OrtSessionOptions& default_session_options() {
  static const OrtSessionOptions defaults;
  return defaults;
}

void profiled(const Session& session, const OrtRunOptions* options, const std::function<void()>& body) {
  if (options == nullptr || options->profile_file_prefix.empty()) return body();
  const Profiler profiler = const_cast<Session&>(session).profiler({});
  body();
  const std::string text = profile_to_trace(profiler.profile(), TraceFormat::onnxruntime);
  char time[32] = "";
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(time, sizeof(time), "%Y-%m-%d_%H-%M-%S", localtime_r(&now, &local));
  static std::atomic<int> number{0};  // runs of one second have files of their own
  AtomicFile file(options->profile_file_prefix + "_" + time + "_" + std::to_string(number++) + ".json");
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void run_into(const Session& session, const std::map<std::string, Datum>& feeds, const std::vector<std::string>& names, OrtValue** outputs,
              const RunOptions* options) {
  IoBinding binding(session);
  for (const auto& [name, value] : feeds) binding.bind_input(name, value);
  for (size_t i = 0; i < names.size(); ++i)
    binding.bind_output(names[i], outputs[i] != nullptr ? std::optional(outputs[i]->datum.tensor()) : std::nullopt);
  session.run(binding, options);
  const std::vector<Datum> values = binding.outputs();
  std::vector<std::unique_ptr<OrtValue>> made(names.size());
  for (size_t i = 0; i < names.size(); ++i)
    if (outputs[i] == nullptr) made[i].reset(new_value(owned_by_client(values[i])));
  for (size_t i = 0; i < names.size(); ++i)
    if (made[i]) outputs[i] = made[i].release();
}

void begin_session(OrtSession& session, const OrtEnv& environment, const OrtSessionOptions& options, const Model& model) {
  ask_for_devices(options);
  session.session = std::make_unique<Session>(model, options_for(environment, options));
  session.inputs = session.session->inputs();
  session.outputs = session.session->outputs();
  session.overridable = session.session->overridable_initializers();
  const auto record = options.options.config.find("session.record_ep_graph_assignment_info");
  if (record != options.options.config.end() && record->second == "1") session.assigned = assigned_nodes(*session.session);
}

void add_sessions(OrtApi& table) {
  add_creating(table);
  add_description(table);
  add_metadata(table);
  table.Run = [](OrtSession* session, const OrtRunOptions* options, const char* const* input_names, const OrtValue* const* inputs,
                 size_t num_inputs, const char* const* output_names, size_t num_outputs, OrtValue** outputs) {
    return guarded([&] { run(session, options, input_names, inputs, num_inputs, output_names, num_outputs, outputs); });
  };
  table.RunAsync = [](OrtSession* session, const OrtRunOptions* options, const char* const* input_names, const OrtValue* const* inputs,
                      size_t num_inputs, const char* const* output_names, size_t num_outputs, OrtValue** outputs,
                      RunAsyncCallbackFn callback, void* user_data) {
    return guarded([&] {
      if (callback == nullptr) throw Error(ErrorCode::invalid_argument, "run_async_callback is null");
      std::thread(AsyncRun{session,
                           options,
                           {input_names, input_names + num_inputs},
                           {output_names, output_names + num_outputs},
                           {inputs, inputs + num_inputs},
                           outputs,
                           callback,
                           user_data})
          .detach();
    });
  };
}

}  // namespace treadle::ort
