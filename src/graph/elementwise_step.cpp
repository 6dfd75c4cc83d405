#include "graph/elementwise_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "treadle/error.h"

namespace treadle {

ElementwiseStep ElementwiseStep::parse(std::string_view text) {
  ElementwiseStep step;
  auto bad = [&] { return Error(ErrorCode::invalid_model, fmt::format("\"{}\" is no step of a chain", text)); };
  std::string_view rest = text;
  for (bool first = true; !rest.empty(); first = false) {
    const size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t equals = word.find('=');
    auto read = [&](std::string_view digits, auto& number) {
      const auto [stopped, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (error != std::errc() || stopped != digits.data() + digits.size()) throw bad();
    };
    if (first) {
      step.op_type = word;
    } else if (equals != std::string_view::npos) {
      float value = 0;
      read(word.substr(equals + 1), value);
      step.attributes.emplace_back(word.substr(0, equals), value);
    } else {
      size_t operand = 0;
      read(word, operand);
      step.operands.push_back(operand);
    }
  }
  if (step.op_type.empty() || step.operands.empty()) throw bad();
  return step;
}

std::string ElementwiseStep::to_string() const {
  std::string text = op_type;
  for (size_t operand : operands) text += fmt::format(" {}", operand);
  for (const auto& [name, value] : attributes) text += fmt::format(" {}={}", name, value);
  return text;
}

float ElementwiseStep::attribute(std::string_view name, float otherwise) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(), [&](const auto& item) { return item.first == name; });
  return found == attributes.end() ? otherwise : found->second;
}

}  // namespace treadle
