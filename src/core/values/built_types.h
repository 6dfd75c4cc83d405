// The element types and functions that this build of the library contains.
#pragma once

#include <cstddef>

#include "treadle/dtype.h"
#include "treadle/tensor.h"

namespace treadle {

/// True if operators are built for the type. All types are, except in a small library that has only the types of its models
/// (TREADLE_BUILT_DTYPES, set by cmake/training_runtime.cmake).
#ifdef TREADLE_BUILT_DTYPES
template <typename T>
inline constexpr bool kIsBuilt = [] {
  for (DType built : {TREADLE_BUILT_DTYPES})
    if (built == dtype_of<T>) return true;
  return false;
}();
#else
template <typename T>
inline constexpr bool kIsBuilt = true;
#endif

/// A pointer to a function that only differentiation and export use. The small library does neither, so it stores no pointer, and the
/// linker drops the functions.
#ifdef TREADLE_TRAINING_RUNTIME
template <typename Fn>
struct TrainingFunction {
  constexpr TrainingFunction(std::nullptr_t = nullptr) {}
  constexpr TrainingFunction(Fn* /*function*/) {}
  constexpr operator Fn*() const { return nullptr; }
};
#else
template <typename Fn>
using TrainingFunction = Fn*;
#endif

}  // namespace treadle
