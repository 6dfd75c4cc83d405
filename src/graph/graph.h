// The graph: nodes and values in index-based pools, in SSA form, nodes linked in a topological order.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/properties.h"
#include "graph/attributes.h"
#include "graph/dim.h"
#include "graph/name_index.h"
#include "graph/type.h"

namespace treadle {

struct OpDef;
class Graph;

/// Index of a value in its graph; `kNoValue` for an optional operand that is absent.
enum class ValueId : uint32_t {};
enum class NodeId : uint32_t {};
inline constexpr ValueId kNoValue{UINT32_MAX};
inline constexpr NodeId kNoNode{UINT32_MAX};
inline constexpr size_t index_of(ValueId id) { return static_cast<size_t>(id); }
inline constexpr size_t index_of(NodeId id) { return static_cast<size_t>(id); }

/// One operand position that reads a value.
struct Use {
  NodeId node;
  int input;
  bool operator==(const Use&) const = default;
};

/// True if the elements stand where C++ may read them: at multiples of their size.
bool is_aligned(const Tensor& tensor);

struct Value {
  enum class Kind : uint8_t { computed, input, constant, parameter };

  std::string name;
  Type type;
  Kind kind = Kind::computed;
  NodeId producer = kNoNode;              // computed
  int output = 0;                         // which of the producer's outputs
  std::vector<Use> uses;                  // by nodes; uses as the graph's outputs are in Graph::outputs
  mutable Datum constant;                 // constant (moved to another address at most); initial value of a parameter
  std::optional<std::vector<Dim>> known;  // elements, row-major, where inference found them (small integer tensors)
  std::string doc;

  bool is_constant() const noexcept { return kind == Kind::constant; }
};

/// A graph-valued attribute: the body of If, Loop or Scan.
struct Body {
  std::string attribute;  // "then_branch", "body" …
  std::unique_ptr<Graph> graph;
  /// Values of the enclosing graph that the body reads: the value inside (an extra input of the body) and the operand of the node it comes
  /// from, counted from Node::num_formal_inputs. They vanish again on export.
  std::vector<std::pair<ValueId, int>> captures;
};

struct Node {
  NodeId id = kNoNode;
  const OpDef* op = nullptr;  // null until the operator is resolved, or if this build lacks it
  std::string name, op_type, domain, overload;
  int version = 0;              // opset of its domain whose meaning the node has
  std::vector<ValueId> inputs;  // formal ones, then captures of the bodies
  std::vector<ValueId> outputs;
  int num_formal_inputs = 0;
  Attributes attributes;
  std::vector<Body> bodies;
  std::vector<std::string> sources;  // names of the nodes of the model as read that this node stands for
  std::string doc;
  Properties metadata;

  bool is(std::string_view type, std::string_view in_domain = "") const { return op_type == type && domain == in_domain; }
  bool has_input(size_t i) const { return i < static_cast<size_t>(num_formal_inputs) && inputs[i] != kNoValue; }
  bool has_output(size_t i) const { return i < outputs.size() && outputs[i] != kNoValue; }
  const Body* body(std::string_view attribute) const;
};

/// The outputs of a graph: any values, in order, one of them more than once if need be. Whether a value is among them is found without a
/// search, also where there are thousands (all values of a model, to look at them).
class OutputList {
 public:
  OutputList() = default;
  OutputList(std::vector<ValueId> ids) : ids_(std::move(ids)) { index(); }
  OutputList(std::initializer_list<ValueId> ids) : ids_(ids) { index(); }
  operator const std::vector<ValueId>&() const { return ids_; }

  size_t size() const { return ids_.size(); }
  bool empty() const { return ids_.empty(); }
  ValueId operator[](size_t i) const { return ids_[i]; }
  ValueId back() const { return ids_.back(); }
  std::vector<ValueId>::const_iterator begin() const { return ids_.begin(); }
  std::vector<ValueId>::const_iterator end() const { return ids_.end(); }
  bool contains(ValueId id) const { return places_.contains(static_cast<uint32_t>(id)); }

  void push_back(ValueId id);
  void set(size_t i, ValueId id);
  void insert(std::vector<ValueId>::const_iterator at, ValueId id);
  void erase(std::vector<ValueId>::const_iterator at);
  void clear();
  /// Returns how many entries it has looked at.
  size_t replace(ValueId old_value, ValueId new_value);

 private:
  struct Places {
    uint32_t count = 0, first = 0;
  };
  void index();

  std::vector<ValueId> ids_;
  std::unordered_map<uint32_t, Places> places_;
};

/// What a new node is made of.
struct NodeSpec {
  std::string op_type;
  std::vector<ValueId> inputs;
  Attributes attributes;
  std::string domain;
  std::string name;  // made unique; from the op_type if empty
  int num_outputs = 1;
  std::vector<std::string> output_names;  // made unique; from the node's name if absent
};

class Graph {
 public:
  explicit Graph(std::shared_ptr<SymbolTable> symbols);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  /// A deep copy (constants are shared); ids stay the same. Symbols stay shared with the original.
  std::unique_ptr<Graph> clone() const;

  std::string name, doc;
  std::map<std::string, int> opsets;  // domain → version that the nodes were written for
  Properties metadata;

  SymbolTable& symbols() const { return *symbols_; }
  const std::shared_ptr<SymbolTable>& symbol_table() const { return symbols_; }

  // Values.
  size_t num_values() const { return values_.size(); }
  Value& value(ValueId id) { return values_[index_of(id)]; }
  const Value& value(ValueId id) const { return values_[index_of(id)]; }
  const Type& type(ValueId id) const { return value(id).type; }
  /// A new value; `name` is made unique.
  ValueId add_value(std::string_view name, Type type = {}, Value::Kind kind = Value::Kind::computed);
  ValueId add_input(std::string_view name, Type type);
  ValueId add_constant(std::string_view name, Datum content);
  ValueId find_value(std::string_view name) const;  // kNoValue if there is none
  void rename_value(ValueId id, std::string_view name);

  std::vector<ValueId> inputs;  // of a body: formal inputs, then captures
  OutputList outputs;
  std::vector<std::string> output_names;          // of a model's graph; an output may be any value, even an input
  std::vector<Type> declared_outputs;             // as the model states them; empty in graphs that were not read
  std::vector<ValueId> overridable_initializers;  // constants that a feed may replace (IR 4 on)
  bool is_output(ValueId id) const { return outputs.contains(id); }

  // Nodes, in topological order.
  size_t num_nodes() const { return num_alive_; }
  size_t node_capacity() const { return nodes_.size(); }
  bool is_alive(NodeId id) const { return nodes_[index_of(id)].node != nullptr; }
  Node& node(NodeId id) { return *nodes_[index_of(id)].node; }
  const Node& node(NodeId id) const { return *nodes_[index_of(id)].node; }
  NodeId first() const { return first_; }
  NodeId next(NodeId id) const { return nodes_[index_of(id)].next; }
  NodeId previous(NodeId id) const { return nodes_[index_of(id)].previous; }
  /// The alive nodes' ids in order, copied: safe while nodes are added and removed.
  std::vector<NodeId> order() const;

  /// Appends, or inserts before `before`. The operator is looked up in the registry.
  NodeId add_node(NodeSpec spec, NodeId before = kNoNode);
  /// For import: takes a node whose outputs are values of this graph already.
  NodeId append(Node node);
  void remove_node(NodeId id);  // its outputs must be unused
  void move_before(NodeId id, NodeId before);
  void set_input(NodeId id, size_t input, ValueId value);
  void add_operand(NodeId id, ValueId value);   // appends a formal input (grows over absent ones); the node must have no bodies
  void resize_inputs(NodeId id, size_t count);  // formal inputs; new ones are absent
  void add_output(NodeId id, size_t output, ValueId value);  // at a place that is absent; `value` is new
  int add_capture(NodeId id, ValueId value);                 // returns its position, counted from num_formal_inputs
  void replace_uses(ValueId old_value, ValueId new_value);   // by nodes and as outputs

  /// Content of a dense constant; null for anything else. A large one at an odd address of its file is copied, once and for good:
  /// whoever needs no elements asks for stored_tensor(). Not to be called once the graph is shared between threads.
  const Tensor* constant_tensor(ValueId id) const;
  /// The same where it lies; its elements may be read bytewise only, unless is_aligned() of them.
  const Tensor* stored_tensor(ValueId id) const;
  /// True for a constant of one element (any rank) equal to `number`.
  bool is_scalar_constant(ValueId id, double number) const;
  bool same_type_and_shape(ValueId a, ValueId b) const;
  std::string unique_name(std::string_view stem);       // neither a value nor a node has it
  std::string unique_node_name(std::string_view stem);  // no node has it; a value may

  /// Entries of lists (uses, outputs) that changes of the graph have looked at since it was made: what edits cost, for tests.
  int64_t num_searched() const { return num_searched_; }

 private:
  struct Slot {
    std::unique_ptr<Node> node;
    NodeId previous = kNoNode, next = kNoNode;
  };
  void link(NodeId id, NodeId before);
  void unlink(NodeId id);
  void add_use(ValueId value, Use use);
  void drop_use(ValueId value, Use use);
  void note_places(ValueId value, size_t first = 0);
  uint32_t find_value_name(size_t hash, std::string_view name) const;
  uint32_t find_node_name(size_t hash, std::string_view name) const;
  bool has_name(std::string_view name) const;

  std::shared_ptr<SymbolTable> symbols_;
  std::vector<Value> values_;
  std::vector<Slot> nodes_;
  NodeId first_ = kNoNode, last_ = kNoNode;
  size_t num_alive_ = 0;
  NameIndex value_names_, node_names_;
  std::unordered_map<size_t, uint64_t>
      name_counters_;                              // by the hash of what was to be made unique; where two are the same, they share numbers
  std::unordered_map<uint64_t, uint32_t> places_;  // of uses in long lists, by node and input; hints, which may be out of date
  int64_t num_searched_ = 0;
};

/// `Conv node "layer1/conv" (ai.onnx, opset 17)`
std::string describe(const Node& node);
/// `X f32[1,32,56,56], W f32[64,64,3,3]; pads=[1,1,1,1]`
std::string describe_operands(const Graph& graph, const Node& node);
/// Readable text of a graph, one node a line.
std::string print(const Graph& graph);
/// Checks the graph's own invariants (uses, order, SSA, names). @throws Error(internal or invalid_model) naming the first breach.
void verify(const Graph& graph);

}  // namespace treadle
