#include "plugin/host.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "core/threads/thread_pool.h"
#include "core/values/boolean_bytes.h"
#include "plugin/backend.h"
#include "plugin/communicator.h"
#include "plugin/custom_operator.h"
#include "plugin/device.h"
#include "treadle/error.h"

namespace treadle::plugin {
namespace {

thread_local std::string failure;

// Calls a function of the library for a plugin. No exception may reach the plugin: instead, the exception's text is stored, and
// `otherwise`, the value that means failure, is returned.
template <typename Result, typename Fn>
Result guarded(Result otherwise, Fn&& fn) noexcept {
  try {
    return fn();
  } catch (const std::exception& error) {
    try {
      failure = error.what();
    } catch (...) {  // NOLINT(bugprone-empty-catch): without memory for the text, only the failure is reported
    }
    return otherwise;
  }
}

// Like guarded(), for functions that a plugin's `run` calls. Also stores the exception, with which the node later fails. The status that
// the plugin returns cannot replace it, as it has no error code and may even be a success.
template <typename Result, typename Fn>
Result guarded(const treadle_call* call, Result otherwise, Fn&& fn) noexcept {
  return guarded(otherwise, [&] {
    try {
      return fn();
    } catch (...) {
      std::lock_guard lock(call->mutex);
      if (!call->failure) call->failure = std::current_exception();
      throw;
    }
  });
}

void fail(const char* message) {
  guarded(0, [&] {
    failure = message ? message : "";
    return 0;
  });
}

treadle_value_type type_of(const Type& type) {
  treadle_value_type result{};
  result.rank = -1;
  if (!type.is_tensor()) return result;
  result.dtype = static_cast<int32_t>(type.dtype);
  if (!type.has_rank() || type.rank() > TREADLE_PLUGIN_MAX_RANK) return result;
  result.rank = type.rank();
  for (int axis = 0; axis < type.rank(); ++axis) {
    const Dim& dim = (*type.shape)[static_cast<size_t>(axis)];
    result.dims[axis] = dim.is_const() ? dim.value() : -1;
  }
  return result;
}

treadle_tensor_view view(const Tensor& tensor) {
  return {static_cast<int32_t>(tensor.dtype()), tensor.shape().rank(), tensor.shape().begin(),
          tensor.dtype() == DType::string ? nullptr : tensor.raw()};
}

template <typename T>
const T* attribute(const treadle_node* node, const char* name) {
  const Attribute* found = node->node->attributes.find(name);
  return found ? std::get_if<T>(found) : nullptr;
}

template <typename T>
int list_attribute(const treadle_node* node, const char* name, const T** out, size_t* count) {
  const auto* values = attribute<std::vector<T>>(node, name);
  if (!values) return 0;
  *out = values->data();
  *count = values->size();
  return 1;
}

const char* name_at(const std::vector<const char*>& names, size_t index) { return index < names.size() ? names[index] : ""; }

void type_at(const std::vector<Type>& types, size_t index, treadle_value_type* out) {
  *out = type_of(index < types.size() ? types[index] : Type{});
}

int node_input_constant(const treadle_node* node, size_t index, treadle_tensor_view* out) {
  if (index >= node->constants.size() || !node->constants[index]) return 0;
  *out = view(*node->constants[index]);
  return out->data != nullptr || node->constants[index]->num_elements() == 0;
}

const Tensor* call_tensor(const treadle_call* call, size_t index) {
  if (index >= call->inputs.size()) return nullptr;
  Tensor& tensor = call->inputs[index];
  if (!tensor.defined()) {
    const Datum& datum = call->operands().borrowed_input(static_cast<int>(index));
    if (!datum.is_tensor()) return nullptr;
    tensor = datum.tensor().contiguous();
  }
  return &tensor;
}

int call_input(const treadle_call* call, size_t index, treadle_tensor_view* out) {
  return guarded(call, 0, [&] {
    const Tensor* tensor = call_tensor(call, index);
    if (!tensor) return 0;
    *out = view(*tensor);
    return 1;
  });
}

const char* call_string(const treadle_call* call, size_t index, size_t element, size_t* length) {
  return guarded<const char*>(call, nullptr, [&]() -> const char* {
    const Tensor* tensor = call_tensor(call, index);
    if (!tensor || tensor->dtype() != DType::string || element >= static_cast<size_t>(tensor->num_elements())) return nullptr;
    const std::string& text = tensor->data<std::string>()[element];
    *length = text.size();
    return text.c_str();
  });
}

void* call_output(treadle_call* call, size_t index, int32_t dtype, const int64_t* dims, size_t rank) {
  return guarded<void*>(call, nullptr, [&]() -> void* {
    if (index >= call->outputs.size()) throw Error(ErrorCode::invalid_argument, fmt::format("there is no output {}", index));
    if (dtype <= 0 || dtype >= kNumDTypes) throw Error(ErrorCode::invalid_argument, fmt::format("{} is no dtype", dtype));
    // If the call is pending, this may run on a thread of the plugin, where the run's allocation context is not set.
    std::optional<AllocationScope> scope;
    if (std::this_thread::get_id() != call->thread) scope.emplace(call->memory, MemoryClass::activations);
    Tensor tensor(static_cast<DType>(dtype), Shape(std::span(dims, rank)));
    call->outputs[index] = tensor;
    return tensor.raw();
  });
}

int call_set_string(treadle_call* call, size_t index, size_t element, const char* text, size_t length) {
  return guarded(0, [&] {
    if (index >= call->outputs.size() || call->outputs[index].dtype() != DType::string) return 0;
    if (element >= static_cast<size_t>(call->outputs[index].num_elements())) return 0;
    call->outputs[index].data<std::string>()[element].assign(text, length);
    return 1;
  });
}

void run_parallel(treadle_call* call, int64_t count, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context) {
  guarded(call, 0, [&] {
    parallel_for(call->context.pool(), count, grain, [&](int64_t begin, int64_t end) { fn(context, begin, end); });
    return 0;
  });
}

// A plugin may call this function on another thread even before `run` has returned TREADLE_PENDING.
void call_complete(treadle_call* call, int ok, const char* message) {
  guarded(0, [&] {
    std::exception_ptr error;
    if (!ok)
      error = std::make_exception_ptr(Error(ErrorCode::internal, message && *message ? message : "the plugin failed without a text"));
    std::shared_ptr<treadle_call> self;
    {
      std::lock_guard lock(call->mutex);
      if (call->completed) return 0;
      if (call->failure) error = call->failure;
      call->completed = true;
      if (!call->returned) {  // run_call() will complete the call
        call->error = std::move(error);
        return 0;
      }
      self = std::move(call->self);
    }
    if (!error) {
      try {
        call->take_outputs();
      } catch (...) {
        error = std::current_exception();
      }
    }
    call->completion->complete(std::move(error));
    return 0;
  });
}

int call_cancelled(const treadle_call* call) {
  return guarded(0, [&] { return call->operands().stop_requested() ? 1 : 0; });
}

treadle_graph_value handle_of(ValueId id) { return static_cast<treadle_graph_value>(id); }

treadle_graph_value gradient_number(treadle_gradient* gradient, double number, treadle_graph_value like) {
  return guarded(TREADLE_NO_VALUE, [&] { return handle_of(gradient->context.scalar(number, ValueId{like})); });
}

treadle_graph_value gradient_add(treadle_gradient* gradient, const char* domain, const char* op_type, const treadle_graph_value* inputs,
                                 size_t num_inputs) {
  return guarded(TREADLE_NO_VALUE, [&] {
    std::vector<ValueId> operands;
    for (size_t i = 0; i < num_inputs; ++i) {
      if (inputs[i] != TREADLE_NO_VALUE && inputs[i] >= gradient->context.graph().num_values())
        throw Error(ErrorCode::invalid_argument, fmt::format("operand {} of a gradient's {} is no value", i, op_type));
      operands.push_back(ValueId{inputs[i]});
    }
    return handle_of(gradient->context.op(op_type, std::move(operands), {}, domain));
  });
}

int gradient_set(treadle_gradient* gradient, size_t input, treadle_graph_value value) {
  if (input >= gradient->inputs.size() || value >= gradient->context.graph().num_values()) return 0;
  gradient->inputs[input] = ValueId{value};
  return 1;
}

template <typename T>
int add(const T* what, void (*function)(const T&)) {
  return guarded(0, [&] {
    function(*what);
    return 1;
  });
}

constexpr treadle_host kHost{
    .size = sizeof(treadle_host),
    .version = TREADLE_PLUGIN_VERSION,
    .fail = fail,
    .node_op_type = [](const treadle_node* node) { return node->node->op_type.c_str(); },
    .node_domain = [](const treadle_node* node) { return node->node->domain.c_str(); },
    .node_name = [](const treadle_node* node) { return node->node->name.c_str(); },
    .node_num_inputs = [](const treadle_node* node) { return static_cast<size_t>(node->node->num_formal_inputs); },
    .node_num_outputs = [](const treadle_node* node) { return node->node->outputs.size(); },
    .node_input = [](const treadle_node* node, size_t index) { return name_at(node->input_names, index); },
    .node_output = [](const treadle_node* node, size_t index) { return name_at(node->output_names, index); },
    .node_input_type = [](const treadle_node* node, size_t index, treadle_value_type* out) { type_at(node->input_types, index, out); },
    .node_output_type = [](const treadle_node* node, size_t index, treadle_value_type* out) { type_at(node->output_types, index, out); },
    .node_input_constant = node_input_constant,
    .node_num_attributes = [](const treadle_node* node) { return node->node->attributes.size(); },
    .node_attribute_name = [](const treadle_node* node, size_t index) -> const char* {
      return index < node->node->attributes.size() ? (node->node->attributes.begin() + static_cast<ptrdiff_t>(index))->first.c_str()
                                                   : nullptr;
    },
    .node_attribute_int =
        [](const treadle_node* node, const char* name, int64_t* out) {
          const auto* value = attribute<int64_t>(node, name);
          if (value) *out = *value;
          return value ? 1 : 0;
        },
    .node_attribute_float =
        [](const treadle_node* node, const char* name, float* out) {
          const auto* value = attribute<float>(node, name);
          if (value) *out = *value;
          return value ? 1 : 0;
        },
    .node_attribute_string =
        [](const treadle_node* node, const char* name, const char** out, size_t* length) {
          const auto* value = attribute<std::string>(node, name);
          if (const auto lines = node->lines.find(name); !value && lines != node->lines.end()) value = &lines->second;
          if (value) *out = value->c_str(), *length = value->size();
          return value ? 1 : 0;
        },
    .node_attribute_ints = list_attribute<int64_t>,
    .node_attribute_floats = list_attribute<float>,
    .subgraph_num_nodes = [](const treadle_subgraph* subgraph) { return subgraph->nodes.size(); },
    .subgraph_node = [](const treadle_subgraph* subgraph, size_t index) -> const treadle_node* {
      return index < subgraph->nodes.size() ? &subgraph->nodes[index] : nullptr;
    },
    .subgraph_num_inputs = [](const treadle_subgraph* subgraph) { return subgraph->inputs.size(); },
    .subgraph_num_outputs = [](const treadle_subgraph* subgraph) { return subgraph->outputs.size(); },
    .subgraph_input = [](const treadle_subgraph* subgraph, size_t index) { return name_at(subgraph->inputs, index); },
    .subgraph_output = [](const treadle_subgraph* subgraph, size_t index) { return name_at(subgraph->outputs, index); },
    .call_num_inputs = [](const treadle_call* call) { return call->inputs.size(); },
    .call_num_outputs = [](const treadle_call* call) { return call->outputs.size(); },
    .call_input = call_input,
    .call_string = call_string,
    .call_output = call_output,
    .call_set_string = call_set_string,
    .parallel_for = run_parallel,
    .register_operator =
        [](const treadle_operator* op) {
          return add<treadle_operator>(op, [](const treadle_operator& given) { register_operator(given); });
        },
    .register_backend = [](const treadle_backend* backend) { return add(backend, register_backend); },
    .call_complete = call_complete,
    .call_cancelled = call_cancelled,
    .gradient_node = [](const treadle_gradient* gradient) -> const treadle_node* { return &gradient->node; },
    .gradient_input = [](const treadle_gradient* gradient, size_t index) { return handle_of(gradient->context.input(index)); },
    .gradient_output = [](const treadle_gradient* gradient, size_t index) { return handle_of(gradient->context.output(index)); },
    .gradient_of_output = [](const treadle_gradient* gradient, size_t index) { return handle_of(gradient->context.grad_output(index)); },
    .gradient_number = gradient_number,
    .gradient_add = gradient_add,
    .gradient_set = gradient_set,
    .register_device = [](const treadle_device* device) { return add(device, register_device); },
    .register_communicator = [](const treadle_communicator_type* type) { return add(type, register_communicator); },
};

}  // namespace

const treadle_host& host() { return kHost; }

}  // namespace treadle::plugin

treadle_call::treadle_call(const treadle::RunContext& run, const treadle::Node& of, const treadle::AllocationContext* charged)
    : context(run), node(&of), memory(charged), thread(std::this_thread::get_id()) {
  inputs.resize(static_cast<size_t>(of.num_formal_inputs));
  outputs.resize(of.outputs.size());
}

void treadle_call::rethrow_failure() const {
  std::lock_guard lock(mutex);
  if (failure) std::rethrow_exception(failure);
}

void treadle_call::take_outputs() {
  rethrow_failure();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!node->has_output(i)) continue;
    if (!outputs[i].defined()) throw treadle::Error(treadle::ErrorCode::internal, fmt::format("the plugin did not make output {}", i));
    context.set_output(static_cast<int>(i), treadle::with_valid_booleans(treadle::Datum(std::move(outputs[i]))));
  }
}

namespace treadle::plugin {

treadle_node view_of(const Graph& graph, const Node& node) {
  treadle_node result{.node = &node};
  for (size_t i = 0; i < static_cast<size_t>(node.num_formal_inputs); ++i) {
    const ValueId id = node.inputs[i];
    result.input_names.push_back(id == kNoValue ? "" : graph.value(id).name.c_str());
    result.input_types.push_back(id == kNoValue ? Type{} : graph.type(id));
    result.constants.push_back(id == kNoValue ? nullptr : graph.constant_tensor(id));
  }
  for (ValueId id : node.outputs) {
    result.output_names.push_back(id == kNoValue ? "" : graph.value(id).name.c_str());
    result.output_types.push_back(id == kNoValue ? Type{} : graph.type(id));
  }
  for (const auto& [name, value] : node.attributes)
    if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) result.lines[name] = fmt::format("{}", fmt::join(*texts, "\n"));
  return result;
}

treadle_node view_of(const CreateContext& context) {
  treadle_node result{.node = &context.node()};
  for (int i = 0; i < context.node().num_formal_inputs; ++i) {
    result.input_names.push_back(context.input_name(i).c_str());
    result.input_types.push_back(context.type(i));
    result.constants.push_back(context.has_input(i) ? context.constant(i) : nullptr);
  }
  for (int i = 0; i < static_cast<int>(context.node().outputs.size()); ++i) {
    result.output_names.push_back(context.output_name(i).c_str());
    result.output_types.push_back(context.output_type(i));
  }
  return result;
}

treadle_node view_of(const InferContext& context) {
  treadle_node result{.node = &context.node()};
  for (int i = 0; i < context.num_inputs(); ++i) {
    result.input_types.push_back(context.has_input(i) ? context.input(i) : Type{});
    result.constants.push_back(context.has_input(i) ? context.constant(i) : nullptr);
  }
  result.output_types.resize(context.node().outputs.size());
  return result;
}

void clear_failure() { failure.clear(); }
std::string take_failure() { return std::exchange(failure, {}); }

void run_call(const Node& node, RunContext& context, int (*run)(void*, void*, const treadle_host*, treadle_call*), void* user,
              void* state) {
  auto call = std::make_shared<treadle_call>(context, node, AllocationScope::current());
  clear_failure();
  const int result = run(user, state, &kHost, call.get());
  if (result == 0) {
    call->rethrow_failure();
    std::string text = take_failure();
    throw Error(ErrorCode::internal, text.empty() ? "the plugin failed without a text" : text);
  }
  if (result == TREADLE_PENDING) {
    std::lock_guard lock(call->mutex);
    call->returned = true;
    if (!call->completed) {
      call->completion = call->operands().defer();
      call->self = call;
      return;
    }
    if (call->error) std::rethrow_exception(call->error);
  }
  call->take_outputs();
}

}  // namespace treadle::plugin
