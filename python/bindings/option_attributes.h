// Adds Python attributes to a class of options, one for each row of a table of options.
#pragma once

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cctype>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "bindings.h"
#include "session/option_table.h"

namespace treadle::python {

nb::object enum_value(const char* name, int value);
/// Returns the number of an enumerator. Also accepts plain numbers, which ONNX Runtime refuses.
int enum_number(const char* name, nb::handle value);

/// Returns the row's text and type as a sentence, for a docstring.
std::string sentence(const OptionInfo& row);
inline std::string python_name(const OptionInfo& row) { return std::string(row.python.empty() ? row.name : row.python); }

template <typename T>
inline constexpr bool is_list = std::is_same_v<T, std::vector<std::string>> || std::is_same_v<T, std::vector<float>>;

template <typename T>
nb::object read_only(const T& list) {
  if constexpr (is_list<T>)
    return nb::tuple(nb::cast(list));
  else
    return nb::module_::import_("types").attr("MappingProxyType")(nb::cast(list));
}

// Returns the Python type of the list or map that the getter returns. It is read-only, because changes of a copy would have no effect.
template <typename T>
constexpr const char* view_type() {
  if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return "collections.abc.Sequence[str]";
  else if constexpr (std::is_same_v<T, std::vector<float>>)
    return "collections.abc.Sequence[float]";
  else if constexpr (std::is_same_v<T, std::map<std::string, int64_t>>)
    return "collections.abc.Mapping[str, int]";
  else
    return "collections.abc.Mapping[str, str]";
}

inline std::string signature(std::string_view name, std::string_view type) {
  return "def " + std::string(name) + "(self) -> " + std::string(type);
}
/// Returns the signature of a setter. The script cmake/write_keywords.py takes the type of the keyword from this signature.
inline std::string setter_signature(std::string_view name, std::string_view type) {
  return "def " + std::string(name) + "(self, arg: " + std::string(type) + ", /) -> None";
}

/// Returns a map for each option of the table: its name, its keyword in Python, its type, its default and its meaning.
template <typename O>
std::vector<std::map<std::string, std::string>> list_options(const OptionTable<O>& table) {
  std::vector<std::map<std::string, std::string>> rows;
  for (const Option<O>& row : table.rows())
    rows.push_back({{"name", std::string(row.name)},
                    {"keyword", python_name(row)},
                    {"type", row.type_text()},
                    {"default", row.get({})},
                    {"text", sentence(row)}});
  return rows;
}

/// Adds an attribute to `cls` for each row of the table, if `cls` has none for the row. @tparam Object  the C++ type of the Python class
template <typename O, typename Object>
class Attributes {
 public:
  Attributes(nb::class_<Object>& cls, const OptionTable<O>& table) : cls_(cls), table_(table) {}

  std::string doc(std::string_view name) const {
    for (const Option<O>& row : table_.rows())
      if (row.name == name) return sentence(row);
    throw Error(ErrorCode::internal, "there is no option " + std::string(name));
  }

  void add_rows() {
    for (const Option<O>& row : table_.rows()) {
      const std::string name = python_name(row);
      if (name == "-" || name.ends_with("()") || nb::hasattr(cls_, name.c_str())) continue;
      std::visit([&](const auto& member) { add(name, row, member); }, row.member);
    }
  }

 private:
  template <typename M>
  void add(const std::string& name, const Option<O>& row, const M& member) {
    using T = ValueOf<M>;
    if constexpr (std::is_same_v<M, ChoiceMember<O>>)
      add_choice(name, row, member);
    else if constexpr (std::is_same_v<M, TextMember<O>>)
      add_text(name, row);
    else if constexpr (std::is_void_v<T>)
      throw Error(ErrorCode::internal, "no attribute is made of the option " + name);
    else if (std::is_same_v<T, std::string> && row.type == "path")
      add_path(name, row, member);
    else if constexpr (std::is_arithmetic_v<T> || is_optional<T> || std::is_same_v<T, std::string>)
      cls_.def_prop_rw(
          name.c_str(), [member](const Object& options) { return value_in<O>(options, member); }, setter<T>(row, member),
          sentence(row).c_str());
    else
      cls_.def_prop_rw(
          name.c_str(), [member](const Object& options) { return read_only(value_in<O>(options, member)); }, setter<T>(row, member),
          nb::for_getter(nb::sig(signature(name, view_type<T>()).c_str())), sentence(row).c_str());
  }

  // Returns a setter for the option. If the setter refuses a value that is out of range, the option keeps its former value.
  template <typename Given, typename M>
  static auto setter(const Option<O>& row, const M& member) {
    return [member, &row](Object& options, Given value) {
      auto& place = value_in<O>(options, member);
      auto before = std::exchange(place, std::move(value));
      try {
        row.check_member(options);
      } catch (...) {
        place = std::move(before);
        throw;
      }
    };
  }
  template <typename M>
  void add_path(const std::string& name, const Option<O>& row, const M& member) {
    if constexpr (std::is_same_v<ValueOf<M>, std::string>)
      cls_.def_prop_rw(
          name.c_str(), [member](const Object& options) { return value_in<O>(options, member); },
          setter<std::filesystem::path>(row, member), nb::for_setter(nb::sig(setter_signature(name, "str | os.PathLike[str]").c_str())),
          sentence(row).c_str());
  }
  void add_text(const std::string& name, const Option<O>& row, const std::string& type = "str") {
    cls_.def_prop_rw(
        name.c_str(), [&row](const Object& options) { return row.get(options); },
        [&row](Object& options, const std::string& value) { row.set(options, value); },
        nb::for_setter(nb::sig(setter_signature(name, type).c_str())), sentence(row).c_str());
  }

  // Adds an attribute whose values are enumerators. Programs can also set it by the name of an enumerator.
  void add_choice(const std::string& name, const Option<O>& row, const ChoiceMember<O>& member) {
    std::string names;
    for (const OptionChoice& choice : row.choices) names += (names.empty() ? "\"" : ", \"") + std::string(choice.name) + "\"";
    names = "typing.Literal[" + names + "]";
    if (row.python_enum.empty()) return add_text(name, row, names);
    const char* enum_name = row.python_enum.data();
    const std::string type = "treadle.enums." + std::string(enum_name);
    cls_.def_prop_rw(
        name.c_str(), [member, enum_name](const Object& options) { return enum_value(enum_name, member.get(options)); },
        [&row, member, enum_name](Object& options, nb::handle value) {
          if (nb::isinstance<nb::str>(value))
            row.set(options, nb::cast<std::string>(value));
          else
            member.set(options, enum_number(enum_name, value));
        },
        nb::for_getter(nb::sig(signature(name, type).c_str())),
        nb::for_setter(nb::sig(setter_signature(name, type + " | " + names).c_str())), sentence(row).c_str());
  }

  nb::class_<Object>& cls_;
  const OptionTable<O>& table_;
};

}  // namespace treadle::python
