// Rows of the table (data_bounds.h) for com.microsoft's attention operators: lengths of sequences and caches, positions, blocks.
#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

using Numbers = std::vector<double>;

int64_t from_front(int64_t index, int64_t extent) { return index < 0 ? index + extent : index; }
int32_t narrow(int64_t v) { return static_cast<int32_t>(v); }
Attributes one_head(bool shared) {
  Attributes attributes{{"num_heads", int64_t{1}}};
  if (shared) attributes.set("kv_num_heads", int64_t{1});
  return attributes;
}
/// Returns the result of attention for equal scores: the mean of the values.
double mean(const Numbers& x) {
  double sum = 0;
  for (const double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

BoundsCase known(std::vector<Datum> inputs, Attributes attributes) {
  BoundsCase c{std::move(inputs), std::move(attributes)};
  c.whole_rank_known = true;
  return c;
}

// The values of the past are 1 and 2, and the new value is 9. All keys are equal, so the result is the mean of the values.
BoundsCase group_query(int64_t last, int64_t total) {
  return known({filled({1, 1, 1}, 1), filled({1, 1, 1}, 0), filled({1, 1, 1}, 9), filled({1, 1, 2, 1}, 0), counting({1, 1, 2, 1}),
                ints32({narrow(last)}), ints32({narrow(total)})},
               one_head(true));
}
// The new token counts or does not count. If it does, there are two keys.
BoundsCase padded_query(int64_t count) {
  BoundsCase c = group_query(1, 3);
  c.inputs[3] = filled({1, 1, 3, 1}, 0), c.inputs[4] = counting({1, 1, 3, 1});
  c.inputs.resize(16), c.inputs.push_back(ints32({narrow(count)}));
  return c;
}
// Makes a case whose rotary position turns two features.
BoundsCase turned_query(int64_t position) {
  Attributes attributes = one_head(true);
  attributes.set("do_rotary", int64_t{1});
  return known({filled({1, 1, 2}, 1), filled({1, 1, 2}, 0), filled({1, 1, 2}, 9), Datum(), Datum(), ints32({0}), ints32({1}),
                counting({3, 1}), counting({3, 1}), tensor<int64_t>({1, 1}, {position})},
               attributes);
}

std::vector<BoundsRow> cache_rows() {
  auto seen = [](int64_t v) {
    Numbers values{1, 2};
    values.resize(static_cast<size_t>(v));
    values.push_back(9);
    return Numbers{mean(values)};
  };
  auto masked = [](int64_t v) {
    Attributes attributes = one_head(false);
    attributes.set("past_present_share_buffer", int64_t{1});
    return known({filled({1, 1, 1}, 1), filled({1, 1, 1}, 0), filled({1, 1, 1}, 9), Datum(), Datum(), filled({1, 1, 3, 1}, 0),
                  counting({1, 1, 3, 1}), ints32({narrow(v)})},
                 attributes);
  };
  auto masked_multi_head = [masked](int64_t v) {
    BoundsCase c = masked(v);
    c.attributes = one_head(false);
    c.inputs.insert(c.inputs.begin() + 3, Datum());  // there is no bias
    return c;
  };
  auto seen_by_decoder = [](int64_t v) {
    Numbers values;
    for (int64_t i = 1; i <= v; ++i) values.push_back(static_cast<double>(i));
    values.push_back(9);
    return Numbers{mean(values)};
  };
  return {
      {"com.microsoft", "GroupQueryAttention", 5, [](int64_t v) { return group_query(v, 3); }, 0, 2, Beyond::refused, seen, {1}},
      {"com.microsoft",
       "GroupQueryAttention",
       6,
       [](int64_t v) { return group_query(0, v); },
       1,
       3,
       Beyond::refused,
       [](int64_t) { return Numbers{9}; },
       {2}},
      // A padding token attends to all rows of its own cache.
      {"com.microsoft", "GroupQueryAttention", 16, padded_query, 0, 1, Beyond::refused,
       [](int64_t v) {
         return Numbers{v == 0 ? mean({1, 2, 3}) : mean({1, 9})};
       }},
      {"com.microsoft", "GroupQueryAttention", 9, turned_query, 0, 2, Beyond::refused,
       [](int64_t) {
         return Numbers{9, 9};
       }},
      {"com.microsoft", "DecoderMaskedMultiHeadAttention", 7, masked, 0, 2, Beyond::refused, seen_by_decoder, {1}},
      {"com.microsoft", "MultiHeadAttention", 8, masked_multi_head, 0, 2, Beyond::refused, seen_by_decoder, {1}},
  };
}

// The operand says how many of two keys count. If it says none, both have equal weight.
std::vector<BoundsRow> mask_rows() {
  auto seen = [](int64_t v) { return Numbers{v == 1 ? 1 : 1.5}; };
  auto multi_head = [](int64_t v) {
    return known({filled({1, 1, 1}, 1), filled({1, 2, 1}, 0), counting({1, 2, 1}), Datum(), ints32({narrow(v)})}, one_head(false));
  };
  auto by_both = [seen](int64_t v) { return Numbers{seen(v)[0], seen(v)[0]}; };
  auto self = [](int64_t v) {
    return known({counting({1, 2, 1}), tensor<float>({1, 3}, {0, 0, 1}), Datum(), ints32({narrow(v)})}, one_head(false));
  };
  auto quantized = [](int64_t v) {
    return known({tensor<uint8_t>({1, 2, 1}, {1, 2}), tensor<uint8_t>({1, 3}, {0, 0, 1}), tensor<float>({3}, {0, 0, 0}),
                  Tensor::scalar(1.0F), Tensor::scalar(1.0F), ints32({narrow(v)})},
                 one_head(false));
  };
  return {
      {"com.microsoft", "MultiHeadAttention", 4, multi_head, 0, 2, Beyond::defined, seen},
      {"com.microsoft", "Attention", 3, self, 0, 2, Beyond::defined, by_both},
      {"com.microsoft", "QAttention", 5, quantized, 0, 2, Beyond::defined, by_both},
  };
}

std::vector<BoundsRow> position_rows() {
  auto turned = [](int64_t v) { return Numbers{static_cast<double>(v + 1), static_cast<double>(v + 4)}; };
  auto rotary = [](const Shape& positions) {
    return [positions](int64_t v) {
      return known({tensor<float>({1, 1, 2}, {1, 0}), tensor<int64_t>(positions, {v}), tensor<float>({3, 1}, {1, 2, 3}),
                    tensor<float>({3, 1}, {4, 5, 6})},
                   {{"num_heads", int64_t{1}}});
    };
  };
  auto sectioned = [](int64_t v) {
    return known({tensor<float>({1, 1, 2}, {1, 0}), tensor<int64_t>({3, 1, 1}, {v, 0, 0}), tensor<float>({3, 1}, {1, 2, 3}),
                  tensor<float>({3, 1}, {4, 5, 6})},
                 {{"num_heads", int64_t{1}}, {"mrope_section", std::vector<int64_t>{1, 0, 0}}});
  };
  return {
      {"com.microsoft", "RotaryEmbedding", 1, rotary({1, 1}), 0, 2, Beyond::refused, turned},
      {"com.microsoft", "RotaryEmbedding", 1, rotary({1}), 0, 2, Beyond::refused, turned},
      {"com.microsoft", "MRotaryEmbedding", 1, sectioned, -3, 2, Beyond::refused, [turned](int64_t v) { return turned(from_front(v, 3)); }},
  };
}

// There are one query at position 1 and two keys, in blocks of one. The row of the layout for the query begins at entry 1.
struct Layout {
  int64_t end = 3, column = 1, key_total = 2, total = 2;
};
std::vector<Datum> blocks_of(const Layout& layout) {
  return {tensor<int32_t>({1, 3}, {0, 1, narrow(layout.end)}), tensor<int32_t>({1, 3}, {0, 0, narrow(layout.column)})};
}
BoundsCase sparse_blocks(const Layout& layout) {
  auto blocks = blocks_of(layout);
  return {{filled({1, 1, 1}, 1), filled({1, 1, 2, 1}, 0), blocks[0], blocks[1], ints32({narrow(layout.key_total)}),
           ints32({narrow(layout.total)})},
          {{"num_heads", int64_t{1}}, {"sparse_block_size", int64_t{1}}}};
}
BoundsCase sparse_attention(const Layout& layout) {
  auto blocks = blocks_of(layout);
  Attributes attributes = one_head(true);
  attributes.set("sparse_block_size", int64_t{1});
  BoundsCase c = known({filled({1, 1, 1}, 1), filled({1, 1, 1}, 0), filled({1, 1, 1}, 9), filled({1, 1, 2, 1}, 0), counting({1, 1, 2, 1}),
                        blocks[0], blocks[1], ints32({narrow(layout.total)}), ints32({narrow(layout.key_total)})},
                       attributes);
  c.num_outputs = 3;
  return c;
}

std::vector<BoundsRow> layout_rows() {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  std::vector<BoundsRow> rows;
  auto add = [&](int64_t Layout::*member, size_t operand, size_t operand_of_attention, int64_t lowest, int64_t highest, auto bias,
                 auto attended, int64_t named_less) {
    auto layout = [member](int64_t v) {
      Layout made;
      made.*member = v;
      return made;
    };
    rows.push_back({"treadle",
                    "SparseBlocks",
                    operand,
                    [layout](int64_t v) { return sparse_blocks(layout(v)); },
                    lowest,
                    highest,
                    Beyond::refused,
                    bias,
                    {},
                    named_less});
    if (operand == 2) return;
    rows.push_back({"com.microsoft",
                    "SparseAttention",
                    operand_of_attention,
                    [layout](int64_t v) { return sparse_attention(layout(v)); },
                    lowest,
                    highest,
                    Beyond::refused,
                    attended,
                    {},
                    named_less});
  };
  // Returns the outputs after the first: the cached keys, and then the first past value and the new one.
  auto with_caches = [](double y) { return Numbers{y, 0, 0, 1, 9}; };
  add(
      &Layout::end, 2, 5, 1, 3,
      [=](int64_t v) {
        return v == 1 ? Numbers{kHidden, kHidden} : v == 2 ? Numbers{0, kHidden} : Numbers{0, 0};
      },
      [=](int64_t v) { return with_caches(v == 2 ? 1 : 5); }, 0);
  add(
      &Layout::column, 3, 6, 0, 1,
      [=](int64_t v) {
        return v == 0 ? Numbers{0, kHidden} : Numbers{0, 0};
      },
      [=](int64_t v) { return with_caches(v == 0 ? 1 : 5); }, 0);
  // The query is at the position of the last key.
  add(
      &Layout::key_total, 4, 8, 1, 2,
      [=](int64_t v) {
        return v == 1 ? Numbers{0, kHidden} : Numbers{0, 0};
      },
      [=](int64_t v) {
        return v == 1 ? Numbers{9, 0, 0, 9, 2} : with_caches(5);
      },
      1);
  // If the total equals the number of queries, the run is a prompt.
  rows.push_back({"treadle", "SparseBlocks", 5,
                  [](int64_t v) {
                    return sparse_blocks({3, 1, 2, v});
                  },
                  1, 2, Beyond::defined,
                  [=](int64_t v) {
                    return v == 1 ? Numbers{0, kHidden} : Numbers{0, 0};
                  }});
  return rows;
}

}  // namespace

std::vector<BoundsRow> attention_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {cache_rows, mask_rows, position_rows, layout_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace treadle::testing
