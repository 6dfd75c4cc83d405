// Implements LinearClassifier, LinearRegressor, Normalizer (ai.onnx.ml 1).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "kernels/classical/scores.h"
#include "ops/list.h"
#include "ops/ml/linear_model.h"

namespace treadle::ops {
namespace {

using kernels::PairFrom;
using kernels::PostTransform;

constexpr int64_t kRowGrain = 1024;

/// Returns the number of scores. It is the number of intercepts or, without intercepts, the number of rows that the coefficients form if
/// each row has as many elements as X has columns.
int64_t count_scores(const Attributes& attributes, const Type& x) {
  auto count = static_cast<int64_t>(attributes.get_ints("classlabels_ints").size() + attributes.get_strings("classlabels_strings").size());
  auto coefficients = static_cast<int64_t>(attributes.get_floats("coefficients").size());
  if (!attributes.get_floats("intercepts").empty()) return static_cast<int64_t>(attributes.get_floats("intercepts").size());
  if (x.has_rank() && x.rank() > 0 && x.shape->back().is_const() && x.shape->back().value() > 0)
    return coefficients / x.shape->back().value();
  return std::max<int64_t>(count, 1);
}

/// Computes the scores [rows, model.scores] of a batch of rows of X.
template <typename X>
struct LinearScores {
  using T = MlComputeType<X>;
  int64_t rows, columns;

  static size_t input_elements(int64_t rows, int64_t columns) {
    return std::is_same_v<X, T> ? 0 : align_up(static_cast<size_t>(checked_mul(rows, columns)), 16);
  }
  static LinearScores bind(BindContext& c) {
    const auto& model = c.packed<LinearModel<T>>();
    auto [rows, columns] = rows_and_columns(c.shape(0));
    model.check_columns(columns);
    c.request_scratch((input_elements(rows, columns) + static_cast<size_t>(checked_mul(rows, model.scores))) * sizeof(T));
    return {rows, columns};
  }

  T* run(RunContext& c) const {
    const auto& model = c.packed<LinearModel<T>>();
    const T* x = nullptr;
    T* scratch = c.scratch<T>();
    if constexpr (std::is_same_v<X, T>) {
      x = c.in<X>(0);
    } else {
      const X* source = c.in<X>(0);
      parallel_for(c.pool(), rows * columns, 16384, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) scratch[i] = static_cast<T>(source[i]);
      });
      x = scratch;
    }
    T* scores = scratch + input_elements(rows, columns);
    if (columns < model.columns) {
      score_prefix(model, x, scores, c.pool());
      return scores;
    }
    kernels::Epilogue<T> epilogue;
    if (!model.intercepts.empty()) epilogue.bias = model.intercepts.data();
    kernels::gemm<T>(rows, {x, columns, 1}, model.weights.view, scores, model.scores, epilogue, c.pool());
    return scores;
  }

  // A model may have more coefficients than X has columns. As in onnxruntime, whose own example is such a model, the coefficients are then
  // read as consecutive rows of X's length, and the rest is ignored.
  void score_prefix(const LinearModel<T>& model, const T* x, T* scores, ThreadPool* pool) const {
    parallel_for(pool, rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        for (int64_t k = 0; k < model.scores; ++k) {
          const T first = model.intercepts.empty() ? T(0) : model.intercepts[static_cast<size_t>(k)];
          scores[row * model.scores + k] =
              std::inner_product(x + row * columns, x + (row + 1) * columns, model.coefficients.data() + k * columns, first);
        }
    });
  }
};

template <typename X>
struct LinearClassifier {
  using T = MlComputeType<X>;
  LinearScores<X> scores;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto model = std::make_unique<LinearModel<T>>(c.attributes(), count_scores(c.attributes(), c.type(0)));
    model->labels = ClassLabels::of(c.attributes(), "classlabels_ints");
    return model;
  }
  static LinearClassifier bind(BindContext& c) { return {LinearScores<X>::bind(c)}; }

  void run(RunContext& c) const {
    const auto& model = c.packed<LinearModel<T>>();
    T* all = scores.run(c);
    auto* out = c.out<float>(1);
    bool pair = model.scores == 1 && model.labels.count() == 2;
    int64_t columns = pair ? 2 : model.scores;
    parallel_for(c.pool(), scores.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      T two[2];
      if (model.scores > 1) {
        for (int64_t row = begin; row < end; ++row) {
          const T* own = all + row * columns;
          model.labels.write(c, 0, row, std::max_element(own, own + columns) - own);
        }
        kernels::post_transform(model.transform, all + begin * columns, end - begin, columns);
        if (out)
          std::transform(all + begin * columns, all + end * columns, out + begin * columns, [](T v) { return static_cast<float>(v); });
        return;
      }
      for (int64_t row = begin; row < end; ++row) {
        T* own = all + row;
        if (pair) {
          // One score s decides between two labels. The other label's score is 1 - s, as in the operator's reference, unless post_transform
          // is LOGISTIC.
          model.labels.write(c, 0, row, own[0] > 0 ? 1 : 0);
          kernels::write_pair(model.transform, PairFrom::complement, own[0], two);
          own = two;
        } else {
          if (model.labels.count() == 1 && own[0] > 0)
            model.labels.write(c, 0, row, 0);
          else if (model.labels.strings.empty())
            c.out<int64_t>(0)[row] = own[0] > 0 ? 1 : 0;
          else
            c.out<std::string>(0)[row].clear();
          kernels::post_transform(model.transform, own, 1);
        }
        if (!out) continue;
        for (int64_t k = 0; k < columns; ++k) out[row * columns + k] = static_cast<float>(own[k]);
      }
    });
  }
};

template <typename X>
struct LinearRegressor {
  using T = MlComputeType<X>;
  LinearScores<X> scores;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    return std::make_unique<LinearModel<T>>(c.attributes(), c.attributes().get_int("targets", 1));
  }
  static LinearRegressor bind(BindContext& c) { return {LinearScores<X>::bind(c)}; }

  void run(RunContext& c) const {
    const auto& model = c.packed<LinearModel<T>>();
    T* all = scores.run(c);
    auto* out = c.out<float>(0);
    parallel_for(c.pool(), scores.rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels::post_transform(model.transform, all + row * model.scores, model.scores);
        for (int64_t k = row * model.scores; k < (row + 1) * model.scores; ++k) out[k] = static_cast<float>(all[k]);
      }
    });
  }
};

void infer_classifier(InferContext& c) {
  ClassLabels labels = ClassLabels::of(c.attributes(), "classlabels_ints");
  int64_t scores = count_scores(c.attributes(), c.input(0));
  set_row_output(c, 0, labels.dtype());
  set_row_output(c, 1, DType::float32, Dim(scores == 1 && labels.count() == 2 ? 2 : scores));
}

void infer_regressor(InferContext& c) { set_row_output(c, 0, DType::float32, Dim(c.get_int("targets", 1))); }

Cost cost(const ShapeContext& c) {
  auto coefficients = static_cast<double>(c.node().attributes.get_floats("coefficients").size());
  auto rows = static_cast<double>(c.shape(0).rank() == 2 ? c.shape(0)[0] : 1);
  return {.flops = 2 * rows * coefficients, .bytes = c.size_bytes(0) + 4 * coefficients};
}

// Divides each row by its largest element (not its largest magnitude), by the sum of its magnitudes, or by its Euclidean length. If the
// divisor is zero, the row is copied unchanged.
template <typename X>
struct Normalizer {
  int64_t rows, columns;
  Norm norm;

  static Normalizer bind(BindContext& c) {
    auto [rows, columns] = rows_and_columns(c.shape(0));
    return {rows, columns, norm_of(c.node().attributes)};
  }

  void run(RunContext& c) const {
    const X* x = c.in<X>(0);
    auto* y = c.out<float>(0);
    parallel_for(c.pool(), rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns)), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::span<const X> from(x + row * columns, static_cast<size_t>(columns));
        float* to = y + row * columns;
        double divisor = 0;
        if (norm == Norm::max) {
          if (!from.empty()) divisor = static_cast<double>(*std::max_element(from.begin(), from.end()));
          if (divisor == 0) divisor = 1;
          for (X value : from) *to++ = static_cast<float>(static_cast<double>(value) / divisor);
          continue;
        }
        for_blocks(from, [&](std::span<const X> block, bool zeros) {
          if (zeros) return;
          for (X value : block) {
            auto v = static_cast<double>(value);
            divisor += norm == Norm::l1 ? std::abs(v) : v * v;
          }
        });
        if (norm == Norm::l2) divisor = std::sqrt(divisor);
        if (divisor == 0) divisor = 1;
        const bool keeps_zeros = !std::isnan(divisor);
        for_blocks(from, [&](std::span<const X> block, bool zeros) {
          if (zeros && keeps_zeros) {
            to = std::fill_n(to, block.size(), 0.0F);
            return;
          }
          for (X value : block) *to++ = static_cast<float>(static_cast<double>(value) / divisor);
        });
      }
    });
  }

  // Rows are usually word counts, which are mostly 0. Blocks of zeros are skipped, because they add nothing to a norm and stay zero.
  template <typename Fn>
  static void for_blocks(std::span<const X> row, Fn fn) {
    constexpr size_t kBlock = 16;
    for (size_t at = 0; at < row.size(); at += kBlock) {
      const auto block = row.subspan(at, std::min(kBlock, row.size() - at));
      uint64_t bits = 1;
      if (block.size() == kBlock) {
        std::array<uint64_t, kBlock * sizeof(X) / sizeof(uint64_t)> words;
        std::memcpy(words.data(), block.data(), sizeof words);
        bits = 0;
        for (uint64_t word : words) bits |= word;
      }
      fn(block, bits == 0);
    }
  }
};

void infer_normalizer(InferContext& c) {
  num_rows(c);  // throws if the rank is wrong
  if (c.has_rank(0))
    c.set_output(0, DType::float32, c.shape(0));
  else
    c.set_output_dtype(0, DType::float32);
}

}  // namespace

std::vector<OpDef> ml_linear_ops() {
  using Required = AttributeDef::Required;
  return {
      {.name = "LinearClassifier",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", kLabels}, {"Z", {DType::float32}}},
       .attributes = {{"classlabels_ints"},
                      {"classlabels_strings"},
                      {"coefficients", Required{}},
                      {"intercepts"},
                      {"multi_class", int64_t{0}},
                      {"post_transform", std::string_view("NONE")}},
       .infer = infer_classifier,
       .cost = cost,
       .kernels = typed<LinearClassifier, float, double, int32_t, int64_t>()},
      {.name = "LinearRegressor",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"coefficients"}, {"intercepts"}, {"post_transform", std::string_view("NONE")}, {"targets", int64_t{1}}},
       .infer = infer_regressor,
       .cost = cost,
       .kernels = typed<LinearRegressor, float, double, int32_t, int64_t>()},
      {.name = "Normalizer",
       .domain = kMlDomain,
       .since = {1},
       .inputs = {{"X", kMlNumbers}},
       .outputs = {{"Y", {DType::float32}}},
       .attributes = {{"norm", std::string_view("MAX")}},
       .infer = infer_normalizer,
       .kernels = typed<Normalizer, float, double, int32_t, int64_t>()},
  };
}

}  // namespace treadle::ops
