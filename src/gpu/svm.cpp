// Computes SVMClassifier and SVMRegressor.
#include <algorithm>

#include "core/base/checked.h"
#include "gpu/scores.h"
#include "gpu/shaders.h"
#include "ops/ml/svm_model.h"
#include "ops/widen.h"

namespace treadle::gpu {
namespace {

constexpr int64_t kElementsAtOnce = int64_t{1} << 22;  // limit for elements in scratch memory; more rows are computed in several parts

/// How results are computed, with the numbers in svm_finish.comp.
enum class SvmResult : uint32_t { regression, linear, margins, coupled };

struct SvmState final : PackedState {
  const vulkan::Shader *similarity = nullptr, *margin = nullptr, *finish = nullptr;
  DeviceData data;
  DType numbers = DType::float32;
  SvmResult result = SvmResult::regression;
  size_t vectors = 0, coefficients = 0, rho = 0, prob_a = 0, prob_b = 0, starts = 0, labels = 0;  // offsets in the device data
  int64_t vector_count = 0, stride = 0, classes = 0, pairs = 0, num_labels = 0, results = 0;
  float gamma = 0, coef0 = 0, degree = 0;
  bool one_class = false;
  std::unique_ptr<const PackedState> model;  // an ops::SvmModel in the type `numbers`
  void (*check_columns)(const PackedState& model, int64_t of_x) = nullptr;
  size_t size_bytes() const override { return data.size_bytes(); }

  /// Returns the number of elements that svm_finish.comp needs per row: the scores, and working memory if probabilities are coupled.
  int64_t work() const {
    return result == SvmResult::coupled ? classes + kernels::pairwise_coupling_scratch(classes) : std::max(results, classes);
  }
};

struct Svm {
  int64_t rows, columns, rows_at_once;
  DType x;
  int64_t numbers, similarities, margins, work;  // offsets in scratch memory, in bytes

  static Svm bind(BindContext& c) {
    const auto& state = c.packed<SvmState>();
    const auto [rows, columns] = ops::rows_and_columns(c.shape(0));
    state.check_columns(*state.model, columns);
    const int64_t per_row = checked_add(checked_add(state.stride, state.pairs), state.work());
    Svm k{rows, columns, std::clamp<int64_t>(kElementsAtOnce / per_row, 1, std::max<int64_t>(rows, 1)), c.dtype(0), 0, 0, 0, 0};
    count32(checked_mul(rows, std::max(columns, state.results)));
    count32(checked_mul(k.rows_at_once, per_row));
    ops::ScratchLayout layout;
    const auto take = [&](int64_t elements) { return layout.take(static_cast<size_t>(elements) * bits_of(state.numbers) / 8); };
    if (k.x != state.numbers) k.numbers = take(rows * columns);
    k.similarities = take(k.rows_at_once * state.stride);
    k.margins = state.pairs > 0 ? take(k.rows_at_once * state.pairs) : k.similarities;
    k.work = take(k.rows_at_once * state.work());
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<SvmState>();
    const std::byte* const data = state.data.here();
    const auto* const all =
        static_cast<const std::byte*>(convert_elements(x, c.in<void>(0), state.numbers, ops::scratch_at(c, numbers), rows * columns));
    for (int64_t first = 0; first < rows; first += rows_at_once) {
      const int64_t count = std::min(rows_at_once, rows - first);
      Push push;
      push.pointer(ops::scratch_at(c, similarities)).pointer(all + first * columns * static_cast<int64_t>(bits_of(state.numbers) / 8));
      push.pointer(data + state.vectors);
      push_sizes(push, {count, columns, state.vector_count, state.stride});
      push.word(state.gamma).word(state.coef0).word(state.degree);
      stream().dispatch(*state.similarity, push.bytes(), groups_over(count32(count * state.vector_count)));
      if (state.pairs > 0) find_margins(c, state, data, count);
      finish(c, state, data, first, count);
    }
  }

 private:
  void find_margins(RunContext& c, const SvmState& state, const std::byte* data, int64_t count) const {
    Push push;
    push.pointer(ops::scratch_at(c, margins)).pointer(ops::scratch_at(c, similarities)).pointer(data + state.coefficients);
    push.pointer(data + state.rho).pointer(data + state.starts);
    push_sizes(push, {count, state.pairs, state.classes, state.vector_count, state.stride, state.pairs});
    stream().dispatch(*state.margin, push.bytes(), groups_over(count32(count * state.pairs)));
  }
  void finish(RunContext& c, const SvmState& state, const std::byte* data, int64_t first, int64_t count) const {
    const bool classifies = state.result != SvmResult::regression;
    auto* const y = c.out<float>(classifies ? 1 : 0);
    Push push;
    push.pointer(ops::scratch_at(c, margins)).pointer(data + state.rho).pointer(data + state.prob_a).pointer(data + state.prob_b);
    push.pointer(ops::scratch_at(c, work)).pointer(y ? y + first * state.results : nullptr).pointer(data + state.labels);
    push.pointer(classifies ? c.out<int64_t>(0) + first : nullptr);
    const int64_t stride = state.pairs > 0 ? state.pairs : state.stride;
    push_sizes(push, {count, stride, state.work(), state.classes, state.results, state.num_labels, y != nullptr, state.one_class});
    stream().dispatch(*state.finish, push.bytes(), groups_over(count32(count)));
  }
};

template <typename T>
void take_svm_model(const ops::SvmModel<T>& model, bool classifies, SvmState& state) {
  DeviceData& data = state.data;
  state.numbers = dtype_of<T>;
  state.vectors = data.add(model.packed), state.coefficients = data.add(model.coefficients), state.rho = data.add(model.rho);
  state.prob_a = data.add(model.prob_a), state.prob_b = data.add(model.prob_b), state.labels = data.add(model.labels.ints);
  std::vector<uint32_t> starts;  // first vector of each class, then the number of vectors
  for (const int64_t start : model.class_start) starts.push_back(static_cast<uint32_t>(start));
  starts.push_back(static_cast<uint32_t>(model.num_vectors));
  state.starts = data.add(starts);
  state.vector_count = model.vectors.count, state.stride = model.vectors.stride;
  state.classes = classifies ? model.num_classes : 1;
  state.num_labels = static_cast<int64_t>(model.labels.ints.size());
  state.results = classifies ? model.num_scores() : 1;
  state.gamma = model.kernel.gamma, state.coef0 = model.kernel.coef0, state.degree = model.kernel.degree;
  state.one_class = model.one_class;
  if (classifies)
    state.result = !model.has_vectors() ? SvmResult::linear : model.has_probabilities() ? SvmResult::coupled : SvmResult::margins;
  // A regression without support vectors has one vector of weights. It gets the coefficient 1.
  if (!classifies && !model.has_vectors()) state.coefficients = data.add(std::vector<T>{T{1}});
  state.pairs = !classifies ? 1 : model.has_vectors() ? model.num_pairs() : 0;
  const uint32_t kernel[] = {static_cast<uint32_t>(model.kernel.type)};
  const uint32_t results[] = {static_cast<uint32_t>(model.transform), static_cast<uint32_t>(state.result)};
  state.similarity = find_shader("svm_similarity", dtype_of<T>, kernel);
  state.margin = find_shader("svm_margin", dtype_of<T>);
  state.finish = find_shader("svm_finish", dtype_of<T>, results);
  state.check_columns = [](const PackedState& of, int64_t of_x) { static_cast<const ops::SvmModel<T>&>(of).check_columns(of_x); };
}

}  // namespace

DeviceKernel find_svm(const Graph& graph, const Node& node) {
  static const KernelDef svm = kernel<Svm>("gpu");
  const bool classifies = node.op_type == "SVMClassifier";
  const DType x = graph.type(node.inputs[0]).dtype;
  if ((!classifies && node.op_type != "SVMRegressor") || !is_ml_number(x)) return {};
  auto state = std::make_shared<SvmState>();
  state->model = select_kernel(graph, node).create(CreateContext(graph, node));
  if (numbers_of(x) == DType::float64)
    take_svm_model(static_cast<const ops::SvmModel<double>&>(*state->model), classifies, *state);
  else
    take_svm_model(static_cast<const ops::SvmModel<float>&>(*state->model), classifies, *state);
  return {&svm, std::move(state)};
}

}  // namespace treadle::gpu
