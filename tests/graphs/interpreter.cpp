#include "tests/graphs/interpreter.h"

#include <algorithm>
#include <set>

#include "tests/graphs/case.h"

namespace treadle::graphs {

const Value& Scope::get(const std::string& name, bool second) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_)
    if (auto found = scope->values_.find(name); found != scope->values_.end())
      return second && found->second.second ? *found->second.second : *found->second.first;
  throw Invalid("no value " + name);
}

Call::Call(const onnx::NodeDef& node, const Scope& scope, Noise& noise) : node_(node), scope_(scope), noise_(noise) {
  for (const std::string& input : node.inputs) {
    const bool second = noise.recomputes() && noise.takes_second();
    inputs_.push_back(input.empty() ? nullptr : second ? &scope.get_second(input) : &scope.get(input));
    if (inputs_.back() == nullptr || inputs_.back()->array.unrounded.empty() || !noise.keeps_precision()) continue;
    unrounded_.push_back(std::make_unique<const Value>(inputs_.back()->array.as_computed()));
    inputs_.back() = unrounded_.back().get();
  }
}

const Value& Call::value(size_t i) const {
  require(has(i), "an input is missing");
  return *inputs_[i];
}

const Array& Call::in(size_t i) const {
  require(value(i).is_tensor(), "a tensor was expected");
  return value(i).array;
}

const std::vector<int64_t>& Call::ints_in(size_t i) const {
  require(in(i).dtype == DType::int64 && in(i).rank() <= 1, "an int64 vector was expected");
  return in(i).i;
}

const onnx::AttributeDef* Call::attribute(std::string_view name) const {
  for (const onnx::AttributeDef& attribute : node_.attributes)
    if (attribute.name == name) return &attribute;
  return nullptr;
}

int64_t Call::integer(std::string_view name, int64_t otherwise) const {
  const auto* found = attribute(name);
  return found != nullptr ? found->i : otherwise;
}

double Call::real(std::string_view name, double otherwise) const {
  const auto* found = attribute(name);
  return found != nullptr ? found->f : static_cast<float>(otherwise);
}

std::string Call::text(std::string_view name, const char* otherwise) const {
  const auto* found = attribute(name);
  return found != nullptr ? found->s : otherwise;
}

std::vector<int64_t> Call::integers(std::string_view name, std::vector<int64_t> otherwise) const {
  const auto* found = attribute(name);
  return found != nullptr ? found->ints : otherwise;
}

const onnx::GraphDef& Call::body(std::string_view name) const {
  const auto* found = attribute(name);
  require(found != nullptr && found->g != nullptr, "a body is missing");
  return *found->g;
}

std::vector<Value> Call::run_body(const onnx::GraphDef& body, std::vector<Value> inputs) {
  Scope inner(&scope_);
  require(inputs.size() == body.inputs.size(), "the body has another number of inputs");
  for (size_t i = 0; i < inputs.size(); ++i) inner.set(body.inputs[i].name, std::move(inputs[i]));
  return interpret(body, inner, noise_);
}

namespace {

// Returns true for operators that move elements of any type, including strings.
bool takes_texts(const std::string& op) {
  static const std::set<std::string, std::less<>> ops{
      "Identity",
      "Concat",
      "Gather",
      "GatherElements",
      "Reshape",
      "Flatten",
      "Squeeze",
      "Unsqueeze",
      "Transpose",
      "Slice",
      "Split",
      "Expand",
      "Tile",
      "DepthToSpace",
      "SpaceToDepth",
      "Where",
      "Shape",
      "Size",
      "Equal",
      "StringConcat",
      "If",
      "Loop",
      "Scan",
      "Optional",
      "SplitToSequence",
      "SequenceInsert",
      "ConcatFromSequence",
      "SequenceConstruct",
      "SequenceMap",
      "GatherND",
      "ScatterND",
      "Compress",
      "ReverseSequence",
  };
  return ops.contains(op);
}

std::vector<Value> run(const onnx::NodeDef& node, const Scope& scope, Noise& noise) {
  for (const OperatorTable* table :
       {&elementwise_operators(), &movement_operators(), &reduction_operators(), &neural_operators(), &quantized_operators(),
        &control_operators(), &recurrent_operators(), &image_operators(), &indexed_operators()}) {
    auto found = table->find(node.op_type);
    if (found == table->end()) continue;
    Call call(node, scope, noise);
    for (size_t i = 0; i < call.num_inputs(); ++i)
      require(!call.has(i) || !call.value(i).array.texts() || takes_texts(node.op_type) || !call.value(i).is_tensor(), "no strings");
    std::vector<Value> outputs = found->second(call);
    require(outputs.size() >= node.outputs.size(), "more outputs are wanted than there are");
    return outputs;
  }
  throw Invalid("the interpreter has no operator " + node.op_type);
}

bool has_body(const onnx::NodeDef& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) { return attribute.g != nullptr; });
}

}  // namespace

void interpret(const onnx::NodeDef& node, Scope& scope, Noise& noise) {
  std::vector<Value> outputs = run(node, scope, noise), second;
  if (noise.recomputes() && !has_body(node)) second = run(node, scope, noise);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    scope.set(node.outputs[i], std::move(outputs[i]));
    if (!second.empty()) scope.set_second(node.outputs[i], std::move(second[i]));
  }
}

std::vector<Value> interpret(const onnx::GraphDef& graph, Scope& scope, Noise& noise) {
  for (const onnx::TensorDef& initializer : graph.initializers) {
    Value value = from_tensor(initializer.value);
    value.is_stored = true;
    scope.set(initializer.name, std::move(value));
  }
  std::map<std::string, const onnx::NodeDef*> first;  // maps the text of a node to the first node of its group of equal nodes
  for (const onnx::NodeDef& node : graph.nodes) {
    const bool merges = noise.merges() && !has_body(node);
    const onnx::NodeDef& same = merges ? *first.emplace(print_call(node), &node).first->second : node;
    if (&same == &node || !std::equal(same.outputs.begin(), same.outputs.end(), node.outputs.begin(), node.outputs.end(),
                                      [](const auto& a, const auto& b) { return a.empty() == b.empty(); })) {
      interpret(node, scope, noise);
      continue;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i)
      if (!node.outputs[i].empty()) scope.copy(node.outputs[i], same.outputs[i]);
  }
  std::vector<Value> outputs;
  for (const onnx::ValueInfoDef& output : graph.outputs) outputs.push_back(scope.get(output.name));
  return outputs;
}

}  // namespace treadle::graphs
