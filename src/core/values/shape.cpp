#include "treadle/shape.h"

#include <algorithm>

#include "core/base/checked.h"

namespace treadle {
namespace {

[[noreturn]] void throw_rank(size_t rank) {
  throw Error(ErrorCode::invalid_argument,
              "a shape of rank " + std::to_string(rank) + "; at most " + std::to_string(kMaxRank) + " axes are supported");
}

}  // namespace

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  if (dims.size() > static_cast<size_t>(kMaxRank)) throw_rank(dims.size());
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

void Shape::push_back(int64_t extent) { insert(rank_, extent); }

void Shape::insert(int axis, int64_t extent) {
  if (rank_ == kMaxRank) throw_rank(static_cast<size_t>(rank_) + 1);
  std::copy_backward(dims_.begin() + axis, dims_.begin() + rank_, dims_.begin() + rank_ + 1);
  dims_[static_cast<size_t>(axis)] = extent;
  ++rank_;
}

void Shape::erase(int axis) {
  std::copy(dims_.begin() + axis + 1, dims_.begin() + rank_, dims_.begin() + axis);
  --rank_;
}

void Shape::resize(int rank, int64_t fill) {
  if (rank > kMaxRank) throw_rank(static_cast<size_t>(rank));
  for (int axis = rank_; axis < rank; ++axis) dims_[static_cast<size_t>(axis)] = fill;
  rank_ = rank;
}

int64_t Shape::num_elements() const {
  int64_t count = 1;
  bool empty = false;
  for (int64_t extent : *this) {
    if (extent < 0) throw Error(ErrorCode::invalid_argument, "a negative extent in the shape " + to_string(*this));
    if (extent == 0)
      empty = true;
    else
      count = checked_mul(count, extent);  // checks for overflow even if an extent is 0, since strides are such products
  }
  return empty ? 0 : count;
}

int64_t Shape::product(int first, int last) const noexcept {
  int64_t count = 1;
  for (int axis = first; axis < last; ++axis) count *= (*this)[axis];
  return count;
}

bool Shape::operator==(const Shape& other) const noexcept { return std::equal(begin(), end(), other.begin(), other.end()); }

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int axis = 0; axis < shape.rank(); ++axis) text += (axis ? "," : "") + std::to_string(shape[axis]);
  return text + "]";
}

}  // namespace treadle
