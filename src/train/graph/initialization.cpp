#include "train/graph/initialization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/nearest.h"
#include "core/base/pattern.h"
#include "train/graph/random.h"
#include "train/graph/training_graph.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

constexpr std::pair<std::string_view, Initializer> kInitializers[] = {
    {"zeros", Initializer::zeros},
    {"ones", Initializer::ones},
    {"normal", Initializer::normal},
    {"uniform", Initializer::uniform},
    {"xavier_normal", Initializer::xavier_normal},
    {"xavier_uniform", Initializer::xavier_uniform},
    {"kaiming_normal", Initializer::kaiming_normal},
    {"kaiming_uniform", Initializer::kaiming_uniform},
};

bool counts_inputs(Initializer initializer) { return initializer >= Initializer::xavier_normal; }
bool is_uniform(Initializer initializer) {
  return initializer == Initializer::uniform || initializer == Initializer::xavier_uniform || initializer == Initializer::kaiming_uniform;
}

/// Returns the standard deviation for a normal initializer, or the bound b of [-b, b] for a uniform one.
double spread_of(const Initialization& how, const std::string& name, const Shape& shape, bool transposed) {
  if (!counts_inputs(how.initializer)) return how.scale;
  if (shape.rank() < 2)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("initialization: \"{}\" is {}; xavier and kaiming take weights of rank 2 or more", name, to_string(shape)));
  const double window = static_cast<double>(shape.product(2, shape.rank()));
  const double outputs = window * static_cast<double>(shape[transposed ? 1 : 0]),
               inputs = window * static_cast<double>(shape[transposed ? 0 : 1]);
  const bool is_xavier = how.initializer == Initializer::xavier_normal || how.initializer == Initializer::xavier_uniform;
  return how.scale * std::sqrt(2 / (is_xavier ? inputs + outputs : inputs)) * (is_uniform(how.initializer) ? std::numbers::sqrt3 : 1);
}

void fill(const Tensor& tensor, const Initialization& how, double spread, RandomNumbers& random) {
  for (float& element : tensor.span<float>()) {
    switch (how.initializer) {
      case Initializer::zeros: element = 0; break;
      case Initializer::ones: element = 1; break;
      default: element = static_cast<float>(spread * (is_uniform(how.initializer) ? random.uniform() : random.normal()));
    }
  }
}

}  // namespace

Initializer initializer_named(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [each, initializer] : kInitializers) {
    if (each == name) return initializer;
    names.emplace_back(each);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no initializer \"{}\"; the nearest: {}; all: {}", name,
                                                       nearest_names(name, names), fmt::join(names, ", ")));
}

std::string_view name_of(Initializer initializer) {
  for (const auto& [name, each] : kInitializers)
    if (each == initializer) return name;
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no initializer {}", static_cast<int>(initializer)));
}

void initialize(const NamedTensors& parameters, const TrainerOptions& options, const std::set<std::string>& transposed) {
  for (const Initialization& how : options.initialization) {
    for (const std::string& pattern : how.parameters) {
      if (std::any_of(parameters.begin(), parameters.end(), [&](const auto& named) { return matches(pattern, named.first); })) continue;
      std::vector<std::string> names;
      for (const auto& [name, tensor] : parameters) names.push_back(name);
      throw Error(ErrorCode::not_found, fmt::format("initialization: \"{}\" matches no trained parameter; the nearest: {}", pattern,
                                                    nearest_names(pattern, names)));
    }
  }
  RandomNumbers random(options.initialization_seed);
  for (const auto& [name, tensor] : parameters) {
    const auto how = std::find_if(options.initialization.begin(), options.initialization.end(),
                                  [&, &name = name](const Initialization& each) { return matches_any(each.parameters, name); });
    if (how == options.initialization.end()) continue;
    fill(tensor, *how, spread_of(*how, name, tensor.shape(), transposed.contains(name)), random);
  }
}

}  // namespace treadle::train
