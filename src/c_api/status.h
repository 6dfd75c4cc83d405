// Statuses of the C ABI, and how exceptions become them.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "treadle/error.h"
#include "treadle/out_of_memory.h"
#include "treadle/treadle.h"

struct treadle_status {
  treadle_code code;
  std::string message;
  bool out_of_memory = false;
};

namespace treadle::c_api {

// Given out when not even a status can be allocated; never released.
inline treadle_status last_resort{TREADLE_RESOURCE_EXHAUSTED, "out of memory", /*out_of_memory=*/true};

inline treadle_status* status_of(treadle_code code, const char* message, bool out_of_memory = false) noexcept {
  try {
    return new treadle_status{code, message, out_of_memory};
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
  } catch (const OutOfMemory& error) {
    return status_of(TREADLE_RESOURCE_EXHAUSTED, error.what(), /*out_of_memory=*/true);
  } catch (const Error& error) {
    return status_of(static_cast<treadle_code>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return &last_resort;
  } catch (const std::exception& error) {
    return status_of(TREADLE_INTERNAL, error.what());
  } catch (...) {
    return status_of(TREADLE_INTERNAL, "an unknown exception");
  }
}

/// What a callback's status says, as an exception. Releases it. NULL is none.
inline void check(treadle_status* status) {
  if (!status) return;
  const treadle_status held = status == &last_resort ? last_resort : std::move(*status);
  if (status != &last_resort) delete status;
  if (held.out_of_memory) throw OutOfMemory(held.message);
  throw Error(static_cast<ErrorCode>(held.code), held.message);
}

template <typename T>
T& require(T* pointer, const char* what) {
  if (!pointer) throw Error(ErrorCode::invalid_argument, std::string(what) + " is NULL");
  return *pointer;
}

}  // namespace treadle::c_api
