// The table of functions. A function that no file sets returns an error with the reason why Treadle does not support it.
#include <cstring>
#include <utility>

#include "core/base/node_fault.h"
#include "exec/run/feed_binder.h"
#include "ort_api/api.h"

namespace treadle::ort {
namespace {

enum Place : size_t {
#define ORT_ENTRY(name, result, parameters) k##name,
#include "ort_api/entries.inc"
#undef ORT_ENTRY
};

constexpr const char* kNames[] = {
#define ORT_ENTRY(name, result, parameters) #name,
#include "ort_api/entries.inc"
#undef ORT_ENTRY
};

template <size_t place, typename Function>
struct Missing;
template <size_t place, typename Result, typename... Arguments>
struct Missing<place, Result (*)(Arguments...)> {
  static Result call(Arguments...) {
    if constexpr (std::is_same_v<Result, OrtStatus*>)
      return make_status(ORT_NOT_IMPLEMENTED, missing_text(kNames[place]).c_str());
    else if constexpr (!std::is_void_v<Result>)
      return Result{};
  }
};

// The status for the case that there is no memory even for a status.
OrtStatus last_resort{ORT_RUNTIME_EXCEPTION, "out of memory"};

OrtApi make_table() {
  OrtApi table{};
#define ORT_ENTRY(name, result, parameters) table.name = Missing<k##name, decltype(table.name)>::call;
#include "ort_api/entries.inc"
#undef ORT_ENTRY
  add_statuses(table);
  add_environment(table);
  add_session_options(table);
  add_custom_threads(table);
  add_sessions(table);
  add_bindings(table);
  add_types(table);
  add_tensors(table);
  add_containers(table);
  add_sparse_tensors(table);
  add_memory(table);
  add_devices(table);
  add_custom_operators(table);
  add_kernel_info(table);
  add_kernel_context(table);
  add_invoked_operators(table);
  add_adapters(table);
  add_model_editor(table);
  add_graph_readers(table);
  add_compiler(table);
  return table;
}

// Returns the same table for older versions, whose clients read only its first part.
const OrtApi* get_api(uint32_t version) { return version >= 1 && version <= kApiVersion ? &api() : nullptr; }
const char* get_version() { return kVersion; }

}  // namespace

const OrtApi& api() {
  static const OrtApi table = make_table();
  return table;
}

void add_statuses(OrtApi& table) {
  table.CreateStatus = [](OrtErrorCode code, const char* message) { return make_status(code, message); };
  table.GetErrorCode = [](const OrtStatus* status) { return status != nullptr ? status->code : ORT_OK; };
  table.GetErrorMessage = [](const OrtStatus* status) { return status != nullptr ? status->message.c_str() : ""; };
  table.ReleaseStatus = [](OrtStatus* status) {
    if (status != &last_resort) delete status;
  };
}

OrtStatus* make_status(OrtErrorCode code, const char* message) noexcept {
  try {
    return new OrtStatus{code, message != nullptr ? message : ""};
  } catch (...) {
    return &last_resort;
  }
}

OrtStatus* status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const exec::MissingInput& error) {
    return make_status(ORT_FAIL, error.what());
  } catch (const NodeFault& fault) {
    const StatusError status = status_of(fault);
    return make_status(status.code, status.what());
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::invalid_argument: return make_status(ORT_INVALID_ARGUMENT, error.what());
      case ErrorCode::invalid_model: return make_status(ORT_INVALID_GRAPH, error.what());
      case ErrorCode::not_implemented: return make_status(ORT_NOT_IMPLEMENTED, error.what());
      case ErrorCode::not_found: return make_status(ORT_NO_SUCHFILE, error.what());
      case ErrorCode::resource_exhausted:
      case ErrorCode::internal: return make_status(ORT_RUNTIME_EXCEPTION, error.what());
      default: return make_status(ORT_FAIL, error.what());
    }
  } catch (const StatusError& error) {
    return make_status(error.code, error.what());
  } catch (const std::bad_alloc&) {
    return make_status(ORT_RUNTIME_EXCEPTION, "out of memory");
  } catch (const std::exception& error) {
    return make_status(ORT_RUNTIME_EXCEPTION, error.what());
  } catch (...) {
    return make_status(ORT_RUNTIME_EXCEPTION, "an unknown exception");
  }
}

void check(OrtStatus* status) {
  if (status == nullptr) return;
  const std::unique_ptr<OrtStatus, void (*)(OrtStatus*)> owner(status, [](OrtStatus* s) { api().ReleaseStatus(s); });
  throw StatusError(status->code, status->message);
}

void give_text(const std::string& text, char* out, size_t* size) {
  const size_t needed = text.size() + 1;
  const size_t room = std::exchange(required(size, "size"), needed);
  if (out == nullptr) return;
  if (room < needed)
    throw Error(ErrorCode::invalid_argument, "the text takes " + std::to_string(needed) + " bytes, there are " + std::to_string(room));
  std::memcpy(out, text.c_str(), needed);
}

}  // namespace treadle::ort

extern "C" {
// OrtGetApiBase in libonnxruntime.so.1 (entry.c) returns this function's result. In libtreadle.so, the function has another name, so that
// it does not conflict with ONNX Runtime in the same process.
__attribute__((visibility("default"))) const OrtApiBase* treadle_ort_api_base() noexcept {
  static const OrtApiBase base{treadle::ort::get_api, treadle::ort::get_version};
  return &base;
}
}
