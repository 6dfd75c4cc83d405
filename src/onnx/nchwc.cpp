// Converts operators of com.microsoft.nchwc to ONNX's. ONNX Runtime writes them into .ort files for its own kernels. Their values store
// channels in blocks, the last of which is padded; here they become [N, C, H, W] with the padded number of channels. Weights are [O /
// block, I / block, H, W, block of I, block of O], or [O / block, I, H, W, block of O] if there are fewer inputs than a block.
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "onnx/parse_context.h"

namespace treadle::onnx {
namespace {

constexpr std::string_view kDomain = "com.microsoft.nchwc";

template <typename Visit>
void each_graph(GraphDef& graph, const Visit& visit) {
  visit(graph);
  for (NodeDef& node : graph.nodes)
    for (AttributeDef& attribute : node.attributes) {
      if (attribute.g) each_graph(*attribute.g, visit);
      for (GraphDef& body : attribute.graphs) each_graph(body, visit);
    }
}

bool is_blocked_conv(const NodeDef& node) { return node.domain == kDomain && node.op_type == "Conv" && node.inputs.size() > 1; }

// Returns the number of channels in a block, which files do not declare. If some extent is not a multiple of 16, this determines the
// number; otherwise it is the number that ONNX Runtime uses on this processor.
int64_t block_of(GraphDef& graph) {
  bool is_eight = false, is_sixteen = false;
  each_graph(graph, [&](const GraphDef& each) {
    std::unordered_set<std::string_view> weights;
    for (const NodeDef& node : each.nodes)
      if (is_blocked_conv(node)) weights.insert(node.inputs[1]);
    for (const TensorDef& tensor : each.initializers) {
      if (!weights.contains(tensor.name) || tensor.shape.rank() != 4) continue;
      is_eight |= tensor.shape[0] % 16 != 0 || (tensor.shape[1] > 16 && tensor.shape[1] % 16 != 0);
      is_sixteen |= tensor.shape[1] > 8 && tensor.shape[1] < 16;
    }
  });
  if (is_eight != is_sixteen) return is_eight ? 8 : 16;
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") ? 16 : 8;
#else
  return 16;
#endif
}

class Unblocker {
 public:
  Unblocker(const ParseContext& context, GraphDef& graph, int64_t block, int64_t opset)
      : context_(context), graph_(graph), block_(block), opset_(opset) {
    for (TensorDef& tensor : graph.initializers) initializers_.emplace(tensor.name, &tensor);
    for (const auto* values : {&graph.value_info, &graph.inputs, &graph.outputs})
      for (const ValueInfoDef& value : *values) types_.emplace(value.name, &value.type);
  }

  void run() {
    std::vector<NodeDef> nodes;
    nodes.swap(graph_.nodes);
    for (NodeDef& node : nodes) {
      if (node.domain != kDomain) {
        graph_.nodes.push_back(std::move(node));
        continue;
      }
      if (node.inputs.empty() || node.outputs.empty()) fail(node, "has no input, or no output");
      rewrite(std::move(node));
    }
    for (TensorDef& tensor : added_) graph_.initializers.push_back(std::move(tensor));
  }

 private:
  [[noreturn]] void fail(const NodeDef& node, const std::string& why) const {
    context_.place.fail(ErrorCode::not_implemented, "the operator " + node.op_type + " of " + std::string(kDomain) + " " + why);
  }

  void rewrite(NodeDef node) {
    const std::string op = node.op_type;
    if (op == "ReorderInput") return reorder_input(node);
    if (op == "ReorderOutput") return reorder_output(node);
    node.domain.clear();
    if (op == "Conv") {
      node.op_type = "FusedConv", node.domain = "com.microsoft";
      if (node.inputs.size() < 2) fail(node, "has no weights");
      unblock(node, node.inputs[1]);
    } else if (op == "Upsample") {
      upsample(node);
    } else if (op != "MaxPool" && op != "AveragePool" && op != "GlobalMaxPool" && op != "GlobalAveragePool") {
      fail(node, "is not known");
    }
    graph_.nodes.push_back(std::move(node));
  }

  static int64_t integer(const NodeDef& node, std::string_view name) {
    for (const AttributeDef& attribute : node.attributes)
      if (attribute.name == name && attribute.type == AttributeType::i) return attribute.i;
    return 0;
  }

  NodeDef& add_node(std::string op, std::vector<std::string> inputs, std::string output) {
    NodeDef& node = graph_.nodes.emplace_back();
    node.op_type = std::move(op), node.name = output, node.inputs = std::move(inputs), node.outputs = {std::move(output)};
    return node;
  }

  static void set(NodeDef& node, std::string name, int64_t number) {
    AttributeDef& attribute = node.attributes.emplace_back();
    attribute.name = std::move(name), attribute.type = AttributeType::i, attribute.i = number;
  }
  static void set(NodeDef& node, std::string name, std::vector<int64_t> numbers) {
    AttributeDef& attribute = node.attributes.emplace_back();
    attribute.name = std::move(name), attribute.type = AttributeType::ints, attribute.ints = std::move(numbers);
  }

  // Adds a node with integer lists. Before opset `since`, these lists are attributes; from this opset on, they are operands.
  void add(const std::string& op, const std::string& x, const std::string& y, int64_t since,
           std::initializer_list<std::pair<std::string, std::vector<int64_t>>> lists) {
    NodeDef& node = add_node(op, {x}, y);
    for (const auto& [name, list] : lists) {
      if (opset_ < since) {
        set(node, name, list);
        continue;
      }
      node.inputs.push_back(y + "/" + name);
      constant(node.inputs.back(), Tensor::vector<int64_t>(list));
    }
  }
  void constant(const std::string& name, Tensor value) {
    TensorDef& tensor = added_.emplace_back();
    tensor.name = name, tensor.dtype = value.dtype(), tensor.shape = value.shape(), tensor.value = std::move(value);
  }
  void transpose(const std::string& x, const std::string& y, std::vector<int64_t> perm) {
    set(add_node("Transpose", {x}, y), "perm", std::move(perm));
  }

  void reorder_input(const NodeDef& node) {
    const bool channels_last = integer(node, "channels_last") != 0;
    std::string x = node.inputs[0];
    const std::string& y = node.outputs[0];
    const int64_t channels = known_extent(x, channels_last ? 3 : 1);
    if (channels_last) transpose(x, y + "/channels_first", {0, 3, 1, 2}), x = y + "/channels_first";
    if (channels >= 0) return add("Pad", x, y, 11, {{"pads", {0, 0, 0, 0, 0, (block_ - channels % block_) % block_, 0, 0}}});
    if (opset_ < 11) fail(node, "reads \"" + x + "\", of which the file does not tell the channels");
    constant(y + "/axis", Tensor::vector<int64_t>(std::vector<int64_t>{1}));
    constant(y + "/block", Tensor::vector<int64_t>(std::vector<int64_t>{block_}));
    constant(y + "/before", Tensor::vector<int64_t>(std::vector<int64_t>(5, 0)));
    constant(y + "/behind", Tensor::vector<int64_t>(std::vector<int64_t>(2, 0)));
    add_node("Shape", {x}, y + "/shape");
    add_node("Gather", {y + "/shape", y + "/axis"}, y + "/channels");
    add_node("Neg", {y + "/channels"}, y + "/fewer");
    add_node("Mod", {y + "/fewer", y + "/block"}, y + "/more");
    set(add_node("Concat", {y + "/before", y + "/more", y + "/behind"}, y + "/pads"), "axis", 0);
    add_node("Pad", {x, y + "/pads"}, y);
  }

  // Returns the value's extent along the axis; -1 if it is unknown.
  int64_t known_extent(const std::string& name, size_t axis) const {
    const auto type = types_.find(name);
    if (type == types_.end() || !type->second->shape || axis >= type->second->shape->size()) return -1;
    const DimDef& dim = (*type->second->shape)[axis];
    return dim.kind == DimDef::Kind::value ? dim.value : -1;
  }

  void reorder_output(const NodeDef& node) {
    const bool channels_last = integer(node, "channels_last") != 0;
    const std::string& y = node.outputs[0];
    const std::string first = channels_last ? y + "/channels_first" : y;
    add("Slice", node.inputs[0], first, 10, {{"starts", {0}}, {"ends", {integer(node, "channels")}}, {"axes", {1}}});
    if (channels_last) transpose(first, y, {0, 2, 3, 1});
  }

  void upsample(NodeDef& node) {
    std::vector<float> scales;
    for (const AttributeDef& attribute : node.attributes)
      if (attribute.name == "scales") scales.assign(attribute.ints.begin(), attribute.ints.end());
    std::erase_if(node.attributes, [](const AttributeDef& attribute) { return attribute.name == "scales"; });
    if (opset_ < 11) fail(node, "of a model below opset 11 is not read");
    node.op_type = "Resize";
    node.inputs = {node.inputs[0], "", node.outputs[0] + "/scales"};
    constant(node.inputs.back(), Tensor::vector<float>(scales));
    AttributeDef& nearest = node.attributes.emplace_back();
    nearest.name = "nearest_mode", nearest.type = AttributeType::s, nearest.s = "floor";
  }

  void unblock(const NodeDef& node, const std::string& name) {
    if (!unblocked_.insert(name).second) return;
    const auto found = initializers_.find(name);
    if (found == initializers_.end()) fail(node, "reads weights \"" + name + "\" that are no initializer of its graph");
    TensorDef& tensor = *found->second;
    if (tensor.dtype != DType::float32 || tensor.shape.rank() != 4 || !tensor.value.defined())
      fail(node, "has no float32 weights of rank 4");
    const int64_t O = tensor.shape[0], I = tensor.shape[1], area = tensor.shape[2] * tensor.shape[3];
    const int64_t inner = I < block_ ? 1 : block_;  // number of input channels in a block
    if (O % block_ != 0 || I % inner != 0) fail(node, "has weights that are no blocks of " + std::to_string(block_) + " channels");
    Tensor plain(DType::float32, tensor.shape);
    const Tensor packed = tensor.value.contiguous();
    const auto* from = packed.data<float>();
    auto* to = plain.data<float>();
    for (int64_t o = 0; o < O; o += block_)
      for (int64_t i = 0; i < I; i += inner)
        for (int64_t place = 0; place < area; ++place)
          for (int64_t a = 0; a < inner; ++a)
            for (int64_t b = 0; b < block_; ++b) to[((o + b) * I + i + a) * area + place] = *from++;
    tensor.value = std::move(plain);
  }

  const ParseContext& context_;
  GraphDef& graph_;
  const int64_t block_, opset_;
  std::unordered_map<std::string_view, TensorDef*> initializers_;
  std::unordered_map<std::string_view, const TypeDef*> types_;
  std::unordered_set<std::string> unblocked_;
  std::vector<TensorDef> added_;
};

}  // namespace

void unblock_channels(const ParseContext& context, ModelDef& model) {
  bool is_blocked = false;
  each_graph(model.graph, [&](const GraphDef& graph) {
    for (const NodeDef& node : graph.nodes) is_blocked |= node.domain == kDomain;
  });
  if (!is_blocked) return;
  int64_t opset = 0;
  for (const OpsetImport& import : model.opset_imports)
    if (import.domain.empty() || import.domain == "ai.onnx") opset = import.version;
  const int64_t block = block_of(model.graph);
  each_graph(model.graph, [&](GraphDef& graph) { Unblocker(context, graph, block, opset).run(); });
}

}  // namespace treadle::onnx
