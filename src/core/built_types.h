// What this build of the library has of the operators.
#pragma once

#include <cstddef>

#include "treadle/dtype.h"

namespace treadle {

/// Whether operators compute with elements of the type: with all, unless a small library names those that its models have
/// (TREADLE_BUILT_DTYPES, from cmake/training_runtime.cmake).
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

/// A function of operators that only differentiation and export read. The small library, which does neither, keeps none of them, so that
/// the linker drops what they point to.
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
