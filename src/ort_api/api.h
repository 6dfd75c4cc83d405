// ONNX Runtime's C interface on top of Treadle's C++ interface: the types of its functions, the objects behind its handles, and the table.
// Programs compiled for libonnxruntime.so load this library in its place (docs/onnxruntime.md).
//
// Names, numbers and layouts are those of ONNX Runtime's binary interface. A handle is a struct of that name, made with new and released by
// its Release function.
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
using ONNXTensorElementDataType = int;  // some numbers differ from ONNX's: see number_of()
using OrtOptimizationLevel = int;       // these numbers are those of treadle::GraphOptimizationLevel
using OrtExecutionMode = int;           // these numbers are those of treadle::ExecutionMode
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
/// A handle that other objects use. It exists until it is released and no object uses it any more.
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

/// An allocator of the client or of this library. Clients read this struct and fill it in. The functions from `Reserve` on exist only since
/// the versions given.
struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator* self, size_t size);
  void (*Free)(OrtAllocator* self, void* data);
  const OrtMemoryInfo* (*Info)(const OrtAllocator* self);
  void* (*Reserve)(OrtAllocator* self, size_t size);                                // a member since version 18
  OrtStatus* (*GetStats)(const OrtAllocator* self, struct OrtKeyValuePairs** out);  // a member since version 23
  void* (*AllocOnStream)(OrtAllocator* self, size_t size, struct OrtSyncStream* stream);
};

struct OrtLogger {
  OrtLoggingFunction function = nullptr;  // null: messages are dropped
  void* param = nullptr;
  OrtLoggingLevel level = ORT_WARNING;
  std::string id;
  void log(OrtLoggingLevel severity, const char* location, const char* message) const;
};

// Says how a pool's threads are made, and on which processors they run.
struct OrtThreads {
  OrtCustomCreateThreadFn create = nullptr;  // null: the library makes them
  void* creation_options = nullptr;
  OrtCustomJoinThreadFn join = nullptr;
  std::optional<std::string> affinities;  // the client's text; nullopt: any processor
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
  std::vector<const char*> keys, values;  // pointers to the texts, for GetKeyValuePairs
  void index();
};

struct OrtHardwareDevice {
  OrtHardwareDeviceType type = OrtHardwareDeviceType_CPU;
  std::string vendor;
  uint32_t vendor_id = 0, device_id = 0;  // numbers assigned by PCI
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
// The assignment of a node to an execution provider.
struct OrtEpAssignedNode {
  std::string name, domain, op_type;
};
struct OrtEpAssignedSubgraph {
  const char* provider = nullptr;
  OrtEpAssignedNode node;
  const OrtEpAssignedNode* pointer = &node;  // GetAssignedNodes returns it as a list with one element
};
struct OrtEpDevice {
  const char* provider = nullptr;
  std::string name;  // name of the device in sessions: "cpu", "gpu:0"
  OrtHardwareDevice hardware;
  OrtKeyValuePairs metadata, options;
};

/// Filled in by the client; `version` determines which fields exist.
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
  std::shared_ptr<treadle::ThreadPool> pool;  // used by sessions without their own threads
  OrtThreadingOptions threading;
  std::shared_ptr<treadle::Allocator> allocator;  // used by sessions with session.use_env_allocators; null: none
  std::shared_ptr<OrtAllocator> registered;       // the client's allocator that `allocator` wraps; null: `allocator` is this library's
};

using EpSelectionDelegate = OrtStatus* (*)(const OrtEpDevice** devices, size_t num_devices, const OrtKeyValuePairs* model_metadata,
                                           const OrtKeyValuePairs* runtime_metadata, const OrtEpDevice** selected, size_t max_selected,
                                           size_t* num_selected, void* state);

struct OrtSessionOptions {
  treadle::SessionOptions options;
  OrtLogger logger;  // replaces the environment's id and, if it has a function, its function
  int log_severity_level = -1, log_verbosity_level = 0;
  const char* provider = nullptr;                // the provider that was appended first; null: none
  EpSelectionDelegate select_devices = nullptr;  // null: the client is not asked
  void* select_devices_state = nullptr;
  bool prefers_gpu = false;  // the policy asks for the first GPU, if there is one
  bool mem_pattern = true, cpu_mem_arena = true, per_session_threads = true;
  // Copies of the options share it; may be set at any time.
  std::shared_ptr<std::atomic<bool>> load_cancelled = std::make_shared<std::atomic<bool>>(false);
  std::map<std::string, std::shared_ptr<treadle::Storage>> external_files;  // contents that replace files next to the model
  std::map<std::string, treadle::Tensor> external_values;                   // values that replace external initializers
  OrtThreads threads;
  std::vector<std::shared_ptr<struct OrtCustomOpDomain>> custom_op_domains;
};

struct OrtRunOptions : treadle::ort::Kept<OrtRunOptions> {
  treadle::RunOptions options;
  std::optional<std::string> profile_file_prefix;  // nullopt: the session records no profile
  int log_severity_level = -1, log_verbosity_level = 0;
};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType dtype = 0;
  std::vector<int64_t> dims;         // an extent of -1 is unknown
  std::vector<std::string> symbols;  // names of the extents in `dims`; "": none
  bool has_shape = true;
};
struct OrtTypeInfo {
  ONNXType type = ONNX_TYPE_UNKNOWN;
  OrtTensorTypeAndShapeInfo tensor;  // used for dense and sparse tensors
  ONNXTensorElementDataType key_type = 0;
  std::shared_ptr<const OrtTypeInfo> element;  // type of the elements of a sequence or optional, or of a map's values
  std::string denotation;
};
// These are OrtTypeInfo under other names.
struct OrtMapTypeInfo;
struct OrtSequenceTypeInfo;
struct OrtOptionalTypeInfo;

struct OrtValue {
  treadle::Datum datum;
  std::shared_ptr<treadle::SparseTensor> filled;  // a sparse tensor that the client is still filling
  OrtMemoryInfo memory;
  treadle::Tensor blocks;  // indices of a block-sparse tensor; otherwise undefined
  bool populated = false;  // `filled` has its elements
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
  std::shared_ptr<treadle::onnx::ModelDef> editing;  // the model that the client is editing, until it is finalised
  std::shared_ptr<const OrtSessionOptions> editing_options;
  // One per node, if `tells_assignment`, and none while the model is being edited.
  std::vector<std::unique_ptr<OrtEpAssignedSubgraph>> assigned;
  std::vector<const OrtEpAssignedSubgraph*> assigned_pointers;
  bool tells_assignment = false;            // value of session.record_ep_graph_assignment_info
  bool cpu_mem_arena = true;                // value of the session's options
  std::shared_ptr<OrtAllocator> allocator;  // the environment's allocator that it uses; null: none, or one of this library

  // Asynchronous runs whose callbacks have not ended. A release waits for them; a release inside a callback leaves the rest to that run.
  std::mutex mutex;
  std::condition_variable run_ended;
  size_t asynchronous_runs = 0;
  bool released = false;

  /// Returns the session. @throws Error(invalid_argument) while it is being edited
  treadle::Session& running() const;
};

struct OrtIoBinding {
  explicit OrtIoBinding(const OrtSession& owner) : of(&owner.running()), binding(*of) {}
  const treadle::Session* of;
  treadle::IoBinding binding;
  std::map<std::string, treadle::Datum> inputs;
  std::map<std::string, treadle::Datum> outputs;  // the client's memory; undefined: the last run's output, or no output yet
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

// Each of these functions, one per file, sets the table's functions of its topic.
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

/// @param of  name of the pool in errors. @throws StatusError for invalid or too few affinities, or if threads cannot be made
std::shared_ptr<ThreadPool> make_pool(const OrtThreads& threads, int num_threads, const std::string& of = {});

/// Returns the devices of all providers; the first is the CPU. They exist as long as the process.
std::span<const OrtEpDevice* const> ep_devices();
/// Returns the device with this name in sessions.
const OrtEpDevice& ep_device_named(std::string_view name);

/// Appends a provider to the options' list, of which the first is used. @throws Error as use_provider()
void append_provider(OrtSessionOptions& options, const char* provider, const std::map<std::string, std::string>& provider_options);
/// Like append_provider(), for devices of ep_devices(). @throws Error(invalid_argument) unless all devices are of one provider that can use
/// them at once
void append_devices(OrtSessionOptions& options, std::span<const OrtEpDevice* const> devices,
                    std::map<std::string, std::string> provider_options);

/// Returns the options for a client that passes none.
const OrtSessionOptions& default_session_options();
/// Sets the option that a config entry names. @return false if it names none. @throws Error for an invalid value
bool set_by_entry(OrtSessionOptions& options, const std::string& key, const std::string& value);
/// Returns the options of an execution provider. @throws Error(invalid_argument) for a null one
std::map<std::string, std::string> provider_options(const char* const* keys, const char* const* values, size_t count);
/// Like provider_options(), for functions that name the provider. @throws Error(invalid_argument) for an empty key or value, too
std::map<std::string, std::string> filled_provider_options(const char* const* keys, const char* const* values, size_t count);
/// Returns true if a GraphOptimizationLevel has this number.
bool is_level(int64_t level);
/// Applies session options in the model's metadata, if ORT_LOAD_CONFIG_FROM_MODEL=1 is in the environment. @throws StatusError if they are
/// invalid
void apply_model_config(const ModelMetadata& metadata, SessionOptions& options);

/// Reports bytes that are not a model. @throws the error that ONNX Runtime reports for them: StatusError, or the given error
[[noreturn]] void refuse_model(const Error& error);
/// Throws the status for a model of which no session can be made. @throws as refuse_model()
[[noreturn]] void refuse_graph(const Error& error, const Model& model);
/// Checks a file. @throws StatusError, Error(invalid_argument) if the file does not exist or is empty
void check_model_file(const std::string& path);
void check_model_bytes(size_t length);
/// Accepts a severity level; a negative one means the environment's. @throws StatusError for a level that does not exist
void check_severity(int level, const char* option);
/// Makes the session, and fills in the model's inputs and outputs. @throws Error, StatusError
void begin_session(OrtSession& session, const OrtEnv& environment, const OrtSessionOptions& options, const Model& model);
/// Returns whether session.record_ep_graph_assignment_info is on.
bool tells_assignment(const OrtSessionOptions& options);

/// Runs the session. Outputs for which the client has memory are written there, others (null in `outputs`) are allocated.
/// @param memory  for allocated outputs; null: ours
void run_into(const Session& session, const std::map<std::string, Datum>& feeds, const std::vector<std::string>& names, OrtValue** outputs,
              const RunOptions* options, const OrtMemoryInfo* memory = nullptr);

/// Runs `body`, with a profile of only this run if its options ask for one.
void profiled(const Session& session, const OrtRunOptions* options, const std::function<void()>& body);

using OperatorDomains = std::vector<std::shared_ptr<OrtCustomOpDomain>>;
/// Registers custom operators in the process. Must be called before a session that uses them is made. @throws Error
void register_operators(const OperatorDomains& domains);
/// Renames the model's nodes for which the session's own operators replace built-in ones.
Model with_own_operators(const Model& model, const OperatorDomains& domains);
/// Returns the operators of a library built for ONNX Runtime; nullopt if it is no such library. @throws StatusError
std::optional<OperatorDomains> operators_of_library(const std::string& path);
/// Loads operators for all later sessions. @return false if the library is not for operators. @throws Error, StatusError
bool load_operators(const std::string& path);

/// A failure whose status code corresponds to no ErrorCode.
struct StatusError : std::runtime_error {
  StatusError(OrtErrorCode status, const std::string& message) : std::runtime_error(message), code(status) {}
  OrtErrorCode code;
};
/// Returns the status of a node that failed in a run, with the text that clients search for.
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

/// Runs `body`, and converts exceptions to a status.
template <typename Body>
OrtStatus* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_current_exception();
  }
}

/// Checks the status that a client's function returned. @throws Error with the status's message, after releasing the status
void check(OrtStatus* status);

template <typename T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(ErrorCode::invalid_argument, std::string(what) + " is null");
  return *pointer;
}

inline const char* chars_of(const char* pointer, const char* what) { return &required(pointer, what); }

/// Returns this library's allocator of plain memory. It is never released.
OrtAllocator& default_allocator();
/// Returns the memory info that a session reports.
const OrtMemoryInfo& memory_of(const OrtSession& session);
/// Checks a memory info. @throws Error(invalid_argument) for memory of a device other than the CPU
void expect_cpu(const OrtMemoryInfo& info);
/// Copies text, with a terminating NUL, to memory of the client's allocator. @throws Error(resource_exhausted)
char* copy_text(OrtAllocator* allocator, std::string_view text);
void* allocate(OrtAllocator* allocator, size_t size_bytes);
/// Copies text to the client's memory as ONNX Runtime does. `size` is the capacity, and is set to the size including the NUL. `out` may be
/// null to query the size. @throws Error(invalid_argument) if the capacity is too small
void give_text(const std::string& text, char* out, size_t* size);
/// Returns an allocator for later use. One of this library stays valid even if it is released; the client must keep its own alive.
std::shared_ptr<OrtAllocator> keep(OrtAllocator& allocator);
/// Wraps an allocator for use by a session.
std::shared_ptr<Allocator> wrap_allocator(OrtAllocator& allocator);

std::unique_ptr<OrtTypeInfo> type_of(const ValueInfo& info);
std::unique_ptr<OrtTypeInfo> type_of(const Datum& datum);
OrtTensorTypeAndShapeInfo tensor_type(DType dtype, const Shape& shape);

/// Throws the status that ONNX Runtime has for a value of the wrong kind.
[[noreturn]] void refuse_kind(const Datum& datum, const std::string& expected);
/// Makes a value for the client. @param memory  the memory that the value reports; null: this library's default memory
OrtValue* new_value(Datum datum, const OrtMemoryInfo* memory = nullptr);
/// Returns a tensor that the client may write to and keep: a copy if other objects share its memory (a feed, a weight).
Datum owned_by_client(Datum datum);
/// Makes a shape. @throws Error if the dimensions are invalid
Shape shape_from(const int64_t* dims, size_t rank);
/// Returns ONNX Runtime's number of a dtype, which differs from ONNX's for dtypes after float4e2m1.
ONNXTensorElementDataType number_of(DType dtype);
/// Returns the dtype with this number; 0 gives DType::undefined. @throws StatusError for an unknown number
DType dtype_of(ONNXTensorElementDataType type);
/// Returns the dtype of a tensor's elements. @throws StatusError as dtype_of(), and for 0
DType dtype_from(ONNXTensorElementDataType type);

}  // namespace treadle::ort
