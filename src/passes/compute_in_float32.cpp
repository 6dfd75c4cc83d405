// y = f(x) in float16 or bfloat16 -> y = Cast(f(Cast(x))) with f in float32. Between two such nodes, no Casts are needed. Kernels of 16-bit
// floats compute in float32 anyway, and would convert weights and images in each run. This pass converts constants once, and layouts and
// fusions for float32 then apply. Intermediate values are rounded less often than the model says, so results are more precise, and values
// beyond the 16-bit range do not become infinite.
//
// Skips graphs without a product, convolution or the like, and operators whose result depends on small differences (comparisons, ArgMax),
// which must read rounded values. Operators that only move elements are converted if all their operands are in float32 already.
#include <algorithm>
#include <map>
#include <tuple>

#include "core/files/file.h"
#include "graph/dead_nodes.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "kernels/elementwise/convert.h"
#include "passes/list.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

bool is_half(DType dtype) { return dtype == DType::float16 || dtype == DType::bfloat16; }

bool only_moves(const Node& node) { return node.op && node.op->moves != Moves::no; }
bool is_worth_while(const Node& node) { return node.op && node.op->half == HalfFloats::float32_by_itself; }

/// Converted constants, found by address, size and dtype of the original. Shared by all bodies, because bodies capture the same constants.
using WidenedConstants = std::map<std::tuple<const std::byte*, int64_t, DType>, Tensor>;

class Float32Pass {
 public:
  Float32Pass(Rewriter& rewriter, FoldLimits& limits, WidenedConstants& constants)
      : rewriter_(rewriter), g_(rewriter.graph()), limits_(limits), constants_(constants) {}

  void run() {
    const std::vector<NodeId> order = g_.order();
    const bool worth_while = std::any_of(order.begin(), order.end(), [&](NodeId id) {
      const Node& node = g_.node(id);
      return is_worth_while(node) && reads_half(node);
    });
    if (!worth_while) return;
    for (NodeId id : order) {
      const Node& node = g_.node(id);
      if (node.is("Cast"))
        rewriter_.change(id, [&] { return read_wide(node); });
      else if (is_to_convert(node))
        rewriter_.change(id, [&] { return convert(id); });
    }
  }

 private:
  bool is_half_tensor(ValueId id) const { return id != kNoValue && g_.type(id).is_tensor() && is_half(g_.type(id).dtype); }
  bool reads_half(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return is_half_tensor(input); });
  }
  bool is_wide(ValueId id) const { return index_of(id) < wide_.size() && wide_[index_of(id)] != kNoValue; }

  bool is_to_convert(const Node& node) const {
    if (!node.op || !node.bodies.empty() || !reads_half(node)) return false;
    if (only_moves(node)) {
      // Requires all operands to be in float32 already, so that a cache to which the node only appends a few rows is not converted.
      bool any = false;
      for (ValueId input : node.inputs) {
        if (!is_half_tensor(input) || (g_.value(input).is_constant() && is_affordable(input))) continue;
        if (!is_wide(input)) return false;
        any = true;
      }
      return any;
    }
    if (node.op->half == HalfFloats::as_they_are) return false;
    if (node.attributes.get_int("stash_type", 1) != 1) return false;  // the node asks for 16-bit arithmetic
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId input) { return !is_half_tensor(input) || !g_.value(input).is_constant() || is_affordable(input); });
  }
  // Returns true if the converted constant is within the limits. Larger weights need no conversion: kernels pack them in float32 directly.
  bool is_affordable(ValueId constant) const {
    if (is_wide(constant)) return true;
    const Tensor* tensor = g_.stored_tensor(constant);
    return tensor && tensor->size_bytes() <= limits_.max_bytes_each / 2 &&
           2 * static_cast<double>(tensor->size_bytes()) <= limits_.widened_bytes;
  }

  /// Makes a Cast to float32 or float64 read the float32 form of its operand directly. Returns false if there is none.
  bool read_wide(const Node& node) {
    const DType to = g_.type(node.outputs[0]).dtype;
    if ((to != DType::float32 && to != DType::float64) || !is_wide(node.inputs[0]) || g_.value(node.inputs[0]).is_constant()) return false;
    const NodeId id = node.id;
    const ValueId wide = wide_[index_of(node.inputs[0])], out = node.outputs[0];
    g_.set_input(id, 0, wide);
    if (to == DType::float32 && !g_.is_output(out)) g_.replace_uses(out, wide);
    return true;
  }

  void set_wide(ValueId id, ValueId wide) {
    if (wide_.size() <= index_of(id)) wide_.resize(index_of(id) + 1, kNoValue);
    wide_[index_of(id)] = wide;
  }

  ValueId widened_constant(ValueId id) {
    const Tensor stored = *g_.stored_tensor(id);
    Tensor strided;
    Tensor& result = stored.is_contiguous() ? constants_[{stored.raw(), stored.num_elements(), stored.dtype()}] : strided;
    if (!result.defined()) {
      result = widened_elements(stored);
      limits_.widened_bytes -= static_cast<double>(result.size_bytes());
    }
    return g_.add_constant(g_.value(id).name + "/float32", result.reshaped(stored.shape()));
  }

  static Tensor widened_elements(const Tensor& stored) {
    const Tensor dense = is_aligned(stored) ? stored.contiguous() : stored.clone();
    Tensor result(DType::float32, dense.shape());
    if (dense.dtype() == DType::float16)
      kernels::widen(dense.data<Float16>(), result.data<float>(), dense.num_elements());
    else
      kernels::widen(dense.data<BFloat16>(), result.data<float>(), dense.num_elements());
    drop_mapped_pages(stored.raw(), stored.size_bytes());
    return result;
  }

  /// Returns the float32 form of the value. Creates it before the node `before` if there is none yet.
  ValueId widened(ValueId id, NodeId before) {
    if (is_wide(id)) return wide_[index_of(id)];
    ValueId wide;
    if (g_.value(id).is_constant()) {
      wide = widened_constant(id);
    } else {
      const std::string name = g_.value(id).name + "/float32";
      wide = cast(id, DType::float32, name, before);
    }
    set_wide(id, wide);
    return wide;
  }

  ValueId cast(ValueId id, DType to, const std::string& name, NodeId before) {
    const NodeId made = g_.add_node(
        {.op_type = "Cast", .inputs = {id}, .attributes = {{"to", static_cast<int64_t>(to)}}, .name = name, .output_names = {name}},
        before);
    const ValueId result = g_.node(made).outputs[0];
    g_.value(result).type = g_.type(id);
    g_.value(result).type.dtype = to;
    return result;
  }

  bool convert(NodeId id) {
    for (size_t i = 0; i < g_.node(id).inputs.size(); ++i) {
      const ValueId input = g_.node(id).inputs[i];
      if (is_half_tensor(input)) g_.set_input(id, i, widened(input, id));
    }
    const std::vector<ValueId> outputs = g_.node(id).outputs;
    for (ValueId out : outputs) {
      if (!is_half_tensor(out)) continue;
      // Readers that are not converted yet read the rounded value, which keeps the name of the output.
      const DType dtype = g_.type(out).dtype;
      const std::string name = g_.value(out).name;
      g_.rename_value(out, name + "/float32");
      g_.value(out).type.dtype = DType::float32;
      const ValueId rounded = cast(out, dtype, name, g_.next(id));
      const NodeId producer = g_.value(rounded).producer;
      g_.replace_uses(out, rounded);
      g_.set_input(producer, 0, out);
      set_wide(rounded, out);
    }
    return true;
  }

  Rewriter& rewriter_;
  Graph& g_;
  FoldLimits& limits_;
  WidenedConstants& constants_;
  std::vector<ValueId> wide_;  // for each 16-bit value, its float32 form
};

}  // namespace

int64_t compute_in_float32(Graph& graph, FoldLimits& limits, int64_t limit) {
  WidenedConstants constants;
  const int64_t count = Rewriter(graph, limit).for_each_graph([&](Rewriter& inside) { Float32Pass(inside, limits, constants).run(); });
  if (count > 0) remove_dead_nodes(graph);
  return count;
}

Pass compute_in_float32() {
  return graph_pass(
      "compute-in-float32", kExtended, {.frozen_weights = true, .not_before_autodiff = true, .only_in_memory = true, .for_host = true},
      "16-bit floats -> float32 between Casts, constants converted once, outside of training",
      [](Graph& graph, PassContext& context, int64_t limit) { return compute_in_float32(graph, context.fold_limits, limit); });
}

}  // namespace treadle::passes
