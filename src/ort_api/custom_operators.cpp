// Custom operators of clients: their domains, libraries that contain them, and their registration in the process.
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "graph/custom_ops.h"
#include "ort_api/custom_operator.h"
#include "plugin/custom_operator.h"

extern "C" const OrtApiBase* treadle_ort_api_base() noexcept;

namespace treadle::ort {
namespace {

constexpr uint32_t kWithCharacteristics = 8, kWithVariadic = 14, kWithStatus = 16, kWithShapes = 17;
constexpr int kMostVariadicOutputs = 32;

using Asked = int (*OrtCustomOp::*)(const OrtCustomOp* op);

OperandKinds kinds_of(const OrtCustomOp& op, size_t count, int (*OrtCustomOp::*kind)(const OrtCustomOp*, size_t), Asked least) {
  OperandKinds made{.kinds = std::vector<Characteristic>(count, kRequired), .least = 0, .most = count};
  for (size_t i = 0; i < count; ++i) {
    if (op.version >= kWithCharacteristics && op.*kind) made.kinds[i] = static_cast<Characteristic>((op.*kind)(&op, i));
    if (made.kinds[i] == kRequired) made.least = i + 1;
    if (made.kinds[i] != kVariadic) continue;
    made.most = SIZE_MAX;
    made.least = i + static_cast<size_t>(op.version >= kWithVariadic && op.*least ? std::max(0, (op.*least)(&op)) : 1);
  }
  return made;
}

// Checks the operands that an operator declares. @throws StatusError if a variadic operand is not the last one
void check_operands(const OrtCustomOp& op) {
  auto check_last = [](const OperandKinds& said, const char* what) {
    if (const auto found = std::find(said.kinds.begin(), said.kinds.end(), kVariadic);
        found != said.kinds.end() && found + 1 != said.kinds.end())
      throw StatusError(ORT_FAIL, std::string("Only the last ") + what + " to a custom op may be marked variadic.");
  };
  check_last(inputs_of(op), "input");
  check_last(outputs_of(op), "output");
}

// Checks a node's variadic input. @throws StatusError if all its values must have the same type, but do not
void check_homogeneous(const OrtCustomOp& op, const treadle_node& node) {
  const size_t declared = op.GetInputTypeCount(&op);
  if (inputs_of(op).most != SIZE_MAX || op.version < kWithVariadic || !op.GetVariadicInputHomogeneity ||
      op.GetVariadicInputHomogeneity(&op) == 0)
    return;
  for (size_t i = declared; i < node.input_types.size(); ++i) {
    const DType first = node.input_types[declared - 1].dtype, other = node.input_types[i].dtype;
    if (first != DType::undefined && other != DType::undefined && first != other)
      throw StatusError(ORT_FAIL, std::string("Type Error: the variadic inputs of ") + op.GetName(&op) + " are bound to different types (" +
                                      std::string(name_of(first)) + " and " + std::string(name_of(other)) + ")");
  }
}

// Operators with the same domain and name. Those of the newest session come first, in the order in which this session has them.
struct Group {
  std::string said;  // the domain, as the client has named it
  std::string domain, name;
  std::vector<const OrtCustomOp*> operators;
};

bool takes(const OrtCustomOp& op, const treadle_node& node) {
  if (start_of(op) > node.node->version) return false;
  const size_t declared = op.GetInputTypeCount(&op);
  const OperandKinds said = inputs_of(op);
  if (node.input_types.size() < said.least || node.input_types.size() > said.most) return false;
  for (size_t i = 0; i < node.input_types.size(); ++i) {
    const auto wanted = dtype_of(op.GetInputType(&op, std::min(i, declared - 1)));
    const DType have = node.input_types[i].dtype;
    if (wanted != DType::undefined && have != DType::undefined && wanted != have) return false;
  }
  return true;
}

// Operators of domains that clients have released. Clients may have freed them, so they must not be accessed any more.
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
  /// Forgets a released operator when a new operator has the same address. @return true if there was one at this address
  bool erase(const OrtCustomOp* op) {
    const std::lock_guard lock(mutex);
    return operators.erase(op) > 0;
  }
};

const OrtCustomOp& chosen(const Group& group, const treadle_node& node) {
  for (const OrtCustomOp* op : group.operators)
    if (!Released::get().contains(op) && takes(*op, node)) return *op;
  throw Error(ErrorCode::not_implemented, group.said + ":" + group.name + " is not a registered function/op of version " +
                                              std::to_string(node.node->version) + " of its domain that takes these inputs");
}

// If an input is declared to accept any dtype, returns the dtype that it has in this node; otherwise undefined.
DType free_dtype(const OrtCustomOp& op, const treadle_node& node, size_t index) {
  const size_t declared = op.GetInputTypeCount(&op);
  if (index >= node.input_types.size() || declared == 0) return DType::undefined;
  const bool is_free = dtype_of(op.GetInputType(&op, std::min(index, declared - 1))) == DType::undefined;
  return is_free ? node.input_types[index].dtype : DType::undefined;
}

// Returns the dtype of an output. If it is declared to be any dtype, and the model does not say more, it is that of the input at the same
// index or of the first input, whichever also is declared to accept any dtype.
DType output_dtype(const OrtCustomOp& op, const treadle_node& node, size_t index) {
  const size_t declared = op.GetOutputTypeCount(&op);
  DType said = dtype_of(op.GetOutputType(&op, std::min(index, declared - 1)));
  if (said == DType::undefined && index < node.output_types.size()) said = node.output_types[index].dtype;
  if (said == DType::undefined) said = free_dtype(op, node, index);
  for (size_t i = 0; said == DType::undefined && i < node.input_types.size(); ++i) said = free_dtype(op, node, i);
  return said;
}

// Returns the symbolic name of an extent; empty for constants, and for symbols that shape inference has made ("…#N").
std::string_view symbol_of(const Dim& dim) {
  const bool is_symbol = !dim.is_const() && dim.expr()->kind == Expr::Kind::symbol && dim.expr()->symbol.find('#') == std::string::npos;
  return is_symbol ? std::string_view(dim.expr()->symbol) : std::string_view();
}

// Returns the first extent among the node's inputs that has this symbolic name; null if there is none.
const Dim* named_extent(const treadle_node& node, const std::string& name) {
  for (const Type& type : node.input_types)
    for (size_t axis = 0; type.has_rank() && axis < type.shape->size(); ++axis)
      if (symbol_of((*type.shape)[axis]) == name) return &(*type.shape)[axis];
  return nullptr;
}

void infer(const Group& group, const treadle_node& node, treadle_value_type* outputs) {
  const OrtCustomOp& op = chosen(group, node);
  check_homogeneous(op, node);
  OrtShapeInferContext context{node, {}, {}, {}};
  for (const Type& type : node.input_types) context.inputs.push_back(std::make_unique<OrtTensorTypeAndShapeInfo>(tensor_type(type)));
  context.outputs.resize(node.node->outputs.size());
  // If the client's shape inference fails, the outputs' shapes stay unknown, as in ONNX Runtime.
  if (op.version >= kWithShapes && op.InferOutputShapeFn)
    if (OrtStatus* failed = op.InferOutputShapeFn(&op, &context); failed != nullptr) api().ReleaseStatus(failed), context.outputs.clear();
  context.outputs.resize(node.node->outputs.size());
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    outputs[i].dtype = static_cast<int>(output_dtype(op, node, i));
    const OrtTensorTypeAndShapeInfo* said = context.outputs[i].get();
    if (said == nullptr || !said->has_shape || said->dims.size() > TREADLE_PLUGIN_MAX_RANK) continue;
    outputs[i].rank = static_cast<int>(said->dims.size());
    std::copy(said->dims.begin(), said->dims.end(), outputs[i].dims);
    for (size_t axis = 0; axis < said->dims.size(); ++axis) {
      if (said->dims[axis] >= 0 || said->symbols[axis].empty()) continue;
      if (const Dim* extent = named_extent(node, said->symbols[axis]))
        node.known_extents.insert_or_assign({i, static_cast<int>(axis)}, *extent);
    }
  }
}

// The client's kernel of a node.
struct Kernel {
  const OrtCustomOp& op;
  OrtKernelInfo info;
  void* kernel = nullptr;
  std::vector<DType> output_dtypes;

  Kernel(const Group& group, const treadle_node& node) : op(chosen(group, node)), info{node, {}, group.said, start_of(op)} {
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
                                                                 : ErrorCode::io_error;  // stands for the code FAIL
      call.failure = std::make_exception_ptr(Error(code, "Non-zero status code returned while running " + node.op_type + " node. Name:'" +
                                                             node.name + "' Status Message: " + error.what()));
      throw;
    }
  }
};

// Calls a function of the client. Catches and reports its exceptions, because they must not pass through the plugin interface.
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
    const OperandKinds inputs = inputs_of(*group.operators[k]), outputs = outputs_of(*group.operators[k]);
    // The plugin interface can only require the first inputs of an operator. OwnOperators checks all others when a session is made.
    const auto required = static_cast<int>(std::find(inputs.kinds.begin(), inputs.kinds.end(), kOptional) - inputs.kinds.begin());
    const int least = std::min(required, static_cast<int>(inputs.least));
    const int most = inputs.most == SIZE_MAX ? -1 : static_cast<int>(inputs.most);
    made.min_inputs = k == 0 ? least : std::min(made.min_inputs, least);
    made.max_inputs = most < 0 || made.max_inputs < 0 ? -1 : std::max(made.max_inputs, most);
    const int num_outputs = static_cast<int>(outputs.kinds.size()) + (outputs.most == SIZE_MAX ? kMostVariadicOutputs - 1 : 0);
    made.num_outputs = std::max(made.num_outputs, num_outputs);
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

// The operators that are registered in the process. Groups are never removed, because nodes point to them.
struct Registered {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::vector<std::unique_ptr<Group>>> groups;

  static Registered& get() {
    static auto* all = new Registered();
    return *all;
  }

  // Registers the operators of one session that have the same domain and name.
  void add(const std::string& domain, const std::string& name, const std::vector<const OrtCustomOp*>& own) {
    std::vector<std::unique_ptr<Group>>& versions = groups[{domain, name}];
    auto group = std::make_unique<Group>(Group{domain, found_in(domain, name), name, own});
    bool is_new = versions.empty();
    for (const OrtCustomOp* op : own) {
      check_operands(*op);
      if (Released::get().erase(op)) is_new = true;  // a new one at the address of a released one
    }
    for (const OrtCustomOp* known : versions.empty() ? std::vector<const OrtCustomOp*>() : versions.back()->operators)
      if (std::find(own.begin(), own.end(), known) == own.end() && !Released::get().contains(known)) group->operators.push_back(known);
    if (!is_new && versions.back()->operators == group->operators) return;
    plugin::register_operator(plugin_operator(*group), Presence::optional);
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

OrtTensorTypeAndShapeInfo tensor_type(const Type& type) {
  OrtTensorTypeAndShapeInfo made{.dtype = number_of(type.dtype), .dims = {}, .symbols = {}, .has_shape = type.has_rank()};
  for (int axis = 0; type.has_rank() && axis < type.rank(); ++axis) {
    const Dim& dim = (*type.shape)[static_cast<size_t>(axis)];
    made.dims.push_back(dim.is_const() ? dim.value() : -1);
    made.symbols.emplace_back(symbol_of(dim));
  }
  return made;
}

OperandKinds inputs_of(const OrtCustomOp& op) {
  return kinds_of(op, op.GetInputTypeCount(&op), &OrtCustomOp::GetInputCharacteristic, &OrtCustomOp::GetVariadicInputMinArity);
}
OperandKinds outputs_of(const OrtCustomOp& op) {
  return kinds_of(op, op.GetOutputTypeCount(&op), &OrtCustomOp::GetOutputCharacteristic, &OrtCustomOp::GetVariadicOutputMinArity);
}

std::string found_in(const std::string& domain, const std::string& name) {
  const std::string normalized = domain == "ai.onnx" ? "" : domain;
  const OpDef* known = find_op(normalized, name);
  return known == nullptr || is_custom_op(*known) ? normalized : "custom:" + (normalized.empty() ? "ai.onnx" : normalized);
}

void register_operators(const OperatorDomains& domains) {
  Registered& all = Registered::get();
  std::lock_guard lock(all.mutex);
  std::set<std::string> names;
  for (const auto& domain : domains) {
    if (!names.insert(domain->name).second) throw StatusError(ORT_FAIL, "Domain already set in registry: \"" + domain->name + "\"");
    if (!domain->self)  // the client has released the domain, and may have freed its operators
      throw Error(ErrorCode::invalid_argument,
                  "the custom operators' domain \"" + domain->name + "\", which the options have, is released");
    std::map<std::string, std::vector<const OrtCustomOp*>> named;
    for (const OrtCustomOp* op : domain->operators) named[op->GetName(op)].push_back(op);
    for (const auto& [name, operators] : named) all.add(domain->name, name, operators);
  }
}

std::optional<OperatorDomains> operators_of_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (library == nullptr || dlsym(library, "RegisterCustomOps") == nullptr) return std::nullopt;
  OrtSessionOptions options;
  check(register_library(&options, path.c_str(), nullptr));
  return std::move(options.custom_op_domains);
}

bool load_operators(const std::string& path) {
  const std::optional<OperatorDomains> domains = operators_of_library(path);
  if (!domains) return false;
  for (const auto& domain : *domains)
    for (const OrtCustomOp* op : domain->operators)
      if (found_in(domain->name, op->GetName(op)) != domain->name)
        throw Error(ErrorCode::not_implemented, std::string("the library ") + path + " has an operator " + op->GetName(op) +
                                                    " that is built in; it is replaced in sessions whose options register the library, "
                                                    "in Python and in ONNX Runtime's C interface");
  register_operators(*domains);
  return true;
}

void add_custom_operators(OrtApi& table) {
  table.CreateCustomOpDomain = [](const char* name, OrtCustomOpDomain** out) {
    return guarded([&] { required(out, "out") = make_handle<OrtCustomOpDomain>(chars_of(name, "domain")); });
  };
  // Clients must end all sessions that use a domain's operators before they release it.
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
