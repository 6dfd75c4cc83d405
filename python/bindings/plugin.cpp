// Binds the registration of operators written in Python, and plugins. The callbacks of treadle/plugin.h call Python functions here.
#include "treadle/plugin.h"

#include <cstring>
#include <memory>

#include "bindings.h"
#include "core/values/allocation.h"
#include "numpy.h"
#include "treadle/out_of_memory.h"

namespace treadle::python {
namespace {

void check(treadle_status* status) {
  if (!status) return;
  const bool out_of_memory = treadle_status_is_out_of_memory(status) != 0;
  const Error error(static_cast<ErrorCode>(treadle_status_code(status)), treadle_status_message(status));
  treadle_status_release(status);
  if (out_of_memory) throw OutOfMemory(error.message());
  throw error;
}

// The Python functions of an operator. The object lives as long as the process, because nodes of sessions point to it.
struct PythonOperator {
  nb::object function, infer;
};

nb::object attribute(const treadle_host* host, const treadle_node* node, const char* name) {
  int64_t integer = 0;
  float number = 0;
  const char* text = nullptr;
  const int64_t* integers = nullptr;
  const float* numbers = nullptr;
  size_t count = 0;
  if (host->node_attribute_int(node, name, &integer)) return nb::int_(integer);
  if (host->node_attribute_float(node, name, &number)) return nb::float_(number);
  if (host->node_attribute_string(node, name, &text, &count)) return string_to_python(std::string(text, count));
  nb::list list;
  if (host->node_attribute_ints(node, name, &integers, &count)) {
    for (size_t i = 0; i < count; ++i) list.append(integers[i]);
  } else if (host->node_attribute_floats(node, name, &numbers, &count)) {
    for (size_t i = 0; i < count; ++i) list.append(numbers[i]);
  } else {
    return nb::none();
  }
  return list;
}

nb::dict attributes_of(const treadle_host* host, const treadle_node* node) {
  nb::dict all;
  for (size_t i = 0; i < host->node_num_attributes(node); ++i) {
    const char* name = host->node_attribute_name(node, i);
    all[name] = attribute(host, node, name);
  }
  return all;
}

/// Runs `body` with the GIL held, for a callback of a plugin. @return 1; 0 if `body` throws, and the exception's text is then the failure
template <typename Body>
int called(const treadle_host* host, Body&& body) {
  nb::gil_scoped_acquire gil;
  try {
    body();
    return 1;
  } catch (const std::exception& error) {
    host->fail(error.what());
  }
  return 0;
}

// Calls `make`. What it allocates for Python does not count against the run's memory limit.
template <typename Make>
auto outside_of_run(Make&& make) {
  const AllocationScope none(nullptr, MemoryClass::other);
  return make();
}

nb::object array_of(const treadle_host* host, const treadle_call* call, size_t index) {
  treadle_tensor_view view;
  if (!host->call_input(call, index, &view)) return nb::none();
  const Shape shape(std::span(view.dims, static_cast<size_t>(view.rank)));
  Tensor tensor = outside_of_run([&] { return Tensor(static_cast<DType>(view.dtype), shape); });
  if (view.data) {
    std::memcpy(tensor.raw(), view.data, tensor.size_bytes());
  } else {
    for (size_t i = 0; i < static_cast<size_t>(tensor.num_elements()); ++i) {
      size_t length = 0;
      const char* text = host->call_string(call, index, i, &length);
      tensor.data<std::string>()[i].assign(text, length);
    }
  }
  return outside_of_run([&] { return array_from_tensor(tensor); });
}

void give_output(const treadle_host* host, treadle_call* call, size_t index, nb::handle value) {
  BufferScope scope;
  const Tensor tensor = outside_of_run([&] { return tensor_from_array(value, &scope).contiguous(); });
  void* data = host->call_output(call, index, static_cast<int32_t>(tensor.dtype()), tensor.shape().begin(),
                                 static_cast<size_t>(tensor.shape().rank()));
  if (!data && tensor.num_elements() > 0) throw Error(ErrorCode::internal, "an output could not be made");
  if (tensor.dtype() != DType::string) {
    if (tensor.size_bytes() > 0) std::memcpy(data, tensor.raw(), tensor.size_bytes());
    return;
  }
  for (size_t i = 0; i < static_cast<size_t>(tensor.num_elements()); ++i) {
    const std::string& text = tensor.data<std::string>()[i];
    host->call_set_string(call, index, i, text.data(), text.size());
  }
}

int run_python(void* user, void* state, const treadle_host* host, treadle_call* call) {
  return called(host, [&] {
    nb::list inputs;
    for (size_t i = 0; i < host->call_num_inputs(call); ++i) inputs.append(array_of(host, call, i));
    const auto& attributes = *static_cast<nb::dict*>(state);
    nb::object result = outside_of_run([&] { return static_cast<PythonOperator*>(user)->function(*inputs, **attributes); });
    if (!nb::isinstance<nb::tuple>(result) && !nb::isinstance<nb::list>(result)) result = nb::make_tuple(result);
    const size_t count = nb::len(result);
    if (count < host->call_num_outputs(call))
      throw Error(ErrorCode::invalid_argument, "the function returned " + std::to_string(count) + " values, the node has " +
                                                   std::to_string(host->call_num_outputs(call)));
    for (size_t i = 0; i < host->call_num_outputs(call); ++i) give_output(host, call, i, result[i]);
  });
}

nb::object type_to_python(const treadle_value_type& type) {
  if (type.dtype == 0) return nb::none();
  nb::object shape = nb::none();
  if (type.rank >= 0) {
    nb::list extents;
    for (int axis = 0; axis < type.rank; ++axis) extents.append(type.dims[axis] < 0 ? nb::none() : nb::object(nb::int_(type.dims[axis])));
    shape = nb::tuple(extents);
  }
  return nb::make_tuple(numpy_dtype(static_cast<DType>(type.dtype)), shape);
}

treadle_value_type type_from_python(nb::handle given) {
  treadle_value_type type{};
  type.rank = -1;
  if (given.is_none()) return type;
  type.dtype = static_cast<int32_t>(dtype_from_python(given[0]));
  const nb::object shape = given[1];
  if (shape.is_none()) return type;
  if (nb::len(shape) > TREADLE_PLUGIN_MAX_RANK) throw Error(ErrorCode::invalid_argument, "an inferred shape has too many extents");
  type.rank = static_cast<int32_t>(nb::len(shape));
  for (int axis = 0; axis < type.rank; ++axis) type.dims[axis] = shape[axis].is_none() ? -1 : nb::cast<int64_t>(shape[axis]);
  return type;
}

int infer_python(void* user, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs) {
  return called(host, [&] {
    nb::list inputs;
    for (size_t i = 0; i < host->node_num_inputs(node); ++i) {
      treadle_value_type type;
      host->node_input_type(node, i, &type);
      inputs.append(type_to_python(type));
    }
    const nb::object result = static_cast<PythonOperator*>(user)->infer(*inputs, **attributes_of(host, node));
    const size_t count = std::min(nb::len(result), host->node_num_outputs(node));
    for (size_t i = 0; i < count; ++i) outputs[i] = type_from_python(result[i]);
  });
}

void register_python_operator(const std::string& domain, const std::string& op_type, nb::object function, int num_outputs, int min_inputs,
                              int max_inputs, bool deterministic, nb::object infer) {
  auto op = std::make_unique<PythonOperator>(PythonOperator{std::move(function), std::move(infer)});
  treadle_operator description{.size = sizeof(treadle_operator),
                               .domain = domain.c_str(),
                               .op_type = op_type.c_str(),
                               .min_inputs = min_inputs,
                               .max_inputs = max_inputs,
                               .num_outputs = num_outputs,
                               .deterministic = deterministic,
                               .user = op.get(),
                               .infer = op->infer.is_none() ? nullptr : infer_python,
                               .create =
                                   [](void*, const treadle_host* host, const treadle_node* node) {
                                     void* made = nullptr;
                                     called(host, [&] { made = new nb::dict(attributes_of(host, node)); });
                                     return made;
                                   },
                               .destroy =
                                   [](void*, void* state) {
                                     if (!Py_IsInitialized()) return;  // the session lives longer than the Python interpreter
                                     nb::gil_scoped_acquire gil;
                                     delete static_cast<nb::dict*>(state);
                                   },
                               .run = run_python};
  check(treadle_register_operator(&description));
  (void)op.release();
}

}  // namespace

void load_plugin(const std::string& path) { check(treadle_load_plugin(path.c_str())); }

void register_plugin(nb::module_& module) {
  module.def(
      "register_operator", register_python_operator, nb::arg("domain"), nb::arg("op_type"), nb::arg("function"), nb::kw_only(),
      nb::arg("num_outputs") = 1, nb::arg("min_inputs") = 0, nb::arg("max_inputs") = -1, nb::arg("deterministic") = true,
      nb::arg("infer") = nb::none(),
      "Adds an operator that models may then use.\n\n"
      "function(*inputs, **attributes) gets NumPy arrays (None for an absent input) and returns an array, or a tuple of them.\n"
      "infer(*types, **attributes), optional, gets (dtype, shape) pairs, None in a shape for an unknown extent, and returns one pair\n"
      "an output, or None where it cannot tell. A second registration of the same name serves sessions made afterwards.");
  module.def("load_plugin", &load_plugin, nb::arg("path"),
             "Loads a shared object that registers operators or subgraph backends (treadle/plugin.h).");
  module.def(
      "get_available_backends",
      [] {
        std::vector<std::string> names;
        for (size_t i = 0; i < treadle_num_backends(); ++i) names.emplace_back(treadle_backend_name(i));
        return names;
      },
      "Names of the registered subgraph backends; the session config entry \"treadle.backends\" chooses among them.");
}

}  // namespace treadle::python
