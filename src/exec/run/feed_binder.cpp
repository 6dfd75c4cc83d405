#include "exec/run/feed_binder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/boolean_bytes.h"
#include "exec/memory/out_of_memory.h"
#include "exec/run/run_control.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// Nodes that read it are bound in the run, so that its extents bind no symbols.
void check_sparse_feed(const Program& program, SlotId slot, const Datum& feed) {
  const Type& type = program.type(slot);
  const SparseTensor& sparse = feed.sparse_tensor();
  if (sparse.values.dtype() != type.dtype) refuse_feed(program, slot, feed, "another dtype");
  if (!type.shape) return;
  if (static_cast<int>(type.shape->size()) != sparse.dense_shape.rank()) refuse_feed(program, slot, feed, "another rank");
  for (int axis = 0; axis < sparse.dense_shape.rank(); ++axis) {
    const Dim& dim = (*type.shape)[static_cast<size_t>(axis)];
    if (dim.is_const() && dim.value() != sparse.dense_shape[axis])
      refuse_feed(program, slot, feed, fmt::format("axis {} is {}, not {}", axis, sparse.dense_shape[axis], dim.value()));
  }
}

}  // namespace

void refuse_feed(const Program& program, SlotId slot, const Datum& datum, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("input \"{}\": {}; got {}, expected {}", program.name(slot), what, describe(datum),
                                                       to_string(program.type(slot))));
}

std::span<const SlotId> slots_handed_to(const Program& program, const Instruction& yield, std::span<const Datum> values) {
  const auto slots = program.operands(yield).subspan(yield.num_inputs);
  if (values.size() != slots.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the Yield \"{}\" takes {} values back, got {}", yield.node->name, slots.size(), values.size()));
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == kNoSlot) continue;
    if (!values[i].is_tensor() || values[i].tensor().dtype() != program.slots()[slots[i]].dtype)
      throw Error(ErrorCode::invalid_argument, fmt::format("the Yield \"{}\": {} is handed in for \"{}\", which is {}", yield.node->name,
                                                           describe(values[i]), program.name(slots[i]), to_string(program.type(slots[i]))));
  }
  return slots;
}

void FeedBinder::bind(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state) {
  try {
    take(feeds, parent_values, control, state);
    state.take_binding(symbol_values_, control);
  } catch (...) {
    if (state.program().is_body()) throw;  // the node that it is of is named first
    rethrow_with_memory([&](const OutOfMemory&) { return describe_unbound(state.program(), control); },
                        "while the extents of a run were bound");
  }
}

void FeedBinder::take(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state) {
  const Program& program = state.program();
  const bool some_later = control.takes_feeds_later;
  takes_device_feeds_ = control.takes_device_feeds;
  const auto inputs = program.input_slots();
  if (feeds.size() != inputs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} feeds for {} inputs", feeds.size(), inputs.size()));
  std::fill(symbol_values_.begin(), symbol_values_.end(), int64_t{-1});
  std::copy_n(parent_values.begin(), std::min(parent_values.size(), symbol_values_.size()), symbol_values_.begin());
  for (size_t i = 0; i < inputs.size(); ++i)
    state.set_feed(inputs[i], some_later && !feeds[i].defined() ? Datum() : checked(program, inputs[i], feeds[i]));
  for (size_t i = 0; some_later && i < inputs.size(); ++i)
    if (!feeds[i].defined()) check_may_be_later(program, inputs[i]);
}

void FeedBinder::bind_later(SlotId slot, const Datum& feed, RunState& state) {
  if (state.held(slot).defined()) refuse_feed(state.program(), slot, feed, "it has been fed");
  state.set_feed(slot, checked(state.program(), slot, feed));
  try {
    point_at_feed(slot, state);
  } catch (...) {
    state.drop(slot);
    throw;
  }
}

void FeedBinder::move(SlotId slot, const Datum& feed, RunState& state) {
  const Datum& before = state.held(slot);
  if (!before.is_tensor() || !feed.is_tensor() || feed.tensor().dtype() != before.tensor().dtype() ||
      feed.tensor().shape() != before.tensor().shape() || !feed.tensor().is_contiguous())
    refuse_feed(state.program(), slot, feed, "where it lies now, it differs from what was fed");
  state.set_feed(slot, with_valid_booleans(feed.tensor().storage()->device() ? Datum(feed.tensor().clone()) : feed));
  point_at_feed(slot, state);
}

void FeedBinder::refuse_missing(const RunState& state) {
  for (SlotId slot : state.program().input_slots())
    if (!state.held(slot).defined()) refuse_feed(state.program(), slot, {}, "the run has come to what reads it, and it has not been fed");
  throw Error(ErrorCode::internal, "a run that waits for an input, though all have been fed");
}

void FeedBinder::check_complete(const RunState& state) {
  for (SlotId slot : state.program().input_slots())
    if (!state.held(slot).defined()) refuse_feed(state.program(), slot, {}, "it is missing");
}

// The plan is made for its extents before it is there.
void FeedBinder::check_may_be_later(const Program& program, SlotId slot) const {
  const Type& type = program.type(slot);
  const bool is_told = type.is_tensor() && type.dtype != DType::undefined && type.shape &&
                       std::all_of(type.shape->begin(), type.shape->end(), [&](const Dim& dim) {
                         return dim.is_const() || (dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent() &&
                                                   symbol_values_[static_cast<size_t>(dim.expr()->index)] >= 0);
                       });
  if (!is_told) refuse_feed(program, slot, {}, "it cannot be fed later, as nothing else tells its extents");
}

// The feed as the run takes it: contiguous.
Datum FeedBinder::checked(const Program& program, SlotId slot, const Datum& feed) {
  const Type& type = program.type(slot);
  if (!feed.defined()) refuse_feed(program, slot, feed, "it is missing");
  if (!feed.is_tensor() || !type.is_tensor()) {
    if (type.kind != Type::Kind::unknown && type.kind != Type::of(feed).kind) refuse_feed(program, slot, feed, "another kind of value");
    if (type.kind == Type::Kind::sparse_tensor) check_sparse_feed(program, slot, feed);
    return program.is_body() ? feed : with_valid_booleans(feed);
  }
  if (feed.tensor().storage()->device() && !takes_device_feeds_) return checked(program, slot, feed.tensor().clone());
  const Tensor& tensor = feed.tensor();
  if (type.dtype != DType::undefined && tensor.dtype() != type.dtype) refuse_feed(program, slot, feed, "another dtype");
  // Clients of ONNX Runtime, which does not look at the rank then, feed one number as a vector where the model says a scalar.
  if (type.shape && type.shape->empty() && tensor.shape().rank() > 0 && tensor.num_elements() == 1)
    return with_valid_booleans(tensor).contiguous().reshaped(Shape{});
  if (type.shape) {
    if (static_cast<int>(type.shape->size()) != tensor.shape().rank()) refuse_feed(program, slot, feed, "another rank");
    for (size_t axis = 0; axis < type.shape->size(); ++axis) {
      const Dim& dim = (*type.shape)[axis];
      const int64_t extent = tensor.shape()[static_cast<int>(axis)];
      if (dim.is_const()) {
        if (dim.value() != extent) refuse_feed(program, slot, feed, fmt::format("axis {} is {}, not {}", axis, extent, dim.value()));
      } else if (dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent()) {
        int64_t& known = symbol_values_[static_cast<size_t>(dim.expr()->index)];
        if (known >= 0 && known != extent)
          refuse_feed(program, slot, feed,
                      fmt::format("axis {} is {}, but the symbol {} is {} in another input", axis, extent, to_string(dim), known));
        known = extent;
      }
    }
  }
  if (tensor.dtype() == DType::boolean && !program.is_body()) return with_valid_booleans(tensor.contiguous());
  return tensor.is_contiguous() ? feed : Datum(tensor.contiguous());
}

void FeedBinder::point_at_feed(SlotId slot, RunState& state) {
  const Slot& info = state.program().slots()[slot];
  const Datum& feed = state.held(slot);
  if (info.location == LocationKind::known || !feed.is_tensor()) return;
  if (info.static_shape && feed.tensor().shape() != state.binding().shape(slot))
    refuse_feed(state.program(), slot, feed, "another shape than " + to_string(state.binding().shape(slot)));
  state.point_at(slot, feed.tensor());
}

void FeedBinder::point_at_feeds(RunState& state) {
  for (SlotId slot : state.program().input_slots()) point_at_feed(slot, state);
}

}  // namespace treadle::exec
