// x / c -> x * (1 / c), if every element of c is a power of two with a normal reciprocal. Both forms then round the same real number
// correctly, so results are equal. A division takes several times as long as a multiplication.
#include <cmath>

#include "passes/list.h"
#include "passes/matching.h"

namespace treadle::passes {
namespace {

template <typename T>
std::optional<Tensor> reciprocals(const Tensor& divisors) {
  Tensor result(divisors.dtype(), divisors.shape());
  for (int64_t i = 0; i < divisors.num_elements(); ++i) {
    T divisor = divisors.data<T>()[i];
    int exponent = 0;
    if (!std::isnormal(divisor) || std::fabs(std::frexp(divisor, &exponent)) != T{0.5} || !std::isnormal(T{1} / divisor))
      return std::nullopt;
    result.data<T>()[i] = T{1} / divisor;
  }
  return result;
}

class DivideToMultiply final : public Rule {
 public:
  std::string_view name() const override { return "divide-to-multiply"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    constexpr int64_t kMaxElements = 4096;
    if (!node.is("Div")) return std::nullopt;
    const Tensor* divisors = graph.constant_tensor(node.inputs[1]);
    if (!divisors || divisors->num_elements() > kMaxElements || !divisors->is_contiguous()) return std::nullopt;
    std::optional<Tensor> factors;
    if (divisors->dtype() == DType::float32)
      factors = reciprocals<float>(*divisors);
    else if (divisors->dtype() == DType::float64)
      factors = reciprocals<double>(*divisors);
    if (!factors) return std::nullopt;
    Patch patch;
    ValueId constant = patch.constant(node.name + "/factor", *factors);
    patch.replace(node.outputs[0], patch.add({.op_type = "Mul", .inputs = {node.inputs[0], constant}, .name = node.name}));
    return patch;
  }
};

}  // namespace

Pass divide_to_multiply() { return rule_pass<DivideToMultiply>(kBasic, kHidesPatterns, "x / 2^k -> x * 2^-k"); }

}  // namespace treadle::passes
