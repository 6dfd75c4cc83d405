#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "compiled/graph_stream.h"
#include "core/base/checked.h"
#include "core/values/boolean_bytes.h"
#include "graph/custom_ops.h"
#include "graph/infer.h"
#include "graph/op_def.h"

namespace treadle::compiled {
namespace {

constexpr uint32_t kAbsent = UINT32_MAX;
constexpr int kMaxDepth = 64;             // limit for the depth of nested bodies, and of nested types
constexpr int kMaxDepthOfExtents = 1000;  // limit for nested expressions, which are processed recursively
constexpr size_t kMostPacked = 8;         // a weight has at most this many times the bytes of its packed form
constexpr DType kLastDType{kNumDTypes - 1};

// Returns read-only zeros that use no physical memory until they are read.
std::shared_ptr<Storage> zero_pages(size_t size_bytes) {
  void* const data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw Error(ErrorCode::resource_exhausted, fmt::format("no room for {} bytes of addresses", size_bytes));
  return Storage::borrow_read_only(data, size_bytes, [data, size_bytes] { ::munmap(data, size_bytes); });
}

// Rebuilds an expression for an extent by the functions that shape inference uses. If these simplify it to another expression, the file is
// invalid, which the caller checks. Sums are checked here instead, because shape inference makes them in many ways.
Dim again(SymbolTable& table, Expr expr) {
  const bool has_operands = !expr.a.is_const() || !expr.b.is_const();
  if (expr.kind == Expr::Kind::symbol) {
    if (expr.symbol.empty() || !expr.terms.empty() || !expr.b.is_const(0) || (!expr.data_dependent && !expr.a.is_const(0)))
      Reader::fail("a symbol is none");
    // Symbols of the model with equal names are the same symbol. Symbols that shape inference has made contain "#" and are all different.
    const bool named = !expr.data_dependent && expr.symbol.find('#') == std::string::npos;
    return named ? table.symbol(expr.symbol) : Dim(table.intern(std::move(expr)));
  }
  if (!expr.symbol.empty() || (expr.kind == Expr::Kind::sum ? has_operands || expr.terms.empty() : !has_operands || !expr.terms.empty()))
    Reader::fail("an extent is no expression");
  switch (expr.kind) {
    case Expr::Kind::product: return expr.a * expr.b;
    case Expr::Kind::floor_div: return floor_div(expr.a, expr.b);
    case Expr::Kind::modulo: return modulo(expr.a, expr.b);
    case Expr::Kind::maximum: return maximum(expr.a, expr.b);
    case Expr::Kind::minimum: return minimum(expr.a, expr.b);
    case Expr::Kind::broadcast: return broadcast(expr.a, expr.b);
    default: break;
  }
  auto by_index = [](const Expr* x, const Expr* y) { return x->index < y->index; };
  const std::vector<const Expr*>* before = nullptr;
  expr.data_dependent = false;
  for (const Expr::Term& term : expr.terms) {
    const std::vector<const Expr*>& factors = term.factors;
    const bool is_factor = expr.terms.size() == 1 && term.coefficient == 1 && factors.size() == 1;
    if (term.coefficient == 0 || is_factor || (expr.terms.size() == 1 && factors.empty()) ||
        !std::is_sorted(factors.begin(), factors.end(), by_index) ||
        (before && !std::lexicographical_compare(before->begin(), before->end(), factors.begin(), factors.end(), by_index)))
      Reader::fail("an extent is no sum of products");
    for (const Expr* factor : factors) {
      if (factor->kind == Expr::Kind::sum) Reader::fail("an extent is a product of sums");
      expr.data_dependent |= factor->data_dependent;
    }
    before = &factors;
  }
  return Dim(table.intern(std::move(expr)));
}

class GraphReader {
 public:
  GraphReader(Reader& in, std::span<const Tensor> blocks, LoadedGraph& loaded) : in_(in), blocks_(blocks), loaded_(loaded) {}

  // Reads all symbolic expressions, and rebuilds them in the order in which they were made, so that each gets the same index. Operands
  // precede the expressions that use them.
  void symbols() {
    table_ = std::make_shared<SymbolTable>();
    const size_t count = in_.count(36);
    for (size_t i = 0; i < count; ++i) {
      Expr expr{in_.pick(Expr::Kind::broadcast), in_.flag(), 0, table_.get(), in_.name(), {}, {}, {}};
      const size_t num_terms = in_.count(16);
      for (size_t t = 0; t < num_terms; ++t) {
        Expr::Term term{in_.get<int64_t>(), {}};
        const size_t num_factors = in_.count(4);
        for (size_t f = 0; f < num_factors; ++f) term.factors.push_back(expression(in_.get<int32_t>()));
        expr.terms.push_back(std::move(term));
      }
      expr.a = dim();
      expr.b = dim();
      const Dim made = again(*table_, std::move(expr));
      if (made.is_const() || static_cast<size_t>(made.expr()->index) != i || table_->size() != i + 1)
        Reader::fail("an extent is no expression, or one that is there already");
      depths_.push_back(depth_of(*made.expr()));
      if (depths_.back() > kMaxDepthOfExtents) Reader::fail("an extent is too deep");
    }
  }

  std::unique_ptr<Graph> graph(int depth = 0) {
    if (depth > kMaxDepth) Reader::fail("bodies lie in bodies too deep");
    auto made = std::make_unique<Graph>(table_);
    made->name = in_.name();
    for (size_t i = in_.count(12); i > 0; --i) {
      std::string domain = in_.name();
      const int version = in_.get<int>();
      if (version < 1 || !made->opsets.emplace(std::move(domain), version).second) Reader::fail("an operator set is none, or one twice");
    }
    made->metadata = pairs();
    const size_t num_values = in_.count(14);
    std::vector<bool> available(num_values);
    std::vector<ValueId> let_go;
    for (size_t i = 0; i < num_values; ++i) {
      const ValueId id = value(*made, let_go, depth);
      if (index_of(id) != i) Reader::fail("values are not in order");
      available[i] = made->value(id).is_constant();
    }
    made->inputs = values(*made);
    for (ValueId input : made->inputs) {
      if (input == kNoValue || made->value(input).kind != Value::Kind::input || available[index_of(input)])
        Reader::fail("an input is none, or one twice");
      if (depth == 0) check_declared(made->type(input));
      available[index_of(input)] = true;
    }
    made->overridable_initializers = values(*made);
    for (ValueId initializer : made->overridable_initializers)
      if (initializer == kNoValue || !made->value(initializer).is_constant()) Reader::fail("an initializer is none");
    for (size_t i = in_.count(60); i > 0; --i) node(*made, available, depth);
    made->outputs = values(*made);
    for (ValueId output : made->outputs)
      if (output == kNoValue || !available[index_of(output)]) Reader::fail("an output is never made");
    for (size_t i = in_.count(8); i > 0; --i) made->output_names.push_back(in_.name());
    for (size_t i = in_.count(5); i > 0; --i) {
      made->declared_outputs.push_back(type());
      check_declared(made->declared_outputs.back());
    }
    if (made->output_names.size() > made->outputs.size() || made->declared_outputs.size() > made->outputs.size() ||
        (depth == 0 && made->output_names.size() != made->outputs.size()))
      Reader::fail("outputs and their names differ in number");
    for (ValueId id : let_go) stand_in(*made, id);
    return made;
  }

  /// Completes the types of values from the file, where inference could not determine them: the kind, the element type, and constant
  /// extents where inference only knows that they depend on data. Runs check such extents, like those that a model declares.
  /// @return true if any type was changed.
  bool apply_hints() {
    bool applied = false;
    for (Hint& hint : hints_) {
      Type& type = hint.graph->value(hint.value).type;
      if (type.shape && hint.type.shape && type.shape->size() == hint.type.shape->size()) {
        for (size_t axis = 0; axis < type.shape->size(); ++axis) {
          Dim& extent = (*type.shape)[axis];
          const Dim& had = (*hint.type.shape)[axis];
          if (extent.is_const() || !extent.data_dependent() || !had.is_const()) continue;
          extent = had;
          applied = true;
        }
      }
      if (hint.type.kind == Type::Kind::unknown || (type.kind != Type::Kind::unknown && type.dtype != DType::undefined)) continue;
      if (type.kind != Type::Kind::unknown && (type.kind != hint.type.kind || hint.type.dtype == DType::undefined)) continue;
      type = Type{hint.type.kind, hint.type.dtype, hint.type.key_dtype, std::nullopt, hint.type.element};
      applied = true;
    }
    return applied;
  }

 private:
  struct Hint {
    Graph* graph;
    ValueId value;
    Type type;
  };
  const Expr* expression(int64_t index) const {
    if (index < 0 || static_cast<size_t>(index) >= table_->size()) Reader::fail("an extent is made of unknown ones");
    return &(*table_)[static_cast<size_t>(index)];
  }
  int depth_of(const Expr& expr) const {
    int deepest = 0;
    auto take = [&](const Expr* operand) {
      if (operand) deepest = std::max(deepest, depths_[static_cast<size_t>(operand->index)]);
    };
    take(expr.a.expr()), take(expr.b.expr());
    for (const Expr::Term& term : expr.terms)
      for (const Expr* factor : term.factors) take(factor);
    return deepest + 1;
  }
  Dim dim() {
    const bool symbolic = in_.flag();
    const auto number = in_.get<int64_t>();
    return symbolic ? Dim(expression(number)) : Dim(number);
  }

  Type type(int depth = 0) {
    if (depth > kMaxDepth) Reader::fail("a type is too deep");
    Type made;
    made.kind = in_.pick(Type::Kind::map);
    made.dtype = in_.pick(kLastDType);
    made.key_dtype = in_.pick(kLastDType);
    if (in_.flag()) {
      made.shape.emplace();
      for (size_t i = in_.count(9); i > 0; --i) {
        made.shape->push_back(dim());
        if (made.shape->back().is_const() && made.shape->back().value() < 0) Reader::fail("an extent is negative");
      }
    }
    if (in_.flag()) made.element = std::make_shared<const Type>(type(depth + 1));
    check_parts(made);
    return made;
  }

  // Checks that a type has exactly those parts (shape, element type, key type) that its kind needs.
  static void check_parts(const Type& type) {
    const bool is_tensor = type.kind == Type::Kind::tensor || type.kind == Type::Kind::sparse_tensor, is_map = type.kind == Type::Kind::map;
    const bool is_nested = type.kind == Type::Kind::sequence || type.kind == Type::Kind::optional;
    const bool is_key = type.key_dtype == DType::string || (type.key_dtype != DType::undefined && is_integer(type.key_dtype));
    if ((type.shape && !is_tensor) || (type.element != nullptr) != is_nested || (type.dtype != DType::undefined && !is_tensor && !is_map) ||
        (is_map ? !is_key : type.key_dtype != DType::undefined))
      Reader::fail("a type is of no kind");
    if (type.shape && type.shape->size() > static_cast<size_t>(kMaxRank)) Reader::fail("a type has too many extents");
  }

  // Checks that declared extents are numbers or symbols, but no expressions, because runs take the values of symbols from their inputs.
  static void check_declared(const Type& type) {
    if (type.element) check_declared(*type.element);
    if (!type.shape) return;
    for (const Dim& extent : *type.shape)
      if (!extent.is_const() && (extent.expr()->kind != Expr::Kind::symbol || extent.data_dependent()))
        Reader::fail("an input or an output is declared with an extent that no model can declare");
  }

  Properties pairs() {
    Properties made;
    for (size_t i = in_.count(16); i > 0; --i) {
      std::string key = in_.name();
      made.emplace_back(std::move(key), in_.text());
    }
    return made;
  }

  std::vector<ValueId> values(const Graph& graph) {
    std::vector<ValueId> made;
    for (size_t i = in_.count(4); i > 0; --i) {
      const auto number = in_.get<uint32_t>();
      if (number != kAbsent && number >= graph.num_values()) Reader::fail("a value is named that does not exist");
      made.push_back(number == kAbsent ? kNoValue : ValueId{number});
    }
    return made;
  }

  Tensor tensor() {
    const DType dtype = in_.pick(kLastDType);
    std::vector<int64_t> extents;
    int64_t num_elements = 1;
    bool empty = false;
    for (size_t i = in_.count(8); i > 0; --i) {
      extents.push_back(in_.get<int64_t>());
      if (extents.back() < 0) Reader::fail("an extent is negative");
      empty |= extents.back() == 0;
    }
    if (!empty)
      for (int64_t extent : extents) num_elements = checked_mul(num_elements, extent);
    const Shape shape{std::span<const int64_t>(extents)};
    if (dtype == DType::undefined) Reader::fail("a tensor has no type");
    if (dtype == DType::string) {
      if (!empty && static_cast<uint64_t>(num_elements) > in_.count_left() / 8) Reader::fail("it counts more strings than it holds");
      Tensor made(dtype, shape);
      for (std::string& element : made.span<std::string>()) element = in_.bytes();
      return made;
    }
    const auto block = in_.get<uint64_t>();
    if (block >= blocks_.size()) Reader::fail("a tensor's elements are nowhere");
    const Tensor& memory = blocks_[block];
    if (size_bytes(dtype, empty ? 0 : num_elements) != memory.size_bytes()) Reader::fail("a tensor has another size than its elements");
    return empty ? Tensor(dtype, shape) : with_valid_booleans(Tensor(dtype, shape, memory.storage(), offset_of(memory)));
  }
  static size_t offset_of(const Tensor& memory) { return static_cast<size_t>(memory.raw() - memory.storage()->data()); }

  Datum datum() { return in_.flag() ? Datum(tensor()) : Datum(); }

  // Reads a value. A wrong type would lead to memory of the wrong size. So only constants and inputs of the model, which runs check, take
  // their types from the file; types of other values are only used if type inference does not contradict them.
  ValueId value(Graph& graph, std::vector<ValueId>& let_go, int depth) {
    std::string name = in_.name();
    const auto kind = in_.pick(Value::Kind::constant);
    Type read = type();
    const ValueId id = graph.add_value(name, std::move(read), kind);
    Value& made = graph.value(id);
    if (made.name != name) Reader::fail(fmt::format("two values are called \"{}\"", name));
    if (kind == Value::Kind::computed || (kind == Value::Kind::input && depth > 0))
      hints_.push_back({&graph, id, std::exchange(made.type, {})});
    if (kind != Value::Kind::constant) return id;
    made.constant = datum();
    if (made.constant.defined())
      made.type = Type::of(made.constant);
    else
      let_go.push_back(id);
    return id;
  }

  template <typename T>
  T item() {
    if constexpr (std::is_arithmetic_v<T>) {
      return in_.get<T>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      return in_.bytes();
    } else if constexpr (std::is_same_v<T, Datum>) {
      Datum made = datum();
      if (!made.defined()) Reader::fail("an attribute lacks its tensor");
      return made;
    } else if constexpr (std::is_same_v<T, Type>) {
      return type();
    } else {
      T made;
      for (size_t i = in_.count(); i > 0; --i) made.push_back(item<typename T::value_type>());
      return made;
    }
  }
  template <size_t I = 0>
  Attribute attribute(uint8_t index) {
    if constexpr (I == std::variant_size_v<Attribute>) {
      Reader::fail("an attribute is of no kind");
    } else {
      if (index != I) return attribute<I + 1>(index);
      return item<std::variant_alternative_t<I, Attribute>>();
    }
  }

  // Reads the name and operator of a node, and checks that the operator may occur in compiled models.
  Node named_node() {
    Node made;
    made.name = in_.name();
    made.op_type = in_.name();
    made.domain = in_.name();
    made.overload = in_.name();
    made.version = in_.get<int>();
    made.op = find_op(made.domain, made.op_type);
    if (!made.op) Reader::fail(fmt::format("the operator {}.{} does not exist", made.domain, made.op_type));
    if (is_custom_op(*made.op) || made.op->communicates)
      Reader::fail(fmt::format("the operator {}.{} is in no compiled model", made.domain, made.op_type));
    if (made.version != (made.op->since.empty() ? 1 : made.op->since.back()))
      Reader::fail(fmt::format("the node {} is of an older operator set", made.name));
    return made;
  }

  void node(Graph& graph, std::vector<bool>& available, int depth) {
    Node made = named_node();
    for (size_t i = in_.count(10); i > 0; --i) {
      std::string name = in_.name();
      if (made.attributes.has(name)) Reader::fail(fmt::format("the node {} has an attribute twice", made.name));
      made.attributes.set(name, attribute(in_.get<uint8_t>()));
    }
    for (size_t i = in_.count(8); i > 0; --i) made.sources.push_back(in_.name());
    made.metadata = pairs();
    made.inputs = values(graph);
    for (ValueId input : made.inputs)
      if (input != kNoValue && !available[index_of(input)]) Reader::fail(fmt::format("the node {} reads what nothing has made", made.name));
    made.num_formal_inputs = in_.get<int>();
    if (made.num_formal_inputs < 0 || static_cast<size_t>(made.num_formal_inputs) > made.inputs.size())
      Reader::fail(fmt::format("the node {} has fewer operands than it says", made.name));
    made.outputs = values(graph);
    for (ValueId output : made.outputs) {
      if (output == kNoValue) continue;
      if (graph.value(output).kind != Value::Kind::computed || available[index_of(output)])
        Reader::fail(fmt::format("the node {} makes what is there already", made.name));
      available[index_of(output)] = true;
    }
    const size_t num_formal = static_cast<size_t>(made.num_formal_inputs), num_captured = made.inputs.size() - num_formal;
    if (std::find(made.inputs.begin() + made.num_formal_inputs, made.inputs.end(), kNoValue) != made.inputs.end())
      Reader::fail(fmt::format("a body of the node {} reads an operand that is left out", made.name));
    for (size_t i = in_.count(60); i > 0; --i) {
      Body inside = body(num_captured, depth);
      const std::vector<AttributeDef>& known = made.op->attributes;
      if (made.op->control_flow == ControlFlow::none || made.body(inside.attribute) || made.attributes.has(inside.attribute) ||
          std::none_of(known.begin(), known.end(), [&](const AttributeDef& def) { return def.name == inside.attribute; }))
        Reader::fail(fmt::format("the node {} has a body \"{}\" too many", made.name, inside.attribute));
      made.bodies.push_back(std::move(inside));
    }
    if (num_captured > 0 && made.bodies.empty()) Reader::fail(fmt::format("the node {} has operands for no body", made.name));
    exec::StoredState state = this->state();
    const NodeId id = graph.append(std::move(made));
    if (!state.parts.empty()) loaded_.states.emplace(&graph.node(id), std::move(state));
  }

  // Reads a body (subgraph) of a node. Captures (values that a body reads from the graph around it) must be its last inputs.
  Body body(size_t num_captured, int depth) {
    Body made;
    made.attribute = in_.name();
    made.graph = graph(depth + 1);
    for (size_t i = in_.count(8); i > 0; --i) {
      const auto inside = in_.get<uint32_t>();
      const auto position = in_.get<int>();
      if (inside >= made.graph->num_values() || position < 0 || static_cast<size_t>(position) >= num_captured)
        Reader::fail("a body reads what its node does not have");
      made.captures.emplace_back(ValueId{inside}, position);
    }
    const std::vector<ValueId>& inputs = made.graph->inputs;
    if (made.captures.size() > inputs.size()) Reader::fail("a body has more captures than inputs");
    for (size_t i = 0; i < made.captures.size(); ++i)
      if (inputs[inputs.size() - made.captures.size() + i] != made.captures[i].first) Reader::fail("a capture is no input of its body");
    return made;
  }

  exec::StoredState state() {
    exec::StoredState made;
    const size_t count = in_.count(20);
    if (count == 0) return made;
    made.kernel = in_.name();
    for (size_t i = 0; i < count; ++i) {
      const auto id = in_.get<int32_t>();
      made.parts.push_back({id, tensor()});
    }
    return made;
  }

  // Makes a stand-in for a constant of which all readers have packed copies. Until the graph is compiled, kernels need only its type and
  // shape. If a faulty file makes a node read it nevertheless, the node reads zeros.
  void stand_in(Graph& graph, ValueId id) {
    Value& value = graph.value(id);
    if (value.type.kind != Type::Kind::tensor || !value.type.is_static() || value.type.dtype == DType::undefined ||
        value.type.dtype == DType::string)
      Reader::fail(fmt::format("the constant \"{}\" has no extents", value.name));
    const Shape shape = value.type.static_shape();
    const size_t needed = size_bytes(value.type.dtype, shape.num_elements());
    if (needed == 0) return void(value.constant = Tensor(value.type.dtype, shape));
    loaded_.stand_ins.emplace_back(&graph, id);
    size_t packed_bytes = 0;
    for (const Use& use : value.uses)
      if (auto found = loaded_.states.find(&graph.node(use.node)); found != loaded_.states.end())
        for (const PackedPart& part : found->second.parts) packed_bytes += part.tensor.size_bytes();
    // If the packed copies are much too small, some are missing, because packing makes weights at most kMostPacked times smaller. Several
    // parts may share bytes, so their sum is limited to the size of the file.
    if (!blocks_.empty()) packed_bytes = std::min(packed_bytes, blocks_.front().storage()->size_bytes());
    if (needed / kMostPacked > packed_bytes) Reader::fail(fmt::format("the constant \"{}\" is not there", value.name));
    value.constant = Tensor(value.type.dtype, shape, zero_pages(needed));
  }

  Reader& in_;
  std::span<const Tensor> blocks_;
  LoadedGraph& loaded_;
  std::shared_ptr<SymbolTable> table_;
  std::vector<int> depths_;  // nesting depth of each expression in the table
  std::vector<Hint> hints_;
};

}  // namespace

LoadedGraph read_graph(Reader& in, std::span<const Tensor> blocks) {
  LoadedGraph loaded;
  GraphReader reader(in, blocks, loaded);
  reader.symbols();
  loaded.graph = reader.graph();
  infer(*loaded.graph);
  if (reader.apply_hints()) infer(*loaded.graph);
  return loaded;
}

}  // namespace treadle::compiled
