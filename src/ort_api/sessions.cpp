// Functions for sessions, for their runs, and for the metadata of models.
#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>

#include "core/files/file.h"
#include "ort_api/api.h"
#include "ort_api/providers.h"
#include "session/model.h"
#include "treadle/profile.h"

treadle::Session& OrtSession::running() const {
  if (!session)
    throw treadle::ort::StatusError(ORT_FAIL, "Session not initialized: its model is still edited, FinalizeModelEditorSession ends that");
  return *session;
}

namespace treadle::ort {
namespace {

using Values = std::vector<ValueInfo> OrtSession::*;

bool uses_environment_allocator(const OrtSessionOptions& options) {
  const auto use = options.options.config.find("session.use_env_allocators");
  return use != options.options.config.end() && use->second == "1";
}

void check_not_cancelled(const std::atomic<bool>& cancelled) {
  if (cancelled.load()) throw StatusError(ORT_MODEL_LOAD_CANCELED, "loading was canceled due to user request");
}

// Returns a session's options: those of the client, completed by the environment's logger, threads and allocator.
SessionOptions options_for(const OrtEnv& environment, const OrtSessionOptions& given, const Model& model) {
  check_not_cancelled(*given.load_cancelled);
  register_operators(given.custom_op_domains);
  SessionOptions options = given.options;
  apply_model_config(model.metadata(), options);
  OrtLogger logger = given.logger.function != nullptr ? given.logger : environment.logger;
  logger.level = given.log_severity_level >= 0 ? static_cast<OrtLoggingLevel>(given.log_severity_level) : environment.logger.level;
  if (!given.logger.id.empty()) logger.id = given.logger.id;
  options.on_warning = [logger](const std::string& warning) { logger.log(ORT_WARNING, "", warning.c_str()); };
  OrtThreads threads = given.threads;
  if (const auto found = options.config.find("session.intra_op_thread_affinities"); found != options.config.end())
    threads.affinities = found->second;
  if (given.per_session_threads) {
    if (threads.asked()) options.thread_pool = make_pool(threads, options.intra_op_num_threads, " for intra op thread pool");
  } else {
    if (!environment.pool)
      throw StatusError(ORT_FAIL,
                        "When the session is not configured to use per session threadpools, the env must be created with the the "
                        "CreateEnvWithGlobalThreadPools API.");
    options.thread_pool = environment.pool;
    options.intra_op_num_threads = options.inter_op_num_threads = 0;
    options.set_denormal_as_zero = options.set_denormal_as_zero || environment.threading.set_denormal_as_zero;
  }
  if (environment.allocator && uses_environment_allocator(given)) options.allocator = environment.allocator;
  return options;
}

void tell_assignment(OrtSession& session) {
  for (const AssignedNode& node : assigned_nodes(*session.session)) {
    auto assigned = std::make_unique<OrtEpAssignedSubgraph>();
    assigned->provider = provider_of(node.device);
    assigned->node = {node.name, node.domain, node.op_type};
    session.assigned_pointers.push_back(assigned.get());
    session.assigned.push_back(std::move(assigned));
  }
}

// Returns the options with a device. Unless the client has named a provider or device, its function chooses devices, or its policy does.
// @throws Error if the function does not choose devices of one provider
OrtSessionOptions with_devices(const OrtSessionOptions& given) {
  OrtSessionOptions options = given;
  if (options.provider != nullptr || !options.options.device.empty()) return options;
  if (options.select_devices != nullptr) {
    std::vector<const OrtEpDevice*> devices(ep_devices().begin(), ep_devices().end()), selected(devices.size(), nullptr);
    const OrtKeyValuePairs model, runtime;
    size_t count = 0;
    check(options.select_devices(devices.data(), devices.size(), &model, &runtime, selected.data(), selected.size(), &count,
                                 options.select_devices_state));
    if (count == 0 || count > selected.size())
      throw StatusError(ORT_FAIL, "the function that selects devices has selected none, or too many");
    selected.resize(count);
    for (const OrtEpDevice* device : selected)
      if (std::find(devices.begin(), devices.end(), device) == devices.end())
        throw StatusError(ORT_FAIL, "the function that selects devices has not selected one of those it was given");
    const char* const first = selected[0]->provider;  // if it is not the CPU, a selected CPU is removed: it is always the fallback
    if (first != kCpuProvider) std::erase_if(selected, [](const OrtEpDevice* device) { return device->provider == kCpuProvider; });
    append_devices(options, selected, {});
  } else if (options.prefers_gpu && ep_devices().size() > 1) {
    append_devices(options, ep_devices().subspan(1, 1), {});
  }
  return options;
}

onnx::ReadOptions reading(const OrtSessionOptions& options) {
  onnx::ReadOptions read = reading_options(options.options);
  read.external_files = options.external_files;
  read.external_values = options.external_values;
  return read;
}

// Removes values that the client gave for initializers which the model does not have, with a warning.
void leave_out_unknown(SessionOptions& options, const Model& model) {
  if (model.impl().compiled) return;
  std::erase_if(options.initializers, [&](const auto& given) {
    const auto& all = model.impl().def.graph.initializers;
    if (std::any_of(all.begin(), all.end(), [&](const onnx::TensorDef& tensor) { return tensor.name == given.first; })) return false;
    options.on_warning("the model has no initializer \"" + given.first + "\", for which a value was given");
    return true;
  });
}

template <typename Load>
OrtStatus* create_session(const OrtEnv* environment, const OrtSessionOptions* options, OrtSession** out, Load&& load) {
  return guarded([&] {
    const OrtSessionOptions& given = options != nullptr ? *options : default_session_options();
    check_severity(given.log_severity_level, "session_log_severity_level");
    std::optional<Model> model;
    try {
      model = load(given);
    } catch (const Error& error) {
      refuse_model(error);
    }
    if (const std::string why = unused_value(*model, given.external_values); !why.empty()) throw StatusError(ORT_FAIL, why);
    auto made = std::make_unique<OrtSession>();
    begin_session(*made, required(environment, "env"), given, *model);
    required(out, "out") = made.release();
  });
}

OrtStatus* session_from_path(const OrtEnv* environment, const char* path, const OrtSessionOptions* options, OrtSession** out) {
  return create_session(environment, options, out, [&](const OrtSessionOptions& given) {
    check_model_file(chars_of(path, "model_path"));
    return load_model(path, reading(given));
  });
}

OrtStatus* session_from_bytes(const OrtEnv* environment, const void* data, size_t length, const OrtSessionOptions* options,
                              OrtSession** out) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (bytes == nullptr) return make_status(ORT_INVALID_ARGUMENT, "Model data pointer is null.");
  return create_session(environment, options, out, [&](const OrtSessionOptions& given) {
    check_model_bytes(length);
    const auto folder = given.options.config.find("session.model_external_initializers_file_folder_path");
    const bool is_given = folder != given.options.config.end() && !folder->second.empty();
    return read_model({bytes, length}, is_given ? folder->second : ".", reading(given));
  });
}

template <Values values>
OrtStatus* count(const OrtSession* session, size_t* out) {
  return guarded([&] { required(out, "out") = (required(session, "session").*values).size(); });
}
const ValueInfo& at(const std::vector<ValueInfo>& infos, size_t index) {
  if (index >= infos.size())
    throw StatusError(ORT_FAIL, "out of index range: index " + std::to_string(index) + " of " + std::to_string(infos.size()));
  return infos[index];
}
template <Values values>
OrtStatus* name(const OrtSession* session, size_t index, OrtAllocator* allocator, char** out) {
  return guarded([&] { required(out, "value") = copy_text(allocator, at(required(session, "session").*values, index).name); });
}
// Adds to a type the extents that the model declares for the elements of a sequence or optional.
void add_shapes(OrtTypeInfo& type, const onnx::TypeDef& declared) {
  if (!type.element || !declared.elem) return;
  auto element = std::make_shared<OrtTypeInfo>(*type.element);
  if (declared.elem->shape) {
    element->tensor.has_shape = true;
    for (const onnx::DimDef& dim : *declared.elem->shape) {
      const bool known = dim.kind == onnx::DimDef::Kind::value && dim.value >= 0;
      element->tensor.dims.push_back(known ? dim.value : -1);
      element->tensor.symbols.push_back(dim.param);
    }
  }
  add_shapes(*element, *declared.elem);
  type.element = std::move(element);
}

template <Values values>
OrtStatus* type(const OrtSession* session, size_t index, OrtTypeInfo** out) {
  return guarded([&] {
    const OrtSession& of = required(session, "session");
    const ValueInfo& info = at(of.*values, index);
    std::unique_ptr<OrtTypeInfo> made = type_of(info);
    // The graph is empty for a compiled model, which has none.
    const onnx::GraphDef& graph = (of.editing ? *of.editing : of.running().model().impl().def).graph;
    for (const auto* declared : {&graph.inputs, &graph.outputs})
      for (const onnx::ValueInfoDef& value : *declared)
        if (value.name == info.name) {
          made->denotation = value.type.denotation;
          add_shapes(*made, value.type);
          return void(required(out, "type_info") = made.release());
        }
    required(out, "type_info") = made.release();
  });
}

// The inputs and output names of a run, converted from the client's arrays.
struct Arguments {
  std::map<std::string, Datum> feeds;
  std::vector<std::string> outputs;
};

Arguments arguments_of(const char* const* input_names, const OrtValue* const* inputs, size_t num_inputs, const char* const* output_names,
                       size_t num_outputs) {
  Arguments given;
  for (size_t i = 0; i < num_inputs; ++i) {
    std::string name = chars_of(input_names[i], "an input's name");
    if (name.empty()) throw Error(ErrorCode::invalid_argument, "input name cannot be empty");
    if (inputs[i] == nullptr) throw Error(ErrorCode::invalid_argument, "NULL input supplied for input " + name);
    given.feeds.insert_or_assign(std::move(name), inputs[i]->datum);
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    given.outputs.emplace_back(chars_of(output_names[i], "an output's name"));
    if (given.outputs.back().empty()) throw Error(ErrorCode::invalid_argument, "output name cannot be empty");
  }
  if (given.outputs.empty()) throw Error(ErrorCode::invalid_argument, "At least one output should be requested.");
  return given;
}

void run(const OrtSession& of, const OrtRunOptions* options, const Arguments& given, OrtValue** outputs) {
  const Session& session = of.running();
  if (options != nullptr) check_severity(options->log_severity_level, "run_log_severity_level");
  const size_t num_outputs = given.outputs.size();
  const RunOptions* with = options != nullptr ? &options->options : nullptr;
  if (std::any_of(outputs, outputs + num_outputs, [](const OrtValue* output) { return output != nullptr; }))
    return run_into(session, given.feeds, given.outputs, outputs, with, &memory_of(of));
  std::vector<Datum> values = session.run(given.feeds, given.outputs, with);
  std::vector<std::unique_ptr<OrtValue>> made;
  for (Datum& value : values) made.emplace_back(new_value(owned_by_client(std::move(value)), &memory_of(of)));
  for (size_t i = 0; i < num_outputs; ++i) outputs[i] = made[i].release();
}

// The session whose asynchronous run this thread executes; null if there is none.
thread_local const OrtSession* running_here = nullptr;

// An asynchronous run. Keeps alive the objects that the client may release before the run has ended.
struct AsyncRun {
  OrtSession& session;
  std::shared_ptr<const OrtRunOptions> options;
  Arguments given;
  OrtValue** outputs;
  RunAsyncCallbackFn callback;
  void* user_data;

  void operator()() {
    running_here = &session;
    OrtStatus* status = guarded([&] { profiled(session.running(), options.get(), [&] { run(session, options.get(), given, outputs); }); });
    const size_t num_outputs = given.outputs.size();
    given = {}, options = nullptr;
    callback(user_data, outputs, num_outputs, status);
    bool is_last = false;
    {
      const std::lock_guard lock(session.mutex);
      is_last = --session.asynchronous_runs == 0 && session.released;
      session.run_ended.notify_all();  // with the lock held, since the session may be deleted afterwards
    }
    if (is_last) delete &session;
  }
};

void release_session(OrtSession* session) {
  if (session == nullptr) return;
  {
    std::unique_lock lock(session->mutex);
    if (running_here == session) {
      session->released = true;
      return;
    }
    session->run_ended.wait(lock, [&] { return session->asynchronous_runs == 0; });
  }
  delete session;
}

void begin_run(OrtSession& session, AsyncRun run) {
  {
    const std::lock_guard lock(session.mutex);
    ++session.asynchronous_runs;
  }
  try {
    std::thread(std::move(run)).detach();
  } catch (...) {
    const std::lock_guard lock(session.mutex);
    --session.asynchronous_runs;
    session.run_ended.notify_all();
    throw;
  }
}

void add_creating(OrtApi& table) {
  table.CreateSession = session_from_path;
  table.CreateSessionFromArray = session_from_bytes;
  // A container has no effect, because sessions of a process share packed weights anyway.
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
  table.ReleaseSession = release_session;
  table.SessionOptionsSetLoadCancellationFlag = [](OrtSessionOptions* options, bool cancel) {
    return guarded([&] { required(options, "options").load_cancelled->store(cancel); });
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
    return guarded([&] {
      const OrtSession& of = required(session, "session");
      required(out, "out") = of.session ? static_cast<uint64_t>(of.session->profiling_start_ns()) : 0;
    });
  };
  table.SessionEndProfiling = [](OrtSession* session, OrtAllocator* allocator, char** out) {
    return guarded([&] {
      const OrtSession& of = required(session, "session");
      std::string path;  // empty if the session records no profile, or has ended it already
      try {
        if (of.session) path = of.session->end_profiling();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_argument) throw;
      }
      required(out, "out") = copy_text(allocator, path);
    });
  };
}

using Text = std::string ModelMetadata::*;
template <Text text>
OrtStatus* metadata_text(const OrtModelMetadata* metadata, OrtAllocator* allocator, char** out) {
  return guarded([&] { required(out, "value") = copy_text(allocator, required(metadata, "model_metadata").metadata.*text); });
}

void add_metadata(OrtApi& table) {
  table.SessionGetModelMetadata = [](const OrtSession* session, OrtModelMetadata** out) {
    return guarded([&] {
      const OrtSession& of = required(session, "session");
      required(out, "out") = new OrtModelMetadata{of.editing ? metadata_of(*of.editing) : of.running().model().metadata()};
    });
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
  // Sets the value to null if the metadata do not have the key.
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
  if (options == nullptr || !options->profile_file_prefix) return body();
  const Profiler profiler = const_cast<Session&>(session).profiler({});
  std::exception_ptr failure;
  try {
    body();
  } catch (...) {
    failure = std::current_exception();  // rethrown after the profile has been written
  }
  const std::string text = profile_to_trace(profiler.profile(), TraceFormat::onnxruntime);
  char time[32] = "";
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  std::strftime(time, sizeof(time), "%Y-%m-%d_%H-%M-%S", localtime_r(&now, &local));
  static std::atomic<int> number{0};  // distinguishes files of runs in the same second
  AtomicFile file(*options->profile_file_prefix + "_" + time + "_" + std::to_string(number++) + ".json");
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  if (failure) std::rethrow_exception(failure);
}

void run_into(const Session& session, const std::map<std::string, Datum>& feeds, const std::vector<std::string>& names, OrtValue** outputs,
              const RunOptions* options, const OrtMemoryInfo* memory) {
  IoBinding binding(session);
  for (const auto& [name, value] : feeds) binding.bind_input(name, value);
  std::map<std::string, const OrtValue*> bound;  // by name, since a client may request an output several times
  for (size_t i = 0; i < names.size(); ++i)
    if (const OrtValue*& value = bound.try_emplace(names[i], nullptr).first->second; value == nullptr) value = outputs[i];
  auto memory_in = [](const OrtValue* value) {
    return value != nullptr && value->datum.is_tensor() ? std::optional(value->datum.tensor()) : std::nullopt;
  };
  for (const auto& [name, value] : bound) binding.bind_output(name, memory_in(value));
  session.run(binding, options);
  std::map<std::string, Datum> values;
  const std::vector<Datum> computed = binding.outputs();
  for (size_t i = 0; const auto& each : bound) values[each.first] = computed[i++];
  std::vector<std::unique_ptr<OrtValue>> made(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const Datum& value = values[names[i]];
    if (outputs[i] == nullptr) {
      made[i].reset(new_value(owned_by_client(value), memory));
    } else if (!outputs[i]->datum.is_tensor()) {
      const Datum& held = outputs[i]->datum;
      const bool holds_nothing = held.kind() == Datum::Kind::none || (held.kind() == Datum::Kind::optional && !held.optional().value);
      if (!holds_nothing && held.kind() != value.kind())
        throw Error(ErrorCode::invalid_argument, "output with name: '" + names[i] + "' expected to be another kind of value: it is " +
                                                     describe(value) + ", the client gave " + describe(held));
      outputs[i]->datum = value;
    } else if (outputs[i] != bound[names[i]]) {
      Tensor target = outputs[i]->datum.tensor();
      target.copy_from(value.tensor());
    }
  }
  for (size_t i = 0; i < names.size(); ++i)
    if (made[i]) outputs[i] = made[i].release();
}

void begin_session(OrtSession& session, const OrtEnv& environment, const OrtSessionOptions& as_given, const Model& given) {
  const OrtSessionOptions options = with_devices(as_given);
  const Model model = with_own_operators(given, options.custom_op_domains);
  SessionOptions with = options_for(environment, options, model);
  leave_out_unknown(with, model);
  const auto loading = std::make_shared<std::atomic<bool>>(true);
  with.on_pass = [loading, cancelled = options.load_cancelled](std::string_view, const std::string&, int64_t) {
    if (loading->load()) check_not_cancelled(*cancelled);
  };
  try {
    session.session = std::make_unique<Session>(model, with);
  } catch (const Error& error) {
    refuse_graph(error, model);
  }
  loading->store(false);
  session.cpu_mem_arena = options.cpu_mem_arena;
  if (uses_environment_allocator(options)) session.allocator = environment.registered;
  session.inputs = session.session->inputs();
  session.outputs = session.session->outputs();
  session.overridable = session.session->overridable_initializers();
  session.tells_assignment = session.tells_assignment || tells_assignment(options);
  if (session.tells_assignment) tell_assignment(session);
}

bool tells_assignment(const OrtSessionOptions& options) {
  const auto record = options.options.config.find("session.record_ep_graph_assignment_info");
  return record != options.options.config.end() && record->second == "1";
}

void add_sessions(OrtApi& table) {
  add_creating(table);
  add_description(table);
  add_metadata(table);
  table.Run = [](OrtSession* session, const OrtRunOptions* options, const char* const* input_names, const OrtValue* const* inputs,
                 size_t num_inputs, const char* const* output_names, size_t num_outputs, OrtValue** outputs) {
    return guarded([&] {
      const OrtSession& of = required(session, "session");
      const Session& running = of.running();
      const Arguments given = arguments_of(input_names, inputs, num_inputs, output_names, num_outputs);
      profiled(running, options, [&] { run(of, options, given, outputs); });
    });
  };
  table.RunAsync = [](OrtSession* session, const OrtRunOptions* options, const char* const* input_names, const OrtValue* const* inputs,
                      size_t num_inputs, const char* const* output_names, size_t num_outputs, OrtValue** outputs,
                      RunAsyncCallbackFn callback, void* user_data) {
    return guarded([&] {
      if (callback == nullptr) throw Error(ErrorCode::invalid_argument, "run_async_callback is null");
      begin_run(required(session, "session"), {.session = *session,
                                               .options = options != nullptr ? options->self : nullptr,
                                               .given = arguments_of(input_names, inputs, num_inputs, output_names, num_outputs),
                                               .outputs = outputs,
                                               .callback = callback,
                                               .user_data = user_data});
    });
  };
}

}  // namespace treadle::ort
