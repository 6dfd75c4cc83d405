// treadle::Error as Python exceptions: the classes are ONNX Runtime's, defined in treadle/errors.py.
#include <filesystem>

#include "bindings.h"
#include "treadle/out_of_memory.h"

namespace treadle::python {
namespace {

const char* exception_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument: return "InvalidArgument";
    case ErrorCode::invalid_model: return "InvalidGraph";
    case ErrorCode::not_implemented: return "NotImplemented";
    case ErrorCode::not_found: return "NotFound";
    case ErrorCode::cancelled:
    case ErrorCode::timed_out:
    case ErrorCode::io_error: return "Fail";
    default: return "RuntimeException";
  }
}

void set_python_error(const char* name, const Error& error) {
  nb::object type = nb::module_::import_("treadle.errors").attr(name);
  const std::string_view what = error.what();  // it may repeat bytes of a file that are no text
  nb::object text = nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "replace"));
  nb::object exception = type(text, nb::arg("code") = nb::cast(std::string(error_code_name(error.code()))));
  PyErr_SetObject(type.ptr(), exception.ptr());
}

}  // namespace

void raise_as(const char* name, const Error& error) {
  set_python_error(name, error);
  throw nb::python_error();
}

void register_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const OutOfMemory& error) {
      set_python_error("OutOfMemory", error);
    } catch (const Error& error) {
      set_python_error(exception_name(error.code()), error);
    } catch (const std::filesystem::filesystem_error& error) {
      set_python_error(exception_name(ErrorCode::io_error), Error(ErrorCode::io_error, error.what()));
    }
  });
}

}  // namespace treadle::python
