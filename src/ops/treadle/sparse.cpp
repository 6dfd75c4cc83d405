// Implements operators on sparse tensors, of the treadle domain. passes/infer_storage substitutes them for ONNX's.
//   SparseToDense(X)         all elements, including zeros
//   SparseMatMul(A, B)       A in CSR, transposed if transA = 1, times a dense matrix
//   SparseMatMulRows(A, B)   the rows of A^T B that are not empty (those for which A has columns), and their indices
//   SparseGather(W, indices) rows of W, which stores only some of its rows
//   SparseValues(X)          the stored elements; SparseWithValues(X, values) replaces them
#include "ops/treadle/sparse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/checked.h"
#include "graph/infer.h"
#include "kernels/movement/gather.h"
#include "kernels/sparse/csr.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using Format = SparseTensor::Format;

constexpr TypeSet kSparseElements = kNumeric | kBool;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, "sparse tensor: " + what); }

// Returns true for row-sparse tensors: COO over the outermost axis only, with whole rows as values (PyTorch's hybrid COO tensors with one
// sparse axis).
bool has_rows(const SparseTensor& x) {
  return x.format == Format::coo && x.indices.shape().rank() == 1 && x.values.shape().rank() == x.dense_shape.rank();
}

// Checks indices. Tensors from the caller are not trusted, so every number that a kernel uses as an index is checked when it is read.
void check_indices(const Tensor& indices, int64_t count, int64_t limit, const char* what) {
  if (indices.dtype() != DType::int64 || indices.num_elements() != count)
    refuse(fmt::format("{} are {}, expected i64[{}]", what, describe(indices), count));
  for (int64_t index : indices.span<int64_t>())
    if (index < 0 || index >= limit) refuse(fmt::format("{} hold {}, outside [0, {})", what, index, limit));
}

void check_csr(const SparseTensor& x) {
  if (x.dense_shape.rank() != 2) refuse(fmt::format("CSR has two axes, the shape is {}", to_string(x.dense_shape)));
  const int64_t count = x.values.num_elements();
  check_indices(x.indices, count, x.dense_shape[1], "columns");
  if (x.row_offsets.dtype() != DType::int64 || x.row_offsets.num_elements() != checked_add(x.dense_shape[0], 1))
    refuse(fmt::format("the rows' offsets are {}, expected i64[{}]", describe(x.row_offsets), x.dense_shape[0] + 1));
  int64_t last = 0;
  for (int64_t offset : x.row_offsets.span<int64_t>()) {
    if (offset < last || offset > count) refuse("the rows' offsets must ascend from 0 to the number of elements");
    last = offset;
  }
  if (x.row_offsets.data<int64_t>()[0] != 0 || last != count) refuse("the rows' offsets must ascend from 0 to the number of elements");
}

void check_rows(const SparseTensor& x) {
  const Shape& rows = x.values.shape();
  bool fits = x.dense_shape.rank() >= 1 && rows.rank() == x.dense_shape.rank();
  for (int axis = 1; fits && axis < rows.rank(); ++axis) fits = rows[axis] == x.dense_shape[axis];
  if (!fits) refuse(fmt::format("stored rows {} of a tensor {}", to_string(rows), to_string(x.dense_shape)));
  check_indices(x.indices, rows[0], x.dense_shape[0], "rows");
  const auto indices = x.indices.span<int64_t>();
  if (std::adjacent_find(indices.begin(), indices.end(), std::greater_equal<>()) != indices.end()) refuse("rows must ascend");
}

const SparseTensor& sparse_input(const RunContext& c, int i) {
  const SparseTensor& x = c.input(i).sparse_tensor();
  if (!x.values.is_contiguous() || !x.indices.is_contiguous() || (x.row_offsets.defined() && !x.row_offsets.is_contiguous()))
    refuse("its parts are not contiguous");
  return x;
}

void expect_dtype(const SparseTensor& x, DType dtype) {
  if (x.values.dtype() != dtype) refuse(fmt::format("its elements are {}, expected {}", describe(x.values), short_name_of(dtype)));
}

struct SparseToDense {
  static constexpr bool allocates = true;
  static SparseToDense bind(BindContext&) { return {}; }

  void run(RunContext& c) const {
    const SparseTensor& x = sparse_input(c, 0);
    Tensor out = c.allocate_output(0, x.dense_shape);
    expect_dtype(x, out.dtype());
    std::memset(out.raw(), 0, out.size_bytes());
    const auto bytes = static_cast<size_t>(element_bytes(x.values.dtype()));
    auto put = [&](int64_t to, int64_t from, size_t count) {
      std::memcpy(static_cast<std::byte*>(out.raw()) + static_cast<size_t>(to) * bytes,
                  static_cast<const std::byte*>(x.values.raw()) + static_cast<size_t>(from) * bytes, count * bytes);
    };
    if (x.format == Format::csr) {
      check_csr(x);
      const int64_t* offsets = x.row_offsets.data<int64_t>();
      for (int64_t row = 0; row < x.dense_shape[0]; ++row)
        for (int64_t e = offsets[row]; e < offsets[row + 1]; ++e) put(row * x.dense_shape[1] + x.indices.data<int64_t>()[e], e, 1);
      return;
    }
    if (has_rows(x)) {
      check_rows(x);
      const int64_t width = x.dense_shape.product(1, x.dense_shape.rank());
      for (int64_t r = 0; r < x.indices.num_elements(); ++r)
        put(x.indices.data<int64_t>()[r] * width, r * width, static_cast<size_t>(width));
      return;
    }
    const int64_t count = x.values.num_elements();
    const int rank = x.dense_shape.rank();
    const bool linear = x.indices.shape().rank() == 1;
    if (x.indices.dtype() != DType::int64 || x.indices.num_elements() != (linear ? count : checked_mul(count, int64_t{rank})))
      refuse(fmt::format("{} values have the indices {}", count, describe(x.indices)));
    const int64_t* index = x.indices.data<int64_t>();
    for (int64_t e = 0; e < count; ++e) {
      int64_t at = linear ? *index++ : 0;
      for (int axis = 0; !linear && axis < rank; ++axis, ++index) {
        if (*index < 0 || *index >= x.dense_shape[axis]) refuse(fmt::format("index {} is outside [0, {})", *index, x.dense_shape[axis]));
        at = at * x.dense_shape[axis] + *index;
      }
      if (at < 0 || at >= out.num_elements()) refuse(fmt::format("index {} is outside [0, {})", at, out.num_elements()));
      put(at, e, 1);
    }
  }
};

/// Returns the left operand of a product, in CSR. @param axis  the axis of the operand over which the product sums
template <typename T>
const SparseTensor& csr_factor(const RunContext& c, int axis) {
  const SparseTensor& a = sparse_input(c, 0);
  const Shape& b = c.input(1).tensor().shape();
  if (a.format != Format::csr) refuse("a product takes CSR");
  expect_dtype(a, dtype_of<T>);
  check_csr(a);
  if (b.rank() != 2 || b[0] != a.dense_shape[axis])
    throw Error(ErrorCode::invalid_argument, fmt::format("A is {}{}, B is {}: the inner extents differ", to_string(a.dense_shape),
                                                         axis == 0 ? " and transposed" : "", to_string(b)));
  return a;
}

kernels::CsrColumns columns_of(const SparseTensor& a) {
  return {a.dense_shape[0], a.row_offsets.data<int64_t>(), a.indices.data<int64_t>()};
}

template <typename T>
struct SparseMatMul {
  static constexpr bool allocates = true;
  bool transposed;
  static SparseMatMul bind(BindContext& c) { return {c.get_int("transA", 0) != 0}; }

  void run(RunContext& c) const {
    const SparseTensor& a = csr_factor<T>(c, transposed ? 0 : 1);
    const Tensor& b = c.input(1).tensor();
    const int64_t M = a.dense_shape[0], N = b.shape()[1];
    Tensor out = c.allocate_output(0, Shape{a.dense_shape[transposed ? 1 : 0], N});
    T* y = out.data<T>();
    if (!transposed)
      return kernels::csr_times_dense(M, N, a.row_offsets.data<int64_t>(), a.indices.data<int64_t>(), a.values.data<T>(), b.data<T>(), y,
                                      c.pool());
    std::fill_n(y, out.num_elements(), T{0});
    const kernels::CsrColumns columns = columns_of(a);
    kernels::csr_columns_times_dense(columns, N, a.values.data<T>(), b.data<T>(), c.pool(),
                                     [&](int64_t k) { return y + columns.columns[static_cast<size_t>(k)] * N; });
  }
};

template <typename T>
struct SparseMatMulRows {
  static constexpr bool allocates = true;
  static SparseMatMulRows bind(BindContext&) { return {}; }

  void run(RunContext& c) const {
    const SparseTensor& a = csr_factor<T>(c, 0);
    const Tensor& b = c.input(1).tensor();
    const int64_t N = b.shape()[1];
    const kernels::CsrColumns columns = columns_of(a);
    const auto count = static_cast<int64_t>(columns.columns.size());
    T* rows = c.allocate_output(0, Shape{count, N}).data<T>();
    std::copy(columns.columns.begin(), columns.columns.end(), c.allocate_output(1, Shape{count}).data<int64_t>());
    kernels::csr_columns_times_dense(columns, N, a.values.data<T>(), b.data<T>(), c.pool(), [&](int64_t k) { return rows + k * N; });
  }
};

struct SparseGather {
  static constexpr bool allocates = true;
  static SparseGather bind(BindContext&) { return {}; }

  void run(RunContext& c) const {
    const SparseTensor& w = sparse_input(c, 0);
    const Tensor& indices = c.input(1).tensor();
    if (!has_rows(w)) refuse("rows are taken from a row-sparse tensor");
    check_rows(w);
    Shape shape = indices.shape();
    for (int axis = 1; axis < w.dense_shape.rank(); ++axis) shape.push_back(w.dense_shape[axis]);
    Tensor out = c.allocate_output(0, shape);
    expect_dtype(w, out.dtype());
    const auto bytes = static_cast<size_t>(w.dense_shape.product(1, w.dense_shape.rank()) * element_bytes(w.values.dtype()));
    const auto rows = w.indices.span<int64_t>();
    const bool narrow = indices.dtype() == DType::int32;
    parallel_for(c.pool(), indices.num_elements(), static_cast<int64_t>(65536 / (bytes + 64)) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t wanted = kernels::checked_index(narrow ? indices.data<int32_t>()[i] : indices.data<int64_t>()[i], w.dense_shape[0]);
        auto* to = static_cast<std::byte*>(out.raw()) + static_cast<size_t>(i) * bytes;
        const auto found = std::lower_bound(rows.begin(), rows.end(), wanted);
        if (found == rows.end() || *found != wanted)
          std::memset(to, 0, bytes);
        else
          std::memcpy(to, static_cast<const std::byte*>(w.values.raw()) + static_cast<size_t>(found - rows.begin()) * bytes, bytes);
      }
    });
  }
};

struct SparseValues {
  static constexpr bool allocates = true;
  static SparseValues bind(BindContext&) { return {}; }
  void run(RunContext& c) const { c.set_output(0, sparse_input(c, 0).values); }
};

struct SparseWithValues {
  static constexpr bool allocates = true;
  static SparseWithValues bind(BindContext&) { return {}; }
  void run(RunContext& c) const {
    SparseTensor x = sparse_input(c, 0);
    const Tensor& values = c.input(1).tensor();
    if (values.shape() != x.values.shape()) refuse(fmt::format("{} in place of {}", describe(values), describe(x.values)));
    x.values = values;
    c.set_output(0, std::move(x));
  }
};

void infer_to_dense(InferContext& c) {
  Type type = c.input(0);
  type.kind = Type::Kind::tensor;
  c.set_output(0, std::move(type));
}

void infer_matmul(InferContext& c) {
  if (!c.has_rank(0) || !c.has_rank(1) || c.rank(0) != 2 || c.rank(1) != 2) return c.set_output_dtype(0, c.dtype(0));
  c.set_output(0, c.dtype(0), {c.shape(0)[c.get_int("transA", 0) != 0 ? 1 : 0], c.shape(1)[1]});
}

void infer_matmul_rows(InferContext& c) {
  const Dim count = c.data_dependent_dim("columns");
  c.set_output(0, c.dtype(1), {count, c.has_rank(1) && c.rank(1) == 2 ? c.shape(1)[1] : c.data_dependent_dim("N")});
  c.set_output(1, DType::int64, {count});
}

void infer_gather(InferContext& c) {
  if (!c.has_rank(0) || !c.has_rank(1) || c.rank(0) < 1) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape shape = c.shape(1);
  shape.insert(shape.end(), c.shape(0).begin() + 1, c.shape(0).end());
  c.set_output(0, c.dtype(0), std::move(shape));
}

// Infers the type of the stored values, whose number is known only during the run. A row-sparse tensor stores rows, other sparse tensors
// store elements.
void infer_values(InferContext& c) {
  const bool rows = c.get_string("storage") == "row_sparse";
  if (rows && !c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape shape{c.data_dependent_dim("stored")};
  if (rows) shape.insert(shape.end(), c.shape(0).begin() + 1, c.shape(0).end());
  c.set_output(0, c.dtype(0), std::move(shape));
}

void infer_with_values(InferContext& c) {
  Type type = c.input(0);
  type.dtype = c.dtype(1);
  c.set_output(0, std::move(type));
}

Gradients sparse_matmul_gradient(GradientContext& g) {
  if (g.wants(0))
    throw Error(ErrorCode::not_implemented, fmt::format("\"{}\" is in CSR, which has no gradient", g.graph().value(g.input(0)).name));
  const int64_t transposed = g.attributes().get_int("transA", 0);
  return {kNoValue, g.op("SparseMatMul", {g.input(0), g.grad_output(0)}, {{"transA", 1 - transposed}}, "treadle")};
}

}  // namespace

std::vector<OpDef> sparse_ops() {
  return {
      {.name = "SparseToDense",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"X", kSparse}},
       .outputs = {{"Y", kSparseElements}},
       .infer = infer_to_dense,
       .kernels = {kernel<SparseToDense>()}},
      {.name = "SparseMatMul",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"A", kSparse}, {"B", TypeSet{DType::float32, DType::float64}}},
       .outputs = {{"Y", TypeSet{DType::float32, DType::float64}}},
       .attributes = {{"transA", int64_t{0}}},
       .infer = infer_matmul,
       .kernels = typed<SparseMatMul, float, double>("csr", /*dtype_operand=*/1),
       .gradient = sparse_matmul_gradient},
      {.name = "SparseMatMulRows",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"A", kSparse}, {"B", TypeSet{DType::float32, DType::float64}}},
       .outputs = {{"rows", TypeSet{DType::float32, DType::float64}}, {"places", kInt64}},
       .infer = infer_matmul_rows,
       .kernels = typed<SparseMatMulRows, float, double>("csr", /*dtype_operand=*/1)},
      {.name = "SparseGather",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"W", kSparse}, {"indices", kInt32Or64}},
       .outputs = {{"Y", kSparseElements}},
       .infer = infer_gather,
       .kernels = {kernel<SparseGather>()}},
      {.name = "SparseValues",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"X", kSparse}},
       .outputs = {{"values", kSparseElements}},
       .attributes = {{"storage", std::string_view("csr")}},
       .infer = infer_values,
       .kernels = {kernel<SparseValues>()}},
      {.name = "SparseWithValues",
       .domain = "treadle",
       .since = {1},
       .inputs = {{"X", kSparse}, {"values", kSparseElements}},
       .outputs = {{"Y", kSparse}},
       .infer = infer_with_values,
       .kernels = {kernel<SparseWithValues>()}},
  };
}

}  // namespace treadle::ops
