// Computes Div, Mod and BitShift of integers, and Mod of floats. A division by zero is reported when the host waits for the stream.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "kernels/elementwise/broadcast.h"

namespace treadle::gpu {
namespace {

/// The operators, with their numbers in integers.comp.
enum class IntegerOperator : uint32_t {
  quotient,
  floored_rest,
  truncated_rest,
  shift_left,
  shift_right,
  floored_float_rest,
  truncated_float_rest
};

struct IntegerState final : FaultState {
  const vulkan::Shader* shader = nullptr;
  bool divides = false;
};

struct IntegerBinary {
  int64_t count;
  int rank;
  uint32_t extends[2];  // bit i: operand not broadcast along dimension i of the index space
  int64_t dims[kMaxSpaceRank];
  ConvertedOperand a, b, y;

  static IntegerBinary bind(BindContext& c) {
    const auto plan = kernels::plan_broadcast<2>(c.output_shape(0).dims(), {c.shape(0).dims(), c.shape(1).dims()});
    check_space_rank(plan.rank);
    IntegerBinary k{count32(plan.size), plan.rank, {}, {}, {}, {}, {}};
    const DType given = c.dtype(0), computed = wide_type(given);
    ops::ScratchLayout layout;
    k.a = ConvertedOperand::reserve(layout, given, computed, c.num_elements(0));
    k.b = ConvertedOperand::reserve(layout, given, computed, c.num_elements(1));
    k.y = ConvertedOperand::reserve(layout, given, computed, plan.size);
    c.request_scratch(layout.total());
    std::fill_n(k.dims, kMaxSpaceRank, 1);
    const int missing = kMaxSpaceRank - plan.rank;
    for (int axis = 0; axis < plan.rank; ++axis) {
      k.dims[missing + axis] = std::max<int64_t>(plan.dims[axis], 1);
      for (const int i : {0, 1}) k.extends[i] |= (plan.strides[i][axis] != 0 ? 1U : 0U) << (missing + axis);
    }
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<IntegerState>();
    vulkan::VulkanStream::FaultSite site;
    if (state.divides) site = state.fault("integer division by zero");
    Push push;
    push.pointer(y.result(c, 0)).pointer(a.read(c, 0)).pointer(b.read(c, 1)).fault(site);
    push.word(static_cast<uint32_t>(count)).word(site.number);
    for (const uint32_t mask : extends) push.word(mask);
    for (const int64_t extent : dims) push.word(static_cast<uint32_t>(extent));
    stream().dispatch(*state.shader, push.bytes(), groups_over(static_cast<uint32_t>(count)));
    y.store(c, 0);
  }
};

std::optional<IntegerOperator> operator_of(const Node& node, DType dtype) {
  if (node.is("Mod", "") && wide_type(dtype) == DType::float32)
    return node.attributes.get_int("fmod") != 0 ? IntegerOperator::truncated_float_rest : IntegerOperator::floored_float_rest;
  if (!is_integer(dtype) || bits_of(dtype) < 8) return std::nullopt;
  if (node.is("Div", "")) return IntegerOperator::quotient;
  if (node.is("Mod", "")) return node.attributes.get_int("fmod") != 0 ? IntegerOperator::truncated_rest : IntegerOperator::floored_rest;
  if (node.is("BitShift", ""))
    return node.attributes.get_string("direction") == "LEFT" ? IntegerOperator::shift_left : IntegerOperator::shift_right;
  return std::nullopt;
}

}  // namespace

DeviceKernel find_integers(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<IntegerBinary>("gpu");
  const DType dtype = wide_type(graph.type(node.inputs[0]).dtype);
  const std::optional<IntegerOperator> found = operator_of(node, dtype);
  if (!found) return {};
  auto state = std::make_shared<IntegerState>();
  const uint32_t constants[] = {static_cast<uint32_t>(*found), uint32_t{is_signed_integer(dtype)}};
  state->shader = find_moving_shader("integers", bits_of(dtype) / 8, constants);
  state->divides = *found < IntegerOperator::shift_left;
  state->node = describe(node);
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
