// Computes operators that move elements without arithmetic, and operators on shapes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

// Computes y[k] = x[source(coordinates of k)]. If the source is negative, y[k] stays as it is.
template <typename F>
Array pick(const Array& x, Dims dims, F source) {
  Array y(x.dtype, std::move(dims));
  for (size_t k = 0; k < y.size(); ++k) {
    const int64_t from = source(coordinates(k, y.dims));
    if (from >= 0) y.copy(k, x, static_cast<size_t>(from));
  }
  return y;
}

Values with_dims(const Array& x, Dims dims) {
  require(count_of(dims) == static_cast<int64_t>(x.size()), "a view of another number of elements");
  Array y = x;
  y.dims = std::move(dims);
  return {std::move(y)};
}

Values reshape(Call& c) {
  const Array& x = c.in(0);
  Dims dims = c.ints_in(1);
  int64_t known = 1, free = -1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0 && c.integer("allowzero", 0) == 0) {
      require(d < x.dims.size(), "0 in Reshape's shape beyond the input's rank");
      require(x.size() > 0 || x.dims[d] == 0 || c.is_stored(1), "refused: docs/operators.md, Reshape");
      dims[d] = x.dims[d];
    }
    if (dims[d] == -1) {
      require(free < 0, "two extents of -1");
      free = static_cast<int64_t>(d);
    } else {
      require(dims[d] >= 0, "a negative extent");
      known *= dims[d];
    }
  }
  if (free >= 0) {
    require(known > 0 && static_cast<int64_t>(x.size()) % known == 0, "-1 cannot be settled");
    dims[static_cast<size_t>(free)] = static_cast<int64_t>(x.size()) / known;
  }
  return with_dims(x, dims);
}

Values flatten(Call& c) {
  const Array& x = c.in(0);
  int64_t axis = c.integer("axis", 1);
  require(axis >= -x.rank() && axis <= x.rank(), "axis out of range");
  if (axis < 0) axis += x.rank();
  int64_t rows = 1, columns = 1;
  for (int64_t d = 0; d < x.rank(); ++d) (d < axis ? rows : columns) *= x.dims[static_cast<size_t>(d)];
  return with_dims(x, {rows, columns});
}

Values squeeze(Call& c) {
  const Array& x = c.in(0);
  std::vector<bool> drop(x.dims.size(), false);
  if (c.has(1)) {
    for (int64_t axis : c.ints_in(1)) drop[static_cast<size_t>(normalize_axis(axis, x.rank()))] = true;
  } else {
    for (size_t d = 0; d < drop.size(); ++d) drop[d] = x.dims[d] == 1;
  }
  Dims dims;
  for (size_t d = 0; d < drop.size(); ++d) {
    require(!drop[d] || x.dims[d] == 1, "Squeeze of an extent that is not 1");
    if (!drop[d]) dims.push_back(x.dims[d]);
  }
  return with_dims(x, dims);
}

Values unsqueeze(Call& c) {
  const Array& x = c.in(0);
  const auto rank = static_cast<int64_t>(x.dims.size() + c.ints_in(1).size());
  std::vector<bool> fresh(static_cast<size_t>(rank), false);
  for (int64_t axis : c.ints_in(1)) {
    auto slot = fresh[static_cast<size_t>(normalize_axis(axis, rank))];
    require(!slot, "an axis twice");
    fresh[static_cast<size_t>(normalize_axis(axis, rank))] = true;
  }
  Dims dims;
  size_t next = 0;
  for (bool one : fresh) dims.push_back(one ? 1 : x.dims[next++]);
  return with_dims(x, dims);
}

Values transpose(Call& c) {
  const Array& x = c.in(0);
  std::vector<int64_t> perm(x.dims.size());
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = c.integers("perm", perm);
  require(perm.size() == x.dims.size(), "perm's length");
  Dims dims;
  for (int64_t axis : perm) dims.push_back(x.dims.at(static_cast<size_t>(axis)));
  return {pick(x, dims, [&](const Dims& at) {
    Dims from(at.size());
    for (size_t d = 0; d < at.size(); ++d) from[static_cast<size_t>(perm[d])] = at[d];
    return static_cast<int64_t>(place(from, x.dims));
  })};
}

Values slice(Call& c) {
  const Array& x = c.in(0);
  const auto &starts = c.ints_in(1), &ends = c.ints_in(2);
  std::vector<int64_t> axes(starts.size()), steps(starts.size(), 1);
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints_in(3);
  if (c.has(4)) steps = c.ints_in(4);
  require(ends.size() == starts.size() && axes.size() == starts.size() && steps.size() == starts.size(), "Slice's lengths");
  Dims begin(x.dims.size(), 0), step(x.dims.size(), 1), dims = x.dims;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto d = static_cast<size_t>(normalize_axis(axes[i], x.rank()));
    const int64_t extent = x.dims[d];
    require(steps[i] != 0, "a step of 0");
    auto from_end = [&](int64_t at) { return at < 0 ? at + extent : at; };
    const bool forwards = steps[i] > 0;
    begin[d] = std::clamp<int64_t>(from_end(starts[i]), 0, forwards ? extent : std::max<int64_t>(extent - 1, 0));
    const int64_t end =
        forwards ? std::clamp<int64_t>(from_end(ends[i]), 0, extent) : std::clamp<int64_t>(from_end(ends[i]), -1, extent - 1);
    const int64_t distance = forwards ? end - begin[d] : begin[d] - end, stride = std::abs(steps[i]);
    step[d] = steps[i];
    dims[d] = extent == 0 ? 0 : std::max<int64_t>(0, (distance + stride - 1) / stride);
  }
  return {pick(x, dims, [&](Dims at) {
    for (size_t d = 0; d < at.size(); ++d) at[d] = begin[d] + at[d] * step[d];
    return static_cast<int64_t>(place(at, x.dims));
  })};
}

// Concatenates tensors, or the elements of sequences.
Array join(const std::vector<const Array*>& parts, int64_t axis, bool new_axis) {
  require(!parts.empty(), "nothing to join");
  std::vector<Array> cut;
  for (const Array* part : parts) {
    require(part->dtype == parts[0]->dtype && part->rank() == parts[0]->rank(), "the parts differ in dtype or rank");
    cut.push_back(*part);
  }
  axis = normalize_axis(axis, parts[0]->rank() + (new_axis ? 1 : 0));
  const auto a = static_cast<size_t>(axis);
  if (new_axis)
    for (Array& part : cut) part.dims.insert(part.dims.begin() + axis, 1);
  Dims dims = cut[0].dims;
  dims[a] = 0;
  for (const Array& part : cut) {
    for (size_t d = 0; d < dims.size(); ++d) require(d == a || part.dims[d] == dims[d], "the parts differ in an extent");
    dims[a] += part.dims[a];
  }
  Array y(cut[0].dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Dims at = coordinates(k, dims);
    size_t which = 0;
    while (at[a] >= cut[which].dims[a]) at[a] -= cut[which++].dims[a];
    y.copy(k, cut[which], place(at, cut[which].dims));
  }
  return y;
}

Array part_of(const Array& x, size_t axis, int64_t begin, int64_t length) {
  Dims dims = x.dims;
  dims[axis] = length;
  return pick(x, dims, [&](Dims at) {
    at[axis] += begin;
    return static_cast<int64_t>(place(at, x.dims));
  });
}

Values concat(Call& c) {
  std::vector<const Array*> parts;
  for (size_t i = 0; i < c.num_inputs(); ++i) parts.push_back(&c.in(i));
  return {join(parts, c.integer("axis", 0), false)};
}

Values concat_from_sequence(Call& c) {
  std::vector<const Array*> parts;
  for (const Array& part : c.value(0).elements) parts.push_back(&part);
  return {join(parts, c.integer("axis", 0), c.integer("new_axis", 0) != 0)};
}

std::vector<int64_t> even_lengths(int64_t extent, int64_t length) {
  std::vector<int64_t> lengths;
  for (int64_t at = 0; at < extent; at += length) lengths.push_back(std::min(length, extent - at));
  return lengths;
}

std::vector<Array> cut(const Array& x, int64_t axis, const std::vector<int64_t>& lengths) {
  std::vector<Array> parts;
  int64_t at = 0;
  for (int64_t length : lengths) {
    require(length >= 0, "a negative length");
    require(at + length <= x.dims[static_cast<size_t>(axis)], "lengths beyond the extent");
    parts.push_back(part_of(x, static_cast<size_t>(axis), at, length));
    at += length;
  }
  require(at == x.dims[static_cast<size_t>(axis)], "the lengths are not the extent");
  return parts;
}

Values split(Call& c) {
  const Array& x = c.in(0);
  const int64_t axis = normalize_axis(c.integer("axis", 0), x.rank()), extent = x.dims[static_cast<size_t>(axis)];
  std::vector<int64_t> lengths;
  if (c.has(1)) {
    lengths = c.ints_in(1);
  } else {
    const auto parts = c.integer("num_outputs", static_cast<int64_t>(c.num_outputs()));
    const int64_t length = (extent + parts - 1) / parts;
    lengths.assign(static_cast<size_t>(parts), length);
    lengths.back() = extent - length * (parts - 1);
  }
  require(lengths.size() == c.num_outputs(), "Split's number of outputs");
  Values outputs;
  for (Array& part : cut(x, axis, lengths)) outputs.emplace_back(std::move(part));
  return outputs;
}

Values split_to_sequence(Call& c) {
  const Array& x = c.in(0);
  const int64_t axis = normalize_axis(c.integer("axis", 0), x.rank()), extent = x.dims[static_cast<size_t>(axis)];
  const bool scalar = c.has(1) && c.in(1).rank() == 0;
  if (scalar) require(c.in(1).i[0] > 0, "a length of 0");
  Value sequence;
  sequence.is_sequence = true;
  sequence.array = Array(x.dtype, {0});
  sequence.elements = cut(x, axis, !c.has(1) || scalar ? even_lengths(extent, scalar ? c.in(1).i[0] : 1) : c.ints_in(1));
  if (!c.has(1) && c.integer("keepdims", 1) == 0)
    for (Array& element : sequence.elements) element.dims.erase(element.dims.begin() + axis);
  return {std::move(sequence)};
}

Values expand(Call& c) {
  const Array& x = c.in(0);
  const Dims dims = broadcast(x.dims, c.ints_in(1));
  Array y(x.dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) y.copy(k, x, broadcast_index(k, dims, x.dims));
  return {std::move(y)};
}

Values tile(Call& c) {
  const Array& x = c.in(0);
  require(c.ints_in(1).size() == x.dims.size(), "one repeat per axis");
  Dims dims = x.dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    require(c.ints_in(1)[d] >= 0, "a negative repeat");
    dims[d] *= c.ints_in(1)[d];
  }
  return {pick(x, dims, [&](Dims at) {
    for (size_t d = 0; d < at.size(); ++d) at[d] %= x.dims[d];
    return static_cast<int64_t>(place(at, x.dims));
  })};
}

Values pad(Call& c) {
  const Array& x = c.in(0);
  const std::string mode = c.text("mode", "constant");
  const size_t rank = x.dims.size();
  // The extents that remain after negative pads have cut the array.
  std::vector<int64_t> axes(rank), before(rank, 0), after(rank, 0), first(rank, 0), kept = x.dims;
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.ints_in(3);
  require(c.ints_in(1).size() == 2 * axes.size(), "two pads per axis");
  Dims dims = x.dims;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto d = static_cast<size_t>(normalize_axis(axes[i], x.rank()));
    before[d] = c.ints_in(1)[i];
    after[d] = c.ints_in(1)[i + axes.size()];
    dims[d] += before[d] + after[d];
    first[d] = std::max<int64_t>(-before[d], 0);
    kept[d] -= first[d] + std::max<int64_t>(-after[d], 0);
    require(dims[d] >= 0 && kept[d] >= 0, "more is cut than there is");
    if (mode == "reflect") require(std::max(before[d], after[d]) < std::max<int64_t>(kept[d], 1), "reflect beyond the extent");
    if (mode != "constant") require(kept[d] > 0 || dims[d] == 0, "nothing to repeat");
  }
  Array y(x.dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Dims at = coordinates(k, dims);
    bool inside = true;
    for (size_t d = 0; d < rank; ++d) {
      at[d] -= std::max<int64_t>(before[d], 0);
      const int64_t last = kept[d] - 1;
      if (mode == "edge") at[d] = std::clamp<int64_t>(at[d], 0, last);
      if (mode == "wrap") at[d] = ((at[d] % kept[d]) + kept[d]) % kept[d];
      if (mode == "reflect" && at[d] < 0) at[d] = -at[d];
      if (mode == "reflect" && at[d] > last) at[d] = 2 * last - at[d];
      inside = inside && at[d] >= 0 && at[d] <= last;
      at[d] += first[d];
    }
    if (inside)
      y.copy(k, x, place(at, x.dims));
    else if (c.has(2))
      y.copy(k, c.in(2), 0);
  }
  return {std::move(y)};
}

int64_t index_in(const Array& indices, size_t at, int64_t extent) {
  require(indices.dtype == DType::int64 || indices.dtype == DType::int32, "indices are int32 or int64");
  require(indices.i[at] >= -extent && indices.i[at] < extent, "an index out of range");
  return indices.i[at] < 0 ? indices.i[at] + extent : indices.i[at];
}

Values gather(Call& c) {
  const Array &x = c.in(0), &indices = c.in(1);
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", 0), x.rank()));
  Dims dims(x.dims.begin(), x.dims.begin() + static_cast<int64_t>(axis));
  dims.insert(dims.end(), indices.dims.begin(), indices.dims.end());
  dims.insert(dims.end(), x.dims.begin() + static_cast<int64_t>(axis) + 1, x.dims.end());
  for (size_t k = 0; k < indices.size(); ++k) index_in(indices, k, x.dims[axis]);
  return {pick(x, dims, [&](const Dims& at) {
    Dims from(at.begin(), at.begin() + static_cast<int64_t>(axis)),
        index(at.begin() + static_cast<int64_t>(axis), at.begin() + static_cast<int64_t>(axis + indices.dims.size()));
    from.push_back(index_in(indices, place(index, indices.dims), x.dims[axis]));
    from.insert(from.end(), at.begin() + static_cast<int64_t>(axis + indices.dims.size()), at.end());
    return static_cast<int64_t>(place(from, x.dims));
  })};
}

Values gather_elements(Call& c) {
  const Array &x = c.in(0), &indices = c.in(1);
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", 0), x.rank()));
  require(indices.dims.size() == x.dims.size(), "indices have the input's rank");
  for (size_t d = 0; d < x.dims.size(); ++d) require(d == axis || indices.dims[d] <= x.dims[d], "indices beyond the input");
  return {pick(x, indices.dims, [&](Dims at) {
    at[axis] = index_in(indices, place(at, indices.dims), x.dims[axis]);
    return static_cast<int64_t>(place(at, x.dims));
  })};
}

Values shape(Call& c) {
  const Array& x = c.in(0);
  auto bound = [&](const char* name, int64_t otherwise) {
    const int64_t at = c.integer(name, otherwise);
    return std::clamp<int64_t>(at < 0 ? at + x.rank() : at, 0, x.rank());
  };
  const int64_t start = bound("start", 0), end = bound("end", x.rank());
  return {Array::ints(start < end ? Dims(x.dims.begin() + start, x.dims.begin() + end) : Dims())};
}

Values constant_of_shape(Call& c) {
  const auto* value = c.attribute("value");
  const Array fill = value != nullptr ? from_tensor(value->t->value) : Array(DType::float32, {1});
  return {pick(fill, c.ints_in(0), [](const Dims&) { return 0; })};
}

Values constant(Call& c) {
  require(c.attribute("value") != nullptr, "only tensors are constants here");
  return {from_tensor(c.attribute("value")->t->value)};
}

Values range(Call& c) {
  const Array &start = c.in(0), &limit = c.in(1), &delta = c.in(2);
  require(start.dtype == limit.dtype && start.dtype == delta.dtype && !start.floats() && delta.i.at(0) != 0, "Range of integers");
  const double steps = std::ceil((limit.number(0) - start.number(0)) / delta.number(0));
  Array y(start.dtype, {std::max<int64_t>(0, static_cast<int64_t>(steps))});
  for (size_t k = 0; k < y.size(); ++k) y.set(k, start.i[0] + static_cast<int64_t>(k) * delta.i[0]);
  return {std::move(y)};
}

Values trilu(Call& c) {
  const Array& x = c.in(0);
  require(x.rank() >= 2, "a matrix was expected");
  const int64_t k = c.has(1) ? c.in(1).i[0] : 0;
  const bool upper = c.integer("upper", 1) != 0;
  return {pick(x, x.dims, [&](const Dims& at) {
    const int64_t distance = at[at.size() - 1] - at[at.size() - 2] - k;
    return (upper ? distance >= 0 : distance <= 0) ? static_cast<int64_t>(place(at, x.dims)) : -1;
  })};
}

Values depth_to_space(Call& c) {
  const Array& x = c.in(0);
  const int64_t b = c.integer("blocksize", 1);
  require(x.rank() == 4 && x.dims[1] % (b * b) == 0, "channels in blocks");
  const int64_t channels = x.dims[1] / (b * b);
  const bool dcr = c.text("mode", "DCR") == "DCR";
  return {pick(x, {x.dims[0], channels, x.dims[2] * b, x.dims[3] * b}, [&](const Dims& at) {
    const int64_t block = (at[2] % b) * b + at[3] % b;
    const int64_t channel = dcr ? block * channels + at[1] : at[1] * b * b + block;
    return static_cast<int64_t>(place({at[0], channel, at[2] / b, at[3] / b}, x.dims));
  })};
}

Values space_to_depth(Call& c) {
  const Array& x = c.in(0);
  const int64_t b = c.integer("blocksize", 1);
  require(x.rank() == 4 && x.dims[2] % b == 0 && x.dims[3] % b == 0, "extents in blocks");
  return {pick(x, {x.dims[0], x.dims[1] * b * b, x.dims[2] / b, x.dims[3] / b}, [&](const Dims& at) {
    const int64_t block = at[1] / x.dims[1];
    return static_cast<int64_t>(place({at[0], at[1] % x.dims[1], at[2] * b + block / b, at[3] * b + block % b}, x.dims));
  })};
}

Values nonzero(Call& c) {
  const Array& x = c.in(0);
  require(x.rank() > 0, "NonZero of a scalar");
  std::vector<Dims> found;
  for (size_t k = 0; k < x.size(); ++k)
    if (x.number(k) != 0) found.push_back(coordinates(k, x.dims));
  Array y(DType::int64, {x.rank(), static_cast<int64_t>(found.size())});
  for (size_t k = 0; k < found.size(); ++k)
    for (size_t d = 0; d < x.dims.size(); ++d) y.i[d * found.size() + k] = found[k][d];
  return {std::move(y)};
}

Values scatter_elements(Call& c) {
  const Array &indices = c.in(1), &updates = c.in(2);
  Array y = c.in(0);
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", 0), y.rank()));
  require(indices.dims == updates.dims && indices.dims.size() == y.dims.size() && updates.dtype == y.dtype, "ScatterElements' operands");
  for (size_t d = 0; d < y.dims.size(); ++d) require(d == axis || indices.dims[d] <= y.dims[d], "indices beyond the input");
  std::vector<bool> written(y.size(), false);
  for (size_t k = 0; k < indices.size(); ++k) {
    Dims at = coordinates(k, indices.dims);
    at[axis] = index_in(indices, k, y.dims[axis]);
    const size_t to = place(at, y.dims);
    require(!written[to], "an element twice");
    written[to] = true;
    y.copy(to, updates, k);
  }
  return {std::move(y)};
}

const OperatorTable kTable{
    {"Identity", [](Call& c) { return Values{c.value(0)}; }},
    {"Dropout", [](Call& c) { return Values{c.value(0)}; }},
    {"Reshape", reshape},
    {"Flatten", flatten},
    {"Squeeze", squeeze},
    {"Unsqueeze", unsqueeze},
    {"Transpose", transpose},
    {"Slice", slice},
    {"Concat", concat},
    {"ConcatFromSequence", concat_from_sequence},
    {"Split", split},
    {"SplitToSequence", split_to_sequence},
    {"Expand", expand},
    {"Tile", tile},
    {"Pad", pad},
    {"Gather", gather},
    {"GatherElements", gather_elements},
    {"ScatterElements", scatter_elements},
    {"Shape", shape},
    {"Size", [](Call& c) { return Values{Array::scalar(static_cast<int64_t>(c.in(0).size()))}; }},
    {"ConstantOfShape", constant_of_shape},
    {"Constant", constant},
    {"Range", range},
    {"Trilu", trilu},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"NonZero", nonzero},
};

}  // namespace

const OperatorTable& movement_operators() { return kTable; }

}  // namespace treadle::graphs
