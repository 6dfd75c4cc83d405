#include "kernels/conv/window.h"

#include <string>

#include "treadle/error.h"

namespace treadle::kernels {

Window make_window(std::span<const int64_t> in, std::span<const int64_t> out, std::span<const int64_t> kernel,
                   std::span<const int64_t> strides, std::span<const int64_t> pads, std::span<const int64_t> dilations) {
  const size_t rank = in.size();
  if (rank < 1 || rank > 3)
    throw Error(ErrorCode::not_implemented, "windows over " + std::to_string(rank) + " spatial axes; 1, 2 and 3 are implemented");
  auto check = [&](std::span<const int64_t> values, size_t wanted, const char* name, bool may_be_empty) {
    if (values.size() != wanted && !(may_be_empty && values.empty())) {
      throw Error(ErrorCode::invalid_argument,
                  std::string(name) + " has " + std::to_string(values.size()) + " values, expected " + std::to_string(wanted));
    }
  };
  check(out, rank, "output", false);
  check(kernel, rank, "kernel", false);
  check(strides, rank, "strides", true);
  check(pads, 2 * rank, "pads", true);
  check(dilations, rank, "dilations", true);
  Window w;
  w.rank = static_cast<int>(rank);
  for (size_t i = 0; i < rank; ++i) {
    const size_t at = 3 - rank + i;
    w.in[at] = in[i];
    w.out[at] = out[i];
    w.kernel[at] = kernel[i];
    w.stride[at] = strides.empty() ? 1 : strides[i];
    w.dilation[at] = dilations.empty() ? 1 : dilations[i];
    w.pad_begin[at] = pads.empty() ? 0 : pads[i];
    w.pad_end[at] = pads.empty() ? 0 : pads[rank + i];
    if (w.in[at] < 0 || w.out[at] < 0) throw Error(ErrorCode::invalid_argument, "negative extent of spatial axis " + std::to_string(i));
    if (w.kernel[at] < 1 || w.stride[at] < 1 || w.dilation[at] < 1) {
      throw Error(ErrorCode::invalid_argument, "kernel " + std::to_string(w.kernel[at]) + ", stride " + std::to_string(w.stride[at]) +
                                                   ", dilation " + std::to_string(w.dilation[at]) + " of spatial axis " +
                                                   std::to_string(i) + " must be positive");
    }
  }
  return w;
}

}  // namespace treadle::kernels
