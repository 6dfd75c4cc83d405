// Translates treadle::Error to Python exceptions. Their classes have ONNX Runtime's names, and treadle/errors.py defines them.
#include <filesystem>

#include "bindings.h"
#include "core/base/node_fault.h"
#include "ort_api/api.h"
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

const char* exception_name(OrtErrorCode status) {
  switch (status) {
    case ORT_INVALID_ARGUMENT: return "InvalidArgument";
    case ORT_NO_SUCHFILE: return "NoSuchFile";
    case ORT_INVALID_PROTOBUF: return "InvalidProtobuf";
    case ORT_NOT_IMPLEMENTED: return "NotImplemented";
    case ORT_INVALID_GRAPH: return "InvalidGraph";
    case ORT_RUNTIME_EXCEPTION: return "RuntimeException";
    default: return "Fail";
  }
}

// Returns the error code of the exception for a StatusError, which contains only a status code of ONNX Runtime.
ErrorCode code_of(OrtErrorCode status) {
  switch (status) {
    case ORT_NO_SUCHFILE: return ErrorCode::not_found;
    case ORT_INVALID_PROTOBUF:
    case ORT_INVALID_GRAPH: return ErrorCode::invalid_model;
    case ORT_NOT_IMPLEMENTED: return ErrorCode::not_implemented;
    case ORT_RUNTIME_EXCEPTION: return ErrorCode::internal;
    default: return ErrorCode::invalid_argument;
  }
}

void set_python_error(const char* name, const Error& error) {
  nb::object type = nb::module_::import_("treadle.errors").attr(name);
  const std::string_view what = error.what();  // not always UTF-8, because a message may quote bytes of a file
  nb::object text = nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "replace"));
  nb::object exception = type(text, nb::arg("code") = nb::cast(std::string(error_code_name(error.code()))));
  PyErr_SetObject(type.ptr(), exception.ptr());
}

}  // namespace

void raise_as(const char* name, const Error& error) {
  set_python_error(name, error);
  throw nb::python_error();
}

bool are_onnxruntimes() { return nb::cast<bool>(nb::module_::import_("treadle.errors").attr("_are_onnxruntimes")); }

void refuse_as_onnxruntime(const Error& error, const std::function<void()>& refuse) {
  try {
    refuse();
  } catch (const ort::StatusError& status) {
    raise_as(exception_name(status.code), Error(error.code(), status.what()));
  }
}

void register_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const OutOfMemory& error) {
      set_python_error("OutOfMemory", error);
    } catch (const NodeFault& fault) {
      if (!are_onnxruntimes()) return set_python_error(exception_name(fault.code()), fault);
      const ort::StatusError status = ort::status_of(fault);
      set_python_error(exception_name(status.code), Error(fault.code(), status.what()));
    } catch (const Error& error) {
      set_python_error(exception_name(error.code()), error);
    } catch (const ort::StatusError& error) {
      set_python_error(exception_name(error.code), Error(code_of(error.code), error.what()));
    } catch (const std::filesystem::filesystem_error& error) {
      set_python_error(exception_name(ErrorCode::io_error), Error(ErrorCode::io_error, error.what()));
    }
  });
}

}  // namespace treadle::python
