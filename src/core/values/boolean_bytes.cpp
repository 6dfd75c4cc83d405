#include "core/values/boolean_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace treadle {
namespace {

// Checks eight bytes at a time, without an early exit, which is fastest for valid masks: every run checks its masks, even large ones.
bool all_valid(const std::byte* bytes, size_t count) {
  uint64_t words = 0, rest = 0;
  size_t i = 0;
  for (; i + sizeof words <= count; i += sizeof words) {
    uint64_t word;
    std::memcpy(&word, bytes + i, sizeof word);
    words |= word;
  }
  for (; i < count; ++i) rest |= static_cast<uint64_t>(bytes[i]);
  return ((words | rest) & ~uint64_t{0x0101010101010101}) == 0;
}

bool may_be_checked(const Tensor& tensor) { return tensor.defined() && tensor.dtype() == DType::boolean && !tensor.storage()->device(); }

}  // namespace

Tensor with_valid_booleans(const Tensor& tensor) {
  if (!may_be_checked(tensor)) return tensor;
  const Tensor dense = tensor.contiguous();
  const auto count = static_cast<size_t>(dense.num_elements());
  if (all_valid(dense.raw(), count)) return tensor;
  Tensor valid(DType::boolean, dense.shape());
  std::transform(dense.raw(), dense.raw() + count, valid.raw(), [](std::byte b) { return b == std::byte{0} ? b : std::byte{1}; });
  return valid;
}

Datum with_valid_booleans(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::none: return datum;
    case Datum::Kind::tensor: return may_be_checked(datum.tensor()) ? Datum(with_valid_booleans(datum.tensor())) : datum;
    case Datum::Kind::sparse_tensor: {
      if (datum.sparse_tensor().values.dtype() != DType::boolean) return datum;
      SparseTensor valid = datum.sparse_tensor();
      valid.values = with_valid_booleans(valid.values);
      return valid;
    }
    case Datum::Kind::sequence: {
      const DType dtype = datum.sequence().element_dtype;
      if (dtype != DType::boolean && dtype != DType::undefined) return datum;
      Sequence valid = datum.sequence();
      for (Datum& element : valid.elements) element = with_valid_booleans(element);
      return valid;
    }
    case Datum::Kind::optional: {
      const Datum* value = datum.optional().value.get();
      if (!value || (value->is_tensor() && !may_be_checked(value->tensor()))) return datum;
      return Optional{std::make_shared<Datum>(with_valid_booleans(*value))};
    }
    case Datum::Kind::map: {
      if (datum.map().values.dtype() != DType::boolean) return datum;
      Map valid = datum.map();
      valid.values = with_valid_booleans(valid.values);
      return valid;
    }
  }
  return datum;
}

}  // namespace treadle
