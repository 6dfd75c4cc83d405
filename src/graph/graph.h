// The graph: values and nodes in pools, referred to by index, in SSA form. Nodes are linked in topological order.
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

#include "core/base/properties.h"
#include "graph/attributes.h"
#include "graph/dim.h"
#include "graph/name_index.h"
#include "graph/type.h"

namespace treadle {

struct OpDef;
class Graph;

/// Index of a value in its graph; `kNoValue` for an absent optional operand.
enum class ValueId : uint32_t {};
enum class NodeId : uint32_t {};
inline constexpr ValueId kNoValue{UINT32_MAX};
inline constexpr NodeId kNoNode{UINT32_MAX};
inline constexpr size_t index_of(ValueId id) { return static_cast<size_t>(id); }
inline constexpr size_t index_of(NodeId id) { return static_cast<size_t>(id); }

/// A place where a value is read: a node and the index of its operand.
struct Use {
  NodeId node;
  int input;
  bool operator==(const Use&) const = default;
};

/// Returns true if the data is aligned to the element size, as C++ requires.
bool is_aligned(const Tensor& tensor);

struct Value {
  enum class Kind : uint8_t { computed, input, constant, parameter };

  std::string name;
  Type type;
  Kind kind = Kind::computed;
  NodeId producer = kNoNode;              // node that computes the value; kNoNode if there is none
  int output = 0;                         // index among the producer's outputs
  std::vector<Use> uses;                  // uses by nodes; Graph::outputs lists the uses as outputs
  mutable Datum constant;                 // contents of a constant (the address may change once), or initial value of a parameter
  std::optional<std::vector<Dim>> known;  // elements, row-major, if inference knows them (small integer tensors)
  std::string doc;

  bool is_constant() const noexcept { return kind == Kind::constant; }
};

/// A graph-valued attribute: a body of If, Loop or Scan.
struct Body {
  std::string attribute;  // name of the attribute: "then_branch", "body" etc.
  std::unique_ptr<Graph> graph;
  /// Values of the enclosing graph that the body reads. Each pair is the value in the body (an additional input) and the index of the
  /// node's operand, counted from Node::num_formal_inputs. Exported files do not have these inputs.
  std::vector<std::pair<ValueId, int>> captures;
};

struct Node {
  NodeId id = kNoNode;
  const OpDef* op = nullptr;  // null until the operator is resolved, or if this build does not have it
  std::string name, op_type, domain, overload;
  int version = 0;              // opset version of the node's domain, which defines what the node means
  std::vector<ValueId> inputs;  // formal inputs, then captures of the bodies
  std::vector<ValueId> outputs;
  int num_formal_inputs = 0;
  Attributes attributes;
  std::vector<Body> bodies;
  std::vector<std::string> sources;  // names of the nodes of the original model for which this node stands
  std::string doc;
  Properties metadata;

  bool is(std::string_view type, std::string_view in_domain = "") const { return op_type == type && domain == in_domain; }
  bool has_input(size_t i) const { return i < static_cast<size_t>(num_formal_inputs) && inputs[i] != kNoValue; }
  bool has_output(size_t i) const { return i < outputs.size() && outputs[i] != kNoValue; }
  const Body* body(std::string_view attribute) const;
};

/// The ordered outputs of a graph. A value may occur more than once. Membership is tested by a hash lookup, because there may be thousands
/// of outputs (when all values of a model are inspected).
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
  /// Replaces a value in the list. Returns the number of entries that were searched.
  size_t replace(ValueId old_value, ValueId new_value);

 private:
  struct Places {
    uint32_t count = 0, first = 0;
  };
  void index();

  std::vector<ValueId> ids_;
  std::unordered_map<uint32_t, Places> places_;
};

/// Description of a node to add.
struct NodeSpec {
  std::string op_type;
  std::vector<ValueId> inputs;
  Attributes attributes;
  std::string domain;
  std::string name;  // made unique; derived from op_type if empty
  int num_outputs = 1;
  std::vector<std::string> output_names;  // made unique; derived from the node's name if empty
};

class Graph {
 public:
  explicit Graph(std::shared_ptr<SymbolTable> symbols);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  /// Returns a deep copy with the same ids of nodes and values. Constants and symbols are shared with the original.
  std::unique_ptr<Graph> clone() const;

  std::string name, doc;
  std::map<std::string, int> opsets;  // domain -> opset version of the nodes
  Properties metadata;

  SymbolTable& symbols() const { return *symbols_; }
  const std::shared_ptr<SymbolTable>& symbol_table() const { return symbols_; }

  // Access to values.
  size_t num_values() const { return values_.size(); }
  Value& value(ValueId id) { return values_[index_of(id)]; }
  const Value& value(ValueId id) const { return values_[index_of(id)]; }
  const Type& type(ValueId id) const { return value(id).type; }
  /// Adds a value. If `name` is taken, its name is made unique.
  ValueId add_value(std::string_view name, Type type = {}, Value::Kind kind = Value::Kind::computed);
  ValueId add_input(std::string_view name, Type type);
  ValueId add_constant(std::string_view name, Datum content);
  ValueId find_value(std::string_view name) const;  // returns kNoValue if there is none
  void rename_value(ValueId id, std::string_view name);

  std::vector<ValueId> inputs;  // inputs of a body: formal inputs, then captured values
  OutputList outputs;
  std::vector<std::string> output_names;          // for a model's graph; any value may be an output, even an input
  std::vector<Type> declared_outputs;             // types declared by the model; empty if the graph was not read from a file
  std::vector<ValueId> overridable_initializers;  // constants that a feed may replace (since IR version 4)
  bool is_output(ValueId id) const { return outputs.contains(id); }

  // Access to nodes, in topological order.
  size_t num_nodes() const { return num_alive_; }
  size_t node_capacity() const { return nodes_.size(); }
  bool is_alive(NodeId id) const { return nodes_[index_of(id)].node != nullptr; }
  Node& node(NodeId id) { return *nodes_[index_of(id)].node; }
  const Node& node(NodeId id) const { return *nodes_[index_of(id)].node; }
  NodeId first() const { return first_; }
  NodeId next(NodeId id) const { return nodes_[index_of(id)].next; }
  NodeId previous(NodeId id) const { return nodes_[index_of(id)].previous; }
  /// Returns the ids of all nodes in topological order, as a copy, so that nodes may be added and removed while it is used.
  std::vector<NodeId> order() const;

  /// Looks up the operator in the registry, and inserts a node before `before`, or at the end.
  NodeId add_node(NodeSpec spec, NodeId before = kNoNode);
  /// For import: appends a node whose outputs are already values of this graph.
  NodeId append(Node node);
  void remove_node(NodeId id);  // @pre its outputs are unused
  void move_before(NodeId id, NodeId before);
  void set_input(NodeId id, size_t input, ValueId value);
  void add_operand(NodeId id, ValueId value);                // appends a formal input after any absent ones; @pre the node has no bodies
  void resize_inputs(NodeId id, size_t count);               // sets the number of formal inputs; new ones are absent
  void add_output(NodeId id, size_t output, ValueId value);  // sets an absent output; @pre `value` is new
  int add_capture(NodeId id, ValueId value);                 // returns the capture's index, counted from num_formal_inputs
  void replace_uses(ValueId old_value, ValueId new_value);   // replaces the value in the inputs of nodes and in the graph's outputs

  /// Returns the elements of a dense constant; null for other values. A large unaligned tensor from a file is copied and the copy is kept,
  /// so use stored_tensor() if the elements are not needed. Must not be called once several threads use the graph.
  const Tensor* constant_tensor(ValueId id) const;
  /// Like constant_tensor(), but without a copy. Elements may be unaligned: unless is_aligned(), they must be read byte by byte.
  const Tensor* stored_tensor(ValueId id) const;
  /// Returns true for a constant of one element (of any rank) that equals `number`.
  bool is_scalar_constant(ValueId id, double number) const;
  bool same_type_and_shape(ValueId a, ValueId b) const;
  std::string unique_name(std::string_view stem);       // a name that no value or node has
  std::string unique_node_name(std::string_view stem);  // a name that no node has; a value may have it

  /// Number of list entries (uses, outputs) that all changes of the graph have searched. Tests use it to measure the cost of changes.
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
  std::unordered_map<size_t, uint64_t> name_counters_;  // by hash of the name to make unique; names with equal hashes share a counter
  std::unordered_map<uint64_t, uint32_t> places_;  // positions of uses in long lists, by node and input; hints only, which may be outdated
  int64_t num_searched_ = 0;
};

/// Returns `Conv node "layer1/conv" (ai.onnx, opset 17)`.
std::string describe(const Node& node);
/// Returns `X f32[1,32,56,56], W f32[64,64,3,3]; pads=[1,1,1,1]`.
std::string describe_operands(const Graph& graph, const Node& node);
/// Prints a graph as readable text, one node per line.
std::string print(const Graph& graph);
/// Checks the graph's invariants (uses, order, SSA, names). @throws Error(internal or invalid_model) naming the first violation
void verify(const Graph& graph);

}  // namespace treadle
