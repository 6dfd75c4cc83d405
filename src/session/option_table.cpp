#include "session/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/base/nearest.h"
#include "sharing/quantities.h"

namespace treadle {
namespace {

[[noreturn]] void throw_option_value(std::string_view value, std::string_view expected) {
  throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" is given, {} is expected", value, expected));
}

std::string number_range(const OptionInfo& info) {
  std::string text;
  if (std::isfinite(info.least))
    text += std::isfinite(info.most) ? fmt::format(" from {}", info.least) : fmt::format(" from {} on", info.least);
  const char* const until = info.below_most ? "and below" : std::isfinite(info.least) ? "to" : "up to";
  if (std::isfinite(info.most)) text += fmt::format(" {} {}", until, info.most);
  if (!std::isnan(info.also)) text += fmt::format(", or {}", info.also);
  if (info.may_be_unlimited) text += ", or unlimited";
  return text;
}

std::vector<std::string_view> choice_names(std::span<const OptionChoice> choices) {
  std::vector<std::string_view> names;
  for (const OptionChoice& choice : choices) names.push_back(choice.name);
  return names;
}

std::string choices_text(const OptionInfo& info, std::string_view last) {
  const std::vector<std::string_view> names = choice_names(info.choices);
  return fmt::format("{}{}{}", fmt::join(names.begin(), names.end() - 1, ", "), last, names.back());
}

std::string expected_text(const OptionInfo& info) {
  if (info.form == OptionForm::choice) return choices_text(info, " or ");
  return info.form == OptionForm::reals ? info.type_text() : "a " + info.type_text();
}

// Splits a list of NAME=VALUE pairs at any of the characters in `separators`.
std::vector<std::pair<std::string, std::string>> pairs_of(const std::string& list, std::string_view separators, std::string_view expected) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t start = 0; start <= list.size();) {
    const size_t end = std::min(list.find_first_of(separators, start), list.size());
    const std::string pair = list.substr(start, end - start);
    start = end + 1;
    if (pair.empty() && !list.empty()) continue;
    const size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) throw_option_value(list, expected);
    pairs.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  return pairs;
}

int64_t whole_number(const std::string& text, std::string_view expected) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) throw_option_value(text, expected);
  return number;
}

template <typename M>
std::string text_of_pairs(const M& pairs) {
  std::string text;
  for (const auto& [name, value] : pairs) text += fmt::format("{}{}={}", text.empty() ? "" : ";", name, value);
  return text;
}

}  // namespace

std::string OptionInfo::type_text() const {
  if (!type.empty()) return std::string(type);
  switch (form) {
    case OptionForm::flag: return "0 or 1";
    case OptionForm::integer: return "whole number" + number_range(*this);
    case OptionForm::real: return "number" + number_range(*this);
    case OptionForm::reals: return "numbers" + number_range(*this) + ", separated by \",\"";
    case OptionForm::bytes: return "size such as 1048576, 512MiB or 2GiB";
    case OptionForm::names: return "names, separated by \";\"";
    case OptionForm::extents: return "NAME=EXTENT, separated by \";\"";
    case OptionForm::devices: return "NAME=DEVICE, separated by \";\"";
    case OptionForm::choice: return choices_text(*this, ", ");
    case OptionForm::text: return "text";
    case OptionForm::object:
    case OptionForm::by_member: break;
  }
  return {};
}

void OptionInfo::check(double value) const {
  if (value == also || (value >= least && (below_most ? value < most : value <= most))) return;
  throw_option_value(fmt::format("{}", value), expected_text(*this));
}

void OptionInfo::check(const std::string& value) const {
  if (check_text && !value.empty()) check_text(value);
}

bool parse_flag(const std::string& text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  throw_option_value(text, "0 or 1");
}

int64_t parse_integer(const OptionInfo& info, const std::string& text, int64_t largest) {
  if (info.may_be_unlimited && text == "unlimited") return largest;
  const int64_t number =
      info.form == OptionForm::bytes ? static_cast<int64_t>(sharing::parse_bytes(text)) : whole_number(text, expected_text(info));
  info.check(static_cast<double>(number));
  if (number > largest || number < -largest - 1) throw_option_value(text, expected_text(info));
  return number;
}

double parse_real(const OptionInfo& info, const std::string& text) {
  if (info.may_be_unlimited && text == "unlimited") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isnan(number)) throw_option_value(text, expected_text(info));
  info.check(number);
  return number;
}

int parse_choice(const OptionInfo& info, const std::string& text) {
  for (const OptionChoice& choice : info.choices)
    if (choice.name == text) return choice.value;
  throw_option_value(text, expected_text(info));
}

void check_choice(const OptionInfo& info, int value) {
  for (const OptionChoice& choice : info.choices)
    if (choice.value == value) return;
  throw_option_value(std::to_string(value), expected_text(info));
}

std::vector<float> parse_reals(const OptionInfo& info, const std::string& list) {
  std::vector<std::string> texts;
  add_names(texts, list);
  std::vector<float> numbers;
  for (const std::string& text : texts) numbers.push_back(static_cast<float>(parse_real(info, text)));
  return numbers;
}

void add_names(std::vector<std::string>& names, const std::string& list) {
  for (size_t start = 0; start < list.size();) {
    const size_t end = std::min(list.find_first_of(";,", start), list.size());
    if (end > start) names.push_back(list.substr(start, end - start));
    start = end + 1;
  }
}

void add_extents(std::map<std::string, int64_t>& extents, const std::string& list) {
  constexpr std::string_view kExpected = "NAME=EXTENT";
  for (const auto& [name, text] : pairs_of(list, ";", kExpected)) {
    const int64_t extent = whole_number(text, kExpected);
    if (extent < 0) throw_option_value(list, kExpected);
    extents[name] = extent;
  }
}

void add_pairs(std::map<std::string, std::string>& pairs, const std::string& list, std::string_view form) {
  for (auto& [name, value] : pairs_of(list, ";,", form)) pairs[name] = value;
}

std::string number_text(const OptionInfo& info, int64_t value, int64_t largest) {
  return info.may_be_unlimited && value == largest ? "unlimited" : std::to_string(value);
}

std::string number_text(const OptionInfo& info, double value) {
  return info.may_be_unlimited && std::isinf(value) ? "unlimited" : fmt::format("{}", value);
}

std::string choice_text(const OptionInfo& info, int value) {
  for (const OptionChoice& choice : info.choices)
    if (choice.value == value) return std::string(choice.name);
  return std::to_string(value);
}

std::string reals_text(const std::vector<float>& numbers) { return fmt::format("{}", fmt::join(numbers, ",")); }
std::string names_text(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ";")); }
std::string extents_text(const std::map<std::string, int64_t>& extents) { return text_of_pairs(extents); }
std::string pairs_text(const std::map<std::string, std::string>& pairs) { return text_of_pairs(pairs); }

void check_entry(const OptionInfo& info, const std::string& text) {
  switch (info.form) {
    case OptionForm::flag: (void)parse_flag(text); break;
    case OptionForm::integer:
    case OptionForm::bytes: (void)parse_integer(info, text, std::numeric_limits<int64_t>::max()); break;
    case OptionForm::real: (void)parse_real(info, text); break;
    default: info.check(text); break;
  }
}

void check_key_length(const std::string& key) {
  constexpr size_t kMaxLength = 1024;  // ONNX Runtime has the same limit
  if (key.empty() || key.size() > kMaxLength)
    throw Error(ErrorCode::invalid_argument, fmt::format("Config key is empty or longer than maximum length {}: the key of a configuration "
                                                         "entry has {} bytes",
                                                         kMaxLength, key.size()));
}

void check_config_key(const OptionInfos& table, std::string_view key) {
  constexpr std::string_view kOurs = "treadle.", kOfSession = "session.";
  if (!key.starts_with(kOurs)) {  // the entry belongs to another library
    const std::string_view name = key.starts_with(kOfSession) ? key.substr(kOfSession.size()) : key;
    for (const OptionInfo* info : table)
      if (info->settable && info->name == name && info->alias != key)
        throw Error(ErrorCode::not_found, fmt::format("there is no config entry \"{}\"; the option's is \"{}\"", key, info->key));
    return;
  }
  std::vector<std::string> keys;
  for (const OptionInfo* info : table) {
    if (!info->settable) continue;
    if (info->key == key) return;
    keys.push_back(info->key);
  }
  throw Error(ErrorCode::not_found, fmt::format("there is no config entry \"{}\"; is it {}?", key, nearest_names(key, keys)));
}

size_t option_named(const OptionInfos& table, std::string_view name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i]->settable) continue;
    if (table[i]->is_called(name)) return i;
    names.emplace_back(name.starts_with("treadle.") ? table[i]->key : table[i]->name);
  }
  throw Error(ErrorCode::not_found,
              fmt::format("there is no option \"{}\"; is it {}? `treadle options` lists all", name, nearest_names(name, names)));
}

std::string options_markdown(const OptionInfos& table, const std::vector<std::string>& defaults) {
  const bool has_entries = std::ranges::any_of(table, [](const OptionInfo* info) { return !info->key.empty(); });
  std::string text = fmt::format("| option | in Python |{} type | default | meaning |\n|---|---|{}---|---|---|\n",
                                 has_entries ? " config entry |" : "", has_entries ? "---|" : "");
  for (size_t i = 0; i < table.size(); ++i) {
    const OptionInfo& info = *table[i];
    const std::string entry = fmt::format(" {}{}{} |", info.key, info.alias.empty() ? "" : ", ", info.alias);
    text += fmt::format("| {} | {} |{} {} | {} | {} |\n", info.name, info.python.empty() ? info.name : info.python,
                        has_entries ? entry : "", info.type_text(), defaults[i], std::string_view(info.text));
  }
  return text;
}

}  // namespace treadle
