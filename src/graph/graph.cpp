#include "graph/graph.h"

#include <algorithm>

#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle {

const Body* Node::body(std::string_view attribute) const {
  for (const Body& candidate : bodies)
    if (candidate.attribute == attribute) return &candidate;
  return nullptr;
}

Graph::Graph(std::shared_ptr<SymbolTable> symbols) : symbols_(std::move(symbols)) {}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>(symbols_);
  copy->name = name;
  copy->doc = doc;
  copy->opsets = opsets;
  copy->metadata = metadata;
  copy->inputs = inputs;
  copy->outputs = outputs;
  copy->output_names = output_names;
  copy->declared_outputs = declared_outputs;
  copy->overridable_initializers = overridable_initializers;
  copy->values_ = values_;
  copy->first_ = first_;
  copy->last_ = last_;
  copy->num_alive_ = num_alive_;
  copy->by_name_ = by_name_;
  copy->node_names_ = node_names_;
  copy->name_counters_ = name_counters_;
  for (const Slot& slot : nodes_) {
    Slot& made = copy->nodes_.emplace_back();
    made.previous = slot.previous;
    made.next = slot.next;
    if (!slot.node) continue;
    const Node& from = *slot.node;
    made.node = std::make_unique<Node>();
    Node& to = *made.node;
    to.id = from.id;
    to.op = from.op;
    to.name = from.name, to.op_type = from.op_type, to.domain = from.domain, to.overload = from.overload;
    to.version = from.version;
    to.inputs = from.inputs, to.outputs = from.outputs;
    to.num_formal_inputs = from.num_formal_inputs;
    to.attributes = from.attributes;
    to.sources = from.sources;
    to.doc = from.doc;
    to.metadata = from.metadata;
    for (const Body& body : from.bodies) to.bodies.push_back({body.attribute, body.graph->clone(), body.captures});
  }
  return copy;
}

std::string Graph::unique_name(std::string_view stem) {
  std::string base(stem.empty() ? std::string_view("value") : stem);
  if (!by_name_.contains(base) && !node_names_.contains(base)) return base;
  uint64_t& counter = name_counters_[base];
  while (true) {
    std::string candidate = base + "_" + std::to_string(++counter);
    if (!by_name_.contains(candidate) && !node_names_.contains(candidate)) return candidate;
  }
}

std::string Graph::unique_node_name(std::string_view stem) {
  std::string base(stem.empty() ? std::string_view("node") : stem);
  return node_names_.contains(base) ? unique_name(base) : base;
}

ValueId Graph::add_value(std::string_view value_name, Type type, Value::Kind kind) {
  ValueId id{static_cast<uint32_t>(values_.size())};
  // Before the pool grows: the name asked for may be another value's.
  std::string own_name = by_name_.contains(value_name) || value_name.empty() ? unique_name(value_name) : std::string(value_name);
  Value& value = values_.emplace_back();
  value.name = std::move(own_name);
  value.type = std::move(type);
  value.kind = kind;
  by_name_.emplace(value.name, id);
  return id;
}

ValueId Graph::add_input(std::string_view value_name, Type type) {
  ValueId id = add_value(value_name, std::move(type), Value::Kind::input);
  inputs.push_back(id);
  return id;
}

ValueId Graph::add_constant(std::string_view value_name, Datum content) {
  ValueId id = add_value(value_name, Type::of(content), Value::Kind::constant);
  value(id).constant = std::move(content);
  return id;
}

ValueId Graph::find_value(std::string_view value_name) const {
  auto found = by_name_.find(value_name);
  return found == by_name_.end() ? kNoValue : found->second;
}

void Graph::rename_value(ValueId id, std::string_view value_name) {
  Value& renamed = value(id);
  if (renamed.name == value_name) return;
  by_name_.erase(renamed.name);
  renamed.name = by_name_.contains(value_name) ? unique_name(value_name) : std::string(value_name);
  by_name_.emplace(renamed.name, id);
}

bool Graph::is_output(ValueId id) const { return std::find(outputs.begin(), outputs.end(), id) != outputs.end(); }

std::vector<NodeId> Graph::order() const {
  std::vector<NodeId> ids;
  ids.reserve(num_alive_);
  for (NodeId id = first_; id != kNoNode; id = next(id)) ids.push_back(id);
  return ids;
}

void Graph::link(NodeId id, NodeId before) {
  Slot& slot = nodes_[index_of(id)];
  slot.next = before;
  slot.previous = before == kNoNode ? last_ : nodes_[index_of(before)].previous;
  (slot.previous == kNoNode ? first_ : nodes_[index_of(slot.previous)].next) = id;
  (before == kNoNode ? last_ : nodes_[index_of(before)].previous) = id;
}

void Graph::unlink(NodeId id) {
  Slot& slot = nodes_[index_of(id)];
  (slot.previous == kNoNode ? first_ : nodes_[index_of(slot.previous)].next) = slot.next;
  (slot.next == kNoNode ? last_ : nodes_[index_of(slot.next)].previous) = slot.previous;
}

NodeId Graph::append(Node node) {
  NodeId id{static_cast<uint32_t>(nodes_.size())};
  node.id = id;
  if (!node.name.empty()) node_names_.insert(node.name);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i] != kNoValue) value(node.inputs[i]).uses.push_back({id, static_cast<int>(i)});
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNoValue) continue;
    value(node.outputs[i]).producer = id;
    value(node.outputs[i]).output = static_cast<int>(i);
  }
  nodes_.push_back({std::make_unique<Node>(std::move(node)), kNoNode, kNoNode});
  link(id, kNoNode);
  ++num_alive_;
  return id;
}

NodeId Graph::add_node(NodeSpec spec, NodeId before) {
  Node node;
  node.op_type = std::move(spec.op_type);
  node.domain = std::move(spec.domain);
  node.op = find_op(node.domain, node.op_type);
  if (!node.op) throw Error(ErrorCode::internal, "a pass made a node of the unknown operator " + node.domain + "." + node.op_type);
  node.version = node.op->since.empty() ? 1 : node.op->since.back();
  node.name = unique_name(spec.name.empty() ? node.op_type : spec.name);
  node.inputs = std::move(spec.inputs);
  node.num_formal_inputs = static_cast<int>(node.inputs.size());
  node.attributes = std::move(spec.attributes);
  for (int i = 0; i < spec.num_outputs; ++i) {
    auto k = static_cast<size_t>(i);
    std::string output = k < spec.output_names.size() ? spec.output_names[k] : node.name + (i ? "_out" + std::to_string(i) : "_out");
    node.outputs.push_back(add_value(output));
  }
  NodeId id = append(std::move(node));
  if (before != kNoNode) move_before(id, before);
  return id;
}

void Graph::drop_use(ValueId id, Use use) {
  // From both ends: nodes mostly go in the order in which they came, or in reverse, and a constant may have thousands of readers.
  auto& uses = value(id).uses;
  for (size_t low = 0, high = uses.size(); low < high; ++low) {
    --high;
    if (uses[low] != use && uses[high] != use) continue;
    uses[uses[low] == use ? low : high] = uses.back();
    uses.pop_back();
    return;
  }
}

void Graph::remove_node(NodeId id) {
  Node& removed = node(id);
  for (size_t i = 0; i < removed.inputs.size(); ++i)
    if (removed.inputs[i] != kNoValue) drop_use(removed.inputs[i], {id, static_cast<int>(i)});
  for (ValueId output : removed.outputs)
    if (output != kNoValue) value(output).producer = kNoNode;
  node_names_.erase(removed.name);
  unlink(id);
  nodes_[index_of(id)].node.reset();
  --num_alive_;
}

void Graph::move_before(NodeId id, NodeId before) {
  unlink(id);
  link(id, before);
}

void Graph::set_input(NodeId id, size_t input, ValueId new_value) {
  ValueId& slot = node(id).inputs[input];
  if (slot == new_value) return;
  if (slot != kNoValue) drop_use(slot, {id, static_cast<int>(input)});
  slot = new_value;
  if (new_value != kNoValue) value(new_value).uses.push_back({id, static_cast<int>(input)});
}

void Graph::resize_inputs(NodeId id, size_t count) {
  Node& resized = node(id);
  if (!resized.bodies.empty()) throw Error(ErrorCode::internal, "operands of a node with bodies cannot be resized");
  for (size_t i = count; i < resized.inputs.size(); ++i) set_input(id, i, kNoValue);
  resized.inputs.resize(count, kNoValue);
  resized.num_formal_inputs = static_cast<int>(count);
}

void Graph::add_operand(NodeId id, ValueId operand) {
  size_t position = node(id).inputs.size();
  resize_inputs(id, position + 1);
  set_input(id, position, operand);
}

int Graph::add_capture(NodeId id, ValueId captured) {
  Node& capturing = node(id);
  int formal = capturing.num_formal_inputs;
  for (size_t i = static_cast<size_t>(formal); i < capturing.inputs.size(); ++i)
    if (capturing.inputs[i] == captured) return static_cast<int>(i) - formal;
  capturing.inputs.push_back(captured);
  value(captured).uses.push_back({id, static_cast<int>(capturing.inputs.size()) - 1});
  return static_cast<int>(capturing.inputs.size()) - 1 - formal;
}

void Graph::replace_uses(ValueId old_value, ValueId new_value) {
  if (old_value == new_value) return;
  std::vector<Use> uses = std::move(value(old_value).uses);
  value(old_value).uses.clear();
  for (const Use& use : uses) node(use.node).inputs[static_cast<size_t>(use.input)] = new_value;
  auto& moved_to = value(new_value).uses;
  moved_to.insert(moved_to.end(), uses.begin(), uses.end());
  std::replace(outputs.begin(), outputs.end(), old_value, new_value);
}

bool is_aligned(const Tensor& tensor) {
  size_t bytes = static_cast<size_t>(bits_of(tensor.dtype())) / 8;
  if (tensor.dtype() == DType::complex64 || tensor.dtype() == DType::complex128) bytes /= 2;
  return bytes < 2 || reinterpret_cast<uintptr_t>(tensor.raw()) % bytes == 0;
}

const Tensor* Graph::stored_tensor(ValueId id) const {
  if (id == kNoValue) return nullptr;
  const Value& candidate = value(id);
  return candidate.is_constant() && candidate.constant.is_tensor() ? &candidate.constant.tensor() : nullptr;
}

const Tensor* Graph::constant_tensor(ValueId id) const {
  const Tensor* tensor = stored_tensor(id);
  if (!tensor || is_aligned(*tensor)) return tensor;
  value(id).constant = tensor->clone();
  return stored_tensor(id);
}

bool Graph::is_scalar_constant(ValueId id, double number) const {
  const Tensor* tensor = stored_tensor(id);
  if (!tensor || tensor->num_elements() != 1 || !is_aligned(*tensor)) return false;
  switch (tensor->dtype()) {
    case DType::float32: return static_cast<double>(*tensor->data<float>()) == number;
    case DType::float64: return *tensor->data<double>() == number;
    case DType::int32: return static_cast<double>(*tensor->data<int32_t>()) == number;
    case DType::int64: return static_cast<double>(*tensor->data<int64_t>()) == number;
    default: return false;
  }
}

bool Graph::same_type_and_shape(ValueId a, ValueId b) const {
  const Type &x = type(a), &y = type(b);
  return x.is_tensor() && x.has_rank() && x == y;
}

}  // namespace treadle
