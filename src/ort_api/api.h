// ONNX Runtime's C interface on top of Treadle's C++ interface: types, the objects behind handles, and the table of functions.
// Programs that were compiled for libonnxruntime.so can load this library instead (docs/onnxruntime.md).
//
// Names, numbers and layouts are those of ONNX Runtime's binary interface. A handle such as OrtSession is a struct of this name. It is made
// with new, and released by the handle's Release function.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "treadle/error.h"
#include "treadle/session.h"

enum OrtErrorCode {
  ORT_OK,
  ORT_FAIL,
  ORT_INVALID_ARGUMENT,
  ORT_NO_SUCHFILE,
  ORT_NO_MODEL,
  ORT_ENGINE_ERROR,
  ORT_RUNTIME_EXCEPTION,
  ORT_INVALID_PROTOBUF,
  ORT_MODEL_LOADED,
  ORT_NOT_IMPLEMENTED,
  ORT_INVALID_GRAPH,
  ORT_EP_FAIL,
  ORT_MODEL_LOAD_CANCELED,
  ORT_MODEL_REQUIRES_COMPILATION,
  ORT_NOT_FOUND,
};
enum OrtLoggingLevel { ORT_VERBOSE, ORT_INFO, ORT_WARNING, ORT_ERROR, ORT_FATAL };
enum ONNXType {
  ONNX_TYPE_UNKNOWN,
  ONNX_TYPE_TENSOR,
  ONNX_TYPE_SEQUENCE,
  ONNX_TYPE_MAP,
  ONNX_TYPE_OPAQUE,
  ONNX_TYPE_SPARSETENSOR,
  ONNX_TYPE_OPTIONAL,
};
using ONNXTensorElementDataType = int;  // some numbers differ from those in ONNX: see number_of()
using OrtOptimizationLevel = int;       // same numbers as treadle::GraphOptimizationLevel
using OrtExecutionMode = int;           // same numbers as treadle::ExecutionMode
enum OrtAllocatorType { OrtInvalidAllocator = -1, OrtDeviceAllocator = 0, OrtArenaAllocator = 1, OrtReadOnlyAllocator = 2 };
enum OrtMemType { OrtMemTypeCPUInput = -2, OrtMemTypeCPUOutput = -1, OrtMemTypeDefault = 0 };
enum OrtMemoryInfoDeviceType {
  OrtMemoryInfoDeviceType_CPU,
  OrtMemoryInfoDeviceType_GPU,
  OrtMemoryInfoDeviceType_FPGA,
  OrtMemoryInfoDeviceType_NPU
};
enum OrtDeviceMemoryType { OrtDeviceMemoryType_DEFAULT = 0, OrtDeviceMemoryType_HOST_ACCESSIBLE = 5 };
enum OrtHardwareDeviceType { OrtHardwareDeviceType_CPU, OrtHardwareDeviceType_GPU, OrtHardwareDeviceType_NPU };
enum OrtSparseFormat { ORT_SPARSE_UNDEFINED = 0, ORT_SPARSE_COO = 1, ORT_SPARSE_CSRC = 2, ORT_SPARSE_BLOCK_SPARSE = 4 };
enum OrtSparseIndicesFormat {
  ORT_SPARSE_COO_INDICES,
  ORT_SPARSE_CSR_INNER_INDICES,
  ORT_SPARSE_CSR_OUTER_INDICES,
  ORT_SPARSE_BLOCK_SPARSE_INDICES
};
enum OrtOpAttrType {
  ORT_OP_ATTR_UNDEFINED,
  ORT_OP_ATTR_INT,
  ORT_OP_ATTR_INTS,
  ORT_OP_ATTR_FLOAT,
  ORT_OP_ATTR_FLOATS,
  ORT_OP_ATTR_STRING,
  ORT_OP_ATTR_STRINGS,
  ORT_OP_ATTR_GRAPH,
  ORT_OP_ATTR_TENSOR,
};
using OrtLanguageProjection = int;
using OrtExecutionProviderDevicePolicy = int;
using OrtCompiledModelCompatibility = int;
using OrtLoggingFunction = void (*)(void* param, OrtLoggingLevel severity, const char* category, const char* logid,
                                    const char* code_location, const char* message);
using OrtCustomCreateThreadFn = void* (*)(void* options, void (*worker)(void* param), void* param);
using OrtCustomJoinThreadFn = void (*)(const void* handle);
using OrtExperimentalFnPtr = void (*)();

namespace treadle::ort {
/// Base of handles that other objects may use. Such a handle exists until it has been released and no object uses it any more.
template <typename Handle>
struct Kept {
  std::shared_ptr<Handle> self;  // null once the handle has been released
  Kept() = default;
  Kept(const Kept&) noexcept {}
  Kept& operator=(const Kept&) noexcept { return *this; }
};
}  // namespace treadle::ort

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};
using RunAsyncCallbackFn = void (*)(void* user_data, struct OrtValue** outputs, size_t num_outputs, OrtStatus* status);

struct OrtMemoryInfo {
  std::string name = "Cpu";
  OrtAllocatorType allocator_type = OrtDeviceAllocator;
  int id = 0;
  OrtMemType mem_type = OrtMemTypeDefault;
  OrtDeviceMemoryType device_mem_type = OrtDeviceMemoryType_DEFAULT;
  uint32_t vendor_id = 0;
  OrtMemoryInfoDeviceType device = OrtMemoryInfoDeviceType_CPU;
  bool operator==(const OrtMemoryInfo&) const = default;
};

/// An allocator of the client or of this library. Clients read this struct or fill it in. If `version` is older than noted at a member, the
/// struct ends before this member.
struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator* self, size_t size);
  void (*Free)(OrtAllocator* self, void* data);
  const OrtMemoryInfo* (*Info)(const OrtAllocator* self);
  void* (*Reserve)(OrtAllocator* self, size_t size);                                // since version 18
  OrtStatus* (*GetStats)(const OrtAllocator* self, struct OrtKeyValuePairs** out);  // since version 23
  void* (*AllocOnStream)(OrtAllocator* self, size_t size, struct OrtSyncStream* stream);
};

struct OrtLogger {
  OrtLoggingFunction function = nullptr;  // null: messages are dropped
  void* param = nullptr;
  OrtLoggingLevel level = ORT_WARNING;
  std::string id;
  void log(OrtLoggingLevel severity, const char* location, const char* message) const;
};

// Says how the threads of a thread pool are made, and on which processors they run.
struct OrtThreads {
  OrtCustomCreateThreadFn create = nullptr;  // the client's function; null: the library makes threads
  void* creation_options = nullptr;
  OrtCustomJoinThreadFn join = nullptr;
  std::optional<std::string> affinities;  // the client's text about processors; nullopt: any processor
  bool asked() const { return create != nullptr || affinities; }
};

struct OrtThreadingOptions {
  OrtThreads threads;
  int intra_op_num_threads = 0, inter_op_num_threads = 0;
  bool set_denormal_as_zero = false, allow_spinning = true;
};

struct OrtArenaCfg {
  std::map<std::string, size_t> settings;
};

struct OrtKeyValuePairs {
  std::map<std::string, std::string> entries;
  std::vector<const char*> keys, values;  // pointers to the texts in `entries`, which GetKeyValuePairs returns
  void index();
};

struct OrtHardwareDevice {
  OrtHardwareDeviceType type = OrtHardwareDeviceType_CPU;
  std::string vendor;
  uint32_t vendor_id = 0, device_id = 0;  // ids that PCI assigns
  OrtKeyValuePairs metadata;
};
struct OrtExternalInitializerInfo {
  std::string file_path;
  int64_t file_offset = 0;
  size_t size_bytes = 0;
};
struct OrtDeviceEpIncompatibilityDetails {
  uint32_t reasons = 0;
  int32_t error_code = 0;
  std::string notes;
};
// A node that is assigned to an execution provider.
struct OrtEpAssignedNode {
  std::string name, domain, op_type;
};
struct OrtEpAssignedSubgraph {
  const char* provider = nullptr;
  OrtEpAssignedNode node;
  const OrtEpAssignedNode* pointer = &node;  // EpAssignedSubgraph_GetNodes returns this as a list with one element
};
struct OrtEpDevice {
  const char* provider = nullptr;
  std::string name;  // the device's name in session options, such as "cpu" or "gpu:0"
  OrtHardwareDevice hardware;
  OrtKeyValuePairs metadata, options;
};

/// The client fills this in. Its `version` determines which fields exist.
struct OrtEnvCreationOptions {
  uint32_t version;
  int32_t logging_severity_level;
  const char* log_id;
  OrtLoggingFunction custom_logging_function;
  void* custom_logging_param;
  const OrtThreadingOptions* threading_options;
  const OrtKeyValuePairs* config_entries;
};

struct OrtEnv {
  OrtLogger logger;
  std::shared_ptr<treadle::ThreadPool> pool;  // for sessions that do not have their own threads
  OrtThreadingOptions threading;
  std::shared_ptr<treadle::Allocator> allocator;  // for sessions with session.use_env_allocators; null: none
  std::shared_ptr<OrtAllocator> registered;       // the client's allocator that `allocator` wraps; null: it wraps none
};

using EpSelectionDelegate = OrtStatus* (*)(const OrtEpDevice** devices, size_t num_devices, const OrtKeyValuePairs* model_metadata,
                                           const OrtKeyValuePairs* runtime_metadata, const OrtEpDevice** selected, size_t max_selected,
                                           size_t* num_selected, void* state);

struct OrtSessionOptions {
  treadle::SessionOptions options;
  OrtLogger logger;  // replaces the id and (if not null) the function of the environment's logger
  int log_severity_level = -1, log_verbosity_level = 0;
  const char* provider = nullptr;                // the execution provider that was appended first; null: none
  EpSelectionDelegate select_devices = nullptr;  // function of the client; null: there is none
  void* select_devices_state = nullptr;
  bool prefers_gpu = false;  // the client's policy for devices prefers GPUs
  bool mem_pattern = true, cpu_mem_arena = true, per_session_threads = true;
  // Copies of the options share this flag, which the client may set at any time to cancel loading.
  std::shared_ptr<std::atomic<bool>> load_cancelled = std::make_shared<std::atomic<bool>>(false);
  std::map<std::string, std::shared_ptr<treadle::Storage>> external_files;  // contents that are used instead of files next to the model
  std::map<std::string, treadle::Tensor> external_values;                   // values that are used instead of external initializers
  OrtThreads threads;
  std::vector<std::shared_ptr<struct OrtCustomOpDomain>> custom_op_domains;
};

struct OrtRunOptions : treadle::ort::Kept<OrtRunOptions> {
  treadle::RunOptions options;
  std::optional<std::string> profile_file_prefix;  // nullopt: the run records no profile
  int log_severity_level = -1, log_verbosity_level = 0;
};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType dtype = 0;
  std::vector<int64_t> dims;         // -1: the extent is unknown
  std::vector<std::string> symbols;  // symbolic names of the extents in `dims`; "": none
  bool has_shape = true;
};
struct OrtTypeInfo {
  ONNXType type = ONNX_TYPE_UNKNOWN;
  OrtTensorTypeAndShapeInfo tensor;  // for types of dense and sparse tensors
  ONNXTensorElementDataType key_type = 0;
  std::shared_ptr<const OrtTypeInfo> element;  // of elements of a sequence or optional, or of values of a map
  std::string denotation;
};
// Pointers to these types point to an OrtTypeInfo.
struct OrtMapTypeInfo;
struct OrtSequenceTypeInfo;
struct OrtOptionalTypeInfo;

struct OrtValue {
  treadle::Datum datum;
  std::shared_ptr<treadle::SparseTensor> filled;  // a sparse tensor that the client is still filling
  OrtMemoryInfo memory;
  treadle::Tensor blocks;  // indices of a block-sparse tensor; undefined for other values
  bool populated = false;  // the client has filled `filled` with its elements
};

namespace treadle {
class NodeFault;
}
namespace treadle::onnx {
struct ModelDef;
}
struct OrtSession {
  std::unique_ptr<treadle::Session> session;  // null while the model is being edited
  std::vector<treadle::ValueInfo> inputs, outputs, overridable;
  std::shared_ptr<treadle::onnx::ModelDef> editing;  // the model, while the client is editing it; otherwise null
  std::shared_ptr<const OrtSessionOptions> editing_options;
  // One entry per node, if the config entry session.record_ep_graph_assignment_info asks for them.
  std::vector<std::unique_ptr<OrtEpAssignedSubgraph>> assigned;
  std::vector<const OrtEpAssignedSubgraph*> assigned_pointers;
  bool tells_assignment = false;            // value of session.record_ep_graph_assignment_info
  bool cpu_mem_arena = true;                // as in the session's options
  std::shared_ptr<OrtAllocator> allocator;  // the client's allocator that the session uses; null: it uses none

  // The number of asynchronous runs whose callbacks have not returned. A release waits for them. If a callback itself releases the session,
  // the last run deletes it.
  std::mutex mutex;
  std::condition_variable run_ended;
  size_t asynchronous_runs = 0;
  bool released = false;

  /// Returns the session. @throws Error(invalid_argument) while the client is editing the model
  treadle::Session& running() const;
};

struct OrtIoBinding {
  explicit OrtIoBinding(const OrtSession& owner) : of(&owner.running()), binding(*of) {}
  const treadle::Session* of;
  treadle::IoBinding binding;
  std::map<std::string, treadle::Datum> inputs;
  std::map<std::string, treadle::Datum> outputs;  // by name: memory of the client for the output; undefined: the client has bound none
};

struct OrtModelMetadata {
  treadle::ModelMetadata metadata;
};

struct OrtPrepackedWeightsContainer {};

struct OrtLoraAdapter {
  std::shared_ptr<const treadle::Adapter> adapter;
};

struct OrtApi;
struct OrtCANNProviderOptions;
struct OrtCUDAProviderOptions;
struct OrtCUDAProviderOptionsV2;
struct OrtCompileApi;
struct OrtCustomOp;
struct OrtCustomOpDomain;
struct OrtDnnlProviderOptions;
struct OrtEpApi;
struct OrtGraph;
struct OrtInteropApi;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtMIGraphXProviderOptions;
struct OrtModel;
struct OrtModelEditorApi;
struct OrtNode;
struct OrtOp;
struct OrtOpAttr;
struct OrtOpenVINOProviderOptions;
struct OrtROCMProviderOptions;
struct OrtShapeInferContext;
struct OrtSyncStream;
struct OrtTensorRTProviderOptions;
struct OrtTensorRTProviderOptionsV2;
struct OrtThreadPoolCallbacksConfig;
struct OrtTrainingApi;
struct OrtValueInfo;
struct OrtApi {
#define ORT_ENTRY(name, result, parameters) result(*name) parameters;
#include "ort_api/entries.inc"
#undef ORT_ENTRY
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

namespace treadle::ort {

inline constexpr uint32_t kApiVersion = 32;
inline constexpr const char* kVersion = "1.32.0";

const OrtApi& api();

/// Returns the error message of a function that is not implemented.
std::string missing_text(std::string_view name);

// Each of these functions sets the table's functions of one topic. Each is in a file of its own.
void add_statuses(OrtApi& table);
void add_environment(OrtApi& table);
void add_session_options(OrtApi& table);
void add_custom_threads(OrtApi& table);
void add_sessions(OrtApi& table);
void add_bindings(OrtApi& table);
void add_types(OrtApi& table);
void add_tensors(OrtApi& table);
void add_containers(OrtApi& table);
void add_sparse_tensors(OrtApi& table);
void add_memory(OrtApi& table);
void add_devices(OrtApi& table);
void add_custom_operators(OrtApi& table);
void add_kernel_info(OrtApi& table);
void add_kernel_context(OrtApi& table);
void add_invoked_operators(OrtApi& table);
void add_adapters(OrtApi& table);
void add_model_editor(OrtApi& table);
void add_graph_readers(OrtApi& table);
void add_compiler(OrtApi& table);

/// Makes a thread pool. @param of  text that names the pool in errors. @throws StatusError for invalid affinities, or a wrong number of
/// them, or if threads cannot be made
std::shared_ptr<ThreadPool> make_pool(const OrtThreads& threads, int num_threads, const std::string& of = {});

/// Returns the devices of all execution providers, beginning with the CPU. They exist as long as the process.
std::span<const OrtEpDevice* const> ep_devices();
/// Returns the device that has this name in session options.
const OrtEpDevice& ep_device_named(std::string_view name);

/// Appends an execution provider to the options. Sessions use only the provider that was appended first. @throws Error like use_provider()
void append_provider(OrtSessionOptions& options, const char* provider, const std::map<std::string, std::string>& provider_options);
/// Like append_provider(), but for devices of ep_devices(). @throws Error(invalid_argument) if the devices belong to several providers, or
/// if one session cannot use all of them
void append_devices(OrtSessionOptions& options, std::span<const OrtEpDevice* const> devices,
                    std::map<std::string, std::string> provider_options);

/// Returns the default options, for clients that pass none.
const OrtSessionOptions& default_session_options();
/// Sets the option that a config entry's key names. @return false if the key names no option. @throws Error for an invalid value
bool set_by_entry(OrtSessionOptions& options, const std::string& key, const std::string& value);
/// Converts a client's arrays to the options of an execution provider. @throws Error(invalid_argument) for a null key or value
std::map<std::string, std::string> provider_options(const char* const* keys, const char* const* values, size_t count);
/// Like provider_options(), for functions that name the provider. @throws Error(invalid_argument) also for an empty key or value
std::map<std::string, std::string> filled_provider_options(const char* const* keys, const char* const* values, size_t count);
/// Returns true if the number is one of GraphOptimizationLevel.
bool is_level(int64_t level);
/// Applies session options that the model's metadata contain, if the environment variable ORT_LOAD_CONFIG_FROM_MODEL is 1. @throws
/// StatusError if these options are invalid
void apply_model_config(const ModelMetadata& metadata, SessionOptions& options);

/// Reports an error of loading a model. @throws the error that ONNX Runtime reports in this case: a StatusError, or the given error
[[noreturn]] void refuse_model(const Error& error);
/// Reports an error of making a session for a loaded model. @throws like refuse_model()
[[noreturn]] void refuse_graph(const Error& error, const Model& model);
/// Checks a model file. @throws StatusError or Error(invalid_argument) if the file does not exist or is empty
void check_model_file(const std::string& path);
void check_model_bytes(size_t length);
/// Checks a severity level. A negative level stands for that of the environment. @throws StatusError for a level that does not exist
void check_severity(int level, const char* option);
/// Makes a Treadle session for `session`, and fills in the model's inputs and outputs. @throws Error, StatusError
void begin_session(OrtSession& session, const OrtEnv& environment, const OrtSessionOptions& options, const Model& model);
/// Returns whether session.record_ep_graph_assignment_info is on.
bool tells_assignment(const OrtSessionOptions& options);

/// Runs the session. Writes outputs into the client's values in `outputs`, and allocates those that are null.
/// @param memory  the memory info that allocated outputs report; null: that of this library
void run_into(const Session& session, const std::map<std::string, Datum>& feeds, const std::vector<std::string>& names, OrtValue** outputs,
              const RunOptions* options, const OrtMemoryInfo* memory = nullptr);

/// Calls `body`, which runs the session. If the run's options ask for a profile, records one of this run alone.
void profiled(const Session& session, const OrtRunOptions* options, const std::function<void()>& body);

using OperatorDomains = std::vector<std::shared_ptr<OrtCustomOpDomain>>;
/// Registers custom operators for all sessions of the process. Must be called before a session that uses them is made. @throws Error
void register_operators(const OperatorDomains& domains);
/// Returns the model, in which nodes whose built-in operator is replaced by a custom operator of the session have another domain.
Model with_own_operators(const Model& model, const OperatorDomains& domains);
/// Loads custom operators from a library that was built for ONNX Runtime; nullopt if it is no such library. @throws StatusError
std::optional<OperatorDomains> operators_of_library(const std::string& path);
/// Loads custom operators for all later sessions. @return false if the library has none. @throws Error, StatusError
bool load_operators(const std::string& path);

/// An error with one of ONNX Runtime's status codes, for codes that correspond to no ErrorCode.
struct StatusError : std::runtime_error {
  StatusError(OrtErrorCode status, const std::string& message) : std::runtime_error(message), code(status) {}
  OrtErrorCode code;
};
/// Returns the status for a node that has failed in a run. Its text has the words by which clients recognize such errors.
StatusError status_of(const NodeFault& fault);

template <typename Handle, typename... Arguments>
Handle* make_handle(Arguments&&... arguments) {
  auto made = std::make_shared<Handle>(std::forward<Arguments>(arguments)...);
  made->self = made;
  return made.get();
}
template <typename Handle>
void release_handle(Handle* handle) {
  if (handle != nullptr) std::exchange(handle->self, nullptr).reset();
}

OrtStatus* make_status(OrtErrorCode code, const char* message) noexcept;
OrtStatus* status_of_current_exception() noexcept;

/// Calls `body`, and converts exceptions to a status. Returns null, which means success, if there is none.
template <typename Body>
OrtStatus* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_current_exception();
  }
}

/// Checks a status that a function of the client has returned. @throws Error with its message for any failure. Releases the status
void check(OrtStatus* status);

template <typename T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(ErrorCode::invalid_argument, std::string(what) + " is null");
  return *pointer;
}

inline const char* chars_of(const char* pointer, const char* what) { return &required(pointer, what); }

/// Returns this library's default allocator of CPU memory, which exists as long as the process.
OrtAllocator& default_allocator();
/// Returns the memory info that a session reports for its inputs and outputs.
const OrtMemoryInfo& memory_of(const OrtSession& session);
/// Checks a memory info. @throws Error(invalid_argument) for memory of a device other than the CPU
void expect_cpu(const OrtMemoryInfo& info);
/// Copies text, with a terminating NUL, to memory from the client's allocator. @throws Error(resource_exhausted)
char* copy_text(OrtAllocator* allocator, std::string_view text);
void* allocate(OrtAllocator* allocator, size_t size_bytes);
/// Copies text to the client's memory as ONNX Runtime does. `*size` is its capacity, and is set to the text's size including the NUL. If
/// `out` is null, only sets `*size`. @throws Error(invalid_argument) if the capacity is too small
void give_text(const std::string& text, char* out, size_t* size);
/// Returns an allocator for later use. An allocator of this library stays valid even if the client releases it; the client must keep its
/// own allocators alive.
std::shared_ptr<OrtAllocator> keep(OrtAllocator& allocator);
/// Wraps a client's allocator, so that sessions can use it.
std::shared_ptr<Allocator> wrap_allocator(OrtAllocator& allocator);

std::unique_ptr<OrtTypeInfo> type_of(const ValueInfo& info);
std::unique_ptr<OrtTypeInfo> type_of(const Datum& datum);
OrtTensorTypeAndShapeInfo tensor_type(DType dtype, const Shape& shape);

/// Throws the error that ONNX Runtime reports for a value of the wrong kind, such as a sequence instead of a tensor.
[[noreturn]] void refuse_kind(const Datum& datum, const std::string& expected);
/// Makes a value for the client. @param memory  the memory info that the value reports; null: that of this library's default memory
OrtValue* new_value(Datum datum, const OrtMemoryInfo* memory = nullptr);
/// Returns a tensor that the client may keep and overwrite. This is a copy if other objects, such as weights, share the tensor's memory.
Datum owned_by_client(Datum datum);
/// Converts a client's array to a shape. @throws Error if the dimensions are invalid
Shape shape_from(const int64_t* dims, size_t rank);
/// Returns the number that ONNX Runtime uses for a dtype. It differs from that in ONNX for dtypes after float4e2m1.
ONNXTensorElementDataType number_of(DType dtype);
/// Returns the dtype for a number of ONNX Runtime; DType::undefined for 0. @throws StatusError for an unknown number
DType dtype_of(ONNXTensorElementDataType type);
/// Like dtype_of(), for elements of tensors. @throws StatusError also for 0
DType dtype_from(ONNXTensorElementDataType type);

}  // namespace treadle::ort
