// ONNX operators that a client's custom kernels call. Each is run as a model with one node, in its own sessions.
#include <algorithm>
#include <map>
#include <mutex>

#include "graph/custom_ops.h"
#include "graph/op_def.h"
#include "ort_api/editor_api.h"
#include "session/model.h"

struct OrtOp {
  OrtNode node;  // its inputs are named in0, in1 …, its outputs out0, out1 …
  int version = 0;

  // One session for each combination of operand types that calls have had. The mutex is needed because kernels may call the operator from
  // several threads at once.
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<treadle::Session>> sessions;
};

namespace treadle::ort {
namespace {

std::string canonical(const char* domain) {
  const std::string name = domain != nullptr ? domain : "";
  return name == "ai.onnx" ? std::string() : name;
}

// Returns a value's type without extents. Sessions are made for dtypes and ranks only, because extents differ between calls.
std::unique_ptr<OrtTypeInfo> type_without_extents(const Datum& datum) {
  std::unique_ptr<OrtTypeInfo> type = type_of(datum);
  if (type->type == ONNX_TYPE_TENSOR) std::fill(type->tensor.dims.begin(), type->tensor.dims.end(), -1);
  return type;
}

// Makes a model with only the operator's node. Omits inputs that have no type in `inputs`, and outputs that are false in `outputs`.
onnx::ModelDef one_node_model(const OrtOp& op, std::vector<std::unique_ptr<OrtTypeInfo>> inputs, const std::vector<bool>& outputs) {
  OrtModel model;
  model.opsets = {{op.node.domain, op.version}};
  model.graph = std::make_unique<OrtGraph>();
  auto node = std::make_unique<OrtNode>(op.node);
  OrtGraph::Values& values = model.graph->inputs.emplace();
  for (size_t i = 0; i < node->inputs.size(); ++i) {
    if (i < inputs.size() && inputs[i])
      values.push_back(std::make_unique<OrtValueInfo>(OrtValueInfo{.name = node->inputs[i], .type = std::move(inputs[i])}));
    else
      node->inputs[i].clear();
  }
  std::vector<std::string> wanted;
  for (size_t i = 0; i < node->outputs.size(); ++i) {
    if (outputs[i])
      wanted.push_back(node->outputs[i]);
    else
      node->outputs[i].clear();
  }
  model.graph->add_node(std::move(node));
  onnx::ModelDef def = model_def(model);
  for (const std::string& name : wanted) def.graph.outputs.emplace_back().name = name;
  return def;
}

struct Constraint {
  std::string name;
  DType dtype;
};

const Port* port_at(const std::vector<Port>& ports, size_t index) {
  if (index < ports.size()) return &ports[index];
  return !ports.empty() && ports.back().presence == Presence::variadic ? &ports.back() : nullptr;
}

// Checks the type constraints by which clients select a kernel. Since Treadle selects kernels by the operands' dtypes, constraints have no
// effect, but dtypes that the operator does not accept are rejected.
void check_constraints(const OpDef& op, const std::vector<Constraint>& constraints) {
  for (const Constraint& constraint : constraints)
    for (const std::vector<Port>* ports : {&op.inputs, &op.outputs})
      for (const Port& port : *ports)
        if (port.type_name == constraint.name && !port.types.has(constraint.dtype))
          throw Error(ErrorCode::not_implemented, "the operator " + std::string(op.name) + " does not take " +
                                                      std::string(name_of(constraint.dtype)) + " as " + constraint.name + ", but " +
                                                      port.types.to_string());
}

// Checks that there are kernels for the node before it is called. This is possible only if the constraints give the dtype of every input.
void check_node(const OpDef& op, const OrtOp& made, const std::vector<Constraint>& constraints) {
  std::vector<std::unique_ptr<OrtTypeInfo>> types;
  for (size_t i = 0; i < made.node.inputs.size(); ++i) {
    const Port* port = port_at(op.inputs, i);
    if (port == nullptr)
      throw Error(ErrorCode::invalid_argument, "the operator " + made.node.op_type + " has " + std::to_string(op.inputs.size()) +
                                                   " inputs, not " + std::to_string(made.node.inputs.size()));
    const auto said =
        std::find_if(constraints.begin(), constraints.end(), [&](const auto& other) { return other.name == port->type_name; });
    if (said == constraints.end()) return;
    auto type = std::make_unique<OrtTypeInfo>();
    type->type = ONNX_TYPE_TENSOR;
    type->tensor.dtype = number_of(said->dtype);
    type->tensor.has_shape = false;
    types.push_back(std::move(type));
  }
  const Model model = make_model(one_node_model(made, std::move(types), std::vector<bool>(made.node.outputs.size(), true)), {});
  const std::vector<std::string> missing = model.unsupported();
  if (!missing.empty()) throw Error(ErrorCode::not_implemented, missing.front());
}

std::vector<std::string> numbered(const char* prefix, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(prefix + std::to_string(i));
  return names;
}

OrtStatus* create(const OrtKernelInfo* info, const char* name, const char* domain, int version, const char** constraint_names,
                  const ONNXTensorElementDataType* constraint_values, int num_constraints, const OrtOpAttr* const* attributes,
                  int num_attributes, int num_inputs, int num_outputs, OrtOp** out) {
  return guarded([&] {
    if (num_constraints < 0 || num_attributes < 0 || num_inputs < 0 || num_outputs < 1)
      throw Error(ErrorCode::invalid_argument, "a count is negative, or there is no output");
    auto made = std::make_unique<OrtOp>();
    made->node.op_type = chars_of(name, "op_name");
    made->node.domain = canonical(domain);
    made->node.name = required(info, "info").node.node->name + "/" + made->node.op_type;
    made->version = version;
    made->node.inputs = numbered("in", num_inputs), made->node.outputs = numbered("out", num_outputs);
    for (int i = 0; i < num_attributes; ++i) made->node.attributes.push_back(required(attributes[i], "an attribute"));
    std::vector<Constraint> constraints;
    for (int i = 0; i < num_constraints; ++i)
      constraints.push_back({chars_of(constraint_names[i], "a type constraint's name"), dtype_from(constraint_values[i])});
    const OpDef* op = find_op(made->node.domain, made->node.op_type);
    if (op == nullptr)
      throw StatusError(ORT_FAIL,
                        "Kernel not found: there is no operator " + made->node.op_type + " in the domain \"" + made->node.domain + "\"");
    const int newest = newest_opset(made->node.domain);
    if (version < 1 || (newest > 0 && version > newest))
      throw StatusError(ORT_FAIL, "the operator " + made->node.op_type + " in version " + std::to_string(version) + "; the domain \"" +
                                      made->node.domain + "\" has 1 to " + std::to_string(newest));
    // Ignores attributes that the operator does not have.
    std::erase_if(made->node.attributes, [&](const OrtOpAttr& given) {
      return std::none_of(op->attributes.begin(), op->attributes.end(),
                          [&](const auto& known) { return known.name == given.name || known.name == kAnyAttribute; });
    });
    check_constraints(*op, constraints);
    check_node(*op, *made, constraints);
    required(out, "ort_op") = made.release();
  });
}

// Returns the thread pool of the run that calls. It outlives the call, so the returned pointer does not own it.
std::shared_ptr<ThreadPool> threads_of(const OrtKernelContext& context) {
  ThreadPool* pool = context.call.context.pool();
  static const std::shared_ptr<ThreadPool> none = make_thread_pool(1);
  return pool != nullptr ? std::shared_ptr<ThreadPool>(std::shared_ptr<void>(), pool) : none;
}

// Appends a text that identifies the type of a sequence, map or optional, as part of the key of a session.
void add_text(const OrtTypeInfo& type, std::string& to) {
  to += '(' + std::to_string(type.type) + ':' + std::to_string(type.tensor.dtype) + ':' + std::to_string(type.key_type);
  if (type.element) add_text(*type.element, to);
  to += ')';
}

const Session& session_for(OrtOp& op, const OrtValue* const* inputs, size_t num_inputs, const std::vector<bool>& outputs) {
  std::string key;
  for (size_t i = 0; i < num_inputs; ++i) {
    if (inputs[i] == nullptr)
      key += '-';
    else if (const Datum& datum = inputs[i]->datum; datum.is_tensor())
      key += std::to_string(static_cast<int>(datum.tensor().dtype())) + ':' + std::to_string(datum.tensor().shape().rank());
    else
      add_text(*type_of(datum), key);
    key += ' ';
  }
  for (const bool wanted : outputs) key += wanted ? '+' : '-';
  std::lock_guard lock(op.mutex);
  std::unique_ptr<Session>& session = op.sessions[key];
  if (!session) {
    std::vector<std::unique_ptr<OrtTypeInfo>> types;
    for (size_t i = 0; i < num_inputs; ++i) types.push_back(inputs[i] != nullptr ? type_without_extents(inputs[i]->datum) : nullptr);
    session = std::make_unique<Session>(make_model(one_node_model(op, std::move(types), outputs), {}), SessionOptions());
  }
  return *session;
}

OrtStatus* invoke(const OrtKernelContext* context, const OrtOp* called, const OrtValue* const* inputs, int num_inputs,
                  OrtValue* const* outputs, int num_outputs) {
  return guarded([&] {
    OrtOp& op = const_cast<OrtOp&>(required(called, "ort_op"));  // not constant, because calls may create sessions
    const std::vector<std::string>&in = op.node.inputs, &out = op.node.outputs;
    if (num_inputs < 0 || num_outputs < 0 || static_cast<size_t>(num_inputs) > in.size() || static_cast<size_t>(num_outputs) > out.size())
      throw Error(ErrorCode::invalid_argument, "the operator " + op.node.op_type + " was created with " + std::to_string(in.size()) +
                                                   " inputs and " + std::to_string(out.size()) + " outputs, and is called with " +
                                                   std::to_string(num_inputs) + " and " + std::to_string(num_outputs));
    std::map<std::string, Datum> feeds;
    for (size_t i = 0; i < static_cast<size_t>(num_inputs); ++i)
      if (inputs[i] != nullptr) feeds[in[i]] = inputs[i]->datum;
    std::vector<std::string> names;
    std::vector<OrtValue*> into;
    std::vector<bool> wanted(out.size(), false);
    for (size_t i = 0; i < static_cast<size_t>(num_outputs); ++i) {
      if (outputs[i] == nullptr) continue;
      wanted[i] = true, names.push_back(out[i]), into.push_back(outputs[i]);
    }
    if (names.empty()) throw Error(ErrorCode::invalid_argument, "the operator " + op.node.op_type + " is called without an output");
    RunOptions options;
    options.thread_pool = threads_of(required(context, "context"));
    run_into(session_for(op, inputs, static_cast<size_t>(num_inputs), wanted), feeds, names, into.data(), &options);
  });
}

}  // namespace

void add_invoked_operators(OrtApi& table) {
  table.CreateOp = create;
  table.InvokeOp = invoke;
  table.ReleaseOp = [](OrtOp* op) { delete op; };
}

}  // namespace treadle::ort
