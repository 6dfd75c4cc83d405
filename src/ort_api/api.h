// ONNX Runtime's C interface over Treadle's C++ one: the types that its functions have, the objects behind its handles, and the table.
// Programs that were compiled for libonnxruntime.so load this library in its place (docs/onnxruntime.md).
//
// Names, numbers and layouts here are those of ONNX Runtime's binary interface. A handle is a struct of that name, made with new and
// released by its Release function.
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
using ONNXTensorElementDataType = int;  // not ONNX's numbers for all: number_of
using OrtOptimizationLevel = int;       // as treadle::GraphOptimizationLevel
using OrtExecutionMode = int;           // as treadle::ExecutionMode
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
/// What is behind a handle that others use: it lives until its Release, and as long as they keep it.
template <typename Handle>
struct Kept {
  std::shared_ptr<Handle> self;  // empty once it is released
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

/// The client's own, or ours: clients read and fill in this struct. Functions from `Reserve` on are there from the versions that are named.
struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator* self, size_t size);
  void (*Free)(OrtAllocator* self, void* data);
  const OrtMemoryInfo* (*Info)(const OrtAllocator* self);
  void* (*Reserve)(OrtAllocator* self, size_t size);                                // 18
  OrtStatus* (*GetStats)(const OrtAllocator* self, struct OrtKeyValuePairs** out);  // 23
  void* (*AllocOnStream)(OrtAllocator* self, size_t size, struct OrtSyncStream* stream);
};

struct OrtLogger {
  OrtLoggingFunction function = nullptr;  // null: nobody is told
  void* param = nullptr;
  OrtLoggingLevel level = ORT_WARNING;
  std::string id;
  void log(OrtLoggingLevel severity, const char* location, const char* message) const;
};

// Who makes a pool's threads, and where they run.
struct OrtThreads {
  OrtCustomCreateThreadFn create = nullptr;  // null: the library
  void* creation_options = nullptr;
  OrtCustomJoinThreadFn join = nullptr;
  std::optional<std::string> affinities;  // as the client writes them; nothing: anywhere
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
  std::vector<const char*> keys, values;  // as GetKeyValuePairs hands them out
  void index();
};

struct OrtHardwareDevice {
  std::string vendor;
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
// Which nodes run where: all of them on the CPU.
struct OrtEpAssignedNode {
  std::string name, domain, op_type;
};
struct OrtEpAssignedSubgraph {
  OrtEpAssignedNode node;
  const OrtEpAssignedNode* pointer = &node;  // a list of one
};
struct OrtEpDevice {
  OrtHardwareDevice hardware;
  OrtKeyValuePairs metadata, options;
};

/// Filled in by the client; `version` says how far.
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
  std::shared_ptr<treadle::ThreadPool> pool;  // for sessions without threads of their own
  OrtThreadingOptions threading;
  std::shared_ptr<treadle::Allocator> allocator;  // for sessions with session.use_env_allocators; null: none
  std::shared_ptr<OrtAllocator> registered;       // the client's own that it is; null: ours
};

using EpSelectionDelegate = OrtStatus* (*)(const OrtEpDevice** devices, size_t num_devices, const OrtKeyValuePairs* model_metadata,
                                           const OrtKeyValuePairs* runtime_metadata, const OrtEpDevice** selected, size_t max_selected,
                                           size_t* num_selected, void* state);

struct OrtSessionOptions {
  treadle::SessionOptions options;
  OrtLogger logger;  // its id, and where it has a function, in place of the environment's
  int log_severity_level = -1, log_verbosity_level = 0;
  EpSelectionDelegate select_devices = nullptr;  // null: the CPU, without asking
  void* select_devices_state = nullptr;
  bool mem_pattern = true, cpu_mem_arena = true, per_session_threads = true;
  std::shared_ptr<std::atomic<bool>> load_cancelled = std::make_shared<std::atomic<bool>>(false);  // of copies, too: set at any time
  std::map<std::string, std::shared_ptr<treadle::Storage>> external_files;                         // instead of what lies beside the model
  std::map<std::string, treadle::Tensor> external_values;  // instead of what external initializers name
  OrtThreads threads;
  std::vector<std::shared_ptr<struct OrtCustomOpDomain>> custom_op_domains;
};

struct OrtRunOptions : treadle::ort::Kept<OrtRunOptions> {
  treadle::RunOptions options;
  std::optional<std::string> profile_file_prefix;  // nothing: no profile
  int log_severity_level = -1, log_verbosity_level = 0;
};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType dtype = 0;
  std::vector<int64_t> dims;         // -1: not known
  std::vector<std::string> symbols;  // of `dims`; "" where there is none
  bool has_shape = true;
};
struct OrtTypeInfo {
  ONNXType type = ONNX_TYPE_UNKNOWN;
  OrtTensorTypeAndShapeInfo tensor;  // of dense and sparse ones
  ONNXTensorElementDataType key_type = 0;
  std::shared_ptr<const OrtTypeInfo> element;  // of a sequence or an optional; a map's values
  std::string denotation;
};
// An OrtTypeInfo under another name each.
struct OrtMapTypeInfo;
struct OrtSequenceTypeInfo;
struct OrtOptionalTypeInfo;

struct OrtValue {
  treadle::Datum datum;
  std::shared_ptr<treadle::SparseTensor> filled;  // a sparse tensor that the client is still making
  OrtMemoryInfo memory;
  treadle::Tensor blocks;  // the indices of a sparse tensor of blocks; undefined: it is none
  bool populated = false;  // `filled` has its elements
};

namespace treadle {
class NodeFault;
}
namespace treadle::onnx {
struct ModelDef;
}
struct OrtSession {
  std::unique_ptr<treadle::Session> session;  // null while the model is edited
  std::vector<treadle::ValueInfo> inputs, outputs, overridable;
  std::shared_ptr<treadle::onnx::ModelDef> editing;  // of a model editor's session, until it is finalised
  std::shared_ptr<const OrtSessionOptions> editing_options;
  // With session.record_ep_graph_assignment_info: for each node one.
  std::vector<std::unique_ptr<OrtEpAssignedSubgraph>> assigned;
  std::vector<const OrtEpAssignedSubgraph*> assigned_pointers;
  bool tells_assignment = false;
  bool cpu_mem_arena = true;                // as its options say
  std::shared_ptr<OrtAllocator> allocator;  // the environment's that it uses; null: none, or one of ours

  // Runs on threads of their own, up to the ends of their callbacks. A release waits for them; one out of a callback leaves the end to it.
  std::mutex mutex;
  std::condition_variable run_ended;
  size_t asynchronous_runs = 0;
  bool released = false;

  /// @throws Error(invalid_argument) for one that is still edited.
  treadle::Session& running() const;
};

struct OrtIoBinding {
  explicit OrtIoBinding(const OrtSession& owner) : of(&owner.running()), binding(*of) {}
  const treadle::Session* of;
  treadle::IoBinding binding;
  std::map<std::string, treadle::Datum> inputs;
  std::map<std::string, treadle::Datum> outputs;  // the client's memory; undefined: the last run's, or nothing yet
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

/// Of a function that nobody fills in.
std::string missing_text(std::string_view name);

// Each file fills in the functions that it is about.
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

/// @param of  which pool it is, for errors. @throws StatusError for affinities that are none, or too few, and threads that cannot be made
std::shared_ptr<ThreadPool> make_pool(const OrtThreads& threads, int num_threads, const std::string& of = {});

/// The one device.
const OrtEpDevice& cpu_device();

/// Those of a client that gives none.
const OrtSessionOptions& default_session_options();
/// Of a config entry that stands for a setting. @return false if it stands for none. @throws Error for what the setting cannot be
bool set_by_entry(OrtSessionOptions& options, const std::string& key, const std::string& value);
/// Of an execution provider. @throws Error(invalid_argument) for a null or empty one
void check_provider_options(const char* const* keys, const char* const* values, size_t count);
/// Whether there is such a GraphOptimizationLevel.
bool is_level(int64_t level);
/// With ORT_LOAD_CONFIG_FROM_MODEL=1: what the model's metadata says of the session. @throws StatusError for what it says wrongly
void apply_model_config(const ModelMetadata& metadata, SessionOptions& options);

/// @throws what ONNX Runtime's status is for bytes that are no model: StatusError, or the error itself
[[noreturn]] void refuse_model(const Error& error);
/// Of a model that makes no session. @throws as refuse_model()
[[noreturn]] void refuse_graph(const Error& error, const Model& model);
/// @throws StatusError, Error(invalid_argument) if there is no file, or nothing in it
void check_model_file(const std::string& path);
void check_model_bytes(size_t length);
/// Below 0: the environment's. @throws StatusError for a level that there is not
void check_severity(int level, const char* option);
/// Makes the session and says what its model has. @throws Error, StatusError
void begin_session(OrtSession& session, const OrtEnv& environment, const OrtSessionOptions& options, const Model& model);

/// Outputs that the client has memory for are written there; the others, null in `outputs`, are made.
/// @param memory  of what is made; null: ours
void run_into(const Session& session, const std::map<std::string, Datum>& feeds, const std::vector<std::string>& names, OrtValue** outputs,
              const RunOptions* options, const OrtMemoryInfo* memory = nullptr);

/// Runs `body` with a profile of this run alone, if its options ask for one.
void profiled(const Session& session, const OrtRunOptions* options, const std::function<void()>& body);

using OperatorDomains = std::vector<std::shared_ptr<OrtCustomOpDomain>>;
/// Before a session is made with them: its custom operators become the process's. @throws Error
void register_operators(const OperatorDomains& domains);
/// The model with those of its nodes renamed for which the session's operators stand in place of the build's.
Model with_own_operators(const Model& model, const OperatorDomains& domains);
/// Of a library that was built for ONNX Runtime; nothing if it is none. @throws StatusError
std::optional<OperatorDomains> operators_of_library(const std::string& path);
/// For all sessions from then on. @return false if the library is none. @throws Error, StatusError
bool load_operators(const std::string& path);

/// A failure for which there is a status code, but no ErrorCode.
struct StatusError : std::runtime_error {
  StatusError(OrtErrorCode status, const std::string& message) : std::runtime_error(message), code(status) {}
  OrtErrorCode code;
};
/// Of a node that fails in a run, with the words that clients look for.
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

/// Runs `body`; what it throws becomes a status.
template <typename Body>
OrtStatus* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_current_exception();
  }
}

/// What a client's function returns. @throws Error with its message, which is released
void check(OrtStatus* status);

template <typename T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(ErrorCode::invalid_argument, std::string(what) + " is null");
  return *pointer;
}

inline const char* chars_of(const char* pointer, const char* what) { return &required(pointer, what); }

/// Ours, of plain memory. Never released.
OrtAllocator& default_allocator();
/// What a session says of its memory.
const OrtMemoryInfo& memory_of(const OrtSession& session);
/// @throws Error(invalid_argument) for memory of another device than the CPU
void expect_cpu(const OrtMemoryInfo& info);
/// A NUL-terminated copy in memory of the client's allocator. @throws Error(resource_exhausted)
char* copy_text(OrtAllocator* allocator, std::string_view text);
void* allocate(OrtAllocator* allocator, size_t size_bytes);
/// Copies text to the client's memory as ONNX Runtime does: `size` is the room, and then what it takes with its NUL; `out` may be null, to
/// ask for that. @throws Error(invalid_argument) if there is too little room.
void give_text(const std::string& text, char* out, size_t* size);
/// To use it later. One of ours stays, though it is released; a client's own has to.
std::shared_ptr<OrtAllocator> keep(OrtAllocator& allocator);
/// What a session can take its memory from.
std::shared_ptr<Allocator> wrap_allocator(OrtAllocator& allocator);

std::unique_ptr<OrtTypeInfo> type_of(const ValueInfo& info);
std::unique_ptr<OrtTypeInfo> type_of(const Datum& datum);
OrtTensorTypeAndShapeInfo tensor_type(DType dtype, const Shape& shape);

/// Of a value of another kind than is asked for: the statuses that ONNX Runtime has.
[[noreturn]] void refuse_kind(const Datum& datum, const std::string& expected);
/// @param memory  null: ours
OrtValue* new_value(Datum datum, const OrtMemoryInfo* memory = nullptr);
/// A tensor that the client may write to and keep: a copy where its memory is somebody else's too (a feed, a weight).
Datum owned_by_client(Datum datum);
/// @throws Error for dimensions that make no shape.
Shape shape_from(const int64_t* dims, size_t rank);
/// ONNX Runtime's number of a dtype. It has its own for what came after float4e2m1.
ONNXTensorElementDataType number_of(DType dtype);
/// 0 is DType::undefined. @throws StatusError for a number of no dtype.
DType dtype_of(ONNXTensorElementDataType type);
/// Of a tensor's elements. @throws StatusError as dtype_of(), and for 0
DType dtype_from(ONNXTensorElementDataType type);

}  // namespace treadle::ort
