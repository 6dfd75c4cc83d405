#include "treadle/datum.h"

#include "treadle/error.h"

namespace treadle {
namespace {

[[noreturn]] void throw_kind(const Datum& datum, const char* wanted) {
  throw Error(ErrorCode::invalid_argument, std::string("expected a ") + wanted + ", got " + describe(datum));
}

// Returns the element type as text: the dtype for tensors. A sequence of maps has no element type, so the text describes its first map.
std::string element_text(const Sequence& sequence) {
  const bool has_maps = sequence.element_dtype == DType::undefined && !sequence.elements.empty();
  return has_maps ? describe(sequence.elements[0]) : std::string(short_name_of(sequence.element_dtype));
}

}  // namespace

const Tensor& Datum::tensor() const {
  if (kind() != Kind::tensor) throw_kind(*this, "tensor");
  return std::get<Tensor>(content_);
}

const SparseTensor& Datum::sparse_tensor() const {
  if (kind() != Kind::sparse_tensor) throw_kind(*this, "sparse tensor");
  return *std::get<std::shared_ptr<const SparseTensor>>(content_);
}

const Sequence& Datum::sequence() const {
  if (kind() != Kind::sequence) throw_kind(*this, "sequence");
  return *std::get<std::shared_ptr<const Sequence>>(content_);
}

const Optional& Datum::optional() const {
  if (kind() != Kind::optional) throw_kind(*this, "optional");
  return *std::get<std::shared_ptr<const Optional>>(content_);
}

const Map& Datum::map() const {
  if (kind() != Kind::map) throw_kind(*this, "map");
  return *std::get<std::shared_ptr<const Map>>(content_);
}

std::string describe(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::none: return "nothing";
    case Datum::Kind::tensor: return describe(datum.tensor());
    case Datum::Kind::sparse_tensor:
      return "sparse(" + std::string(short_name_of(datum.sparse_tensor().values.dtype())) + to_string(datum.sparse_tensor().dense_shape) +
             ")";
    case Datum::Kind::sequence:
      return "seq(" + element_text(datum.sequence()) + ", " + std::to_string(datum.sequence().elements.size()) + " elements)";
    case Datum::Kind::optional: return "optional(" + (datum.optional().value ? describe(*datum.optional().value) : "none") + ")";
    case Datum::Kind::map: return "map(" + describe(datum.map().values) + ")";
  }
  return "unknown";
}

}  // namespace treadle
