#include "onnx/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/internal_attributes.h"
#include "graph/op_def.h"
#include "graph/random_id.h"
#include "treadle/error.h"

namespace treadle::onnx {
namespace {

constexpr const char* kOwnDomain = "treadle";
constexpr int kOldestOpset = 11;    // older opsets do not allow negative axes
constexpr int kOldestDefault = 13;  // in older opsets, many of today's operators had another form

// Returns the IR version of the ONNX release with these opsets (ONNX, docs/Versioning.md). Since IR 4, initializers need not be graph
// inputs.
int64_t ir_version_of(const std::map<std::string, int>& opsets, bool has_functions) {
  struct Row {
    int opset;
    int64_t ir;
  };
  constexpr Row onnx[] = {{28, 14}, {25, 13}, {24, 12}, {23, 11}, {21, 10}, {19, 9}, {15, 8}, {12, 7}, {0, 4}};
  constexpr Row ml[] = {{5, 10}, {4, 9}, {3, 8}, {2, 6}, {0, 4}};
  int64_t version = has_functions ? 8 : 4;
  auto raise = [&](std::string_view domain, std::span<const Row> rows) {
    auto found = opsets.find(std::string(domain));
    if (found == opsets.end()) return;
    version = std::max(version, std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return found->second >= row.opset; })->ir);
  };
  raise("", onnx);
  raise("ai.onnx.ml", ml);
  return version;
}

DimDef to_def(const Dim& dim) {
  DimDef def;
  if (dim.is_const()) {
    def.kind = DimDef::Kind::value;
    def.value = dim.value();
    return def;
  }
  // Omits generated symbols such as `dim#7`, as they have no meaning outside this graph.
  std::string text = to_string(dim);
  if (dim.data_dependent() || text.find('#') != std::string::npos) return def;
  def.kind = DimDef::Kind::param;
  def.param = std::move(text);
  return def;
}

TypeDef to_def(const Type& type, bool with_shape) {
  TypeDef def;
  switch (type.kind) {
    case Type::Kind::unknown: return def;
    case Type::Kind::tensor:
    case Type::Kind::sparse_tensor:
      if (type.dtype == DType::undefined) return def;
      def.kind = type.is_tensor() ? TypeDef::Kind::tensor : TypeDef::Kind::sparse_tensor;
      def.elem_type = type.dtype;
      if (with_shape && type.shape) {
        def.shape.emplace();
        for (const Dim& dim : *type.shape) def.shape->push_back(to_def(dim));
      }
      return def;
    case Type::Kind::sequence:
    case Type::Kind::optional: {
      auto element = std::make_unique<TypeDef>(to_def(*type.element, with_shape));
      if (element->kind == TypeDef::Kind::none) return def;
      def.kind = type.kind == Type::Kind::sequence ? TypeDef::Kind::sequence : TypeDef::Kind::optional;
      def.elem = std::move(element);
      return def;
    }
    case Type::Kind::map:
      def.kind = TypeDef::Kind::map;
      def.key_type = type.key_dtype;
      def.elem = std::make_unique<TypeDef>();
      def.elem->kind = TypeDef::Kind::tensor;
      def.elem->elem_type = type.dtype;
      return def;
  }
  return def;
}

// Returns the inferred type of an output. Extents that become known only in a run get the names that the model declares.
Type output_type(const Type& inferred, const Type& declared) {
  Type type = merge(inferred, declared);
  if (type.shape && declared.shape && type.shape->size() == declared.shape->size()) {
    for (size_t axis = 0; axis < type.shape->size(); ++axis) {
      const Dim& name = (*declared.shape)[axis];
      if (!(*type.shape)[axis].is_const() && to_def(name).kind == DimDef::Kind::param) (*type.shape)[axis] = name;
    }
  }
  return type;
}

TensorDef to_def(std::string name, const Datum& datum) {
  if (!datum.is_tensor())
    throw Error(ErrorCode::not_implemented,
                fmt::format("the constant \"{}\" is {}; a model can only hold dense tensors", name, describe(datum)));
  TensorDef def;
  def.name = std::move(name);
  def.value = datum.tensor().contiguous();
  def.dtype = def.value.dtype();
  def.shape = def.value.shape();
  return def;
}

struct AttributeWriter {
  AttributeDef& def;

  void operator()(int64_t value) { def.type = AttributeType::i, def.i = value; }
  void operator()(float value) { def.type = AttributeType::f, def.f = value; }
  void operator()(const std::string& value) { def.type = AttributeType::s, def.s = value; }
  void operator()(const Datum& value) { def.type = AttributeType::tensor, def.t = std::make_unique<TensorDef>(to_def("", value)); }
  void operator()(const Type& value) { def.type = AttributeType::type_proto, def.tp = std::make_unique<TypeDef>(to_def(value, true)); }
  void operator()(const std::vector<int64_t>& values) { def.type = AttributeType::ints, def.ints = values; }
  void operator()(const std::vector<float>& values) { def.type = AttributeType::floats, def.floats = values; }
  void operator()(const std::vector<std::string>& values) { def.type = AttributeType::strings, def.strings = values; }
  void operator()(const std::vector<Datum>& values) {
    def.type = AttributeType::tensors;
    for (const Datum& value : values) def.tensors.push_back(to_def("", value));
  }
  void operator()(const std::vector<Type>& values) {
    def.type = AttributeType::type_protos;
    for (const Type& value : values) def.type_protos.push_back(to_def(value, true));
  }
};

// Appends an attribute's exact value to the key of a local function. to_string() would shorten lists and round numbers.
struct ExactText {
  std::string& text;

  void operator()(int64_t value) { text += fmt::format(" {}", value); }
  void operator()(float value) { text += fmt::format(" {:a}", value); }
  void operator()(const std::string& value) { text += fmt::format(" {}:{}", value.size(), value); }
  void operator()(const Datum& value) {
    text += fmt::format(" {}", static_cast<const void*>(value.is_tensor() ? value.tensor().raw() : nullptr));
  }
  void operator()(const Type& value) { text += " " + to_string(value); }
  template <typename T>
  void operator()(const std::vector<T>& values) {
    text += fmt::format(" [{}", values.size());
    for (const T& value : values) (*this)(value);
  }
};

class Exporter {
 public:
  Exporter(const Graph& graph, const ExportOptions& options) : root_(graph), options_(options) {}

  ModelDef run(const ModelDef* original) {
    choose_opsets(original);
    ModelDef model;
    model.ir_version = 0;
    model.producer_name = "treadle";
    model.producer_version = TREADLE_VERSION;
    if (original) {
      // Keeps the producer's name: other tools look for different patterns depending on it.
      if (!original->producer_name.empty()) {
        model.producer_name = original->producer_name;
        model.producer_version = original->producer_version;
      }
      model.domain = original->domain;
      model.model_version = original->model_version;
      model.doc_string = original->doc_string;
      model.metadata_props = original->metadata_props;
    } else {
      model.metadata_props = root_.metadata;
    }
    Scope scope{root_, nullptr, {}, {}, {}, {}, {}, {}};
    model.graph = write_graph(scope);
    if (original) model.graph.metadata_props = original->graph.metadata_props;
    for (auto& [key, function] : functions_) model.functions.push_back(std::move(function));
    if (!model.functions.empty()) opsets_[kOwnDomain] = 1;
    for (const auto& [domain, version] : opsets_) model.opset_imports.push_back({domain, version});
    model.ir_version = ir_version_of(opsets_, !model.functions.empty());
    if (original && options_.opset == kModelsOpset) model.ir_version = std::max(model.ir_version, original->ir_version);
    return model;
  }

 private:
  // Identifies constants by their memory, so that a body's copy of a captured constant is written under the original constant's name.
  using ConstantKey = std::tuple<const void*, DType, std::string>;

  struct Scope {
    const Graph& graph;
    Scope* parent;
    std::vector<std::string> names;  // name of each value; empty if it is not written
    std::unordered_set<std::string> used;
    std::map<ConstantKey, ValueId> constants;
    std::unordered_set<uint32_t> needed;           // constants to write even if no node of this graph reads them
    std::unordered_set<uint32_t> outer_constants;  // constants of a body that are written in a surrounding graph instead
    std::vector<std::string> copies;               // for each output: name of its copy by an Identity; empty: no copy is needed
  };

  void choose_opsets(const ModelDef* original) {
    opsets_[""] = kOldestOpset;
    visit(root_, [&](const Graph& graph, const Node& node) {
      if (!node.op) throw Error(ErrorCode::not_implemented, "this build has no such operator").add_context(describe(node));
      if (!node.op->since.empty() && node.version < node.op->since.back())
        throw Error(ErrorCode::internal, "only upgraded graphs can be written").add_context(describe(node));
      if (options_.own_operators) {
        opsets_[node.domain] = newest_opset(node.domain);
        return;
      }
      if (node.domain == kOwnDomain) {
        if (!node.op->write_function)
          throw Error(ErrorCode::not_implemented, "it has no form in standard operators").add_context(describe(node));
        opsets_[""] = std::max(opsets_[""], node.op->function_opset ? node.op->function_opset(node) : 1);
        return;
      }
      int& version = opsets_.try_emplace(node.domain, 1).first->second;
      version = std::max(version, lowest_opset(graph, node));
    });
    if (options_.own_operators) opsets_[""] = newest_opset("");
    if (options_.own_operators) return;
    if (options_.opset == kModelsOpset && original) {
      // An upgraded node means the same in all opsets from its lowest one to the newest.
      for (const OpsetImport& import : original->opset_imports) {
        int& version = opsets_.try_emplace(import.domain == "ai.onnx" ? "" : import.domain, 1).first->second;
        version = std::max(version, static_cast<int>(import.version));
      }
      return;
    }
    if (options_.opset == kLowestOpset || options_.opset == kModelsOpset) return void(opsets_[""] = std::max(opsets_[""], kOldestDefault));
    int chosen = options_.opset == kNewestOpset ? newest_opset("") : options_.opset;
    if (chosen < 1 || chosen > newest_opset(""))
      throw Error(ErrorCode::invalid_argument, fmt::format("opset {} of ai.onnx; this build knows 1 to {}", chosen, newest_opset("")));
    if (chosen < opsets_[""]) {
      visit(root_, [&](const Graph& graph, const Node& node) {
        if (!node.domain.empty()) return;
        if (int needed = lowest_opset(graph, node); needed > chosen)
          throw Error(ErrorCode::invalid_argument, fmt::format("it needs opset {}, the chosen one is {}", needed, chosen))
              .add_context(describe(node), describe_operands(graph, node));
      });
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("graphs are written in opset {} at least, the chosen one is {}", kOldestOpset, chosen));
    }
    opsets_[""] = chosen;
  }

  template <typename Fn>
  static void visit(const Graph& graph, const Fn& fn) {
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
      fn(graph, graph.node(id));
      for (const Body& body : graph.node(id).bodies) visit(*body.graph, fn);
    }
  }

  // The following functions choose names.
  static bool is_taken(const Scope& scope, const std::string& name) {
    for (const Scope* s = &scope; s; s = s->parent)
      if (s->used.contains(name)) return true;
    return false;
  }

  static std::string free_name(Scope& scope, const std::string& wanted) {
    std::string name = wanted;
    for (int i = 1; is_taken(scope, name); ++i) name = wanted + "_" + std::to_string(i);
    scope.used.insert(name);
    return name;
  }
  static void name_value(Scope& scope, ValueId id, const std::string& wanted) { scope.names[index_of(id)] = free_name(scope, wanted); }

  static bool is_stored(const Value& value) { return value.kind == Value::Kind::constant || value.kind == Value::Kind::parameter; }
  static bool is_read(const Graph& graph, ValueId id) { return !graph.value(id).uses.empty() || graph.is_output(id); }

  static ConstantKey key_of(const Tensor& tensor) { return {tensor.raw(), tensor.dtype(), to_string(tensor.shape())}; }

  void name_values(Scope& scope, const Body* captures) {
    const Graph& graph = scope.graph;
    scope.names.resize(graph.num_values());
    std::unordered_set<uint32_t> captured;
    if (captures) {
      for (auto [inside, position] : captures->captures) captured.insert(static_cast<uint32_t>(inside));
    }
    for (ValueId input : graph.inputs)
      if (!captured.contains(static_cast<uint32_t>(input))) name_value(scope, input, graph.value(input).name);
    name_outputs(scope);
    std::unordered_set<uint32_t> overridable;
    for (ValueId id : graph.overridable_initializers) overridable.insert(static_cast<uint32_t>(id));
    auto named = [&](ValueId id) {
      return id == kNoValue || !scope.names[index_of(id)].empty() || captured.contains(static_cast<uint32_t>(id));
    };
    for (int live = 1; live >= 0; --live) {  // values that nodes read get names before others
      for (size_t i = 0; i < graph.num_values(); ++i) {
        ValueId id{static_cast<uint32_t>(i)};
        const Value& value = graph.value(id);
        bool read = is_read(graph, id) || overridable.contains(static_cast<uint32_t>(id));
        if (named(id) || !is_stored(value) || !value.constant.defined() || read != (live == 1)) continue;
        if (!name_as_outer_constant(scope, id)) name_value(scope, id, value.name);
        if (overridable.contains(static_cast<uint32_t>(id))) scope.needed.insert(static_cast<uint32_t>(id));
        if (value.is_constant() && value.constant.is_tensor()) scope.constants.emplace(key_of(value.constant.tensor()), id);
      }
    }
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
      for (ValueId output : graph.node(id).outputs)
        if (!named(output)) name_value(scope, output, graph.value(output).name);
  }

  // Outputs of a model must keep their names; outputs of a body are identified by position. If a computed value is an output, the value
  // gets the name of its first output. An input of a model may be an output under its own name. All other outputs are copies: of constants,
  // of values that already are outputs, and of a body's inputs (onnxruntime 1.31 overwrites a state that Scan's body passes through).
  static void name_outputs(Scope& scope) {
    const Graph& graph = scope.graph;
    std::unordered_set<std::string> given;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      ValueId id = graph.outputs[i];
      const Value& value = graph.value(id);
      const std::string& name = scope.names[index_of(id)];
      std::string wanted = !scope.parent && i < graph.output_names.size() ? graph.output_names[i] : value.name, copy;
      if (value.producer != kNoNode && name.empty())
        name_value(scope, id, wanted);
      else if (scope.parent || name != wanted || given.contains(name))
        copy = free_name(scope, wanted);
      given.insert(copy.empty() ? name : copy);
      scope.copies.push_back(std::move(copy));
    }
  }

  static bool name_as_outer_constant(Scope& scope, ValueId id) {
    const Value& value = scope.graph.value(id);
    if (!value.is_constant() || !value.constant.is_tensor()) return false;
    ConstantKey key = key_of(value.constant.tensor());
    for (Scope* outer = scope.parent; outer; outer = outer->parent) {
      auto found = outer->constants.find(key);
      if (found == outer->constants.end()) continue;
      scope.names[index_of(id)] = outer->names[index_of(found->second)];
      outer->needed.insert(static_cast<uint32_t>(found->second));
      scope.outer_constants.insert(static_cast<uint32_t>(id));
      return true;
    }
    return false;
  }

  // The following functions write graphs.
  GraphDef write_graph(Scope& scope, const Body* body = nullptr, const std::vector<std::string>* captured_names = nullptr) {
    const Graph& graph = scope.graph;
    name_values(scope, body);
    if (body)
      for (size_t i = 0; i < body->captures.size(); ++i) scope.names[index_of(body->captures[i].first)] = (*captured_names)[i];
    GraphDef def;
    def.name = graph.name.empty() ? "graph" : graph.name;
    def.doc_string = graph.doc;
    size_t num_formal = graph.inputs.size() - (body ? body->captures.size() : 0);
    for (size_t i = 0; i < num_formal; ++i) def.inputs.push_back(value_info(scope, graph.inputs[i], graph.type(graph.inputs[i]), true));
    for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) def.nodes.push_back(write_node(scope, graph.node(id)));
    write_outputs(scope, def, body != nullptr);
    for (size_t i = 0; i < graph.num_values(); ++i) {
      ValueId id{static_cast<uint32_t>(i)};
      if (!is_stored(graph.value(id)) || scope.outer_constants.contains(static_cast<uint32_t>(id))) continue;
      if (!is_read(graph, id) && !scope.needed.contains(static_cast<uint32_t>(id))) continue;
      def.initializers.push_back(to_def(scope.names[i], graph.value(id).constant));
    }
    for (ValueId id : graph.overridable_initializers) def.inputs.push_back(value_info(scope, id, graph.type(id), true));
    if (!body && options_.value_info) write_value_info(scope, def);
    return def;
  }

  static ValueInfoDef value_info(const Scope& scope, ValueId id, const Type& type, bool with_shape) {
    ValueInfoDef info;
    info.name = scope.names[index_of(id)];
    info.type = to_def(type, with_shape);
    info.doc_string = scope.graph.value(id).doc;
    return info;
  }

  static void write_outputs(const Scope& scope, GraphDef& def, bool is_body) {
    const Graph& graph = scope.graph;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      ValueId id = graph.outputs[i];
      Type type = graph.type(id);
      if (!is_body && i < graph.declared_outputs.size()) type = output_type(type, graph.declared_outputs[i]);
      ValueInfoDef info = value_info(scope, id, type, !is_body);
      if (!scope.copies[i].empty()) {
        NodeDef copy;
        copy.op_type = "Identity";
        copy.name = scope.copies[i];
        copy.inputs = {info.name};
        copy.outputs = {scope.copies[i]};
        def.nodes.push_back(std::move(copy));
        info.name = scope.copies[i];
      }
      def.outputs.push_back(std::move(info));
    }
  }

  void write_value_info(const Scope& scope, GraphDef& def) {
    for (NodeId id = scope.graph.first(); id != kNoNode; id = scope.graph.next(id)) {
      for (ValueId output : scope.graph.node(id).outputs) {
        if (output == kNoValue || scope.graph.is_output(output)) continue;
        ValueInfoDef info = value_info(scope, output, scope.graph.type(output), true);
        if (info.type.kind != TypeDef::Kind::none) def.value_info.push_back(std::move(info));
      }
    }
  }

  // The following functions write nodes.
  NodeDef write_node(Scope& scope, const Node& node) {
    refuse_internal_attributes(node);
    NodeDef def;
    def.op_type = node.op_type;
    def.domain = node.domain;
    def.name = node.name;
    def.doc_string = node.doc;
    def.metadata_props = node.metadata;
    for (int i = 0; i < node.num_formal_inputs; ++i) def.inputs.push_back(name_of_operand(scope, node.inputs[static_cast<size_t>(i)]));
    for (ValueId output : node.outputs) def.outputs.push_back(name_of_operand(scope, output));
    while (!def.inputs.empty() && def.inputs.back().empty()) def.inputs.pop_back();
    while (!def.outputs.empty() && def.outputs.back().empty()) def.outputs.pop_back();
    for (const auto& [name, value] : node.attributes) def.attributes.push_back(attribute_def(name, value));
    for (const Body& body : node.bodies) {
      std::vector<std::string> captured;
      for (auto [inside, position] : body.captures)
        captured.push_back(name_of_operand(scope, node.inputs[static_cast<size_t>(node.num_formal_inputs + position)]));
      Scope inner{*body.graph, &scope, {}, {}, {}, {}, {}, {}};
      AttributeDef attribute;
      attribute.name = body.attribute;
      attribute.type = AttributeType::graph;
      attribute.g = std::make_unique<GraphDef>(write_graph(inner, &body, &captured));
      def.attributes.push_back(std::move(attribute));
    }
    if (options_.own_operators && !node.op->deterministic) {
      erase_if(def.metadata_props, [](const auto& property) { return property.first == kRandomId; });
      def.metadata_props.emplace_back(kRandomId, std::to_string(random_id(node)));
    }
    if (node.domain == kOwnDomain && !options_.own_operators) def.op_type = function_for(scope.graph, node, def);
    return def;
  }

  static std::string name_of_operand(const Scope& scope, ValueId id) { return id == kNoValue ? std::string() : scope.names[index_of(id)]; }

  // Returns the local function for a node of the treadle domain. The function's body depends on operands and attributes, so nodes that
  // differ in these get different functions.
  std::string function_for(const Graph& graph, const Node& node, NodeDef& def) {
    std::string key = fmt::format("{}_{}_{}", node.op_type, def.inputs.size(), def.outputs.size()), name = key;
    for (const std::string& input : def.inputs) key += input.empty() ? " -" : " +";
    for (const auto& [attribute, value] : node.attributes) {
      key += fmt::format(" {}=", attribute);
      std::visit(ExactText{key}, value);
    }
    FunctionDef function;
    function.domain = kOwnDomain;
    for (size_t i = 0; i < def.inputs.size(); ++i) function.inputs.push_back(fmt::format("input_{}", i));
    for (size_t i = 0; i < def.outputs.size(); ++i) function.outputs.push_back(fmt::format("output_{}", i));
    std::vector<std::string> operands = function.inputs;
    for (size_t i = 0; i < operands.size(); ++i)
      if (def.inputs[i].empty()) operands[i].clear();
    FunctionBody body(graph, node, operands, function.outputs);
    node.op->write_function(body);
    key += body.asked();
    def.attributes.clear();
    auto [entry, inserted] = function_names_.try_emplace(std::move(key), name);
    if (!inserted) return entry->second;
    for (int i = 2; functions_.contains(entry->second); ++i) entry->second = fmt::format("{}_{}", name, i);
    function.name = entry->second;
    function.opset_imports = {{"", opsets_[""]}};
    write_body(body, function);
    functions_[entry->second] = std::move(function);
    return entry->second;
  }

  static void write_body(const FunctionBody& body, FunctionDef& function) {
    std::set<std::string> domains;
    for (const FunctionNode& node : body.nodes()) {
      NodeDef& def = function.nodes.emplace_back();
      def.op_type = node.op_type, def.domain = node.domain;
      def.inputs = node.inputs, def.outputs = {node.output};
      for (const auto& [name, value] : node.attributes) def.attributes.push_back(attribute_def(name, value));
      if (!node.domain.empty() && domains.insert(node.domain).second) function.opset_imports.push_back({node.domain, 1});
    }
  }

  const Graph& root_;
  const ExportOptions& options_;
  std::map<std::string, int> opsets_;
  std::map<std::string, FunctionDef> functions_;       // local functions, by name
  std::map<std::string, std::string> function_names_;  // names of local functions, by key (operator, operands and attributes)
};

}  // namespace

AttributeDef attribute_def(const std::string& name, const Attribute& value) {
  AttributeDef made;
  made.name = name;
  std::visit(AttributeWriter{made}, value);
  return made;
}

ModelDef export_model(const Graph& graph, const ModelDef* original, const ExportOptions& options) {
  return Exporter(graph, options).run(original);
}

}  // namespace treadle::onnx
