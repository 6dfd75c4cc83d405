// Tables of options: one row per option, with its member, its names in C++, Python and config entries, its type and range, and its meaning.
// Every setter, every check and every list of options in the docs is derived from the rows.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/option_text.h"
#include "treadle/error.h"

namespace treadle {

enum class OptionForm { by_member, object, flag, integer, bytes, real, reals, text, names, extents, devices, choice };

struct OptionChoice {
  std::string_view name;
  int value;
};

/// Describes an option, except for the member that holds its value.
struct OptionInfo {
  std::string_view name{};    ///< name of the C++ member
  std::string_view python{};  ///< Python attribute, if named differently; "name()": a Python method instead; "-": not available in Python
  std::string_view alias{};   ///< ONNX Runtime's config entry with the same meaning
  std::string_view type{};    ///< type as shown in the docs; empty: derived from the form and the range
  OptionText text{};
  /// The range of a number, in the member's unit, including both ends.
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool below_most = false;                                 ///< the range excludes `most`
  double also = std::numeric_limits<double>::quiet_NaN();  ///< one more number that is accepted outside of the range
  bool may_be_unlimited = false;                           ///< the largest value of the type means no limit and is written "unlimited"
  std::string_view empty_means{};                          ///< text by which the docs show an empty value
  std::span<const OptionChoice> choices{};
  std::string_view python_enum{};  ///< class in treadle.enums for the choices; empty: Python takes their names as text
  void (*check_text)(const std::string& value) = nullptr;         ///< throws for a text that is not a valid value
  std::string (*from_alias)(const std::string& value) = nullptr;  ///< translates a value of `alias` to a value of this option
  OptionForm form = OptionForm::by_member;
  bool leaves_graph = false;          ///< the option does not affect the optimized graph, so a compiled model is valid for any value of it
  std::string_view never_compiled{};  ///< reason why sessions with this option neither read nor write compiled models; empty: they do
  /// Returns the contents of the file that a value names, for options whose value is a path. Null: the value itself determines the graph.
  std::string (*content)(const std::string& value) = nullptr;

  // Derived from the other fields by finish().
  bool settable = false;  ///< can be set from a text; false: only from C++ or Python objects
  std::string key{};      ///< config entry that sets the option: "treadle." and `name`; empty: there is none

  bool is_called(std::string_view given) const { return given == name || (settable && !given.empty() && (given == key || given == alias)); }
  /// Returns the type and range as a phrase, such as "number from 1 to 64".
  std::string type_text() const;
  /// Checks a number or text. @throws Error(invalid_argument) for a number outside of the range, or a text that is not a valid value
  void check(double value) const;
  void check(const std::string& value) const;
};

/// The largest number that a text can set: T's largest, but at most that of int64_t.
template <typename T>
inline constexpr int64_t kLargest =
    std::in_range<int64_t>(std::numeric_limits<T>::max()) ? static_cast<int64_t>(std::numeric_limits<T>::max())
                                                          : std::numeric_limits<int64_t>::max();

/// Gives access to a member that is an enumeration, whose values are passed as numbers.
template <typename O>
struct ChoiceMember {
  int (*get)(const O&);
  void (*set)(O&, int value);
};
template <auto Member, typename O>
ChoiceMember<O> choice_member() {
  return {[](const O& o) { return static_cast<int>(o.*Member); },
          [](O& o, int value) { o.*Member = static_cast<std::remove_reference_t<decltype(o.*Member)>>(value); }};
}
/// Gives access to a member that is an object which a text can name. If `set` is null, only a program can set it.
template <typename O>
struct TextMember {
  std::string (*get)(const O&);
  void (*set)(O&, const std::string&);
  bool (*is_set)(const O&) = nullptr;  ///< null: the option counts as set if its text differs from the default's
};
/// Gives access to a member of a struct nested in O.
template <typename O, typename T>
struct PartMember {
  T& (*in)(O&);
};
/// The option has no member: its config entry is stored as it is and read by the part of the library that uses it.
struct ConfigMember {};

/// The kinds of members that an option of O can have. Specialized for an O with nested structs.
template <typename O>
struct OptionMembers {
  using Any = std::variant<bool O::*, int O::*, int64_t O::*, size_t O::*, double O::*, std::string O::*, std::vector<std::string> O::*,
                           std::map<std::string, int64_t> O::*, std::map<std::string, std::string> O::*, ChoiceMember<O>, TextMember<O>,
                           ConfigMember>;
};
template <typename O>
using OptionMember = typename OptionMembers<O>::Any;

template <typename M>
struct MemberValue {
  using Type = void;
};
template <typename O, typename T>
struct MemberValue<T O::*> {
  using Type = T;
};
template <typename O, typename T>
struct MemberValue<PartMember<O, T>> {
  using Type = T;
};
/// The type of the member's value; void if it is accessed through functions.
template <typename M>
using ValueOf = typename MemberValue<M>::Type;
template <typename O, typename T>
T& value_in(O& options, T O::*member) {
  return options.*member;
}
template <typename O, typename T>
T& value_in(O& options, PartMember<O, T> member) {
  return member.in(options);
}
template <typename O, typename M>
const ValueOf<M>& value_in(const O& options, M member) {
  return value_in(const_cast<O&>(options), member);  // value_in only reads the member here
}

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <typename M>
constexpr OptionForm form_of() {
  using T = ValueOf<M>;
  if constexpr (std::is_same_v<M, ConfigMember> || std::is_same_v<T, std::string>)
    return OptionForm::text;
  else if constexpr (std::is_void_v<T>)
    return requires(M member) { member.is_set; } ? OptionForm::object : OptionForm::choice;
  else if constexpr (is_optional<T>)
    return std::is_integral_v<typename T::value_type> ? OptionForm::integer : OptionForm::real;
  else if constexpr (std::is_same_v<T, bool>)
    return OptionForm::flag;
  else if constexpr (std::is_arithmetic_v<T>)
    return std::is_integral_v<T> ? OptionForm::integer : OptionForm::real;
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return OptionForm::names;
  else if constexpr (std::is_same_v<T, std::vector<float>>)
    return OptionForm::reals;
  else
    return std::is_same_v<T, std::map<std::string, int64_t>> ? OptionForm::extents : OptionForm::devices;
}

// These functions parse a value. @throws Error(invalid_argument) that says what is expected
bool parse_flag(const std::string& text);
int64_t parse_integer(const OptionInfo& info, const std::string& text, int64_t largest);
double parse_real(const OptionInfo& info, const std::string& text);
int parse_choice(const OptionInfo& info, const std::string& text);
void check_choice(const OptionInfo& info, int value);
std::vector<float> parse_reals(const OptionInfo& info, const std::string& list);
void add_names(std::vector<std::string>& names, const std::string& list);
void add_extents(std::map<std::string, int64_t>& extents, const std::string& list);
/// Parses a list of pairs and adds them to `pairs`.
/// @param form  format of one pair, for error messages: "NAME=DEVICE"
void add_pairs(std::map<std::string, std::string>& pairs, const std::string& list, std::string_view form);
// These functions format a value as text.
std::string number_text(const OptionInfo& info, int64_t value, int64_t largest);
std::string number_text(const OptionInfo& info, double value);
std::string choice_text(const OptionInfo& info, int value);
std::string reals_text(const std::vector<float>& numbers);
std::string names_text(const std::vector<std::string>& names);
std::string extents_text(const std::map<std::string, int64_t>& extents);
std::string pairs_text(const std::map<std::string, std::string>& pairs);

/// Checks the value of an option that has no member.
/// @throws Error(invalid_argument)
void check_entry(const OptionInfo& info, const std::string& text);

template <typename O>
struct Option : OptionInfo {
  OptionMember<O> member;

  std::string get(const O& options) const {
    return std::visit([&](const auto& m) { return get_member(options, m); }, member);
  }
  /// Returns true if the option's value differs from the one in `defaults`.
  bool is_set(const O& options, const O& defaults) const {
    const auto* text = std::get_if<TextMember<O>>(&member);
    return text && text->is_set ? text->is_set(options) : get(options) != get(defaults);
  }
  /// Sets the option from a text. For a list, the value is appended.
  /// @throws Error that names the option
  void set(O& options, const std::string& value) const {
    named([&] { std::visit([&](const auto& m) { set_member(options, value, m); }, member); });
  }
  /// Checks a value that a program has written to the member directly.
  /// @throws Error(invalid_argument) that names the option
  void check_member(const O& options) const {
    named([&] { std::visit([&](const auto& m) { check_value(options, m); }, member); });
  }

 private:
  template <typename F>
  void named(const F& function) const {
    try {
      function();
    } catch (const Error& error) {
      throw Error(error.code(), "the option " + std::string(name) + ": " + error.what());
    }
  }

  template <typename M>
  std::string get_member(const O& o, const M& m) const {
    if constexpr (std::is_same_v<M, ChoiceMember<O>>) {
      return choice_text(*this, m.get(o));
    } else if constexpr (std::is_same_v<M, TextMember<O>>) {
      return m.get(o);
    } else if constexpr (std::is_same_v<M, ConfigMember>) {
      const auto found = o.config.find(key);
      return found == o.config.end() ? std::string() : found->second;
    } else {
      return text_of(value_in(o, m));
    }
  }
  template <typename T>
  std::string text_of(const T& value) const {
    if constexpr (is_optional<T>)
      return value ? text_of(*value) : std::string();
    else if constexpr (std::is_same_v<T, bool>)
      return value ? "1" : "0";
    else if constexpr (std::is_integral_v<T>)
      return number_text(*this, static_cast<int64_t>(value), kLargest<T>);
    else if constexpr (std::is_same_v<T, double>)
      return number_text(*this, value);
    else if constexpr (std::is_same_v<T, std::string>)
      return value.empty() ? std::string(empty_means) : value;
    else if constexpr (std::is_same_v<T, std::vector<std::string>>)
      return names_text(value);
    else if constexpr (std::is_same_v<T, std::vector<float>>)
      return reals_text(value);
    else if constexpr (std::is_same_v<T, std::map<std::string, int64_t>>)
      return extents_text(value);
    else
      return pairs_text(value);
  }

  template <typename M>
  void set_member(O& o, const std::string& text, const M& m) const {
    if constexpr (std::is_same_v<M, ChoiceMember<O>>) {
      m.set(o, parse_choice(*this, text));
    } else if constexpr (std::is_same_v<M, TextMember<O>>) {
      m.set(o, text);
    } else if constexpr (std::is_same_v<M, ConfigMember>) {
      check_entry(*this, text);
      o.config[key] = text;
    } else {
      take_text(value_in(o, m), text);
    }
  }
  template <typename T>
  void take_text(T& value, const std::string& text) const {
    if constexpr (is_optional<T>) {
      typename T::value_type given{};
      take_text(given, text);
      value = given;
    } else if constexpr (std::is_same_v<T, bool>) {
      value = parse_flag(text);
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(parse_integer(*this, text, kLargest<T>));
    } else if constexpr (std::is_same_v<T, double>) {
      value = parse_real(*this, text);
    } else if constexpr (std::is_same_v<T, std::string>) {
      check(text), value = text;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      add_names(value, text);
    } else if constexpr (std::is_same_v<T, std::vector<float>>) {
      value = parse_reals(*this, text);
    } else if constexpr (std::is_same_v<T, std::map<std::string, int64_t>>) {
      add_extents(value, text);
    } else {
      add_pairs(value, text, "NAME=DEVICE");
    }
  }

  template <typename M>
  void check_value(const O& o, const M& m) const {
    if constexpr (std::is_same_v<M, ConfigMember>) {
      if (const auto found = o.config.find(key); found != o.config.end()) check_entry(*this, found->second);
    } else if constexpr (std::is_same_v<M, ChoiceMember<O>>) {
      check_choice(*this, m.get(o));
    } else if constexpr (!std::is_void_v<ValueOf<M>>) {
      check_one(value_in(o, m));
    }
  }
  template <typename T>
  void check_one(const T& value) const {
    if constexpr (is_optional<T>) {
      if (value) check_one(*value);
    } else if constexpr (std::is_same_v<T, std::vector<float>>) {
      for (float each : value) check(static_cast<double>(each));
    } else if constexpr (std::is_same_v<T, std::string>) {
      check(value);
    } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      if (!may_be_unlimited || value != std::numeric_limits<T>::max()) check(static_cast<double>(value));
    }
  }
};

/// Fills in the fields that are derived from each row's member.
template <typename O>
std::vector<Option<O>> finish(std::vector<Option<O>> rows) {
  for (Option<O>& row : rows) {
    const bool has_setter = std::visit(
        [](const auto& member) {
          if constexpr (requires { member.set; })
            return member.set != nullptr;
          else
            return true;
        },
        row.member);
    row.settable = row.form != OptionForm::object && has_setter;
    if (row.form == OptionForm::by_member)
      row.form = std::visit([](const auto& member) { return form_of<std::remove_cvref_t<decltype(member)>>(); }, row.member);
    if constexpr (requires(O& options) { options.config; })
      if (row.settable) row.key = "treadle." + std::string(row.name);
  }
  return rows;
}

/// The rows of a table without the members that hold their values, for functions that are independent of O.
using OptionInfos = std::vector<const OptionInfo*>;

/// Checks the key of a config entry. @throws Error(not_found) for an unknown key that begins with "treadle.", and for an option's name
/// without "treadle.", which would have no effect. The error suggests the nearest key.
void check_config_key(const OptionInfos& table, std::string_view key);
/// Returns the index of the option with this name, key or alias. @throws Error(not_found) that suggests the nearest name
size_t option_named(const OptionInfos& table, std::string_view name);
/// Checks the length of a config entry's key.
/// @throws Error(invalid_argument) if it is empty or too long
void check_key_length(const std::string& key);

/// Returns the table in Markdown, for docs/options.md. @param defaults  the default value of each row, as text
std::string options_markdown(const OptionInfos& table, const std::vector<std::string>& defaults);

/// The table of the options in O, which is a struct of options.
template <typename O>
class OptionTable {
 public:
  explicit OptionTable(std::vector<Option<O>> rows) : rows_(finish(std::move(rows))) {
    for (const Option<O>& row : rows_) infos_.push_back(&row);
  }
  OptionTable(const OptionTable&) = delete;
  OptionTable& operator=(const OptionTable&) = delete;

  std::span<const Option<O>> rows() const { return rows_; }

  void set(O& options, std::string_view name, const std::string& value) const {
    const Option<O>& row = rows_[option_named(infos_, name)];
    row.set(options, name == row.alias && row.from_alias ? row.from_alias(value) : value);
  }

  /// Checks the value of every option.
  /// @throws Error(invalid_argument) that names the option
  void check(const O& options) const {
    for (const Option<O>& row : rows_) row.check_member(options);
  }

  /// Stores the config entry, and sets the option that it names, if any.
  void add_entry(O& options, const std::string& key, const std::string& value) const {
    check_key_length(key);
    if (const Option<O>* row = row_of(key)) set(options, key, value);
    options.config[key] = value;
  }

  /// Applies the config entries stored in `options` to options that still have their default, then checks every option.
  void complete(O& options, const O& defaults) const {
    const std::map<std::string, std::string> config = options.config;
    for (const auto& [key, value] : config)
      if (const Option<O>* row = row_of(key); row && !row->is_set(options, defaults)) set(options, key, value);
    check(options);
  }

  /// Checks a key. @throws Error(not_found) for an unknown key that begins with "treadle."
  void check_key(std::string_view key) const { check_config_key(infos_, key); }

  /// Returns the table in Markdown, for docs/options.md.
  std::string markdown(const O& defaults) const {
    std::vector<std::string> texts;
    for (const Option<O>& row : rows_) texts.push_back(row.get(defaults));
    return options_markdown(infos_, texts);
  }

 private:
  // Returns the row of a key. Null: the key belongs to no option of the table, such as another library's entry.
  const Option<O>* row_of(std::string_view key) const {
    check_key(key);
    for (const Option<O>& row : rows_)
      if (row.settable && (row.key == key || row.alias == key)) return &row;
    return nullptr;
  }

  std::vector<Option<O>> rows_;
  OptionInfos infos_;
};

}  // namespace treadle
