#include "passes/layout_values.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "passes/matching.h"

namespace treadle::passes {
namespace {

bool has_image_rank(const Type& type) { return type.is_tensor() && type.has_rank() && (type.rank() == 3 || type.rank() == 4); }

}  // namespace

bool is_image(const Graph& graph, ValueId id) {
  return id != kNoValue && has_image_rank(graph.type(id)) && graph.type(id).dtype == DType::float32;
}

bool is_byte_image(const Graph& graph, ValueId id) {
  return id != kNoValue && has_image_rank(graph.type(id)) && (graph.type(id).dtype == DType::uint8 || graph.type(id).dtype == DType::int8);
}

bool is_mask(const Graph& graph, ValueId id) {
  return id != kNoValue && has_image_rank(graph.type(id)) && graph.type(id).dtype == DType::boolean;
}

bool Layout::has_moved(ValueId id) const { return id != kNoValue && index_of(id) < moved_.size() && moved(id) != kNoValue; }

bool Layout::reads_moved(const Node& node) const {
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return has_moved(input); });
}

void Layout::set_moved(ValueId id, ValueId moved) {
  if (moved_.size() <= index_of(id)) moved_.resize(index_of(id) + 1, kNoValue);
  moved_[index_of(id)] = moved;
}

ValueId Layout::channels_last(ValueId id, NodeId before) {
  if (has_moved(id)) return moved(id);
  const ValueId result = transposed(id, channels_last_order(rank(id)), {.name = g_.value(id).name + "/channels_last"}, before);
  set_moved(id, result);
  return result;
}

bool Layout::replace(const Node& node, NodeSpec spec) {
  spec.name = node.name;
  spec.num_outputs = std::max(spec.num_outputs, static_cast<int>(node.outputs.size()));
  const NodeId old = node.id;
  const std::vector<ValueId> outputs = node.outputs;
  const NodeId made = g_.add_node(std::move(spec), old);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] == kNoValue) continue;
    const ValueId last = g_.node(made).outputs[i];
    if (rank(outputs[i]) < 3)  // a vector next to the image, such as a scale or zero point
      take_place(outputs[i], last);
    else
      move_image(outputs[i], last, old);
  }
  g_.remove_node(old);
  return true;
}

bool Layout::replace_image(const Node& node, NodeSpec spec) {
  spec.inputs[0] = channels_last(node.inputs[0], node.id);
  return replace(node, std::move(spec));
}

void Layout::move_image(ValueId old, ValueId last, NodeId before) {
  const Ints perm = channels_first_order(rank(old));
  g_.value(last).type = Type::tensor(g_.type(old).dtype, permuted(*g_.type(old).shape, channels_last_order(rank(old))));
  const std::string name = g_.value(old).name;
  g_.rename_value(old, name + "/replaced");
  const ValueId back = transposed(last, perm, {.name = name + "/channels_first", .output_names = {name}}, before);
  g_.value(back).type = g_.type(old);
  g_.replace_uses(old, back);
  set_moved(back, last);
}

void Layout::take_place(ValueId old, ValueId same) {
  const std::string name = g_.value(old).name;
  g_.value(same).type = g_.type(old);
  g_.rename_value(old, name + "/replaced");
  g_.rename_value(same, name);
  g_.replace_uses(old, same);
}

ValueId Layout::transposed(ValueId id, const Ints& perm, const NodeSpec& like, NodeId before) {
  const SymbolicShape& in = *g_.type(id).shape;
  const SymbolicShape out = permuted(in, perm);
  Ints order_in, order_out;
  for (size_t i = 0; i < perm.size(); ++i) {
    if (in[i] != Dim(1)) order_in.push_back(static_cast<int64_t>(i));
    if (out[i] != Dim(1)) order_out.push_back(perm[i]);
  }
  NodeSpec spec = like;
  std::optional<Ints> target;
  if (order_in == order_out) target = reshape_target(in, out);
  if (target) {
    spec.op_type = "Reshape";
    spec.inputs = {id, ints(*target, like.name + "/shape")};
  } else {
    spec.op_type = "Transpose";
    spec.inputs = {id};
    spec.attributes = {{"perm", perm}};
  }
  const ValueId result = g_.node(g_.add_node(std::move(spec), before)).outputs[0];
  g_.value(result).type = Type::tensor(g_.type(id).dtype, out);
  return result;
}

const Node* Layout::statistics_of(ValueId image) const {
  const auto found = statistics_.find(static_cast<uint32_t>(image));
  return found == statistics_.end() ? nullptr : &g_.node(found->second);
}

}  // namespace treadle::passes
