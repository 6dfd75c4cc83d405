// Rows of the table (data_bounds.h) for the domain `treadle`: gradients of indexing operators, caches, beam searches, updates of rows.
#include <cmath>

#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

using Numbers = std::vector<double>;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();

int64_t from_front(int64_t index, int64_t extent) { return index < 0 ? index + extent : index; }
int32_t narrow(int64_t v) { return static_cast<int32_t>(v); }
Numbers zeros_with(int64_t count, std::vector<std::pair<int64_t, double>> elements) {
  Numbers x(static_cast<size_t>(count), 0);
  for (const auto& [place, value] : elements) x[static_cast<size_t>(place)] += value;
  return x;
}

std::vector<BoundsRow> gather_gradient_rows() {
  auto indices = [](int64_t v) { return BoundsCase{{counting({2}), ints({0, v}), ints({3})}}; };
  auto shape = [](int64_t v) { return BoundsCase{{counting({2}), ints({0, 1}), ints({v})}}; };
  auto rows_of = [](int64_t v) {
    BoundsCase c{{counting({2, 1}), ints({0, v}), ints({3, 1})}};
    c.num_outputs = 2;
    return c;
  };
  auto in_order = [](int64_t v) {
    const int64_t at = from_front(v, 3);
    return at == 0 ? Numbers{3, 0, 0, -1} : Numbers{1, 2, 0, static_cast<double>(at)};
  };
  auto rows_of_shape = [](int64_t v) {
    BoundsCase c{{counting({2, 1}), ints({0, 1}), ints({v, 1})}};
    c.num_outputs = 2;
    return c;
  };
  return {
      {"treadle", "GatherGrad", 1, indices, -3, 2, Beyond::refused,
       [](int64_t v) {
         return zeros_with(3, {{0, 1}, {from_front(v, 3), 2}});
       }},
      {"treadle",
       "GatherGrad",
       2,
       shape,
       2,
       5,
       Beyond::too_large,
       [](int64_t v) {
         return zeros_with(v, {{0, 1}, {1, 2}});
       },
       {},
       0},
      {"treadle", "GatherGradRows", 1, rows_of, -3, 2, Beyond::refused, in_order},
      {"treadle", "GatherGradRows", 2, rows_of_shape, 2, kMax, Beyond::refused,
       [](int64_t) {
         return Numbers{1, 2, 0, 1};
       }},
  };
}

std::vector<BoundsRow> slice_gradient_rows() {
  // Makes the gradient of a slice of two of four elements.
  auto axes = [](int64_t v) { return BoundsCase{{counting({1, 2}), ints({2, 2}), ints({1}), Datum(), ints({v})}}; };
  auto steps = [](int64_t v) { return BoundsCase{{counting({2}), ints({4}), ints({0}), Datum(), ints({0}), ints({v})}}; };
  auto shape = [](int64_t v) { return BoundsCase{{counting({2}), ints({v}), ints({0})}}; };
  return {
      {"treadle", "SliceGrad", 1, shape, 2, 5, Beyond::too_large,
       [](int64_t v) {
         return zeros_with(v, {{0, 1}, {1, 2}});
       }},
      {"treadle",
       "SliceGrad",
       4,
       axes,
       0,
       0,
       Beyond::refused,
       [](int64_t) {
         return Numbers{0, 0, 1, 2};
       },
       {},
       0,
       /*is_named=*/false},
      {"treadle",
       "SliceGrad",
       5,
       steps,
       1,
       3,
       Beyond::refused,
       [](int64_t v) {
         return zeros_with(4, {{0, 1}, {v, 2}});
       },
       {},
       0,
       /*is_named=*/false},
  };
}

std::vector<BoundsRow> pool_gradient_rows() {
  auto max_pool = [](int64_t index, int64_t extent) {
    return BoundsCase{{counting({1, 1, 2}), tensor<int64_t>({1, 1, 2}, {0, index}), ints({1, 1, extent})}};
  };
  // A window that covers only padding has the index -1. All negative indices are treated so.
  auto at_index = [](int64_t v) { return v < 0 ? zeros_with(4, {{0, 1}}) : zeros_with(4, {{0, 1}, {v, 2}}); };
  auto region = [](size_t operand) {
    return [operand](int64_t v) {
      std::vector<Datum> inputs{filled({2, 1, 2, 2}, 1), tensor<float>({1, 4}, {0, 0, 0, 0}), operand == 2 ? ints({v}) : Datum(),
                                filled({1, 1, 1, 1}, 8)};
      BoundsCase c{inputs};
      c.num_compared = 0;
      return c;
    };
  };
  auto crop = [](int64_t v) {
    return BoundsCase{{filled({2, 1, 2, 2}, 1), tensor<float>({1, 4}, {0, 0, 0, 0}), ints32({narrow(v)}), filled({1, 1, 1, 1}, 8)}};
  };
  auto of_image = [](int64_t v) { return zeros_with(8, {{4 * v, 8}}); };
  return {
      {"treadle", "MaxPoolGrad", 1, [max_pool](int64_t v) { return max_pool(v, 4); }, kMin, 3, Beyond::refused, at_index, {-1, 0}},
      {"treadle", "MaxPoolGrad", 2, [max_pool](int64_t v) { return max_pool(1, v); }, 2, 5, Beyond::too_large,
       [](int64_t v) {
         return zeros_with(v, {{0, 1}, {1, 2}});
       }},
      {"treadle", "RoiAlignGrad", 2, region(2), 0, 1, Beyond::refused, [](int64_t) { return Numbers{}; }},
      {"treadle", "CropAndResizeGrad", 2, crop, 0, 1, Beyond::refused, of_image},
  };
}

// Rows for gradient operators that have a shape as an input. Only one shape is valid.
std::vector<BoundsRow> given_shape_rows() {
  std::vector<BoundsRow> rows;
  auto add = [&](const char* op, size_t operand, std::vector<Datum> inputs, std::vector<int64_t> shape, size_t axis, Attributes attributes,
                 Numbers expected) {
    auto make = [=](int64_t v) {
      std::vector<Datum> all = inputs;
      std::vector<int64_t> given = shape;
      given[axis] = v;
      all[operand] = ints(given);
      return BoundsCase{all, attributes};
    };
    rows.push_back({"treadle",
                    op,
                    operand,
                    make,
                    shape[axis],
                    shape[axis],
                    Beyond::too_large,
                    [expected](int64_t) { return expected; },
                    {},
                    0,
                    false});
  };
  const Attributes window{{"kernel_shape", std::vector<int64_t>{2}}};
  add("AveragePoolGrad", 1, {filled({1, 1, 2}, 2), Datum()}, {1, 1, 3}, 2, window, {1, 2, 1});
  add("ConvGradInput", 2, {filled({1, 1, 2}, 2), filled({1, 1, 2}, 1), Datum()}, {1, 1, 3}, 2, window, {2, 4, 2});
  add("ConvGradWeights", 2, {filled({1, 1, 2}, 2), filled({1, 1, 3}, 1), Datum()}, {1, 1, 2}, 2, window, {4, 4});
  add("Col2ImGrad", 3, {counting({1, 1, 3}), ints({3}), ints({2}), Datum()}, {1, 2, 2}, 2, {}, {1, 2, 2, 3});
  add("Col2ImGrad", 1, {counting({1, 1, 3}), Datum(), ints({2}), ints({1, 2, 2})}, {3}, 0, {}, {1, 2, 2, 3});
  add("Col2ImGrad", 2, {counting({1, 1, 3}), ints({3}), Datum(), ints({1, 2, 2})}, {2}, 0, {}, {1, 2, 2, 3});
  add("NegativeLogLikelihoodLossGrad", 2, {tensor<float>({1}, {5}), ints({0}), Datum(), tensor<float>({3}, {1, 2, 3})}, {1, 3}, 1,
      {{"reduction", std::string("none")}}, {-5, 0, 0});
  return rows;
}

std::vector<BoundsRow> update_rows() {
  // Writes new keys at an index of a cache of three rows, with a past of two.
  auto cache = [](int64_t place, int64_t length) {
    return BoundsCase{{filled({1, 1, 1}, 9), ints({place}), ints({length}), counting({1, 1, 2, 1})}};
  };
  auto written = [](int64_t v) {
    Numbers y{1, 2, 0};
    y[static_cast<size_t>(v)] = 9;
    return y;
  };
  auto of_length = [](int64_t v) {
    Numbers y(static_cast<size_t>(v), 0);
    y[0] = 9;
    if (v > 1) y[1] = 2;
    return y;
  };
  auto counted = [cache](int64_t v) {
    BoundsCase c = cache(0, 3);
    c.inputs.push_back(ints32({narrow(v)}));
    return c;
  };
  auto positions = [](size_t operand) {
    return [operand](int64_t v) {
      std::vector<Datum> inputs{filled({1, 1, 1}, 1), filled({1, 1, 2, 1}, 0), ints32({0}), ints32({2})};
      inputs[operand] = ints32({narrow(v)});
      BoundsCase c{inputs};
      c.num_outputs = 4;
      return c;
    };
  };
  auto places = [](double first, double length) { return Numbers{first, first + 1, first, length}; };
  auto beams = [](int32_t beam, int64_t past) {
    return BoundsCase{{counting({2, 1, 2, 1}), tensor<int32_t>({1, 2, 2}, {beam, 1, 0, 0}), ints({past})}};
  };
  auto ids = [](int64_t v) {
    BoundsCase c{{filled({1, 1, 1}, 1), filled({1, 1, 2, 1}, 0), ints32({0}), ints32({2}), tensor<int64_t>({1, 1}, {v})}};
    c.num_outputs = 4;
    return c;
  };
  return {
      {"treadle", "UpdateCache", 1, [cache](int64_t v) { return cache(v, 3); }, 0, 2, Beyond::refused, written, {1}},
      {"treadle", "UpdateCache", 2, [cache](int64_t v) { return cache(0, v); }, 1, 5, Beyond::too_large, of_length},
      {"treadle", "UpdateCache", 4, counted, 0, 1, Beyond::refused,
       [](int64_t v) {
         return Numbers{v == 0 ? 1.0 : 9.0, 2, 0};
       }},
      {"treadle", "GatherBeams", 1, [beams](int64_t v) { return beams(narrow(v), 2); }, 0, 1, Beyond::refused,
       [](int64_t v) {
         return Numbers{v == 0 ? 1.0 : 3.0, 4, 1, 2};
       }},
      {"treadle", "GatherBeams", 2, [beams](int64_t v) { return beams(1, v); }, 0, 2, Beyond::refused,
       [](int64_t v) {
         return v == 0 ? Numbers{1, 2, 3, 4} : v == 1 ? Numbers{3, 2, 1, 4} : Numbers{3, 4, 1, 2};
       }},
      {"treadle", "CachePositions", 2, positions(2), 0, 1, Beyond::refused,
       [places](int64_t v) { return places(static_cast<double>(v), 2); }},
      {"treadle", "CachePositions", 3, positions(3), 1, 3, Beyond::refused, [places](int64_t v) { return places(0, v == 3 ? 3 : 2); }, {2}},
      // The ids are only looked up in a table, where another row tests their bounds.
      {"treadle", "CachePositions", 4, ids, 0, 1, Beyond::defined,
       [](int64_t v) {
         return Numbers{0, 1, static_cast<double>(v), 2};
       }},
  };
}

std::vector<BoundsRow> sparse_update_rows() {
  std::vector<BoundsRow> rows;
  // With a learning rate of 0, an update must not change the values.
  const struct {
    const char* name;
    size_t states;
    Attributes attributes;
  } kOptimizers[] = {
      {"LazyAdagrad", 1, {}},
      {"LazyMomentum", 1, {{"alpha", 0.0F}, {"beta", 0.0F}, {"mode", std::string("standard")}, {"norm_coefficient", 0.0F}}},
      {"LazyAdamUpdate", 2, {}},
      {"LazyRMSPropUpdate", 2, {}},
      {"LazyLionUpdate", 1, {}},
  };
  for (const auto& o : kOptimizers) {
    auto make = [o](int64_t v) {
      std::vector<Datum> inputs{Tensor::scalar(0.0F), scalar(1), counting({3, 1}), filled({1, 1}, 1)};
      for (size_t i = 0; i < o.states; ++i) inputs.push_back(filled({3, 1}, 0));
      inputs.push_back(ints({v}));
      BoundsCase c{inputs, o.attributes};
      c.num_outputs = 1 + static_cast<int>(o.states);
      c.num_compared = 1;
      return c;
    };
    // A negative index stands for a row that does not exist.
    rows.push_back({"treadle", o.name, 4 + o.states, make, kMin, 2, Beyond::refused, [](int64_t) { return Numbers{1, 2, 3}; }, {-1, 0}});
  }
  return rows;
}

std::vector<BoundsRow> loss_and_search_rows() {
  // There are two steps with three equally likely classes; class 0 is the blank. A negative label ends the sequence.
  auto labels = [](int64_t v) { return BoundsCase{{filled({1, 2, 3}, std::log(1.0F / 3)), tensor<int64_t>({1, 1}, {v})}}; };
  auto loss = [](int64_t v) { return Numbers{-std::log((v < 0 ? 1.0 : 3.0) / 9)}; };
  auto flow = [](int64_t v) {
    return BoundsCase{{Tensor::scalar(1.0F), filled({1, 2, 3}, std::log(1.0F / 3)), tensor<int64_t>({1, 1}, {v})}};
  };
  auto occupied = [](int64_t v) {
    if (v < 0) return Numbers{-1, 0, 0, -1, 0, 0};
    const double blank = -1.0 / 3, label = -2.0 / 3;
    return v == 1 ? Numbers{blank, label, 0, blank, label, 0} : Numbers{blank, 0, label, blank, 0, label};
  };
  auto running = [](int64_t v) { return BoundsCase{{counting({2, 2}), filled({2, 2}, 1), scalar(v)}}; };
  // The gradient of a cumulative product over ones is, at each element, the sum of the output's gradient from there on.
  auto summed = [](int64_t v) { return from_front(v, 2) == 0 ? Numbers{4, 6, 3, 4} : Numbers{3, 2, 7, 4}; };
  auto gathered = [](int64_t v) {
    SparseTensor rows{SparseTensor::Format::coo, Shape{4, 1}, floats({2, 1}, {5, 7}), ints({1, 3}).tensor(), {}};
    return BoundsCase{{Datum(rows), ints({v})}};
  };
  auto stored = [](int64_t v) {
    const int64_t at = from_front(v, 4);
    return Numbers{at == 1 ? 5.0 : at == 3 ? 7.0 : 0};
  };
  auto scores = [](int64_t v) {
    return BoundsCase{{counting({1, 3}), tensor<int32_t>({1, 1}, {narrow(v)}), scalar(0), ints32({5}), Datum(), Tensor::scalar(2.0F)}};
  };
  auto penalized = [](int64_t v) {
    Numbers y{1, 2, 3};
    y[static_cast<size_t>(v)] /= 2;
    return y;
  };
  // Makes a beam with one token, and a finished hypothesis with up to two tokens, 5 and 6.
  auto beams = [](int64_t num_found, bool is_done) {
    return std::vector<Datum>{tensor<float>({1, 2}, {1, 2}),      tensor<int32_t>({1, 1}, {4}), filled({1}, 1),
                              tensor<int32_t>({1, 1, 2}, {5, 6}), ints32({narrow(num_found)}),  tensor<bool>({1}, {is_done})};
  };
  auto step = [beams](int64_t v) {
    BoundsCase c{beams(v, false)};
    c.num_outputs = 8, c.num_compared = 1;
    return c;
  };
  auto sequences = [beams](int64_t found, int64_t returned) {
    BoundsCase c{beams(found, true)};
    c.inputs[0] = filled({1}, 1);
    c.inputs.insert(c.inputs.end(), {Datum(), ints32({narrow(returned)})});
    c.num_outputs = 2, c.num_compared = 1;
    return c;
  };
  auto padded = [](int64_t v) { return Numbers{v > 0 ? 5.0 : 0, v > 1 ? 6.0 : 0}; };
  auto most = [](int64_t v) { return BoundsCase{{counting({1, 3}), tensor<int32_t>({1, 1}, {0}), scalar(0), ints32({narrow(v)})}}; };
  return {
      {"treadle", "CtcLoss", 1, labels, kMin, 2, Beyond::refused, loss, {-1, 1}},
      {"treadle", "CtcLossGrad", 2, flow, kMin, 2, Beyond::refused, occupied, {-1, 1}},
      {"treadle", "CumProdGrad", 2, running, -2, 1, Beyond::refused, summed},
      {"treadle", "SparseGather", 1, gathered, -4, 3, Beyond::refused, stored},
      {"treadle", "SearchScores", 1, scores, 0, 2, Beyond::refused, penalized},
      {"treadle", "BeamStep", 4, step, 0, 2, Beyond::refused, [](int64_t) { return Numbers{2}; }, {1}},
      {"treadle", "BeamSequences", 4, [sequences](int64_t v) { return sequences(v, 1); }, 0, 2, Beyond::refused, padded, {1}},
      {"treadle", "BeamSequences", 7, [sequences](int64_t v) { return sequences(2, v); }, 1, 1, Beyond::refused,
       [padded](int64_t) { return padded(2); }},
      {"treadle", "SearchScores", 3, most, 2, kMax, Beyond::refused,
       [](int64_t) {
         return Numbers{1, 2, 3};
       }},
  };
}

}  // namespace

std::vector<BoundsRow> internal_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {gather_gradient_rows, slice_gradient_rows, pool_gradient_rows, given_shape_rows, update_rows, sparse_update_rows,
                     loss_and_search_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace treadle::testing
