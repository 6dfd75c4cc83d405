// Computes LinearClassifier, LinearRegressor and Normalizer.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/checked.h"
#include "gpu/scores.h"
#include "gpu/shaders.h"
#include "ops/ml/linear_model.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

struct LinearState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  DeviceData data;
  ScoreShader scores;
  size_t coefficients = 0, intercepts = 0;  // offsets of the arrays in the device data
  int64_t count = 0, results = 0;
  bool has_intercepts = false;
  std::unique_ptr<const PackedState> model;  // an ops::LinearModel in the type `scores.numbers`
  size_t size_bytes() const override { return data.size_bytes(); }

  void check_columns(int64_t of_x) const {
    if (scores.numbers == DType::float64)
      static_cast<const ops::LinearModel<double>&>(*model).check_columns(of_x);
    else
      static_cast<const ops::LinearModel<float>&>(*model).check_columns(of_x);
  }
};

struct Linear {
  int64_t rows, columns;
  DType x;
  int64_t numbers, sums;  // offsets in scratch memory, in bytes

  static Linear bind(BindContext& c) {
    const auto& state = c.packed<LinearState>();
    const auto [rows, columns] = ops::rows_and_columns(c.shape(0));
    state.check_columns(columns);
    Linear k{rows, columns, c.dtype(0), 0, 0};
    count32(checked_mul(rows, std::max(columns, state.results)));
    ops::ScratchLayout layout;
    const size_t element = bits_of(state.scores.numbers) / 8;
    if (k.x != state.scores.numbers) k.numbers = layout.take(static_cast<size_t>(rows * columns) * element);
    k.sums = layout.take(static_cast<size_t>(rows * state.results) * element);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<LinearState>();
    const std::byte* const data = state.data.here();
    Push push;
    push.pointer(ops::scratch_at(c, sums));
    push.pointer(convert_elements(x, c.in<void>(0), state.scores.numbers, ops::scratch_at(c, numbers), rows * columns));
    push.pointer(data + state.coefficients).pointer(data + state.intercepts);
    push_sizes(push, {rows, columns, state.count, state.results});
    push.word(uint32_t{state.has_intercepts});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(rows * state.count)));
    const bool classifies = (state.scores.flags & ScoreShader::has_labels) != 0;
    state.scores.dispatch({ops::scratch_at(c, sums), rows, state.results, state.count, state.results}, data,
                          c.out<void>(classifies ? 1 : 0), classifies ? c.out<void>(0) : nullptr);
  }
};

template <typename T>
void add_linear(const ops::LinearModel<T>& model, bool classifies, LinearState& state) {
  const auto kind = classifies ? ScoreShader::Kind::linear : ScoreShader::Kind::regression;
  state.scores = ScoreShader(kind, dtype_of<T>, model.transform, model.labels, state.data);
  state.coefficients = state.data.add(model.coefficients), state.intercepts = state.data.add(model.intercepts);
  state.count = model.scores;
  state.results = classifies && model.scores == 1 && model.labels.count() == 2 ? 2 : model.scores;
  state.has_intercepts = !model.intercepts.empty();
}

struct NormalizerState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  DType numbers = DType::float32;
};

struct Normalizer {
  int64_t rows, columns;
  DType x;

  static Normalizer bind(BindContext& c) {
    const auto [rows, columns] = ops::rows_and_columns(c.shape(0));
    const DType numbers = c.packed<NormalizerState>().numbers;
    count32(c.num_elements(0));
    if (c.dtype(0) != numbers) c.request_scratch(static_cast<size_t>(c.num_elements(0)) * bits_of(numbers) / 8);
    return {rows, columns, c.dtype(0)};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<NormalizerState>();
    Push push;
    push.pointer(c.out<void>(0)).pointer(convert_elements(x, c.in<void>(0), state.numbers, c.scratch<void>(), rows * columns));
    push.word(static_cast<uint32_t>(rows)).word(static_cast<uint32_t>(columns));
    stream().dispatch(*state.shader, push.bytes(), groups_for(rows));
  }
};

}  // namespace

DeviceKernel find_linear(const Graph& graph, const Node& node) {
  static const KernelDef linear = kernel<Linear>("gpu"), normalizer = kernel<Normalizer>("gpu");
  const DType x = graph.type(node.inputs[0]).dtype, numbers = numbers_of(x);
  if (!is_ml_number(x)) return {};
  if (node.op_type == "Normalizer") {
    const uint32_t constants[] = {static_cast<uint32_t>(ops::norm_of(node.attributes))};
    auto state = std::make_shared<NormalizerState>();
    state->shader = find_shader("normalizer", numbers, constants);
    state->numbers = numbers;
    return {&normalizer, std::move(state)};
  }
  const bool classifies = node.op_type == "LinearClassifier";
  if (!classifies && node.op_type != "LinearRegressor") return {};
  auto state = std::make_shared<LinearState>();
  state->model = select_kernel(graph, node).create(CreateContext(graph, node));
  if (numbers == DType::float64)
    add_linear(static_cast<const ops::LinearModel<double>&>(*state->model), classifies, *state);
  else
    add_linear(static_cast<const ops::LinearModel<float>&>(*state->model), classifies, *state);
  state->shader = find_shader("linear", numbers);
  return {&linear, std::move(state)};
}

}  // namespace treadle::gpu
