// Computes TreeEnsembleClassifier, TreeEnsembleRegressor and TreeEnsemble.
#include <algorithm>
#include <variant>

#include "core/base/checked.h"
#include "gpu/scores.h"
#include "gpu/shaders.h"
#include "ops/ml/tree_model.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

// Limit for the leaves (rows times trees) in scratch memory. More rows are computed in several parts.
constexpr int64_t kLeavesAtOnce = int64_t{1} << 22;

struct TreesState final : PackedState {
  const vulkan::Shader *walk = nullptr, *sum = nullptr;
  DeviceData data;
  ScoreShader scores;
  size_t thresholds = 0, links = 0, roots = 0, first_vote = 0, targets = 0, weights = 0;  // offsets of the arrays in the device data
  int64_t num_trees = 0, num_targets = 0;
  std::unique_ptr<const ops::TreeModel> model;  // kept to check the number of columns
  size_t size_bytes() const override { return data.size_bytes(); }
};

struct Trees {
  int64_t rows, columns, rows_at_once;
  DType x;
  int64_t numbers, leaves, sums;  // offsets in scratch memory, in bytes

  static Trees bind(BindContext& c) {
    const auto& state = c.packed<TreesState>();
    const auto [rows, columns] = ops::rows_and_columns(c.shape(0));
    if (rows > 0) std::visit([columns = columns](const auto& trees) { trees.check_columns(columns); }, state.model->trees);
    const int64_t at_once = std::clamp<int64_t>(kLeavesAtOnce / std::max<int64_t>(state.num_trees, 1), 1, std::max<int64_t>(rows, 1));
    Trees k{rows, columns, at_once, c.dtype(0), 0, 0, 0};
    count32(checked_mul(rows, std::max(columns, state.num_targets)));
    ops::ScratchLayout layout;
    const size_t element = bits_of(state.scores.numbers) / 8;
    if (k.x != state.scores.numbers) k.numbers = layout.take(static_cast<size_t>(rows * columns) * element);
    k.leaves = layout.take(static_cast<size_t>(count32(checked_mul(at_once, state.num_trees))) * sizeof(uint32_t));
    k.sums = layout.take(static_cast<size_t>(at_once * state.num_targets) * element);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<TreesState>();
    const std::byte* const data = state.data.here();
    const auto bytes = static_cast<int64_t>(bits_of(state.scores.numbers) / 8);
    const auto* const all = static_cast<const std::byte*>(
        convert_elements(x, c.in<void>(0), state.scores.numbers, ops::scratch_at(c, numbers), rows * columns));
    const bool classifies = (state.scores.flags & ScoreShader::has_labels) != 0;
    for (int64_t first = 0; first < rows; first += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - first);
      Push push;
      push.pointer(all + first * columns * bytes).pointer(ops::scratch_at(c, leaves)).pointer(ops::scratch_at(c, sums));
      for (const size_t offset : {state.thresholds, state.links, state.roots, state.first_vote, state.targets, state.weights})
        push.pointer(data + offset);
      push_sizes(push, {count, state.num_trees, columns, state.num_targets});
      stream().dispatch(*state.walk, push.bytes(), groups_over(count32(count * state.num_trees)));
      stream().dispatch(*state.sum, push.bytes(), groups_over(count32(count * state.num_targets)));
      auto* y = c.out<std::byte>(classifies ? 1 : 0);
      const int64_t y_bytes = (state.scores.flags & ScoreShader::wide_y) != 0 ? bytes : int64_t{sizeof(float)};
      if (y) y += first * state.num_targets * y_bytes;
      state.scores.dispatch({ops::scratch_at(c, sums), count, state.num_targets, state.num_targets, state.num_targets}, data, y,
                            classifies ? c.out<int64_t>(0) + first : nullptr);
    }
  }
};

template <typename T>
void add_trees(const kernels::TreeEnsemble<T>& trees, const std::vector<double>& base, TreesState& state) {
  const auto arrays = trees.arrays();
  state.thresholds = state.data.add(arrays.thresholds), state.links = state.data.add(arrays.links);
  state.roots = state.data.add(arrays.roots), state.first_vote = state.data.add(arrays.first_vote);
  state.targets = state.data.add(arrays.targets), state.weights = state.data.add(arrays.weights);
  state.num_trees = trees.num_trees(), state.num_targets = trees.num_targets();
  state.scores.base = state.data.add(std::vector<T>(base.begin(), base.end()));
  state.scores.num_base = static_cast<int64_t>(base.size());
}

}  // namespace

DeviceKernel find_trees(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Trees>("gpu");
  const bool classifies = node.op_type == "TreeEnsembleClassifier";
  if (!classifies && node.op_type != "TreeEnsembleRegressor" && node.op_type != "TreeEnsemble") return {};
  if (!is_ml_number(graph.type(node.inputs[0]).dtype)) return {};
  const KernelDef& host = select_kernel(graph, node);
  std::unique_ptr<PackedState> made = host.create(CreateContext(graph, node));
  auto state = std::make_shared<TreesState>();
  state->model.reset(static_cast<const ops::TreeModel*>(made.release()));
  const ops::TreeModel& model = *state->model;
  const bool in_double = std::holds_alternative<kernels::TreeEnsemble<double>>(model.trees);
  const DType numbers = in_double ? DType::float64 : DType::float32;
  const bool is_wide = !classifies && graph.type(node.outputs[0]).dtype == DType::float64;
  const auto kind = classifies ? ScoreShader::Kind::trees : ScoreShader::Kind::regression;
  state->scores = ScoreShader(kind, numbers, model.transform, model.labels, state->data);
  uint32_t& flags = state->scores.flags;
  if (is_wide) flags |= ScoreShader::wide_y;
  if (model.probabilities) flags |= ScoreShader::probabilities;
  if (model.num_targets() == 2 && model.only_class == 0) flags |= ScoreShader::only_first;
  if (model.num_targets() == 2 && model.only_class == 1) flags |= ScoreShader::only_second;
  std::visit([&](const auto& trees) { add_trees(trees, model.base, *state); }, model.trees);
  for (const uint32_t sums : {0U, 1U}) {
    const uint32_t constants[] = {sums, static_cast<uint32_t>(model.aggregate)};
    (sums ? state->sum : state->walk) = find_shader("trees", numbers, constants);
  }
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
