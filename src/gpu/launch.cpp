#include "gpu/launch.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu/shader_writer.h"
#include "treadle/error.h"

namespace treadle::gpu {

std::array<uint32_t, 3> groups_over(uint32_t num_elements) {
  return groups_for(num_elements / ShaderWriter::kGroupSize + (num_elements % ShaderWriter::kGroupSize != 0));
}

std::array<uint32_t, 3> groups_for(int64_t count) {
  const uint32_t groups = count32(count);
  return {std::min(groups, ShaderWriter::kGroupsInRow), groups / ShaderWriter::kGroupsInRow + (groups % ShaderWriter::kGroupsInRow != 0),
          1};
}

uint32_t count32(int64_t num_elements) {
  if (num_elements > INT32_MAX)
    throw Error(ErrorCode::not_implemented, fmt::format("the GPU's kernels count to {} elements; there are {}", INT32_MAX, num_elements));
  return static_cast<uint32_t>(num_elements);
}

int32_t signed32(int64_t number) {
  const auto result = static_cast<int32_t>(number);
  if (result != number)
    throw Error(ErrorCode::not_implemented, fmt::format("the GPU's kernels have numbers of 32 bits; there is {}", number));
  return result;
}

void push_window(Push& push, std::initializer_list<const int64_t (*)[3]> numbers) {
  for (const int64_t(*const of_axes)[3] : numbers)
    for (const int64_t value : *of_axes) push.word(signed32(value));
}

void push_plane(Push& push, const kernels::Window& w) {
  for (const auto* const of_axes : {&w.in, &w.out, &w.kernel, &w.stride, &w.dilation, &w.pad_begin})
    for (const int axis : {1, 2}) push.word(signed32((*of_axes)[axis]));
}

void check_space_rank(int rank) {
  if (rank > kMaxSpaceRank)
    throw Error(ErrorCode::not_implemented, fmt::format("operands that lie in more than {} dimensions on the GPU", kMaxSpaceRank));
}

void push_extents(Push& push, int rank, const int64_t* dims) {
  check_space_rank(rank);
  for (int axis = 1; axis < rank; ++axis) push.word(static_cast<uint32_t>(dims[axis]));
}

}  // namespace treadle::gpu
