// Computes control flow and operators on sequences.
#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

bool truth(const Value& value) {
  require(!value.is_sequence && value.array.dtype == DType::boolean && value.array.size() == 1, "one bool was expected");
  return value.array.i[0] != 0;
}

Values if_then_else(Call& c) { return c.run_body(c.body(truth(c.value(0)) ? "then_branch" : "else_branch"), {}); }

// Returns the output of a scan: the rows stacked along `axis`.
Array stack(const std::vector<Array>& rows, int64_t axis, bool backwards) {
  require(!rows.empty(), "no iteration says what the rows are like");
  for (const Array& row : rows) require(row.dims == rows[0].dims, "rows of different shapes");
  Dims dims = rows[0].dims;
  axis = normalize_axis(axis, static_cast<int64_t>(dims.size()) + 1);
  dims.insert(dims.begin() + axis, static_cast<int64_t>(rows.size()));
  Array y(rows[0].dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Dims at = coordinates(k, dims);
    auto row = static_cast<size_t>(at[static_cast<size_t>(axis)]);
    if (backwards) row = rows.size() - 1 - row;
    at.erase(at.begin() + axis);
    y.copy(k, rows[row], place(at, rows[row].dims));
  }
  return y;
}

Values loop(Call& c) {
  const onnx::GraphDef& body = c.body("body");
  const int64_t trips = c.has(0) ? c.in(0).i.at(0) : 1000;
  bool go_on = !c.has(1) || truth(c.value(1));
  Values carried;
  for (size_t i = 2; i < c.num_inputs(); ++i) carried.push_back(c.value(i));
  std::vector<std::vector<Array>> rows(body.outputs.size() - 1 - carried.size());
  for (int64_t trip = 0; trip < trips && go_on; ++trip) {
    require(trip < 100, "too many iterations");
    Value condition(Array(DType::boolean, {}));
    condition.array.i[0] = 1;
    Values inputs{Array::scalar(trip), condition};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    Values outputs = c.run_body(body, std::move(inputs));
    go_on = truth(outputs[0]);
    for (size_t i = 0; i < carried.size(); ++i) carried[i] = std::move(outputs[i + 1]);
    for (size_t i = 0; i < rows.size(); ++i) rows[i].push_back(outputs[i + 1 + carried.size()].array);
  }
  for (const auto& scanned : rows) carried.emplace_back(stack(scanned, 0, false));
  return carried;
}

Values scan(Call& c) {
  const onnx::GraphDef& body = c.body("body");
  const auto num_scanned = static_cast<size_t>(c.integer("num_scan_inputs", 1));
  const size_t num_states = c.num_inputs() - num_scanned, num_rows = body.outputs.size() - num_states;
  auto listed = [&](const char* name, size_t count) { return c.integers(name, std::vector<int64_t>(count, 0)); };
  const auto in_axes = listed("scan_input_axes", num_scanned), in_back = listed("scan_input_directions", num_scanned);
  const auto out_axes = listed("scan_output_axes", num_rows), out_back = listed("scan_output_directions", num_rows);
  Values states;
  for (size_t i = 0; i < num_states; ++i) states.push_back(c.value(i));
  int64_t length = -1;
  for (size_t i = 0; i < num_scanned; ++i) {
    const Array& x = c.in(num_states + i);
    const int64_t extent = x.dims[static_cast<size_t>(normalize_axis(in_axes[i], x.rank()))];
    require(length < 0 || extent == length, "scanned extents differ");
    length = extent;
  }
  std::vector<std::vector<Array>> rows(num_rows);
  for (int64_t step = 0; step < length; ++step) {
    Values inputs = states;
    for (size_t i = 0; i < num_scanned; ++i) {
      const Array& x = c.in(num_states + i);
      const int64_t axis = normalize_axis(in_axes[i], x.rank());
      Dims dims = x.dims;
      dims.erase(dims.begin() + axis);
      Array row(x.dtype, dims);
      for (size_t k = 0; k < row.size(); ++k) {
        Dims at = coordinates(k, dims);
        at.insert(at.begin() + axis, in_back[i] != 0 ? length - 1 - step : step);
        row.copy(k, x, place(at, x.dims));
      }
      inputs.emplace_back(std::move(row));
    }
    Values outputs = c.run_body(body, std::move(inputs));
    for (size_t i = 0; i < num_states; ++i) {
      require(outputs[i].array.dims == states[i].array.dims, "a state of Scan keeps its shape");
      states[i] = std::move(outputs[i]);
    }
    for (size_t i = 0; i < num_rows; ++i) rows[i].push_back(outputs[num_states + i].array);
  }
  for (size_t i = 0; i < num_rows; ++i) states.emplace_back(stack(rows[i], out_axes[i], out_back[i] != 0));
  return states;
}

Value sequence_of(std::vector<Array> elements, DType dtype) {
  Value result;
  result.is_sequence = true;
  result.array = Array(dtype, {0});
  for (const Array& element : elements) require(element.dtype == dtype, "a sequence has one dtype");
  result.elements = std::move(elements);
  return result;
}

Values sequence_construct(Call& c) {
  std::vector<Array> elements;
  for (size_t i = 0; i < c.num_inputs(); ++i) elements.push_back(c.in(i));
  const DType dtype = c.in(0).dtype;
  return {sequence_of(std::move(elements), dtype)};
}

// Returns the index that the input with the position contains. @param beyond  the position may be one past the last, which is then also the
// default; otherwise the default is the last
size_t position(Call& c, size_t input, bool beyond) {
  const auto count = static_cast<int64_t>(c.value(0).elements.size());
  if (!c.has(input)) {
    require(beyond || count > 0, "an empty sequence");
    return static_cast<size_t>(beyond ? count : count - 1);
  }
  const int64_t at = c.in(input).i.at(0);
  require(at >= -count && at < count + (beyond ? 1 : 0), "a position out of range");
  return static_cast<size_t>(at < 0 ? at + count : at);
}

Values sequence_insert(Call& c) {
  Value result = c.value(0);
  require(c.in(1).dtype == result.array.dtype, "a sequence has one dtype");
  result.elements.insert(result.elements.begin() + static_cast<int64_t>(position(c, 2, true)), c.in(1));
  return {std::move(result)};
}

Values sequence_erase(Call& c) {
  Value result = c.value(0);
  result.elements.erase(result.elements.begin() + static_cast<int64_t>(position(c, 1, false)));
  return {std::move(result)};
}

Values sequence_at(Call& c) {
  require(c.value(0).is_sequence && c.has(1), "a sequence and a position");
  return {c.value(0).elements.at(position(c, 1, false))};
}

Values sequence_map(Call& c) {
  const onnx::GraphDef& body = c.body("body");
  require(c.value(0).is_sequence && !c.value(0).elements.empty(), "elements say what the results are like");
  std::vector<std::vector<Array>> results(body.outputs.size());
  for (size_t k = 0; k < c.value(0).elements.size(); ++k) {
    Values inputs;
    for (size_t i = 0; i < c.num_inputs(); ++i) {
      const Value& x = c.value(i);
      if (x.is_sequence) require(x.elements.size() == c.value(0).elements.size(), "sequences of one length");
      inputs.push_back(x.is_sequence ? Value(x.elements[k]) : x);
    }
    Values outputs = c.run_body(body, std::move(inputs));
    for (size_t i = 0; i < outputs.size(); ++i) results[i].push_back(outputs[i].array);
  }
  Values sequences;
  for (auto& elements : results) {
    const DType dtype = elements[0].dtype;
    sequences.push_back(sequence_of(std::move(elements), dtype));
  }
  return sequences;
}

// Makes an optional that holds the input; without input, an empty one of the declared type.
Values optional_of(Call& c) {
  Value result;
  if (c.has(0)) {
    require(!c.value(0).is_optional, "an optional of an optional");
    result = c.value(0);
    if (!result.is_sequence) result.elements = {result.array};
    result.has_element = true;
  } else {
    require(c.attribute("type") != nullptr && c.attribute("type")->tp != nullptr, "an optional of nothing has a type");
    const onnx::TypeDef& type = *c.attribute("type")->tp;
    result.is_sequence = type.kind == onnx::TypeDef::Kind::sequence;
    result.array = Array(result.is_sequence ? type.elem->elem_type : type.elem_type, {0});
  }
  result.is_optional = true;
  result.is_stored = false;
  return {std::move(result)};
}

// Also accepts inputs that are not optional.
Values has_element(Call& c) {
  Array y(DType::boolean, {});
  y.i[0] = c.has(0) && (!c.value(0).is_optional || c.value(0).has_element);
  return {std::move(y)};
}

Values get_element(Call& c) {
  if (!c.value(0).is_optional) return {c.value(0)};
  require(c.value(0).has_element, "the optional has no element");
  if (!c.value(0).is_sequence) return {c.value(0).elements[0]};
  Value sequence = c.value(0);
  sequence.is_optional = sequence.has_element = false;
  return {std::move(sequence)};
}

const OperatorTable kTable{
    {"Optional", optional_of},
    {"OptionalHasElement", has_element},
    {"OptionalGetElement", get_element},
    {"If", if_then_else},
    {"Loop", loop},
    {"Scan", scan},
    {"SequenceConstruct", sequence_construct},
    {"SequenceEmpty", [](Call& c) { return Values{sequence_of({}, static_cast<DType>(c.integer("dtype", 1)))}; }},
    {"SequenceInsert", sequence_insert},
    {"SequenceErase", sequence_erase},
    {"SequenceAt", sequence_at},
    {"SequenceMap", sequence_map},
    {"SequenceLength", [](Call& c) { return Values{Array::scalar(static_cast<int64_t>(c.value(0).elements.size()))}; }},
};

}  // namespace

const OperatorTable& control_operators() { return kTable; }

}  // namespace treadle::graphs
