// The activations that fused operators of the treadle domain take as an attribute, by name.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "kernels/elementwise/unary_f32.h"
#include "treadle/error.h"

namespace treadle::ops {

struct ActivationName {
  std::string_view name;
  kernels::Unary unary;
};
inline constexpr std::array kActivationNames{
    ActivationName{"none", kernels::Unary::none},
    ActivationName{"relu", kernels::Unary::relu},
    ActivationName{"clip", kernels::Unary::clip},
    ActivationName{"leaky_relu", kernels::Unary::leaky_relu},
    ActivationName{"sigmoid", kernels::Unary::sigmoid},
    ActivationName{"hard_sigmoid", kernels::Unary::hard_sigmoid},
    ActivationName{"tanh", kernels::Unary::tanh},
    ActivationName{"elu", kernels::Unary::elu},
    ActivationName{"gelu", kernels::Unary::gelu},
    ActivationName{"silu", kernels::Unary::silu},
    ActivationName{"hard_swish", kernels::Unary::hard_swish},
    ActivationName{"scaled_hard_swish", kernels::Unary::scaled_hard_swish},
    ActivationName{"mish", kernels::Unary::mish},
    ActivationName{"softplus", kernels::Unary::softplus},
};

/// @throws Error(invalid_model) for a name that is none of them.
inline kernels::Unary activation_named(std::string_view name) {
  const auto* found =
      std::find_if(kActivationNames.begin(), kActivationNames.end(), [&](const ActivationName& a) { return a.name == name; });
  if (found == kActivationNames.end()) throw Error(ErrorCode::invalid_model, "activation is \"" + std::string(name) + "\"");
  return found->unary;
}

}  // namespace treadle::ops
