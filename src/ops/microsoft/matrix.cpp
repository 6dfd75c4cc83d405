// Implements operators of com.microsoft that multiply, invert or rearrange matrices.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "core/base/checked.h"
#include "core/threads/thread_pool.h"
#include "graph/infer.h"
#include "kernels/classical/pairs.h"
#include "kernels/elementwise/unary_f32.h"
#include "kernels/gemm/four_bit_floats.h"
#include "kernels/linalg/eliminate.h"
#include "kernels/scratch_slots.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/microsoft/microsoft.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"

namespace treadle::ops {
namespace {

const Tensor& constant_input(const Decomposition& d, size_t input, std::string_view name, DType dtype) {
  const Tensor* tensor = d.graph().constant_tensor(d.in(input));
  if (!tensor || tensor->dtype() != dtype || !tensor->is_contiguous())
    throw Error(ErrorCode::not_implemented, fmt::format("{} must be a constant of {}", name, name_of(dtype)));
  return *tensor;
}

/// Adds nodes that compute the weights during the run, for codes that are not constant.
ValueId weights_of_bnb4(Decomposition& d, const float* table, int64_t total, int64_t block) {
  const int64_t blocks = ceil_div(total, block);
  const ValueId bytes = d.op("Unsqueeze", {d.op("Reshape", {d.in(1), d.ints({ceil_div(total, 2)})}), d.ints({1})});
  const ValueId shifts = d.constant(Tensor::vector<uint8_t>(std::vector<uint8_t>{4, 0}));
  ValueId codes = d.op("BitShift", {bytes, shifts}, {{"direction", std::string("RIGHT")}});
  codes = d.cast(d.op("BitwiseAnd", {codes, d.constant(Tensor::scalar<uint8_t>(15))}), DType::int32);
  ValueId numbers = d.op("Gather", {d.constant(Tensor::vector<float>(std::vector<float>(table, table + 16))), codes});
  numbers = d.op("Slice", {d.op("Reshape", {numbers, d.ints({-1})}), d.ints({0}), d.ints({total}), d.ints({0})});
  if (total % block != 0) numbers = d.op("Pad", {numbers, d.ints({0, blocks * block - total})});
  const ValueId scales = d.op("Reshape", {d.cast(d.in(2), DType::float32), d.ints({blocks, 1})});
  numbers = d.op("Reshape", {d.op("Mul", {d.op("Reshape", {numbers, d.ints({blocks, block})}), scales}), d.ints({-1})});
  return d.op("Slice", {numbers, d.ints({0}), d.ints({total}), d.ints({0})});
}

// B [N, K] is flattened and divided into blocks of block_size 4-bit codes, with one scale per block. The first code of a byte is in its
// upper half.
void decompose_matmul_bnb4(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  int64_t K = a.get_int("K"), N = a.get_int("N"), block = a.get_int("block_size"), quant_type = a.get_int("quant_type");
  if (K < 1 || N < 1 || block < 1 || quant_type < 0 || quant_type > 1)
    throw Error(ErrorCode::invalid_model, fmt::format("K = {}, N = {}, block_size = {}, quant_type = {}", K, N, block, quant_type));
  int64_t total = checked_mul(N, K), bytes = ceil_div(total, 2), blocks = ceil_div(total, block);
  const float* table = quant_type == 0 ? kernels::kFp4 : kernels::kNf4;
  ValueId b;
  if (!d.graph().constant_tensor(d.in(1)) || !d.graph().constant_tensor(d.in(2))) {
    b = d.op("Reshape", {weights_of_bnb4(d, table, total, block), d.ints({N, K})});
  } else {
    const Tensor &codes = constant_input(d, 1, "B", DType::uint8), &scales = constant_input(d, 2, "absmax", DType::float32);
    if (codes.num_elements() != bytes || scales.num_elements() != blocks)
      throw Error(ErrorCode::invalid_model, fmt::format("B has {} bytes and absmax {} elements, expected {} and {}", codes.num_elements(),
                                                        scales.num_elements(), bytes, blocks));
    Tensor weights(DType::float32, Shape{N, K});
    for (int64_t i = 0; i < total; ++i) {
      unsigned pair = codes.data<uint8_t>()[i / 2];
      weights.data<float>()[i] = table[i % 2 == 0 ? pair >> 4U : pair & 15U] * scales.data<float>()[i / block];
    }
    b = d.constant(std::move(weights));
  }
  if (d.type(d.in(0)).dtype != DType::float32) b = d.op("CastLike", {b, d.in(0)});
  if (a.get_int("transB", 1) != 0) b = d.op("Transpose", {b}, {{"perm", std::vector<int64_t>{1, 0}}});
  d.give(0, d.op("MatMul", {d.in(0), b}));
  d.finish();
}

/// Adds nodes that compute the weights [K, N] during the run, for a B or B_shape that is not constant.
ValueId weights_of_fp_q4(Decomposition& d, int64_t head, int64_t bytes) {
  const auto part = [&](ValueId x, int64_t begin, int64_t end, int64_t axis) {
    return d.op("Slice", {x, d.ints({begin}), d.ints({end}), d.ints({axis})});
  };
  const auto byte = [&](uint8_t number) { return d.constant(Tensor::scalar<uint8_t>(number)); };
  const auto to_right = [&](ValueId x) { return d.op("BitShift", {x, byte(4)}, {{"direction", std::string("RIGHT")}}); };
  const auto joined = [&](std::vector<ValueId> parts, int64_t axis) { return d.op("Concat", std::move(parts), {{"axis", axis}}); };
  const ValueId shape = d.op("Reshape", {d.in(2), d.ints({2})}), depth = part(shape, 0, 1, 0), columns = part(shape, 1, 2, 0);
  const ValueId blocks = d.op("Div", {d.op("Add", {depth, d.ints({31})}), d.ints({32})});
  const ValueId blob = d.op("Reshape", {d.in(1), joined({columns, blocks, d.ints({bytes})}, 0)}, {{"allowzero", int64_t{1}}});
  const ValueId places = d.constant(Tensor::vector<uint32_t>(std::vector<uint32_t>{0, 8, 16, 24}));
  const ValueId bits = d.op("BitShift", {d.cast(part(blob, 0, 4, 2), DType::uint32), places}, {{"direction", std::string("LEFT")}});
  const ValueId scales = d.op("BitCast", {d.op("ReduceSum", {bits, d.ints({2})})}, {{"to", static_cast<int64_t>(DType::float32)}});
  const ValueId pairs = part(blob, head, bytes, 2);
  ValueId codes = d.cast(joined({d.op("BitwiseAnd", {pairs, byte(15)}), to_right(pairs)}, 2), DType::float32);
  codes = d.op("Sub", {codes, head == 5 ? d.cast(part(blob, 4, 5, 2), DType::float32) : d.constant(Tensor::scalar(8.0F))});
  const ValueId rows = d.op("Reshape", {d.op("Mul", {codes, scales}), joined({columns, d.op("Mul", {blocks, d.ints({32})})}, 0)},
                            {{"allowzero", int64_t{1}}});
  return d.op("Transpose", {d.op("Slice", {rows, d.ints({0}), depth, d.ints({1})})}, {{"perm", std::vector<int64_t>{1, 0}}});
}

// B is one array of bytes. For each column and each 32 rows, it has a scale (float), a zero point (one byte; absent and 8 if blk_quant_type
// is 0), and 16 bytes whose lower halves are the codes of the first 16 rows. MatMulNBits instead stores adjacent codes in one byte.
void decompose_matmul_fp_q4(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  constexpr int64_t kBlock = 32, kCodeBytes = 16;
  const bool has_zeros = d.attributes().get_int("blk_quant_type", 1) != 0;
  const int64_t head = has_zeros ? 5 : 4, bytes = head + kCodeBytes;
  if (!d.graph().constant_tensor(d.in(1)) || !d.graph().constant_tensor(d.in(2))) {
    d.give(0, d.op("MatMul", {d.in(0), weights_of_fp_q4(d, head, bytes)}));
    d.finish();
    return;
  }
  const Tensor &blob = constant_input(d, 1, "B", DType::uint8), &shape = constant_input(d, 2, "B_shape", DType::int64);
  if (shape.num_elements() != 2)
    throw Error(ErrorCode::invalid_model, fmt::format("B_shape has {} elements; expected 2, rows and columns", shape.num_elements()));
  const int64_t K = shape.data<int64_t>()[0], N = shape.data<int64_t>()[1];
  const int64_t blocks = K < 1 ? 0 : ceil_div(K, kBlock);
  if (K < 1 || N < 1 || blob.num_elements() != checked_mul(checked_mul(blocks, N), bytes))
    throw Error(ErrorCode::invalid_model, fmt::format("B has {} bytes, which are no {} by {} codes", blob.num_elements(), K, N));
  Tensor codes(DType::uint8, Shape{N, blocks, kCodeBytes}), scales(DType::float32, Shape{N * blocks}),
      zeros(DType::uint8, Shape{N * ((blocks + 1) / 2)});
  std::fill_n(zeros.data<uint8_t>(), zeros.num_elements(), uint8_t{0});
  for (int64_t i = 0; i < N * blocks; ++i) {
    const uint8_t *from = blob.data<uint8_t>() + i * bytes, *packed = from + head;
    std::memcpy(scales.data<float>() + i, from, sizeof(float));
    const int zero = has_zeros ? from[4] : 8;
    if (zero > 15) throw Error(ErrorCode::not_implemented, fmt::format("a zero point of {}, above 15, is not implemented", zero));
    zeros.data<uint8_t>()[i / blocks * ((blocks + 1) / 2) + i % blocks / 2] |= static_cast<uint8_t>(zero << (i % blocks % 2 * 4));
    auto code = [&](int64_t row) { return row < kCodeBytes ? packed[row] & 15 : packed[row - kCodeBytes] >> 4; };
    for (int64_t b = 0; b < kCodeBytes; ++b)
      codes.data<uint8_t>()[i * kCodeBytes + b] = static_cast<uint8_t>(code(2 * b) | code(2 * b + 1) << 4);
  }
  std::vector<ValueId> inputs{d.in(0), d.constant(std::move(codes)), d.constant(std::move(scales)), d.constant(std::move(zeros))};
  d.give(0, d.microsoft_op("MatMulNBits", std::move(inputs), {{"K", K}, {"N", N}, {"bits", int64_t{4}}, {"block_size", kBlock}}));
  d.finish();
}

void decompose_matmul_int16(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("MatMul", {d.cast(d.in(0), DType::int32), d.cast(d.in(1), DType::int32)}));
  d.finish();
}

void decompose_gather_nd(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("GatherND", {d.in(0), d.cast(d.in(1), DType::int64)}));
  d.finish();
}

void decompose_sample(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  d.give(0, d.op("Identity", {d.in(0)}));
  d.finish();
}

// Decomposes UnfoldTensor: windows of `size` elements along axis `dim`, which begin `step` elements apart, become a new last axis. The axes
// before and after `dim` are merged first, so that the rank of the input may be unknown before the run.
void decompose_unfold(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const Attributes& a = d.attributes();
  const int rank = d.rank(d.in(0));
  const int64_t size = a.get_int("size"), step = a.get_int("step", 1);
  int64_t dim = a.get_int("dim", -1);
  if (rank >= 0) dim = normalize_axis(dim, rank, "dim");
  if (dim < -kMaxRank || dim >= kMaxRank) throw Error(ErrorCode::invalid_model, fmt::format("dim = {}", dim));
  const int64_t extent = rank < 0 ? -1 : d.extent(d.in(0), static_cast<int>(dim));
  if (size < 1 || step < 1 || (extent >= 0 && extent < size))
    throw Error(ErrorCode::invalid_model, fmt::format("size = {} and step = {} along an extent of {}", size, step, extent));
  auto extents = [&](int64_t begin, std::optional<int64_t> end) {
    Attributes range{{"start", begin}};
    if (end) range.set("end", *end);
    return d.op("Shape", {d.in(0)}, std::move(range));
  };
  auto joined = [&](std::vector<ValueId> parts) { return d.op("Concat", std::move(parts), {{"axis", int64_t{0}}}); };
  auto count = [&](ValueId some) { return d.op("ReduceProd", {some}, {{"keepdims", int64_t{1}}}); };
  auto reshaped = [&](ValueId x, ValueId shape) { return d.op("Reshape", {x, shape}, {{"allowzero", int64_t{1}}}); };
  auto number = [&](int64_t value) { return d.constant(Tensor::scalar(value)); };
  const std::optional<int64_t> behind = dim == -1 ? std::nullopt : std::optional(dim + 1);
  const ValueId front = extents(0, dim), back = behind ? extents(*behind, {}) : d.ints({}), along = extents(dim, behind);
  const ValueId first = d.op("Range", {number(0), d.op("Sub", {d.op("Squeeze", {along}), number(size - 1)}), number(step)});
  const ValueId places = d.op("Add", {d.op("Unsqueeze", {first, d.ints({1})}), d.op("Range", {number(0), number(size), number(1)})});
  ValueId y = d.op("Gather", {reshaped(d.in(0), joined({count(front), along, count(back)})), places}, {{"axis", int64_t{1}}});
  y = d.op("Transpose", {y}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  d.give(0, reshaped(y, joined({front, d.op("Shape", {first}), back, d.ints({size})})));
  d.finish();
}

void infer_inverse(InferContext& c) {
  c.set_output(0, c.input(0));
  if (!c.has_rank(0)) return;
  if (c.rank(0) < 2) throw Error(ErrorCode::invalid_argument, fmt::format("X is of rank {}, at least 2 expected", c.rank(0)));
  const SymbolicShape& shape = c.shape(0);
  unify(shape[shape.size() - 1], shape[shape.size() - 2], "rows and columns of X");
}

template <typename T>
struct Inverse {
  int64_t matrices, m;
  size_t slot_bytes, pivots_at;
  int slots;

  static Inverse bind(BindContext& c) {
    const Shape& shape = c.shape(0);
    check_equal(shape[shape.rank() - 2], shape.back(), "rows and columns of X");
    Inverse k{shape.product(0, shape.rank() - 2), shape.back(), 0, 0, 0};
    k.slots = kernels::ScratchSlots::count(c.max_threads(), k.matrices);
    k.pivots_at = kernels::aligned_bytes<double>(checked_mul(k.m, k.m));
    k.slot_bytes = k.pivots_at + kernels::aligned_bytes<int64_t>(k.m);
    c.request_scratch(k.slot_bytes * static_cast<size_t>(k.slots));
    return k;
  }
  void run(RunContext& c) const {
    kernels::ScratchSlots pieces(c.scratch<std::byte>(), slot_bytes, slots);
    const int64_t size = m * m, grain = std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, size * m));
    parallel_for(c.pool(), matrices, grain, [&](int64_t begin, int64_t end) {
      kernels::ScratchSlots::Lease lease(pieces);
      auto* a = reinterpret_cast<double*>(lease.data());
      for (int64_t matrix = begin; matrix < end; ++matrix) {
        const T* x = c.in<T>(0) + matrix * size;
        std::transform(x, x + size, a, [](T value) { return static_cast<double>(value); });
        kernels::invert(a, m, reinterpret_cast<int64_t*>(lease.data() + pivots_at));
        std::transform(a, a + size, c.out<T>(0) + matrix * size, [](double value) { return static_cast<T>(value); });
      }
    });
  }
};

bool takes_root(const Attributes& attributes) {
  const std::string_view metric = attributes.get_string("metric", "sqeuclidean");
  if (metric != "sqeuclidean" && metric != "euclidean")
    throw Error(ErrorCode::not_implemented, fmt::format("the metric \"{}\" is not implemented", metric));
  return metric == "euclidean";
}

void infer_cdist(InferContext& c) {
  takes_root(c.attributes());
  for (int i = 0; i < 2; ++i)
    if (c.has_rank(i) && c.rank(i) != 2)
      throw Error(ErrorCode::invalid_argument, fmt::format("operand {} is of rank {}, not 2", i, c.rank(i)));
  if (!c.has_rank(0) || !c.has_rank(1)) return c.set_output_dtype(0, c.dtype(0));
  unify(c.shape(0)[1], c.shape(1)[1], "columns of A and B");
  c.set_output(0, c.dtype(0), {c.shape(0)[0], c.shape(1)[0]});
}

Cost cdist_cost(const ShapeContext& c) {
  return {3 * static_cast<double>(c.num_elements(0)) * static_cast<double>(c.shape(1)[0]), c.size_bytes(0) + c.size_bytes(1)};
}

// Computes the distance of each row of A [M, K] to each row of B [N, K].
template <typename T>
struct CDist {
  using C = compute_type_t<T>;
  static constexpr int64_t kRows = 8;
  int64_t rows, columns, count;
  bool root;
  Wide a, b;
  int64_t packed, sums;
  size_t slot_bytes;
  int slots;

  static CDist bind(BindContext& c) {
    const Shape &a = c.shape(0), &b = c.shape(1);
    check_equal(a[1], b[1], "columns of A and B");
    CDist k{a[0], a[1], b[0], takes_root(c.node().attributes), {}, {}, 0, 0, 0, 0};
    const kernels::SideBySide<C> vectors(k.count, k.columns);
    k.slots = kernels::ScratchSlots::count(c.max_threads(), ceil_div(std::max<int64_t>(k.rows, 1), kRows));
    k.slot_bytes = kernels::aligned_bytes<C>(checked_mul(vectors.stride, kRows));
    ScratchLayout layout;
    k.a = reserve_wide<T>(layout, c.num_elements(0));
    k.b = reserve_wide<T>(layout, c.num_elements(1));
    k.packed = layout.take(static_cast<size_t>(checked_mul(vectors.stride, k.columns)) * sizeof(C));
    k.sums = layout.take(k.slot_bytes * static_cast<size_t>(k.slots));
    c.request_scratch(layout.total());
    return k;
  }
  static void take_roots(float* values, int64_t n) { kernels::unary_f32(kernels::Unary::sqrt, 0, 0, values, values, n); }
  static void take_roots(double* values, int64_t n) {
    for (int64_t i = 0; i < n; ++i) values[i] = std::sqrt(values[i]);
  }
  void run(RunContext& c) const {
    if (rows == 0 || count == 0) return;
    const C *x = widen(c, c.in<T>(0), a), *others = widen(c, c.in<T>(1), b);
    kernels::SideBySide<C> vectors(count, columns);
    vectors.pack(others, reinterpret_cast<C*>(scratch_at(c, packed)));
    T* y = c.out<T>(0);
    kernels::ScratchSlots pieces(scratch_at(c, sums), slot_bytes, slots);
    const int64_t grain = std::max<int64_t>(1, 16'384 / std::max<int64_t>(1, kRows * count * columns));
    parallel_for(c.pool(), ceil_div(rows, kRows), grain, [&](int64_t begin, int64_t end) {
      kernels::ScratchSlots::Lease lease(pieces);
      C* distances = reinterpret_cast<C*>(lease.data());
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kRows, some = std::min(kRows, rows - first);
        kernels::squared_distances(vectors, x + first * columns, some, distances);
        if (root) take_roots(distances, some * vectors.stride);
        for (int64_t r = 0; r < some; ++r)
          std::transform(distances + r * vectors.stride, distances + r * vectors.stride + count, y + (first + r) * count,
                         [](C value) { return static_cast<T>(value); });
      }
    });
  }
};

// Dynamic time warping: finds the path from (0, 0) to (M - 1, N - 1) with the smallest sum of costs [M, N]. A step goes diagonally or down
// only if that sum is smaller than both other sums; otherwise, so also for equal sums, it goes right.
struct DynamicTimeWarping {
  static constexpr bool allocates = true;

  static DynamicTimeWarping bind(BindContext&) { return {}; }

  void run(RunContext& c) const {
    const Tensor costs = c.input(0).tensor().contiguous();
    const Shape& shape = costs.shape();
    const int64_t M = shape[shape.rank() - 2], N = shape.back();
    if (shape.rank() == 3) check_equal(shape[0], 1, "the first extent of the costs");
    if (M < 1 || N < 1) throw Error(ErrorCode::invalid_argument, fmt::format("the costs are {}; they must not be empty", to_string(shape)));
    // Row 0 and column 0 of the sums are a border of infinities, so that steps need no checks.
    const int64_t width = N + 1;
    std::vector<float> sums(static_cast<size_t>((M + 1) * width), std::numeric_limits<float>::infinity());
    std::vector<int8_t> came_from(sums.size(), 0);
    sums[0] = 0;
    for (int64_t j = 1; j <= N; ++j) {
      for (int64_t i = 1; i <= M; ++i) {
        const auto at = static_cast<size_t>(i * width + j), step = static_cast<size_t>(width);
        const float both = sums[at - step - 1], down = sums[at - step], right = sums[at - 1];
        const bool is_both = both < down && both < right, is_down = !is_both && down < both && down < right;
        came_from[at] = is_both ? 0 : is_down ? 1 : 2;
        sums[at] = costs.data<float>()[(i - 1) * N + j - 1] + (is_both ? both : is_down ? down : right);
      }
    }
    std::vector<std::pair<int32_t, int32_t>> path;
    for (int64_t i = M, j = N; i > 0 && j > 0;) {
      path.emplace_back(static_cast<int32_t>(i - 1), static_cast<int32_t>(j - 1));
      const int8_t from = came_from[static_cast<size_t>(i * width + j)];
      if (from != 2) --i;
      if (from != 1) --j;
    }
    const auto length = static_cast<int64_t>(path.size());
    auto* y = c.allocate_output(0, Shape{2, length}).data<int32_t>();
    for (int64_t t = 0; t < length; ++t) {
      const auto& [row, column] = path[static_cast<size_t>(length - 1 - t)];
      y[t] = row, y[length + t] = column;
    }
  }
};

void infer_time_warping(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) == 3) unify(c.shape(0)[0], 1, "the first extent of the costs");
  c.set_output(0, DType::int32, {2, c.data_dependent_dim("path")});
}

// Makes the sparse matrix dense and multiplies it by the dense one.
void decompose_sparse_matmul(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  const std::vector<int64_t> turn{1, 0};
  ValueId a = d.in(0), b = d.in(1);
  if (!d.type(a).is_tensor()) a = d.op_n("SparseToDense", {a}, 1, {}, "treadle")[0];
  if (d.attributes().get_int("transA", 0) != 0) a = d.op("Transpose", {a}, {{"perm", turn}});
  if (d.attributes().get_int("transB", 0) != 0) b = d.op("Transpose", {b}, {{"perm", turn}});
  d.give(0, d.scaled(d.op("MatMul", {a, b}), d.attributes().get_float("alpha", 1), b));
  d.finish();
}

// The gradient of the inverse: dX = -Y^T dY Y^T.
Gradients inverse_gradient(GradientContext& g) {
  const int rank = rank_of(g, g.input(0));
  std::vector<int64_t> perm;
  for (int axis = 0; axis < rank; ++axis) perm.push_back(axis);
  std::swap(perm[static_cast<size_t>(rank) - 1], perm[static_cast<size_t>(rank) - 2]);
  const ValueId transposed = g.transpose(g.output(0), std::move(perm));
  return {g.neg(g.op("MatMul", {g.op("MatMul", {transposed, g.grad_output(0)}), transposed}))};
}

// Differentiates through the differences of all pairs of rows. Where the distance is 0, the gradient is 0.
Gradients cdist_gradient(GradientContext& g) {
  const ValueId a = g.input(0), b = g.input(1), y = g.output(0);
  ValueId flow = g.grad_output(0);
  if (takes_root(g.attributes()))
    flow = masked(g, g.op("Greater", {y, zeros_like(g, y)}), g.div(flow, y));
  else
    flow = g.add(flow, flow);
  const ValueId difference = g.sub(g.op("Unsqueeze", {a, g.ints({1})}), g.op("Unsqueeze", {b, g.ints({0})}));
  const ValueId each = g.mul(g.op("Unsqueeze", {flow, g.ints({2})}), difference);
  return {g.reduce_sum(each, {1}, /*keepdims=*/false), g.neg(g.reduce_sum(each, {0}, /*keepdims=*/false))};
}

}  // namespace

std::vector<OpDef> microsoft_matrix_ops() {
  using Required = AttributeDef::Required;
  const TypeSet int16{DType::int16};
  constexpr TypeSet kProductTypes{DType::float32, DType::float64, DType::int64, DType::int32, DType::uint64, DType::uint32};
  return {
      {.name = "MatMulBnb4",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"A", kFloats, "T"}, {"B", {DType::uint8}}, {"absmax", kFloats}},
       .outputs = {{"Y", kFloats, "T"}},
       .attributes =
           {{"K", Required{}}, {"N", Required{}}, {"block_size", Required{}}, {"quant_type", Required{}}, {"training_mode"}, {"transB"}},
       .decompose = decompose_matmul_bnb4,
       .value_inputs = {1, 2}},
      op("MatMulFpQ4", {{"A", {DType::float32}}, {"B", {DType::uint8}}, {"B_shape", kInt64}}, {{"Y", {DType::float32}}},
         {{"blk_quant_type", int64_t{1}}}, decompose_matmul_fp_q4),
      op("SparseToDenseMatMul", {{"A", kSparse | kProductTypes}, {"B", kProductTypes, "T1"}}, {{"Y", kProductTypes, "T1"}},
         {{"alpha", 1.0F}, {"transA"}, {"transB"}}, decompose_sparse_matmul),
      op("MatMulInteger16", {{"A", int16}, {"B", int16}}, {{"Y", {DType::int32}}}, {}, decompose_matmul_int16),
      op("GatherND", {{"data", kAllTensors, "T"}, {"indices", kInt32Or64}}, {{"output", kAllTensors, "T"}}, {}, decompose_gather_nd),
      op("SampleOp", {{"X", kAllTensors, "T"}}, {{"Y", kAllTensors, "T"}}, {}, decompose_sample),
      op("UnfoldTensor", {{"input", kAllTensors, "T"}}, {{"output", kAllTensors, "T"}}, {{"dim"}, {"size", Required{}}, {"step"}},
         decompose_unfold),
      {.name = "Inverse",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"X", kFloats, "T"}},
       .outputs = {{"Y", kFloats, "T"}},
       .infer = infer_inverse,
       .kernels = typed<Inverse, float, double, Float16, BFloat16>(),
       .gradient = inverse_gradient},
      {.name = "CDist",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"A", kFloats, "T"}, {"B", kFloats, "T"}},
       .outputs = {{"C", kFloats, "T"}},
       .attributes = {{"metric", std::string_view("sqeuclidean")}},
       .infer = infer_cdist,
       .cost = cdist_cost,
       .kernels = typed<CDist, float, double, Float16, BFloat16>(),
       .gradient = cdist_gradient},
      {.name = "DynamicTimeWarping",
       .domain = kMicrosoft,
       .since = {1},
       .inputs = {{"input", {DType::float32}, "", Presence::required, of_ranks(2, 3)}},
       .outputs = {{"output", {DType::int32}}},
       .infer = infer_time_warping,
       .kernels = {kernel<DynamicTimeWarping>()}},
  };
}

}  // namespace treadle::ops
