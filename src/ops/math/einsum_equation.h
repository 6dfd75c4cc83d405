// Parses the equation of an Einsum.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/attributes.h"
#include "treadle/error.h"
#include "treadle/shape.h"

namespace treadle::ops::equations {

// Labels are numbers. Letters have 0 to 51 (A to Z, then a to z); the axes that "..." stands for have numbers from kEllipsisLabel on,
// counted from the last of these axes.
inline constexpr int kEllipsisLabel = 52, kNumLabels = kEllipsisLabel + kMaxRank, kEllipsis = -1;

/// The labels of an operand's axes. kEllipsis represents the text "...".
using Term = std::vector<int>;

struct Equation {
  std::vector<Term> inputs;
  Term output;
};

inline int label_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return 26 + c - 'a';
  throw Error(ErrorCode::invalid_argument, fmt::format("the equation contains '{}'", c));
}

inline Term parse_term(std::string_view text) {
  Term term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '.') {
      term.push_back(label_of(text[i]));
    } else if (text.substr(i, 3) == "..." && std::find(term.begin(), term.end(), kEllipsis) == term.end()) {
      term.push_back(kEllipsis);
      i += 2;
    } else {
      throw Error(ErrorCode::invalid_argument, fmt::format("the term \"{}\" has dots that are no ellipsis", text));
    }
  }
  return term;
}

inline bool has_ellipsis(const Term& term) { return std::find(term.begin(), term.end(), kEllipsis) != term.end(); }

// Returns the output's labels for an equation without "->": the ellipsis, then in alphabetical order the labels that occur only once.
inline Term implicit_output(const std::vector<Term>& inputs) {
  int counts[kEllipsisLabel] = {};
  Term output;
  for (const Term& term : inputs) {
    if (has_ellipsis(term)) output = {kEllipsis};
    for (int label : term)
      if (label != kEllipsis) ++counts[label];
  }
  for (int label = 0; label < kEllipsisLabel; ++label)
    if (counts[label] == 1) output.push_back(label);
  return output;
}

inline Equation parse_equation(std::string_view given) {
  std::string text;
  for (char c : given)
    if (c != ' ') text += c;
  Equation equation;
  const size_t arrow = text.find("->");
  std::string_view left = std::string_view(text).substr(0, arrow);
  for (;;) {
    const size_t comma = left.find(',');
    equation.inputs.push_back(parse_term(left.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    left.remove_prefix(comma + 1);
  }
  equation.output = arrow == std::string::npos ? implicit_output(equation.inputs) : parse_term(std::string_view(text).substr(arrow + 2));
  for (size_t i = 0; i < equation.output.size(); ++i) {
    const int label = equation.output[i];
    const auto has = [&](const Term& term) { return std::find(term.begin(), term.end(), label) != term.end(); };
    if (std::find(equation.output.begin(), equation.output.begin() + static_cast<std::ptrdiff_t>(i), label) !=
        equation.output.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(ErrorCode::invalid_argument, fmt::format("the output of the equation \"{}\" repeats a label", given));
    if (label != kEllipsis && std::none_of(equation.inputs.begin(), equation.inputs.end(), has))
      throw Error(ErrorCode::invalid_argument, fmt::format("the output of the equation \"{}\" has a label that no input has", given));
  }
  return equation;
}

/// Calls fn(axis, label) for each axis of an operand. @throws Error(invalid_argument) if the term has a different number of axes.
template <typename Fn>
void for_each_axis(const Term& term, int rank, Fn&& fn) {
  const int named = static_cast<int>(std::count_if(term.begin(), term.end(), [](int label) { return label != kEllipsis; }));
  const bool elided = named != static_cast<int>(term.size());
  if (elided ? named > rank : named != rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("an operand of rank {} for a term of {} labels", rank, named));
  int axis = 0;
  for (int label : term) {
    if (label != kEllipsis)
      fn(axis++, label);
    else
      for (int left = rank - named; left > 0; --left) fn(axis++, kEllipsisLabel + left - 1);
  }
}

/// The number of axes that "..." represents. It is the same in every term of an equation.
class Elided {
 public:
  /// Records how many axes "..." represents in a term. @throws Error(invalid_argument) if another term had a different number.
  void take(const Term& term, int rank) {
    if (!has_ellipsis(term)) return;
    const int own = rank - static_cast<int>(term.size()) + 1;
    if (rank_ && *rank_ != own)
      throw Error(ErrorCode::invalid_argument, fmt::format("an ellipsis stands for {} axes and for {}", *rank_, own));
    rank_ = own;
  }
  int rank() const { return rank_.value_or(0); }

 private:
  std::optional<int> rank_;
};

/// Returns the first axis before `axis` that has the same label; -1 if there is none.
inline int earlier_axis(const Term& labels, int axis) {
  for (int i = 0; i < axis; ++i)
    if (labels[static_cast<size_t>(i)] == labels[static_cast<size_t>(axis)]) return i;
  return -1;
}

inline Term expand(const Term& term, int rank) {
  Term labels;
  for_each_axis(term, rank, [&](int, int label) { labels.push_back(label); });
  return labels;
}

inline Equation equation_of(const Attributes& attributes, int num_inputs) {
  Equation equation = parse_equation(attributes.get_string("equation"));
  if (static_cast<int>(equation.inputs.size()) != num_inputs)
    throw Error(ErrorCode::invalid_argument, fmt::format("the equation has {} terms for {} operands", equation.inputs.size(), num_inputs));
  return equation;
}

}  // namespace treadle::ops::equations
