// Sequences and maps, and what kind a value is.
#include "ort_api/api.h"

namespace treadle::ort {
namespace {

const Datum& datum_of(const OrtValue* value) { return required(value, "value").datum; }

Datum make_sequence(const OrtValue* const* values, size_t count) {
  Sequence sequence;
  for (size_t i = 0; i < count; ++i) {
    const Datum& element = datum_of(values[i]);
    if (i > 0 && element.kind() != sequence.elements[0].kind())
      throw Error(ErrorCode::invalid_argument,
                  "elements of a sequence are of one kind, not " + describe(sequence.elements[0]) + " and " + describe(element));
    if (element.is_tensor()) {
      if (i > 0 && element.tensor().dtype() != sequence.element_dtype)
        throw Error(ErrorCode::invalid_argument,
                    "tensors of a sequence are of one dtype, not " + describe(sequence.elements[0]) + " and " + describe(element));
      sequence.element_dtype = element.tensor().dtype();
    }
    sequence.elements.push_back(element);
  }
  return sequence;
}

Datum make_map(const OrtValue* const* values, size_t count) {
  if (count != 2)
    throw Error(ErrorCode::invalid_argument, "a map is made of keys and values, not of " + std::to_string(count) + " tensors");
  const Tensor &keys = datum_of(values[0]).tensor(), &elements = datum_of(values[1]).tensor();
  if (keys.shape().rank() != 1 || !(keys.shape() == elements.shape()))
    throw Error(ErrorCode::invalid_argument,
                "keys and values of a map are vectors of one length, not " + describe(keys) + " and " + describe(elements));
  Map map;
  if (keys.dtype() == DType::string)
    map.keys = std::vector<std::string>(keys.span<std::string>().begin(), keys.span<std::string>().end());
  else
    map.keys = std::vector<int64_t>(keys.span<int64_t>().begin(), keys.span<int64_t>().end());
  map.values = elements.clone();
  return map;
}

Tensor keys_of(const Map& map) {
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&map.keys)) return Tensor::vector<int64_t>(*numbers);
  const auto& texts = std::get<std::vector<std::string>>(map.keys);
  return Tensor::strings(Shape{static_cast<int64_t>(texts.size())}, texts);
}

Datum part_of(const Datum& datum, int index) {
  if (datum.kind() == Datum::Kind::map) {
    if (index != 0 && index != 1)
      throw Error(ErrorCode::invalid_argument, "a map has keys (0) and values (1), no " + std::to_string(index));
    return index == 0 ? keys_of(datum.map()) : datum.map().values.clone();
  }
  if (datum.kind() == Datum::Kind::optional && datum.optional().value) return part_of(*datum.optional().value, index);
  const Sequence& sequence = datum.sequence();
  if (index < 0 || static_cast<size_t>(index) >= sequence.elements.size())
    throw Error(ErrorCode::invalid_argument,
                "element " + std::to_string(index) + " of a sequence of " + std::to_string(sequence.elements.size()));
  const Datum& element = sequence.elements[static_cast<size_t>(index)];
  return element.is_tensor() ? Datum(element.tensor().clone()) : element;
}

}  // namespace

void add_containers(OrtApi& table) {
  table.GetTypeInfo = [](const OrtValue* value, OrtTypeInfo** out) {
    return guarded([&] { required(out, "out") = type_of(datum_of(value)).release(); });
  };
  table.GetValueType = [](const OrtValue* value, ONNXType* out) {
    return guarded([&] { required(out, "out") = type_of(datum_of(value))->type; });
  };
  table.GetValueCount = [](const OrtValue* value, size_t* out) {
    return guarded([&] {
      const Datum& datum = datum_of(value);
      required(out, "out") = datum.kind() == Datum::Kind::map ? 2 : datum.sequence().elements.size();
    });
  };
  table.GetValue = [](const OrtValue* value, int index, OrtAllocator*, OrtValue** out) {
    return guarded([&] { required(out, "out") = new_value(part_of(datum_of(value), index)); });
  };
  table.CreateValue = [](const OrtValue* const* values, size_t count, ONNXType type, OrtValue** out) {
    return guarded([&] {
      if (type != ONNX_TYPE_SEQUENCE && type != ONNX_TYPE_MAP)
        throw Error(ErrorCode::not_implemented, "values are put together to sequences and maps, not to type " + std::to_string(type));
      required(out, "out") = new_value(type == ONNX_TYPE_MAP ? make_map(values, count) : make_sequence(values, count));
    });
  };
}

}  // namespace treadle::ort
