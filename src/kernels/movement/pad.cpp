#include "kernels/movement/pad.h"

#include <algorithm>
#include <cstring>

#include "core/base/checked.h"
#include "kernels/movement/element.h"

namespace treadle::kernels {
namespace {

/// Returns the index of the source element for output index i, for n elements after `before` pads; -1: the constant.
int64_t source_index(PadMode mode, int64_t i, int64_t before, int64_t n) {
  int64_t at = i - before;
  if (at >= 0 && at < n) return at;
  switch (mode) {
    case PadMode::constant: return -1;
    case PadMode::edge: return at < 0 ? 0 : n - 1;
    case PadMode::wrap: return at - floor_div(at, n) * n;
    case PadMode::reflect: {
      if (n == 1) return 0;
      const int64_t period = 2 * (n - 1);  // the elements at both ends are not repeated
      if (at < 0) at = -at;
      if (at >= period) at %= period;
      return at < n ? at : period - at;
    }
  }
  return -1;
}

template <typename T>
void pad_row(const PadPlan& plan, const T* row, const T& value, T* dst) {
  const int last = plan.rank - 1;
  const int64_t n = plan.kept[last], before = plan.before[last], out = plan.out_dims[last];
  // The part of the row that is in the source is copied as a whole.
  const int64_t begin = std::clamp<int64_t>(before, 0, out), end = std::clamp<int64_t>(before + n, begin, out);
  auto fill_pads = [&](int64_t from, int64_t to) {
    if (plan.mode == PadMode::constant) return std::fill(dst + from, dst + to, value);
    if (plan.mode == PadMode::edge) return std::fill(dst + from, dst + to, row[from < begin ? 0 : n - 1]);
    if (plan.mode == PadMode::reflect && from - before > -n && to - before < 2 * n - 1) {  // true if elements are reflected at most once
      const T* mirrored = from < begin ? row + before : row + 2 * (n - 1) + before;
      for (int64_t i = from; i < to; ++i) dst[i] = mirrored[-i];
      return;
    }
    for (int64_t i = from; i < to; ++i) dst[i] = row[source_index(plan.mode, i, before, n)];
  };
  fill_pads(0, begin);
  if (end > begin) std::memcpy(dst + begin, row + (begin - before), static_cast<size_t>(end - begin) * sizeof(T));
  fill_pads(end, out);
}

template <typename T>
void pad_elements(const PadPlan& plan, const T* src, const T& value, T* dst, ThreadPool* pool) {
  const int last = plan.rank - 1;
  const int64_t length = plan.out_dims[last], rows = plan.out_size / length;
  parallel_for(pool, rows, std::max<int64_t>(1, 16384 / length), [&](int64_t begin, int64_t end) {
    int64_t index[kMaxRank] = {};
    for (int64_t i = last - 1, rest = begin; i >= 0; --i) {
      index[i] = rest % plan.out_dims[i];
      rest /= plan.out_dims[i];
    }
    for (int64_t r = begin; r < end; ++r) {
      int64_t offset = 0;
      bool outside = false;
      for (int i = 0; i < last; ++i) {
        const int64_t at = source_index(plan.mode, index[i], plan.before[i], plan.kept[i]);
        outside |= at < 0;
        offset = (offset + plan.first[i] + at) * plan.in_dims[i + 1];
      }
      for (int i = last - 1; i >= 0 && ++index[i] == plan.out_dims[i]; --i) index[i] = 0;
      if (outside) {
        std::fill(dst + r * length, dst + (r + 1) * length, value);
      } else {
        pad_row(plan, src + offset + plan.first[last], value, dst + r * length);
      }
    }
  });
}

}  // namespace

PadPlan plan_pad(PadMode mode, std::span<const int64_t> dims, std::span<const int64_t> before, std::span<const int64_t> after) {
  PadPlan plan;
  plan.mode = mode;
  plan.in_size = plan.out_size = 1;
  if (dims.size() > static_cast<size_t>(kMaxRank)) {
    throw Error(ErrorCode::invalid_argument, "rank " + std::to_string(dims.size()) + " is above the limit of " + std::to_string(kMaxRank));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t out = checked_add(checked_add(dims[i], before[i]), after[i]);
    if (out < 0) {
      throw Error(ErrorCode::invalid_argument, "pads " + std::to_string(before[i]) + " and " + std::to_string(after[i]) +
                                                   " remove more than the " + std::to_string(dims[i]) + " elements of axis " +
                                                   std::to_string(i));
    }
    const bool repeats = mode != PadMode::constant;
    const int64_t removed = repeats ? std::min<int64_t>(before[i], 0) : 0, removed_behind = repeats ? std::min<int64_t>(after[i], 0) : 0;
    const int64_t kept = checked_add(checked_add(dims[i], removed), removed_behind);
    if (repeats && kept <= 0 && out > 0) {
      throw Error(ErrorCode::invalid_argument, "axis " + std::to_string(i) + " has " + std::to_string(dims[i]) +
                                                   " elements, of which pads " + std::to_string(before[i]) + " and " +
                                                   std::to_string(after[i]) + " leave none to repeat");
    }
    plan.in_size *= dims[i];
    plan.out_size = checked_mul(plan.out_size, out);
    // Merges an axis without pads into the previous axis if that one has no pads either, or if the mode does not repeat elements.
    const int at = plan.rank - 1;
    const bool whole = before[i] == 0 && after[i] == 0;
    if (whole && at >= 0 &&
        (!repeats || dims[i] == 1 ||
         (plan.before[at] == 0 && plan.out_dims[at] == plan.in_dims[at] && plan.kept[at] == plan.in_dims[at]))) {
      plan.in_dims[at] = checked_mul(plan.in_dims[at], dims[i]);
      plan.out_dims[at] = checked_mul(plan.out_dims[at], dims[i]);
      plan.first[at] = checked_mul(plan.first[at], dims[i]);
      plan.kept[at] = checked_mul(plan.kept[at], dims[i]);
      plan.before[at] = checked_mul(plan.before[at], dims[i]);
    } else {
      plan.in_dims[plan.rank] = dims[i];
      plan.out_dims[plan.rank] = out;
      plan.first[plan.rank] = kept > 0 ? -removed : 0;
      plan.kept[plan.rank] = kept;
      plan.before[plan.rank] = repeats ? std::max<int64_t>(before[i], 0) : before[i];
      ++plan.rank;
    }
  }
  if (plan.rank == 0) plan.rank = 1, plan.in_dims[0] = plan.out_dims[0] = plan.kept[0] = 1;
  return plan;
}

void pad(const PadPlan& plan, size_t element_bytes, const void* src, const void* value, void* dst, ThreadPool* pool) {
  if (plan.out_size == 0) return;
  visit_element(element_bytes, [&]<typename T>() {
    T constant{};
    if (plan.mode == PadMode::constant && value) std::memcpy(&constant, value, sizeof(T));
    pad_elements(plan, static_cast<const T*>(src), constant, static_cast<T*>(dst), pool);
  });
}

}  // namespace treadle::kernels
