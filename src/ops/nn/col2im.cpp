// Implements Col2Im, which adds up overlapping blocks, given as columns, to an image with any number of spatial axes.
#include "ops/nn/col2im.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/checked.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/conv/col2im.h"
#include "kernels/conv/window.h"
#include "ops/given_shape.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "ops/widen.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

int64_t entry_or(const std::vector<int64_t>& values, size_t i, int64_t otherwise) { return i < values.size() ? values[i] : otherwise; }

void infer_col2im(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) != 3) throw Error(ErrorCode::invalid_argument, fmt::format("the input is of rank {}, not 3", c.rank(0)));
  const auto image = c.known(1), block = c.known(2);
  const auto spatial = image ? std::optional<int64_t>(image->size()) : known_length(c, 1);
  if (!spatial) return c.set_output_dtype(0, c.dtype(0));
  SymbolicShape out = c.data_dependent_shape("image", static_cast<int>(*spatial) + 2);
  if (c.has_rank(0)) {
    out[0] = c.shape(0)[0];
    if (block) {
      for (const Dim& extent : *block)
        if (extent.is_const() && extent.value() < 1)
          throw Error(ErrorCode::invalid_argument, fmt::format("block_shape holds {}; expected 1 or more", extent.value()));
      const Dim area = product(SymbolicShape(*block));
      if (c.shape(0)[1].is_const() && area.is_const() && (area.value() <= 0 || c.shape(0)[1].value() % area.value() != 0))
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{} columns are not a multiple of a block of {}", c.shape(0)[1].value(), area.value()));
      out[1] = floor_div(c.shape(0)[1], area);
    }
  }
  if (image) std::copy(image->begin(), image->end(), out.begin() + 2);
  c.set_output(0, c.dtype(0), std::move(out));
}

template <typename T>
void add_run(const T* from, int64_t count, T* to, int64_t step) {
  auto sum = [](T a, T b) { return static_cast<T>(a + b); };
  if (step == 1)  // a separate loop, which the compiler vectorizes
    for (int64_t i = 0; i < count; ++i) to[i] = sum(to[i], from[i]);
  else
    for (int64_t i = 0; i < count; ++i) to[i * step] = sum(to[i * step], from[i]);
}

}  // namespace

Col2ImPlan Col2ImPlan::bind(const BindContext& c, const Shape& columns, const Shape& output) {
  Col2ImPlan k{};
  k.rank = static_cast<int>(c.value_count(1));
  if (k.rank > kMaxRank || c.value_count(2) != k.rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("image_shape has {} axes, block_shape {}", k.rank, c.value_count(2)));
  k.planes = output[0] * output[1];
  k.image_size = k.block_size = k.num_blocks = 1;
  for (int i = 0; i < k.rank; ++i) {
    const auto at = static_cast<size_t>(i);
    k.image[i] = c.value_at(1, i), k.block[i] = c.value_at(2, i);
    k.strides[i] = entry_or(c.get_ints("strides"), at, 1), k.dilations[i] = entry_or(c.get_ints("dilations"), at, 1);
    k.pads[i] = entry_or(c.get_ints("pads"), at, 0);
    const int64_t after = entry_or(c.get_ints("pads"), at + static_cast<size_t>(k.rank), 0);
    if (k.image[i] < 0 || k.block[i] < 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("axis {} of the image has {} elements, and a block of it {}; expected 0 or more, "
                              "and 1 or more",
                              i, k.image[i], k.block[i]));
    if (k.strides[i] <= 0 || k.dilations[i] <= 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("strides[{0}] = {1} and dilations[{0}] = {2} must be positive", i, k.strides[i], k.dilations[i]));
    const int64_t padded = checked_add(checked_add(k.image[i], k.pads[i]), after);
    const int64_t room = padded - checked_add(checked_mul(k.dilations[i], k.block[i] - 1), 1);
    k.grid[i] = room < 0 ? 0 : room / k.strides[i] + 1;
    k.image_size = checked_mul(k.image_size, k.image[i]), k.block_size = checked_mul(k.block_size, k.block[i]);
    k.num_blocks = checked_mul(k.num_blocks, k.grid[i]);
  }
  if (columns[2] != k.num_blocks)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input has {} blocks, the image {}", columns[2], k.num_blocks));
  return k;
}

namespace {

// Sums 16-bit floats in float, because rounded partial sums could overflow even if the final sum does not.
template <typename T>
struct Col2Im : Col2ImPlan {
  using C = compute_type_t<T>;
  Wide x, y;

  static Col2Im bind(BindContext& c) {
    Col2Im k = make(c, c.shape(0), c.output_shape(0));
    ScratchLayout layout;
    k.x = reserve_wide<T>(layout, c.num_elements(0));
    k.y = reserve_wide<T>(layout, c.output_shape(0).num_elements());
    c.request_scratch(layout.total());
    return k;
  }
  static Col2Im make(const BindContext& c, const Shape& columns, const Shape& output) {
    return {Col2ImPlan::bind(c, columns, output), {}, {}};
  }

  // Finds the runs of blocks along the last axis whose element `offset` is inside the image, and calls for each run fn(first block, number
  // of blocks, index of that element in the image, step in the image from block to block).
  template <typename Fn>
  void for_each_run(int64_t offset, Fn fn) const {
    if (num_blocks == 0) return;
    if (rank == 0) return fn(0, 1, 0, 1);
    int64_t shift[kMaxRank];  // position of the element relative to its block's origin, per axis
    for (int i = rank - 1; i >= 0; --i) {
      shift[i] = offset % block[i] * dilations[i] - pads[i];
      offset /= block[i];
    }
    const int last = rank - 1;
    const int64_t length = grid[last], step = strides[last];
    const kernels::Taps inside_row = kernels::places_inside(shift[last], step, length, image[last]);
    const int64_t begin = inside_row.first, end = inside_row.last;
    if (begin == end) return;
    for (int64_t row = 0; row < num_blocks / length; ++row) {
      int64_t at = 0, scale = image[last], rest = row;
      bool inside = true;
      for (int i = last - 1; i >= 0; --i) {
        const int64_t x = rest % grid[i] * strides[i] + shift[i];
        inside &= x >= 0 && x < image[i];
        at += x * scale;
        scale *= image[i], rest /= grid[i];
      }
      if (inside) fn(row * length + begin, end - begin, at + shift[last] + begin * step, step);
    }
  }

  void run(RunContext& c) const {
    sum_blocks(c, widen(c, c.in<T>(0), x), wide_output(c, c.out<T>(0), y));
    narrow(c, y, c.out<T>(0));
  }
  void sum_blocks(RunContext& c, const C* columns, C* out) const {
    const int64_t work = std::max<int64_t>(1, block_size * num_blocks);
    if constexpr (std::is_same_v<C, float>) {
      if (rank >= 1 && rank <= 3 && image_size > 0 && block_size > 0) {
        const auto n = static_cast<size_t>(rank);
        kernels::Window window = kernels::make_window({image, n}, {grid, n}, {block, n}, {strides, n}, {}, {dilations, n});
        std::copy_n(pads, n, window.pad_begin + 3 - n);
        return parallel_for(c.pool(), planes, std::max<int64_t>(1, 16384 / work), [&](int64_t begin, int64_t end) {
          for (int64_t plane = begin; plane < end; ++plane)
            kernels::col2im(window, columns + plane * block_size * num_blocks, 0, out + plane * image_size);
        });
      }
    }
    parallel_for(c.pool(), planes, std::max<int64_t>(1, 16384 / work), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        C* to = out + plane * image_size;
        std::fill(to, to + image_size, C{});
        for (int64_t offset = 0; offset < block_size; ++offset) {
          const C* from = columns + (plane * block_size + offset) * num_blocks;
          for_each_run(offset,
                       [&](int64_t first, int64_t count, int64_t at, int64_t step) { add_run(from + first, count, to + at, step); });
        }
      }
    });
  }
};

template <typename T>
struct Col2ImGrad {
  Col2Im<T> forward;

  static Col2ImGrad bind(BindContext& c) {
    if (c.shape(0).rank() < 2 || c.output_shape(0).rank() != 3)
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} is of no image of columns", to_string(c.shape(0))));
    Col2ImGrad k{Col2Im<T>::make(c, c.output_shape(0), c.shape(0))};
    if (c.num_elements(0) != k.forward.planes * k.forward.image_size ||
        c.output_shape(0).num_elements() != k.forward.planes * k.forward.block_size * k.forward.num_blocks)
      throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} is of no image of columns", to_string(c.shape(0))));
    return k;
  }
  void run(RunContext& c) const {
    const int64_t size = forward.block_size, blocks = forward.num_blocks;
    const T* dy = c.in<T>(0);
    T* dx = c.out<T>(0);
    parallel_for(c.pool(), forward.planes * size, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, blocks)),
                 [&](int64_t begin, int64_t end) {
                   std::fill(dx + begin * blocks, dx + end * blocks, T{0});
                   for (int64_t row = begin; row < end; ++row) {
                     const T* from = dy + row / size * forward.image_size;
                     forward.for_each_run(row % size, [&](int64_t first, int64_t count, int64_t at, int64_t step) {
                       for (int64_t i = 0; i < count; ++i) dx[row * blocks + first + i] = from[at + i * step];
                     });
                   }
                 });
  }
};

Gradients col2im_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("Col2ImGrad", {g.grad_output(0), g.input(1), g.input(2), g.shape_of(g.input(0))}, attributes, "treadle")};
}

// Col2Im and its gradient are linear, so each of the two operators is the gradient of the other.
Gradients col2im_grad_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("Col2Im", {g.grad_output(0), g.input(1), g.input(2)}, attributes)};
}

}  // namespace

std::vector<OpDef> col2im_ops() {
  using None = AttributeDef::NoDefault;
  constexpr TypeSet kGradientTypes{DType::float32, DType::float64};
  return {{.name = "Col2Im",
           .since = {18},
           .inputs = {{"input", kNumeric, "T"}, {"image_shape", kInt64}, {"block_shape", kInt64}},
           .outputs = {{"output", kNumeric, "T"}},
           .attributes = {{"dilations", None{}}, {"pads", None{}}, {"strides", None{}}},
           .infer = infer_col2im,
           .cost = move_cost,
           .kernels =
               typed<Col2Im, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(),
           .gradient = col2im_gradient,
           .value_inputs = {1, 2}},
          {.name = "Col2ImGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kGradientTypes, "T"}, {"image_shape", kInt64}, {"block_shape", kInt64}, {"shape", kInt64}},
           .outputs = {{"dX", kGradientTypes, "T"}},
           .attributes = {{"dilations", None{}}, {"pads", None{}}, {"strides", None{}}},
           .infer = infer_given_shape<3>,
           .cost = move_cost,
           .kernels = typed<Col2ImGrad, float, double>(),
           .gradient = col2im_grad_gradient,
           .value_inputs = {1, 2, 3}}};
}

}  // namespace treadle::ops
