// Implements ChainedConv, ChainedMatMul, ChainedGemm (treadle): a product followed by a chain of pointwise steps. The product is rounded to
// its dtype before the chain, so that the result equals that of separate nodes.
#include "ops/treadle/chained_products.h"

#include <string>

#include "graph/infer.h"
#include "ops/nn/window.h"
#include "ops/treadle/on_devices.h"

namespace treadle::ops {
namespace {

constexpr std::string_view kPrefix = "Chained";

const OpDef& product_of(const Node& node) { return *find_op("", std::string_view(node.op_type).substr(kPrefix.size())); }

OpDef chained(std::string_view name, std::vector<Port> inputs, std::vector<AttributeDef> attributes) {
  std::vector<Alias> aliases;
  const int first = static_cast<int>(inputs.size());
  // An operand with the shape of the result may share its memory, because each element is read before the result is written over it.
  for (int i = 0; i < 3; ++i) aliases.push_back(may_reuse(0, first + i));
  inputs.push_back({"operands", kFloats, "T", Presence::variadic});
  attributes.push_back({"steps"});
  return {.name = name,
          .domain = "treadle",
          .since = {1},
          .inputs = std::move(inputs),
          .outputs = {{"Y", kFloats, "T"}},
          .attributes = std::move(attributes),
          .infer = [](InferContext& c) { product_of(c.node()).infer(c); },
          .cost = [](const ShapeContext& c) { return product_of(c.node()).cost(c); },
          .alias = std::move(aliases),
          .kernels = {on_devices_only()}};
}

}  // namespace

const OpDef* chained_form(const OpDef& product) {
  return product.domain.empty() ? find_op("treadle", std::string(kPrefix) + std::string(product.name)) : nullptr;
}

size_t first_chain_input(const OpDef& chained) { return chained.inputs.size() - 1; }

std::vector<OpDef> chained_products() {
  return {
      chained("ChainedConv", {{"X", kFloats, "T"}, {"W", kFloats, "T"}, {"B", kFloats, "T", Presence::optional}}, convolution_attributes()),
      chained("ChainedMatMul", {{"A", kFloats, "T", Presence::required, of_ranks(1)}, {"B", kFloats, "T", Presence::required, of_ranks(1)}},
              {}),
      chained("ChainedGemm", {{"A", kFloats, "T"}, {"B", kFloats, "T"}, {"C", kFloats, "T", Presence::optional}},
              {{"alpha", 1.0F}, {"beta", 1.0F}, {"transA", int64_t{0}}, {"transB", int64_t{0}}}),
  };
}

}  // namespace treadle::ops
