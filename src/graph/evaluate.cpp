#include "graph/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/short_vector.h"
#include "core/threads/thread_pool.h"
#include "core/values/allocation.h"
#include "core/values/large_memory.h"
#include "graph/contract.h"
#include "graph/deferred.h"
#include "treadle/error.h"

namespace treadle {
namespace {

void* aligned(std::vector<std::byte>& block, size_t bytes, size_t alignment) {
  if (block.size() < bytes + alignment) block.resize(bytes + alignment);
  auto address = reinterpret_cast<uintptr_t>(block.data());
  return reinterpret_cast<void*>((address + alignment - 1) & ~(alignment - 1));
}

// The memory of string tensors was charged while the strings were empty. This adds the bytes of their texts.
void charge_texts_in(const Datum& datum) {
  if (datum.is_tensor())
    charge_texts(datum.tensor());
  else if (datum.kind() == Datum::Kind::sequence)
    for (const Datum& element : datum.sequence().elements) charge_texts_in(element);
}

// The state of a deferred kernel: whether it has ended, and with which error.
class Ending final : public Completion {
 public:
  void complete(std::exception_ptr error) override {
    std::function<void()> next;
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      ended_ = true;
      error_ = std::move(error);
      next = std::move(continuation_);
      changed_.notify_all();
    }
    if (next) next();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
  }
  /// Sets the function to call at the kernel's end. Returns false if the kernel has ended already; `continuation` is then not called.
  bool then(std::function<void()> continuation) {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    continuation_ = std::move(continuation);
    return true;
  }
  /// Called once, after the end. Gives up the error, so that the caller is its only owner.
  std::exception_ptr take_error() { return std::exchange(error_, nullptr); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr error_;
  std::function<void()> continuation_;
};

class Evaluation final : public DeferringOperands {
 public:
  Evaluation(const Node& node, const KernelDef& kernel, std::span<const Datum> inputs, std::span<const DType> output_dtypes,
             Evaluator& evaluator)
      : node_(node),
        kernel_(kernel),
        inputs_(inputs),
        output_dtypes_(output_dtypes),
        e_(evaluator),
        kept_(inputs.size()),
        outputs_(output_dtypes.size()) {}

  std::vector<Datum> run(const PackedState* packed) {
    begin(packed);
    if (ending_) ending_->wait();
    return finish();
  }

  /// Checks inputs, makes outputs and runs the kernel. If the kernel defers its end, wait for ending() before calling finish().
  void begin(const PackedState* packed) {
    describe_inputs();
    check_inputs();
    if (!kernel_.allocates) make_outputs();
    e_.shape_pointers.clear();
    for (const Shape& shape : e_.shapes) e_.shape_pointers.push_back(&shape);
    BindContext bind(node_);
    bind.shapes_ = e_.shape_pointers;
    bind.dtypes_ = e_.dtypes;
    bind.values_ = e_.values;
    bind.packed_ = packed;
    bind.max_threads_ = e_.pool ? e_.pool->num_threads() : 1;
    void* state = aligned(e_.state, kernel_.state_bytes, alignof(std::max_align_t));
    kernel_.bind(state, bind);
    const size_t scratch_bytes = bind.scratch_bytes();
    if (scratch_bytes > e_.max_output_bytes)
      throw Error(ErrorCode::resource_exhausted,
                  fmt::format("scratch of {} bytes; at most {} are allowed here", scratch_bytes, e_.max_output_bytes));
    if (e_.on_device) {
      e_.device_scratch = scratch_bytes > 0 ? e_.allocate(DType::uint8, Shape{static_cast<int64_t>(scratch_bytes)}) : Tensor();
    } else if (scratch_bytes > 0 && (!e_.scratch || e_.scratch->size_bytes() < scratch_bytes)) {
      AllocationScope scope(AllocationScope::current(), MemoryClass::scratch);
      e_.scratch.reset();
      e_.scratch = allocate_large(scratch_bytes);
    }
    RunContext context(e_.pointers.data(), static_cast<int>(inputs_.size()), static_cast<int>(outputs_.size()),
                       scratch_bytes == 0 ? nullptr
                       : e_.on_device     ? e_.device_scratch.raw()
                                          : e_.scratch->data(),
                       e_.pool, packed);
    context.run_id = e_.run_id;
    context.dynamic_ = this;
    kernel_.run(state, context);
  }

  std::vector<Datum> finish() {
    if (std::exception_ptr error = ending_ ? ending_->take_error() : nullptr) std::rethrow_exception(std::move(error));
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!node_.has_output(i))
        outputs_[i] = Datum();
      else if (!outputs_[i].defined())
        throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
      charge_texts_in(outputs_[i]);
    }
    return std::move(outputs_);
  }

  const std::shared_ptr<Ending>& ending() const { return ending_; }
  std::shared_ptr<Completion> defer() override { return ending_ = std::make_shared<Ending>(); }
  bool stop_requested() const override { return e_.stop_requested && e_.stop_requested(); }

  const Datum& input(int i) const override {
    auto k = static_cast<size_t>(i);
    if (!inputs_[k].is_tensor() || !inputs_[k].tensor().storage()->lent()) return inputs_[k];
    if (!kept_[k].defined()) kept_[k] = inputs_[k].tensor().clone();
    return kept_[k];
  }

  const Datum& borrowed_input(int i) const override { return inputs_[static_cast<size_t>(i)]; }

  Tensor allocate_output(int i, const Shape& shape) override {
    auto k = static_cast<size_t>(i);
    if (!node_.has_output(k) || output_dtypes_[k] == DType::undefined)
      throw Error(ErrorCode::internal, fmt::format("the kernel makes output {}, which the node does not have, or of no known dtype", i));
    const DType dtype = output_dtypes_[k];
    size_t bytes = size_bytes(dtype, shape.num_elements());
    if (bytes > e_.max_output_bytes)
      throw Error(ErrorCode::resource_exhausted,
                  fmt::format("output {} of {} bytes; at most {} are allowed here", i, bytes, e_.max_output_bytes));
    Tensor tensor = e_.allocate              ? e_.allocate(dtype, shape)
                    : dtype == DType::string ? Tensor(dtype, shape)
                                             : Tensor(dtype, shape, allocate_large(bytes));
    outputs_[k] = tensor;
    return tensor;
  }

  void set_output(int i, Datum datum) override {
    if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = std::move(datum);
  }

 private:
  // Checks dtypes and ranks that were not known before the run, against the operator's contract.
  void check_inputs() {
    ShortVector<const Type*> types(static_cast<size_t>(node_.num_formal_inputs));
    for (size_t i = 0; i < types.size(); ++i) types[i] = e_.operands[i].type;
    check_input_types(node_, types, ErrorCode::invalid_argument);
  }

  void describe_inputs() {
    size_t num_inputs = inputs_.size(), num_operands = num_inputs + output_dtypes_.size();
    e_.shapes.assign(num_operands, Shape());
    e_.dtypes.assign(num_operands, DType::undefined);
    e_.values.assign(num_operands, nullptr);
    e_.pointers.assign(num_operands, nullptr);
    e_.types.assign(num_inputs, {});
    e_.operands.assign(num_inputs, {});
    for (size_t i = 0; i < num_inputs; ++i) {
      if (!inputs_[i].defined()) continue;
      if (inputs_[i].is_tensor()) {
        const Tensor& tensor = inputs_[i].tensor();
        e_.shapes[i] = tensor.shape();
        e_.dtypes[i] = tensor.dtype();
        if (!e_.on_device || is_value_input(i)) e_.values[i] = &tensor;
        e_.pointers[i] = tensor.raw();
      }
      e_.types[i] = Type::of(inputs_[i]);
      e_.operands[i] = {&e_.types[i], e_.values[i]};
    }
    for (size_t i = 0; i < output_dtypes_.size(); ++i) e_.dtypes[num_inputs + i] = output_dtypes_[i];
  }

  bool is_value_input(size_t i) const {
    return std::find(node_.op->value_inputs.begin(), node_.op->value_inputs.end(), static_cast<int>(i)) != node_.op->value_inputs.end();
  }

  std::string operands_text() const {
    std::string text;
    for (size_t i = 0; i < inputs_.size(); ++i)
      text += fmt::format("{}input {} {}", i == 0 ? "" : ", ", i, inputs_[i].defined() ? to_string(e_.types[i]) : "absent");
    return text;
  }

  void make_outputs() {
    SymbolTable symbols;
    InferContext context(node_, symbols, e_.operands, {});
    if (node_.op->infer) node_.op->infer(context);
    for (size_t i = 0; i < output_dtypes_.size(); ++i) {
      if (!node_.has_output(i)) continue;
      const Type& type = context.outputs[i].type;
      // Inference had the elements of all operands. If it still finds no shape, the operands must be invalid.
      if (!type.is_static())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the operands do not say what output {} is, only {}: {}", i, to_string(type), operands_text()));
      Tensor made = allocate_output(static_cast<int>(i), type.static_shape());
      e_.shapes[inputs_.size() + i] = made.shape();
      e_.pointers[inputs_.size() + i] = made.raw();
    }
  }

  const Node& node_;
  const KernelDef& kernel_;
  std::span<const Datum> inputs_;
  std::span<const DType> output_dtypes_;
  Evaluator& e_;
  mutable std::vector<Datum> kept_;  // copies of tensors in lent storage, made when a kernel asks for them
  std::vector<Datum> outputs_;
  std::shared_ptr<Ending> ending_;  // set if the kernel defers its end
};

// Owns everything that a deferred kernel needs until its end.
struct OwnedEvaluation {
  explicit OwnedEvaluation(DeferredNode given)
      : deferred(std::move(given)), evaluation(*deferred.node, *deferred.kernel, deferred.inputs, deferred.output_dtypes, evaluator) {
    evaluator.pool = deferred.pool;
    evaluator.run_id = deferred.run_id;
    evaluator.stop_requested = deferred.stop_requested;
  }
  void finish() {
    std::vector<Datum> outputs;
    std::exception_ptr error;
    try {
      outputs = evaluation.finish();
    } catch (...) {
      error = std::current_exception();
    }
    deferred.done(std::move(outputs), std::move(error));
  }
  DeferredNode deferred;
  Evaluator evaluator;
  Evaluation evaluation;
};

}  // namespace

std::vector<Datum> evaluate_node(const Node& node, const KernelDef& kernel, const PackedState* packed, std::span<const Datum> inputs,
                                 std::span<const DType> output_dtypes, Evaluator& evaluator) {
  return Evaluation(node, kernel, inputs, output_dtypes, evaluator).run(packed);
}

void evaluate_deferred(DeferredNode node) {
  auto owned = std::make_shared<OwnedEvaluation>(std::move(node));
  try {
    owned->evaluation.begin(owned->deferred.packed);
  } catch (...) {
    return owned->deferred.done({}, std::current_exception());
  }
  const std::shared_ptr<Ending> ending = owned->evaluation.ending();
  if (ending && ending->then([owned] { owned->finish(); })) return;
  owned->finish();
}

}  // namespace treadle
