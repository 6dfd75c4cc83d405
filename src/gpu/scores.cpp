#include "gpu/scores.h"

#include "gpu/shaders.h"

namespace treadle::gpu {

ScoreShader::ScoreShader(Kind kind, DType dtype, kernels::PostTransform transform, const ops::ClassLabels& classes, DeviceData& data)
    : numbers(dtype) {
  const uint32_t constants[] = {static_cast<uint32_t>(transform), static_cast<uint32_t>(kind)};
  shader = find_shader("scores", dtype, constants);
  labels = data.add(classes.ints);
  num_labels = static_cast<int64_t>(classes.ints.size());
  if (kind != Kind::regression) flags |= has_labels;
}

void ScoreShader::dispatch(const Rows& rows, const std::byte* data, void* y, void* chosen) const {
  if (rows.rows == 0) return;
  Push push;
  push.pointer(rows.scores).pointer(data + base).pointer(y).pointer(y).pointer(data + labels).pointer(chosen);
  push.word(flags | (y ? has_y : 0U));
  push_sizes(push, {rows.rows, rows.stride, rows.count, rows.columns, num_base, num_labels});
  stream().dispatch(*shader, push.bytes(), groups_over(count32(rows.rows)));
}

}  // namespace treadle::gpu
