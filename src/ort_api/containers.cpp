// Functions for sequences and maps, and functions that return the kind of a value.
#include <algorithm>
#include <cstring>
#include <map>

#include "ort_api/api.h"

namespace treadle::ort {
namespace {

const Datum& datum_of(const OrtValue* value) { return required(value, "value").datum; }

[[noreturn]] void refuse(const std::string& what) { throw StatusError(ORT_FAIL, what); }

bool fits(const Datum& element, const Datum& first) {
  if (element.kind() != first.kind()) return false;
  if (element.is_tensor()) return element.tensor().dtype() == first.tensor().dtype();
  return element.map().keys.index() == first.map().keys.index() && element.map().values.dtype() == first.map().values.dtype();
}

Datum make_sequence(const OrtValue* const* values, size_t count) {
  if (count == 0) refuse("Number of values should be at least 1.");
  Sequence sequence;
  for (size_t i = 0; i < count; ++i) {
    const Datum& element = datum_of(values[i]);
    if (!element.is_tensor() && element.kind() != Datum::Kind::map)
      refuse("Each element of the sequence should be either tensor or map, not " + describe(element));
    if (i > 0 && !fits(element, sequence.elements[0]))
      refuse((element.kind() == sequence.elements[0].kind()
                  ? "Sequences must have tensors of the same data type. There was at least one tensor in the input that was different: "
                  : "At least one element in the sequence is of a type different from others: ") +
             describe(sequence.elements[0]) + " and " + describe(element));
    if (element.is_tensor()) sequence.element_dtype = element.tensor().dtype();
    sequence.elements.push_back(element);
  }
  return sequence;
}

// Makes a map whose keys are in ascending order. If a key occurs several times, its first value is used.
template <typename Key>
Datum map_of(const Tensor& keys, const Tensor& elements) {
  std::map<Key, int64_t> places;
  for (int64_t i = 0; i < keys.num_elements(); ++i) places.emplace(keys.data<Key>()[i], i);
  const auto count = static_cast<int64_t>(places.size());
  Tensor values(elements.dtype(), Shape{count});
  std::vector<Key> names;
  for (const auto& [name, from] : places) {
    const size_t to = names.size(), width = bits_of(elements.dtype()) / 8;
    if (elements.dtype() == DType::string)
      values.data<std::string>()[to] = elements.data<std::string>()[from];
    else
      std::memcpy(values.raw() + to * width, elements.raw() + static_cast<size_t>(from) * width, width);
    names.push_back(name);
  }
  return Map{std::move(names), std::move(values)};
}

Datum make_map(const OrtValue* const* values, size_t count) {
  if (count != 2) refuse("For map type num_values MUST be 2, not " + std::to_string(count));
  for (size_t i = 0; i < count; ++i)
    if (!datum_of(values[i]).is_tensor()) refuse_kind(datum_of(values[i]), "a tensor");
  const Tensor &keys = datum_of(values[0]).tensor(), &elements = datum_of(values[1]).tensor();
  if (keys.shape().rank() > 1 || elements.shape().rank() > 1)
    refuse("Either the key tensor or the value tensor has NumDimensions > 1: " + describe(keys) + " and " + describe(elements));
  if (keys.num_elements() != elements.num_elements())
    refuse("Key and value tensors have unequal number of elements: " + describe(keys) + " and " + describe(elements));
  static constexpr DType kValues[] = {DType::string, DType::int64, DType::float32, DType::float64};
  if (keys.dtype() != DType::string && keys.dtype() != DType::int64) refuse("Key type is not supported yet: " + describe(keys));
  if (std::find(std::begin(kValues), std::end(kValues), elements.dtype()) == std::end(kValues))
    refuse("Value type is not supported yet: " + std::string(name_of(elements.dtype())));
  return keys.dtype() == DType::string ? map_of<std::string>(keys, elements) : map_of<int64_t>(keys, elements);
}

Tensor keys_of(const Map& map) {
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&map.keys)) return Tensor::vector<int64_t>(*numbers);
  const auto& texts = std::get<std::vector<std::string>>(map.keys);
  return Tensor::strings(Shape{static_cast<int64_t>(texts.size())}, texts);
}

Datum part_of(const Datum& datum, int index) {
  if (datum.kind() == Datum::Kind::map) {
    if (index != 0 && index != 1)
      refuse("Invalid index requested for map type: keys are 0 and values 1, there is no " + std::to_string(index));
    return index == 0 ? keys_of(datum.map()) : datum.map().values.clone();
  }
  if (datum.kind() == Datum::Kind::optional && datum.optional().value) return part_of(*datum.optional().value, index);
  if (datum.kind() != Datum::Kind::sequence) refuse("Input is not of type sequence or map: " + describe(datum));
  const Sequence& sequence = datum.sequence();
  if (index < 0 || static_cast<size_t>(index) >= sequence.elements.size())
    refuse("element " + std::to_string(index) + " of a sequence of " + std::to_string(sequence.elements.size()));
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
      if (datum.kind() != Datum::Kind::map && datum.kind() != Datum::Kind::sequence)
        refuse("Input is not of type sequence or map: " + describe(datum));
      required(out, "out") = datum.kind() == Datum::Kind::map ? 2 : datum.sequence().elements.size();
    });
  };
  table.GetValue = [](const OrtValue* value, int index, OrtAllocator*, OrtValue** out) {
    return guarded([&] { required(out, "out") = new_value(part_of(datum_of(value), index)); });
  };
  table.CreateValue = [](const OrtValue* const* values, size_t count, ONNXType type, OrtValue** out) {
    return guarded([&] {
      if (type != ONNX_TYPE_SEQUENCE && type != ONNX_TYPE_MAP) refuse("Input is not of type sequence or map: type " + std::to_string(type));
      required(out, "out") = new_value(type == ONNX_TYPE_MAP ? make_map(values, count) : make_sequence(values, count));
    });
  };
}

}  // namespace treadle::ort
