#include "c_api/arguments.h"

#include <string>

#include "c_api/status.h"
#include "treadle/dtype.h"

namespace treadle::c_api {

namespace {

std::string reason(const Argument& argument) {
  switch (argument.fault) {
    case Argument::Fault::none: break;
    case Argument::Fault::null: return " is NULL";
    case Argument::Fault::other_kind: return " is a handle of another kind";
    case Argument::Fault::too_many:
      return " has " + std::to_string(static_cast<size_t>(argument.number)) + " elements, which is more than memory can hold";
    case Argument::Fault::number: return " is " + std::to_string(argument.number) + "; " + argument.expected + " is expected";
    case Argument::Fault::struct_size:
      return " is not set: it is " + std::to_string(static_cast<size_t>(argument.number)) + ", not the size of the struct";
  }
  return "";
}

Argument value(const treadle_value* given) noexcept { return handle(given, ""); }
Argument value_or_null(const treadle_value* given) noexcept { return handle_or_null(given, ""); }

}  // namespace

void expect(const char* function, std::initializer_list<Argument> arguments) {
  const Argument found = first_fault(arguments);
  if (!found.faulty()) return;
  std::string what = std::string(function) + ": " + found.name;
  if (found.place >= 0) what += "[" + std::to_string(found.place) + "]";
  throw Error(ErrorCode::invalid_argument, what + found.field + reason(found));
}

Argument first_fault(std::initializer_list<Argument> arguments) noexcept {
  for (const Argument& argument : arguments)
    if (argument.faulty()) return argument;
  return {};
}

Argument list_of_bytes(const void* elements, size_t count, size_t element_bytes, const char* name) noexcept {
  if (count > PTRDIFF_MAX / element_bytes) return {.name = name, .fault = Argument::Fault::too_many, .number = static_cast<int64_t>(count)};
  return needed(elements || count == 0, name);
}

Argument each_text(const char* const* elements, size_t count, const char* name) noexcept {
  return list_of(elements, count, name, [](const char* text) { return needed(text, ""); });
}

Argument each_entry(const treadle_config_entry* elements, size_t count, const char* name) noexcept {
  return list_of(elements, count, name, [](const treadle_config_entry& entry) {
    Argument found = needed(entry.key && entry.value, "");
    found.field = entry.key ? ".value" : ".key";
    return found;
  });
}

Argument each_value(const treadle_value* const* elements, size_t count, const char* name) noexcept {
  return list_of(elements, count, name, value);
}
Argument each_value_or_null(const treadle_value* const* elements, size_t count, const char* name) noexcept {
  return list_of(elements, count, name, value_or_null);
}

Argument within(int64_t number, int64_t low, int64_t high, const char* name, const char* expected) noexcept {
  if (number >= low && number <= high) return {.name = name};
  return {.name = name, .fault = Argument::Fault::number, .number = number, .expected = expected};
}

Argument known_dtype(const treadle_dtype& given, const char* name) noexcept {
  return within(as_number(given), TREADLE_FLOAT32, kNumDTypes - 1, name, "a treadle_dtype");
}

Argument known_memory_class(int32_t given) noexcept {
  return within(given, TREADLE_MEMORY_WEIGHTS, TREADLE_MEMORY_OPTIMIZER_STATE, "memory_class", "a treadle_memory_class");
}

void clear(treadle_value** outputs, size_t count) noexcept {
  if (list(outputs, count, "").faulty()) return;
  for (size_t i = 0; i < count; ++i) outputs[i] = nullptr;
}

}  // namespace treadle::c_api
