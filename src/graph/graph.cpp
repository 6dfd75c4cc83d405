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

void OutputList::index() {
  places_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) {
    Places& places = places_[static_cast<uint32_t>(ids_[i])];
    if (places.count++ == 0) places.first = static_cast<uint32_t>(i);
  }
}

void OutputList::push_back(ValueId id) {
  Places& places = places_[static_cast<uint32_t>(id)];
  if (places.count++ == 0) places.first = static_cast<uint32_t>(ids_.size());
  ids_.push_back(id);
}

void OutputList::set(size_t i, ValueId id) {
  ids_[i] = id;
  index();
}

void OutputList::insert(std::vector<ValueId>::const_iterator at, ValueId id) {
  ids_.insert(at, id);
  index();
}

void OutputList::erase(std::vector<ValueId>::const_iterator at) {
  ids_.erase(at);
  index();
}

void OutputList::clear() {
  ids_.clear();
  places_.clear();
}

size_t OutputList::replace(ValueId old_value, ValueId new_value) {
  auto found = places_.find(static_cast<uint32_t>(old_value));
  if (found == places_.end() || old_value == new_value) return 0;
  const Places old = found->second;
  places_.erase(found);
  Places& places = places_[static_cast<uint32_t>(new_value)];
  places.first = places.count == 0 ? old.first : std::min(places.first, old.first);
  places.count += old.count;
  size_t looked_at = 0;
  for (uint32_t i = old.first, left = old.count; left > 0; ++i, ++looked_at) {
    if (ids_[i] != old_value) continue;
    ids_[i] = new_value;
    --left;
  }
  return looked_at;
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
  copy->value_names_ = value_names_;
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

uint32_t Graph::find_value_name(size_t hash, std::string_view value_name) const {
  return value_names_.find(hash, value_name, [&](uint32_t i) -> std::string_view { return values_[i].name; });
}

uint32_t Graph::find_node_name(size_t hash, std::string_view node_name) const {
  return node_names_.find(hash, node_name, [&](uint32_t i) -> std::string_view { return nodes_[i].node->name; });
}

bool Graph::has_name(std::string_view wanted) const {
  const size_t hash = NameIndex::hash(wanted);
  return find_value_name(hash, wanted) != NameIndex::kNone || find_node_name(hash, wanted) != NameIndex::kNone;
}

std::string Graph::unique_name(std::string_view stem) {
  std::string candidate(stem.empty() ? std::string_view("value") : stem);
  if (!has_name(candidate)) return candidate;
  uint64_t& counter = name_counters_[NameIndex::hash(candidate)];
  candidate += '_';
  const size_t length = candidate.size();
  do {
    candidate.resize(length);
    candidate += std::to_string(++counter);
  } while (has_name(candidate));
  return candidate;
}

std::string Graph::unique_node_name(std::string_view stem) {
  std::string base(stem.empty() ? std::string_view("node") : stem);
  return find_node_name(NameIndex::hash(base), base) == NameIndex::kNone ? base : unique_name(base);
}

ValueId Graph::add_value(std::string_view value_name, Type type, Value::Kind kind) {
  ValueId id{static_cast<uint32_t>(values_.size())};
  // Computed before the pool of values grows, because value_name may refer to the name of a value in the pool.
  size_t hash = NameIndex::hash(value_name);
  std::string own_name;
  if (value_name.empty() || find_value_name(hash, value_name) != NameIndex::kNone) {
    own_name = unique_name(value_name);
    hash = NameIndex::hash(own_name);
  } else {
    own_name = value_name;
  }
  Value& value = values_.emplace_back();
  value.name = std::move(own_name);
  value.type = std::move(type);
  value.kind = kind;
  value_names_.insert(hash, static_cast<uint32_t>(id));
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

ValueId Graph::find_value(std::string_view value_name) const { return ValueId{find_value_name(NameIndex::hash(value_name), value_name)}; }

void Graph::rename_value(ValueId id, std::string_view value_name) {
  Value& renamed = value(id);
  if (renamed.name == value_name) return;
  value_names_.erase(NameIndex::hash(renamed.name), static_cast<uint32_t>(id));
  const size_t hash = NameIndex::hash(value_name);
  renamed.name = find_value_name(hash, value_name) == NameIndex::kNone ? std::string(value_name) : unique_name(value_name);
  value_names_.insert(renamed.name == value_name ? hash : NameIndex::hash(renamed.name), static_cast<uint32_t>(id));
}

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
  const size_t name_hash = NameIndex::hash(node.name);
  if (!node.name.empty() && find_node_name(name_hash, node.name) == NameIndex::kNone)
    node_names_.insert(name_hash, static_cast<uint32_t>(id));
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i] != kNoValue) add_use(node.inputs[i], {id, static_cast<int>(i)});
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

namespace {

// Lists of uses up to this length are searched linearly.
constexpr size_t kLongList = 32;

uint64_t key_of(const Use& use) { return uint64_t{index_of(use.node)} << 32U | static_cast<uint32_t>(use.input); }

}  // namespace

void Graph::note_places(ValueId id, size_t first) {
  const std::vector<Use>& uses = value(id).uses;
  if (uses.size() <= kLongList) return;
  for (size_t i = first; i < uses.size(); ++i) places_[key_of(uses[i])] = static_cast<uint32_t>(i);
}

void Graph::add_use(ValueId id, Use use) {
  value(id).uses.push_back(use);
  note_places(id, value(id).uses.size() - 1);
}

void Graph::drop_use(ValueId id, Use use) {
  // A constant may have thousands of uses. The search begins at both ends, because nodes are usually removed in order or in reverse order.
  auto& uses = value(id).uses;
  auto take_out = [&](size_t place) {
    uses[place] = uses.back();
    uses.pop_back();
    if (uses.size() > kLongList && place < uses.size()) places_[key_of(uses[place])] = static_cast<uint32_t>(place);
  };
  const bool is_long = uses.size() > kLongList;
  for (size_t low = 0, high = uses.size(); low < high && (!is_long || low < 2); ++low) {
    --high;
    num_searched_ += 2;
    if (uses[low] == use || uses[high] == use) return take_out(uses[low] == use ? low : high);
  }
  if (!is_long) return;
  for (bool noted : {true, false}) {
    auto found = places_.find(key_of(use));
    if (found != places_.end() && found->second < uses.size() && uses[found->second] == use) {
      const size_t place = found->second;
      places_.erase(found);
      return take_out(place);
    }
    if (!noted) return;
    num_searched_ += static_cast<int64_t>(uses.size());
    note_places(id);
  }
}

void Graph::remove_node(NodeId id) {
  Node& removed = node(id);
  for (size_t i = 0; i < removed.inputs.size(); ++i)
    if (removed.inputs[i] != kNoValue) drop_use(removed.inputs[i], {id, static_cast<int>(i)});
  for (ValueId output : removed.outputs)
    if (output != kNoValue) value(output).producer = kNoNode;
  const size_t name_hash = NameIndex::hash(removed.name);
  if (const uint32_t named = find_node_name(name_hash, removed.name); named != NameIndex::kNone) node_names_.erase(name_hash, named);
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
  if (new_value != kNoValue) add_use(new_value, {id, static_cast<int>(input)});
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

void Graph::add_output(NodeId id, size_t output, ValueId made) {
  std::vector<ValueId>& outputs = node(id).outputs;
  if (output >= outputs.size()) outputs.resize(output + 1, kNoValue);
  outputs[output] = made;
  value(made).producer = id;
  value(made).output = static_cast<int>(output);
}

int Graph::add_capture(NodeId id, ValueId captured) {
  Node& capturing = node(id);
  int formal = capturing.num_formal_inputs;
  for (size_t i = static_cast<size_t>(formal); i < capturing.inputs.size(); ++i)
    if (capturing.inputs[i] == captured) return static_cast<int>(i) - formal;
  capturing.inputs.push_back(captured);
  add_use(captured, {id, static_cast<int>(capturing.inputs.size()) - 1});
  return static_cast<int>(capturing.inputs.size()) - 1 - formal;
}

void Graph::replace_uses(ValueId old_value, ValueId new_value) {
  if (old_value == new_value) return;
  std::vector<Use> uses = std::move(value(old_value).uses);
  value(old_value).uses.clear();
  for (const Use& use : uses) node(use.node).inputs[static_cast<size_t>(use.input)] = new_value;
  auto& moved_to = value(new_value).uses;
  const size_t first = moved_to.size();
  moved_to.insert(moved_to.end(), uses.begin(), uses.end());
  note_places(new_value, first);
  num_searched_ += static_cast<int64_t>(uses.size() + outputs.replace(old_value, new_value));
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
