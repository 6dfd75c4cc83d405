// Model compilation by ONNX Runtime's interface. Execution providers here need no compiled code, so the output is an ONNX model that is
// optimized at the requested level.
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>

#include "core/files/file.h"
#include "onnx/serialize.h"
#include "ort_api/editor_api.h"
#include "session/initializer_locations.h"
#include "session/model.h"

struct OrtModelCompilationOptions {
  OrtSessionOptions session;
  std::function<treadle::Model()> load;  // loads the input model
  std::string input_path, output_path, data_file;
  size_t data_threshold_bytes = 1024;
  OrtAllocator* allocator = nullptr;  // for an output in memory
  void** buffer = nullptr;
  size_t* buffer_size = nullptr;
  OrtWriteBufferFunc write = nullptr;
  void* write_state = nullptr;
  OrtGetInitializerLocationFunc locate = nullptr;  // says where each initializer goes; null: to the model or to `data_file`
  void* locate_state = nullptr;
  uint32_t flags = 0;
  treadle::GraphOptimizationLevel level = treadle::GraphOptimizationLevel::disable_all;
};

namespace treadle::ort {
namespace {

namespace fs = std::filesystem;

enum Flags : uint32_t { kErrorIfNothingCompiled = 1, kErrorIfOutputExists = 2 };

using Options = OrtModelCompilationOptions;

// Returns the output path. The default is that of ONNX Runtime: next to the input file, with "_ctx" in its name.
std::string output_path(const Options& options) {
  if (!options.output_path.empty()) return options.output_path;
  if (options.input_path.empty())
    throw StatusError(ORT_FAIL, "compiling a model from bytes needs a valid location (e.g., file or buffer) for the output model");
  const fs::path input(options.input_path);
  return (input.parent_path() / (input.stem().string() + "_ctx.onnx")).string();
}

// Returns the path of the data file relative to the model's folder. Clients give it with or without this folder.
std::string data_file_beside(const std::string& model, const fs::path& given) {
  return given.parent_path() == fs::path(model).parent_path() ? given.filename().string() : given.string();
}

void check_options(const Options& options) {
  if (!options.load)
    throw Error(ErrorCode::invalid_argument, "Input model to compile must be specified via file path, memory buffer, or OrtModel");
  if (!options.input_path.empty() && !fs::exists(options.input_path))
    throw Error(ErrorCode::invalid_argument, "Input model path does not exist: \"" + options.input_path + "\"");
  if ((options.flags & kErrorIfNothingCompiled) != 0)
    throw StatusError(
        ORT_FAIL,
        "Unable to compile any nodes. Check that the session EPs support compilation and can execute at least one subgraph in "
        "the model. The CPU runs ONNX's nodes as they are");
  const bool to_file = options.buffer == nullptr && options.write == nullptr;
  if (!to_file && !options.data_file.empty())
    throw Error(ErrorCode::invalid_argument, "a file of initializers goes with an output file, not with a buffer or a function");
  if (options.locate != nullptr && !options.data_file.empty())
    throw Error(ErrorCode::invalid_argument, "initializers go to a file, or where a function says, not both");
  if (to_file && (options.flags & kErrorIfOutputExists) != 0 && fs::exists(output_path(options)))
    throw StatusError(ORT_FAIL, "Failed to generate EP context model since the file '" + output_path(options) + "' exists already.");
  if (std::error_code ignored;
      to_file && !fs::exists(fs::path(output_path(options)).parent_path(), ignored) && fs::path(output_path(options)).has_parent_path())
    throw Error(ErrorCode::invalid_argument, "open file \"" + output_path(options) + "\" failed: No such file or directory");
}

// Wraps the client's function that says where initializers go; empty if there is none.
LocateInitializer locator(const Options& options) {
  if (options.locate == nullptr) return {};
  return [&options](const std::string& name, const Tensor& value, const InitializerLocation* read_from) {
    const std::unique_ptr<OrtValue> handle(new_value(value));
    OrtExternalInitializerInfo was;
    if (read_from != nullptr) was = {read_from->file, read_from->offset_bytes, static_cast<size_t>(read_from->size_bytes)};
    OrtExternalInitializerInfo* given = nullptr;
    check(options.locate(options.locate_state, name.c_str(), handle.get(), read_from != nullptr ? &was : nullptr, &given));
    const std::unique_ptr<OrtExternalInitializerInfo> owner(given);
    std::optional<InitializerLocation> where;
    if (given != nullptr) where = {given->file_path, given->file_offset, static_cast<int64_t>(given->size_bytes)};
    return where;
  };
}

void compile(const OrtEnv& environment, const Options& options) {
  check_options(options);
  OrtSessionOptions with = options.session;
  with.options.graph_optimization_level = options.level;
  const Model model = options.load();
  OrtSession session;
  const bool to_file = options.buffer == nullptr && options.write == nullptr;
  if (to_file && options.locate == nullptr) {
    const std::string path = output_path(options), data_file = data_file_beside(path, options.data_file);
    const bool as_read = options.level == GraphOptimizationLevel::disable_all;
    if (!as_read) {
      with.options.optimized_model_filepath = path;
      with.options.optimized_model_data_file = data_file;
      with.options.optimized_model_data_threshold = static_cast<int64_t>(options.data_threshold_bytes);
    }
    begin_session(session, environment, with, model);  // checks that the model can run, and writes it unless `as_read`
    if (as_read) onnx::write_model_file(model.impl().def, path, onnx::beside_optimized(data_file, options.data_threshold_bytes));
    return;
  }
  begin_session(session, environment, with, model);
  const std::string bytes = optimized_model(*session.session, locator(options));
  if (to_file) {
    AtomicFile file(output_path(options));
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
    return;
  }
  if (options.write != nullptr) {
    check(options.write(options.write_state, bytes.data(), bytes.size()));
    return;
  }
  void* memory = allocate(options.allocator, bytes.size());
  std::memcpy(memory, bytes.data(), bytes.size());
  *options.buffer = memory;
  *options.buffer_size = bytes.size();
}

const char* filled(const char* text, const char* otherwise) {
  if (text == nullptr || *text == '\0') throw Error(ErrorCode::invalid_argument, otherwise);
  return text;
}

template <typename Read>
Model readable(Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    refuse_model(error);
  }
}

void add_inputs(OrtCompileApi& table) {
  table.ModelCompilationOptions_SetInputModelPath = [](Options* options, const char* path) {
    return guarded([&] {
      Options& given = required(options, "options");
      given.input_path = filled(path, "Invalid input model: path string is empty");
      given.load = [file = given.input_path] {
        check_model_file(file);
        return readable([&] { return Model::load(file); });
      };
    });
  };
  table.ModelCompilationOptions_SetInputModelFromBuffer = [](Options* options, const void* data, size_t size) {
    return guarded([&] {
      if (data == nullptr) throw Error(ErrorCode::invalid_argument, "Invalid input model: data pointer is null");
      if (size == 0) throw Error(ErrorCode::invalid_argument, "Invalid input model: data size is 0");
      required(options, "options").load = [data, size] {
        return readable([&] { return read_model({static_cast<const std::byte*>(data), size}, ".", {}); });
      };
      options->input_path.clear();
    });
  };
  table.ModelCompilationOptions_SetInputModel = [](Options* options, const OrtModel* model) {
    return guarded([&] {
      required(options, "options").load = [given = required(model, "model").self] { return make_model(model_def(*given), {}); };
      options->input_path.clear();
    });
  };
}

// Sets the output to a file. There is only one output, so this replaces one in memory or by a function.
void goes_to_file(Options& options, std::string path) {
  options.output_path = std::move(path);
  options.buffer = nullptr;
  options.write = nullptr;
}

void add_outputs(OrtCompileApi& table) {
  table.ModelCompilationOptions_SetOutputModelPath = [](Options* options, const char* path) {
    return guarded([&] { goes_to_file(required(options, "options"), filled(path, "Invalid output model path: path is empty")); });
  };
  table.ModelCompilationOptions_SetOutputModelExternalInitializersFile = [](Options* options, const char* path, size_t threshold_bytes) {
    return guarded([&] {
      required(options, "options").data_file = filled(path, "Invalid external initializer file: path is empty");
      options->data_threshold_bytes = threshold_bytes;
    });
  };
  table.ModelCompilationOptions_SetOutputModelBuffer = [](Options* options, OrtAllocator* allocator, void** buffer, size_t* size) {
    return guarded([&] {
      Options& given = required(options, "options");
      if (allocator == nullptr)
        throw Error(ErrorCode::invalid_argument, "Invalid allocator for output model buffer: allocator pointer is null");
      goes_to_file(given, {});
      given.allocator = allocator;
      given.buffer = &required(buffer, "output_model_buffer_ptr");
      given.buffer_size = &required(size, "output_model_buffer_size_ptr");
    });
  };
  table.ModelCompilationOptions_SetOutputModelWriteFunc = [](Options* options, OrtWriteBufferFunc write, void* state) {
    return guarded([&] {
      if (write == nullptr) throw Error(ErrorCode::invalid_argument, "OrtWriteBufferFunc function for output model is null");
      goes_to_file(required(options, "options"), {});
      options->write = write;
      options->write_state = state;
    });
  };
  table.ModelCompilationOptions_SetOutputModelGetInitializerLocationFunc = [](Options* options, OrtGetInitializerLocationFunc locate,
                                                                              void* state) {
    return guarded([&] {
      if (locate == nullptr) throw Error(ErrorCode::invalid_argument, "OrtGetInitializerLocationFunc function for output model is null");
      required(options, "options").locate = locate;
      options->locate_state = state;
    });
  };
}

void add_settings(OrtCompileApi& table) {
  // These settings have no effect, because execution providers have no compiled contexts here.
  table.ModelCompilationOptions_SetEpContextEmbedMode = [](Options*, bool) -> OrtStatus* { return nullptr; };
  table.ModelCompilationOptions_SetEpContextBinaryInformation = [](Options*, const char* folder, const char* name) {
    return guarded([&] {
      if (!fs::is_directory(filled(folder, "Invalid output directory: path is empty")))
        throw Error(ErrorCode::invalid_argument, std::string("output_dir is not a valid directory: ") + folder);
      filled(name, "Invalid model name: it is empty");
    });
  };
  table.ModelCompilationOptions_SetFlags = [](Options* options, uint32_t flags) {
    return guarded([&] { required(options, "options").flags = flags; });
  };
  table.ModelCompilationOptions_SetGraphOptimizationLevel = [](Options* options, OrtOptimizationLevel level) {
    return guarded([&] {
      if (!is_level(level))
        throw Error(ErrorCode::invalid_argument, "graph_optimization_level with value " + std::to_string(level) +
                                                     " is invalid. Valid values are: ORT_DISABLE_ALL (0), ORT_ENABLE_BASIC (1), "
                                                     "ORT_ENABLE_EXTENDED (2), ORT_ENABLE_LAYOUT (3), and ORT_ENABLE_ALL (99).");
      required(options, "options").level = static_cast<GraphOptimizationLevel>(level);
    });
  };
}

}  // namespace

void add_compiler(OrtApi& table) {
  table.GetCompileApi = [] {
    static const OrtCompileApi compiler = [] {
      OrtCompileApi made{};
      made.ReleaseModelCompilationOptions = [](Options* options) { delete options; };
      made.CreateModelCompilationOptionsFromSessionOptions = [](const OrtEnv* environment, const OrtSessionOptions* session,
                                                                Options** out) {
        return guarded([&] {
          required(environment, "The env argument"),
              required(out, "out") = new Options{.session = required(session, "The session_options argument")};
        });
      };
      made.CompileModel = [](const OrtEnv* environment, const Options* options) {
        return guarded([&] { compile(required(environment, "env"), required(options, "model_options")); });
      };
      add_inputs(made);
      add_outputs(made);
      add_settings(made);
      return made;
    }();
    return &compiler;
  };
  add_refused_tables(table);
}

}  // namespace treadle::ort
