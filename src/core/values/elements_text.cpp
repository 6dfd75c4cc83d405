#include "core/values/elements_text.h"

#include <fmt/format.h>

#include "core/values/dispatch.h"

namespace treadle {
namespace {

template <typename T>
std::string text_of(const Tensor& tensor) {
  std::string text;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const T element = tensor.data<T>()[i];
    if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
      text += fmt::format("{}{}", i ? "," : "", static_cast<float>(element));
    else
      text += fmt::format("{}{}", i ? "," : "", element);
  }
  return text;
}

}  // namespace

std::string elements_text(const Tensor& tensor) {
  std::string text;
  const auto try_types = [&]<typename... Ts>(TypeList<Ts...>) {
    (void)((tensor.dtype() == dtype_of<Ts> && (text = text_of<Ts>(tensor), true)) || ...);
  };
  try_types(concat_t<NumericTypes, TypeList<bool>>{});
  return text;
}

}  // namespace treadle
