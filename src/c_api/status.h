// The statuses of the C ABI, and their construction from exceptions.
#pragma once

#include <exception>
#include <filesystem>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>

#include "c_api/arguments.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"
#include "treadle/treadle.h"

struct treadle_status : treadle::c_api::Handle<treadle_status> {
  treadle_code code = TREADLE_INTERNAL;
  std::string message;
  bool out_of_memory = false;
};

namespace treadle::c_api {

inline bool is_error(treadle_code code) noexcept {
  return !within(as_number(code), TREADLE_INVALID_ARGUMENT, TREADLE_INTERNAL, "", "").faulty();
}

// The status to return if there is not even memory for a status. It is never released.
inline treadle_status last_resort{{}, TREADLE_RESOURCE_EXHAUSTED, "out of memory", /*out_of_memory=*/true};

inline treadle_status* status_of(treadle_code code, const char* message, bool out_of_memory = false) noexcept {
  try {
    return new treadle_status{{}, code, message, out_of_memory};
  } catch (...) {
    return &last_resort;
  }
}

/// Runs `body`, and converts an exception to a status. Used by call(), which checks arguments first.
template <typename Body>
treadle_status* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const OutOfMemory& error) {
    return status_of(TREADLE_RESOURCE_EXHAUSTED, error.what(), /*out_of_memory=*/true);
  } catch (const Error& error) {
    return status_of(static_cast<treadle_code>(error.code()), error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return status_of(TREADLE_IO_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return &last_resort;
  } catch (const std::exception& error) {
    return status_of(TREADLE_INTERNAL, error.what());
  } catch (...) {
    return status_of(TREADLE_INTERNAL, "an unknown exception");
  }
}

/// Implements a function of the C ABI: checks its arguments, then runs `body`.
template <typename Body>
treadle_status* call(const char* function, std::initializer_list<Argument> arguments, Body&& body) noexcept {
  return guarded([&] {
    expect(function, arguments);
    body();
  });
}

/// Releases the status that a callback returned, and throws it as an exception. NULL means success.
inline void check(treadle_status* status) {
  if (!status) return;
  if (!is_of_kind(status)) throw Error(ErrorCode::invalid_argument, "a callback returned something that is no treadle_status");
  const treadle_status held = status == &last_resort ? last_resort : std::move(*status);
  if (status != &last_resort) delete status;
  if (held.out_of_memory) throw OutOfMemory(held.message);
  throw Error(static_cast<ErrorCode>(held.code), held.message);
}

}  // namespace treadle::c_api
