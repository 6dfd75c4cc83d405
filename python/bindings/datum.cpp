#include "datum.h"

#include <fmt/format.h>

#include "session.h"
#include "treadle/error.h"

namespace treadle::python {
namespace {

std::string onnx_name(DType dtype) {
  if (dtype == DType::float32) return "float";
  if (dtype == DType::float64) return "double";
  return std::string(name_of(dtype));
}

bool starts_with(const std::string& text, std::string_view prefix) { return text.compare(0, prefix.size(), prefix) == 0; }

// Returns the type within the outer parentheses: "tensor(float)" for "seq(tensor(float))".
std::string inside(const std::string& type) {
  size_t open = type.find('(');
  return open == std::string::npos || type.back() != ')' ? std::string() : type.substr(open + 1, type.size() - open - 2);
}

// Returns the element type of the innermost "tensor(...)" in a type's text.
DType element_dtype(const std::string& type) {
  size_t tensor = type.rfind("tensor(");
  if (tensor == std::string::npos) return DType::undefined;
  size_t start = tensor + 7;
  std::string name = type.substr(start, type.find(')', start) - start);
  if (name == "float") return DType::float32;
  if (name == "double") return DType::float64;
  return dtype_from_name(name);
}

// Returns true for a whole number. Maps to integers refuse other numbers, because the conversion would cut off their fractions.
bool is_whole(nb::handle value) {
  const nb::object whole = nb::steal(PyNumber_Long(value.ptr()));
  const int same = whole.is_valid() ? PyObject_RichCompareBool(whole.ptr(), value.ptr(), Py_EQ) : -1;
  if (same < 0) PyErr_Clear();
  return same == 1;
}

Datum map_from_dict(const nb::dict& dict, const std::string& type) {
  Map map;
  bool text_keys = starts_with(type, "map(string");
  if (type.empty() && dict.size() > 0) text_keys = PyUnicode_Check((*dict.begin()).first.ptr());
  const bool whole_values = element_dtype(type) == DType::int64;
  nb::list values;
  std::vector<std::string> names;
  std::vector<int64_t> numbers;
  for (auto [key, value] : dict) {
    if ((text_keys ? !PyUnicode_Check(key.ptr()) : !is_whole(key)) || (whole_values && !is_whole(value)))
      throw Error(ErrorCode::invalid_argument, fmt::format("Unexpected input data type. The map has {}: {}; expected: ({})",
                                                           nb::repr(key).c_str(), nb::repr(value).c_str(), type));
    if (text_keys)
      names.push_back(string_from_python(key));
    else
      numbers.push_back(nb::cast<int64_t>(nb::object(nb::int_(nb::borrow(key)))));
    values.append(value);
  }
  if (text_keys)
    map.keys = std::move(names);
  else
    map.keys = std::move(numbers);
  map.values = tensor_from_array(values, nullptr, element_dtype(type));
  return map;
}

Datum sequence_from_list(nb::handle list, const std::string& type) {
  Sequence sequence;
  std::string element = inside(type);
  sequence.element_dtype = element_dtype(type);
  for (nb::handle item : list) sequence.elements.push_back(datum_from_python(item, element, nullptr));
  if (!sequence.elements.empty() && sequence.elements.front().is_tensor())
    sequence.element_dtype = sequence.elements.front().tensor().dtype();
  return sequence;
}

}  // namespace

Datum datum_from_python(nb::handle value, const std::string& type, BufferScope* scope) {
  if (nb::isinstance<OrtValue>(value)) return nb::cast<OrtValue&>(value).datum;
  if (nb::isinstance<PyValueHandle>(value)) return nb::cast<PyValueHandle&>(value).datum();
  if (nb::isinstance<SparseTensor>(value)) return nb::cast<SparseTensor&>(value);
  if (starts_with(type, "optional(")) {
    if (value.is_none()) return Optional{};
    return Optional{std::make_shared<Datum>(datum_from_python(value, inside(type), nullptr))};
  }
  if (value.is_none()) {
    if (type.empty()) return Optional{};
    throw Error(ErrorCode::invalid_argument, "None is no value of the type " + type);
  }
  if (nb::isinstance<nb::dict>(value)) return map_from_dict(nb::cast<nb::dict>(value), type);
  bool is_list = nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value);
  if (is_list && (type.empty() || starts_with(type, "seq("))) return sequence_from_list(value, type);
  return tensor_from_array(value, scope, element_dtype(type));
}

nb::object datum_to_python(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::none: return nb::none();
    case Datum::Kind::tensor: return array_from_tensor(datum.tensor());
    case Datum::Kind::sparse_tensor: return nb::cast(datum.sparse_tensor());
    case Datum::Kind::optional: return datum.optional().value ? datum_to_python(*datum.optional().value) : nb::none();
    case Datum::Kind::sequence: {
      nb::list list;
      for (const Datum& element : datum.sequence().elements) list.append(datum_to_python(element));
      return list;
    }
    case Datum::Kind::map: break;
  }
  nb::dict dict;
  const Map& map = datum.map();
  nb::object values = array_from_tensor(map.values).attr("tolist")();
  size_t count = 0;
  auto next = [&] { return values[nb::int_(count++)]; };
  if (auto* names = std::get_if<std::vector<std::string>>(&map.keys)) {
    for (const std::string& name : *names) dict[string_to_python(name)] = next();
  } else {
    for (int64_t number : std::get<std::vector<int64_t>>(map.keys)) dict[nb::int_(number)] = next();
  }
  return dict;
}

Datum detach(Datum output) {
  if (output.is_tensor()) {
    const auto& storage = output.tensor().storage();
    if (!storage || (storage.use_count() == 1 && storage->writable() && !storage->lent())) return output;
    return to_device(output.tensor().clone(), device_of(output.tensor()));
  }
  if (output.kind() == Datum::Kind::optional && output.optional().value)
    return Optional{std::make_shared<Datum>(detach(*output.optional().value))};
  if (output.kind() != Datum::Kind::sequence) return output;
  // Elements are copied if other objects use their memory, because `output` may share elements with a constant or a feed.
  Sequence copy{output.sequence().element_dtype, {}};
  for (const Datum& element : output.sequence().elements) copy.elements.push_back(detach(element));
  return copy;
}

nb::object output_to_python(Datum output) { return datum_to_python(detach(std::move(output))); }

std::string onnx_type_text(const Datum& datum) {
  switch (datum.kind()) {
    case Datum::Kind::none: return "";
    case Datum::Kind::tensor: return "tensor(" + onnx_name(datum.tensor().dtype()) + ")";
    case Datum::Kind::sparse_tensor: return "sparse_tensor(" + onnx_name(datum.sparse_tensor().values.dtype()) + ")";
    case Datum::Kind::optional: return "optional(" + (datum.optional().value ? onnx_type_text(*datum.optional().value) : "") + ")";
    case Datum::Kind::sequence: {
      const Sequence& sequence = datum.sequence();
      return "seq(" +
             (sequence.elements.empty() ? "tensor(" + onnx_name(sequence.element_dtype) + ")" : onnx_type_text(sequence.elements.front())) +
             ")";
    }
    case Datum::Kind::map: break;
  }
  const Map& map = datum.map();
  bool text_keys = std::holds_alternative<std::vector<std::string>>(map.keys);
  return std::string("map(") + (text_keys ? "string" : "int64") + ",tensor(" + onnx_name(map.values.dtype()) + "))";
}

}  // namespace treadle::python
