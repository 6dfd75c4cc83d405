#include "exec/run/feed_binder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/values/boolean_bytes.h"
#include "exec/explain/run_shortage.h"
#include "exec/memory/shortage.h"
#include "exec/run/run_control.h"
#include "graph/type_text.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// The error begins with ONNX Runtime's words, because some programs search for them.
[[noreturn]] void refuse_type(const Program& program, SlotId slot, const Datum& feed, const std::string& what) {
  refuse_feed(
      program, slot, feed, what,
      fmt::format("Unexpected input data type. Actual: ({}) , expected: ({}): ", type_text(Type::of(feed)), type_text(program.type(slot))));
}

// @throws Error naming the axes whose extents differ from those in the model
void check_extents(const Program& program, SlotId slot, const Datum& feed, const Shape& shape) {
  const SymbolicShape& declared = *program.type(slot).shape;
  if (static_cast<int>(declared.size()) != shape.rank())
    refuse_feed(program, slot, feed, "another rank",
                fmt::format("Invalid rank for input: {} Got: {} Expected: {} Please fix either the inputs/outputs or the model: ",
                            program.name(slot), shape.rank(), declared.size()));
  auto differs = [&](int axis) {
    const Dim& dim = declared[static_cast<size_t>(axis)];
    return dim.is_const() && dim.value() != shape[axis];
  };
  std::string axes, indices;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (!differs(axis)) continue;
    const int64_t expected = declared[static_cast<size_t>(axis)].value();
    axes += fmt::format("{}axis {} is {}, not {}", axes.empty() ? "" : ", ", axis, shape[axis], expected);
    indices += fmt::format(" index: {} Got: {} Expected: {}\n", axis, shape[axis], expected);
  }
  if (!axes.empty())
    refuse_feed(
        program, slot, feed, axes,
        fmt::format("Got invalid dimensions for input: {} for the following indices\n{} Please fix either the inputs/outputs or the "
                    "model: ",
                    program.name(slot), indices));
}

// Checks a sparse feed. Its extents give no values to symbols, because nodes that read the feed are bound during the run.
void check_sparse_feed(const Program& program, SlotId slot, const Datum& feed) {
  const Type& type = program.type(slot);
  const SparseTensor& sparse = feed.sparse_tensor();
  if (sparse.values.dtype() != type.dtype) refuse_type(program, slot, feed, "another dtype");
  if (type.shape) check_extents(program, slot, feed, sparse.dense_shape);
}

bool mentions(const Dim& dim, const Expr& symbol);
bool mentions(const Expr& expr, const Expr& symbol) {
  auto in_term = [&](const Expr::Term& term) {
    return std::ranges::any_of(term.factors, [&](const Expr* factor) { return mentions(*factor, symbol); });
  };
  return &expr == &symbol || mentions(expr.a, symbol) || mentions(expr.b, symbol) || std::ranges::any_of(expr.terms, in_term);
}
bool mentions(const Dim& dim, const Expr& symbol) { return !dim.is_const() && mentions(*dim.expr(), symbol); }

// Returns the input of the body that captures this value; kNoSlot if the body does not read it.
SlotId captured_as(const Program& program, const Instruction& instruction, size_t body, SlotId value) {
  const auto operands = program.operands(instruction);
  const auto inputs = instruction.bodies[body]->input_slots();
  const auto& captures = instruction.node->bodies[body].captures;
  for (size_t i = 0; value != kNoSlot && i < captures.size(); ++i)
    if (operands[static_cast<size_t>(instruction.node->num_formal_inputs + captures[i].second)] == value)
      return inputs[inputs.size() - captures.size() + i];
  return kNoSlot;
}

// Returns true if extents or known elements of other values depend on the symbol. Skips bodies that cannot run without the input.
bool depends_on(const Program& program, SlotId input, const Expr& symbol) {
  auto does = [&](const SymbolicExtent& extent) { return extent.slot != input && mentions(extent.dim, symbol); };
  if (std::ranges::any_of(program.extents().of_shapes, does) || std::ranges::any_of(program.extents().of_known, does)) return true;
  auto compares = [&](const ExtentComparison& two) { return mentions(two.a.dim, symbol) || mentions(two.b.dim, symbol); };
  if (std::ranges::any_of(program.extents().comparisons, compares)) return true;
  for (const Instruction& instruction : program.instructions())
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const Program& body = *instruction.bodies[b];
      const SlotId within = captured_as(program, instruction, b, input);
      // A missing input is no error in this case, because the body does not run without it.
      if (within != kNoSlot && needs_feed(body, within)) continue;
      if (depends_on(body, within, symbol)) return true;
    }
  return false;
}

// Returns true if a node or a body may read the input, or if it is an output.
bool is_read(const Program& program, SlotId input) {
  const ValueId value = program.slots()[input].value;
  return program.type(input).kind != Type::Kind::optional &&
         (!program.graph().value(value).uses.empty() || program.graph().is_output(value));
}

[[noreturn]] void throw_missing(const Program& program, SlotId slot) {
  throw MissingInput(program.name(slot), fmt::format("it is {}", to_string(program.type(slot))));
}

// Compares kinds and dtypes, including those within maps, optionals and sequences. An empty sequence fits any element dtype.
bool fits(const Type& declared, const Type& fed) {
  if (declared.kind == Type::Kind::unknown || fed.kind == Type::Kind::unknown) return true;
  auto same = [](DType a, DType b) { return a == b || a == DType::undefined || b == DType::undefined; };
  return declared.kind == fed.kind && same(declared.dtype, fed.dtype) && same(declared.key_dtype, fed.key_dtype) &&
         (!declared.element || !fed.element || fits(*declared.element, *fed.element));
}

}  // namespace

void refuse_feed(const Program& program, SlotId slot, const Datum& datum, const std::string& what, const std::string& words) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}input \"{}\": {}; got {}, expected {}", words, program.name(slot), what,
                                                       describe(datum), to_string(program.type(slot))));
}

MissingInput::MissingInput(const std::string& name, const std::string& more)
    : Error(ErrorCode::invalid_argument, fmt::format("Missing Input: {}: the input \"{}\" is missing; {}", name, name, more)) {}

bool needs_feed(const Program& program, SlotId input) {
  if (program.type(input).kind == Type::Kind::optional) return false;
  const Graph& graph = program.graph();
  const ValueId value = program.slots()[input].value;
  return graph.is_output(value) ||
         std::ranges::any_of(graph.value(value).uses, [&](const Use& use) { return use.input < graph.node(use.node).num_formal_inputs; });
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
    if (state.program().is_body()) throw;  // the error first needs the name of the node that owns the body
    rethrow_with_memory([&](const OutOfMemory&) { return describe_unbound(state.program(), control.memory.account()); },
                        "while the extents of a run were bound");
  }
}

void FeedBinder::take(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state) {
  const Program& program = state.program();
  const bool some_later = control.feeds.later;
  takes_device_feeds_ = control.feeds.on_devices;
  const auto inputs = program.input_slots();
  if (feeds.size() != inputs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} feeds for {} inputs", feeds.size(), inputs.size()));
  std::fill(symbol_values_.begin(), symbol_values_.end(), int64_t{-1});
  std::copy_n(parent_values.begin(), std::min(parent_values.size(), symbol_values_.size()), symbol_values_.begin());
  for (size_t i = 0; i < inputs.size(); ++i)
    state.set_feed(inputs[i], some_later && !feeds[i].defined() ? Datum() : checked(program, inputs[i], feeds[i]));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (feeds[i].defined()) continue;
    if (some_later && is_read(program, inputs[i]))
      check_may_be_later(program, inputs[i]);
    else
      leave_out(program, inputs[i]);
  }
}

// Sets the symbols that only the missing feed determines to 0. @throws MissingInput if anything else depends on such a symbol
void FeedBinder::leave_out(const Program& program, SlotId slot) {
  const Type& type = program.type(slot);
  if (!type.shape) return;
  for (const Dim& dim : *type.shape) {
    if (dim.is_const() || symbol_values_[static_cast<size_t>(dim.expr()->index)] >= 0) continue;
    if (depends_on(program, slot, *dim.expr())) throw_missing(program, slot);
    symbol_values_[static_cast<size_t>(dim.expr()->index)] = 0;
  }
}

void FeedBinder::bind_later(SlotId slot, const Datum& feed, RunState& state) {
  const Program& program = state.program();
  if (state.held(slot).defined()) refuse_feed(program, slot, feed, "it has been fed");
  const bool is_left_out = !is_read(program, slot);
  // leave_out() has set the symbols that only this input determines to 0. The feed may have any extents, because nothing reads it.
  if (is_left_out && program.type(slot).shape)
    for (const Dim& dim : *program.type(slot).shape)
      if (!dim.is_const() && !depends_on(program, slot, *dim.expr())) symbol_values_[static_cast<size_t>(dim.expr()->index)] = -1;
  state.set_feed(slot, checked(program, slot, feed));
  if (is_left_out) return;
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

bool FeedBinder::lacks_feed(const RunState& state, std::span<const SlotId> slots) {
  const auto all = state.program().slots();
  return std::any_of(slots.begin(), slots.end(), [&](SlotId slot) {
    if (slot == kNoSlot) return false;
    const SlotId root = all[slot].root;
    return all[root].location == LocationKind::feed && !state.held(root).defined();
  });
}

void FeedBinder::refuse_missing(const RunState& state) {
  for (SlotId slot : state.program().input_slots())
    if (!state.held(slot).defined() && is_read(state.program(), slot))
      refuse_feed(state.program(), slot, {}, "the run has come to what reads it, and it has not been fed");
  throw Error(ErrorCode::internal, "a run that waits for an input, though all have been fed");
}

void FeedBinder::check_complete(const RunState& state) {
  for (SlotId slot : state.program().input_slots())
    if (!state.held(slot).defined() && is_read(state.program(), slot)) throw_missing(state.program(), slot);
}

// Checks that the extents of a feed that is supplied later are known already, because the binding needs them.
void FeedBinder::check_may_be_later(const Program& program, SlotId slot) const {
  const Type& type = program.type(slot);
  const bool is_told = type.is_tensor() && type.dtype != DType::undefined && type.shape &&
                       std::all_of(type.shape->begin(), type.shape->end(), [&](const Dim& dim) {
                         return dim.is_const() || (dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent() &&
                                                   symbol_values_[static_cast<size_t>(dim.expr()->index)] >= 0);
                       });
  if (!is_told) refuse_feed(program, slot, {}, "it cannot be fed later, as nothing else tells its extents");
}

// Returns the feed in the form that the run needs: contiguous and, unless feeds may stay on devices, on the host.
Datum FeedBinder::checked(const Program& program, SlotId slot, const Datum& feed) {
  const Type& type = program.type(slot);
  if (!feed.defined()) {
    if (needs_feed(program, slot)) throw_missing(program, slot);
    return type.kind == Type::Kind::optional ? Datum(Optional()) : feed;
  }
  if (type.kind == Type::Kind::optional && feed.kind() != Datum::Kind::optional) {
    if (type.element && !fits(*type.element, Type::of(feed))) refuse_type(program, slot, feed, "another kind of value");
    return Optional{std::make_shared<Datum>(with_valid_booleans(feed))};
  }
  if (!feed.is_tensor() || !type.is_tensor()) {
    const Type fed = Type::of(feed);
    if (type.kind != Type::Kind::unknown && type.kind != fed.kind) refuse_type(program, slot, feed, "another kind of value");
    if (!fits(type, fed)) refuse_type(program, slot, feed, "another dtype");
    if (type.kind == Type::Kind::sparse_tensor) check_sparse_feed(program, slot, feed);
    return program.is_body() ? feed : with_valid_booleans(feed);
  }
  if (feed.tensor().storage()->device() && !takes_device_feeds_) return checked(program, slot, feed.tensor().clone());
  const Tensor& tensor = feed.tensor();
  if (type.dtype != DType::undefined && tensor.dtype() != type.dtype) refuse_type(program, slot, feed, "another dtype");
  // Accepts a tensor with one element for a scalar input. ONNX Runtime does so, and its clients expect it.
  if (type.shape && type.shape->empty() && tensor.shape().rank() > 0 && tensor.num_elements() == 1)
    return with_valid_booleans(tensor).contiguous().reshaped(Shape{});
  if (type.shape) {
    bool same = static_cast<int>(type.shape->size()) == tensor.shape().rank();
    for (size_t axis = 0; same && axis < type.shape->size(); ++axis) {
      const Dim& dim = (*type.shape)[axis];
      const int64_t extent = tensor.shape()[static_cast<int>(axis)];
      if (dim.is_const()) {
        same = dim.value() == extent;
      } else if (dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent()) {
        int64_t& known = symbol_values_[static_cast<size_t>(dim.expr()->index)];
        if (known >= 0 && known != extent)
          refuse_feed(program, slot, feed,
                      fmt::format("axis {} is {}, but the symbol {} is {} in another input", axis, extent, to_string(dim), known));
        known = extent;
      }
    }
    if (!same) check_extents(program, slot, feed, tensor.shape());
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
