// Div and Mod of integers by a constant number. Other integer divisors may be 0, which the host reports.
#include <spirv/unified1/spirv.hpp>

#include "core/values/dispatch.h"
#include "gpu/launch.h"
#include "gpu/shader_writer.h"

namespace treadle::gpu {
namespace {

struct DivisionState final : PackedState {
  const vulkan::Shader* shader = nullptr;
};

struct Division {
  int64_t count;

  static Division bind(BindContext& c) { return {count32(c.num_elements(0))}; }
  void run(RunContext& c) const {
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1));
    push.word(static_cast<uint32_t>(count)).word(int32_t{1}).word(int32_t{0});  // one divisor for all
    stream().dispatch(*c.packed<DivisionState>().shader, push.bytes(), groups_over(static_cast<uint32_t>(count)));
  }
};

/// True if every device divides by this number: not by 0, and not by -1, as the lowest integer has no negative.
bool is_plain_divisor(const Tensor& divisor) {
  if (divisor.num_elements() != 1) return false;
  return visit_dtype<IntegerTypes>(divisor.dtype(), [&]<typename T>() {
    const T value = *divisor.contiguous().data<T>();
    return value != 0 && (std::is_unsigned_v<T> || static_cast<int64_t>(value) != -1);
  });
}

/// The remainder has the dividend's sign if `truncates`, otherwise the divisor's.
Value write_remainder(ShaderWriter& s, Value a, Value b, Value quotient, bool truncates) {
  const Value rest = s.sub(a, s.mul(quotient, b)), zero = s.number(0, a.type);
  if (truncates || a.type == Arithmetic::u32 || a.type == Arithmetic::u64) return rest;
  const Value differs = s.op(spv::OpLogicalNotEqual, Arithmetic::boolean, {s.less(rest, zero), s.less(b, zero)});
  return s.select(s.equal(rest, zero), rest, s.select(differs, s.add(rest, b), rest));
}

}  // namespace

DeviceKernel find_division(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Division>("gpu");
  const bool divides = node.is("Div", "");
  Arithmetic type{};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if ((!divides && !node.is("Mod", "")) || !is_integer(dtype) || !arithmetic_of(dtype, type)) return {};
  const Tensor* const divisor = graph.constant_tensor(node.inputs[1]);
  if (!divisor || !is_plain_divisor(*divisor)) return {};
  const DType types[] = {dtype, dtype};
  ShaderWriter shader(types, dtype, 1, false);
  const Value a = shader.load(0), b = shader.load(1);
  const bool is_signed = type == Arithmetic::i32 || type == Arithmetic::i64;
  const Value quotient = shader.op(is_signed ? spv::OpSDiv : spv::OpUDiv, type, {a, b});
  shader.store(divides ? quotient : write_remainder(shader, a, b, quotient, node.attributes.get_int("fmod") != 0));
  auto state = std::make_shared<DivisionState>();
  state->shader = &vulkan::Shader::of(shader.finish(), {}, node.op_type);
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
