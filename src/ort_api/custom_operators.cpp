// Custom operators of clients: domains, libraries of them, and how they become operators of the process.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "ort_api/custom_operator.h"
#include "plugin/custom_operator.h"

extern "C" const OrtApiBase* treadle_ort_api_base() noexcept;

namespace treadle::ort {
namespace {

enum Characteristic { kRequired, kOptional, kVariadic };
constexpr uint32_t kWithCharacteristics = 8, kWithVariadic = 14, kWithStatus = 16, kWithShapes = 17;
constexpr int kMostVariadicOutputs = 32;

Characteristic input_kind(const OrtCustomOp& op, size_t index) {
  return op.version >= kWithCharacteristics && op.GetInputCharacteristic
             ? static_cast<Characteristic>(op.GetInputCharacteristic(&op, index))
             : kRequired;
}
bool has_variadic_outputs(const OrtCustomOp& op) {
  const size_t count = op.GetOutputTypeCount(&op);
  return count > 0 && op.version >= kWithCharacteristics && op.GetOutputCharacteristic &&
         op.GetOutputCharacteristic(&op, count - 1) == kVariadic;
}

// What one operator takes, as a plugin's operator says it.
struct Operands {
  int min_inputs = 0, max_inputs = 0, num_outputs = 0;
};
Operands operands_of(const OrtCustomOp& op) {
  Operands made;
  const auto count = static_cast<int>(op.GetInputTypeCount(&op));
  made.max_inputs = count;
  for (int i = 0; i < count; ++i) {
    const Characteristic kind = input_kind(op, static_cast<size_t>(i));
    if (kind == kRequired) made.min_inputs = i + 1;
    if (kind != kVariadic) continue;
    made.max_inputs = -1;
    made.min_inputs = i + std::max(0, op.version >= kWithVariadic && op.GetVariadicInputMinArity ? op.GetVariadicInputMinArity(&op) : 1);
  }
  made.num_outputs = static_cast<int>(op.GetOutputTypeCount(&op));
  if (has_variadic_outputs(op)) made.num_outputs += kMostVariadicOutputs - 1;
  return made;
}

// @throws StatusError for a variadic operand that is not the last
void check_operands(const OrtCustomOp& op) {
  if (op.version < kWithCharacteristics) return;
  auto check_last = [](size_t count, const char* what, auto&& kind) {
    for (size_t i = 0; i + 1 < count; ++i)
      if (kind(i) == kVariadic)
        throw StatusError(ORT_FAIL, std::string("Only the last ") + what + " to a custom op may be marked variadic.");
  };
  check_last(op.GetInputTypeCount(&op), "input", [&](size_t i) { return input_kind(op, i); });
  if (op.GetOutputCharacteristic)
    check_last(op.GetOutputTypeCount(&op), "output", [&](size_t i) { return op.GetOutputCharacteristic(&op, i); });
}

// @throws StatusError where operands of one type have several
void check_homogeneous(const OrtCustomOp& op, const treadle_node& node) {
  const size_t declared = op.GetInputTypeCount(&op);
  if (declared == 0 || input_kind(op, declared - 1) != kVariadic || op.version < kWithVariadic || !op.GetVariadicInputHomogeneity ||
      op.GetVariadicInputHomogeneity(&op) == 0)
    return;
  for (size_t i = declared; i < node.input_types.size(); ++i) {
    const DType first = node.input_types[declared - 1].dtype, other = node.input_types[i].dtype;
    if (first != DType::undefined && other != DType::undefined && first != other)
      throw StatusError(ORT_FAIL, std::string("Type Error: the variadic inputs of ") + op.GetName(&op) + " are bound to different types (" +
                                      std::string(name_of(first)) + " and " + std::string(name_of(other)) + ")");
  }
}

// The operators of one name, the newest first.
struct Group {
  std::string domain, name;
  std::vector<const OrtCustomOp*> operators;
};

bool takes(const OrtCustomOp& op, const treadle_node& node) {
  const size_t declared = op.GetInputTypeCount(&op);
  const Operands operands = operands_of(op);
  if (node.input_types.size() < static_cast<size_t>(operands.min_inputs) ||
      (operands.max_inputs >= 0 && node.input_types.size() > static_cast<size_t>(operands.max_inputs)))
    return false;
  for (size_t i = 0; i < node.input_types.size(); ++i) {
    const auto wanted = dtype_of(op.GetInputType(&op, std::min(i, declared - 1)));
    const DType have = node.input_types[i].dtype;
    if (wanted != DType::undefined && have != DType::undefined && wanted != have) return false;
  }
  return true;
}

// Those whose domain a client has released, and may have freed: nothing is asked of them any more.
struct Released {
  std::mutex mutex;
  std::set<const OrtCustomOp*> operators;

  static Released& get() {
    static auto* all = new Released();
    return *all;
  }
  void add(const OrtCustomOpDomain& domain) {
    const std::lock_guard lock(mutex);
    operators.insert(domain.operators.begin(), domain.operators.end());
  }
  bool contains(const OrtCustomOp* op) {
    const std::lock_guard lock(mutex);
    return operators.contains(op);
  }
  /// Another operator may be at the same address. @return whether it was released
  bool erase(const OrtCustomOp* op) {
    const std::lock_guard lock(mutex);
    return operators.erase(op) > 0;
  }
};

const OrtCustomOp& chosen(const Group& group, const treadle_node& node) {
  for (const OrtCustomOp* op : group.operators)
    if (!Released::get().contains(op) && takes(*op, node)) return *op;
  throw Error(ErrorCode::not_implemented, "no custom operator " + group.domain + ":" + group.name + " takes these inputs");
}

// Of an input that may have any; undefined for others.
DType free_dtype(const OrtCustomOp& op, const treadle_node& node, size_t index) {
  const size_t declared = op.GetInputTypeCount(&op);
  if (index >= node.input_types.size() || declared == 0) return DType::undefined;
  const bool is_free = dtype_of(op.GetInputType(&op, std::min(index, declared - 1))) == DType::undefined;
  return is_free ? node.input_types[index].dtype : DType::undefined;
}

// An output of any dtype has that of the input of any dtype at its place, or else of the first one.
DType output_dtype(const OrtCustomOp& op, const treadle_node& node, size_t index) {
  const size_t declared = op.GetOutputTypeCount(&op);
  DType said = dtype_of(op.GetOutputType(&op, std::min(index, declared - 1)));
  if (said == DType::undefined && index < node.output_types.size()) said = node.output_types[index].dtype;
  if (said == DType::undefined) said = free_dtype(op, node, index);
  for (size_t i = 0; said == DType::undefined && i < node.input_types.size(); ++i) said = free_dtype(op, node, i);
  return said;
}

std::unique_ptr<OrtTensorTypeAndShapeInfo> info_of(const Type& type) {
  auto made = std::make_unique<OrtTensorTypeAndShapeInfo>();
  made->dtype = number_of(type.dtype);
  made->has_shape = type.has_rank();
  for (int axis = 0; type.has_rank() && axis < type.rank(); ++axis) {
    const Dim& dim = (*type.shape)[static_cast<size_t>(axis)];
    // Those that inference makes up are called "…#N".
    const bool is_symbol = !dim.is_const() && dim.expr()->kind == Expr::Kind::symbol && dim.expr()->symbol.find('#') == std::string::npos;
    made->dims.push_back(dim.is_const() ? dim.value() : -1);
    made->symbols.emplace_back(is_symbol ? dim.expr()->symbol : std::string());
  }
  return made;
}

void infer(const Group& group, const treadle_node& node, treadle_value_type* outputs) {
  const OrtCustomOp& op = chosen(group, node);
  check_homogeneous(op, node);
  OrtShapeInferContext context{node, {}, {}, {}};
  for (const Type& type : node.input_types) context.inputs.push_back(info_of(type));
  context.outputs.resize(node.node->outputs.size());
  // As in ONNX Runtime, an operator that fails to tell shapes tells none.
  if (op.version >= kWithShapes && op.InferOutputShapeFn)
    if (OrtStatus* failed = op.InferOutputShapeFn(&op, &context); failed != nullptr) api().ReleaseStatus(failed), context.outputs.clear();
  context.outputs.resize(node.node->outputs.size());
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    outputs[i].dtype = static_cast<int>(output_dtype(op, node, i));
    const OrtTensorTypeAndShapeInfo* said = context.outputs[i].get();
    if (said == nullptr || !said->has_shape || said->dims.size() > TREADLE_PLUGIN_MAX_RANK) continue;
    outputs[i].rank = static_cast<int>(said->dims.size());
    std::copy(said->dims.begin(), said->dims.end(), outputs[i].dims);
  }
}

// The kernel of a node.
struct Kernel {
  const OrtCustomOp& op;
  OrtKernelInfo info;
  void* kernel = nullptr;
  std::vector<DType> output_dtypes;

  Kernel(const Group& group, const treadle_node& node) : op(chosen(group, node)), info{node, {}} {
    for (const Tensor* constant : node.constants)
      info.constants.push_back(constant != nullptr ? std::shared_ptr<const OrtValue>(new_value(*constant)) : nullptr);
    for (size_t i = 0; i < node.node->outputs.size(); ++i) output_dtypes.push_back(output_dtype(op, node, i));
    if (op.version >= kWithStatus && op.CreateKernelV2)
      check(op.CreateKernelV2(&op, &api(), &info, &kernel));
    else
      kernel = op.CreateKernel(&op, &api(), &info);
  }
  ~Kernel() {
    if (op.KernelDestroy && kernel != nullptr) op.KernelDestroy(kernel);
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  void run(treadle_call& call) const {
    OrtKernelContext context{call, {}, {}, {}, output_dtypes};
    context.inputs.resize(call.inputs.size());
    context.outputs.resize(call.outputs.size());
    if (op.version < kWithStatus || !op.KernelComputeV2) return op.KernelCompute(kernel, &context);
    try {
      check(op.KernelComputeV2(kernel, &context));
    } catch (const StatusError& error) {
      const Node& node = *info.node.node;
      const ErrorCode code = error.code == ORT_INVALID_ARGUMENT  ? ErrorCode::invalid_argument
                             : error.code == ORT_NOT_IMPLEMENTED ? ErrorCode::not_implemented
                                                                 : ErrorCode::io_error;  // FAIL
      call.failure = std::make_exception_ptr(Error(code, "Non-zero status code returned while running " + node.op_type + " node. Name:'" +
                                                             node.name + "' Status Message: " + error.what()));
      throw;
    }
  }
};

// Nothing that a client throws may go further.
template <typename Result, typename Body>
Result told(Result otherwise, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    plugin::host().fail(error.what());
  } catch (...) {
    plugin::host().fail("the custom operator has thrown something unknown");
  }
  return otherwise;
}

treadle_operator plugin_operator(Group& group) {
  treadle_operator made{};
  made.size = sizeof(made);
  made.domain = group.domain.c_str();
  made.op_type = group.name.c_str();
  made.user = &group;
  for (size_t k = 0; k < group.operators.size(); ++k) {
    const Operands operands = operands_of(*group.operators[k]);
    made.min_inputs = k == 0 ? operands.min_inputs : std::min(made.min_inputs, operands.min_inputs);
    made.max_inputs = operands.max_inputs < 0 || made.max_inputs < 0 ? -1 : std::max(made.max_inputs, operands.max_inputs);
    made.num_outputs = std::max(made.num_outputs, operands.num_outputs);
  }
  made.infer = [](void* user, const treadle_host*, const treadle_node* node, treadle_value_type* outputs) {
    return told(0, [&] {
      infer(*static_cast<const Group*>(user), *node, outputs);
      return 1;
    });
  };
  made.create = [](void* user, const treadle_host*, const treadle_node* node) {
    return told<void*>(nullptr, [&] { return new Kernel(*static_cast<const Group*>(user), *node); });
  };
  made.destroy = [](void*, void* state) { delete static_cast<Kernel*>(state); };
  made.run = [](void*, void* state, const treadle_host*, treadle_call* call) {
    return told(0, [&] {
      static_cast<const Kernel*>(state)->run(*call);
      return 1;
    });
  };
  return made;
}

// What sessions of the process find. Nodes point to their group: none is ever taken out.
struct Registered {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::vector<std::unique_ptr<Group>>> groups;

  static Registered& get() {
    static auto* all = new Registered();
    return *all;
  }

  void add(const std::string& domain, const OrtCustomOp& op) {
    check_operands(op);
    const std::string name = op.GetName(&op);
    std::vector<std::unique_ptr<Group>>& versions = groups[{domain, name}];
    auto group = std::make_unique<Group>(Group{domain, name, {&op}});
    const bool is_new = Released::get().erase(&op);  // another one at the same address
    for (const OrtCustomOp* known : versions.empty() ? std::vector<const OrtCustomOp*>() : versions.back()->operators) {
      if (known == &op && !is_new) return;
      if (known != &op && !Released::get().contains(known)) group->operators.push_back(known);
    }
    plugin::register_operator(plugin_operator(*group));
    versions.push_back(std::move(group));
  }
};

using Register = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);

Register registering(void* library, const char* name) {
  const auto function = reinterpret_cast<Register>(dlsym(library, name));
  if (function == nullptr) throw StatusError(ORT_FAIL, std::string("Failed to get symbol ") + name + " with error: " + dlerror());
  return function;
}

OrtStatus* register_library(OrtSessionOptions* options, const char* path, void** handle) {
  return guarded([&] {
    void* library = dlopen(chars_of(path, "library_path"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw StatusError(ORT_FAIL, std::string("Failed to load library ") + path + " with error: " + dlerror());
    if (handle != nullptr) *handle = library;
    check(registering(library, "RegisterCustomOps")(options, treadle_ort_api_base()));
  });
}

}  // namespace

void register_operators(const OrtSessionOptions& options) {
  Registered& all = Registered::get();
  std::lock_guard lock(all.mutex);
  std::set<std::string> names;
  for (const auto& domain : options.custom_op_domains) {
    if (!names.insert(domain->name).second) throw StatusError(ORT_FAIL, "Domain already set in registry: \"" + domain->name + "\"");
    if (!domain->self)  // and its operators may be gone
      throw Error(ErrorCode::invalid_argument,
                  "the custom operators' domain \"" + domain->name + "\", which the options have, is released");
    for (const OrtCustomOp* op : domain->operators) all.add(domain->name, *op);
  }
}

bool load_operators(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr || dlsym(library, "RegisterCustomOps") == nullptr) return false;
  OrtSessionOptions options;
  check(register_library(&options, path.c_str(), nullptr));
  register_operators(options);
  return true;
}

void add_custom_operators(OrtApi& table) {
  table.CreateCustomOpDomain = [](const char* name, OrtCustomOpDomain** out) {
    return guarded([&] { required(out, "out") = make_handle<OrtCustomOpDomain>(chars_of(name, "domain")); });
  };
  // Sessions with its operators have ended by now.
  table.ReleaseCustomOpDomain = [](OrtCustomOpDomain* domain) {
    if (domain == nullptr) return;
    Released::get().add(*domain);
    release_handle(domain);
  };
  table.CustomOpDomain_Add = [](OrtCustomOpDomain* domain, const OrtCustomOp* op) {
    return guarded([&] { required(domain, "custom_op_domain").operators.push_back(&required(op, "op")); });
  };
  table.AddCustomOpDomain = [](OrtSessionOptions* options, OrtCustomOpDomain* domain) {
    return guarded([&] { required(options, "options").custom_op_domains.push_back(required(domain, "custom_op_domain").self); });
  };
  table.RegisterCustomOpsLibrary = register_library;
  table.RegisterCustomOpsLibrary_V2 = [](OrtSessionOptions* options, const char* path) { return register_library(options, path, nullptr); };
  table.RegisterCustomOpsUsingFunction = [](OrtSessionOptions* options, const char* name) {
    return guarded([&] { check(registering(RTLD_DEFAULT, chars_of(name, "registration_func_name"))(options, treadle_ort_api_base())); });
  };
}

}  // namespace treadle::ort
