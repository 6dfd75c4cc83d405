// Converts structs to JSON and back, for profiles and for sections of recording files. Each struct lists its fields once, for both ways:
//   void fields(auto& v, Thing& thing) { v.must("name", thing.name); v.opt("size", thing.size); }
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "treadle/error.h"

namespace treadle::profile {

using Document = nlohmann::ordered_json;

/// Parses JSON. @param throws  false: for invalid JSON, returns a document of type discarded instead of throwing Document::parse_error.
/// @throws Error(invalid_argument) for text whose arrays or objects are nested too deeply
Document parse_json(std::string_view text, bool throws = true);
/// Formats the document as text, on one line by default. Replaces bytes that are not UTF-8.
std::string to_text(const Document& document, int indent = -1);

[[noreturn]] void throw_damaged(const std::string& what);

/// Returns the result of read(), a function that converts fields of a JSON document. Translates the JSON library's errors.
/// @throws Error(invalid_argument) if the text is not JSON or a field has the wrong type
template <typename Read>
auto reading(const Read& read) {
  try {
    return read();
  } catch (const Document::parse_error& error) {  // its message may contain bytes that are not UTF-8
    throw_damaged("it is no JSON at byte " + std::to_string(error.byte));
  } catch (const Document::exception& error) {
    throw_damaged(error.what());
  }
}

/// Writes the fields of a struct into a JSON object.
struct JsonWriter {
  static constexpr bool kReads = false;
  Document& out;

  template <typename T>
  void must(const char* key, const T& value);
  template <typename T>
  void may(const char* key, const T& value) {
    must(key, value);
  }
  /// Omits a field that is false, empty, null or equal to its default.
  template <typename T>
  void opt(const char* key, const T& value, const T& nothing = {});
};

/// Reads the fields of a struct from a JSON object.
struct JsonReader {
  static constexpr bool kReads = true;
  const Document& in;

  /// Reads a field that must exist. @throws Document::exception if it is missing
  template <typename T>
  void must(const char* key, T& value);
  /// Reads a field that files of older versions may not have.
  template <typename T>
  void may(const char* key, T& value);
  template <typename T>
  void opt(const char* key, T& value, const T& = {}) {
    may(key, value);
  }
};

template <typename T>
concept Plain = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;

/// A JSON object whose keys are data, such as names of nodes, rather than fields of a struct.
template <typename T>
using Named = std::vector<std::pair<std::string, T>>;

template <Plain T>
Document json_of(const T& value) {
  return value;
}
template <typename T>
Document json_of(const std::optional<T>& value);
template <typename T>
Document json_of(const std::vector<T>& values);
template <typename T>
Document json_of(const Named<T>& values);
template <typename A, typename B>
Document json_of(const std::pair<A, B>& pair) {
  return Document::array({pair.first, pair.second});
}
template <typename T>
Document json_of(const T& value) {
  Document json = Document::object();
  JsonWriter writer{json};
  fields(writer, const_cast<T&>(value));  // safe, since a writer changes nothing
  return json;
}
template <typename T>
Document json_of(const std::optional<T>& value) {
  return value ? json_of(*value) : Document();
}
template <typename T>
Document json_of(const std::vector<T>& values) {
  Document list = Document::array();
  for (const T& value : values) list.push_back(json_of(value));
  return list;
}
template <typename T>
Document json_of(const Named<T>& values) {
  Document object = Document::object();
  for (const auto& [name, value] : values) object[name] = json_of(value);
  return object;
}

template <Plain T>
void read_json(const Document& json, T& value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const bool fits = json.is_number_unsigned()  ? std::in_range<T>(json.get<uint64_t>())
                      : json.is_number_integer() ? std::in_range<T>(json.get<int64_t>())
                                                 : false;
    if (!fits) throw_damaged(to_text(json).substr(0, 40) + " stands where a whole number is expected");
  }
  value = json.get<T>();
}
template <typename T>
void read_json(const Document& json, std::optional<T>& value);
template <typename T>
void read_json(const Document& json, std::vector<T>& values);
template <typename T>
void read_json(const Document& json, Named<T>& values);
template <typename A, typename B>
void read_json(const Document& json, std::pair<A, B>& pair) {
  read_json(json.at(0), pair.first);
  read_json(json.at(1), pair.second);
}
template <typename T>
void read_json(const Document& json, T& value) {
  if (!json.is_object()) throw_damaged(to_text(json).substr(0, 40) + " stands where an object is expected");
  JsonReader reader{json};
  fields(reader, value);
}
template <typename T>
void read_json(const Document& json, std::optional<T>& value) {
  if (json.is_null())
    value.reset();
  else
    read_json(json, value.emplace(T{}));
}
template <typename T>
void read_json(const Document& json, std::optional<std::optional<T>>& value) {  // JSON's null is a value here; a missing field is not
  read_json(json, value.emplace());
}
template <typename T>
void read_json(const Document& json, std::vector<T>& values) {
  if (!json.is_array()) throw_damaged(to_text(json).substr(0, 40) + " stands where a list is expected");
  values.reserve(json.size());
  for (const Document& item : json) read_json(item, values.emplace_back());
}
template <typename T>
void read_json(const Document& json, Named<T>& values) {
  for (const auto& [name, item] : json.items()) {
    values.emplace_back(name, T{});
    read_json(item, values.back().second);
  }
}

template <typename T>
void JsonWriter::must(const char* key, const T& value) {
  out[key] = json_of(value);
}
template <typename T>
void JsonWriter::opt(const char* key, const T& value, const T& nothing) {
  if constexpr (requires { value.has_value(); }) {
    if (value.has_value()) must(key, *value);
  } else if constexpr (requires { value.empty(); }) {
    if (!value.empty()) must(key, value);
  } else if (value != nothing) {
    must(key, value);
  }
}
template <typename T>
void JsonReader::must(const char* key, T& value) {
  read_json(in.at(key), value);
}
template <typename T>
void JsonReader::may(const char* key, T& value) {
  if (const auto found = in.find(key); found != in.end()) read_json(*found, value);
}

}  // namespace treadle::profile
