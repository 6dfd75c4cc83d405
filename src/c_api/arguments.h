// Checks the arguments of a C ABI function before the function does anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>

#include "treadle/treadle.h"

namespace treadle::c_api {

/// The first member of every handle. Identifies the handle's kind (model, value, session ...) to detect wrong handles.
template <typename T>
struct Handle {
  static constexpr char kKind = 0;  // the kind is the address of this variable
  const void* kind = &kKind;
};

/// Makes a handle whose members are constructed from `parts`.
template <typename T, typename... Parts>
std::unique_ptr<T> make(Parts&&... parts) {
  return std::unique_ptr<T>(new T{{}, std::forward<Parts>(parts)...});
}

/// Returns true if the handle is of kind T. Every handle begins with its kind, so the kind can be read from any handle.
template <typename T>
bool is_of_kind(const T* handle) noexcept {
  const void* kind = nullptr;
  std::memcpy(&kind, static_cast<const void*>(handle), sizeof kind);
  return kind == &Handle<T>::kKind;
}

/// For functions that return no status: returns body(handle), or `otherwise` if the handle is NULL or of another kind, or if body throws.
template <typename Result, typename T, typename Body>
Result asked(T* handle, std::type_identity_t<Result> otherwise, Body&& body) noexcept {
  if (!handle || !is_of_kind(handle)) return otherwise;
  try {
    return body(*handle);
  } catch (...) {
    return otherwise;
  }
}

/// For functions that release a handle. A handle of another kind is ignored.
template <typename T>
void dispose(T* handle) noexcept {
  if (handle && is_of_kind(handle)) delete handle;
}

/// The result of checking one argument. It owns no memory, so that the check itself cannot fail.
struct Argument {
  enum class Fault : uint8_t { none, null, other_kind, too_many, number, struct_size };

  const char* name = "";
  Fault fault = Fault::none;
  int64_t place = -1;         ///< index of the faulty element, if the argument is a list
  const char* field = "";     ///< name of the faulty field of a struct (or of that element), such as ".key"
  int64_t number = 0;         ///< the number that was passed
  const char* expected = "";  ///< expected value or type
  bool faulty() const noexcept { return fault != Fault::none; }
};

/// Throws for the first faulty argument. @throws Error(invalid_argument) naming the function and the argument
void expect(const char* function, std::initializer_list<Argument> arguments);

/// Checks a pointer that must not be NULL: a string, memory for a result, a callback.
inline Argument needed(bool given, const char* name) noexcept {
  return {.name = name, .fault = given ? Argument::Fault::none : Argument::Fault::null};
}
template <typename T>
Argument needed(const T* pointer, const char* name) noexcept {
  return needed(pointer != nullptr, name);
}

template <typename T>
Argument handle_or_null(const T* handle, const char* name) noexcept {
  return {.name = name, .fault = !handle || is_of_kind(handle) ? Argument::Fault::none : Argument::Fault::other_kind};
}
template <typename T>
Argument handle(const T* given, const char* name) noexcept {
  return given ? handle_or_null(given, name) : needed(given, name);
}

/// Checks a list of `count` elements with this size. NULL is allowed only if `count` is 0.
Argument list_of_bytes(const void* elements, size_t count, size_t element_bytes, const char* name) noexcept;
template <typename T>
Argument list(const T* elements, size_t count, const char* name) noexcept {
  return list_of_bytes(elements, count, sizeof(T), name);  // NOLINT(bugprone-sizeof-expression): elements may be pointers
}

/// Checks a list, and each element with `look`, which returns an Argument.
template <typename T, typename Look>
Argument list_of(const T* elements, size_t count, const char* name, const Look& look) noexcept {
  Argument found = list(elements, count, name);
  for (size_t i = 0; i < count && !found.faulty(); ++i) {
    found = look(elements[i]);
    found.name = name;
    found.place = static_cast<int64_t>(i);
  }
  return found;
}
Argument each_text(const char* const* elements, size_t count, const char* name) noexcept;
Argument each_entry(const treadle_config_entry* elements, size_t count, const char* name) noexcept;
Argument each_value(const treadle_value* const* elements, size_t count, const char* name) noexcept;
Argument each_value_or_null(const treadle_value* const* elements, size_t count, const char* name) noexcept;

/// Returns the first faulty argument; if there is none, an argument without a fault.
Argument first_fault(std::initializer_list<Argument> arguments) noexcept;

/// Checks that a number is in [low, high]. @param expected  text for the error, such as "0 or 1"
Argument within(int64_t number, int64_t low, int64_t high, const char* name, const char* expected) noexcept;
/// Reads an enum as a number: C callers may pass any number, but in C++ reading a number outside the enum is undefined.
template <typename Enum>
int32_t as_number(const Enum& given) noexcept {
  int32_t number = 0;
  static_assert(sizeof number == sizeof given);
  std::memcpy(&number, &given, sizeof number);
  return number;
}
Argument known_dtype(const treadle_dtype& given, const char* name) noexcept;
Argument known_memory_class(int32_t given) noexcept;

constexpr size_t kMaxStructSize = 4096;  // larger than any struct of the header: a larger size means that the caller did not set it

/// Checks a struct in which the caller states its size. The size must be at least that of the first version. needed() checks for NULL.
template <typename Struct>
Argument sized(const Struct* given, size_t first_version, const char* name) noexcept {
  if (!given || (given->struct_size >= first_version && given->struct_size <= kMaxStructSize && given->struct_size % alignof(Struct) == 0))
    return {.name = name};
  return {.name = name, .fault = Argument::Fault::struct_size, .field = ".struct_size", .number = static_cast<int64_t>(given->struct_size)};
}

/// Copies the caller's struct. Programs built with older headers have shorter structs; the members that they lack become zero.
template <typename Struct>
Struct whole(const Struct* given, size_t first_version) noexcept {
  Struct all{};
  if (given && !sized(given, first_version, "").faulty())
    std::memcpy(static_cast<void*>(&all), given, given->struct_size < sizeof all ? given->struct_size : sizeof all);
  return all;
}

/// Sets results to NULL. Functions call it first, so that results are NULL if an error follows.
void clear(treadle_value** outputs, size_t count) noexcept;

}  // namespace treadle::c_api
