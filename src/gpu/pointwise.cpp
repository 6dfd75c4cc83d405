// Computes pointwise operators and chains of them. Writes a shader for each node, from the description of its operators in the registry.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/chain.h"
#include "gpu/launch.h"
#include "gpu/narrow.h"
#include "gpu/shader_writer.h"
#include "graph/op_def.h"
#include "kernels/elementwise/broadcast.h"
#include "ops/quantization/quantized_axis.h"
#include "ops/typed_step.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

constexpr size_t kMaxInputs = 12;  // the push constants have no space for more addresses

/// The code of a node, and its shaders. There is a shader for each rank of the index space, which is known when the kernel is bound.
class PointwiseState final : public PackedState {
 public:
  std::vector<int> operands;  ///< indices of the node's inputs that the shader reads
  std::vector<DType> inputs;  ///< the dtypes of these inputs
  DType output = DType::undefined;
  Formula formula;
  std::string name;
  /// For quantization with codes that shaders cannot compute with: the shaders that convert each operand to float32, and the result from
  /// float32 to codes. Otherwise null.
  const vulkan::Shader* readers[3] = {};
  const vulkan::Shader* writer = nullptr;

  const vulkan::Shader& of_rank(int rank) const {
    std::lock_guard lock(mutex_);
    const vulkan::Shader*& made = by_rank_.at(static_cast<size_t>(rank - 1));
    if (made) return *made;
    ShaderWriter shader(inputs, output, rank, false, ShaderWriter::Inputs::broadcast);
    std::vector<Value> values;
    for (size_t i = 0; i < inputs.size(); ++i) values.push_back(shader.load(i));
    shader.store(formula(shader, values));
    made = &vulkan::Shader::of(shader.finish(), {}, name);
    return *made;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::array<const vulkan::Shader*, kMaxSpaceRank> by_rank_{};
};

struct Pointwise {
  using Shapes = std::array<std::span<const int64_t>, kMaxInputs>;

  const vulkan::Shader* shader;
  uint32_t size;
  int rank;
  int64_t dims[kMaxSpaceRank];
  uint8_t extends[kMaxInputs];  // bit i: the input is not broadcast along dimension i

  static Pointwise over(const BindContext& c, std::span<const int64_t> output, const Shapes& shapes) {
    const auto plan = kernels::plan_broadcast<kMaxInputs>(output, shapes);
    check_space_rank(plan.rank);
    Pointwise k{&c.packed<PointwiseState>().of_rank(plan.rank), count32(plan.size), plan.rank, {}, {}};
    for (int axis = 0; axis < plan.rank; ++axis) {
      k.dims[axis] = plan.dims[axis];
      for (size_t i = 0; i < kMaxInputs; ++i) k.extends[i] |= static_cast<uint8_t>((plan.strides[i][axis] != 0 ? 1U : 0U) << axis);
    }
    return k;
  }
  static Pointwise bind(BindContext& c) {
    const std::vector<int>& operands = c.packed<PointwiseState>().operands;
    Shapes shapes{};  // entries after the last operand are treated as scalars
    for (size_t i = 0; i < operands.size(); ++i) shapes[i] = c.shape(operands[i]).dims();
    return over(c, c.output_shape(0).dims(), shapes);
  }
  void run(RunContext& c) const {
    std::array<const void*, kMaxInputs> operands{};
    size_t count = 0;
    for (const int operand : c.packed<PointwiseState>().operands) operands[count++] = c.in<void>(operand);
    dispatch(c, c.out<void>(0), operands);
  }

 protected:
  void dispatch(RunContext& c, void* result, const std::array<const void*, kMaxInputs>& operands) const {
    const auto& state = c.packed<PointwiseState>();
    Push push;
    push.pointer(result);
    for (size_t i = 0; i < state.operands.size(); ++i) push.pointer(operands[i]);
    push.word(size);
    push_extents(push, rank, dims);
    for (size_t i = 0; i < state.operands.size(); i += 4) {
      uint32_t word = 0;
      for (size_t k = i; k < std::min(i + 4, kMaxInputs); ++k) word |= uint32_t{extends[k]} << (k - i) * 8;
      push.word(word);
    }
    stream().dispatch(*shader, push.bytes(), groups_over(size));
  }
};

/// Computes QuantizeLinear and DequantizeLinear. Scales and zero points are one number, one per index of an axis, or one per block along an
/// axis.
struct Quantization : Pointwise {
  static Quantization bind(BindContext& c) {
    const auto k = ops::QuantizedAxis::bind(c);
    if (k.blocks() > 1 && k.extent % k.block != 0)
      throw Error(ErrorCode::not_implemented, fmt::format("blocks of {} in an axis of {} elements, on the GPU", k.block, k.extent));
    // The axis becomes two: blocks, and elements of a block, which share a scale.
    const int64_t outer = k.total == 0 ? 0 : k.total / (k.extent * k.inner), block = k.blocks() == 1 ? k.extent : k.block;
    const int64_t whole[] = {outer, k.blocks(), block, k.inner};
    const int64_t scales[] = {k.outer_step != 0 ? outer : 1, k.axis_step != 0 ? k.blocks() : 1, 1, k.inner_step != 0 ? k.inner : 1};
    return {over(c, whole, {whole, scales, scales})};
  }
};

/// Returns true if blocks divide the axis evenly, or if one block covers it. The extent must be known before the run.
bool has_even_blocks(const Graph& graph, const Node& node) {
  const int64_t block = node.attributes.get_int("block_size"), axis = node.attributes.get_int("axis", 1);
  const SymbolicShape &x = *graph.type(node.inputs[0]).shape, &scales = *graph.type(node.inputs[1]).shape;
  const auto rank = static_cast<int64_t>(x.size());
  if (block < 1 || axis < -rank || axis >= rank || scales.size() != x.size() || x.size() >= size_t{kMaxSpaceRank}) return false;
  const Dim& extent = x[static_cast<size_t>(axis < 0 ? axis + rank : axis)];
  return extent.is_const() && (extent.value() % block == 0 || extent.value() <= block);
}

/// Quantization with codes that shaders cannot compute with. They are converted to or from float32 in scratch memory.
struct NarrowQuantization : Quantization {
  DType codes;
  int64_t counts[3], places[3], result_count, result;  // numbers of elements; offsets in scratch, in bytes

  static NarrowQuantization bind(BindContext& c) {
    const auto& state = c.packed<PointwiseState>();
    NarrowQuantization k{Quantization::bind(c), c.output_dtype(0), {}, {}, count32(c.output_shape(0).num_elements()), 0};
    ops::ScratchLayout layout;
    for (size_t i = 0; i < state.operands.size(); ++i) {
      k.counts[i] = count32(c.num_elements(state.operands[i]));
      if (state.readers[i]) k.places[i] = layout.take(static_cast<size_t>(k.counts[i]) * sizeof(float));
    }
    if (state.writer) k.result = layout.take(static_cast<size_t>(k.result_count) * sizeof(float));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<PointwiseState>();
    std::array<const void*, kMaxInputs> operands{};
    for (size_t i = 0; i < state.operands.size(); ++i) {
      operands[i] = c.in<void>(state.operands[i]);
      if (!state.readers[i]) continue;
      read_narrow(*state.readers[i], operands[i], ops::scratch_at(c, places[i]), counts[i]);
      operands[i] = ops::scratch_at(c, places[i]);
    }
    dispatch(c, state.writer ? ops::scratch_at(c, result) : c.out<void>(0), operands);
    if (state.writer) write_narrow(*state.writer, codes, ops::scratch_at(c, result), c.out<void>(0), result_count);
  }
};

bool fits(size_t inputs, size_t rank) {
  return inputs <= kMaxInputs && rank <= kMaxSpaceRank && 8 * (1 + inputs) + 4 * rank + (inputs + 3) / 4 * 4 <= vulkan::kMaxPushBytes;
}

/// Returns the kernel of a node. @param operands  indices of the node's inputs that the code reads
template <typename Kernel = Pointwise>
DeviceKernel make(const Graph& graph, const Node& node, std::vector<int> operands, Formula formula) {
  static const KernelDef kernel = treadle::kernel<Kernel>("gpu");
  const Type& output = graph.type(node.outputs[0]);
  // If the rank is unknown before the run, assumes the largest. The more dimensions there are, the fewer operands fit into the push
  // constants.
  const size_t rank = output.shape ? std::max<size_t>(output.shape->size(), 1) : size_t{kMaxSpaceRank};
  if (!fits(operands.size(), rank)) return {};
  auto state = std::make_shared<PointwiseState>();
  for (const int i : operands) state->inputs.push_back(graph.type(node.inputs[static_cast<size_t>(i)]).dtype);
  state->operands = std::move(operands);
  state->output = output.dtype;
  state->formula = std::move(formula);
  state->name = node.op_type;
  return {&kernel, std::move(state)};
}

/// Returns the kernel for quantization with codes that shaders cannot compute with.
DeviceKernel find_narrow_quantization(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<NarrowQuantization>("gpu");
  const bool quantizes = node.op_type == "QuantizeLinear";
  const DType x = graph.type(node.inputs[0]).dtype, y = graph.type(node.outputs[0]).dtype, codes = quantizes ? y : x;
  Arithmetic number{};
  if (!arithmetic_of(quantizes ? x : y, number) || number != Arithmetic::f32) return {};
  auto state = std::make_shared<PointwiseState>();
  for (const int i : {0, 1, 2}) {
    if (!node.has_input(static_cast<size_t>(i))) continue;
    const DType given = graph.type(node.inputs[static_cast<size_t>(i)]).dtype;
    Arithmetic type{};
    if (is_narrow(given))
      state->readers[state->operands.size()] = narrow_reader(given);
    else if (!arithmetic_of(given, type) || type != Arithmetic::f32)
      return {};
    state->inputs.push_back(is_narrow(given) ? DType::float32 : given);
    state->operands.push_back(i);
  }
  state->output = quantizes ? DType::float32 : y;
  state->formula = quantizes ? quantization_formula(codes) : write_dequantization;
  state->name = node.op_type;
  if (quantizes) state->writer = narrow_writer(codes, node.attributes);
  return {&kernel, std::move(state)};
}

/// Returns the kernel for quantization to and from 8-bit and 16-bit integers, and for dequantization of int32.
DeviceKernel find_quantization(const Graph& graph, const Node& node) {
  const bool quantizes = node.op_type == "QuantizeLinear";
  const DType x = graph.type(node.inputs[0]).dtype, y = graph.type(node.outputs[0]).dtype, codes = quantizes ? y : x;
  if (!graph.type(node.inputs[0]).has_rank() || !graph.type(node.inputs[1]).has_rank()) return {};
  const DType scale = graph.type(node.inputs[1]).dtype;
  const size_t rank = graph.type(node.inputs[1]).shape->size();
  // A QuantizeLinear that divides in 16 bits is not supported.
  if (quantizes && (scale != DType::float32 || node.attributes.get_int("precision", static_cast<int64_t>(scale)) > 1)) return {};
  const bool in_blocks = node.attributes.get_int("block_size") != 0;
  if (in_blocks ? !has_even_blocks(graph, node) : rank > 1 || (rank == 1 && graph.type(node.inputs[0]).shape->size() < 2)) return {};
  if (is_narrow(codes)) return find_narrow_quantization(graph, node);
  Arithmetic number{}, code{}, by{};
  if (!arithmetic_of(quantizes ? x : y, number) || !arithmetic_of(scale, by) || !arithmetic_of(codes, code)) return {};
  const bool is_wide = bits_of(codes) > 16;
  if (number != Arithmetic::f32 || by != Arithmetic::f32 || !is_integer(codes) || (is_wide && (quantizes || codes != DType::int32)))
    return {};
  std::vector<int> operands{0, 1};
  if (node.has_input(2)) operands.push_back(2);
  return make<Quantization>(graph, node, std::move(operands), quantizes ? quantization_formula(codes) : write_dequantization);
}

/// Returns the index of each value among the node's inputs; empty if a value is not an input.
std::vector<int> positions_of(const Node& node, std::span<const ValueId> values) {
  std::vector<int> positions;
  for (const ValueId value : values) {
    const auto found = std::find(node.inputs.begin(), node.inputs.end(), value);
    if (value == kNoValue || found == node.inputs.end()) return {};
    positions.push_back(static_cast<int>(found - node.inputs.begin()));
  }
  return positions;
}

}  // namespace

DeviceKernel find_pointwise(const Graph& graph, const Node& node) {
  if (node.outputs.size() != 1 || node.num_formal_inputs < 1) return {};
  if (node.is("QuantizeLinear") || node.is("DequantizeLinear")) return find_quantization(graph, node);
  std::vector<ElementwiseStep> steps;
  std::vector<int> operands;
  if (node.is("FusedElementwise", "treadle")) {
    for (const std::string& text : node.attributes.get_strings("steps")) steps.push_back(ElementwiseStep::parse(text));
    operands = positions_of(node, node.inputs);
  } else if (std::optional<PointwiseStep> step = ops::typed_step(graph, node)) {
    operands = positions_of(node, step->operands);
    for (size_t i = 0; i < operands.size(); ++i) step->step.operands.push_back(i);
    steps.push_back(std::move(step->step));
  }
  if (operands.empty()) return {};
  std::vector<DType> inputs;
  for (const int i : operands) inputs.push_back(graph.type(node.inputs[static_cast<size_t>(i)]).dtype);
  std::optional<Formula> formula = chain_formula(steps, std::move(inputs), graph.type(node.outputs[0]).dtype);
  return formula ? make(graph, node, std::move(operands), std::move(*formula)) : DeviceKernel();
}

}  // namespace treadle::gpu
