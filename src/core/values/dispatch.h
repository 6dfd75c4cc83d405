// Dispatches from a dtype to a C++ type: calls a generic lambda with the element type.
//   visit_dtype<FloatTypes>(tensor.dtype(), [&]<typename T>() { relu(tensor.data<T>(), n); });
#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/values/built_types.h"
#include "core/values/float_types.h"
#include "treadle/error.h"

namespace treadle {

template <typename... Ts>
struct TypeList {};

namespace detail {
template <typename A, typename B>
struct Concat;
template <typename... As, typename... Bs>
struct Concat<TypeList<As...>, TypeList<Bs...>> {
  using type = TypeList<As..., Bs...>;
};
}  // namespace detail
template <typename A, typename B>
using concat_t = typename detail::Concat<A, B>::type;

using SignedIntegerTypes = TypeList<int8_t, int16_t, int32_t, int64_t>;
using UnsignedIntegerTypes = TypeList<uint8_t, uint16_t, uint32_t, uint64_t>;
using IntegerTypes = concat_t<SignedIntegerTypes, UnsignedIntegerTypes>;
using NativeFloatTypes = TypeList<float, double>;
using FloatTypes = TypeList<float, double, Float16, BFloat16>;
using Float8Types = TypeList<Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0>;
using ComplexTypes = TypeList<std::complex<float>, std::complex<double>>;
/// Types of arithmetic operators: floats of at least 16 bits, integers of at least 8 bits.
using NumericTypes = concat_t<FloatTypes, IntegerTypes>;
/// The types whose elements are whole bytes: all types except packed ones and strings.
using FixedSizeTypes = concat_t<concat_t<NumericTypes, Float8Types>, concat_t<ComplexTypes, TypeList<bool>>>;

namespace detail {
/// The types of a list that this build includes; all types of the list if it includes none of them.
template <typename List>
struct Built;
template <typename... Ts>
struct Built<TypeList<Ts...>> {
  template <typename T>
  using If = std::conditional_t<kIsBuilt<T> || !(kIsBuilt<Ts> || ...), TypeList<T>, TypeList<>>;
  template <typename... Lists>
  struct Joined {
    using type = TypeList<>;
  };
  template <typename First, typename... Rest>
  struct Joined<First, Rest...> : Concat<First, typename Joined<Rest...>::type> {};
  using type = typename Joined<If<Ts>...>::type;
};

[[noreturn]] inline void throw_unsupported_dtype(DType dtype, std::initializer_list<DType> supported) {
  std::string message = "no implementation for " + std::string(name_of(dtype)) + "; there is one for";
  const char* separator = " ";
  for (DType one : supported) message += separator + std::string(name_of(one)), separator = ", ";
  throw Error(ErrorCode::not_implemented, message);
}

template <typename Fn, typename First, typename... Rest, typename... All>
decltype(auto) visit_dtype(DType dtype, Fn&& fn, TypeList<First, Rest...>, TypeList<All...> all) {
  if (dtype == dtype_of<First>) return fn.template operator()<First>();
  if constexpr (sizeof...(Rest) > 0) {
    return visit_dtype(dtype, std::forward<Fn>(fn), TypeList<Rest...>{}, all);
  } else {
    throw_unsupported_dtype(dtype, {dtype_of<All>...});
  }
}
}  // namespace detail

/// Returns fn.template operator()<T>() for the type of `List` whose dtype is `dtype`.
/// @throws Error(not_implemented) naming `dtype` and the dtypes of the list, if it is none of them
template <typename List, typename Fn>
decltype(auto) visit_dtype(DType dtype, Fn&& fn) {
  using Built = typename detail::Built<List>::type;
  return detail::visit_dtype(dtype, std::forward<Fn>(fn), Built{}, Built{});
}

/// Like visit_dtype(), for reading and converting data. Also visits types that a small library does not compute with.
template <typename List, typename Fn>
decltype(auto) visit_any_dtype(DType dtype, Fn&& fn) {
  return detail::visit_dtype(dtype, std::forward<Fn>(fn), List{}, List{});
}

/// Calls fn with an unsigned integer type (complex<double> for 16 bytes) of the element's size. Operators that only move elements need five
/// instances this way, not twenty. @throws Error(not_implemented) for packed types and strings
template <typename Fn>
decltype(auto) visit_element_size(DType dtype, Fn&& fn) {
  if (dtype != DType::string) {
    switch (bits_of(dtype)) {
      case 8: return fn.template operator()<uint8_t>();
      case 16: return fn.template operator()<uint16_t>();
      case 32: return fn.template operator()<uint32_t>();
      case 64: return fn.template operator()<uint64_t>();
      case 128: return fn.template operator()<std::complex<double>>();
      default: break;
    }
  }
  throw Error(ErrorCode::not_implemented, "elements of " + std::string(name_of(dtype)) + " cannot be moved as whole bytes");
}

}  // namespace treadle
