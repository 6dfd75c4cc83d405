// Kernels: how operators compute, in three steps: create (pack weights, once), bind (shapes -> plain struct), run (pointers only).
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/values/built_types.h"
#include "graph/graph.h"

namespace treadle {

class ThreadPool;

/// A node's attributes, dtypes and shapes. Base class of the contexts below.
class ShapeContext {
 public:
  explicit ShapeContext(const Node& node) : node_(node) {}

  const Node& node() const { return node_; }
  int num_inputs() const { return node_.num_formal_inputs; }
  int num_outputs() const { return static_cast<int>(node_.outputs.size()); }
  bool has_input(int i) const { return node_.has_input(static_cast<size_t>(i)); }
  bool has_output(int i) const { return node_.has_output(static_cast<size_t>(i)); }

  const Shape& shape(int input) const { return *shapes_[static_cast<size_t>(input)]; }
  const Shape& output_shape(int output) const { return *shapes_[node_.inputs.size() + static_cast<size_t>(output)]; }
  DType dtype(int input) const { return dtypes_[static_cast<size_t>(input)]; }
  DType output_dtype(int output) const { return dtypes_[node_.inputs.size() + static_cast<size_t>(output)]; }
  int64_t num_elements(int input) const { return shape(input).num_elements(); }
  double size_bytes(int input) const { return static_cast<double>(num_elements(input)) * static_cast<double>(bits_of(dtype(input))) / 8; }

  int64_t get_int(std::string_view name, int64_t otherwise = 0) const { return node_.attributes.get_int(name, otherwise); }
  float get_float(std::string_view name, float otherwise = 0) const { return node_.attributes.get_float(name, otherwise); }
  std::string_view get_string(std::string_view name, std::string_view otherwise = {}) const {
    return node_.attributes.get_string(name, otherwise);
  }
  const std::vector<int64_t>& get_ints(std::string_view name) const { return node_.attributes.get_ints(name); }
  /// Returns the attribute as an axis in [0, rank). @throws Error(invalid_argument) if its value is outside [-rank, rank)
  int axis(std::string_view name, int64_t otherwise, int rank) const;

  // Set by the creator of the context: one entry per input (including captures), then per output. An absent operand has a scalar's shape.
  std::span<const Shape* const> shapes_;
  std::span<const DType> dtypes_;

 protected:
  const Node& node_;
};

/// Context of `create`: dtypes, attributes and constant inputs. Shapes are not known yet.
class CreateContext {
 public:
  CreateContext(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}
  const Node& node() const { return node_; }
  const Attributes& attributes() const { return node_.attributes; }
  const Type& type(int input) const;  // returns an unknown type if the input is absent
  const Type& output_type(int output) const;
  DType dtype(int input) const { return type(input).dtype; }
  DType output_dtype(int output) const { return output_type(output).dtype; }
  bool has_input(int i) const { return node_.has_input(static_cast<size_t>(i)); }
  bool has_output(int i) const { return node_.has_output(static_cast<size_t>(i)); }
  /// Returns the name of the value; "" if it is absent. Valid as long as the graph exists.
  const std::string& input_name(int input) const;
  const std::string& output_name(int output) const;
  /// Returns the elements of a constant tensor, with the alignment that C++ requires; null for other inputs.
  const Tensor* constant(int input) const;
  /// Like constant(), but elements may be unaligned. constant() copies a large unaligned tensor of a file, and keeps the copy.
  const Tensor* stored(int input) const;

 private:
  const Graph& graph_;
  const Node& node_;
  mutable std::map<int, Tensor> aligned_;
};

/// A block of data of a PackedState, as stored in a compiled model's file. `id` identifies the block within the state.
struct PackedPart {
  int32_t id = 0;
  Tensor tensor;
};

/// What a kernel's `create` returns for a node, such as packed weights. All bindings of a program share it.
struct PackedState {
  virtual ~PackedState() = default;
  virtual size_t size_bytes() const { return 0; }   // memory in addition to the weights
  virtual std::string forms() const { return {}; }  // chosen methods, for people: "F(4,3)"
  /// Returns the state as blocks of data. KernelDef::restore makes an equal state from them. Empty: the state can only be created again.
  virtual std::vector<PackedPart> parts() const { return {}; }
};

/// Context of `bind`: shapes are known. bind() must not allocate memory.
class BindContext : public ShapeContext {
 public:
  using ShapeContext::ShapeContext;

  /// Returns the elements of an input if they are known before the run: constants, and values determined by shapes; otherwise null. An
  /// instruction bound during the run knows all elements. Never null for present inputs listed in OpDef::value_inputs.
  const Tensor* value(int input) const { return values_[static_cast<size_t>(input)]; }
  /// Returns an integer element (int32, int64) of value(input). @throws Error(invalid_argument) for another dtype or an index out of range
  int64_t value_at(int input, int64_t index) const;
  int64_t value_count(int input) const { return value(input) ? value(input)->num_elements() : 0; }
  /// Requests scratch memory for run(), aligned to a cache line (see RunContext::scratch()).
  void request_scratch(size_t bytes) { scratch_bytes_ = bytes; }
  size_t scratch_bytes() const { return scratch_bytes_; }
  int max_threads() const { return max_threads_; }
  template <typename P>
  const P& packed() const {
    return static_cast<const P&>(*packed_);
  }

  /// Row stride in elements. A row is a run of elements along the last axis. The stride is the last extent, unless the operand's rows lie
  /// within rows of another value, which is possible only for operands in KernelDef::strided_inputs and strided_outputs.
  int64_t input_step(int input) const { return step(static_cast<size_t>(input), shape(input)); }
  int64_t output_step(int output) const { return step(node_.inputs.size() + static_cast<size_t>(output), output_shape(output)); }

  std::span<const Tensor* const> values_;
  std::span<const int64_t> steps_;  // row stride of each operand, 0 if contiguous; empty if all operands are contiguous
  const PackedState* packed_ = nullptr;
  int max_threads_ = 1;

 private:
  int64_t step(size_t operand, const Shape& shape) const {
    const int64_t own = operand < steps_.size() ? steps_[operand] : 0;
    return own != 0 || shape.rank() == 0 ? own : shape[shape.rank() - 1];
  }
  size_t scratch_bytes_ = 0;
};

/// Operands of an instruction whose kernel is bound during the run (data-dependent shapes, sequences, strings).
class DynamicOperands {
 public:
  virtual ~DynamicOperands() = default;
  virtual const Datum& input(int i) const = 0;
  virtual Tensor allocate_output(int i, const Shape& shape) = 0;
  virtual void set_output(int i, Datum datum) = 0;
};

/// Context of `run`: pointers only. run() allocates nothing and looks nothing up.
class RunContext {
 public:
  RunContext(void* const* operands, int num_inputs, int num_outputs, void* scratch, ThreadPool* pool, const PackedState* packed)
      : operands_(operands), num_inputs_(num_inputs), num_outputs_(num_outputs), scratch_(scratch), pool_(pool), packed_(packed) {}

  /// Returns null if the operand is absent, or if the index is not below the node's number of inputs.
  template <typename T>
  const T* in(int i) const {
    return i < num_inputs_ ? static_cast<const T*>(operands_[i]) : nullptr;
  }
  /// Returns null for an optional output that the node does not have.
  template <typename T>
  T* out(int i) const {
    return i < num_outputs_ ? static_cast<T*>(operands_[num_inputs_ + i]) : nullptr;
  }
  template <typename T>
  T* scratch() const {
    return static_cast<T*>(scratch_);
  }
  ThreadPool* pool() const { return pool_; }
  template <typename P>
  const P& packed() const {
    return static_cast<const P&>(*packed_);
  }

  /// For kernels whose output shapes inference cannot determine: allocates output i and returns it.
  Tensor allocate_output(int i, const Shape& shape) const { return dynamic_->allocate_output(i, shape); }
  /// The functions below are for kernels that work on sequences, optionals, maps and sparse tensors.
  const Datum& input(int i) const { return dynamic_->input(i); }
  void set_output(int i, Datum datum) const { dynamic_->set_output(i, std::move(datum)); }

  /// A different number for each run and each node. Random numbers are a function of (seed, node, run, element).
  uint64_t run_id = 0;
  DynamicOperands* dynamic_ = nullptr;

 private:
  void* const* operands_;
  int num_inputs_, num_outputs_;
  void* scratch_;
  ThreadPool* pool_;
  const PackedState* packed_;
};

/// An implementation of an operator, made by `kernel<K>()`. OpDef::kernels lists them, best first.
struct KernelDef {
  std::string_view name = "plain";
  /// The dtype that the operand `dtype_operand` must have; undefined: any dtype.
  DType dtype = DType::undefined;
  int dtype_operand = 0;  ///< index of an input; -1 - k means output k
  /// True if output shapes or kinds are known only during the run. The kernel then calls allocate_output or set_output for each output.
  bool allocates = false;
  size_t state_bytes = 0, state_alignment = 1;
  /// Bit i is set if `create` has copied all that is needed of constant input i, so that bind() and run() do not read it.
  uint32_t packs = 0;
  /// True if the result of `create` depends only on the node's attributes, types and constants, and never changes. Nodes of several
  /// programs may then share it. Always true for kernels that pack.
  bool shares_packed = false;
  /// Bit i is set if the kernel asks BindContext for the row stride of operand i. The operand's rows may then lie within rows of another
  /// value. The last bit stands for all further operands.
  uint32_t strided_inputs = 0, strided_outputs = 0;
  /// If the kernel cannot compute the node, returns the reason; otherwise an empty string.
  std::string (*declines)(const CreateContext&) = nullptr;
  std::unique_ptr<PackedState> (*create)(const CreateContext&) = nullptr;
  /// Restores the state from the blocks of PackedState::parts(), and uses them without a copy. Blocks from files are not trusted: returns
  /// null if their sizes do not match the node's types. Of constants named by `packs`, only types and shapes are available.
  std::unique_ptr<PackedState> (*restore)(const CreateContext&, std::span<const PackedPart>) = nullptr;
  void (*bind)(void* state, BindContext&) = nullptr;
  void (*run)(const void* state, RunContext&) = nullptr;
};

/// Makes a KernelDef from a struct K. An object of K is the state of the node after bind():
///   static K bind(BindContext&);           // computes everything that depends on shapes
///   void run(RunContext&) const;           // computes
/// and optionally
///   static std::string declines(const CreateContext&);
///   static std::unique_ptr<PackedState> create(const CreateContext&);
///   static std::unique_ptr<PackedState> restore(const CreateContext&, std::span<const PackedPart>);
///   static constexpr bool allocates = true;
///   static constexpr uint32_t packs = 1U << 1;  // input 1
///   static constexpr bool shares_packed = true;  // implied by packs
///   static constexpr uint32_t strided_inputs = 1, strided_outputs = 1;  // input 0 and output 0
template <typename K>
KernelDef kernel(std::string_view name = "plain", DType dtype = DType::undefined, int dtype_operand = 0) {
  static_assert(std::is_trivially_destructible_v<K> && std::is_trivially_copyable_v<K>, "bound state is plain data");
  static_assert(alignof(K) <= alignof(std::max_align_t));
  KernelDef def;
  def.name = name;
  def.dtype = dtype;
  def.dtype_operand = dtype_operand;
  def.state_bytes = sizeof(K);
  def.state_alignment = alignof(K);
  if constexpr (requires { K::allocates; }) def.allocates = K::allocates;
  if constexpr (requires { K::packs; }) def.packs = K::packs;
  def.shares_packed = def.packs != 0;
  if constexpr (requires { K::shares_packed; }) def.shares_packed = K::shares_packed;
  if constexpr (requires { K::strided_inputs; }) def.strided_inputs = K::strided_inputs;
  if constexpr (requires { K::strided_outputs; }) def.strided_outputs = K::strided_outputs;
  if constexpr (requires(const CreateContext& c) { K::declines(c); }) def.declines = &K::declines;
  if constexpr (requires(const CreateContext& c) { K::create(c); }) def.create = &K::create;
  if constexpr (requires(const CreateContext& c) { K::restore(c, std::span<const PackedPart>{}); }) def.restore = &K::restore;
  def.bind = [](void* state, BindContext& c) { new (state) K(K::bind(c)); };
  def.run = [](const void* state, RunContext& c) { static_cast<const K*>(state)->run(c); };
  return def;
}

/// Returns the kernel for elements of type T; an empty list if this build does not support T.
template <typename K, typename T>
std::vector<KernelDef> built_kernel(std::string_view name = "plain", int dtype_operand = 0) {
  if constexpr (kIsBuilt<T>)
    return {kernel<K>(name, dtype_of<T>, dtype_operand)};
  else
    return {};
}

/// Returns the kernels that make.operator()<T>() makes, one for each type that this build supports.
template <typename... Ts, typename Make>
std::vector<KernelDef> kernels_of(Make make) {
  std::vector<KernelDef> made;
  made.reserve(sizeof...(Ts));
  auto add = [&]<typename T>() {
    if constexpr (kIsBuilt<T>) made.push_back(make.template operator()<T>());
  };
  (add.template operator()<Ts>(), ...);
  return made;
}

/// Returns one kernel per element type of input 0: `typed<Add, float, double, int64_t>()`.
template <template <typename> class K, typename... Ts>
std::vector<KernelDef> typed(std::string_view name = "plain", int dtype_operand = 0) {
  return kernels_of<Ts...>([&]<typename T>() { return kernel<K<T>>(name, dtype_of<T>, dtype_operand); });
}

inline std::vector<KernelDef> operator+(std::vector<KernelDef> a, const std::vector<KernelDef>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Returns the first kernel in OpDef::kernels that accepts the node. @throws Error(not_implemented) with the reason of each kernel
const KernelDef& select_kernel(const Graph& graph, const Node& node);

}  // namespace treadle
