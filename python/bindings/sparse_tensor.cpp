// Binds SparseTensor, a sparse tensor in COO or CSR format.
#include "datum.h"

namespace treadle::python {
namespace {

Shape shape_from_python(nb::handle extents) {
  Shape shape;
  for (nb::handle extent : nb::object(nb::borrow(extents))) shape.push_back(nb::cast<int64_t>(nb::object(nb::int_(nb::borrow(extent)))));
  return shape;
}

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::invalid_argument, "sparse tensor: " + what); }

Tensor indices_from_array(nb::handle array, const char* name) {
  Tensor indices = tensor_from_array(array, nullptr, DType::int64);
  if (indices.dtype() != DType::int64) refuse(std::string(name) + " are " + describe(indices) + ", expected int64");
  return indices;
}

void check_range(const Tensor& indices, int64_t limit, const char* name) {
  for (int64_t index : indices.span<int64_t>())
    if (index < 0 || index >= limit)
      refuse(std::string(name) + " hold " + std::to_string(index) + ", outside [0, " + std::to_string(limit) + ")");
}

SparseTensor coo_from_arrays(nb::handle dense_shape, nb::handle values, nb::handle indices, nb::handle) {
  SparseTensor sparse{
      SparseTensor::Format::coo, shape_from_python(dense_shape), tensor_from_array(values), indices_from_array(indices, "indices"), {}};
  const int64_t count = sparse.values.num_elements();
  const Shape& shape = sparse.indices.shape();
  if (sparse.values.shape().rank() != 1) refuse("values are " + describe(sparse.values) + ", expected rank 1");
  if (shape.rank() == 1 && shape[0] == count) {
    check_range(sparse.indices, sparse.dense_shape.num_elements(), "linear indices");
  } else if (shape.rank() == 2 && shape[0] == count && shape[1] == sparse.dense_shape.rank()) {
    const int64_t* index = sparse.indices.data<int64_t>();
    for (int64_t i = 0; i < count; ++i)
      for (int64_t extent : sparse.dense_shape) {
        if (*index < 0 || *index >= extent)
          refuse("index " + std::to_string(*index) + " is outside an extent of " + std::to_string(extent));
        ++index;
      }
  } else {
    refuse("indices are " + describe(sparse.indices) + " for " + std::to_string(count) + " values of a tensor " +
           to_string(sparse.dense_shape));
  }
  return sparse;
}

SparseTensor csr_from_arrays(nb::handle dense_shape, nb::handle values, nb::handle inner, nb::handle outer, nb::handle) {
  SparseTensor sparse{SparseTensor::Format::csr, shape_from_python(dense_shape), tensor_from_array(values),
                      indices_from_array(inner, "inner indices"), indices_from_array(outer, "outer indices")};
  if (sparse.dense_shape.rank() != 2) refuse("CSR needs two extents, got " + to_string(sparse.dense_shape));
  const int64_t count = sparse.values.num_elements(), rows = sparse.dense_shape[0];
  if (sparse.indices.num_elements() != count)
    refuse(std::to_string(sparse.indices.num_elements()) + " inner indices for " + std::to_string(count) + " values");
  if (sparse.row_offsets.num_elements() != rows + 1)
    refuse(std::to_string(sparse.row_offsets.num_elements()) + " outer indices for " + std::to_string(rows) + " rows");
  check_range(sparse.indices, sparse.dense_shape[1], "inner indices");
  int64_t last = 0;
  for (int64_t offset : sparse.row_offsets.span<int64_t>()) {
    if (offset < last || offset > count) refuse("outer indices must ascend from 0 to the number of values");
    last = offset;
  }
  return sparse;
}

// Makes a COO tensor of whole rows: the indices are positions on the outermost axis, and each value is the row at that position.
SparseTensor rows_from_arrays(nb::handle dense_shape, nb::handle values, nb::handle indices) {
  SparseTensor sparse{
      SparseTensor::Format::coo, shape_from_python(dense_shape), tensor_from_array(values), indices_from_array(indices, "indices"), {}};
  const Shape& rows = sparse.values.shape();
  bool fits = rows.rank() >= 1 && rows.rank() == sparse.dense_shape.rank() && sparse.indices.shape() == Shape{rows[0]};
  for (int axis = 1; fits && axis < rows.rank(); ++axis) fits = rows[axis] == sparse.dense_shape[axis];
  if (!fits)
    refuse("rows are " + describe(sparse.values) + ", indices " + describe(sparse.indices) + ", of a tensor " +
           to_string(sparse.dense_shape));
  check_range(sparse.indices, sparse.dense_shape[0], "indices");
  return sparse;
}

std::string storage_of(const SparseTensor& self) {
  if (self.format == SparseTensor::Format::csr) return "csr";
  const bool rows =
      self.indices.shape().rank() == 1 && self.dense_shape.rank() > 1 && self.values.shape().rank() == self.dense_shape.rank();
  return rows ? "row_sparse" : "coo";
}

nb::object dense_shape(const SparseTensor& self) { return array_from_tensor(Tensor::vector<int64_t>(self.dense_shape.dims())); }

// ONNX Runtime's "views" of a sparse tensor, which give access to the indices of one format.
struct CooView {
  SparseTensor sparse;
};
struct CsrView {
  SparseTensor sparse;
};

void expect_format(const SparseTensor& self, SparseTensor::Format format) {
  if (self.format != format) refuse(std::string("it is in the format ") + (self.format == SparseTensor::Format::coo ? "COO" : "CSR"));
}

[[noreturn]] void refuse_blocks() {
  throw Error(ErrorCode::not_implemented, "sparse tensors in blocks: no operator takes them; COO and CSR are there");
}

}  // namespace

void register_sparse_tensor(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<CooView>(module, "SparseCooView").def("indices", [](const CooView& view) { return array_from_tensor(view.sparse.indices); });
  nb::class_<CsrView>(module, "SparseCsrView")
      .def("inner", [](const CsrView& view) { return array_from_tensor(view.sparse.indices); })
      .def("outer", [](const CsrView& view) { return array_from_tensor(view.sparse.row_offsets); });
  nb::class_<SparseTensor>(module, "SparseTensor", "A tensor of which only some elements are stored, in the format COO or CSR.")
      .def_static("sparse_coo_from_numpy", &coo_from_arrays, "dense_shape"_a, "values"_a, "coo_indices"_a,
                  "ort_device"_a.none() = nb::none(), "`coo_indices` are int64, [nnz] (linear) or [nnz, rank].")
      .def_static("sparse_csr_from_numpy", &csr_from_arrays, "dense_shape"_a, "values"_a, "inner_indices"_a, "outer_indices"_a,
                  "ort_device"_a.none() = nb::none(), "`inner_indices` are the columns, `outer_indices` [rows + 1] where each row begins.")
      .def_static("row_sparse_from_numpy", &rows_from_arrays, "dense_shape"_a, "values"_a, "indices"_a,
                  "`values` are the rows that are stored, [k, ...], `indices` int64, [k], which rows these are, ascending.")
      .def_prop_ro("storage", &storage_of, "\"coo\", \"csr\" or \"row_sparse\".")
      .def("values", [](const SparseTensor& self) { return array_from_tensor(self.values); })
      .def("dense_shape", &dense_shape)
      .def("as_coo_view", [](const SparseTensor& self) { return expect_format(self, SparseTensor::Format::coo), CooView{self}; })
      .def("as_csrc_view", [](const SparseTensor& self) { return expect_format(self, SparseTensor::Format::csr), CsrView{self}; })
      // ONNX Runtime's extension module has methods with the following names.
      .def("get_coo_data", [](const SparseTensor& self) { return expect_format(self, SparseTensor::Format::coo), CooView{self}; })
      .def("get_csrc_data", [](const SparseTensor& self) { return expect_format(self, SparseTensor::Format::csr), CsrView{self}; })
      .def("as_blocksparse_view", [](const SparseTensor&) { refuse_blocks(); })
      .def("get_blocksparse_data", [](const SparseTensor&) { refuse_blocks(); })
      .def_static("blocksparse_from_numpy", [](const nb::args&) { refuse_blocks(); })
      .def(
          "to_cuda", [](const SparseTensor&, nb::handle) { throw Error(ErrorCode::not_implemented, "devices other than the CPU"); },
          "ort_device"_a)
      .def("data_type", [](const SparseTensor& self) { return onnx_type_text(self); })
      .def("device_name", [](const SparseTensor&) { return "cpu"; })
      .def("format", [](const SparseTensor& self) {
        return nb::module_::import_("treadle.enums").attr("OrtSparseFormat")(self.format == SparseTensor::Format::coo ? 1 : 2);
      });
}

}  // namespace treadle::python
