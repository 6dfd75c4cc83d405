#include "graph/type.h"

#include <algorithm>

#include "treadle/error.h"

namespace treadle {

Type Type::of(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::tensor: return tensor(datum.tensor().dtype(), datum.tensor().shape());
    case Datum::Kind::sparse_tensor: {
      Type type = tensor(datum.sparse_tensor().values.dtype(), datum.sparse_tensor().dense_shape);
      type.kind = Kind::sparse_tensor;
      return type;
    }
    case Datum::Kind::sequence: {
      const Sequence& sequence = datum.sequence();
      if (sequence.elements.size() == 1) return Type::sequence(of(sequence.elements[0]));
      return Type::sequence(tensor(sequence.element_dtype));
    }
    case Datum::Kind::optional: return datum.optional().value ? optional(of(*datum.optional().value)) : optional(Type{});
    case Datum::Kind::map: return map(datum.map().keys.index() == 0 ? DType::int64 : DType::string, datum.map().values.dtype());
    case Datum::Kind::none: break;
  }
  return {};
}

bool Type::is_static() const noexcept {
  return is_tensor() && shape && std::all_of(shape->begin(), shape->end(), [](const Dim& dim) { return dim.is_const(); });
}

Shape Type::static_shape() const {
  Shape result;
  for (const Dim& dim : *shape) result.push_back(dim.value());
  return result;
}

bool Type::operator==(const Type& other) const {
  if (kind != other.kind || dtype != other.dtype || key_dtype != other.key_dtype || shape != other.shape) return false;
  if (!element || !other.element) return element == other.element;
  return *element == *other.element;
}

std::string to_string(const SymbolicShape& shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) text += (axis ? "," : "") + to_string(shape[axis]);
  return text + "]";
}

std::string to_string(const Type& type) {
  std::string dtype(short_name_of(type.dtype));
  std::string shape = type.shape ? to_string(*type.shape) : "[?]";
  switch (type.kind) {
    case Type::Kind::unknown: return "?";
    case Type::Kind::tensor: return dtype + shape;
    case Type::Kind::sparse_tensor: return "sparse(" + dtype + shape + ")";
    case Type::Kind::sequence: return "seq(" + to_string(*type.element) + ")";
    case Type::Kind::optional: return "optional(" + to_string(*type.element) + ")";
    case Type::Kind::map: return "map(" + std::string(short_name_of(type.key_dtype)) + ", " + dtype + ")";
  }
  return "?";
}

SymbolicShape broadcast(const SymbolicShape& a, const SymbolicShape& b) {
  SymbolicShape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) {
    Dim x = i < a.size() ? a[a.size() - 1 - i] : Dim(1), y = i < b.size() ? b[b.size() - 1 - i] : Dim(1);
    try {
      result[result.size() - 1 - i] = broadcast(x, y);
    } catch (const Error& error) {
      throw Error(error.code(), "shapes " + to_string(a) + " and " + to_string(b) + " do not broadcast: " + to_string(x) + " against " +
                                    to_string(y) + " at axis -" + std::to_string(i + 1));
    }
  }
  return result;
}

Shape broadcast(const Shape& a, const Shape& b) {
  SymbolicShape wide = broadcast(SymbolicShape(a.begin(), a.end()), SymbolicShape(b.begin(), b.end()));
  return Type::tensor(DType::undefined, std::move(wide)).static_shape();
}

Dim product(const SymbolicShape& shape, size_t first, size_t last) {
  Dim known = 1, result = 1;  // integers are multiplied separately, because each product with an expression makes a new expression
  for (size_t axis = first; axis < last; ++axis) {
    Dim& factor = shape[axis].is_const() ? known : result;
    factor = factor * shape[axis];
  }
  return result * known;
}

}  // namespace treadle
