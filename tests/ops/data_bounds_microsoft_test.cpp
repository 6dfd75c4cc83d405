// Rows of the table (data_bounds.h) for com.microsoft's other operators, which should behave as onnxruntime's do.
#include <cmath>
#include <cstring>

#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

using Numbers = std::vector<double>;
constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();

int64_t from_front(int64_t index, int64_t extent) { return index < 0 ? index + extent : index; }
int32_t narrow(int64_t v) { return static_cast<int32_t>(v); }
Datum narrow_of(const Shape& shape, std::vector<int32_t> x) { return tensor<int32_t>(shape, std::move(x)); }

std::vector<BoundsRow> image_rows() {
  auto crop = [](int64_t image, int64_t height) {
    return BoundsCase{{tensor<float>({2, 1, 2, 2}, {3, 3, 3, 3, 5, 5, 5, 5}), tensor<float>({1, 4}, {0, 0, 1, 1}), ints32({narrow(image)}),
                       ints({height, 1})}};
  };
  return {
      {"com.microsoft", "CropAndResize", 2, [crop](int64_t v) { return crop(v, 1); }, 0, 1, Beyond::refused,
       [](int64_t v) { return Numbers{v == 0 ? 3.0 : 5.0}; }},
      {"com.microsoft", "CropAndResize", 3, [crop](int64_t v) { return crop(0, v); }, 1, 4, Beyond::too_large,
       [](int64_t v) { return Numbers(static_cast<size_t>(v), 3); }},
  };
}

// Looks up rows of a table, which are then normalised to (-1, 1) or (1, -1). Negative indices count from the end, as in Gather.
std::vector<BoundsRow> embedding_rows() {
  std::vector<BoundsRow> rows;
  auto embed = [](size_t operand) {
    return [operand](int64_t v) {
      auto table = [](bool used) { return used ? tensor<float>({3, 2}, {0, 1, 1, 0, 0, 2}) : tensor<float>({3, 2}, {0, 0, 0, 0, 0, 0}); };
      std::vector<Datum> inputs(9);
      inputs[0] = narrow_of({1, 1}, {operand == 0 ? narrow(v) : 0}), inputs[1] = narrow_of({1, 1}, {operand == 1 ? narrow(v) : 0});
      inputs[2] = table(operand == 0), inputs[3] = table(operand == 8), inputs[4] = table(operand == 1);
      inputs[5] = tensor<float>({2}, {1, 1}), inputs[6] = tensor<float>({2}, {0, 0});
      inputs[8] = narrow_of({1, 1}, {operand == 8 ? narrow(v) : 0});
      return BoundsCase{inputs};
    };
  };
  auto normalized = [](int64_t v) { return from_front(v, 3) == 1 ? Numbers{1, -1} : Numbers{-1, 1}; };
  for (const size_t operand : {0, 1, 8})
    rows.push_back({"com.microsoft", "EmbedLayerNormalization", operand, embed(operand), -3, 2, Beyond::refused, normalized});
  auto quantized = [](size_t operand) {
    return [operand](int64_t v) {
      auto bytes = [](const Shape& shape, std::vector<uint8_t> x) { return tensor<uint8_t>(shape, std::move(x)); };
      auto table = [&](bool used) { return used ? bytes({3, 2}, {0, 1, 1, 0, 0, 2}) : bytes({3, 2}, {0, 0, 0, 0, 0, 0}); };
      std::vector<Datum> inputs(13);
      inputs[0] = narrow_of({1, 1}, {operand == 0 ? narrow(v) : 0}), inputs[1] = narrow_of({1, 1}, {operand == 1 ? narrow(v) : 0});
      inputs[2] = table(operand == 0), inputs[3] = bytes({1, 2}, {0, 0}), inputs[4] = table(operand == 1);
      inputs[5] = bytes({2}, {1, 1}), inputs[6] = bytes({2}, {0, 0});
      for (size_t i = 8; i < 13; ++i) inputs[i] = Tensor::scalar(1.0F);
      return BoundsCase{inputs};
    };
  };
  for (const size_t operand : {0, 1})
    rows.push_back({"com.microsoft", "QEmbedLayerNormalization", operand, quantized(operand), -3, 2, Beyond::refused, normalized});

  auto blocks = [](int64_t v) {
    Tensor codes(DType::uint4, Shape{3, 16}), zero_points(DType::uint4, Shape{3, 1});
    for (int row = 0; row < 3; ++row) std::memset(codes.raw() + 8 * row, 0x11 * (row + 1), 8);
    std::memset(zero_points.raw(), 0, zero_points.size_bytes());
    BoundsCase c{{codes, ints({v}), tensor<float>({3, 1}, {1, 1, 1}), zero_points}, {{"block_size", int64_t{16}}}};
    c.whole_rank_known = true;
    return c;
  };
  rows.push_back({"com.microsoft", "GatherBlockQuantized", 1, blocks, -3, 2, Beyond::defined,
                  [](int64_t v) { return Numbers(16, v < -3 || v > 2 ? 0 : static_cast<double>(from_front(v, 3) + 1)); }});
  auto word = [](int64_t v) {
    BoundsCase c{
        {narrow_of({1, 1}, {narrow(v)}), tensor<float>({1, 1, 1, 1}, {1}), tensor<float>({1}, {0}), tensor<float>({3, 1}, {1, 2, 3})}};
    c.whole_rank_known = true;
    return c;
  };
  // Character 0 ends a word.
  rows.push_back({"com.microsoft",
                  "WordConvEmbedding",
                  0,
                  word,
                  -3,
                  2,
                  Beyond::refused,
                  [](int64_t v) { return Numbers{v <= 0 ? 0 : std::tanh(static_cast<double>(v + 1))}; },
                  {0}});
  return rows;
}

std::vector<BoundsRow> token_rows() {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  auto repeated = [](int64_t v) {
    return BoundsCase{{tensor<int64_t>({1, 3}, {1, v, 1}), counting({1, 4})}, {{"ngram_size", int64_t{2}}}};
  };
  auto banned = [](int64_t v) {
    Numbers scores{1, 2, 3, 4};
    scores[static_cast<size_t>(v)] = kNever;
    return scores;
  };
  auto matched = [](int64_t v) {
    BoundsCase c{
        {ints({1, 2, 3}), ints({9}), ints({v}), Datum(ints(std::vector<int64_t>(static_cast<size_t>(v < 0 || v > 3 ? 1 : 4 - v), 7)))}};
    c.num_outputs = 2;
    return c;
  };
  auto packed = [](int64_t end) {
    return BoundsCase{{ints({1, 2, 3}), ints({1, 0}), ints({100}), ints32({0, narrow(end)})},
                      {{"max_ngram_size", int64_t{2}}, {"n_head_per_ngram", int64_t{1}}, {"pad_id", int64_t{50}}}};
  };
  return {
      {"com.microsoft", "NGramRepeatBlock", 0, repeated, 0, 3, Beyond::refused, banned, {1, 2}},
      {"com.microsoft", "BifurcationDetector", 2, matched, 0, 3, Beyond::refused,
       [](int64_t) {
         return Numbers{9, 7, -1};
       }},
      {"com.microsoft", "VarlenNGramHashMapping", 3, packed, 3, 3, Beyond::refused,
       [](int64_t) {
         return Numbers{1, 2, 3};
       }},
  };
}

// Multiplies ones [1, 16] by codes less 8, with one scale for each group of columns.
std::vector<BoundsRow> product_rows() {
  auto grouped = [](int64_t v) {
    Tensor codes(DType::uint8, Shape{1, 2, 8});
    std::memset(codes.raw(), 0x99, 16);  // each code less its zero point is 1
    std::vector<int32_t> groups(32, 0);
    groups[5] = narrow(v);
    return BoundsCase{{filled({1, 32}, 1), codes, tensor<float>({2}, {1, 100}), Datum(), ints32(groups)},
                      {{"K", int64_t{32}}, {"N", int64_t{1}}, {"bits", int64_t{4}}, {"block_size", int64_t{16}}}};
  };
  std::vector<BoundsRow> rows = {{"com.microsoft", "MatMulNBits", 4, grouped, -2, 1, Beyond::refused,
                                  [](int64_t v) { return Numbers{from_front(v, 2) == 0 ? 32.0 : 131.0}; }}};
  auto make = rows[0].make;
  rows[0].make = [make](int64_t v) {
    BoundsCase c = make(v);
    c.constant_operands = {1};
    return c;
  };
  return rows;
}

// Makes a node that computes cumulative sums of four ones, over the sequence that ends at `ends[1]` and the sequence that follows.
BoundsCase delta_net(std::vector<int32_t> ends, Datum captured = {}, Datum active = {}) {
  const Datum ones = filled({4, 1, 1}, 1);
  BoundsCase c{{ones, ones, ones, ints32(std::move(ends))}, {{"update_rule", std::string("linear")}, {"scale", 1.0F}}};
  if (!captured.defined()) return c;
  c.attributes.set("state_update_capacity", int64_t{1});
  c.inputs.resize(9), c.inputs.push_back(std::move(captured)), c.inputs.push_back(std::move(active));
  c.num_outputs = 3;
  return c;
}

std::vector<BoundsRow> sequence_packing_rows() {
  auto sums = [](int64_t v) {
    Numbers y;
    for (int64_t t = 0; t < 4; ++t) y.push_back(static_cast<double>(t < v ? t + 1 : t - v + 1));
    return y;
  };
  // Returns the sums, the final state, and the decay, key and value of one token, or zeros if the token is not captured.
  auto kept = [](bool kept) { return kept ? Numbers{1, 2, 3, 4, 4, 1, 1, 1} : Numbers{1, 2, 3, 4, 4, 0, 0, 0}; };
  auto packed = [](int64_t v) {
    Tensor rows(DType::float32, {2, 1});
    rows.data<float>()[0] = 5, rows.data<float>()[1] = 7;
    Tensor bytes(DType::uint8, {2, 4});
    std::memcpy(bytes.data<uint8_t>(), rows.data<float>(), 8);
    return BoundsCase{{bytes, ints({v})}, {{"packed_type", int64_t{0}}, {"K", int64_t{1}}, {"output_dtype", int64_t{1}}}};
  };
  return {
      {"com.microsoft",
       "GatedDeltaNet",
       3,
       [](int64_t v) {
         return delta_net({0, narrow(v), 4});
       },
       0,
       4,
       Beyond::refused,
       sums,
       {1, 2}},
      {"com.microsoft", "GatedDeltaNet", 9,
       [](int64_t v) {
         return delta_net({0, 4}, ints32({narrow(v)}));
       },
       0, 1, Beyond::defined, [kept](int64_t v) { return kept(v > 0); }},
      {"com.microsoft", "GatedDeltaNet", 10,
       [](int64_t v) {
         return delta_net({0, 4}, ints32({1}), ints32({narrow(v)}));
       },
       0, 1, Beyond::defined, [kept](int64_t v) { return kept(v != 0); }},
      // An index out of range selects the first row.
      {"com.microsoft", "GatherPacked", 1, packed, 0, 1, Beyond::defined, [](int64_t v) { return Numbers{v == 1 ? 7.0 : 5.0}; }},
  };
}

}  // namespace

std::vector<BoundsRow> microsoft_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {image_rows, embedding_rows, token_rows, product_rows, sequence_packing_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace treadle::testing
