#include "session/sparse_outputs.h"

#include <algorithm>
#include <cstring>

#include "treadle/datum.h"

namespace treadle {
namespace {

Datum to_sparse(const Tensor& given) {
  const Tensor dense = given.contiguous();
  const size_t width = bits_of(dense.dtype()) / 8;
  auto is_zero = [&](int64_t place) {
    const std::byte* element = dense.raw() + static_cast<size_t>(place) * width;
    return std::all_of(element, element + width, [](std::byte byte) { return byte == std::byte{0}; });
  };
  std::vector<int64_t> places;
  for (int64_t i = 0; i < dense.num_elements(); ++i)
    if (!is_zero(i)) places.push_back(i);
  SparseTensor sparse;
  sparse.dense_shape = dense.shape();
  sparse.values = Tensor(dense.dtype(), Shape{static_cast<int64_t>(places.size())});
  for (size_t k = 0; k < places.size(); ++k)
    std::memcpy(sparse.values.raw() + k * width, dense.raw() + static_cast<size_t>(places[k]) * width, width);
  sparse.indices = Tensor::vector<int64_t>(places);
  return sparse;
}

}  // namespace

std::set<std::string> sparse_outputs(const Model& model) {
  std::set<std::string> names;
  for (const ValueInfo& output : model.outputs())
    if (output.type.starts_with("sparse_tensor(")) names.insert(output.name);
  return names;
}

void make_sparse(const std::set<std::string>& declared, std::span<const std::string> names, std::vector<Datum>& values) {
  for (size_t k = 0; k < values.size() && k < names.size(); ++k) {
    if (!declared.contains(names[k]) || !values[k].is_tensor()) continue;
    const DType dtype = values[k].tensor().dtype();
    if (dtype != DType::string && bits_of(dtype) >= 8) values[k] = to_sparse(values[k].tensor());
  }
}

}  // namespace treadle
