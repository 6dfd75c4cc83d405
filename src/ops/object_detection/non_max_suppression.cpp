// Implements NonMaxSuppression.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/checked.h"
#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/scratch_slots.h"
#include "ops/list.h"
#include "ops/object_detection/suppression.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_nms(InferContext& c) {
  for (int i : {0, 1})
    if (c.has_rank(i) && c.rank(i) != 3)
      throw Error(ErrorCode::invalid_argument, fmt::format("input {} is of rank {}, not 3", i, c.rank(i)));
  if (c.has_rank(0) && c.has_rank(1)) {
    unify(c.shape(0)[0], c.shape(1)[0], "number of batches of boxes and scores");
    unify(c.shape(0)[1], c.shape(1)[2], "number of boxes of boxes and scores");
    if (c.shape(0)[2].is_const() && !c.shape(0)[2].is_const(4))
      throw Error(ErrorCode::invalid_argument, fmt::format("boxes have {} coordinates, not 4", c.shape(0)[2].value()));
  }
  Dim boxes = c.data_dependent_dim("boxes");
  if (c.has_rank(1)) {
    const auto wanted = c.known_ints(2);
    const SymbolicShape& scores = c.shape(1);
    const Dim of_a_class = wanted && wanted->size() == 1 ? minimum(scores[2], std::max<int64_t>(0, (*wanted)[0])) : scores[2];
    boxes = data_dependent_dim(c, "boxes", scores[0] * scores[1] * of_a_class);
  }
  c.set_output(0, DType::int64, {boxes, 3});
}

struct Box {
  float y1, x1, y2, x2, area;
};

// Returns a box with ordered corners, from two opposite corners in any order, or from center and size.
Box corners(const float* b, bool center) {
  Box box{};
  if (center) {
    box = {b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2, 0};
  } else {
    box = {std::min(b[0], b[2]), std::min(b[1], b[3]), std::max(b[0], b[2]), std::max(b[1], b[3]), 0};
  }
  box.area = (box.y2 - box.y1) * (box.x2 - box.x1);
  return box;
}

bool suppresses(const Box& a, const Box& b, float threshold) {
  const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1), width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (!(height > 0 && width > 0) || a.area <= 0 || b.area <= 0) return false;
  const float common = height * width;
  return common / (a.area + b.area - common) > threshold;
}

struct Candidate {
  float score;
  int32_t box;
};

struct Nms : SuppressionPlan {
  static constexpr bool allocates = true;

  int num_slots = 0;
  size_t slot_bytes = 0, selected_bytes = 0, counts_bytes = 0;

  static Nms bind(BindContext& c) {
    Nms k{SuppressionPlan::bind(c)};
    const int64_t tasks = checked_mul(k.batches, k.classes);
    k.num_slots = kernels::ScratchSlots::count(c.max_threads(), tasks);
    k.slot_bytes = kernels::aligned_bytes<Candidate>(k.boxes) + kernels::aligned_bytes<Box>(k.limit);
    k.selected_bytes = kernels::aligned_bytes<int32_t>(checked_mul(tasks, k.limit));
    k.counts_bytes = kernels::aligned_bytes<int64_t>(tasks);
    c.request_scratch(k.selected_bytes + k.counts_bytes + k.slot_bytes * static_cast<size_t>(k.num_slots));
    return k;
  }

  // Writes the indices of the boxes that are kept to `selected`, best first. Returns their number.
  int64_t select(const float* all_boxes, const float* scores, float iou_threshold, const float* score_threshold, std::byte* scratch,
                 int32_t* selected) const {
    auto* candidates = reinterpret_cast<Candidate*>(scratch);
    auto* kept = reinterpret_cast<Box*>(scratch + kernels::aligned_bytes<Candidate>(boxes));
    int64_t count = 0;
    for (int64_t i = 0; i < boxes; ++i) {
      if (std::isnan(scores[i]) || (score_threshold && !(scores[i] > *score_threshold))) continue;
      candidates[count++] = {scores[i], static_cast<int32_t>(i)};
    }
    auto better = [](const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.box < b.box; };
    std::sort(candidates, candidates + count, better);
    int64_t num_kept = 0;
    for (int64_t i = 0; i < count && num_kept < limit; ++i) {
      const Box box = corners(all_boxes + int64_t{candidates[i].box} * 4, center);
      if (std::any_of(kept, kept + num_kept, [&](const Box& other) { return suppresses(box, other, iou_threshold); })) continue;
      kept[num_kept] = box;
      selected[num_kept++] = candidates[i].box;
    }
    return num_kept;
  }

  void run(RunContext& c) const {
    const float *all_boxes = c.in<float>(0), *scores = c.in<float>(1), *iou = c.in<float>(3), *score_threshold = c.in<float>(4);
    const float iou_threshold = iou ? *iou : 0;
    if (!(iou_threshold >= 0 && iou_threshold <= 1))
      throw Error(ErrorCode::invalid_argument, fmt::format("iou_threshold is {}; 0 to 1 expected", iou_threshold));
    auto* selected = c.scratch<int32_t>();
    auto* counts = reinterpret_cast<int64_t*>(c.scratch<std::byte>() + selected_bytes);
    kernels::ScratchSlots slots(c.scratch<std::byte>() + selected_bytes + counts_bytes, slot_bytes, num_slots);
    const int64_t tasks = batches * classes;
    if (limit > 0) {
      parallel_for(c.pool(), tasks, std::max<int64_t>(1, 4096 / boxes), [&](int64_t begin, int64_t end) {
        kernels::ScratchSlots::Lease lease(slots);
        for (int64_t task = begin; task < end; ++task) {
          counts[task] = select(all_boxes + task / classes * boxes * 4, scores + task * boxes, iou_threshold, score_threshold, lease.data(),
                                selected + task * limit);
        }
      });
    }
    int64_t total = 0;
    for (int64_t task = 0; task < tasks && limit > 0; ++task) total += counts[task];
    const Tensor output = c.allocate_output(0, Shape{total, 3});
    auto* row = output.data<int64_t>();
    for (int64_t task = 0; task < tasks && limit > 0; ++task) {
      for (int64_t i = 0; i < counts[task]; ++i, row += 3)
        row[0] = task / classes, row[1] = task % classes, row[2] = selected[task * limit + i];
    }
  }
};

}  // namespace

std::vector<OpDef> non_max_suppression_ops() {
  constexpr TypeSet kFloat32{DType::float32};
  return {{.name = "NonMaxSuppression",
           .since = {10, 11},
           .inputs = {{"boxes", kFloat32, "", Presence::required, of_rank(3)},
                      {"scores", kFloat32, "", Presence::required, of_rank(3)},
                      {"max_output_boxes_per_class", kInt64, "", Presence::optional},
                      {"iou_threshold", kFloat32, "", Presence::optional},
                      {"score_threshold", kFloat32, "", Presence::optional}},
           .outputs = {{"selected_indices", kInt64}},
           .attributes = {{"center_point_box", int64_t{0}}},
           .infer = infer_nms,
           .kernels = {kernel<Nms>()},
           .value_inputs = {2}}};
}

}  // namespace treadle::ops
