// Decomposes quantized operators of com.microsoft into ONNX operators.
#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/checked.h"
#include "core/values/float_types.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"
#include "ops/rank_branches.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kBytes{DType::uint8, DType::int8};
constexpr TypeSet kQuantized{DType::uint8, DType::int8, DType::uint16, DType::int16, DType::int32,
                             DType::uint4, DType::int4, DType::uint2,  DType::int2};

constexpr TypeSet kFloatCodes{DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz, DType::float4e2m1};

ValueId dequantized(Decomposition& d, ValueId x, ValueId scale, ValueId zero_point, Attributes attributes = {}) {
  return d.op("DequantizeLinear", {x, scale, zero_point}, std::move(attributes));
}

/// Dequantizes input number `first`. The next two inputs are its scale and zero point.
ValueId dequantized(Decomposition& d, size_t first) { return dequantized(d, d.in(first), d.in(first + 1), d.in(first + 2)); }

/// Quantizes y, makes the result output 0, and removes the node. Without a zero point, the result has the dtype of x.
void give_quantized(Decomposition& d, ValueId y, ValueId scale, ValueId zero_point, ValueId x) {
  if (zero_point == kNoValue) zero_point = d.op("CastLike", {d.constant(Tensor::scalar<uint8_t>(0)), x});
  d.give(0, d.op("QuantizeLinear", {y, scale, zero_point}));
  d.finish();
}

/// Like the function above. The inputs `first` and `first` + 1 are y_scale and y_zero_point.
void give_quantized(Decomposition& d, ValueId y, size_t first, ValueId x) { give_quantized(d, y, d.in(first), d.in(first + 1), x); }

// Folds the result's scale into the operands' scales, as the operators are defined:
//   C = A_scale / C_scale (A - A_zero) + B_scale / C_scale (B - B_zero) + C_zero
//   C = A_scale B_scale / C_scale (A - A_zero) (B - B_zero) + C_zero
void decompose_binary(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const ValueId a_scale = d.in(1), b_scale = d.in(4), c_scale = d.in(6);
  const ValueId one = d.op("CastLike", {d.constant(Tensor::scalar<float>(1)), c_scale});
  ValueId y;
  if (d.node().op_type == "QLinearAdd") {
    y = d.op("Add", {dequantized(d, d.in(0), d.op("Div", {a_scale, c_scale}), d.in(2)),
                     dequantized(d, d.in(3), d.op("Div", {b_scale, c_scale}), d.in(5))});
  } else {
    const ValueId product = d.op("Mul", {dequantized(d, d.in(0), one, d.in(2)), dequantized(d, d.in(3), one, d.in(5))});
    y = d.op("Mul", {product, d.op("Div", {d.op("Mul", {a_scale, b_scale}), c_scale})});
  }
  give_quantized(d, y, one, d.in(7), d.in(0));
}

void decompose_unary(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  std::string op(d.node().op_type.substr(std::string_view("QLinear").size()));
  Attributes attributes = op == "LeakyRelu" ? d.copied({"alpha"}) : Attributes{};
  ValueId y = d.op(op, {dequantized(d, 0)}, std::move(attributes));
  give_quantized(d, y, 3, d.in(0));
}

// As in onnxruntime, the softmax is multiplied by floor(1 / y_scale) instead of divided by y_scale, before y_zero is added.
void decompose_softmax(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId x = dequantized(d, 0), y;
  const bool one_axis = d.attributes().get_int("opset", 13) >= 13;
  const int64_t axis = d.attributes().get_int("axis", -1);
  if (one_axis) {
    y = d.op("Softmax", {x}, {{"axis", axis}});
  } else {  // before opset 13, softmax was over all axes from `axis` on
    y = d.op("Reshape", {d.op("Softmax", {d.op("Flatten", {x}, {{"axis", axis}})}, {{"axis", int64_t{-1}}}), d.op("Shape", {x})},
             {{"allowzero", int64_t{1}}});
  }
  const ValueId one = d.op("CastLike", {d.constant(Tensor::scalar(1.0F)), d.in(3)});
  y = d.op("Mul", {y, d.op("Floor", {d.op("Div", {one, d.in(3)})})});
  give_quantized(d, y, one, d.in(4), d.in(0));
}

void decompose_concat(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  std::vector<ValueId> parts;
  for (size_t i = 2; i + 2 < static_cast<size_t>(d.node().num_formal_inputs); i += 3) parts.push_back(dequantized(d, i));
  ValueId y = d.op("Concat", parts, d.copied({"axis"}));
  give_quantized(d, y, 0, d.in(2));
}

void decompose_where(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  give_quantized(d, d.op("Where", {d.in(0), dequantized(d, 1), dequantized(d, 4)}), 7, d.in(1));
}

void decompose_reduce_mean(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  ValueId axes = d.attributes().has("axes") ? d.ints(d.attributes().get_ints("axes")) : kNoValue;
  give_quantized(d, d.op("ReduceMean", {dequantized(d, 0), axes}, d.copied({"keepdims"})), 3, d.in(0));
}

void decompose_pool(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  bool channels_last = d.attributes().get_int("channels_last", 0) != 0;
  const auto window_axes = static_cast<int>(d.attributes().get_ints("kernel_shape").size());
  if (channels_last && branch_by_rank(d, {0}, window_axes > 0 ? std::vector<int>{window_axes + 2} : std::vector<int>{4, 3, 5})) return;
  ValueId x = dequantized(d, 0);
  int rank = d.rank(d.in(0));
  if (channels_last && rank < 3)
    throw Error(ErrorCode::invalid_model, fmt::format("X is of rank {}; channels_last needs at least 3", rank));
  std::vector<int64_t> to_front{0, rank - 1}, to_back{0};
  for (int i = 1; i + 1 < rank; ++i) to_front.push_back(i), to_back.push_back(i + 1);
  to_back.push_back(1);
  if (channels_last) x = d.op("Transpose", {x}, {{"perm", to_front}});
  if (d.node().op_type == "QLinearGlobalAveragePool")
    x = d.op("GlobalAveragePool", {x});
  else
    x = d.op("AveragePool", {x}, d.copied({"auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"}));
  if (channels_last) x = d.op("Transpose", {x}, {{"perm", to_back}});
  give_quantized(d, x, 3, d.in(0));
}

// Decomposes Y = alpha * (A B + C), where C is int32 with the scale a_scale * b_scale.
void decompose_gemm(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  float alpha = d.attributes().get_float("alpha", 1);
  int64_t b_axis = d.attributes().get_int("transB", 0) != 0 ? 0 : 1;
  ValueId a = dequantized(d, 0), b = dequantized(d, d.in(3), d.in(4), d.in(5), {{"axis", b_axis}}), c = kNoValue;
  if (d.has(6)) c = d.op("Mul", {d.cast(d.in(6), DType::float32), d.op("Mul", {d.in(1), d.in(4)})});
  Attributes attributes = d.copied({"transA", "transB"});
  attributes.set("alpha", alpha);
  attributes.set("beta", alpha);
  ValueId y = d.op("Gemm", {a, b, c}, std::move(attributes));
  // As in onnxruntime, the result is quantized only if a zero point is given.
  const ValueId scale = d.has(7) ? d.in(7) : d.constant(Tensor::scalar<float>(1));
  if (d.has(8)) return give_quantized(d, y, scale, d.in(8), d.in(0));
  d.give(0, d.has(7) ? d.op("Div", {y, scale}) : y);
  d.finish();
}

/// Flattens scales or zero points of a matrix's columns to a vector. Those of a batch of matrices are returned unchanged.
ValueId of_columns(Decomposition& d, ValueId x, ValueId matrix) {
  if (x == kNoValue || d.rank(x) < 0 || d.rank(x) > 2 || d.rank(matrix) > 2) return x;
  return d.rank(x) == 2 ? d.op("Reshape", {x, d.ints({-1})}) : x;
}

void give_product(Decomposition& d, ValueId a, ValueId b, ValueId a_scale, ValueId b_scale, ValueId a_zero, ValueId b_zero, ValueId bias) {
  const ValueId product = d.op("MatMulInteger", {a, b, a_zero, of_columns(d, b_zero, b)});
  ValueId y = d.op("Mul", {d.cast(product, DType::float32), d.op("Mul", {a_scale, of_columns(d, b_scale, b)})});
  if (bias != kNoValue) y = d.op("Add", {y, d.rank(bias) == 0 ? bias : d.op("Reshape", {bias, d.ints({-1})})});
  // The product of two vectors is a scalar, even if scales and bias are vectors of one element.
  if (d.rank(a) < 2 && d.rank(b) < 2) y = d.op("Reshape", {y, d.op("Shape", {product})}, {{"allowzero", int64_t{1}}});
  d.give(0, y);
  d.finish();
}

void decompose_dynamic_matmul(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  auto a = d.op_n("DynamicQuantizeLinear", {d.in(0)}, 3);
  give_product(d, a[0], d.in(1), a[1], d.in(2), a[2], d.in(3), d.in(4));
}

void decompose_matmul_to_float(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  give_product(d, d.in(0), d.in(1), d.in(2), d.in(3), d.in(4), d.in(5), d.in(6));
}

void decompose_quantize(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op(d.node().op_type, {d.in(0), d.in(1), d.in(2)}, d.copied({"axis", "block_size"})));
  d.finish();
}

DType packed_dtype(int64_t bits) {
  if (bits == 2) return DType::uint2;
  if (bits == 4) return DType::uint4;
  if (bits == 8) return DType::uint8;
  throw Error(ErrorCode::not_implemented, fmt::format("weights of {} bits are not implemented", bits));
}

/// Returns the bytes of a constant input. @throws Error(not_implemented) if it is not constant.
const Tensor& constant_bytes(const Decomposition& d, size_t input, std::string_view name) {
  const Tensor* tensor = d.graph().constant_tensor(d.in(input));
  if (!tensor || tensor->dtype() != DType::uint8 || !tensor->is_contiguous())
    throw Error(ErrorCode::not_implemented, fmt::format("{} must be a constant of uint8", name));
  return *tensor;
}

/// Repacks `rows` rows of `columns` codes of `bits` bits. The model pads each row to `padded` codes and to whole bytes; ONNX's packed types
/// have no padding.
Tensor repacked(const Tensor& bytes, int64_t rows, int64_t columns, int64_t padded, int64_t bits, std::string_view name) {
  int64_t row_bytes = ceil_div(checked_mul(padded, bits), 8), needed = checked_mul(rows, row_bytes);
  if (bytes.num_elements() != needed)
    throw Error(ErrorCode::invalid_model, fmt::format("{} has {} bytes, expected {}", name, bytes.num_elements(), needed));
  DType dtype = packed_dtype(bits);
  if (columns == padded && columns * bits % 8 == 0)
    return Tensor(dtype, Shape{rows, columns}, bytes.storage(), static_cast<size_t>(bytes.raw() - bytes.storage()->data()));
  Tensor packed(dtype, Shape{rows, columns});
  std::memset(packed.raw(), 0, packed.size_bytes());
  const auto* from = bytes.data<uint8_t>();
  auto* to = reinterpret_cast<uint8_t*>(packed.raw());
  auto mask = (1U << bits) - 1U;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      int64_t source = column * bits, target = (row * columns + column) * bits;
      unsigned code = from[row * row_bytes + source / 8] >> (source % 8) & mask;
      to[target / 8] = static_cast<uint8_t>(to[target / 8] | code << (target % 8));
    }
  }
  return packed;
}

/// Unpacks codes of `bits` bits to one byte each. A byte has 8 / bits consecutive codes of the last axis, the first one in the lowest bits.
ValueId unpacked(Decomposition& d, ValueId bytes, int64_t bits) {
  if (bits == 8) return bytes;
  std::vector<uint8_t> shifts;
  for (int64_t shift = 0; shift < 8; shift += bits) shifts.push_back(static_cast<uint8_t>(shift));
  ValueId codes = d.op("BitShift", {d.op("Unsqueeze", {bytes, d.ints({-1})}), d.constant(Tensor::vector<uint8_t>(shifts))},
                       {{"direction", std::string("RIGHT")}});
  codes = d.op("BitwiseAnd", {codes, d.constant(Tensor::scalar<uint8_t>(static_cast<uint8_t>((1 << bits) - 1)))});
  const ValueId leading = d.op("Shape", {bytes}, {{"end", int64_t{-1}}}), last = d.op("Shape", {bytes}, {{"start", int64_t{-1}}});
  const ValueId shape = d.op("Concat", {leading, d.op("Mul", {last, d.ints({8 / bits})})}, {{"axis", int64_t{0}}});
  return d.op("Reshape", {codes, shape}, {{"allowzero", int64_t{1}}});
}

/// Returns the codes [rows, columns]. Constant bytes are repacked here; for other bytes, nodes unpack them during the run.
ValueId codes_of(Decomposition& d, size_t input, bool constant, int64_t rows, int64_t columns, int64_t padded, int64_t bits,
                 std::string_view name) {
  if (constant) return d.constant(repacked(constant_bytes(d, input, name), rows, columns, padded, bits, name));
  const ValueId bytes = d.op("Reshape", {d.in(input), d.ints({rows, ceil_div(checked_mul(padded, bits), 8)})});
  packed_dtype(bits);  // throws for an unsupported number of bits
  return d.op("Slice", {unpacked(d, bytes, bits), d.ints({0}), d.ints({columns}), d.ints({1})});
}

/// The zero points of MatMulNBits, [N, blocks]. They are integer codes (by default the middle one) or, in `floats`, numbers of a float
/// type.
struct ZeroPoints {
  ValueId codes = kNoValue, floats = kNoValue;
};

ZeroPoints zero_points_of(Decomposition& d, ValueId scales, bool constant, int64_t N, int64_t blocks, int64_t bits) {
  if (d.has(3) && d.type(d.in(3)).dtype == DType::uint8) return {.codes = codes_of(d, 3, constant, N, blocks, blocks, bits, "zero_points")};
  ZeroPoints zero_points;
  if (constant) {
    Tensor middle(packed_dtype(bits), Shape{N, blocks});
    std::memset(middle.raw(), bits == 8 ? 0x80 : bits == 4 ? 0x88 : 0xAA, middle.size_bytes());
    zero_points.codes = d.constant(std::move(middle));
  } else {
    zero_points.codes = d.op("Expand", {d.constant(Tensor::scalar(static_cast<uint8_t>(1 << (bits - 1)))), d.op("Shape", {scales})});
  }
  if (d.has(3)) zero_points.floats = d.op("Reshape", {d.in(3), d.ints({N, blocks})});
  return zero_points;
}

/// Returns the dequantized weights, (codes - zero point) * scale, where g_idx has the group of each of the K columns.
ValueId grouped_weights(Decomposition& d, ValueId codes, ValueId scales, const ZeroPoints& zero_points, int64_t K) {
  const ValueId groups = d.op("Slice", {d.in(4), d.ints({0}), d.ints({K}), d.ints({0})});  // g_idx may include padding
  auto of_column = [&](ValueId x) { return d.op("Gather", {x, groups}, {{"axis", int64_t{1}}}); };
  auto as_scales = [&](ValueId x) { return d.op("CastLike", {x, scales}); };
  ValueId zero = zero_points.floats != kNoValue ? zero_points.floats : as_scales(zero_points.codes);
  return d.op("Mul", {d.op("Sub", {as_scales(codes), of_column(zero)}), of_column(scales)});
}

// Returns what zero points of a float type add to the product: for each block, (middle - zero point) * scale times the sum of A's elements.
// It is computed separately so that the weights themselves stay integer codes.
ValueId zero_point_product(Decomposition& d, ValueId zero, ValueId scales, int64_t bits, int64_t blocks, int64_t block, int64_t padding) {
  ValueId a = d.in(0), middle = d.scalar(static_cast<float>(int64_t{1} << (bits - 1)), scales);
  ValueId factors = d.op("Mul", {d.op("Sub", {middle, zero}), scales});
  ValueId leading = d.op("Shape", {a}, {{"end", int64_t{-1}}});
  if (padding > 0) a = d.op("Pad", {a, d.ints({0, padding}), kNoValue, d.ints({-1})});
  a = d.op("Reshape", {a, d.op("Concat", {leading, d.ints({blocks, block})}, {{"axis", int64_t{0}}})});
  ValueId sums = d.op("ReduceSum", {a, d.ints({-1})}, {{"keepdims", int64_t{0}}});
  return d.op("MatMul", {sums, d.op("Transpose", {factors}, {{"perm", std::vector<int64_t>{1, 0}}})});
}

// Decomposes Y = A [.., K] times the transpose of B [N, K]. A row of B has blocks of block_size codes; each block has a scale (and a zero
// point).
void decompose_matmul_nbits(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  int64_t K = d.attributes().get_int("K"), N = d.attributes().get_int("N"), bits = d.attributes().get_int("bits", 4),
          block = d.attributes().get_int("block_size");
  if (K < 1 || N < 1 || block < 1) throw Error(ErrorCode::invalid_model, fmt::format("K = {}, N = {}, block_size = {}", K, N, block));
  int64_t blocks = ceil_div(K, block), padded = checked_mul(blocks, block);
  const bool coded_zeros = d.has(3) && d.type(d.in(3)).dtype == DType::uint8;
  const bool constant = d.graph().constant_tensor(d.in(1)) && (!coded_zeros || d.graph().constant_tensor(d.in(3)));
  ValueId codes = codes_of(d, 1, constant, N, K, padded, bits, "B");
  ValueId scales = d.op("Reshape", {d.in(2), d.ints({N, blocks})});
  ZeroPoints zero_points = zero_points_of(d, scales, constant, N, blocks, bits);
  ValueId weights = d.has(4) ? grouped_weights(d, codes, scales, zero_points, K)
                             : dequantized(d, codes, scales, zero_points.codes, {{"axis", int64_t{1}}, {"block_size", block}});
  ValueId y = d.op("MatMul", {d.in(0), d.op("Transpose", {weights}, {{"perm", std::vector<int64_t>{1, 0}}})});
  constexpr int64_t kInt8 = 4;  // accuracy_level 4: activations may be quantized to 8 bits
  if (d.attributes().get_int("accuracy_level", 0) == kInt8)
    graph.node(graph.value(y).producer).metadata.emplace_back(kInt8Activations.first, kInt8Activations.second);
  if (!d.has(4) && zero_points.floats != kNoValue)
    y = d.op("Add", {y, zero_point_product(d, zero_points.floats, scales, bits, blocks, block, padded - K)});
  if (d.has(5)) y = d.op("Add", {y, d.in(5)});
  d.give(0, y);
  d.finish();
}

int64_t axis_of(const Decomposition& d, std::string_view name, int64_t otherwise, int rank) {
  const int64_t axis = d.attributes().get_int(name, otherwise);
  if (axis < -rank || axis >= rank) throw Error(ErrorCode::invalid_model, fmt::format("{} is {}, for data of rank {}", name, axis, rank));
  return axis < 0 ? axis + rank : axis;
}

/// The inputs of GatherBlockQuantized that are dequantized together. Their axes correspond to one another.
struct Blocks {
  ValueId data, scales, zero_points;
};

/// Unpacks data and zero points from bytes to codes of `bits` bits. Absent zero points become the middle code.
void unpack(Decomposition& d, Blocks& blocks, int64_t bits) {
  blocks.data = unpacked(d, blocks.data, bits);
  const ValueId shape = d.op("Shape", {blocks.scales});
  if (blocks.zero_points == kNoValue) {
    blocks.zero_points = d.op("Expand", {d.constant(Tensor::scalar<uint8_t>(static_cast<uint8_t>(1 << (bits - 1)))), shape});
  } else if (bits != 8) {  // a row's last byte may have unused codes
    const ValueId last = d.op("Shape", {blocks.scales}, {{"start", int64_t{-1}}});
    blocks.zero_points = d.op("Slice", {unpacked(d, blocks.zero_points, bits), d.ints({0}), last, d.ints({-1})});
  }
}

/// `within` has the indices, with 0 in place of those out of range. `inside` is true where an index was in range; other results become
/// zeros.
struct Indices {
  ValueId within, inside;
};

Indices indices_of(Decomposition& d, int64_t axis) {
  const auto as_index = [&](ValueId x) { return d.op("CastLike", {x, d.in(1)}); };
  const ValueId length = d.op("Squeeze", {d.op("Shape", {d.in(0)}, {{"start", axis}, {"end", axis + 1}}), d.ints({0})});
  const ValueId first = as_index(d.op("Neg", {length})), end = as_index(length);
  const ValueId inside = d.op("And", {d.op("GreaterOrEqual", {d.in(1), first}), d.op("Less", {d.in(1), end})});
  return {d.op("Where", {inside, d.in(1), as_index(d.constant(Tensor::scalar<int64_t>(0)))}), inside};
}

/// Returns the ranks that `data` may have according to the attributes.
std::vector<int> ranks_of_data(const Attributes& attributes, bool bytes) {
  const int64_t last = attributes.get_int("quantize_axis", 1);
  if (bytes && last >= 0) return {static_cast<int>(std::min<int64_t>(last, kMaxRank)) + 1};
  int64_t least = 2;
  for (int64_t given : {attributes.get_int("gather_axis", 0), last}) {
    // Axes are clamped to the maximum rank. Those outside are rejected later, whatever the rank of `data` is.
    const auto axis = std::clamp<int64_t>(given, -kMaxRank, kMaxRank - 1);
    least = std::max(least, axis < 0 ? -axis : axis + 1);
  }
  std::vector<int> ranks;
  for (int64_t rank = least; rank <= kMaxRank; ++rank) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

void check_blocks(const Decomposition& d, int rank, int64_t gather_axis, int64_t axis) {
  const DType dtype = d.type(d.in(0)).dtype;
  const bool bytes = dtype == DType::uint8, floats = kFloatCodes.has(dtype);
  const int64_t bits = d.attributes().get_int("bits", 4), block = d.attributes().get_int("block_size", 128);
  if (block < (floats ? 0 : 1) || (block & (block - 1)) != 0 || (block > 0 && block < 16))
    throw Error(ErrorCode::invalid_model,
                fmt::format("block_size is {}; a power of 2 of at least 16 expected, or 0 for floats of 8 or 4 bits", block));
  if (!floats && bits != 4 && (!bytes || (bits != 2 && bits != 8)))
    throw Error(ErrorCode::invalid_model, fmt::format("bits is {}; codes in uint8 have 2, 4 or 8, others 4", bits));
  if (floats && d.has(3)) throw Error(ErrorCode::invalid_model, "there are zero_points beside floats of 8 or 4 bits, which have none");
  if (bytes && (gather_axis != 0 || (bits != 8 && axis != rank - 1)))
    throw Error(ErrorCode::not_implemented,
                fmt::format("gather_axis = {} and quantize_axis = {}; for codes in uint8 they have to be the first and the last axis",
                            gather_axis, axis));
}

/// Expands scales to the shape of the data, except along the axis of blocks. Along other axes they may have the extent 1.
ValueId spread_scales(Decomposition& d, int rank, int64_t axis) {
  auto extents = [&](size_t input, int64_t begin, int64_t end) { return d.op("Shape", {d.in(input)}, {{"start", begin}, {"end", end}}); };
  const ValueId shape =
      d.op("Concat", {extents(0, 0, axis), extents(2, axis, axis + 1), extents(0, axis + 1, rank)}, {{"axis", int64_t{0}}});
  return d.op("Expand", {d.in(2), shape});
}

// Gathers rows first and dequantizes only them, so that an embedding table is never expanded as a whole. If the node gathers along the axis
// of blocks, it must dequantize first.
void decompose_gather_quantized(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const DType dtype = d.type(d.in(0)).dtype;
  const bool bytes = dtype == DType::uint8;
  if (branch_by_rank(d, {0, 2, 3}, ranks_of_data(d.attributes(), bytes))) return;
  const int rank = d.rank(d.in(0));
  if (rank < 1) throw Error(ErrorCode::invalid_model, fmt::format("the data are of rank {}, at least 1 expected", rank));
  const int64_t block = d.attributes().get_int("block_size", 128);
  const int64_t gather_axis = axis_of(d, "gather_axis", 0, rank), axis = axis_of(d, "quantize_axis", 1, rank);
  check_blocks(d, rank, gather_axis, axis);
  const Indices indices = indices_of(d, gather_axis);
  Blocks blocks{d.in(0), kFloatCodes.has(dtype) ? spread_scales(d, rank, axis) : d.in(2), d.in(3)};
  const auto along = [&](int64_t i) { return Attributes{{"axis", i}}; };
  const auto gathered = [&](ValueId x) { return x == kNoValue ? x : d.op("Gather", {x, indices.within}, along(gather_axis)); };
  const bool rows = axis != gather_axis;
  if (rows) blocks = {gathered(blocks.data), gathered(blocks.scales), gathered(blocks.zero_points)};
  if (bytes) unpack(d, blocks, d.attributes().get_int("bits", 4));
  Attributes attributes = along(axis > gather_axis ? axis - rank : axis);  // counted from the end, since indices may have any rank
  attributes.set("block_size", block);
  ValueId y = block == 0 ? d.op("Mul", {d.op("CastLike", {blocks.data, blocks.scales}), blocks.scales})
                         : dequantized(d, blocks.data, blocks.scales, blocks.zero_points, std::move(attributes));
  if (!rows) y = gathered(y);
  std::vector<int64_t> behind;
  for (int64_t i = 1; i < rank - gather_axis; ++i) behind.push_back(-i);
  const ValueId given = behind.empty() ? indices.inside : d.op("Unsqueeze", {indices.inside, d.ints(std::move(behind))});
  d.give(0, d.op("Where", {given, y, d.scalar(0, d.in(2))}));
  d.finish();
}

}  // namespace

std::vector<OpDef> microsoft_quantized_ops() {
  using Required = AttributeDef::Required;
  const TypeSet floats = kFloats;
  const Port x{"X", kBytes}, y{"Y", kBytes}, x_scale{"X_scale", floats}, x_zero = maybe("X_zero_point", kBytes), y_scale{"Y_scale", floats},
                                                                         y_zero = maybe("Y_zero_point", kBytes);
  const std::vector<Port> unary = {x, x_scale, x_zero, y_scale, y_zero};
  const std::vector<Port> binary = {{"A", kBytes},       {"A_scale", floats},          maybe("A_zero_point", kBytes),
                                    {"B", kBytes},       {"B_scale", floats},          maybe("B_zero_point", kBytes),
                                    {"C_scale", floats}, maybe("C_zero_point", kBytes)};
  return {
      op("QLinearAdd", binary, {y}, {}, decompose_binary),
      op("QLinearMul", binary, {y}, {}, decompose_binary),
      op("QLinearSigmoid", unary, {y}, {}, decompose_unary),
      op("QLinearLeakyRelu", unary, {y}, {{"alpha", 0.01F}}, decompose_unary),
      op("QLinearSoftmax", unary, {y}, {{"axis", int64_t{-1}}, {"opset", Required{}}}, decompose_softmax),
      op("QLinearConcat", {{"Y_scale", floats}, {"Y_zero_point", kBytes}, {"inputs", kBytes | floats, "", Presence::variadic}}, {y},
         {{"axis", Required{}}}, decompose_concat),
      op("QLinearWhere",
         {{"condition", kBool},
          x,
          x_scale,
          x_zero,
          {"Y", kBytes},
          {"y_scale", floats},
          maybe("y_zero_point", kBytes),
          {"z_scale", floats},
          maybe("z_zero_point", kBytes)},
         {{"Z", kBytes}}, {}, decompose_where),
      op("QLinearReduceMean", unary, {y}, {{"axes"}, {"keepdims"}}, decompose_reduce_mean),
      op("QLinearAveragePool", unary, {y},
         {{"auto_pad"}, {"ceil_mode"}, {"channels_last"}, {"count_include_pad"}, {"kernel_shape", Required{}}, {"pads"}, {"strides"}},
         decompose_pool),
      op("QLinearGlobalAveragePool", unary, {y}, {{"channels_last"}}, decompose_pool),
      op("QGemm",
         {{"A", kBytes},
          {"a_scale", floats},
          {"a_zero_point", kBytes},
          {"B", kBytes},
          {"b_scale", floats},
          {"b_zero_point", kBytes},
          maybe("C", {DType::int32}),
          maybe("y_scale", floats),
          maybe("y_zero_point", kBytes)},
         {{"Y", kBytes | floats}}, {{"alpha", 1.0F}, {"transA", int64_t{0}}, {"transB", int64_t{0}}}, decompose_gemm),
      op("DynamicQuantizeMatMul", {{"A", floats}, {"B", kBytes}, {"b_scale", floats}, maybe("b_zero_point", kBytes), maybe("bias", floats)},
         {{"Y", floats}}, {}, decompose_dynamic_matmul),
      op("MatMulIntegerToFloat",
         {{"A", kBytes},
          {"B", kBytes},
          {"a_scale", floats},
          {"b_scale", floats},
          maybe("a_zero_point", kBytes),
          maybe("b_zero_point", kBytes),
          maybe("bias", floats)},
         {{"Y", floats}}, {}, decompose_matmul_to_float),
      op("QuantizeLinear", {{"x", floats | TypeSet{DType::int32}}, {"y_scale", floats}, maybe("y_zero_point", kQuantized)},
         {{"y", kQuantized}}, {{"axis"}, {"block_size"}}, decompose_quantize),
      op("DequantizeLinear", {{"x", kQuantized}, {"x_scale", floats}, maybe("x_zero_point", kQuantized)}, {{"y", floats}},
         {{"axis"}, {"block_size"}}, decompose_quantize),
      op("MatMulNBits",
         {{"A", floats},
          {"B", {DType::uint8}},
          {"scales", floats},
          maybe("zero_points", TypeSet{DType::uint8} | floats),
          maybe("g_idx", {DType::int32}),
          maybe("bias", floats)},
         {{"Y", floats}},
         {{"K", Required{}}, {"N", Required{}}, {"accuracy_level"}, {"bits"}, {"block_size", Required{}}, {"weight_prepacked"}},
         decompose_matmul_nbits),
      op("GatherBlockQuantized",
         {{"data", kQuantized | kFloatCodes}, {"indices", kInt32Or64}, {"scales", floats}, maybe("zero_points", kQuantized)},
         {{"output", floats}},
         {{"bits", int64_t{4}, between(2, 8)}, {"block_size", int64_t{128}, at_least(0)}, {"gather_axis"}, {"quantize_axis"}},
         decompose_gather_quantized),
  };
}

}  // namespace treadle::ops
