// Decomposes operators of com.microsoft that exporters of recent language models write: gates, normalizations per branch, and
// hyper-connections (several parallel residual streams).
#include <algorithm>
#include <limits>
#include <string>

#include "ops/list.h"
#include "ops/microsoft/attention.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

/// As the end of a Slice, this means the end of the axis.
constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

/// Casts to float32, the type in which these operators compute.
ValueId widened(Decomposition& d, ValueId x) { return d.type(x).dtype == DType::float32 ? x : d.cast(x, DType::float32); }
/// Casts the float32 value `y` to the dtype of `like`.
ValueId rounded(Decomposition& d, ValueId y, ValueId like) {
  return d.type(like).dtype == DType::float32 ? y : d.op("CastLike", {y, like});
}

/// Returns x / sqrt(mean(x^2) + epsilon) along the last axis.
ValueId rms_normalized(Decomposition& d, ValueId x, float epsilon) {
  ValueId mean = d.op("ReduceMean", {d.op("Mul", {x, x}), d.ints({-1})});
  return d.op("Div", {x, d.op("Sqrt", {d.op("Add", {mean, d.constant(Tensor::scalar(epsilon))})})});
}

ValueId silu(Decomposition& d, ValueId x) { return d.op("Mul", {x, d.op("Sigmoid", {x})}); }

/// Returns the shape of x without its last axis, with the extents `more` appended.
ValueId leading_shape(Decomposition& d, ValueId x, std::vector<ValueId> more) {
  more.insert(more.begin(), d.op("Shape", {x}, {{"end", int64_t{-1}}}));
  return d.op("Concat", std::move(more), {{"axis", int64_t{0}}});
}

// Decomposes Y = X / rms(X) * scale * activation(gate). The root mean square is over groups as large as `scale`.
void decompose_gated_rms_norm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  std::string_view activation = d.attributes().get_string("activation", "silu");
  if (activation != "silu" && activation != "swish" && activation != "sigmoid")
    throw Error(ErrorCode::invalid_model, fmt::format("activation is \"{}\", not silu, swish or sigmoid", activation));
  const ValueId scale = d.op("Reshape", {d.in(1), d.ints({-1})});  // since `scale` may have any rank
  int64_t group = d.rank(d.in(1)) == 1 ? d.extent(d.in(1), 0) : -1, width = d.extent(d.in(0), -1);
  if (group > 0 && width >= 0 && width % group != 0)
    throw Error(ErrorCode::invalid_model, fmt::format("the last extent of X is {}, not a multiple of the {} of scale", width, group));
  ValueId heads = d.op("Div", {d.op("Shape", {d.in(0)}, {{"start", int64_t{-1}}}), d.op("Shape", {scale})});
  ValueId grouped =
      d.op("Concat", {d.op("Shape", {d.in(0)}, {{"end", int64_t{-1}}}), heads, d.op("Shape", {scale})}, {{"axis", int64_t{0}}});
  auto by_group = [&](size_t i) { return d.op("Reshape", {widened(d, d.in(i)), grouped}, {{"allowzero", int64_t{1}}}); };
  ValueId x = by_group(0), gate = by_group(2);
  ValueId y = d.op("RMSNormalization", {x, widened(d, scale)}, d.copied({"epsilon"}));
  y = d.op("Mul", {y, activation == "sigmoid" ? d.op("Sigmoid", {gate}) : silu(d, gate)});
  d.give(0, rounded(d, d.op("Reshape", {y, d.op("Shape", {d.in(0)})}, {{"allowzero", int64_t{1}}}), d.in(0)));
  d.finish();
}

// Decomposes Y = X + Y * gate. If there is a gate_weight, the gate is sigmoid(gate * gate_weight), and each operation rounds to bfloat16.
void decompose_gated_add(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId gate = d.in(2);
  if (d.has(3)) {
    if (d.type(d.in(0)).dtype != DType::bfloat16) throw Error(ErrorCode::not_implemented, "gate_weight goes with bfloat16 only");
    gate = rounded(d, d.op("MatMul", {widened(d, gate), widened(d, d.in(3))}), gate);
    gate = rounded(d, d.op("Sigmoid", {widened(d, gate)}), gate);
  }
  d.give(0, d.op("Add", {d.in(0), d.op("Mul", {d.in(1), gate})}));
  d.finish();
}

// Decomposes ScaledSilu; each operation rounds to the dtype of X.
void decompose_scaled_silu(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId scale = d.has(1) ? widened(d, d.in(1)) : d.constant(Tensor::scalar(d.attributes().get_float("alpha", 1)));
  if (d.has(1)) scale = d.op("Reshape", {scale, d.ints({})});
  ValueId z = rounded(d, d.op("Mul", {widened(d, d.in(0)), scale}), d.in(0));
  d.give(0, silu(d, z));
  d.finish();
}

/// Input 0 as parallel streams [.., C, H], where C is the number of branches. In the model, the last two axes may be merged.
struct Streams {
  ValueId grouped = kNoValue;
  int rank = 0;          ///< rank of `grouped`, whose shape is [.., C, H]
  int64_t branches = 0;  ///< the extent C; -1 if it is known only during the run
  bool flattened = false;
  /// Returns the number of branches, C, as int64[1].
  ValueId count(Decomposition& d) const {
    return branches >= 0 ? d.ints({branches}) : d.op("Shape", {grouped}, {{"start", int64_t{-2}}, {"end", int64_t{-1}}});
  }
};

/// Makes sure that streams and gates have known ranks. Returns true if this replaced the node by branches, one per possible rank.
/// @param others  further operands, each with its rank minus the rank of the grouped streams
bool settle_ranks(Decomposition& d, std::initializer_list<size_t> gates, std::initializer_list<std::pair<size_t, int>> others = {}) {
  const int joined = d.attributes().get_int("num_branches", 0) != 0 ? 1 : 0;  // number of axes that the model has merged
  const int64_t branches = joined != 0 ? d.attributes().get_int("num_branches", 0) : -1;
  int most = 4;
  for (size_t i : gates) most = std::max(most, d.rank(d.in(i)) + 1);
  for (const auto& other : others) most = std::max(most, d.rank(d.in(other.first)) - other.second);
  std::vector<int> ranks;
  for (int rank = most; rank >= 2; --rank) ranks.push_back(rank - joined);
  // The known rank of one operand leaves only one or two possible ranks for the streams.
  for (size_t i : gates) {
    const int own = d.rank(d.in(i));
    const int64_t count = own < 2 ? -1 : d.extent(d.in(i), -2), width = own < 1 ? -1 : d.extent(d.in(i), -1);
    const bool may_be_grouped = branches < 0 || count < 0 || count == branches,
               may_be_flat = branches < 1 || width < 0 || width % branches == 0;
    std::erase_if(ranks, [&](int rank) {
      const int more = own - rank - joined;
      return own >= 0 && !(more == 0 && may_be_grouped) && !(more == -1 && may_be_flat);
    });
  }
  for (const auto& [i, more] : others)
    if (const int own = d.rank(d.in(i)); own >= 0) std::erase_if(ranks, [&, more = more](int rank) { return own != rank + joined + more; });
  if (d.rank(d.in(0)) < 0 && ranks.empty()) throw Error(ErrorCode::invalid_model, "the ranks of the operands do not fit one another");
  if (d.rank(d.in(0)) < 0 && branch_by_rank(d, {0}, ranks)) return true;
  const int rank = d.rank(d.in(0)) + joined;
  return std::any_of(gates.begin(), gates.end(), [&](size_t i) { return branch_by_rank(d, {i}, {rank, rank - 1}); });
}

Streams grouped_streams(Decomposition& d) {
  Streams s;
  s.branches = d.attributes().get_int("num_branches", 0);
  s.flattened = s.branches != 0;
  s.rank = d.rank(d.in(0)) + (s.flattened ? 1 : 0);
  if (s.branches < 0) throw Error(ErrorCode::invalid_model, fmt::format("num_branches = {}", s.branches));
  if (s.rank < 2) throw Error(ErrorCode::invalid_model, "the streams have no axis of branches");
  s.grouped = widened(d, d.in(0));
  int64_t width = d.extent(d.in(0), -1);
  if (!s.flattened) {
    s.branches = d.extent(d.in(0), -2);
    return s;
  }
  if (width >= 0 && width % s.branches != 0)
    throw Error(ErrorCode::invalid_model, fmt::format("the last extent is {}, not a multiple of the {} branches", width, s.branches));
  s.grouped = d.op("Reshape", {s.grouped, leading_shape(d, d.in(0), {d.ints({s.branches, width >= 0 ? width / s.branches : -1})})});
  return s;
}

/// Reshapes gates of the shape [.., C], [.., C, 1], [.., C, H] or [.., C * H] so that they broadcast to the grouped streams.
ValueId broadcast_gates(Decomposition& d, size_t input, const Streams& streams) {
  ValueId gates = widened(d, d.in(input));
  const int rank = d.rank(d.in(input));
  if (rank == streams.rank) return gates;
  if (rank != streams.rank - 1)
    throw Error(ErrorCode::invalid_model, fmt::format("the gates are of rank {}, the grouped streams of rank {}", rank, streams.rank));
  const int64_t width = d.extent(d.in(input), -1);
  if (width < 0 || streams.branches < 0) return d.op("Reshape", {gates, leading_shape(d, d.in(input), {streams.count(d), d.ints({-1})})});
  if (width == streams.branches) return d.op("Unsqueeze", {gates, d.ints({-1})});
  if (streams.branches == 0 || width % streams.branches != 0)
    throw Error(ErrorCode::invalid_model, fmt::format("{} gates for {} branches", width, streams.branches));
  return d.op("Reshape", {gates, leading_shape(d, d.in(input), {d.ints({streams.branches, width / streams.branches})})});
}

// Decomposes Y[.., h] = reduction_scale * sum over c of X[.., c, h] * gate[.., c, h].
void decompose_pre_mix(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  if (settle_ranks(d, {1})) return;
  Streams streams = grouped_streams(d);
  ValueId product = d.op("Mul", {streams.grouped, broadcast_gates(d, 1, streams)});
  ValueId y = d.op("ReduceSum", {product, d.ints({-2})}, {{"keepdims", int64_t{0}}});
  float scale = d.attributes().get_float("reduction_scale", 1);
  if (scale != 1) y = d.op("Mul", {y, d.constant(Tensor::scalar(scale))});
  d.give(0, rounded(d, y, d.in(0)));
  d.finish();
}

// Decomposes Y[.., k, h] = sum over c of mix[.., c, k] * X[.., c, h], plus gate[.., k, h] * block[.., h].
void decompose_post_mix(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  if (settle_ranks(d, {2}, {{1, -1}, {3, 0}})) return;
  Streams streams = grouped_streams(d);
  ValueId mixed = streams.grouped;
  if (d.has(3)) {
    std::vector<int64_t> order;
    for (int i = 0; i < streams.rank; ++i) order.push_back(i);
    std::swap(order[order.size() - 1], order[order.size() - 2]);
    mixed = d.op("MatMul", {d.op("Transpose", {widened(d, d.in(3))}, {{"perm", order}}), mixed});
  }
  ValueId block = d.op("Unsqueeze", {widened(d, d.in(1)), d.ints({-2})});
  ValueId y = d.op("Add", {mixed, d.op("Mul", {broadcast_gates(d, 2, streams), block})});
  if (streams.flattened) y = d.op("Reshape", {y, d.op("Shape", {d.in(0)})});
  d.give(0, rounded(d, y, d.in(0)));
  d.finish();
}

void decompose_branchwise_rms_norm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  if (settle_ranks(d, {}) || branch_by_rank(d, {1}, {1, 2})) return;
  Streams streams = grouped_streams(d);
  ValueId y = rms_normalized(d, streams.grouped, d.attributes().get_float("epsilon", 1e-5F));
  if (d.has(1)) {
    ValueId scale = widened(d, d.in(1));
    // `scale` is [H] for all branches together, or [C * H] with numbers for each branch.
    if (d.rank(d.in(1)) == 1)
      scale =
          d.op("Reshape",
               {scale, d.op("Concat", {d.ints({-1}), d.op("Shape", {streams.grouped}, {{"start", int64_t{-1}}})}, {{"axis", int64_t{0}}})});
    y = d.op("Mul", {y, scale});
  }
  if (streams.flattened) y = d.op("Reshape", {y, d.op("Shape", {d.in(0)})});
  d.give(0, rounded(d, y, d.in(0)));
  d.finish();
}

// Decomposes two formulas: decay = decay_scale * softplus(a + dt_bias) and beta = sigmoid(b).
void decompose_linear_attention_gate(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  auto of_heads = [&](size_t i) { return d.op("Reshape", {d.in(i), d.ints({-1})}); };  // since the operand may have any rank
  ValueId decay = d.op("Mul", {of_heads(2), d.op("Softplus", {d.op("Add", {widened(d, d.in(0)), of_heads(1)})})});
  d.give(0, rounded(d, decay, d.in(0)));
  if (d.wants(1)) {
    if (!d.has(3)) throw Error(ErrorCode::invalid_model, "the output beta needs the input b");
    d.give(1, d.op("Sigmoid", {d.in(3)}));
  }
  d.finish();
}

// Decomposes gate = sigmoid(sign(dot) sqrt(max(|dot|, 1e-6))). For each token and branch, `dot` is the scaled dot product of the normalized
// key and query.
void decompose_engram_gate(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  float epsilon = d.attributes().get_float("epsilon", 1e-5F);
  auto scaled = [&](ValueId x, size_t scale) { return d.op("Mul", {rms_normalized(d, x, epsilon), widened(d, d.in(scale))}); };
  ValueId key = widened(d, d.in(0)), query = widened(d, d.in(1));
  ValueId dot = d.op("ReduceSum", {d.op("Mul", {scaled(key, 3), scaled(query, 4)}), d.ints({-1})});
  ValueId hidden = d.cast(d.op("Shape", {d.in(0)}, {{"start", int64_t{-1}}}), DType::float32);
  dot = d.op("Div", {dot, d.op("Sqrt", {hidden})});
  ValueId root = d.op("Sqrt", {d.op("Max", {d.op("Abs", {dot}), d.constant(Tensor::scalar(1e-6F))})});
  ValueId gate = d.op("Sigmoid", {d.op("Mul", {d.op("Sign", {dot}), root})});
  ValueId gated = d.op("Mul", {gate, d.op("Unsqueeze", {widened(d, d.in(2)), d.ints({2})})});
  d.give(0, rounded(d, gated, d.in(0)));
  if (d.wants(1)) {
    if (!d.has(5)) throw Error(ErrorCode::invalid_model, "the output gated_value_normed needs the input conv_norm_scale");
    d.give(1, rounded(d, scaled(gated, 5), d.in(0)));
  }
  d.finish();
}

/// Returns the convolution's states after each of the last `window` positions. A state has `past` positions. States from before the first
/// new position are zeros.
ValueId windowed_states(Decomposition& d, ValueId x, ValueId all, int64_t past, int64_t window) {
  const ValueId length = d.op("Shape", {x}, {{"start", int64_t{2}}});
  const ValueId padded = d.op("Pad", {all, d.ints({0, 0, window, 0, 0, 0})});
  std::vector<ValueId> slots;
  for (int64_t behind = window - 1; behind >= 0; --behind) {
    const int64_t end = behind == 0 ? kToTheEnd : -behind;
    const ValueId state = d.op("Slice", {padded, d.ints({past == 0 ? kToTheEnd : -past - behind}), d.ints({end}), d.ints({2})});
    const ValueId exists = d.op("Greater", {length, d.ints({behind})});
    slots.push_back(
        d.op("Unsqueeze", {d.op("Where", {exists, state, d.op("CastLike", {d.constant(Tensor::scalar(0.0F)), all})}), d.ints({0})}));
  }
  return d.op("Concat", std::move(slots), {{"axis", int64_t{0}}});
}

/// Flattens and transposes [batch, length, …] to [batch, channels, length].
ValueId channels_in_front(Decomposition& d, ValueId x) {
  const ValueId channels = d.op("Shape", {d.in(1)}, {{"end", int64_t{1}}});
  x = d.op("Reshape", {x, d.op("Concat", {d.ints({0, 0}), channels}, {{"axis", int64_t{0}}})});
  return d.op("Transpose", {x}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
}

/// Transposes [.., channels, length] to [.., length, channels], and splits the channels into the trailing axes of input 0.
ValueId channels_behind(Decomposition& d, ValueId x, int leading) {
  std::vector<int64_t> order;
  for (int i = 0; i < leading + 2; ++i) order.push_back(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  x = d.op("Transpose", {x}, {{"perm", std::move(order)}});
  const ValueId outer = d.op("Shape", {x}, {{"end", int64_t{-1}}}), inner = d.op("Shape", {d.in(0)}, {{"start", int64_t{2}}});
  return d.op("Reshape", {x, d.op("Concat", {outer, inner}, {{"axis", int64_t{0}}})}, {{"allowzero", int64_t{1}}});
}

/// Throws Error(not_implemented) if an attribute has a value that onnxruntime supports only on GPUs.
void check_causal_conv(const Decomposition& d) {
  const Attributes& a = d.attributes();
  if (a.get_int("ndim", 1) != 1) throw Error(ErrorCode::not_implemented, "implemented is ndim = 1");
  for (const auto& [name, otherwise] : std::initializer_list<std::pair<std::string_view, int64_t>>{{"input_channels", 0},
                                                                                                   {"input_channel_offset", 0},
                                                                                                   {"state_length", 0},
                                                                                                   {"state_channels_last", -1},
                                                                                                   {"state_update_capacity", 0}})
    if (a.get_int(name, otherwise) != otherwise)
      throw Error(ErrorCode::not_implemented, fmt::format("{} = {} is not implemented", name, a.get_int(name, otherwise)));
  d.refuse(2, "state_update");
}

/// Decomposes the operator if the number of taps (the length of its filters) is known only during the run.
void decompose_causal_conv_of_any_taps(Decomposition& d) {
  if (d.attributes().get_int("state_window", 0) != 0)
    throw Error(ErrorCode::not_implemented, "with state_window the weight must be of known shape (channels, 1, taps)");
  const bool last = d.attributes().get_int("channels_last", 0) != 0;
  const ValueId x = last ? channels_in_front(d, d.in(0)) : d.in(0), past = last && d.has(3) ? channels_in_front(d, d.in(3)) : d.in(3);
  const auto y = d.op_n("DilatedCausalConv", {x, d.in(1), d.in(2), past}, 2, d.copied({"activation", "dilation"}), "treadle");
  for (size_t i = 0; i < 2; ++i) d.give(i, last ? channels_behind(d, y[i], 1) : y[i]);
  d.finish();
}

// Decomposes CausalConvWithState: a depthwise convolution along the sequence of past and new positions. The state is the last positions,
// which the next call needs as its past.
void decompose_causal_conv(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  int64_t dilation = a.get_int("dilation", 1), channels = d.extent(d.in(1), 0), taps = d.extent(d.in(1), -1);
  const int64_t window = a.get_int("state_window", 0);
  std::string_view activation = a.get_string("activation", "none");
  check_causal_conv(d);
  const bool last = a.get_int("channels_last", 0) != 0;
  if (window < 0 || window > 8) throw Error(ErrorCode::invalid_model, fmt::format("state_window is {}; expected 0 to 8", window));
  if (channels < 0 || taps < 0) return decompose_causal_conv_of_any_taps(d);
  if (dilation < 1 || taps < 1) throw Error(ErrorCode::invalid_model, fmt::format("dilation = {}, {} taps", dilation, taps));
  if (activation != "none" && activation != "silu" && activation != "swish")
    throw Error(ErrorCode::invalid_model, fmt::format("activation is \"{}\", not silu, swish or none", activation));
  int64_t past = (taps - 1) * dilation;
  const ValueId x = last ? channels_in_front(d, d.in(0)) : d.in(0);
  ValueId all;
  if (d.has(3)) {
    ValueId state = window > 0 ? d.op("Gather", {d.in(3), d.constant(Tensor::scalar(window - 1))}) : d.in(3);
    if (last) state = channels_in_front(d, state);
    all = d.op("Concat", {state, x}, {{"axis", int64_t{2}}});
  } else {
    all = d.op("Pad", {x, d.ints({0, 0, past, 0, 0, 0})});
  }
  ValueId y = d.op("Conv", {all, d.in(1), d.in(2)}, {{"group", channels}, {"dilations", std::vector<int64_t>{dilation}}});
  if (activation != "none") y = silu(d, y);
  ValueId state = window > 0 ? windowed_states(d, x, all, past, window)
                             : d.op("Slice", {all, d.ints({past == 0 ? kToTheEnd : -past}), d.ints({kToTheEnd}), d.ints({2})});
  y = last ? channels_behind(d, y, 1) : y;
  d.give(0, d.op("Reshape", {y, d.op("Shape", {d.in(0)})}, {{"allowzero", int64_t{1}}}));  // a state of the wrong length makes this fail
  d.give(1, last ? channels_behind(d, state, window > 0 ? 2 : 1) : state);
  d.finish();
}

/// The table of rows from which packed sequences are convolved: first the rows of all states, then those of the input. The state of a
/// sequence precedes its own rows in the convolution.
struct PackedRows {
  ValueId all, begins, lengths, sequence;  ///< `sequence` is the vector 0, 1, …, one element per sequence
  int64_t past;

  /// Gathers, for each sequence, the rows at the positions `place` [sequences, n]. Negative positions are rows of the sequence's state.
  ValueId at(Decomposition& d, ValueId place, ValueId own_begins, ValueId own_sequence) const {
    const ValueId states = d.op("Mul", {d.op("Shape", {begins}), d.ints({past})});
    const ValueId in_input = d.op("Add", {d.op("Add", {place, own_begins}), states});
    const ValueId in_state = d.op("Add", {d.op("Mul", {own_sequence, d.ints({past})}), d.op("Add", {place, d.ints({past})})});
    return d.op("Gather", {all, d.op("Where", {d.op("Less", {place, d.ints({0})}), in_state, in_input})});
  }
};

ValueId counted(Decomposition& d, ValueId length) {
  const auto number = [&](int64_t value) { return d.constant(Tensor::scalar(value)); };
  return d.op("Range", {number(0), d.op("Squeeze", {length}), number(1)});
}

PackedRows packed_rows(Decomposition& d, int64_t past) {
  const ValueId ends = d.cast(d.in(2), DType::int64);
  PackedRows rows{};
  rows.past = past;
  rows.begins = d.op("Slice", {ends, d.ints({0}), d.ints({-1})});
  rows.lengths = d.op("Sub", {d.op("Slice", {ends, d.ints({1}), d.ints({kToTheEnd})}), rows.begins});
  rows.sequence = counted(d, d.op("Shape", {rows.begins}));
  const ValueId states = d.op("Transpose", {d.in(4)}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  const ValueId channels = d.op("Shape", {d.in(0)}, {{"start", int64_t{1}}});
  const ValueId count = d.op("Mul", {d.op("Shape", {rows.begins}), d.ints({past})});
  const ValueId shape = d.op("Concat", {count, channels}, {{"axis", int64_t{0}}});
  rows.all = d.op("Concat", {d.op("Reshape", {states, shape}, {{"allowzero", int64_t{1}}}), d.in(0)}, {{"axis", int64_t{0}}});
  return rows;
}

// Decomposes CausalConvWithState for packed sequences, where the tokens are axis 0 and the channels axis 1.
void decompose_packed_causal_conv(Graph& graph, NodeId id) {
  enum Input : size_t { kInput, kWeight, kEnds, kBias, kState, kCaptured, kDelta, kMask };
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  const int64_t dilation = a.get_int("dilation", 1), taps = d.extent(d.in(kWeight), -1), slots = a.get_int("state_update_capacity", 0);
  if (taps < 0) throw Error(ErrorCode::not_implemented, "the number of the weight's taps must be known");
  if (taps < 1 || taps > 1024 || dilation > 1024)
    throw Error(ErrorCode::invalid_model, fmt::format("dilation = {}, {} taps", dilation, taps));
  if (d.has(kCaptured) != (slots > 0))
    throw Error(ErrorCode::invalid_model, fmt::format("capture_count goes with a state_update_capacity above 0; it is {}", slots));
  if (d.has(kDelta) || d.has(kMask) || a.get_int("delta_offset", 0) != 0 || a.get_int("group_size", 1) != 1)
    throw Error(ErrorCode::not_implemented, "weights that tokens change (kernel_delta, previous_mask) are not implemented");
  const PackedRows rows = packed_rows(d, (taps - 1) * dilation);
  auto column = [&](ValueId x) { return d.op("Unsqueeze", {x, d.ints({1})}); };
  // A token belongs to the last of the sequences that begin at this token or before it.
  const ValueId token = column(counted(d, d.op("Shape", {d.in(kInput)}, {{"end", int64_t{1}}})));
  const ValueId begun = d.cast(d.op("LessOrEqual", {rows.begins, token}), DType::int64);
  const ValueId sequence = d.op("Sub", {d.op("ReduceSum", {begun, d.ints({1})}), d.ints({1})}),
                begin = d.op("Gather", {rows.begins, sequence});
  std::vector<int64_t> behind;
  for (int64_t tap = 0; tap < taps; ++tap) behind.push_back((taps - 1 - tap) * dilation);
  const ValueId place = d.op("Sub", {d.op("Sub", {token, begin}), d.ints(std::move(behind))});
  const ValueId weights =
      d.op("Transpose", {d.op("Reshape", {widened(d, d.in(kWeight)), d.ints({0, -1})})}, {{"perm", std::vector<int64_t>{1, 0}}});
  const ValueId products = d.op("Mul", {widened(d, rows.at(d, place, begin, sequence)), weights});
  ValueId y = d.op("ReduceSum", {products, d.ints({1})}, {{"keepdims", int64_t{0}}});
  if (d.has(kBias)) y = d.op("Add", {y, widened(d, d.in(kBias))});
  d.give(0, rounded(d, a.get_string("activation", "none") == "none" ? y : silu(d, y), d.in(kInput)));
  const ValueId last = d.op("Add", {column(rows.lengths), counted(d, d.ints({rows.past}))});
  const ValueId state = rows.at(d, d.op("Sub", {last, d.ints({rows.past})}), column(rows.begins), column(rows.sequence));
  d.give(1, d.op("Transpose", {state}, {{"perm", std::vector<int64_t>{0, 2, 1}}}));
  if (d.wants(2)) {
    const ValueId slot = counted(d, d.ints({slots})),
                  count = d.op("Min", {column(d.cast(d.in(kCaptured), DType::int64)), column(rows.lengths)});
    const ValueId taken = d.op("Min", {slot, d.op("Sub", {column(rows.lengths), d.ints({1})})});
    const ValueId given = d.op("Unsqueeze", {d.op("Less", {slot, count}), d.ints({2})});
    d.give(2, d.op("Where", {given, rows.at(d, taken, column(rows.begins), column(rows.sequence)), d.scalar(0, d.in(kInput))}));
  }
  d.finish();
}

}  // namespace

std::vector<OpDef> microsoft_gates_ops() {
  const Port x{"X", kFloats, "T"}, y{"Y", kFloats, "T"}, streams{"streams", kFloats, "T"}, output{"output", kFloats, "T"};
  return {
      op("GatedRMSNorm", {x, {"scale", kFloats, "T"}, {"gate", kFloats, "T"}}, {y},
         {{"activation", std::string_view("silu")}, {"epsilon", 1e-5F}}, decompose_gated_rms_norm),
      op("GatedAdd", {x, {"Y", kFloats, "T"}, {"gate", kFloats, "T"}, maybe("gate_weight", kFloats, "T")}, {output}, {},
         decompose_gated_add),
      op("ScaledSiLU", {x, maybe("scale", kFloats)}, {y}, {{"alpha", 1.0F}}, decompose_scaled_silu),
      op("HyperConnectionPreMix", {streams, {"pre_mix", kFloats}}, {output}, {{"num_branches"}, {"reduction_scale"}}, decompose_pre_mix),
      op("HyperConnectionPostMix", {streams, {"block_output", kFloats, "T"}, {"post_mix", kFloats, "M"}, maybe("stream_mix", kFloats, "M")},
         {output}, {{"num_branches"}}, decompose_post_mix),
      op("BranchwiseRMSNorm", {x, maybe("scale", kFloats)}, {y}, {{"epsilon"}, {"num_branches"}}, decompose_branchwise_rms_norm),
      op("LinearAttentionGate",
         {{"a", kFloats, "T"}, {"dt_bias", {DType::float32}}, {"decay_scale", {DType::float32}}, maybe("b", kFloats, "T")},
         {{"decay", kFloats, "T"}, maybe("beta", kFloats, "T")}, {}, decompose_linear_attention_gate),
      op("LinearAttention",
         {{"query", kFloats, "T"},
          {"key", kFloats, "T"},
          {"value", kFloats, "T"},
          maybe("past_state", kFloats, "S"),
          maybe("decay", kFloats, "T"),
          maybe("beta", kFloats, "T")},
         {output, {"present_state", kFloats, "S"}},
         {{"chunk_size"},
          {"kv_num_heads", AttributeDef::Required{}},
          {"q_num_heads", AttributeDef::Required{}},
          {"scale"},
          {"state_window"},
          {"update_rule"}},
         decompose_linear_attention),
      op("EngramGate",
         {{"key", kFloats, "T"},
          {"query", kFloats, "T"},
          {"value", kFloats, "T"},
          {"key_norm_scale", kFloats, "T"},
          {"query_norm_scale", kFloats, "T"},
          maybe("conv_norm_scale", kFloats, "T")},
         {output, maybe("gated_value_normed", kFloats, "T")}, {{"epsilon"}}, decompose_engram_gate),
      op("VarlenCausalConvWithState",
         {{"input", kFloats, "T", Presence::required, of_rank(2)},
          {"weight", kFloats, "T", Presence::required, of_rank(3)},
          {"cumulative_sequence_length", {DType::int32}, "", Presence::required, of_rank(1)},
          maybe("bias", kFloats, "T"),
          {"initial_state", kFloats, "T", Presence::required, of_rank(3)},
          maybe("capture_count", {DType::int32}),
          maybe("kernel_delta", kFloats, "T"),
          maybe("previous_mask", kFloats, "T")},
         {output, maybe("final_state", kFloats, "T"), maybe("state_update", kFloats, "T")},
         {{"activation", std::string_view("none"), one_of("none|silu|swish")},
          {"delta_offset", int64_t{0}},
          {"dilation", int64_t{1}, at_least(1)},
          {"group_size", int64_t{1}},
          {"state_update_capacity", int64_t{0}, between(0, 8)}},
         decompose_packed_causal_conv),
      op("CausalConvWithState",
         {{"input", kFloats, "T"}, {"weight", kFloats, "T"}, maybe("bias", kFloats, "T"), maybe("past_state", kFloats, "T")},
         {output, maybe("present_state", kFloats, "T"), maybe("state_update", kFloats, "T")},
         {{"activation"},
          {"channels_last", int64_t{0}, zero_or_one()},
          {"dilation"},
          {"input_channel_offset"},
          {"input_channels"},
          {"ndim"},
          {"state_channels_last"},
          {"state_length"},
          {"state_update_capacity"},
          {"state_window"}},
         decompose_causal_conv),
  };
}

}  // namespace treadle::ops
