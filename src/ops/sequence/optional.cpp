// Implements Optional (opset 15, 28), OptionalHasElement and OptionalGetElement (opset 15, 18, 28).
#include "graph/infer.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kElements = kAllTensors | kSequences;

struct MakeOptional {
  static constexpr bool allocates = true;
  bool has_value;
  static MakeOptional bind(BindContext& c) { return {c.has_input(0)}; }
  void run(RunContext& c) const { c.set_output(0, Optional{has_value ? std::make_shared<Datum>(c.input(0)) : nullptr}); }
};

void infer_make(InferContext& c) {
  if (c.has_input(0)) return c.set_output(0, Type::optional(c.input(0)));
  const Attribute* attribute = c.attributes().find("type");
  const auto* type = attribute ? std::get_if<Type>(attribute) : nullptr;
  if (!type) throw Error(ErrorCode::invalid_model, "neither the input nor the attribute \"type\", a type, is given");
  c.set_output(0, Type::optional(*type));
}

struct HasElement {
  static constexpr bool allocates = true;
  bool has_input;
  static HasElement bind(BindContext& c) { return {c.has_input(0)}; }
  void run(RunContext& c) const {
    bool has = has_input && (c.input(0).kind() != Datum::Kind::optional || c.input(0).optional().value != nullptr);
    c.set_output(0, Tensor::scalar<bool>(has));
  }
};

void infer_has(InferContext& c) {
  c.set_output(0, DType::boolean, SymbolicShape{});
  if (!c.has_input(0))
    c.set_known(0, {0});
  else if (c.input(0).kind == Type::Kind::tensor || c.input(0).kind == Type::Kind::sequence)
    c.set_known(0, {1});
}

struct GetElement {
  static constexpr bool allocates = true;
  static GetElement bind(BindContext&) { return {}; }
  void run(RunContext& c) const {
    const Datum& input = c.input(0);
    if (input.kind() != Datum::Kind::optional) return c.set_output(0, input);
    if (!input.optional().value) throw Error(ErrorCode::invalid_argument, "the optional holds nothing");
    c.set_output(0, *input.optional().value);
  }
};

void infer_get(InferContext& c) {
  const Type& type = c.input(0);
  c.set_output(0, type.kind == Type::Kind::optional ? (type.element ? *type.element : Type{}) : type);
}

}  // namespace

std::vector<OpDef> optional_ops() {
  return {
      {.name = "Optional",
       .since = {15, 28},
       .inputs = {{"input", kElements, "", Presence::optional}},
       .outputs = {{"output", kOptionals}},
       .attributes = {{"type"}},
       .infer = infer_make,
       .kernels = {kernel<MakeOptional>()},
       .gradient = gradients::identity},
      {.name = "OptionalHasElement",
       .since = {15, 18, 28},
       .inputs = {{"input", kElements | kOptionals, "", Presence::optional}},
       .outputs = {{"output", kBool}},
       .infer = infer_has,
       .kernels = {kernel<HasElement>()}},
      {.name = "OptionalGetElement",
       .since = {15, 18, 28},
       .inputs = {{"input", kElements | kOptionals}},
       .outputs = {{"output", kElements}},
       .infer = infer_get,
       .kernels = {kernel<GetElement>()},
       .gradient = gradients::identity},
  };
}

}  // namespace treadle::ops
