// Statuses of the C ABI, and how exceptions become them.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "treadle/error.h"
#include "treadle/treadle.h"

struct treadle_status {
  treadle_code code;
  std::string message;
};

namespace treadle::c_api {

// Given out when not even a status can be allocated; never released.
inline treadle_status last_resort{TREADLE_RESOURCE_EXHAUSTED, "out of memory"};

inline treadle_status* status_of(treadle_code code, const char* message) noexcept {
  try {
    return new treadle_status{code, message};
  } catch (...) {
    return &last_resort;
  }
}

/// Runs `body`; whatever it throws becomes a status.
template <typename Body>
treadle_status* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    return status_of(static_cast<treadle_code>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return status_of(TREADLE_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& error) {
    return status_of(TREADLE_INTERNAL, error.what());
  } catch (...) {
    return status_of(TREADLE_INTERNAL, "an unknown exception");
  }
}

template <typename T>
T& require(T* pointer, const char* what) {
  if (!pointer) throw Error(ErrorCode::invalid_argument, std::string(what) + " is NULL");
  return *pointer;
}

}  // namespace treadle::c_api
