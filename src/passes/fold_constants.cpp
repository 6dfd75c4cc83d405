// Constant folding: computes nodes whose inputs are all constants.
#include <algorithm>
#include <span>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "core/files/file.h"
#include "core/values/content_bytes.h"
#include "graph/evaluate.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/whole_graph.h"
#include "treadle/error.h"

namespace treadle::passes {
namespace {

size_t longest(std::span<const std::string> texts) {
  size_t most = 0;
  for (const std::string& text : texts) most = std::max(most, text.size());
  return most;
}
size_t longest_text(const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  return longest({dense.data<std::string>(), static_cast<size_t>(dense.num_elements())});
}

// Returns how many steps a loop over the extents takes. Even without elements, as in the shape [1000000, 0], a kernel may loop over rows.
double steps_over(const Shape& shape) {
  double steps = 1;
  for (int64_t extent : shape) steps *= static_cast<double>(std::max<int64_t>(extent, 1));
  return steps;
}

class ConstantFolder {
 public:
  ConstantFolder(Rewriter& rewriter, FoldLimits& limits) : rewriter_(rewriter), graph_(rewriter.graph()), limits_(limits) {}

  void run() {
    for (NodeId id : graph_.order())
      if (is_candidate(graph_.node(id))) rewriter_.change([&] { return fold(id); });
  }

 private:
  bool is_candidate(const Node& node) const {
    if (!node.op || !node.op->deterministic || node.op->control_flow != ControlFlow::none || !node.bodies.empty() || node.op->barrier)
      return false;
    if (node.op->computes_by_elements) return false;
    if (limits_.keep_quantization && node.op->quantization == Quantization::dequantizes) return false;
    bool read = false;
    for (ValueId output : node.outputs) read |= output != kNoValue && (!graph_.value(output).uses.empty() || graph_.is_output(output));
    if (!read) return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return id == kNoValue || graph_.stored_tensor(id) != nullptr; });
  }

  // Returns an upper bound of the bytes of one element of a string output. An element is made of texts of operands and attributes, or of a
  // number.
  size_t text_bytes_each(const Node& node) const {
    constexpr size_t kOfNumber = 32;
    size_t bytes = sizeof(std::string) + kOfNumber;
    for (ValueId input : node.inputs)
      if (input != kNoValue && graph_.type(input).dtype == DType::string) bytes += longest_text(*graph_.stored_tensor(input));
    for (const auto& [name, attribute] : node.attributes) {
      if (const auto* text = std::get_if<std::string>(&attribute)) bytes += text->size();
      if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute)) bytes += longest(*texts);
      const auto* datum = std::get_if<Datum>(&attribute);
      if (datum && datum->is_tensor() && datum->tensor().dtype() == DType::string) bytes += longest_text(datum->tensor());
    }
    return bytes;
  }

  // If the limits permit the node's cost, subtracts the cost from them. Uses the sizes of the inputs if the outputs' shapes are unknown.
  bool afford(const Node& node) {
    std::vector<Shape> shapes(node.inputs.size() + node.outputs.size());
    std::vector<const Shape*> pointers;
    std::vector<DType> dtypes(shapes.size(), DType::undefined);
    double elements = 0, made_bytes = 0;
    bool all_static = true;
    for (size_t k = 0; k < shapes.size(); ++k) {
      bool is_output = k >= node.inputs.size();
      ValueId id = is_output ? node.outputs[k - node.inputs.size()] : node.inputs[k];
      pointers.push_back(&shapes[k]);
      if (id == kNoValue) continue;
      const Type& type = graph_.type(id);
      dtypes[k] = type.dtype;
      if (!type.is_static()) {
        all_static = false;
        continue;
      }
      shapes[k] = type.static_shape();
      const auto count = static_cast<double>(shapes[k].num_elements());
      elements += steps_over(shapes[k]);
      if (!is_output) continue;
      // Counts the new constant once per reader, because each reader will scan it, to pack or compare it.
      elements += count * static_cast<double>(graph_.value(id).uses.size());
      const double bytes = type.dtype == DType::string ? count * static_cast<double>(text_bytes_each(node))
                                                       : static_cast<double>(size_bytes(type.dtype, shapes[k].num_elements()));
      made_bytes += bytes;
      if (bytes > static_cast<double>(limits_.max_bytes_each)) return false;
    }
    // If output shapes depend on elements (as for a selection of boxes), assumes that all pairs of elements are compared.
    double operations = all_static ? elements : elements * elements;
    if (node.op->cost && all_static) {
      ShapeContext context(node);
      context.shapes_ = pointers;
      context.dtypes_ = dtypes;
      operations = std::max(operations, node.op->cost(context).flops);
    }
    if (limits_.bytes < 0 || operations > limits_.operations || made_bytes > limits_.bytes) return false;
    limits_.operations -= operations;
    return true;
  }

  bool fold(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<Datum> results;
    try {
      if (!afford(node)) return false;
      const KernelDef& kernel = select_kernel(graph_, node);
      std::unique_ptr<PackedState> packed = kernel.create ? kernel.create(CreateContext(graph_, node)) : nullptr;
      std::vector<Datum> inputs;
      for (ValueId input : node.inputs) {
        graph_.constant_tensor(input);  // moves the constant's elements to aligned memory
        inputs.push_back(input == kNoValue ? Datum() : graph_.value(input).constant);
      }
      std::vector<DType> dtypes;
      for (ValueId output : node.outputs) dtypes.push_back(output == kNoValue ? DType::undefined : graph_.type(output).dtype);
      evaluator_.max_output_bytes = std::min(limits_.max_bytes_each, static_cast<size_t>(limits_.bytes));
      results = evaluate_node(node, kernel, packed.get(), inputs, dtypes, evaluator_);
    } catch (const Error&) {
      return false;  // a kernel declines, or an index is out of range; if the node is run, the run reports the error with the node's name
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      // Files can store only dense tensors as constants. If a shape contradicts the inferred shape, inference has a bug; keeping the node
      // limits its effects.
      bool contradiction = false;
      if (!results[i].is_tensor()) return false;
      merge(Type::of(results[i]), graph_.type(node.outputs[i]), &contradiction);
      if (contradiction) return false;
    }
    replace(id, results);
    return true;
  }

  // Outputs keep their names as constants; they only lose their producer.
  void replace(NodeId id, const std::vector<Datum>& results) {
    const std::vector<ValueId> outputs = graph_.node(id).outputs, inputs = graph_.node(id).inputs;
    graph_.remove_node(id);
    for (ValueId input : inputs) release(input);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] == kNoValue) continue;
      Value& value = graph_.value(outputs[i]);
      if (value.uses.empty() && !graph_.is_output(outputs[i])) continue;
      value.kind = Value::Kind::constant;
      value.constant = results[i].tensor().contiguous();
      value.type = Type::of(value.constant);
      value.known.reset();
      limits_.bytes -= static_cast<double>(content_bytes(value.constant.tensor()));
      folded_.insert(outputs[i]);
    }
  }

  // Frees constants that only the folded node has read, so that weights that are folded in several steps are in memory only once.
  void release(ValueId id) {
    if (id == kNoValue) return;
    Value& value = graph_.value(id);
    const Tensor* tensor = graph_.stored_tensor(id);
    if (!tensor || !value.uses.empty() || graph_.is_output(id)) return;
    const auto& overridable = graph_.overridable_initializers;
    if (std::find(overridable.begin(), overridable.end(), id) != overridable.end()) return;
    drop_mapped_pages(tensor->raw(), tensor->size_bytes());
    if (folded_.erase(id) > 0) limits_.bytes += static_cast<double>(content_bytes(*tensor));
    value.constant = Datum();
  }

  Rewriter& rewriter_;
  Graph& graph_;
  FoldLimits& limits_;
  Evaluator evaluator_;
  std::unordered_set<ValueId> folded_;  // constants that this folder has made
};

void release_unused_in(Graph& graph) {
  const std::unordered_set<ValueId> overridable(graph.overridable_initializers.begin(), graph.overridable_initializers.end());
  for (size_t i = 0; i < graph.num_values(); ++i) {
    ValueId id{static_cast<uint32_t>(i)};
    Value& value = graph.value(id);
    if (!value.is_constant() || !value.uses.empty() || graph.is_output(id)) continue;
    if (!overridable.contains(id)) value.constant = Datum();
  }
}

// Adds the bytes of the constants of a graph and its bodies. Memory that several constants share is counted once, except for small
// constants, because a file stores these once for each use.
void add_stored_bytes(const Graph& graph, std::unordered_set<const std::byte*>& seen, double& bytes) {
  constexpr size_t kNegligible = 256;
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const Tensor* tensor = graph.stored_tensor(ValueId{static_cast<uint32_t>(i)});
    if (!tensor) continue;
    const bool negligible = tensor->dtype() != DType::string && tensor->size_bytes() <= kNegligible;
    if (negligible || seen.insert(tensor->raw()).second) bytes += static_cast<double>(content_bytes(*tensor));
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
    for (const Body& body : graph.node(id).bodies) add_stored_bytes(*body.graph, seen, bytes);
}

}  // namespace

// Small files get the minimum limits. For larger files, the limits grow with the total size of the constants, because weights may be folded
// several times.
FoldLimits FoldLimits::of(const Graph& graph) {
  constexpr double kSmall = 16e6, kLeastBytes = 24e6, kLeastWidened = 4e6, kBytesPerByte = 8, kLeastOperations = 1e8,
                   kOperationsPerByte = 256;
  double stored = 0;
  std::unordered_set<const std::byte*> seen;
  add_stored_bytes(graph, seen, stored);
  const double large = std::max(0.0, stored - kSmall);
  FoldLimits limits;
  limits.bytes = std::min(limits.bytes, kLeastBytes + kBytesPerByte * large);
  limits.widened_bytes = kLeastWidened + 2 * stored;
  limits.operations = std::min(limits.operations, kLeastOperations + kOperationsPerByte * large);
  return limits;
}

int64_t fold_constants(Graph& graph, FoldLimits& limits, int64_t limit) {
  return Rewriter(graph, limit).for_each_graph_inside_out([&](Rewriter& inside) { ConstantFolder(inside, limits).run(); });
}

void release_unused_constants(Graph& graph) {
  Rewriter(graph).for_each_graph([](Rewriter& inside) { release_unused_in(inside.graph()); });
}

Pass fold_constants() {
  return graph_pass("fold-constants", kBasic, kAlways, "nodes with constant inputs are computed once",
                    [](Graph& graph, PassContext& context, int64_t limit) { return fold_constants(graph, context.fold_limits, limit); });
}

}  // namespace treadle::passes
