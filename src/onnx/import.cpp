#include "onnx/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/checked.h"
#include "core/base/fault.h"
#include "core/base/logging.h"
#include "core/values/boolean_bytes.h"
#include "graph/contract.h"
#include "graph/custom_ops.h"
#include "graph/internal_attributes.h"
#include "graph/op_def.h"
#include "onnx/node_sorting.h"
#include "onnx/unfolding.h"
#include "treadle/error.h"

namespace treadle::onnx {
namespace {

std::string_view normalized_domain(std::string_view domain) { return domain == "ai.onnx" ? "" : domain; }

[[noreturn]] void fail(std::string message) { throw Error(ErrorCode::invalid_model, std::move(message)); }

using Names = std::unordered_set<std::string_view>;  // views of names that the definitions own

/// A graph that is being read, with a link to the graph around it.
struct Nesting {
  Graph* graph;
  Nesting* around;
  /// The values of the surrounding graph that this body reads, as pairs (value inside, value outside).
  std::vector<std::pair<ValueId, ValueId>> captures;
  std::unordered_map<ValueId, ValueId> inside;  // maps a value outside to the value inside
};

/// The names that are visible to the nodes of a graph, or of a local function whose nodes are inlined into the graph.
struct Scope {
  Nesting* nesting;
  Scope* parent;
  Scope* caller = nullptr;  // for a body passed to a function as an attribute: scope of the caller, for names unknown in the function
  std::unordered_map<std::string_view, ValueId> names = {};
};

struct FunctionFrame;

/// An attribute passed to a local function.
struct GivenAttribute {
  const AttributeDef* def;
  Scope* scope = nullptr;                // scope of the call that passes the attribute; null: it is the function's default
  const FunctionFrame* frame = nullptr;  // frame of the call that passes the attribute; null: it is the function's default
};

/// A local function that is being inlined at one call. Its nodes use its attributes, opsets and name prefix instead of the file's.
struct FunctionFrame {
  const FunctionDef* function = nullptr;
  std::unordered_map<std::string_view, GivenAttribute> attributes;
  std::string prefix;  // prefix for the names of the function's values and nodes
  int depth = 0;
};

class Importer {
 public:
  Importer(const ModelDef& model, const ImportOptions& options)
      : model_(model), options_(options), symbols_(options.symbols ? options.symbols : std::make_shared<SymbolTable>()), unfolding_(model) {
    for (const auto& property : model.metadata_props) is_artifact_ |= property.first == kArtifactsKey;
    for (const FunctionDef& function : model.functions) functions_[key(function.domain, function.name, function.overload)] = &function;
  }

  std::unique_ptr<Graph> run() {
    auto graph = std::make_unique<Graph>(symbols_);
    for (const OpsetImport& opset : model_.opset_imports) opsets_[std::string(normalized_domain(opset.domain))] = checked_version(opset);
    graph->opsets = {opsets_.begin(), opsets_.end()};
    graph->metadata = model_.metadata_props;
    Nesting nesting{graph.get(), nullptr, {}, {}};
    Scope scope{&nesting, nullptr};
    import_graph_def(model_.graph, scope, FunctionFrame{}, /*is_body=*/false);
    return graph;
  }

 private:
  static std::string key(const std::string& domain, const std::string& name, const std::string& overload) {
    return fmt::format("{}\n{}\n{}", normalized_domain(domain), name, overload);
  }

  static int checked_version(const OpsetImport& opset) {
    const std::string_view domain = normalized_domain(opset.domain);
    const int newest = newest_opset(domain);
    if (newest > 0 && (opset.version < 1 || opset.version > newest))
      throw Error(ErrorCode::not_implemented, fmt::format("the model needs opset {} of {}; this build knows 1 to {}", opset.version,
                                                          domain.empty() ? "ai.onnx" : domain, newest));
    return static_cast<int>(opset.version);
  }

  // Converts a type. An extent without name or value becomes a new symbol; some exporters name all unknown extents "?". All unknown extents
  // of a body become new symbols that only the run determines, whatever names the body declares.
  Type to_type(const TypeDef& def, bool is_body = false) {
    switch (def.kind) {
      case TypeDef::Kind::tensor:
      case TypeDef::Kind::sparse_tensor: {
        Type type = Type::tensor(def.elem_type);
        if (def.kind == TypeDef::Kind::sparse_tensor) type.kind = Type::Kind::sparse_tensor;
        if (!def.shape) return type;
        if (def.shape->size() > static_cast<size_t>(kMaxRank))
          throw Error(ErrorCode::not_implemented,
                      fmt::format("a declared rank of {}; at most {} is supported", def.shape->size(), kMaxRank));
        SymbolicShape shape;
        for (const DimDef& dim : *def.shape) {
          if (dim.kind == DimDef::Kind::value && dim.value >= 0)
            shape.emplace_back(dim.value);
          else if (is_body)
            shape.push_back(symbols_->fresh_symbol("dim", true));
          else if (dim.kind == DimDef::Kind::param && !dim.param.empty() && dim.param != "?")
            shape.push_back(symbols_->symbol(options_.symbol_prefix + dim.param));
          else
            shape.push_back(symbols_->fresh_symbol("dim", false));
        }
        type.shape = std::move(shape);
        return type;
      }
      case TypeDef::Kind::sequence: return Type::sequence(def.elem ? to_type(*def.elem) : Type{});
      case TypeDef::Kind::optional: return Type::optional(def.elem ? to_type(*def.elem) : Type{});
      case TypeDef::Kind::map: return Type::map(def.key_type, def.elem ? def.elem->elem_type : DType::undefined);
      default: return {};
    }
  }

  void define(Scope& scope, const std::string& name, ValueId id) {
    if (!scope.names.emplace(name, id).second)
      fail(fmt::format("the value \"{}\" is defined twice in graph \"{}\"", name, scope.nesting->graph->name));
  }

  // Finds the value with this name. If the value belongs to an enclosing graph, every graph in between captures it as an input.
  std::optional<ValueId> resolve(Scope& scope, const std::string& name) {
    if (auto found = scope.names.find(name); found != scope.names.end()) return found->second;
    for (Scope* outer : {scope.parent, scope.caller}) {
      if (!outer) continue;
      const std::optional<ValueId> outside = resolve(*outer, name);
      if (!outside) continue;
      if (*outside == kNoValue) return outside;  // the caller of a local function omits this input
      const ValueId inside = captured(*scope.nesting, *outer->nesting, *outside, name);
      scope.names.emplace(name, inside);
      return inside;
    }
    return std::nullopt;
  }

  // Makes a value of an enclosing graph an input of this body, and of every body in between.
  ValueId captured(Nesting& nesting, const Nesting& owner, ValueId value, const std::string& name) {
    if (&nesting == &owner) return value;
    const ValueId outside = captured(*nesting.around, owner, value, name);
    const auto [place, is_new] = nesting.inside.try_emplace(outside, kNoValue);
    if (is_new) {
      place->second = nesting.graph->add_input(name, {});
      nesting.captures.emplace_back(place->second, outside);
    }
    return place->second;
  }

  void import_graph_def(const GraphDef& def, Scope& scope, const FunctionFrame& frame, bool is_body) {
    Graph& graph = *scope.nesting->graph;
    graph.name = def.name;
    graph.doc = def.doc_string;
    if (!is_body) graph.metadata.append(def.metadata_props);
    Names inputs, initialized;
    for (const ValueInfoDef& input : def.inputs) inputs.insert(input.name);
    for (const TensorDef& tensor : def.initializers) initialized.insert(tensor.name);
    for (const SparseTensorDef& tensor : def.sparse_initializers) initialized.insert(tensor.values.name);
    for (const ValueInfoDef& input : def.inputs) {
      if (input.name.empty()) fail("a graph input has no name");
      if (initialized.contains(input.name) && !is_body) continue;
      define(scope, input.name, graph.add_input(input.name, to_type(input.type, is_body)));
    }
    const Constants constants(def.initializers, def.nodes);
    for (const TensorDef& tensor : def.initializers) {
      if (constants.replaces(tensor.name, &tensor)) continue;
      if (!tensor.value.defined())
        fail(fmt::format("the initializer \"{}\" has no elements here: its external data was not read", tensor.name));
      add_initializer(scope, tensor.name, tensor.value, inputs.contains(tensor.name), is_body);
    }
    for (const SparseTensorDef& tensor : def.sparse_initializers)
      add_initializer(scope, tensor.values.name, to_dense(tensor), false, is_body);
    import_nodes(def.nodes, scope, frame, constants);
    for (const NodeId id : graph.order()) complete_outputs(graph, id);  // must be last, when all names of the file are known
    for (const ValueInfoDef& output : def.outputs) {
      std::optional<ValueId> id = resolve(scope, output.name);
      if (!id || *id == kNoValue) fail(fmt::format("the output \"{}\" of graph \"{}\" is never made", output.name, def.name));
      graph.outputs.push_back(*id);
      graph.output_names.push_back(output.name);
      graph.declared_outputs.push_back(to_type(output.type));
    }
  }

  void add_initializer(Scope& scope, const std::string& name, const Tensor& tensor, bool is_input, bool is_body) {
    if (is_body && scope.names.contains(name)) {
      fail(fmt::format("the initializer \"{}\" is also an input of a body", name));
    }
    ValueId id = scope.nesting->graph->add_constant(name, with_valid_booleans(tensor));
    define(scope, name, id);
    // Below IR 4, every initializer had to be a graph input, so being an input did not mean that a feed may replace the initializer.
    if (is_input && model_.ir_version >= 4) scope.nesting->graph->overridable_initializers.push_back(id);
  }

  // Limits the memory of dense copies of sparse tensors, since zeros take memory but no bytes in the file.
  void count_dense(const SparseTensorDef& sparse, int64_t dense, int64_t stored) {
    dense_bytes_ = checked_add(dense_bytes_, dense);
    stored_bytes_ = checked_add(stored_bytes_, stored);
    const int64_t limit = checked_add(options_.max_dense_bytes, checked_mul(options_.max_dense_ratio, stored_bytes_));
    if (dense_bytes_ > limit)
      throw Error(ErrorCode::resource_exhausted,
                  fmt::format("the sparse tensor \"{}\" of {} bytes is {} bytes when dense; all of them together may have {} here",
                              sparse.values.name, stored, dense, limit));
  }

  // Converts each sparse tensor of the file once; all calls of a function share the result.
  Tensor to_dense(const SparseTensorDef& sparse) {
    Tensor& dense = dense_[&sparse];
    if (!dense.defined()) dense = made_dense(sparse);
    return dense;
  }

  Tensor made_dense(const SparseTensorDef& sparse) {
    Shape shape{std::span<const int64_t>(sparse.dims)};
    const Tensor& values = sparse.values.value;
    const Tensor& indices = sparse.indices.value;
    if (!values.defined() || !indices.defined()) fail("a sparse tensor has no elements");
    count_dense(sparse, static_cast<int64_t>(size_bytes(values.dtype(), shape.num_elements())),
                static_cast<int64_t>(values.size_bytes() + indices.size_bytes()));
    if (is_sub_byte(values.dtype()) || values.dtype() == DType::string) fail("a sparse tensor of packed or string elements");
    Tensor dense(values.dtype(), shape);
    std::memset(dense.raw(), 0, dense.size_bytes());
    size_t element = bits_of(values.dtype()) / 8;
    auto rank = static_cast<int64_t>(shape.rank());
    bool linear = indices.shape().rank() == 1;
    for (int64_t i = 0; i < values.num_elements(); ++i) {
      int64_t position = 0;
      if (linear)
        position = indices.data<int64_t>()[i];
      else
        for (int64_t axis = 0; axis < rank; ++axis)
          position = position * shape[static_cast<int>(axis)] + indices.data<int64_t>()[i * rank + axis];
      if (position < 0 || position >= dense.num_elements())
        fail(fmt::format("a sparse tensor's index {} is outside {}", position, to_string(shape)));
      std::memcpy(dense.raw() + static_cast<size_t>(position) * element, values.raw() + static_cast<size_t>(i) * element, element);
    }
    return dense;
  }

  // If several initializers or Constant nodes have the same name, the last one applies, as in onnxruntime. Nodes count as later.
  class Constants {
   public:
    Constants(const std::vector<TensorDef>& initializers, const std::vector<NodeDef>& nodes) {
      for (const TensorDef& tensor : initializers) add(tensor.name, &tensor);
      for (const NodeDef& node : nodes)
        if (is_constant(node)) add(node.outputs[0], &node);
    }
    static bool is_constant(const NodeDef& node) {
      return node.op_type == "Constant" && node.outputs.size() == 1 && normalized_domain(node.domain).empty();
    }
    /// Returns true if a later definition replaces this one. @param definition  the tensor or node
    bool replaces(std::string_view name, const void* definition) const {
      const auto found = last_.find(name);
      return found != last_.end() && found->second != definition;
    }

   private:
    void add(std::string_view name, const void* definition) {
      const auto [place, is_new] = last_.try_emplace(name, definition);
      if (is_new) return;
      place->second = definition;
      if (!std::exchange(warned_, true))
        TREADLE_LOG(warning, "the graph has several constants \"{}\"; of each name the last one holds", name);
    }
    std::unordered_map<std::string_view, const void*> last_;
    bool warned_ = false;
  };

  void import_nodes(const std::vector<NodeDef>& nodes, Scope& scope, const FunctionFrame& frame, const Constants& constants) {
    std::vector<const NodeDef*> kept;
    kept.reserve(nodes.size());
    for (const NodeDef& node : nodes)
      if (!Constants::is_constant(node) || !constants.replaces(node.outputs[0], &node)) kept.push_back(&node);
    for (const NodeDef* def : in_order(std::move(kept))) {
      if (++num_nodes_ > options_.max_nodes)
        throw Error(ErrorCode::resource_exhausted, fmt::format("the model unfolds into more than {} nodes", options_.max_nodes));
      if (frame.depth > 0) unfolding_.charge(*def, frame.prefix.size());
      if (const FunctionDef* function = find_function(*def))
        import_call(*def, *function, scope, frame);
      else
        import_node(*def, scope, frame);
    }
  }

  const FunctionDef* find_function(const NodeDef& def) const {
    if (functions_.empty()) return nullptr;
    auto found = functions_.find(key(def.domain, def.op_type, def.overload));
    return found == functions_.end() ? nullptr : found->second;
  }

  ValueId resolve_input(Scope& scope, const NodeDef& def, const std::string& name) {
    if (name.empty()) return kNoValue;
    std::optional<ValueId> id = resolve(scope, name);
    if (!id)
      throw Fault(Fault::Kind::unmade_value, ErrorCode::invalid_model,
                  fmt::format("the {} reads \"{}\", which nothing makes", describe_def(def), name));
    return *id;
  }

  void import_node(const NodeDef& def, Scope& scope, const FunctionFrame& frame) {
    Graph& graph = *scope.nesting->graph;
    Node node;
    node.op_type = def.op_type;
    node.domain = normalized_domain(def.domain);
    node.overload = def.overload;
    node.op = find_op(node.domain, node.op_type);
    // Model files must not use operators reserved for the optimizer and the trainer.
    if (node.op && node.domain == "treadle" && !node.op->in_files && !is_artifact_) node.op = nullptr;
    node.version = version_for(def, frame);
    std::string name = frame.prefix + (def.name.empty() && !def.outputs.empty() ? def.outputs[0] : def.name);
    node.name = graph.unique_node_name(name);
    node.sources.push_back(std::move(name));
    node.doc = def.doc_string;
    node.metadata = def.metadata_props;
    node.inputs.reserve(def.inputs.size());
    for (const std::string& input : def.inputs) node.inputs.push_back(resolve_input(scope, def, input));
    // Custom operators get all operands; for others, absent operands at the end are dropped.
    const bool is_custom = node.op && is_custom_op(*node.op);
    while (!is_custom && !node.inputs.empty() && node.inputs.back() == kNoValue) node.inputs.pop_back();
    node.num_formal_inputs = static_cast<int>(node.inputs.size());
    std::vector<std::vector<std::pair<ValueId, ValueId>>> captures;
    for (const AttributeDef& attribute : def.attributes) import_attribute(attribute, node, scope, frame, captures);
    refuse_internal_attributes(node);
    std::span<const std::string> outputs = def.outputs;
    while (!is_custom && !outputs.empty() && outputs.back().empty()) outputs = outputs.first(outputs.size() - 1);
    node.outputs.reserve(outputs.size());
    for (const std::string& output : outputs) {
      if (output.empty()) {
        node.outputs.push_back(kNoValue);
        continue;
      }
      ValueId id = graph.add_value(frame.prefix + output);
      define(scope, output, id);
      node.outputs.push_back(id);
    }
    NodeId id = graph.append(std::move(node));
    for (size_t b = 0; b < captures.size(); ++b)
      for (auto [inside, outside] : captures[b]) {
        int position = graph.add_capture(id, outside);
        graph.node(id).bodies[b].captures.emplace_back(inside, position);
      }
  }

  int version_for(const NodeDef& def, const FunctionFrame& frame) const {
    const std::string_view domain = normalized_domain(def.domain);
    if (frame.function) {
      for (const OpsetImport& opset : frame.function->opset_imports)
        if (normalized_domain(opset.domain) == domain) return checked_version(opset);
    }
    auto found = opsets_.find(domain);
    if (found != opsets_.end()) return found->second;
    // ONNX Runtime also assumes the newest ai.onnx for a model that names no version of ai.onnx.
    return domain.empty() ? newest_opset("") : 1;
  }

  void import_attribute(const AttributeDef& attribute, Node& node, Scope& scope, const FunctionFrame& frame,
                        std::vector<std::vector<std::pair<ValueId, ValueId>>>& captures) {
    GivenAttribute given{&attribute};
    if (!attribute.ref_attr_name.empty()) {
      auto found = frame.attributes.find(attribute.ref_attr_name);
      if (found == frame.attributes.end()) return;  // the caller omits the attribute, and the function has no default for it
      given = found->second;
      unfolding_.charge(*given.def);
    }
    const AttributeDef* source = given.def;
    if (source->type == AttributeType::graph) {
      auto body = std::make_unique<Graph>(symbols_);
      Nesting nesting{body.get(), scope.nesting, {}, {}};
      Scope inner{&nesting, &scope, given.scope};
      FunctionFrame inner_frame = given.frame ? *given.frame : frame;
      inner_frame.prefix.clear();                                                 // a body has its own names
      if (source != &attribute) inner_frame.depth = deeper(frame, source->name);  // limits the depth, since a default may refer to itself
      import_graph_def(*source->g, inner, inner_frame, /*is_body=*/true);
      node.bodies.push_back({attribute.name, std::move(body), {}});
      captures.push_back(std::move(nesting.captures));
      return;
    }
    if (node.attributes.has(attribute.name)) fail(fmt::format("node \"{}\" has the attribute \"{}\" twice", node.name, attribute.name));
    Attribute value = to_attribute(*source);
    // A Constant's tensor becomes a constant of the graph, which may be unaligned. Tensors in other attributes are read by operators,
    // including custom operators, and must be aligned.
    if (auto* datum = std::get_if<Datum>(&value); datum && datum->is_tensor() && !is_aligned(datum->tensor()) && !node.is("Constant"))
      value = Datum(datum->tensor().clone());
    node.attributes.set(attribute.name, std::move(value));
  }

  Attribute to_attribute(const AttributeDef& def) {
    switch (def.type) {
      case AttributeType::f: return def.f;
      case AttributeType::i: return def.i;
      case AttributeType::s: return def.s;
      case AttributeType::tensor: return with_valid_booleans(Datum(def.t->value));
      case AttributeType::sparse_tensor: return with_valid_booleans(Datum(to_dense(*def.sparse_tensor)));
      case AttributeType::type_proto: return to_type(*def.tp);
      case AttributeType::floats: return def.floats;
      case AttributeType::ints: return def.ints;
      case AttributeType::strings: return def.strings;
      case AttributeType::tensors: {
        std::vector<Datum> tensors;
        for (const TensorDef& tensor : def.tensors) tensors.push_back(with_valid_booleans(Datum(tensor.value)));
        return tensors;
      }
      case AttributeType::type_protos: {
        std::vector<Type> types;
        for (const TypeDef& type : def.type_protos) types.push_back(to_type(type));
        return types;
      }
      default: break;
    }
    fail(fmt::format("the attribute \"{}\" is of an unsupported kind", def.name));
  }

  int deeper(const FunctionFrame& frame, const std::string& name) const {
    if (frame.depth >= options_.max_function_depth)
      fail(fmt::format("local functions call each other more than {} deep, at \"{}\"", options_.max_function_depth, name));
    return frame.depth + 1;
  }

  // Imports a call of a local function: its nodes are inlined, with prefixed names.
  void import_call(const NodeDef& call, const FunctionDef& function, Scope& scope, const FunctionFrame& frame) {
    FunctionFrame inner;
    inner.function = &function;
    inner.depth = deeper(frame, function.name);
    inner.prefix = frame.prefix + (call.name.empty() && !call.outputs.empty() ? call.outputs[0] : call.name) + "/";
    for (const AttributeDef& attribute : function.attribute_protos) inner.attributes[attribute.name] = {&attribute};
    for (const AttributeDef& attribute : call.attributes) {
      GivenAttribute given{&attribute, &scope, &frame};
      if (!attribute.ref_attr_name.empty()) {
        auto found = frame.attributes.find(attribute.ref_attr_name);
        if (found == frame.attributes.end()) continue;
        given = found->second;
      }
      inner.attributes[attribute.name] = given;
    }
    // In the function, only its formal inputs are visible. Its names form a separate scope of the same graph.
    Scope local{scope.nesting, nullptr};
    if (call.inputs.size() > function.inputs.size())
      fail(fmt::format("the {} gives {} inputs to a function of {}", describe_def(call), call.inputs.size(), function.inputs.size()));
    for (size_t i = 0; i < function.inputs.size(); ++i) {
      ValueId argument = i < call.inputs.size() ? resolve_input(scope, call, call.inputs[i]) : kNoValue;
      define(local, function.inputs[i], argument);
    }
    import_nodes(function.nodes, local, inner, Constants({}, function.nodes));
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.outputs[i].empty()) continue;
      if (i >= function.outputs.size())
        fail(
            fmt::format("the {} takes {} outputs from a function of {}", describe_def(call), call.outputs.size(), function.outputs.size()));
      std::optional<ValueId> made = resolve(local, function.outputs[i]);
      if (!made || *made == kNoValue)
        fail(fmt::format("the function \"{}\" never makes its output \"{}\"", function.name, function.outputs[i]));
      define(scope, call.outputs[i], *made);
    }
  }

  const ModelDef& model_;
  const ImportOptions& options_;
  std::shared_ptr<SymbolTable> symbols_;
  std::map<std::string, int, std::less<>> opsets_;
  std::unordered_map<std::string, const FunctionDef*> functions_;
  bool is_artifact_ = false;
  int64_t num_nodes_ = 0;
  UnfoldingBudget unfolding_;
  int64_t dense_bytes_ = 0, stored_bytes_ = 0;  // bytes of dense copies; bytes of the sparse tensors
  std::unordered_map<const SparseTensorDef*, Tensor> dense_;
};

}  // namespace

std::unique_ptr<Graph> import_graph(const ModelDef& model, const ImportOptions& options) { return Importer(model, options).run(); }

}  // namespace treadle::onnx
