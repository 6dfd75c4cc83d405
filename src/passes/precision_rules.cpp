// Parses the session option `precision`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/pattern.h"
#include "passes/precision.h"
#include "treadle/error.h"

namespace treadle::passes {

PrecisionRules PrecisionRules::parse(std::string_view text) {
  PrecisionRules rules;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    const std::string_view entry = text.substr(begin, end - begin);
    begin = end + 1;
    if (entry.empty()) continue;
    const size_t equals = entry.rfind('=');  // from the end, because node names may contain '=' but precisions may not
    const std::string_view name = equals == std::string_view::npos ? entry : entry.substr(equals + 1);
    const std::optional<ops::Precision> precision = ops::precision_named(name);
    if (!precision || equals == 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("\"{}\" is given, PRECISION or PATTERN=PRECISION is expected, a precision being {}", entry,
                              fmt::join(ops::kPrecisionNames, ", ")));
    rules.entries_.push_back({equals == std::string_view::npos ? "*" : std::string(entry.substr(0, equals)), *precision});
  }
  return rules;
}

bool PrecisionRules::empty() const {
  return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.precision == ops::Precision::float32; });
}

bool PrecisionRules::names(ops::Precision precision) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.precision == precision; });
}

ops::Precision PrecisionRules::of(const Node& node) const {
  ops::Precision precision = ops::Precision::float32;
  for (const Entry& entry : entries_) {
    const bool is_meant = matches(entry.pattern, node.name) || std::any_of(node.sources.begin(), node.sources.end(),
                                                                           [&](const auto& name) { return matches(entry.pattern, name); });
    if (is_meant) precision = entry.precision;
  }
  return precision;
}

}  // namespace treadle::passes
