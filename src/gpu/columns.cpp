// Computes Scaler, Imputer and Binarizer. A shader is written for each node; its parameters are in the device's memory.
#include "ops/ml/columns.h"

#include <cmath>
#include <functional>
#include <limits>

#include "gpu/device_data.h"
#include "gpu/launch.h"
#include "gpu/shader_writer.h"
#include "kernels/elementwise/broadcast.h"

namespace treadle::gpu {
namespace {

constexpr int kColumnOperands = 3;  // X and two parameters

struct ColumnsState final : PackedState {
  const vulkan::Shader* by_rank[2] = {};  ///< [0]: if parameters have one element, [1]: otherwise
  DeviceData data;
  size_t parameters[2] = {};  ///< offsets of the parameters in the node's device data
  int64_t counts[2] = {};     ///< elements of each parameter: one, or one per column
  std::string_view names[2];
  size_t size_bytes() const override { return data.size_bytes(); }
};

struct Columns {
  kernels::BroadcastPlan<kColumnOperands> plan;

  static Columns bind(BindContext& c) {
    const auto& state = c.packed<ColumnsState>();
    const int64_t total = c.num_elements(0), columns = ops::last_extent(c.shape(0));
    for (int i = 0; i < 2; ++i) ops::check_per_column(state.counts[i], state.names[i], columns);
    const int64_t dims[] = {columns > 0 ? total / columns : 0, columns};
    Columns k{kernels::plan_broadcast<kColumnOperands>(dims, {dims, std::span(&state.counts[0], 1), std::span(&state.counts[1], 1)})};
    count32(total);
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<ColumnsState>();
    const std::byte* const data = state.data.here();
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(data + state.parameters[0]).pointer(data + state.parameters[1]);
    push.word(count32(plan.size));
    push_extents(push, plan.rank, plan.dims);
    for (int operand = 0; operand < kColumnOperands; ++operand)
      for (int axis = 0; axis < plan.rank; ++axis) push.word(static_cast<int32_t>(plan.strides[operand][axis]));
    stream().dispatch(*state.by_rank[plan.rank - 1], push.bytes(), groups_over(count32(plan.size)));
  }
};

using ColumnFormula = std::function<Value(ShaderWriter&, Value x, Value first, Value second)>;

template <typename P>
void add_parameter(ColumnsState& state, int i, std::string_view name, const std::vector<P>& values) {
  state.parameters[i] = state.data.add(values);
  state.counts[i] = static_cast<int64_t>(values.size());
  state.names[i] = name;
}

DeviceKernel with_formula(const Graph& graph, const Node& node, DType parameters, std::shared_ptr<ColumnsState> state,
                          const ColumnFormula& formula) {
  static const KernelDef columns = kernel<Columns>("gpu");
  const DType types[] = {graph.type(node.inputs[0]).dtype, parameters, parameters};
  for (int rank = 1; rank <= 2; ++rank) {
    ShaderWriter shader(types, graph.type(node.outputs[0]).dtype, rank, false);
    const Value x = shader.load(0), first = shader.load(1), second = shader.load(2);
    shader.store(formula(shader, x, first, second));
    state->by_rank[rank - 1] = &vulkan::Shader::of(shader.finish(), {}, node.op_type);
  }
  return {&columns, std::move(state)};
}

template <typename X>
DeviceKernel find_imputer(const Graph& graph, const Node& node, std::shared_ptr<ColumnsState> state) {
  const std::unique_ptr<PackedState> made = select_kernel(graph, node).create(CreateContext(graph, node));
  const auto& model = static_cast<const ops::ImputerModel<X>&>(*made);
  add_parameter(*state, 0, "imputed_value", model.imputed);
  add_parameter(*state, 1, "replaced_value", std::vector<X>{model.replaced});
  const bool replaces_nan = model.replaced != model.replaced;
  return with_formula(graph, node, dtype_of<X>, std::move(state), [replaces_nan](ShaderWriter& s, Value x, Value imputed, Value replaced) {
    return s.select(replaces_nan ? s.is_nan(x) : s.equal(x, replaced), imputed, x);
  });
}

/// An integer exceeds a threshold if it exceeds the threshold rounded down. So the threshold can be an integer of X's type.
template <typename X>
DeviceKernel find_binarizer(const Graph& graph, const Node& node, std::shared_ptr<ColumnsState> state) {
  float threshold = node.attributes.get_float("threshold", 0);
  if constexpr (std::is_integral_v<X>) {
    threshold = std::floor(threshold);
    if (!(std::abs(threshold) < static_cast<float>(std::numeric_limits<X>::max()))) return {};
  }
  for (int i = 0; i < 2; ++i) add_parameter(*state, i, "threshold", std::vector<X>{static_cast<X>(threshold)});
  return with_formula(graph, node, dtype_of<X>, std::move(state), [](ShaderWriter& s, Value x, Value limit, Value) {
    return s.select(s.less(limit, x), s.number(1, x.type), s.number(0, x.type));
  });
}

template <typename X>
DeviceKernel find_typed(const Graph& graph, const Node& node, std::shared_ptr<ColumnsState> state) {
  return node.op_type == "Imputer" ? find_imputer<X>(graph, node, std::move(state)) : find_binarizer<X>(graph, node, std::move(state));
}

}  // namespace

DeviceKernel find_columns(const Graph& graph, const Node& node) {
  auto state = std::make_shared<ColumnsState>();
  if (node.op_type == "Scaler") {
    const std::unique_ptr<PackedState> made = select_kernel(graph, node).create(CreateContext(graph, node));
    const auto& model = static_cast<const ops::ScalerModel&>(*made);
    add_parameter(*state, 0, "offset", model.offset);
    add_parameter(*state, 1, "scale", model.scale);
    return with_formula(graph, node, DType::float32, std::move(state), [](ShaderWriter& s, Value x, Value offset, Value scale) {
      return s.mul(s.sub(s.convert(x, Arithmetic::f32), offset), scale);
    });
  }
  if (node.op_type != "Imputer" && node.op_type != "Binarizer") return {};
  switch (graph.type(node.inputs[0]).dtype) {
    case DType::float32: return find_typed<float>(graph, node, std::move(state));
    case DType::float64: return find_typed<double>(graph, node, std::move(state));
    case DType::int32: return find_typed<int32_t>(graph, node, std::move(state));
    case DType::int64: return find_typed<int64_t>(graph, node, std::move(state));
    default: return {};
  }
}

}  // namespace treadle::gpu
