// Implements Attention (ONNX): inference, costs, and the preparation of calls to its kernels.
#include "ops/nn/attention.h"

#include <fmt/format.h>

#include <cmath>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using kernels::AttentionData;
using kernels::AttentionParams;
using kernels::AttentionScores;

enum Input : int { kQ, kK, kV, kMask, kPastKey, kPastValue, kValidLengths };
enum Output : int { kY, kPresentKey, kPresentValue, kScores };

void check_rank(int q, int k, int v) {
  if ((q != 3 && q != 4) || k != q || v != q)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Q, K and V are of rank {}, {} and {}; all must be of rank 3 or all of rank 4", q, k, v));
}

int64_t heads_attribute(const Attributes& attributes, std::string_view name) {
  const int64_t heads = attributes.get_int(name);
  if (heads < 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; it must be positive where Q, K and V are of rank 3", name, heads));
  return heads;
}

Dim split_heads(const Dim& hidden, int64_t heads, std::string_view what) {
  if (hidden.is_const() && hidden.value() % heads != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} features for {} heads", what, hidden.value(), heads));
  return floor_div(hidden, heads);
}

void infer_attention(InferContext& c) {
  const DType dtype = c.dtype(kQ);
  if (!c.has_rank(kQ) || !c.has_rank(kK) || !c.has_rank(kV)) {
    c.set_output_dtype(kY, dtype);
    for (int i : {kPresentKey, kPresentValue, kScores})
      if (c.has_output(i)) c.set_output_dtype(i, i == kPresentValue ? c.dtype(kV) : dtype);
    return;
  }
  check_rank(c.rank(kQ), c.rank(kK), c.rank(kV));
  if (c.has_input(kPastKey) != c.has_input(kPastValue))
    throw Error(ErrorCode::invalid_model, "past_key and past_value must be given together");
  const SymbolicShape &q = c.shape(kQ), &k = c.shape(kK), &v = c.shape(kV);
  const bool packed = q.size() == 3;
  const Dim q_heads = packed ? Dim(heads_attribute(c.attributes(), "q_num_heads")) : q[1];
  const Dim kv_heads = packed ? Dim(heads_attribute(c.attributes(), "kv_num_heads")) : k[1];
  const Dim head_size = packed ? split_heads(q[2], q_heads.value(), "Q") : q[3];
  const Dim v_head_size = packed ? split_heads(v[2], kv_heads.value(), "V") : v[3];
  if (q_heads.is_const() && kv_heads.is_const() && (kv_heads.value() < 1 || q_heads.value() % kv_heads.value() != 0))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} query heads cannot share {} heads of keys", q_heads.value(), kv_heads.value()));
  unify(q[0], k[0], "batches of Q and K");
  unify(head_size, packed ? split_heads(k[2], kv_heads.value(), "K") : k[3], "head sizes of Q and K");
  const Dim q_length = q[packed ? 1 : 2], k_length = k[packed ? 1 : 2];
  unify(k_length, v[packed ? 1 : 2], "lengths of K and V");
  Dim total = k_length;
  if (c.has_input(kPastKey)) {
    if (c.has_rank(kPastKey) && c.rank(kPastKey) != 4)
      throw Error(ErrorCode::invalid_argument, fmt::format("past_key is of rank {}, not 4", c.rank(kPastKey)));
    if (c.has_rank(kPastKey))
      total = c.shape(kPastKey)[2] + k_length;
    else if (c.has_rank(kPastValue) && c.rank(kPastValue) == 4)
      total = c.shape(kPastValue)[2] + k_length;
    else
      total = c.data_dependent_dim("attention");
  }
  c.set_output(kY, dtype,
               packed ? SymbolicShape{q[0], q_length, q_heads * v_head_size} : SymbolicShape{q[0], q_heads, q_length, v_head_size});
  if (c.has_output(kPresentKey)) c.set_output(kPresentKey, dtype, {q[0], kv_heads, total, head_size});
  if (c.has_output(kPresentValue)) c.set_output(kPresentValue, c.dtype(kV), {q[0], kv_heads, total, v_head_size});
  if (c.has_output(kScores)) c.set_output(kScores, dtype, {q[0], q_heads, q_length, total});
}

Cost attention_cost(const ShapeContext& c) {
  const Shape &q = c.shape(kQ), &k = c.shape(kK);
  const double keys = static_cast<double>(k[k.rank() == 4 ? 2 : 1] + (c.has_input(kPastKey) ? c.shape(kPastKey)[2] : 0));
  return {4 * static_cast<double>(q.num_elements()) * keys, 2 * c.size_bytes(kQ) + c.size_bytes(kK) + c.size_bytes(kV)};
}

AttentionParams bind_params(const BindContext& c) {
  const Shape &q = c.shape(kQ), &k = c.shape(kK), &v = c.shape(kV);
  check_rank(q.rank(), k.rank(), v.rank());
  const bool packed = q.rank() == 3;
  AttentionParams p;
  p.batch = q[0];
  check_equal(k[0], p.batch, "batches of Q and K"), check_equal(v[0], p.batch, "batches of Q and V");
  p.q_heads = packed ? heads_attribute(c.node().attributes, "q_num_heads") : q[1];
  p.kv_heads = packed ? heads_attribute(c.node().attributes, "kv_num_heads") : k[1];
  if (!packed) check_equal(v[1], p.kv_heads, "heads of K and V");
  if (p.kv_heads < 1 || p.q_heads % p.kv_heads != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} query heads cannot share {} heads of keys", p.q_heads, p.kv_heads));
  p.q_length = q[packed ? 1 : 2];
  const int64_t k_length = k[packed ? 1 : 2];
  check_equal(v[packed ? 1 : 2], k_length, "lengths of K and V");
  p.head_size = packed ? q[2] / p.q_heads : q[3], p.v_head_size = packed ? v[2] / p.kv_heads : v[3];
  if (packed) {
    check_equal(q[2], p.head_size * p.q_heads, "features of Q, and heads times their size");
    check_equal(v[2], p.v_head_size * p.kv_heads, "features of V, and heads times their size");
  }
  check_equal(packed ? k[2] : k[3], packed ? p.head_size * p.kv_heads : p.head_size, "features of K, and of Q's heads");
  auto strides = [&](int64_t heads, int64_t length, int64_t size) {
    return packed ? kernels::HeadStrides{length * heads * size, size, heads * size}
                  : kernels::HeadStrides{heads * length * size, length * size, size};
  };
  p.q = strides(p.q_heads, p.q_length, p.head_size), p.y = strides(p.q_heads, p.q_length, p.v_head_size);
  p.k = strides(p.kv_heads, k_length, p.head_size), p.v = strides(p.kv_heads, k_length, p.v_head_size);
  p.kv_length = k_length;
  if (c.has_input(kPastKey)) {
    const Shape &past_k = c.shape(kPastKey), &past_v = c.shape(kPastValue);
    if (past_k.rank() != 4 || past_v.rank() != 4)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("past_key is of rank {} and past_value of rank {}, not 4", past_k.rank(), past_v.rank()));
    p.past_length = past_k[2];
    if (!(past_k == Shape{p.batch, p.kv_heads, p.past_length, p.head_size}) ||
        !(past_v == Shape{p.batch, p.kv_heads, p.past_length, p.v_head_size}))
      throw Error(ErrorCode::invalid_argument, fmt::format("past_key {} and past_value {} do not fit {} heads of sizes {} and {}",
                                                           to_string(past_k), to_string(past_v), p.kv_heads, p.head_size, p.v_head_size));
    p.kv_length += p.past_length;
    // If there is a past, the kernel reads past and new keys (and values) from one tensor [batch, heads, total, size].
    p.k = {p.kv_heads * p.kv_length * p.head_size, p.kv_length * p.head_size, p.head_size};
    p.v = {p.kv_heads * p.kv_length * p.v_head_size, p.kv_length * p.v_head_size, p.v_head_size};
  }
  p.scale = c.node().attributes.has("scale") ? static_cast<double>(c.get_float("scale"))
                                             : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(p.head_size, 1)));
  p.softcap = static_cast<double>(c.get_float("softcap"));
  p.causal = c.get_int("is_causal") != 0;
  constexpr int64_t kLargestWindow = int64_t{1} << 62;  // the sum of a window and a position cannot overflow
  p.left_window = std::min(c.get_int("left_window_size", -1), kLargestWindow);
  p.right_window = std::min(c.get_int("right_window_size", -1), kLargestWindow);
  if (p.left_window < -1 || p.right_window < -1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the window sizes are {} and {}; -1 is the smallest", p.left_window, p.right_window));
  p.mask_length = p.kv_length;
  if (c.has_input(kValidLengths)) {
    if (c.has_input(kPastKey)) throw Error(ErrorCode::invalid_argument, "nonpad_kv_seqlen and past_key exclude each other");
    check_equal(c.num_elements(kValidLengths), p.batch, "elements of nonpad_kv_seqlen and the batch");
  }
  return p;
}

// The mask broadcasts to [batch, heads, queries, keys]; a mask with fewer axes has the last of these axes.
void bind_mask(const BindContext& c, AttentionParams& p) {
  if (!c.has_input(kMask)) return;
  const Shape& mask = c.shape(kMask);
  if (mask.rank() < 1 || mask.rank() > 4)
    throw Error(ErrorCode::invalid_argument, fmt::format("attn_mask is of rank {}, not 1 to 4", mask.rank()));
  const int64_t wanted[4] = {p.batch, p.q_heads, p.q_length, p.kv_length};
  int64_t* strides[4] = {&p.mask_batch, &p.mask_head, &p.mask_row, &p.mask_column};
  int64_t step = 1;
  for (int i = 3, own = mask.rank() - 1; own >= 0; --i, --own) {
    const int64_t extent = mask[own];
    // If the mask's last axis is shorter than the keys, even if its extent is 1, the remaining keys are masked.
    if (i == 3 && extent < p.kv_length)
      p.mask_length = extent;
    else if (extent != 1 && extent != wanted[i])
      throw Error(ErrorCode::invalid_argument, fmt::format("attn_mask is {}; it has to broadcast to [{},{},{},{}]", to_string(mask),
                                                           wanted[0], wanted[1], wanted[2], wanted[3]));
    *strides[i] = extent == 1 ? 0 : step;
    step *= extent;
  }
}

}  // namespace

kernels::AttentionParams bind_attention(const BindContext& c) {
  AttentionParams p = bind_params(c);
  bind_mask(c, p);
  return p;
}

namespace {

template <typename T>
struct Attention {
  using C = compute_type_t<T>;
  AttentionParams params;
  DType mask_dtype, v_dtype;
  AttentionScores scores_kind;
  bool has_past, packed, has_present_key, has_present_value, has_scores;
  int64_t new_length, mask_count;
  Wide q, k, y, scores;
  int64_t v_offset, v_count, bias, joined_key, joined_value, work;
  int max_threads;

  static Attention bind(BindContext& c) {
    Attention a{};
    a.params = bind_attention(c);
    const AttentionParams& p = a.params;
    a.mask_dtype = c.has_input(kMask) ? c.dtype(kMask) : DType::undefined;
    a.v_dtype = c.dtype(kV);
    const int64_t mode = c.get_int("qk_matmul_output_mode");
    if (mode < 0 || mode > 3) throw Error(ErrorCode::invalid_argument, fmt::format("qk_matmul_output_mode is {}, not 0 to 3", mode));
    a.scores_kind = static_cast<AttentionScores>(mode);
    a.has_past = c.has_input(kPastKey), a.packed = c.shape(kQ).rank() == 3;
    a.has_present_key = c.has_output(kPresentKey), a.has_present_value = c.has_output(kPresentValue), a.has_scores = c.has_output(kScores);
    a.new_length = p.kv_length - p.past_length;
    a.max_threads = c.max_threads();
    ScratchLayout layout;
    a.q = reserve_wide<T>(layout, c.num_elements(kQ));
    a.k = reserve_wide<T>(layout, c.num_elements(kK));
    a.v_count = c.num_elements(kV);
    a.v_offset = a.v_dtype == dtype_of<C> ? 0 : layout.take(static_cast<size_t>(a.v_count) * sizeof(C));
    a.y = reserve_wide<T>(layout, c.output_shape(kY).num_elements());
    if (a.has_scores) a.scores = reserve_wide<T>(layout, c.output_shape(kScores).num_elements());
    a.mask_count = c.has_input(kMask) ? c.num_elements(kMask) : 0;
    if (a.mask_count > 0 && a.mask_dtype != DType::boolean && a.mask_dtype != dtype_of<C>)
      a.bias = layout.take(static_cast<size_t>(a.mask_count) * sizeof(C));
    if (a.has_past) {
      a.joined_key = layout.take(static_cast<size_t>(p.batch * p.k.batch) * sizeof(C));
      a.joined_value = layout.take(static_cast<size_t>(p.batch * p.v.batch) * sizeof(C));
    }
    a.work = layout.take(kernels::attention_scratch_bytes<C>(p, a.max_threads));
    c.request_scratch(layout.total());
    return a;
  }

  C* room(RunContext& c, int64_t offset) const { return reinterpret_cast<C*>(scratch_at(c, offset)); }

  /// Concatenates past [batch, heads, past, size] and x, which may be in either layout, to [batch, heads, total, size].
  template <typename U, typename X, typename D>
  void join(const U* past, const X* x, int64_t size, D* dst) const {
    const AttentionParams& p = params;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        const int64_t plane = b * p.kv_heads + h;
        for (int64_t i = 0; i < p.past_length * size; ++i) *dst++ = static_cast<D>(past[plane * p.past_length * size + i]);
        for (int64_t s = 0; s < new_length; ++s) {
          const int64_t row = packed ? ((b * new_length + s) * p.kv_heads + h) * size : (plane * new_length + s) * size;
          for (int64_t i = 0; i < size; ++i) *dst++ = static_cast<D>(x[row + i]);
        }
      }
    }
  }
  /// Concatenates past and new keys (or values) in the type in which the kernel computes and, if the node has the output `present`, also to
  /// it.
  template <typename U>
  const C* joined(RunContext& c, int input, int past, int output, bool shown, int64_t size, int64_t offset) const {
    if constexpr (std::is_same_v<U, C>) {
      C* dst = shown ? c.out<C>(output) : room(c, offset);
      join(c.in<U>(past), c.in<U>(input), size, dst);
      return dst;
    } else {
      join(c.in<U>(past), c.in<U>(input), size, room(c, offset));
      if (shown) join(c.in<U>(past), c.in<U>(input), size, c.out<U>(output));
      return room(c, offset);
    }
  }
  /// Writes the output `present` of a node without a past: the input, in the layout [batch, heads, length, size].
  template <typename U>
  void show(RunContext& c, int input, int output, int64_t size) const {
    join(static_cast<const U*>(nullptr), c.in<U>(input), size, c.out<U>(output));
  }

  void bind_data(RunContext& c, AttentionData<C>& data) const {
    data.q = widen(c, c.in<T>(kQ), q);
    if (has_past) {
      data.k = joined<T>(c, kK, kPastKey, kPresentKey, has_present_key, params.head_size, joined_key);
      visit_dtype<FloatTypes>(v_dtype, [&]<typename U>() {
        data.v = joined<U>(c, kV, kPastValue, kPresentValue, has_present_value, params.v_head_size, joined_value);
      });
    } else {
      data.k = widen(c, c.in<T>(kK), k);
      if (has_present_key) show<T>(c, kK, kPresentKey, params.head_size);
      visit_dtype<FloatTypes>(v_dtype, [&]<typename U>() {
        if constexpr (std::is_same_v<U, C>) {
          data.v = c.in<C>(kV);
        } else {
          convert_array(c.in<U>(kV), room(c, v_offset), v_count, c.pool());
          data.v = room(c, v_offset);
        }
        if (has_present_value) show<U>(c, kV, kPresentValue, params.v_head_size);
      });
    }
    if (mask_dtype == DType::boolean) {
      data.keep = c.in<bool>(kMask);
    } else if (mask_count > 0) {
      visit_dtype<NumericTypes>(mask_dtype, [&]<typename U>() {
        if constexpr (std::is_same_v<U, C>) {
          data.bias = c.in<C>(kMask);
        } else {
          convert_array(c.in<U>(kMask), room(c, bias), mask_count, c.pool());
          data.bias = room(c, bias);
        }
      });
    }
    data.valid_lengths = c.in<int64_t>(kValidLengths);
  }

  void run(RunContext& c) const {
    AttentionData<C> data;
    bind_data(c, data);
    if (data.valid_lengths)
      for (int64_t b = 0; b < params.batch; ++b)
        if (data.valid_lengths[b] < 0 || data.valid_lengths[b] > params.kv_length)
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("nonpad_kv_seqlen contains {}; there are {} keys", data.valid_lengths[b], params.kv_length));
    data.y = wide_output(c, c.out<T>(kY), y);
    if (has_scores) data.scores = wide_output(c, c.out<T>(kScores), scores), data.scores_kind = scores_kind;
    if (y.count > 0 || has_scores) kernels::attention<C>(params, data, scratch_at(c, work), max_threads, c.pool());
    narrow(c, y, c.out<T>(kY));
    if (has_scores) narrow(c, scores, c.out<T>(kScores));
  }
};

/// The kinds of scores that the output qk_matmul_output may have, in the numbering of qk_matmul_output_mode.
enum Scores : int64_t { kRaw, kCapped, kBiased, kProbabilities };

struct AttentionRule {
  GradientContext& g;
  bool packed = false;                // true if Q, K and V have rank 3 (all heads in one axis)
  int64_t q_heads = 0, kv_heads = 0;  // numbers of heads; only if packed
  Dim features_of_q = 0;              // features of a row of Q; if packed, of all heads
  double softcap = 0;

  explicit AttentionRule(GradientContext& context) : g(context) {
    packed = rank_of(g, g.input(0)) == 3;
    const SymbolicShape q = *g.type(g.input(0)).shape;
    if (packed) q_heads = g.attributes().get_int("q_num_heads"), kv_heads = g.attributes().get_int("kv_num_heads");
    softcap = static_cast<double>(g.attributes().get_float("softcap", 0));
    features_of_q = q[packed ? 2 : 3];
  }
  // Returns the attribute `scale`, or 1 / sqrt(head size) if it is absent.
  ValueId scale(ValueId like) {
    if (g.attributes().has("scale")) return g.scalar(static_cast<double>(g.attributes().get_float("scale")), like);
    const int64_t parts = packed ? q_heads : 1;
    if (features_of_q.is_const())
      return g.scalar(1 / std::sqrt(static_cast<double>(std::max<int64_t>(features_of_q.value() / parts, 1))), like);
    const ValueId features = g.op("Shape", {g.input(0)}, {{"start", int64_t{-1}}});
    const ValueId size = g.op("Cast", {g.div(features, g.ints({parts}))}, {{"to", static_cast<int64_t>(g.type(like).dtype)}});
    return g.op("Reciprocal", {g.op("Sqrt", {size})});
  }

  /// Returns the scores qk_matmul_output of a mode. This is the node's own output if it has that mode or was unused; otherwise another
  /// Attention computes them.
  ValueId scores(int64_t mode) {
    if (g.output(3) == kNoValue) g.graph().node(g.node().id).attributes.set("qk_matmul_output_mode", mode);
    if (g.attributes().get_int("qk_matmul_output_mode", 0) == mode) return require_output(g, 3);
    Attributes attributes = g.attributes();
    attributes.set("qk_matmul_output_mode", mode);
    std::vector<ValueId> inputs = g.node().inputs;
    return g.op_n("Attention", std::move(inputs), 4, std::move(attributes))[3];
  }

  // by_head() turns packed heads [batch, length, heads * size] into [batch, heads, length, size]; as_operand() is the inverse.
  ValueId by_head(ValueId x, int64_t heads) {
    return packed ? g.transpose(g.op("Reshape", {x, g.ints({0, 0, heads, -1})}), {0, 2, 1, 3}) : x;
  }
  ValueId as_operand(ValueId dx, ValueId operand) { return packed ? g.reshape_like(g.transpose(dx, {0, 2, 1, 3}), operand) : dx; }

  // Reshapes queries [batch, q heads, ...] to [batch, kv heads, queries per kv head, ...]. Keys get an axis of extent 1 in place of the
  // third one.
  ValueId grouped(ValueId x) {
    const ValueId shape = g.shape_of(x);
    auto part = [&](int64_t first, int64_t last) { return g.op("Slice", {shape, g.ints({first}), g.ints({last})}); };
    const ValueId split = g.op("Concat", {part(0, 1), heads(), part(2, 4)}, {{"axis", int64_t{0}}});
    return g.op("Reshape", {x, split});
  }
  // Returns two numbers: the key heads, and the query heads that share each key head.
  ValueId heads() {
    if (packed) return g.ints({kv_heads, q_heads / std::max<int64_t>(kv_heads, 1)});
    auto axis_of = [&](size_t input) { return g.op("Shape", {g.input(input)}, {{"start", int64_t{1}}, {"end", int64_t{2}}}); };
    return g.op("Concat", {axis_of(1), g.div(axis_of(0), axis_of(1))}, {{"axis", int64_t{0}}});
  }
  ValueId one_group(ValueId x) { return g.op("Unsqueeze", {x, g.ints({2})}); }
  ValueId over_group(ValueId x) { return g.reduce_sum(x, {2}, /*keepdims=*/false); }
  ValueId swapped(ValueId x) { return g.transpose(x, {0, 1, 2, 4, 3}); }
  ValueId plus(ValueId a, ValueId b) { return b == kNoValue ? a : a == kNoValue ? b : g.add(a, b); }

  /// Concatenates the past keys or values with the new ones.
  ValueId joined(size_t input, size_t past) {
    const ValueId own = by_head(g.input(input), kv_heads);
    return g.input(past) == kNoValue ? own : g.op("Concat", {g.input(past), own}, {{"axis", int64_t{2}}});
  }
  void part(ValueId total, size_t input, size_t past, Gradients& result) {
    if (g.input(past) != kNoValue) {
      const ValueId length = g.op("Shape", {g.input(past)}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
      const ValueId end = g.op("Shape", {total}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
      result[past] = g.op("Slice", {total, g.ints({0}), length, g.ints({2})});
      total = g.op("Slice", {total, length, end, g.ints({2})});
    }
    result[input] = as_operand(total, g.input(input));
  }

  ValueId of_mask(ValueId dscores) {
    const ValueId mask = g.input(3);
    const Type type = g.type(mask);
    if (!type.has_rank() || !g.type(dscores).has_rank())
      throw Error(ErrorCode::not_implemented, "the gradient of attn_mask needs its rank");
    // A mask that is shorter than the keys gets only the gradients of the keys that it covers.
    const Dim keys = type.shape->back();
    if (!(keys == g.type(dscores).shape->back()))
      dscores = g.op("Slice", {dscores, g.ints({0}), g.op("Shape", {mask}, {{"start", int64_t{-1}}}), g.ints({-1})});
    return g.unbroadcast(dscores, mask);
  }

  // Let raw = scale Q K^T, s = cap(raw) + mask, P = softmax(s). Then dV = P^T dY, dP = dY V^T, ds = P (dP - sum(dP P)).
  Gradients differentiate() {
    const int64_t shown = g.attributes().get_int("qk_matmul_output_mode", 0);
    const ValueId dshown = g.grad_output(3);
    const ValueId P = scores(kProbabilities), q = by_head(g.input(0), q_heads), k = joined(1, 4), v = joined(2, 5);
    Gradients result(6, kNoValue);
    ValueId dP = shown == kProbabilities ? dshown : kNoValue, dv = kNoValue;
    if (g.grad_output(0) != kNoValue) {
      const ValueId dy = grouped(by_head(g.grad_output(0), q_heads));
      dv = over_group(g.op("MatMul", {swapped(grouped(P)), dy}));
      dP = plus(g.reshape_like(g.op("MatMul", {dy, swapped(one_group(v))}), P), dP);
    }
    dv = plus(dv, g.grad_output(2));
    ValueId ds = kNoValue;
    if (dP != kNoValue) ds = g.mul(P, g.sub(dP, g.reduce_sum(g.mul(dP, P), {-1}, /*keepdims=*/true)));
    if (shown == kBiased) ds = plus(ds, dshown);
    if (g.wants(3) && ds != kNoValue) result[3] = of_mask(ds);
    if (shown == kCapped) ds = plus(ds, dshown);
    if (softcap != 0 && ds != kNoValue) {
      const ValueId t = g.div(scores(kCapped), g.scalar(softcap, P));
      ds = g.mul(ds, g.sub(g.scalar(1, t), g.mul(t, t)));
    }
    if (shown == kRaw) ds = plus(ds, dshown);
    ValueId dk = g.grad_output(1);
    if (ds != kNoValue) {
      const ValueId flow = grouped(g.mul(ds, scale(ds)));
      result[0] = as_operand(g.reshape_like(g.op("MatMul", {flow, one_group(k)}), q), g.input(0));
      dk = plus(over_group(g.op("MatMul", {swapped(flow), grouped(q)})), dk);
    }
    if (dk != kNoValue) part(dk, 1, 4, result);
    if (dv != kNoValue) part(dv, 2, 5, result);
    return result;
  }
};

Gradients attention_gradient(GradientContext& g) {
  if (g.type(g.input(0)).dtype != g.type(g.input(2)).dtype)
    throw Error(ErrorCode::not_implemented, "the gradient of Attention needs Q and V of the same type");
  return AttentionRule(g).differentiate();
}

}  // namespace

std::vector<OpDef> attention_ops() {
  constexpr TypeSet kMaskTypes = kNumeric | kBool;
  return {{.name = "Attention",
           .since = {23, 24, 25},
           .inputs = {{"Q", kFloats, "T1"},
                      {"K", kFloats, "T1"},
                      {"V", kFloats, "T2"},
                      {"attn_mask", kMaskTypes, "U", Presence::optional},
                      {"past_key", kFloats, "T1", Presence::optional},
                      {"past_value", kFloats, "T2", Presence::optional},
                      {"nonpad_kv_seqlen", kInt64, "", Presence::optional, of_rank(1)}},
           .outputs = {{"Y", kFloats, "T1"},
                       {"present_key", kFloats, "T1", Presence::optional},
                       {"present_value", kFloats, "T2", Presence::optional},
                       {"qk_matmul_output", kFloats, "T1", Presence::optional}},
           .attributes = {{"is_causal", int64_t{0}},
                          {"kv_num_heads"},
                          {"left_window_size", int64_t{-1}},
                          {"q_num_heads"},
                          {"qk_matmul_output_mode", int64_t{0}},
                          {"right_window_size", int64_t{-1}},
                          {"scale"},
                          {"softcap", 0.0f},
                          {"softmax_precision"}},
           .infer = infer_attention,
           .cost = attention_cost,
           .kernels = typed<Attention, float, double, Float16, BFloat16>(),
           .gradient = attention_gradient}};
}

}  // namespace treadle::ops
